"""Compiles kernels/csrc once per machine and flags, and loads it into this process beside torch.

The library lies under $ARIL_CACHE (or ~/.cache/aril) in native/<hash>, where the hash covers the sources, the flags,
the compiler and the OpenMP runtime: whatever changes makes a new folder, and unlike machines may share one home.
The kernels run on torch's own threads: they are linked with the OpenMP runtime that torch has already loaded, for a
second one would bring a second set of threads onto the same cores.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ...core.errors import Unsupported
from ...core.log import event, get_logger

SOURCES = Path(__file__).parent.parent / "csrc"
FLAGS = ("-O3", "-std=c++17", "-fPIC", "-Wno-psabi", "-fno-math-errno", "-fno-trapping-math")
VECTORS = {  # torch's name of the machine's best vectors -> what the compiler may use; others: the compiler's default
    "AVX2": ("-mavx2", "-mfma"),
    "AVX512": ("-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"),
}
DTYPES = {torch.float32: 0, torch.bfloat16: 1}  # enum Dtype of csrc/common.h

POINTER, INT, DOUBLE = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that the library's bits depend on."""

    compiler: str
    version: str
    flags: tuple[str, ...]
    openmp: Path | None

    @property
    def sources(self) -> list[Path]:
        """What is compiled; headers are beside it."""
        return sorted(SOURCES.glob("*.cpp"))

    def digest(self) -> str:
        """The name of this build."""
        told = hashlib.sha256(repr((self.version, self.flags, self.openmp and self.openmp.name)).encode())
        for path in sorted(SOURCES.iterdir()):
            told.update(path.name.encode() + path.read_bytes())
        return told.hexdigest()[:16]


@functools.cache
def library() -> ctypes.CDLL:
    """The loaded kernels, compiled first if need be; raises Unsupported with the reason why not."""
    recipe = _recipe()
    folder = _cache() / recipe.digest()
    path = folder / "libaril.so"
    with _only_process(folder):
        if not path.exists():
            _compile(recipe, path)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise Unsupported(f"the native kernels do not load: {error}") from error


def function(name: str, *parameters: type) -> Callable[..., None]:
    """One exported function, which takes `parameters` and returns nothing. Calls let other Python threads run."""
    found = library()[name]
    found.argtypes, found.restype = parameters, None
    return found


def takes(tensor: Tensor) -> bool:
    """Whether the kernels can read it: on the CPU, float32 or bfloat16, each row in one piece."""
    return tensor.dtype in DTYPES and tensor.is_cpu and tensor.stride(-1) == 1


def _recipe() -> Recipe:
    compiler = os.environ.get("CXX") or next(filter(shutil.which, ("g++", "c++", "clang++")), None)
    if compiler is None or shutil.which(compiler) is None:
        raise Unsupported(f"no C++ compiler ({compiler or 'looked for g++, c++, clang++'}); set CXX to one")
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    openmp = _loaded_openmp()
    flags = (*FLAGS, *VECTORS.get(torch.backends.cpu.get_cpu_capability(), ()))
    return Recipe(compiler, version, flags if openmp else (*flags, "-DARIL_SERIAL"), openmp)


def _loaded_openmp() -> Path | None:
    """The OpenMP runtime that torch uses: the one it brought, else the one that something else loaded for it."""
    with open("/proc/self/maps") as lines:
        mapped = {Path(line.split(maxsplit=5)[5].strip()) for line in lines if "/" in line}
    found = [path for path in mapped if path.name.startswith(("libgomp", "libiomp", "libomp"))]
    brought = Path(torch.__file__).parent
    return min(found, key=lambda path: (not path.is_relative_to(brought), path), default=None)


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


def _compile(recipe: Recipe, path: Path) -> None:
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        objects = [Path(scratch, f"{source.stem}.o") for source in recipe.sources]
        command = [recipe.compiler, *recipe.flags]
        _run_all(
            [[*command, "-c", str(source), "-o", str(o)] for source, o in zip(recipe.sources, objects, strict=True)]
        )
        made, openmp = Path(scratch, path.name), [str(recipe.openmp)] if recipe.openmp else []
        _run_all([[*command, "-shared", *map(str, objects), *openmp, "-o", str(made)]])
        made.replace(path)
    seconds = f"{time.perf_counter() - started:.1f}"
    log.info(event("native_kernels_compiled", seconds=seconds, vectors=recipe.flags[len(FLAGS) :], path=path))


def _run_all(commands: list[list[str]]) -> None:
    """Run them side by side; raises Unsupported with the first error."""
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    failed = [errors for process in running if (errors := process.communicate()[1]) and process.returncode]
    if failed:
        reason = next((line for line in failed[0].splitlines() if "error" in line), failed[0].strip())
        raise Unsupported(f"the native kernels do not compile with {commands[0][0]}: {reason}")
