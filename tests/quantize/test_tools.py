"""Environments of the tools: what is pinned, where they are kept, and how a worker is heard."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from aril.commands._quantize.process import WORKERS, run_worker
from aril.commands._quantize.scheme import METHODS
from aril.commands._quantize.tools import READY, TOOLS, Tool, ensure, environment, is_ready
from aril.core.errors import Unavailable


@pytest.mark.parametrize("tool", TOOLS.values(), ids=lambda tool: tool.name)
def test_a_tool_is_pinned_and_has_a_worker(tool: Tool) -> None:
    pinned = [package for step in tool.steps for package in step if package.startswith(tool.name)]
    assert len(pinned) == 1
    assert "==" in pinned[0]
    assert (WORKERS / f"{tool.name}.py").is_file()


def test_every_method_has_a_tool() -> None:
    assert {rule.tool for rule in METHODS.values()} == set(TOOLS)


def test_another_pin_is_another_environment(tmp_path: Path) -> None:
    old, new = (Tool("tool", ("tool",), ((f"tool=={version}",),)) for version in ("1.0", "1.1"))
    assert environment(old, tmp_path) != environment(new, tmp_path)


def test_an_environment_that_is_ready_is_taken_as_it_is(tmp_path: Path) -> None:
    tool = Tool("tool", ("tool",), (("tool==1.0",),))
    folder = environment(tool, tmp_path)
    folder.mkdir(parents=True)
    assert not is_ready(tool, tmp_path)
    (folder / READY).touch()
    assert is_ready(tool, tmp_path)
    assert ensure(tool, tmp_path) == folder / "bin" / "python"


def told_by(worker: str, tmp_path: Path) -> list[dict[str, object]]:
    """What a worker tells that runs in this Python, without a tool."""
    job = {"packages": ["pytest"], "scheme": {"method": "fp8"}, "model": str(tmp_path), "out": str(tmp_path)}
    return list(run_worker(Path(sys.executable), worker, job, tmp_path / "log.txt"))


def test_a_worker_that_fails_gives_one_line_and_a_log(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="llmcompressor could not quantise this model: ModuleNotFoundError") as failed:
        told_by("llmcompressor", tmp_path)
    assert "\n" not in failed.value.message
    assert "Traceback" in (tmp_path / "log.txt").read_text()


def test_a_worker_that_dies_is_heard_too(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="exit code"):
        list(run_worker(Path("/bin/false"), "gptqmodel", {}, tmp_path / "log.txt"))
