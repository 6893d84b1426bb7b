"""Engines beside each other: the workers answer, and the ratios are those of runs of the same round."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from aril.bench import formats
from aril.bench.race import Case, Lap, lines, table
from aril.bench.worker import Worker
from builders.models import make_model


def laps(rates: dict[str, dict[Case, list[float]]]) -> list[Lap]:
    """Tokens per second of each contender in each case and round; it decodes twice as fast."""
    return [
        Lap(name, case, at, rate, 2 * rate)
        for name, cases in rates.items()
        for case, found in cases.items()
        for at, rate in enumerate(found)
    ]


def test_ratios_are_taken_within_a_round() -> None:
    one = Case(1)
    base, packed = lines(laps({"bf16": {one: [10, 1, 4]}, "int4": {one: [20, 3, 6]}}))
    assert base.beside_first is None
    assert (packed.tokens_per_s, packed.beside_first, packed.decode_beside_first) == (6, 2.0, 2.0)


def test_speed_with_adapters_stands_beside_its_own_without() -> None:
    found = lines(laps({"int4": {Case(16): [10, 20, 30], Case(16, 8): [8, 18, 21]}}))
    assert [line.share_of_own for line in found] == [None, 0.8]


def test_vllm_is_compared_on_the_same_checkpoint() -> None:
    one, mixed = Case(1), Case(1, 8)
    found = formats.beside_vllm(
        laps({"a": {one: [6.0], mixed: [5.0]}, "b": {one: [9.0]}, "vllm b": {one: [3.0]}}),
    )
    assert {what: line.beside_first for what, line in found.items()} == {"b, 1 stream": 3.0}


def test_the_table_names_every_case() -> None:
    text = table(lines(laps({"bf16": {Case(1): [1.0], Case(16, 8): [2.0]}})))
    assert "1 stream " in text
    assert "16 streams, 8 adapters" in text


def test_checkpoints_run_with_and_without_adapters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, report = make_model(tmp_path / "tiny"), tmp_path / "found.json"
    small = ["--streams", "1,2", "--adapters", "1", "--input-len", "9", "--output-len", "5", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", ["formats", str(model), *small, "--json", str(report)])
    assert formats.main() == 0
    found = json.loads(report.read_text())["lines"]
    assert [(line["case"]["streams"], line["case"]["adapters"]) for line in found] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert all(line["tokens_per_s"] > 0 and line["decode_tokens_per_s"] > 0 for line in found)
    assert "2 streams, 1 adapters" in capsys.readouterr().out


def test_a_worker_that_dies_tells_its_last_words() -> None:
    with pytest.raises(RuntimeError, match="no such engine"):
        Worker([sys.executable, "-c", "raise SystemExit('no such engine')"], {})
