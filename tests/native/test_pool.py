"""The kernels' threads: callers at the same time, more threads than cores, and forked processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from aril.kernels import dispatch
from aril.kernels.ops.matmul import linear, pack

pytestmark = pytest.mark.skipif("native" not in linear.providers(), reason=dispatch.explain(linear))


@pytest.fixture
def many_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(7)  # more than there are cores
    yield
    torch.set_num_threads(before)


def numbers(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Factors of a product that several threads share."""
    source = torch.Generator().manual_seed(seed)
    return torch.randn(33, 256, generator=source), torch.randn(515, 256, generator=source)


def test_callers_at_the_same_time_get_their_own_answers(many_threads) -> None:
    factors = [numbers(seed) for seed in range(60)]
    weights = [pack(w) for _, w in factors]
    with ThreadPoolExecutor(4) as callers:
        found = callers.map(lambda at: linear(factors[at][0], weights[at]), range(60))
        for got, (x, w) in zip(found, factors, strict=True):
            assert torch.allclose(got, x @ w.t(), atol=1e-3)


def test_a_forked_process_has_threads_of_its_own(many_threads) -> None:
    x, w = numbers(0)
    weight = pack(w)
    want = linear(x, weight)
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(linear(x, weight), want) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
