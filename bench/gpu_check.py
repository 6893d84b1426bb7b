"""The check of a machine with a GPU: correct, exact, and how fast beside what the device could do.

Run it by bench/gpu_check.sh, which makes a bare checkout importable. Every part is a process with a time of its own, so
one that fails, hangs or leaves the device in a broken state ends alone; what it had found by then is kept.
"""

from __future__ import annotations

import json
import os
import platform as host
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..core.platform import detect
from .gpu.table import lines

MOST_SECONDS = 525  # for all parts; the whole script has 9 minutes


@dataclass(frozen=True, slots=True)
class Part:
    """One module of bench/gpu with its arguments, and the seconds that it may take."""

    name: str
    module: str
    seconds: float
    arguments: tuple[str, ...] = ()


PARTS = (
    Part("roofline", "roofline", 35),
    Part("products with codes", "codes", 60),
    Part("conformance", "conformance", 130),
    Part("exactness", "exactness", 110),
    Part("speed of 1B", "speed", 80, ("1B",)),
    Part("speed of 8B", "speed", 110, ("8B",)),
)


def check(parts: Sequence[Part], folder: Path, *, most_seconds: float = MOST_SECONDS) -> int:
    """Run `parts`, print a table, write report.json into `folder`; 1 when any of them failed, else 0."""
    folder.mkdir(parents=True, exist_ok=True)
    machine = _machine()
    for name, value in machine.items():
        print(f"{name}: {value}")
    print()
    ends = time.monotonic() + most_seconds
    found: dict[str, Mapping[str, Any]] = {}
    for part in parts:
        print(f"... {part.name}", flush=True)
        found[part.name] = _run(part, folder, min(part.seconds, ends - time.monotonic()))
        (folder / "report.json").write_text(json.dumps({"machine": machine, "parts": found}, indent=1))
    print()
    for line in lines(found):
        print(line)
    return 1 if any(part["problems"] for part in found.values()) else 0


def _machine() -> dict[str, Any]:
    """What is measured."""
    found = detect()
    facts = {"python": host.python_version(), "torch": torch.__version__, "device": f"{found.kind} {found.arch}"}
    if found.kind == "cpu":
        return {"no GPU": "torch sees none: a dry run of the check itself, whose numbers mean nothing", **facts}
    return {"gpu": torch.cuda.get_device_name(), **facts}


def _run(part: Part, folder: Path, seconds: float) -> dict[str, Any]:
    """What the part found, with the problem of its end if it did not end well."""
    if seconds < 1:
        return {"problems": ["no time was left for it"]}
    slug = part.name.replace(" ", "_")
    file, log = folder / f"{slug}.json", folder / f"{slug}.log"
    command = [sys.executable, "-m", f"{__package__}.gpu.part", part.module, str(file), *part.arguments]
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        ending = _ending(process, seconds)
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"problems": []}
    if ending is not None and not (ending.startswith("it ended with 1") and found["problems"]):
        found["problems"].append(f"{ending}; its last words: {log.read_text()[-500:]}")
    return found


def _ending(process: subprocess.Popen[bytes], seconds: float) -> str | None:
    """What was wrong with the end of the process, which is awaited or, with all its children, killed."""
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        return f"it took more than {seconds:.0f} s"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return None if code == 0 else f"it ended with {code}"


if __name__ == "__main__":
    sys.exit(check(PARTS, Path(sys.argv[1])))
