"""Loading: what a process takes is seen, and held against the bytes of the files."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from aril.bench.loading import Loading, Resident, measure, weight_files
from builders.models import make_model

linux_only = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
FOUND = Loading("x", 1_000_000_000, 1_000_000_000, 0.1, [1.0], 1.5, 400_000_000, 1_800_000_000, 2_900_000_000)


@linux_only
def test_pages_that_are_filled_are_seen() -> None:
    before = Resident.of(os.getpid()).own
    ballast = np.ones(64 << 20, np.uint8)
    assert Resident.of(os.getpid()).own - before == pytest.approx(ballast.nbytes, rel=0.2)


@linux_only
def test_a_model_is_loaded_and_watched(tmp_path: Path) -> None:
    model = make_model(tmp_path / "tiny")
    found = measure(str(model), {"model": str(model), "dtype": "auto", "threads": 1, "more": {}}, rounds=0)
    assert found.file_bytes == (model / "model.safetensors").stat().st_size
    assert 0 < found.baseline_bytes < found.peak_bytes
    assert found.holds


def test_the_baseline_is_no_part_of_what_loading_takes() -> None:
    assert FOUND.loading_bytes == 1_400_000_000
    assert FOUND.bound_bytes == 1_450_000_000
    assert FOUND.holds
    assert not replace(FOUND, peak_bytes=1_900_000_000).holds


def test_only_weights_count_as_the_checkpoint(tmp_path: Path) -> None:
    for name in ("config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
        (tmp_path / name).write_bytes(b"1234")
    assert [file.name for file in weight_files(tmp_path)] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    assert weight_files(tmp_path / "config.json") == [tmp_path / "config.json"]
