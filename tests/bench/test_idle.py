"""The bench of idle connections runs, and tells what it saw."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from aril.bench import idle
from builders.commands import SMALL
from builders.models import make_model


def test_both_legs_are_measured_in_every_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--streams", "3", "--idle", "20", "--tokens", "8", "--rounds", "2", "--json", str(tmp_path / "found")]
    model = make_model(tmp_path / "model")
    monkeypatch.setattr(sys, "argv", ["idle", "--model", str(model), *flags, "--", *SMALL])
    idle.main()
    found = json.loads((tmp_path / "found").read_text())
    assert (len(found["rounds"]), found["idle"], found["streams"]) == (2, 20, 3)
    assert all(set(legs) == set(idle.LEGS) for legs in found["rounds"])
    assert found["holds"] == (found["ratio"] <= idle.MOST_RATIO)
