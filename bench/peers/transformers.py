"""transformers and PEFT: a static batch, whose rows may ask for different adapters (`adapter_names`), and transformers'
own continuous batching (`generate_batch`), which knows of no adapters. Attention is sdpa, its default.
"""

from __future__ import annotations

from pathlib import Path

from ._peer import Base, Engine, Peer, Stage

PINS = ("torch==2.13.0", "transformers==5.24.0", "peft==0.21.2", "accelerate==1.15.0", "gguf>=0.17", "psutil>=6")


def engines(stage: Stage, base: Base, home: Path) -> list[Engine]:
    """The static batch, and the continuous one where there are no adapters."""
    if stage.weights != "bf16":
        return []
    job = {
        "path": str(base.folder),
        "gguf_file": None,
        "dtype": "bfloat16",
        "threads": stage.threads,
        "adapters": dict(base.adapters),
    }
    env = {"OMP_NUM_THREADS": str(stage.threads), "HF_HUB_OFFLINE": "1"}
    cases = tuple(case for case in stage.cases if case.adapters) if base.adapters else None
    found = [Engine("transformers", "transformers_worker", job, env, tuple(base.adapters), cases)]
    if not base.adapters:
        continuous = {**job, "batching": "continuous"}
        found.append(Engine("transformers, continuous", "transformers_worker", continuous, env))
    return found


EXPORT = Peer(engines, PINS)
