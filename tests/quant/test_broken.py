"""Checkpoints with one thing broken: each is refused in one line that names it, and leaves nothing behind."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from aril.core.errors import ArilError
from aril.core.platform import detect
from aril.models.inspect import inspect_model
from aril.models.loader import load_model
from aril.models.source import locate
from builders.broken import MODULE, Broken, copy_of, make_bases
from builders.broken_files import FILES
from builders.broken_formats import FORMATS
from builders.broken_gguf import GGUF

CASES: dict[str, Broken] = {**FILES, **FORMATS, **GGUF}


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Whole checkpoints, made once."""
    return make_bases(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("case", CASES)
def test_a_broken_checkpoint_is_refused_in_one_line_and_leaves_nothing(
    case: str, bases: dict[str, Path], tmp_path: Path
) -> None:
    broken = CASES[case]
    path = copy_of(bases[broken.base], tmp_path)
    broken.change(path)
    said = refusal(path, **broken.asked)
    assert "\n" not in said
    for name in (path.name, *broken.names):
        assert name in said
    assert left_behind(path) == []


@pytest.mark.parametrize("case", CASES)
def test_an_inspection_of_it_says_so_or_describes_it(case: str, bases: dict[str, Path], tmp_path: Path) -> None:
    """What only the numbers show is not seen in a header; nothing is ever raised."""
    broken = CASES[case]
    path = copy_of(bases[broken.base], tmp_path)
    broken.change(path)
    found = inspect_model(locate(str(path)), detect("cpu"), **broken.asked).facts
    assert found.served == (found.problem is None)


def test_the_checkpoints_that_are_broken_here_are_whole_before(bases: dict[str, Path]) -> None:
    for path in bases.values():
        load_model(locate(str(path)), device=torch.device("cpu"))


def test_a_server_of_a_broken_checkpoint_never_starts(bases: dict[str, Path], tmp_path: Path) -> None:
    path = copy_of(bases["gptq"], tmp_path)
    CASES["gptq: a scale that is no number"].change(path)
    argv = [sys.executable, "-m", "aril.cli", "serve", str(path), "--port", "0", "--state-dir", str(tmp_path / "state")]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.splitlines()[-1].startswith(f"aril: {path / 'model.safetensors'}: {MODULE}.scales")
    assert "Traceback" not in ended.stderr


def test_there_are_many(bases: dict[str, Path]) -> None:
    assert len(CASES) >= 40
    assert {broken.base for broken in CASES.values()} == bases.keys()


def refusal(path: Path, **asked: Any) -> str:
    """What loading says; the error itself is gone, and with it all that it held."""
    try:
        load_model(locate(str(path)), device=torch.device("cpu"), **asked)
    except ArilError as error:
        return error.message
    raise AssertionError(f"{path} was loaded")


def left_behind(path: Path) -> list[str]:
    """Memory that is still mapped from the files, and threads that still read."""
    if mapped(path):
        gc.collect()  # an error and its frames may hold each other
    return mapped(path) + [each.name for each in threading.enumerate() if each.name.startswith("read-weights")]


def mapped(path: Path) -> list[str]:
    """What this process sees of the files as memory."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if str(path) in line]
