"""The check of a GPU works before there is one: its parts measure, compare, and fail alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aril.bench.gpu import codes, exactness, no_metrics, speed
from aril.bench.gpu.report import Report
from aril.bench.gpu.scale import SHAPES, Scale, dry, in_earnest
from aril.bench.gpu_check import MOST_SECONDS, PARTS, Part, check
from aril.core.platform import detect

SCRIPT = Path(__file__).parent.parent.parent / "bench" / "gpu_check.sh"


@pytest.fixture
def scale() -> Scale:
    return dry(detect("cpu"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "part.json"


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_every_mix_of_rows_and_adapters_is_measured(scale: Scale, file: Path) -> None:
    speed.run(Report(file), scale, "8B")
    found = read(file)
    mixes = [(row["rows"], row["adapters"]) for row in found["decode"]]
    assert mixes == [(rows, adapters) for adapters in scale.adapters for rows in scale.rows]
    assert all(row["step_ms"] > 0 and row["pass_share"] > 0 for row in found["decode"])
    assert [row["prompts"] for row in found["prefill"]] == [1, 8]


def test_products_with_codes_are_measured_in_every_format(scale: Scale, file: Path) -> None:
    codes.run(Report(file), scale)
    products = read(file)["products"]
    kinds = {(row["format"], row["rows"]) for row in products}
    assert kinds == {(name, rows) for name in codes.FORMATS for rows in codes.ROWS}
    assert all(row["us"] > 0 for row in products)


def test_the_engine_is_compared_with_transformers_and_peft(scale: Scale, file: Path) -> None:
    exactness.run(Report(file), scale)
    found = read(file)
    assert found["problems"] == []
    assert found["float32_eager"] == {"equal": 5, "tie": 0, "other": 0}
    assert found["aril_float32"]["max_logit_error"] < 1e-3 < found["transformers_bfloat16"]["max_logit_error"]


def test_a_part_that_fails_is_told_and_the_others_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [Part("unknown", "nowhere", 60), Part("roofline", "roofline", 60)]
    assert check(parts, tmp_path) == 1
    found = read(tmp_path / "report.json")["parts"]
    assert "ModuleNotFoundError" in found["unknown"]["traceback"]
    assert found["roofline"]["problems"] == []
    assert found["roofline"]["copy_gb_per_s"] > 0
    assert "unknown" in capsys.readouterr().out


def test_a_part_ends_with_its_time_and_the_check_with_all(tmp_path: Path) -> None:
    parts = [Part("slow", "speed", 1.0, ("1B",)), Part("late", "roofline", 60)]
    assert check(parts, tmp_path, most_seconds=1.5) == 1
    found = read(tmp_path / "report.json")["parts"]
    assert "took more than 1 s" in found["slow"]["problems"][0]
    assert found["late"]["problems"] == ["no time was left for it"]


def test_all_parts_together_end_in_time() -> None:
    assert sum(part.seconds for part in PARTS) <= MOST_SECONDS < 540


def test_the_shapes_are_of_the_size_that_they_are_named_for() -> None:
    assert speed.linear_parameters(SHAPES["1B"]) == pytest.approx(1e9, rel=0.05)
    assert speed.linear_parameters(SHAPES["8B"]) == pytest.approx(7e9, rel=0.05)
    assert speed.bytes_needed(SHAPES["8B"], in_earnest(detect("cpu"))) == pytest.approx(30e9, rel=0.1)


def test_metrics_can_be_kept_by_nobody(tmp_path: Path) -> None:
    shutil.copy(no_metrics.__file__, tmp_path / "prometheus_client.py")
    code = (
        "import prometheus_client, aril.core.metrics as m\n"
        "assert prometheus_client.generate_latest is m.generate_latest and 'Forgotten' in m.Counter.inc.__doc__\n"
        "m.counter('a', 'b', ['c']).labels('d').inc(); m.gauge('e', 'f').set(1); m.histogram('g', 'h').observe(2)\n"
        "with m.histogram('i', 'j').time(): pass\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": path})


def test_the_script_says_how_it_is_called() -> None:
    done = subprocess.run(["sh", str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "OUT_FOLDER" in done.stderr
