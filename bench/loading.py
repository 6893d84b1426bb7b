"""How long a checkpoint takes to load from a warm file cache, and how much memory that takes at most.

    python -m aril.bench.loading DIR [DIR ...] --rounds 5 --json found.json

Each round loads in a fresh process whose imports are done and which has opened the config (`opening`: mostly imports of
transformers), after its files were read once into the cache. Rounds are timed without anybody looking; one more is
watched: /proc/PID/status is read every 2 ms while it loads.

The peak counted is the largest RssAnon + RssShmem, the pages of the process's own, plus RssFile when loading has ended:
the libraries, and those pages of the checkpoint that stay mapped. Pages of the checkpoint that were mapped only to be
copied from are left out, as their copy is counted already and the kernel can drop them at any time; VmHWM, the kernel's
own peak, counts both and stands beside it. The baseline is what the process had in memory before it began to load. The
bound is 1.15 x the bytes of the weight files + 300 MB for the difference of the two.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

from ..core.platform import usable_cores
from ..models.source import locate
from .worker import Worker

WEIGHTS = ("*.safetensors", "*.bin", "*.gguf", "*.pt")
EVERY = 0.002  # seconds between two looks; a transient that is filled faster than this is under 20 MB
SHARE, ROOM = 1.15, 300e6
CHUNK = 1 << 24
COLUMNS = ("files", "kept", "opening", "loading", "CPU s", "peak", "before", "taken", "bound", "VmHWM")


@dataclass(frozen=True, slots=True)
class Resident:
    """Bytes of a process that are in memory, as the kernel counts them."""

    own: int  # RssAnon + RssShmem
    mapped: int  # RssFile: libraries, and what is mapped of the checkpoint
    peak: int  # VmHWM

    @classmethod
    def of(cls, pid: int) -> Resident:
        """As it is now."""
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        fields = {name: value for name, _, value in (line.partition(":") for line in lines)}
        sizes = {name: int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem", "RssFile", "VmHWM")}
        return cls(sizes["RssAnon"] + sizes["RssShmem"], sizes["RssFile"], sizes["VmHWM"])


@dataclass(frozen=True, slots=True)
class Loading:
    """What was found of one checkpoint; bytes and seconds."""

    checkpoint: str
    file_bytes: int
    weight_bytes: int  # as the network keeps them
    opening_seconds: float
    seconds: Sequence[float]
    cpu_seconds: float  # of all threads, in the round that is watched: what a busy machine cannot stretch much
    baseline_bytes: int
    peak_bytes: int  # baseline included
    kernel_peak_bytes: int

    @property
    def loading_bytes(self) -> int:
        """What loading took beyond the baseline at its peak."""
        return self.peak_bytes - self.baseline_bytes

    @property
    def bound_bytes(self) -> int:
        return int(SHARE * self.file_bytes + ROOM)

    @property
    def holds(self) -> bool:
        """Whether loading stayed under the bound."""
        return self.loading_bytes < self.bound_bytes


def measure(model: str, job: Mapping[str, Any], *, rounds: int) -> Loading:
    """Load `model` as `job` says in `rounds` processes for the time, and in one more for the memory."""
    files = weight_files(locate(model).path)
    for file in files:
        _read(file)
    seconds = [_timed(job) for _ in range(rounds)]
    with Worker.ours("loading_worker", job) as worker:
        before = Resident.of(worker.pid)
        found, own = _watched(worker)
        after = Resident.of(worker.pid)
    return Loading(
        checkpoint=Path(model).name,
        file_bytes=sum(file.stat().st_size for file in files),
        weight_bytes=int(found["weight_bytes"]),
        opening_seconds=worker.first["seconds"],
        seconds=seconds,
        cpu_seconds=found["cpu_seconds"],
        baseline_bytes=before.own + before.mapped,
        peak_bytes=max(own, after.own) + after.mapped,
        kernel_peak_bytes=after.peak,
    )


def weight_files(path: Path) -> list[Path]:
    """The files that hold the weights of a folder, or the one file itself."""
    return [path] if path.is_file() else sorted(file for pattern in WEIGHTS for file in path.glob(pattern))


def _read(file: Path) -> None:
    with file.open("rb", buffering=0) as opened:
        while opened.read(CHUNK):
            pass


def _timed(job: Mapping[str, Any]) -> float:
    with Worker.ours("loading_worker", job) as worker:
        return float(worker.ask("load")["seconds"])


def _watched(worker: Worker) -> tuple[Mapping[str, Any], int]:
    """The worker's answer, and the most bytes of its own that it was seen to have while it loaded."""
    loaded, seen = Event(), [0]

    def watch() -> None:
        while not loaded.wait(EVERY):
            seen.append(Resident.of(worker.pid).own)

    watcher = Thread(target=watch, name="watch-memory")
    watcher.start()
    try:
        return worker.ask("load"), max(seen)
    finally:
        loaded.set()
        watcher.join()


def main() -> int:
    """Measure each checkpoint; 1 when one takes more memory than it may."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--quantization", help="round on load, as `aril serve --quantization` does")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    more = {"quantization": args.quantization} if args.quantization else {}
    found = []
    print(f"{'MB':16}" + "".join(f"{name:>9}" for name in COLUMNS))
    for model in args.models:
        job = {"model": model, "dtype": args.dtype, "threads": args.threads, "more": more}
        found.append(measure(model, job, rounds=args.rounds))
        print(_line(found[-1]), flush=True)
    if args.json is not None:
        rows = [{**asdict(each), "bound_bytes": each.bound_bytes, "holds": each.holds} for each in found]
        args.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0 if all(each.holds for each in found) else 1


def _line(found: Loading) -> str:
    sizes = [found.peak_bytes, found.baseline_bytes, found.loading_bytes, found.bound_bytes, found.kernel_peak_bytes]
    megabytes = "".join(f"{size / 1e6:9.0f}" for size in sizes)
    kept = f"{found.file_bytes / 1e6:9.0f}{found.weight_bytes / 1e6:9.0f}"
    times = f"{found.opening_seconds:9.2f}{statistics.median(found.seconds):9.2f}{found.cpu_seconds:9.2f}"
    return f"{found.checkpoint:16}{kept}{times}{megabytes}  {'holds' if found.holds else 'OVER'}"


if __name__ == "__main__":
    sys.exit(main())
