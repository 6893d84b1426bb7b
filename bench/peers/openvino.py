"""OpenVINO GenAI's continuous batching. Weights are as optimum-intel exports them without compression (fp16); on a
processor with bf16 units it computes in bf16 and keeps keys and values in 8 bits, both by its own choice.

Its adapters are those of a whole pipeline at a time: rows of different ones never share a batch, so it has none here.
"""

from __future__ import annotations

import subprocess
import zlib
from pathlib import Path

from ._peer import Base, Engine, Peer, Stage

PINS = (
    "openvino-genai==2026.4.1.0",
    "openvino-tokenizers==2026.4.1.0",
    "optimum-intel==2.2.0",
    "torch==2.13.0",
)
UNWANTED = ("torchvision",)  # of another build than its torch; importing it fails
FORMAT = ("--task", "text-generation-with-past", "--weight-format", "fp16")


def converted(base: Base, home: Path) -> Path:
    """Where a base lies in OpenVINO's form."""
    return home / f"{base.folder.name}-{zlib.crc32(str(base.folder.resolve()).encode()):08x}"


def prepare(base: Base, home: Path) -> None:
    """Export the folder once; minutes."""
    target = converted(base, home)
    if target.exists():
        return
    partial = target.with_suffix(".partial")
    command = [home / "bin" / "optimum-cli", "export", "openvino", "--model", base.folder, *FORMAT, partial]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"optimum-cli export: {done.stderr.strip()[-1000:]}")
    partial.replace(target)


def engines(stage: Stage, base: Base, home: Path) -> list[Engine]:
    """One, without adapters."""
    if stage.weights != "bf16" or stage.shape[0]:
        return []
    scheduler = {"cache_size": max(1, base.kv_bytes >> 30)}  # in GiB
    properties = {"INFERENCE_NUM_THREADS": stage.threads, "PERFORMANCE_HINT": "LATENCY"}
    job = {"model": str(converted(base, home)), "scheduler": scheduler, "properties": properties}
    return [Engine("openvino", "openvino_worker", job)]


EXPORT = Peer(engines, PINS, UNWANTED, prepare=prepare)
