"""Loads the kernels that fit this machine into the process, beside torch.

They lie in the package (lib/, made when it was built or installed). Where they do not, or the sources have changed
since, they are compiled once per machine: into $ARIL_CACHE (or ~/.cache/aril), native/<hash>, where the hash covers the
sources, the flags and the compiler, so that unlike machines may share one home. The kernels have threads of their own
(csrc/pool.h).
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...core.errors import InvalidRequest, Unsupported
from ...core.log import event, get_logger
from . import recipes
from .recipes import CannotCompile, Variant

DTYPES = {torch.float32: 0, torch.bfloat16: 1}  # enum Dtype of csrc/common.h

COMPILE = "ARIL_COMPILE_KERNELS"  # set to anything to leave the package's libraries aside
VARIANT = "ARIL_CPU_VARIANT"  # set to the name of one of recipes.py to have no better one than that
POINTER, INT, DOUBLE = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double

log = get_logger(__name__)


class Library(ctypes.CDLL):
    """The kernels of one variant."""

    def __init__(self, path: Path, variant: Variant) -> None:
        super().__init__(str(path))
        self.variant, self.splits = variant.name, variant.splits


@functools.cache
def library() -> Library:
    """The loaded kernels, compiled first if need be. Raises Unsupported with the reason why there are none, and
    InvalidRequest for a VARIANT that is none of this machine's: nobody shall get other kernels than asked for.
    """
    best, *others = _fitting()
    try:
        return _loaded(best)
    except Unsupported as error:  # the compiler may be older than the processor
        if not others:
            raise
        log.warning(event("native_kernels_second_best", variant=others[0].name, best=best.name, reason=error.message))
    return _loaded(others[0])


def _loaded(variant: Variant) -> Library:
    packaged = recipes.PACKAGED / recipes.file_name(variant, recipes.SOURCES)
    try:
        is_there = packaged.exists() and not os.environ.get(COMPILE)
        return Library(packaged if is_there else _compiled(variant), variant)
    except CannotCompile as error:
        raise Unsupported(str(error)) from error
    except OSError as error:
        raise Unsupported(f"the native kernels do not load: {error}") from error


Note = Callable[[str, Sequence[type], Sequence[Any]], None]
_note: ContextVar[Note | None] = ContextVar("note", default=None)  # who is told of calls while a tape is recorded


def function(name: str, *parameters: type) -> Callable[..., None]:
    """One exported function, which takes `parameters` and returns nothing. Calls let other Python threads run."""
    found = library()[name]
    found.argtypes, found.restype = parameters, None

    def call(*arguments: Any) -> None:
        if (note := _note.get()) is not None:
            note(name, parameters, arguments)
        found(*arguments)

    return call


@contextmanager
def recording(note: Note) -> Iterator[None]:
    """Tell `note` of this thread's calls of exported functions meanwhile: their names, parameters and arguments."""
    token = _note.set(note)
    try:
        yield
    finally:
        _note.reset(token)


def takes(tensor: Tensor) -> bool:
    """Whether the kernels can read it: on the CPU, float32 or bfloat16, each row in one piece."""
    return tensor.dtype in DTYPES and tensor.is_cpu and tensor.stride(-1) == 1


def _fitting() -> list[Variant]:
    """What this machine can run, best first: of the vectors that torch uses, which ATEN_CPU_CAPABILITY may restrict."""
    named, has = torch.backends.cpu.get_cpu_capability(), torch.cpu.get_capabilities()
    fitting = [
        variant
        for variant in recipes.variants(os.uname().machine)
        if variant.vectors == named
        and all(has.get(each) for each in variant.has)
        and (not variant.tiles or _may_tile())
    ] or [recipes.GENERIC]
    if chosen := os.environ.get(VARIANT):
        names = [variant.name for variant in fitting]
        if chosen not in names:
            runs = f"this machine runs {', '.join(names)}; ATEN_CPU_CAPABILITY=default is for the generic ones"
            raise InvalidRequest(f"{VARIANT} is {chosen!r}; {runs}", param=VARIANT)
        return fitting[names.index(chosen) :]
    return fitting


def _may_tile() -> bool:
    """Ask Linux for the tile registers, for all threads of this process; it grants them where it can save them."""
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18  # of x86-64, with which variants of tiles begin
    refused: int = ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data)
    return refused == 0


def _compiled(variant: Variant) -> Path:
    """The library of this machine's own cache."""
    compiler = recipes.find_compiler()
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    folder = _cache() / recipes.digest(recipes.SOURCES, variant.flags, version)
    path = folder / "libaril.so"
    with _only_process(folder):
        if not path.exists():
            started = time.perf_counter()
            log.info(event("native_kernels_compiling", variant=variant.name))
            recipes.compile_library(compiler, variant.flags, recipes.SOURCES, path)
            seconds = f"{time.perf_counter() - started:.1f}"
            log.info(event("native_kernels_compiled", seconds=seconds, variant=variant.name, path=path))
    return path


def _cache() -> Path:
    root = os.environ.get("ARIL_CACHE")
    return (Path(root) if root else Path.home() / ".cache" / "aril") / "native"


@contextmanager
def _only_process(folder: Path) -> Iterator[None]:
    """Let one process at a time look into `folder` and build; the lock falls with its process."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR)
    except OSError as error:
        raise Unsupported(f"the native kernels need a cache folder: {error}; set ARIL_CACHE to one") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
