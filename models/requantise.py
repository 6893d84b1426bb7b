"""--quantization int8, int4 or fp8 for a plain checkpoint: rounded once, kept as a compressed-tensors folder.

The result lies in Aril's cache under a digest of what it was made of, so that the next start only reads it; like any
other checkpoint, it is read by quant/formats/compressed_tensors.py. It appears whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from ..core.errors import DoesNotFit, Unsupported
from ..core.log import event, get_logger
from ..core.shortage import shortage
from ..quant.base import Stored
from ..quant.on_load import ROUNDINGS, Rounding, Specs
from .checkpoint import Checkpoint
from .loader import Plan, plan_model
from .locked import locked
from .opened import Opened, open_model
from .plain import plain_config
from .safetensors_writer import SafetensorsWriter, num_bytes
from .source import Source, default_cache

VERSION = 1  # of what is written; another one makes all of it anew
CHUNK = (
    1 << 20
)  # weights rounded at a time: 4 MiB in float32 stay in a core's cache (70 million a second; 40 by 64 MiB)
SAMPLE = 1 << 16  # bytes of a file's beginning, middle and end that tell it from another of its name, size and age
WEIGHTS = (".safetensors", ".bin", ".gguf")
CONFIGS = ("config.json", "generation_config.json")
BESIDE = (".json", ".jinja", ".model", ".txt", ".py", ".md")  # what else makes a model folder; config.json is written

log = get_logger(__name__)


def requantised(source: Source, method: str, *, trust_remote_code: bool = False) -> Source:
    """`source` with its matrices rounded as `method` (a name in ROUNDINGS) says; made now, or found in the cache.

    A checkpoint that is of that format already stays as it is. Raises Unsupported for one that is quantised otherwise,
    DoesNotFit when there is no room to keep the result.
    """
    opened = open_model(source, trust_remote_code=trust_remote_code)
    if (opened.quantization or {}).get("quant_method") == method:
        return source
    _refuse_quantised(opened, method)
    home = default_cache() / "quantised"
    folder = home / f"{_digest(source)}-{method}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        with locked(home / f"{folder.name}.lock"):
            if not folder.is_dir():
                _make(source, opened, ROUNDINGS[method], folder, trust_remote_code)
    except OSError as error:
        if shortage(error):  # of memory, not of room on the disk
            raise
        raise DoesNotFit(
            f"--quantization {method} keeps what it makes in {home}: {error}; set ARIL_CACHE to a folder with room",
            param="quantization",
        ) from error
    return replace(source, path=folder, kind="folder")


def foreseen(source: Source, opened: Opened, method: str, *, trust_remote_code: bool = False) -> Opened:
    """What `requantised` would make of `source`, opened, without making it: a header without weights."""
    if (opened.quantization or {}).get("quant_method") == method:
        return opened
    _refuse_quantised(opened, method)
    plan = plan_model(source, device=torch.device("meta"), trust_remote_code=trust_remote_code)
    work = _Work(plan.checkpoint, ROUNDINGS[method], _linears(plan, ROUNDINGS[method]))
    opened.config.dtype = _dtype_beside(source, plan)
    stored = {name: Stored(shape, dtype) for name, (dtype, shape) in work.specs().items()}
    config = work.rounding.config(_ignored(plan, work))
    return replace(opened, quantization=config, checkpoint=lambda: _Foreseen(stored, source.path))


@dataclass(frozen=True, slots=True)
class _Foreseen:
    """The checkpoint that would be made."""

    stored: Mapping[str, Stored]
    path: Path

    def file_of(self, name: str) -> Path:
        return self.path

    def read(self, name: str) -> Tensor:
        raise AssertionError(f"{name} has not been made")


def _refuse_quantised(opened: Opened, method: str) -> None:
    found = (opened.quantization or {}).get("quant_method")
    if found == "gguf":
        packed = {str(each.dtype) for each in opened.checkpoint().stored.values() if isinstance(each.dtype, str)}
        found = f"GGUF's {', '.join(sorted(packed))}" if packed else None
    if found is not None:
        raise Unsupported(
            f"--quantization {method} rounds 16-bit checkpoints; this one is quantised already ({found}): leave the "
            "flag out",
            param="quantization",
        )


def _digest(source: Source) -> str:
    """Of what the weights and their configs are, so far as names, sizes, times and samples tell."""
    files = [source.path]
    if source.kind == "folder":
        files = sorted(f for f in source.path.iterdir() if f.suffix in WEIGHTS or f.name in CONFIGS)
    found = hashlib.sha256(f"{VERSION}|{source.path.resolve()}".encode())
    for file in files:
        seen = file.stat()
        found.update(f"|{file.name}|{seen.st_size}|{seen.st_mtime_ns}|".encode())
        with file.open("rb") as opened:
            for at in (0, seen.st_size // 2, max(0, seen.st_size - SAMPLE)):
                opened.seek(at)
                found.update(opened.read(SAMPLE))
    return found.hexdigest()[:24]


def _make(source: Source, opened: Opened, rounding: Rounding, folder: Path, trust_remote_code: bool) -> None:
    plan = plan_model(source, device=torch.device("meta"), trust_remote_code=trust_remote_code)
    work = _Work(plan.checkpoint, rounding, _linears(plan, rounding))
    needed, free = sum(num_bytes(*spec) for spec in work.specs().values()), shutil.disk_usage(folder.parent).free
    if needed > free:
        raise OSError(f"it takes {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free")
    log.info(event("quantising", source=source.path, format=rounding.layout, bits=rounding.args["num_bits"], to=folder))
    new = folder.with_suffix(".part")
    shutil.rmtree(new, ignore_errors=True)  # of a process that was killed
    new.mkdir()
    try:
        with SafetensorsWriter(new, work.specs()) as writer:
            work.write(writer)
        _write_beside(source, opened, new, plan, rounding.config(_ignored(plan, work)))
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _Work:
    """What becomes of each tensor: those of `linears` (module paths) are rounded, the others are copied."""

    checkpoint: Checkpoint
    rounding: Rounding
    linears: frozenset[str]

    def specs(self) -> Specs:
        """dtype and shape of every tensor that is written."""
        found: Specs = {}
        for name, stored in self.checkpoint.stored.items():
            path = self._rounded(name)
            if path is None:
                found[name] = _dtype(stored), stored.shape
            else:
                n, k = stored.shape
                found |= {f"{path}.{kind}": spec for kind, spec in self.rounding.specs(n, k).items()}
        return found

    def write(self, writer: SafetensorsWriter) -> None:
        """All of it, with a progress bar."""
        total = sum(num_bytes(_dtype(each), each.shape) for each in self.checkpoint.stored.values())
        with tqdm(total=total, desc="quantising", unit="B", unit_scale=True, disable=None) as bar:
            for name in self.checkpoint.stored:
                for tensors, read in self._parts(name):
                    for written, part in tensors.items():
                        writer.append(written, part)
                    bar.update(read)

    def _parts(self, name: str) -> Iterator[tuple[dict[str, Tensor], int]]:
        """What a tensor becomes, a few rows at a time, and the bytes of those rows."""
        tensor, path = self.checkpoint.read(name), self._rounded(name)
        if path is None:
            yield {name: tensor}, tensor.nbytes
            return
        n, k = tensor.shape
        step = max(8, CHUNK // k // 8 * 8)
        yield {f"{path}.{kind}": fact for kind, fact in self.rounding.facts(n, k).items()}, 0
        for at in range(0, n, step):
            rows = tensor[at : at + step]
            wide = rows.float()
            if not wide.isfinite().all():
                raise Unsupported(f"{name} holds numbers that are not finite", param="model")
            yield {f"{path}.{kind}": part for kind, part in self.rounding.round(wide).items()}, rows.nbytes

    def _rounded(self, name: str) -> str | None:
        path, _, kind = name.rpartition(".")
        return path if kind == "weight" and path in self.linears else None


def _dtype_beside(source: Source, plan: Plan) -> torch.dtype:
    """What the numbers beside the codes are taken for: the model's own dtype, which codes do not tell."""
    return torch.bfloat16 if source.kind == "gguf" else plan.decoder.spec.dtype


def _dtype(stored: Stored) -> torch.dtype:
    assert isinstance(stored.dtype, torch.dtype), "packed tensors were refused"
    return stored.dtype


def _ignored(plan: Plan, work: _Work) -> list[str]:
    """The Linears that stay as they are."""
    return ["lm_head", *(path for path in _all_linears(plan) if path not in work.linears)]


def _all_linears(plan: Plan) -> list[str]:
    return [part.name for linear in plan.build.linears.values() for part in linear.parts]


def _linears(plan: Plan, rounding: Rounding) -> frozenset[str]:
    """The modules that are rounded; the log names those that cannot be."""
    left: dict[str, list[str]] = {}
    for linear in plan.build.linears.values():
        why = rounding.refuses(linear.in_features)
        if why is not None:
            left.setdefault(why, []).extend(part.name for part in linear.parts)
    for why, names in left.items():
        log.warning(event("left_in_16_bits", modules=len(names), first=names[0], why=why))
    return frozenset(_all_linears(plan)) - {name for names in left.values() for name in names}


def _write_beside(source: Source, opened: Opened, new: Path, plan: Plan, quantization: dict[str, Any]) -> None:
    """config.json, and what else the source's folder holds beside its weights."""
    if source.kind == "gguf":
        config = plain_config(opened)
    else:
        config = json.loads((source.path / "config.json").read_text(encoding="utf-8"))
        for file in source.path.iterdir():
            if file.suffix in BESIDE and file.name != "config.json" and not file.name.endswith(".index.json"):
                shutil.copyfile(file, new / file.name)
    config["dtype"] = str(_dtype_beside(source, plan)).removeprefix("torch.")
    (new / "config.json").write_text(json.dumps({**config, "quantization_config": quantization}, indent=2))
