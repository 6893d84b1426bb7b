"""The commands of docs/quantisation.md do what it says; what its tables name is there."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from aril.commands import quantize
from aril.commands._quantize import job
from builders.models import make_model

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "quantisation.md").read_text()
LINES = re.findall(r"^(?:    )?(aril .*)$", PAGE, re.MULTILINE)
MAKING = [line for line in LINES if line.startswith("aril quantize")]
FOLDER = "Qwen2.5-1.5B-Instruct"  # of the examples; a tiny model of that family stands for it
CHAT = '{"messages": [{"role": "user", "content": "What is the capital of France?"}]}\n'


def test_the_page_has_commands() -> None:
    assert any(line.startswith("aril inspect") for line in LINES)
    assert MAKING


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("aril inspect")])
def test_an_inspection_answers(line: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "aril.cli", *shlex.split(line)[1:]], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "GGUF" in done.stdout


@pytest.mark.parametrize("line", MAKING)
def test_a_quantisation_is_one_that_can_be_done(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to where the tool would be called; tests/quantize runs the tools themselves where they are installed."""
    make_model(tmp_path / FOLDER, "qwen2", hidden_size=128, intermediate_size=256)
    (tmp_path / "chats.jsonl").write_text(CHAT)
    monkeypatch.chdir(tmp_path)
    parser = argparse.ArgumentParser()
    quantize.add_arguments(parser)
    planned = job.plan(quantize._request(parser.parse_args(line.split()[2:])))
    assert planned.matrices


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(tests/[\w/]+\.py|test_\w+\.py)`", PAGE))))
def test_a_named_test_is_there(name: str) -> None:
    assert (ROOT / name).is_file() or (ROOT / "tests" / "quant" / name).is_file()
