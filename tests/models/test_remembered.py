"""What transformers said is remembered while its files are what they were, and never half."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from aril.models import remembered as module
from aril.models.config import read_config
from aril.models.remembered import remembered, state_of
from builders.models import make_model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ARIL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "read"


def never() -> dict[str, object]:
    raise AssertionError("it is remembered")


def test_what_was_made_once_is_read(cache: Path) -> None:
    made = remembered("thing", ["a"], lambda: {"x": 1})
    assert remembered("thing", ["a"], never) == made == {"x": 1}


def test_another_making_is_another_document(cache: Path) -> None:
    remembered("thing", ["a"], lambda: {"x": 1})
    assert remembered("thing", ["b"], lambda: {"x": 2}) == {"x": 2}


@pytest.mark.parametrize("harm", ["", "{}", '{"x": 1', '[1, "seal"]', '{"x": 1, "seal": "another"}'])
def test_a_broken_document_is_made_anew(cache: Path, harm: str) -> None:
    remembered("thing", ["a"], lambda: {"x": 1})
    next(cache.iterdir()).write_text(harm)
    assert remembered("thing", ["a"], lambda: {"x": 3}) == {"x": 3}
    assert remembered("thing", ["a"], never) == {"x": 3}


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ARIL_CACHE", str(tmp_path / "file"))
    assert remembered("thing", ["a"], lambda: {"x": 1}) == {"x": 1}


def test_the_oldest_documents_go(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 2)
    for at in range(4):
        remembered("thing", [str(at)], lambda: {})
        os.utime(max(cache.iterdir(), key=lambda file: file.stat().st_mtime_ns), (at, at))
    assert len(list(cache.iterdir())) == 2


def test_a_file_that_changed_has_another_state(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text("1")
    before = state_of([file])
    file.write_text("22")
    assert state_of([file]) != before


def test_a_remembered_config_says_what_transformers_says(tmp_path: Path) -> None:
    from transformers import AutoConfig

    folder = make_model(tmp_path / "model")
    theirs = AutoConfig.from_pretrained(folder)
    for config in (read_config(folder, trust_remote_code=False) for _ in range(2)):
        assert {name: getattr(config, name) for name in ("rope_parameters", "dtype", "head_dim", "hidden_act")} == {
            name: getattr(theirs, name) for name in ("rope_parameters", "dtype", "head_dim", "hidden_act")
        }
        assert json.loads(json.dumps(config.to_dict())) == json.loads(json.dumps(theirs.to_dict()))
