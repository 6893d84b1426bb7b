"""One quantisation from start to end: everything is written beside --out and appears there whole, or not at all.

What can be refused is refused before anything is installed or written. A call that was interrupted goes on behind the
last finished layer where the tool allows it: llm-compressor always, GPTQModel for Llama.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.errors import ArilError, Conflict, InvalidRequest
from .calibration import Calibration
from .card import UNKNOWN, Facts, Measured, card
from .process import run_worker
from .scheme import Scheme, check_shapes
from .source import is_sixteen_bit, matrices, refuse_quantised, write_base
from .tools import TOOLS, ensure, is_ready

if TYPE_CHECKING:
    from ...engine.text import Text
    from ...models.opened import Opened
    from ...models.source import Source

Say = Callable[[str], None]
Hear = Callable[[dict[str, Any]], None]

WINDOW = 512  # most tokens that are foretold in one go when perplexity is measured
NOT_LEARNT = "none: weights are rounded as they are"


@dataclass(frozen=True, slots=True)
class Request:
    """What `aril quantize` was asked."""

    model: str
    scheme: Scheme
    out: Path
    calibration: Path | None = None
    max_samples: int = 128
    max_tokens: int = 512
    perplexity_tokens: int = 20_480  # 0 = do not measure
    revision: str | None = None


@dataclass(slots=True)
class Job:
    """A request with what it found; made by `plan`, carried out by `run`."""

    request: Request
    source: Source
    opened: Opened
    matrices: Mapping[str, tuple[int, int]]
    notes: list[str] = field(default_factory=list)

    @property
    def partial(self) -> Path:
        """Where it is written until it is whole."""
        return self.request.out.with_name(f"{self.request.out.name}.partial")


def plan(request: Request) -> Job:
    """Open the model and refuse what cannot be done; no weight is read, nothing is written or installed."""
    check_out(request.out)
    from ...models.opened import open_model
    from ...models.source import locate

    source = locate(request.model, revision=request.revision)
    opened = open_model(source)
    refuse_quantised(source, opened)
    found = matrices(opened.checkpoint().stored)
    if not found:
        raise InvalidRequest(f"{source.path} has no matrices in layers, so nothing to quantise", param="model")
    check_shapes(request.scheme, found)
    return Job(request, source, opened, found)


def check_out(out: Path) -> None:
    """Raise InvalidRequest when something is there already."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise InvalidRequest(f"--out {out} exists and is not empty; name a new folder", param="out")


def run(job: Job, say: Say, hear: Hear) -> Facts:
    """Carry it out. `say` is told the stages in lines, `hear` what the worker tells (process.run_worker)."""
    from ...engine.text import Text
    from ...models.source import default_cache

    began, request = time.monotonic(), job.request
    tool = TOOLS[request.scheme.rule.tool]
    text = Text.load(job.source)
    calibration = _calibration(request, text)
    with _workplace(job) as folder:
        base = job.source.path if is_sixteen_bit(job.source) else _written(job, folder, say)
        if not is_ready(tool, default_cache()):
            say(f"Making the environment of {tool.name}, once; it takes some minutes and a few GB.")
        python = ensure(tool, default_cache())
        say(f"Quantising {len(job.matrices)} matrices: {request.scheme.describe()}.")
        result = folder / "result"
        order = _order(request, base, result, calibration, tool.packages)
        versions = _worked(run_worker(python, tool.name, order, folder / "log.txt"), hear, job.notes)
        measured = _measured(job, base, result, say)
        facts = _facts(job, result, calibration, versions, time.monotonic() - began, measured)
        _finish(job, facts, base, result)
    return facts


def _calibration(request: Request, text: Text) -> Calibration:
    if not request.scheme.rule.learns:
        return Calibration([], NOT_LEARNT)
    from .calibration import read_calibration

    return read_calibration(request.calibration, text, max_samples=request.max_samples, max_tokens=request.max_tokens)


@contextmanager
def _workplace(job: Job) -> Iterator[Path]:
    """The folder beside --out; ours alone, emptied when it belongs to another job, removed when all went well."""
    folder = job.partial
    folder.mkdir(parents=True, exist_ok=True)
    holder = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _start_or_go_on(job, folder)
        yield folder
        shutil.rmtree(folder)
    except BlockingIOError as error:
        raise Conflict(f"another `aril quantize` writes {folder}; wait for it, or name another --out") from error
    finally:
        os.close(holder)


def _start_or_go_on(job: Job, folder: Path) -> None:
    mark, mine = folder / "job.json", _identity(job)
    if not mark.is_file() or mark.read_text() != mine:
        for each in folder.iterdir():
            shutil.rmtree(each) if each.is_dir() else each.unlink()
        mark.write_text(mine)
    result = folder / "result"
    if job.request.scheme.rule.tool == "gptqmodel":
        shutil.rmtree(result, ignore_errors=True)
    result.mkdir(exist_ok=True)


def _identity(job: Job) -> str:
    """Equal for calls that would write the same."""
    weights = sorted(job.source.path.glob("*")) if job.source.kind == "folder" else [job.source.path]
    seen = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in weights]
    data = job.request.calibration
    digest = hashlib.sha256(data.read_bytes()).hexdigest() if data is not None else None
    sizes = (job.request.max_samples, job.request.max_tokens)
    return json.dumps([str(job.source.path), seen, job.request.scheme.as_dict(), digest, sizes])


def _written(job: Job, folder: Path, say: Say) -> Path:
    say(f"Writing {job.source.path.name} as a 16-bit folder first.")
    if job.source.kind == "gguf":
        job.notes.append(f"The base was dequantised from {job.source.path.name} and rounded to bfloat16.")
    return write_base(job.opened, job.source, folder / "base")


def _order(
    request: Request, base: Path, result: Path, calibration: Calibration, packages: tuple[str, ...]
) -> dict[str, Any]:
    """The job as the worker reads it."""
    return {
        "model": str(base.resolve()),
        "out": str(result.resolve()),
        "kept": str(result.resolve().with_name("kept")),  # where a tool may keep what it goes on from
        "scheme": request.scheme.as_dict(),
        "samples": calibration.samples,
        "packages": packages,
    }


def _worked(told: Iterator[dict[str, Any]], hear: Hear, notes: list[str]) -> dict[str, str]:
    versions: dict[str, str] = {}
    for event in told:
        if event["event"] == "note":
            notes.append(event["text"])
        versions = event.get("versions", versions)
        hear(event)
    return versions


def _measured(job: Job, base: Path, result: Path, say: Say) -> Measured | None:
    """Perplexity of both; a result that cannot be measured is still a result."""
    window = min(WINDOW, job.opened.family.rope(job.opened.config).usual - 1)  # a token must fit behind it
    count = job.request.perplexity_tokens // window
    if not count:
        return None
    from ...bench.perplexity import TEXT, read, windows_of

    say("Measuring perplexity before and after.")
    try:
        texts = windows_of(str(base), num_windows=count, window=window)
        before, after = (read(str(folder), texts).perplexity for folder in (base, result))
    except ArilError as error:
        job.notes.append(f"The perplexity could not be measured: {error.message}")
        return None
    return Measured(before, after, sum(map(len, texts)), TEXT.name)


def _facts(
    job: Job,
    result: Path,
    calibration: Calibration,
    versions: Mapping[str, str],
    seconds: float,
    measured: Measured | None,
) -> Facts:
    stored = job.opened.checkpoint().stored
    return Facts(
        base=_name(job.source),
        base_about=_stored_as(job),
        licence=_licence(job) or UNKNOWN,
        scheme=job.request.scheme,
        data=calibration.about,
        versions=versions,
        seconds=seconds,
        bytes_before=2 * sum(_count(each.shape) for each in stored.values()),
        bytes_after=sum(path.stat().st_size for path in result.glob("*.safetensors")),
        measured=measured,
        notes=tuple(job.notes),
    )


def _name(source: Source) -> str:
    """A hub id as it is; of a path, which means nothing elsewhere, the last part."""
    return Path(source.name).name if Path(source.name).exists() else source.name


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _stored_as(job: Job) -> str:
    if job.source.kind == "gguf":
        return "a GGUF file"
    kinds = {str(each.dtype).removeprefix("torch.") for each in job.opened.checkpoint().stored.values()}
    return " and ".join(sorted(kinds))


def _licence(job: Job) -> str | None:
    from ...models.papers import papers_of

    metadata = None
    if job.source.kind == "gguf":
        from ...models.gguf_file import GgufFile

        metadata = GgufFile(job.source.path).metadata
    return papers_of(job.source, metadata).licence.stated


def _finish(job: Job, facts: Facts, base: Path, result: Path) -> None:
    """The card, the terms of the base, and the name that was asked for."""
    from .card import TERMS

    for pattern in TERMS:
        for path in base.glob(pattern):
            shutil.copyfile(path, result / path.name)
    (result / "README.md").write_text(card(facts), encoding="utf-8")
    usual = (result / "README.md").stat().st_mode
    for path in result.iterdir():  # safetensors makes files that their owner alone may read; who serves may be another
        path.chmod(usual)
    check_out(job.request.out)
    os.replace(result, job.request.out)
