"""What a network wants beside what a checkpoint's header holds: the same names, shapes and types, or a refusal."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from ..core.errors import NotFound, Unsupported
from ..quant.base import QuantFormat, Stored
from .checkpoint import Checkpoint
from .wanted import Wanted

HARMLESS = re.compile(r"(^|\.)rotary_emb\.inv_freq$")  # written by older transformers; follows from the config
TIED = {"lm_head.weight": "model.embed_tokens.weight"}  # a tied head that is stored all the same
SHOWN = 8  # names in an error


@contextmanager
def about(path: Path) -> Iterator[None]:
    """Refusals of the model that are raised within name `path`, a file or folder, unless they name it already."""
    try:
        yield
    except (Unsupported, NotFound) as error:
        if error.param != "model" or str(path) in error.message:
            raise
        raise type(error)(f"{path}: {error.message}", param=error.param, code=error.code) from error


def compare(wanted: Mapping[str, Wanted], checkpoint: Checkpoint, quant: QuantFormat) -> None:
    """Every wanted tensor is there as it is wanted, and nothing is there that nobody wants. Raises Unsupported."""
    twins = _twins(wanted, checkpoint)
    held = {
        name: each
        for name, each in checkpoint.stored.items()
        if name in wanted or not (HARMLESS.search(name) or name in twins or quant.ignores(name))
    }
    problems = [
        *_listed("missing", wanted.keys() - held.keys()),
        *_listed("not part of this architecture", held.keys() - wanted.keys()),
        *_listed("of another shape", _of_another_shape(wanted, held)),
        *_listed("of another dtype", _of_another_dtype(wanted, held)),
    ]
    if problems:
        raise Unsupported(f"the checkpoint does not fit its config: {'; '.join(problems)}", param="model")


def compare_twins(wanted: Mapping[str, Wanted], checkpoint: Checkpoint) -> None:
    """A tensor that is stored although it is tied to another is the same. Reads both; raises Unsupported."""
    for copy, first in _twins(wanted, checkpoint).items():
        if not torch.equal(checkpoint.read(copy), checkpoint.read(first)):
            raise Unsupported(
                f"the config ties {copy} to {first}, but the checkpoint holds two different tensors", param="model"
            )


def _twins(wanted: Mapping[str, Wanted], checkpoint: Checkpoint) -> dict[str, str]:
    """Tensors that are stored a second time though the config ties them to another."""
    held = checkpoint.stored
    return {copy: first for copy, first in TIED.items() if copy in held and copy not in wanted and first in held}


def _of_another_shape(wanted: Mapping[str, Wanted], held: Mapping[str, Stored]) -> Iterator[str]:
    for name, want in wanted.items():
        if name in held and not _same_shape(held[name].shape, want.shape):
            yield f"{name} {held[name].shape} instead of {want.shape}"


def _of_another_dtype(wanted: Mapping[str, Wanted], held: Mapping[str, Stored]) -> Iterator[str]:
    for name, want in wanted.items():
        if name in held and held[name].dtype not in want.dtypes:
            yield f"{name} {_name(held[name].dtype)} instead of {' or '.join(map(_name, want.dtypes))}"


def _same_shape(found: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Tools write one number as [] or as [1]."""
    return found == wanted or (math.prod(found) == math.prod(wanted) == 1 and max(len(found), len(wanted)) == 1)


def _name(dtype: torch.dtype | str) -> str:
    return str(dtype).removeprefix("torch.")


def _listed(what: str, names: Iterable[str]) -> Iterator[str]:
    found = sorted(names)
    if found:
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        yield f"{what}: {', '.join(found[:SHOWN])}{more}"
