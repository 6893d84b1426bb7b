"""The bench of heavy requests runs, and tells what it saw of each."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from aril.bench import heavy
from builders.commands import SMALL
from builders.models import make_model

ASKED = ("document", "enum", "text")


def test_each_heavy_request_is_measured_beside_the_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--streams", "2", "--tokens", "16", "--rounds", "2", "--only", *ASKED, "--json", str(tmp_path / "found")]
    model = make_model(tmp_path / "model")
    monkeypatch.setattr(heavy, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(sys, "argv", ["heavy", "--model", str(model), *flags, "--", *SMALL])
    heavy.main()
    found = json.loads((tmp_path / "found").read_text())
    assert set(found["longest_gap_s"]) == {heavy.ALONE, *ASKED}
    assert all(gap > 0 for legs in found["rounds"] for gap in legs.values())
    assert found["streams"] == len(found["rounds"]) == 2
