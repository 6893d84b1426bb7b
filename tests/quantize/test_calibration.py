"""Calibration text becomes the model's own tokens; a line that is none is named."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from aril.commands._quantize.calibration import SHORTEST, read_calibration
from aril.core.errors import ArilError


class Letters:
    """A tokenizer with a token for each letter."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) for letter in text]

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> list[int]:
        return [ord(letter) for message in messages for letter in f"{message['role']}:{message['content']};"]


def written(path: Path, *lines: object) -> Path:
    """A JSONL file."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_texts_and_conversations_become_samples(tmp_path: Path) -> None:
    talk = {"messages": [{"role": "user", "content": "x" * 30}]}
    file = written(tmp_path / "data.jsonl", {"text": "a" * 40}, talk)
    found = read_calibration(file, Letters(), max_samples=8, max_tokens=20)
    assert [len(ids) for ids in found.samples] == [20, 20]
    assert "".join(map(chr, found.samples[1])) == "user:" + "x" * 15
    assert found.about == "2 samples of data.jsonl, 40 tokens"


def test_short_lines_are_passed_over_and_many_are_not_read(tmp_path: Path) -> None:
    file = written(tmp_path / "data.jsonl", {"text": "a" * (SHORTEST - 1)}, *[{"text": "b" * 40}] * 5)
    found = read_calibration(file, Letters(), max_samples=3, max_tokens=100)
    assert [set(ids) for ids in found.samples] == [{ord("b")}] * 3


def test_without_a_file_the_built_in_text_is_used_and_said() -> None:
    found = read_calibration(None, Letters(), max_samples=4, max_tokens=512)
    assert [len(ids) for ids in found.samples] == [256] * 4
    assert "built-in" in found.about
    assert "--calibration FILE.jsonl" in found.about


@pytest.mark.parametrize(
    ("line", "complaint"),
    [("{", ":1 is not JSON"), ('{"prompt": "a"}', ':1 holds neither "text"'), ('{"text": "a"}', "no line has")],
)
def test_a_line_that_is_no_sample_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(ArilError) as refused:
        read_calibration(file, Letters(), max_samples=4, max_tokens=64)
    assert complaint in refused.value.message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArilError, match="there is no such file"):
        read_calibration(tmp_path / "none.jsonl", Letters(), max_samples=4, max_tokens=64)
