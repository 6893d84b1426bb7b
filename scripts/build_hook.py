"""Compiles the native kernels when Aril is built or installed (pyproject.toml, tool.setuptools.cmdclass).

A wheel holds one library for each kind of processor, so that one package serves them all, and none needs a compiler. An
editable install makes only the one that fits this machine: it is quicker, and others are compiled where they are asked
for. Without a compiler nothing is made, and the build goes on: Aril then computes with torch, or compiles later.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from setuptools import Command
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

ROOT = Path(__file__).parent.parent
PLACE = Path("kernels", "native", "lib")


class Build(build):
    """The usual build, and the kernels."""

    sub_commands = [*build.sub_commands, ("build_kernels", None)]  # noqa: RUF012


class BuildKernels(Command):
    """The libraries, into the build folder, or into the source tree when that is what is installed."""

    user_options = []  # noqa: RUF012

    def initialize_options(self) -> None:
        self.build_lib: str | None = None
        self.editable_mode = False
        self.made: list[str] = []

    def finalize_options(self) -> None:
        self.set_undefined_options("build_py", ("build_lib", "build_lib"))

    def run(self) -> None:
        recipes = _recipes()
        sources, found = ROOT / "kernels" / "csrc", recipes.variants(os.uname().machine)
        if self.editable_mode:
            found = (_best(found),)
        folder = ROOT / PLACE if self.editable_mode else Path(self.build_lib or "build", "aril", PLACE)
        folder.mkdir(parents=True, exist_ok=True)
        names = {recipes.file_name(variant, sources): variant for variant in found}
        for stale in set(folder.glob("*.so")) - {folder / name for name in names}:
            stale.unlink()
        for name, variant in names.items():  # each with a process for every source
            try:
                if not (folder / name).exists():
                    recipes.compile_library(recipes.find_compiler(), variant.flags, sources, folder / name)
            except recipes.CannotCompile as error:  # the others may: compilers differ in what they know
                print(f"aril: built without native kernels for {variant.name}: {error}", file=sys.stderr)
        self.made = [str(folder / name) for name in names if (folder / name).exists()]

    def get_source_files(self) -> list[str]:
        return [str(path.relative_to(ROOT)) for path in sorted((ROOT / "kernels" / "csrc").iterdir())]

    def get_outputs(self) -> list[str]:
        return self.made

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class Wheel(bdist_wheel):
    """For any Python 3, but one platform."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


def _recipes() -> ModuleType:
    """kernels/native/recipes.py, without the package around it."""
    spec = importlib.util.spec_from_file_location("aril_recipes", ROOT / "kernels" / "native" / "recipes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look
    spec.loader.exec_module(module)
    return module


def _best(found: tuple) -> object:
    """The first that this machine can run."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return found[-1]
    flags = set(next((line for line in text.splitlines() if line.startswith("flags")), "").split())
    for variant in found:
        if all(_known(flags, each.removeprefix("-m")) for each in variant.flags):
            return variant
    return found[-1]


def _known(flags: set[str], compilers: str) -> bool:
    """Whether the processor has what the compiler calls so: avx512vnni is avx512_vnni there, amx-tile amx_tile."""
    return not flags.isdisjoint({compilers, compilers.replace("avx512", "avx512_"), compilers.replace("-", "_")})
