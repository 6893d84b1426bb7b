"""llama.cpp through llama-cpp-python, compiled for this machine when it is installed: the .gguf file as it is.

One row at a time: llama-cpp-python has no batches, and llama.cpp itself never batches different adapters.
"""

from __future__ import annotations

from pathlib import Path

from ._peer import Base, Engine, Peer, Stage

PINS = ("llama-cpp-python==0.3.36",)
CHUNK = 512  # tokens of a prompt in one go, its own default


def engines(stage: Stage, base: Base, home: Path) -> list[Engine]:
    """One for int4, with as many threads as the stage has."""
    if stage.weights != "int4":
        return []
    flags = {
        "n_threads": stage.threads,
        "n_threads_batch": stage.threads,
        "n_ctx": base.max_model_len,
        "n_batch": CHUNK,
        "flash_attn": True,
    }
    one = tuple(case for case in stage.cases if case.streams == 1)
    return [Engine("llama.cpp", "llama_cpp_worker", {"model": str(base.gguf), "flags": flags}, cases=one)]


EXPORT = Peer(engines, PINS)
