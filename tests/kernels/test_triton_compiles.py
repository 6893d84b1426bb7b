"""Every Triton kernel compiles for each kind of device, and its registers suffice. No device is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("triton")

WORKER = Path(__file__).with_name("compile_kernels.py")
TARGETS = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "gfx942": 64 * 1024}  # shared memory of a program at most


@pytest.fixture(scope="module")
def workers() -> Iterator[dict[str, subprocess.Popen[str]]]:
    """One process a target, side by side, because they compile for seconds."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    started = {
        target: subprocess.Popen(
            [sys.executable, str(WORKER), target],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment | {"OMP_NUM_THREADS": "1"},
        )
        for target in TARGETS
    }
    yield started
    for process in started.values():
        process.kill()
        process.communicate()


@pytest.mark.parametrize("target", TARGETS)
def test_each_kernel_compiles_and_spills_within_its_bound(
    target: str, workers: dict[str, subprocess.Popen[str]]
) -> None:
    out, err = workers[target].communicate(timeout=900)
    assert workers[target].returncode == 0, err
    kernels = [json.loads(line) for line in out.splitlines()]
    assert kernels
    assert [kernel for kernel in kernels if kernel["scratch"] > kernel["bound"]] == []
    assert [kernel for kernel in kernels if kernel["shared"] > TARGETS[target]] == []
