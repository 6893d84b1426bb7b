"""The library is compiled once, by one process, onto torch's own threads; a machine that cannot says why."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from aril.core.platform import Platform
from aril.kernels import dispatch, native
from aril.kernels.native import build
from aril.kernels.ops.matmul import linear

LOADS = """
from aril.kernels.native import build
library = build.library()
print(library._name)
"""


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As if no library had been loaded yet in this process."""
    monkeypatch.setattr(build, "library", build.library.__wrapped__)
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
        f"import pathlib; from aril.kernels.native import build; build.SOURCES = pathlib.Path({str(sources)!r})\n"
        + LOADS
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
    (tmp_path / "bad.cpp").write_text("int main( {")
    fresh.setattr(build, "SOURCES", tmp_path)
    fresh.setenv("ARIL_CACHE", str(tmp_path / "cache"))
    with pytest.raises(build.Unsupported, match=r"do not compile with .*error"):
        build.library()
    assert not list((tmp_path / "cache").rglob("*.so"))
