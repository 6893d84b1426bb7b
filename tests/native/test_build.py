"""The library is the package's, or compiled once, by one process; a machine that cannot says why."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from aril.core.errors import InvalidRequest
from aril.core.platform import Platform
from aril.kernels import dispatch, native
from aril.kernels.native import build, recipes
from aril.kernels.ops.matmul import linear

LOADS = """
from aril.kernels.native import build
library = build.library()
print(library._name)
"""


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """As if no library had been loaded yet in this process, and none came with the package."""
    monkeypatch.setattr(build, "library", build.library.__wrapped__)
    monkeypatch.delenv(build.COMPILE, raising=False)
    monkeypatch.setattr(recipes, "PACKAGED", tmp_path / "lib")
    return monkeypatch


@pytest.mark.skipif("native" not in linear.providers(), reason=dispatch.explain(linear))
def test_one_openmp_runtime_serves_torch_and_the_kernels() -> None:
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}
    assert len([path for path in mapped if "libgomp" in path or "libomp" in path or "libiomp" in path]) <= 1


def test_processes_that_start_together_compile_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = tmp_path / "csrc"
    sources.mkdir()
    (sources / "one.cpp").write_text('extern "C" int one() { return 1; }')
    script = (
        "import pathlib; from aril.kernels.native import recipes\n"
        f"recipes.SOURCES = pathlib.Path({str(sources)!r})\n" + LOADS
    )
    monkeypatch.setenv("ARIL_CACHE", str(tmp_path / "cache"))
    running = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    loaded = {process.communicate()[0].strip() for process in running}
    assert [str(path) for path in (tmp_path / "cache").rglob("*.so")] == list(loaded)


def test_without_a_compiler_the_provider_says_so(fresh: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    fresh.setenv("CXX", "/nowhere/g++")
    fresh.setattr(native, "library", build.library)
    reason = native.refuses(Platform("cpu", "x86_64", 1 << 30, has_triton=False))
    assert reason == "no C++ compiler (/nowhere/g++); set CXX to one"
    assert "native_kernels_missing" in caplog.text


def test_sources_that_do_not_compile_are_a_reason_and_leave_nothing(fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sources = tmp_path / "csrc"
    sources.mkdir()
    (sources / "bad.cpp").write_text("int main( {")
    fresh.setattr(recipes, "SOURCES", sources)
    fresh.setenv("ARIL_CACHE", str(tmp_path / "cache"))
    with pytest.raises(build.Unsupported, match=r"do not compile with .*error"):
        build.library()
    assert not list((tmp_path / "cache").rglob("*.so"))


def one(path: Path, number: int) -> Path:
    """Sources of a library that says `number`."""
    path.mkdir(exist_ok=True)
    (path / "one.cpp").write_text(f'extern "C" int one() {{ return {number}; }}')
    return path


def test_the_packages_own_library_needs_no_compiler(fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sources, variant = one(tmp_path / "csrc", 7), build._fitting()[0]
    recipes.PACKAGED.mkdir()
    place = recipes.PACKAGED / recipes.file_name(variant, sources)
    recipes.compile_library(recipes.find_compiler(), variant.flags, sources, place)
    fresh.setattr(recipes, "SOURCES", sources)
    fresh.setenv("CXX", "/nowhere/g++")
    assert (build.library().one(), build.library().variant) == (7, variant.name)
    one(sources, 8)  # sources that have changed since are another library
    with pytest.raises(build.Unsupported, match="no C\\+\\+ compiler"):
        build.library()


def test_the_variant_is_that_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {
        ("AVX512", "vnni vbmi bf16"): "avx512_bf16",
        ("AVX512", "vnni"): "avx512_vnni",
        ("AVX512", ""): "avx512",
    }
    expected |= {("AVX2", "vnni"): "avx2", ("DEFAULT", ""): "generic", ("ZVECTOR", ""): "generic"}
    monkeypatch.setattr(build.os, "uname", lambda: SimpleNamespace(machine="x86_64"))
    for (vectors, has), name in expected.items():
        monkeypatch.setattr(build.torch.backends.cpu, "get_cpu_capability", lambda vectors=vectors: vectors)
        found = {f"avx512_{each}": True for each in has.split()}
        monkeypatch.setattr(build.torch.cpu, "get_capabilities", lambda found=found: found)
        assert build._fitting()[0].name == name


def test_tiles_are_used_where_the_system_grants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.os, "uname", lambda: SimpleNamespace(machine="x86_64"))
    monkeypatch.setattr(build.torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(build.torch.cpu, "get_capabilities", lambda: dict.fromkeys(recipes.X86[0].has, True))
    for granted, name in ((True, "amx_bf16"), (False, "avx512_bf16")):
        monkeypatch.setattr(build, "_may_tile", lambda granted=granted: granted)
        assert build._fitting()[0].name == name


def test_a_variant_may_be_named_and_another_machines_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [variant.name for variant in build._fitting()]
    monkeypatch.setenv(build.VARIANT, names[-1])
    assert [variant.name for variant in build._fitting()] == names[-1:]
    monkeypatch.setenv(build.VARIANT, "avx9")
    with pytest.raises(InvalidRequest, match=f"ARIL_CPU_VARIANT is 'avx9'; this machine runs {', '.join(names)}"):
        build._fitting()


def test_a_compiler_that_does_not_know_the_best_variant_makes_the_next(
    fresh: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (best, *_), sources = build._fitting(), one(tmp_path / "csrc", 7)
    unknown = recipes.Variant("newest", best.vectors, flags=("-mno-such-instructions",))
    fresh.setattr(build, "_fitting", lambda: [unknown, best])
    fresh.setattr(recipes, "SOURCES", sources)
    fresh.setenv("ARIL_CACHE", str(tmp_path / "cache"))
    assert (build.library().one(), build.library().variant) == (7, best.name)
    assert "native_kernels_second_best" in caplog.text
