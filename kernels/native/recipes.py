"""How kernels/csrc becomes libraries, one for each kind of processor.

Needs nothing but Python: the package's build (scripts/build_hook.py) reads this file where torch may be missing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent.parent / "csrc"
PACKAGED = Path(__file__).parent / "lib"  # what the package's build has made
FLAGS = ("-O3", "-std=c++17", "-fPIC", "-Wno-psabi", "-fno-math-errno", "-fno-trapping-math")
COMPILERS = ("g++", "c++", "clang++")


class CannotCompile(Exception):
    """There is no compiler, or it refuses the sources; says which."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One kind of processor. `vectors` is torch's name of its best vectors; `has` names what it must have besides.
    Before it uses `tiles` a process asks for them. `splits`: weights of bfloat16 lie in three quarters of their bytes
    there, as that was measured to pay. (Others can; on Zen 4 16 rows wait for products rather than for memory.)
    """

    name: str
    vectors: str
    has: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    tiles: bool = False
    splits: bool = False


AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")
AVX512_BF16 = (*AVX512, "-mavx512vnni", "-mavx512vbmi", "-mavx512bf16")
HAS_BF16 = ("avx512_vnni", "avx512_vbmi", "avx512_bf16")
GENERIC = Variant("generic", "DEFAULT")  # the compiler's default, which every processor of the kind has
X86 = (  # best first
    Variant(
        "amx_bf16",
        "AVX512",
        (*HAS_BF16, "amx_tile", "amx_bf16", "amx_int8"),
        (*AVX512_BF16, "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
        tiles=True,
        splits=True,
    ),
    Variant("avx512_bf16", "AVX512", HAS_BF16, AVX512_BF16),
    Variant("avx512_vnni", "AVX512", ("avx512_vnni",), (*AVX512, "-mavx512vnni")),
    Variant("avx512", "AVX512", (), AVX512),
    Variant("avx2", "AVX2", (), AVX2, splits=True),
    GENERIC,
)


def variants(machine: str) -> tuple[Variant, ...]:
    """All that are made for a kind of machine, as os.uname says it; best first."""
    return X86 if machine == "x86_64" else (GENERIC,)


def file_name(variant: Variant, sources: Path) -> str:
    """Under which its library lies in the package. Changed sources have another name: no stale library is found."""
    return f"{variant.name}-{digest(sources, variant.flags)}.so"


def digest(sources: Path, *facts: object) -> str:
    """Of the sources, the flags and whatever else the bits depend on."""
    told = hashlib.sha256(repr((FLAGS, *facts)).encode())
    for path in sorted(sources.iterdir()):
        told.update(path.name.encode() + path.read_bytes())
    return told.hexdigest()[:16]


def find_compiler() -> str:
    """$CXX, or the first of COMPILERS that is there; raises CannotCompile."""
    compiler = os.environ.get("CXX") or next(filter(shutil.which, COMPILERS), None)
    if compiler is None or shutil.which(compiler) is None:
        raise CannotCompile(f"no C++ compiler ({compiler or 'looked for ' + ', '.join(COMPILERS)}); set CXX to one")
    return compiler


def compile_library(compiler: str, flags: tuple[str, ...], sources: Path, path: Path) -> None:
    """Compile all of `sources` side by side into `path`, which appears whole or not at all; raises CannotCompile."""
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        command, files = [compiler, *FLAGS, *flags], sorted(sources.glob("*.cpp"))
        objects = [str(Path(scratch, f"{file.stem}.o")) for file in files]
        _run_all([[*command, "-c", str(file), "-o", made] for file, made in zip(files, objects, strict=True)])
        linked = Path(scratch, path.name)
        _run_all([[*command, "-shared", "-pthread", *objects, "-o", str(linked)]])
        linked.replace(path)


def _run_all(commands: list[list[str]]) -> None:
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    failed = [errors for process in running if (errors := process.communicate()[1]) and process.returncode]
    if failed:
        reason = next((line for line in failed[0].splitlines() if "error" in line), failed[0].strip())
        raise CannotCompile(f"the native kernels do not compile with {commands[0][0]}: {reason}")
