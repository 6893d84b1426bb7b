"""Peers beside Aril: the race on a tiny model, what is judged and claimed, and that a failure stops nobody else."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
from aril.bench.peers import __main__ as peers
from aril.bench.peers._claims import Facts, claims
from aril.bench.peers._environment import folder_of, is_made, python_of
from aril.bench.peers._judge import verdict
from aril.bench.peers._peer import ARIL, BARE, Base, Engine, Stage
from aril.bench.peers._report import above
from aril.bench.peers._session import Entry, Found, Start, run_race
from aril.bench.peers._stages import CASES, MANY, PREFILL, stages
from aril.bench.race import Case, Lap, Rules, ratios
from builders.models import make_model

FOREIGN = [name for name in peers.PEERS.names() if peers.PEERS[name].pins]
ONE = Case(1, 0, 9, 5)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("peers"))


def lap(name: str, case: Case, rate: float, at: int = 0) -> Lap:
    return Lap(name, case, at, rate, rate, prompt_tokens_per_s=rate)


def run(monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr(sys, "argv", ["peers", "run", *options])
    return peers.main()


def test_aril_races_itself_and_is_judged(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "out.json"
    small = ["--rounds", "2", "--input-len", "9", "--output-len", "5", "--kv", str(16 << 20), "--json", str(report)]
    monkeypatch.setenv("ARIL_CACHE", str(tmp_path))  # no environment is made there: the judge runs in this one
    assert run(monkeypatch, "--peers", "aril", "--model", str(model), "--cases", "mixed", "start", *small) == 0
    race, starts = json.loads(report.read_text())["stages"]
    assert {(row["contender"], row["case"], row["rounds"]) for row in race["rows"]} == {
        (ARIL, "16 streams, 8 adapters", 2),
        (ARIL, "16 streams", 2),
        (BARE, "16 streams", 2),
    }
    assert all(row["agrees"]["positions"] > 0 for row in race["rows"])
    assert race["base_rows_beside_adapters"] == race["base_rows_alone"]
    assert [start["contender"] for start in starts["starts"]] == [ARIL, ARIL]
    assert "share of Aril without adapters" in capsys.readouterr().out


def test_a_peer_that_fails_is_left_out(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = Base(model, model, {}, 16 << 20, 64, 256)
    stage = Stage("bf16", "bf16", 1, (ONE,))
    (ours,) = (Entry(each, None) for each in peers.PEERS["aril"].engines(stage, base, Path()))
    broken = Entry(Engine("broken", "no_such_worker", {}), Path(sys.executable))
    absent = Entry(Engine("absent", "no_such_worker", {}), Path("no/such/python"))
    found = run_race(stage, [broken, absent, ours], Rules(1), None)
    assert [each.contender for each in found.laps] == [ARIL]
    assert set(found.failures) == {"broken", "absent"}
    assert "broken failed: " in capsys.readouterr().err


@pytest.mark.parametrize("name", FOREIGN)
def test_a_peer_that_is_installed_runs(name: str, model: Path) -> None:
    peer, home = peers.PEERS[name], folder_of(name)
    base = Base(model, model, {}, 1 << 30, 64, 256)
    stage = Stage("bf16", "bf16", 1, (ONE,))
    if not is_made(peer, home) or name != "transformers":  # the others take a minute to start, or other files
        pytest.skip(f"{name} is not set up here")
    entries = [Entry(each, python_of(peer, home)) for each in peer.engines(stage, base, home)]
    assert {each.contender for each in run_race(stage, entries, Rules(1), None).laps} == {
        each.engine.name for each in entries
    }


def test_every_peer_pins_its_versions() -> None:
    assert all("==" in pin or ">=" in pin for name in FOREIGN for pin in peers.PEERS[name].pins)


def test_cases_bring_the_stages_that_they_need() -> None:
    assert [stage.name for stage in stages(["mixed", "idle"], 2, 128, 128)] == ["rank16"]
    assert [stage.threads for stage in stages(["int4"], 2, 128, 128)] == [1, 2]
    assert [stage.name for stage in stages(list(CASES), 2, 8, 8)] == [
        "bf16", "rank16", "rank64", "int4, 1 thread", "int4", "start",
    ]  # fmt: skip
    assert PREFILL in stages(["prefill"], 2, 8, 8)[0].cases


def test_positions_count_until_the_first_near_tie() -> None:
    row = [[0.0, 1.0], [0.5, 0.5], [0.0, 0.001], [0.7, 0.7], [0.0, 1.0]]
    found = verdict([row])
    assert (found.positions, found.agreeing) == (2, 1)
    assert (found.decided, found.decided_agreeing, found.worst) == (4, 2, 0.7)


def test_rounds_that_only_one_ran_have_no_ratio() -> None:
    ours = [lap("a", ONE, 4.0, 0), lap("a", ONE, 6.0, 1)]
    assert ratios(ours, [lap("b", ONE, 2.0, 1)], lambda each: each.tokens_per_s) == [3.0]


def test_kv_counts_as_asked_for_only_where_it_was_there_before() -> None:
    lazy = Start("x", 1.0, 1.0, idle_bytes=300, used_bytes=450, filled_bytes=50)
    eager = Start("x", 1.0, 1.0, idle_bytes=1400, used_bytes=1450, filled_bytes=50)
    ahead = Start("x", 1.0, 1.0, idle_bytes=300, used_bytes=450, filled_bytes=50, large_bytes=280)
    assert [above(start, 200, 1000) for start in (lazy, eager, ahead)] == [200, 250, 170]


def test_claims_take_the_best_peer() -> None:
    found = Found(
        Stage("bf16", "bf16", 2, (MANY,)), [lap(ARIL, MANY, 6.0), lap("vllm", MANY, 2.0), lap("x", MANY, 4.0)]
    )
    (claim,) = claims(Facts({"bf16": found}, lambda case: case, math.inf, 1, 1))
    assert claim.value.middle == 1.5
    assert str(claim).startswith("FAILS")
