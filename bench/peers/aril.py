"""Aril itself, in this environment: its own defaults, but for what the load asks of everybody."""

from __future__ import annotations

from pathlib import Path

from ._peer import ARIL, BARE, Base, Engine, Peer, Stage

ROOM = "1GiB"  # for adapters on the device; 16 of rank 64 are 627 MB


def engines(stage: Stage, base: Base, home: Path) -> list[Engine]:
    """One, and beside one with adapters one that was started without."""
    adapters = dict(base.adapters)
    flags = {
        "device": "cpu",
        "dtype": "bfloat16",
        "threads": stage.threads,
        "max_model_len": base.max_model_len,
        "kv_cache_memory": base.kv_bytes,
    }
    model = str(base.folder if stage.weights == "bf16" else base.gguf)
    env = {"OMP_NUM_THREADS": str(stage.threads)}
    bare = Engine(ARIL, "aril_worker", {"model": model, "adapters": {}, "flags": flags}, env)
    if not adapters:
        return [bare]
    loaded = {"model": model, "adapters": adapters, "flags": {**flags, "adapter_memory": ROOM}}
    plain = tuple(case for case in stage.cases if not case.adapters)
    return [
        Engine(ARIL, "aril_worker", loaded, env, tuple(adapters)),
        Engine(BARE, "aril_worker", bare.job, env, (), plain),
    ]


EXPORT = Peer(engines)
