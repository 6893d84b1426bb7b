"""A tape does again what was done once: kernels and the torch functions between them, on whatever lies there now."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import torch
from aril.core.errors import Unsupported
from aril.kernels import dispatch
from aril.kernels.ops.activation import silu_mul
from aril.kernels.ops.attention import paged_attention
from aril.kernels.ops.kv import copy_blocks_
from aril.kernels.ops.matmul import linear, pack
from aril.kernels.ops.norm import add_rms_norm_

pytestmark = pytest.mark.skipif("native" not in linear.providers(), reason=dispatch.explain(linear))


@pytest.fixture
def tape():
    from aril.kernels.native import tape

    return tape


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.bfloat16)


def block(x: torch.Tensor, residual: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    """Some of everything that a network does: kernels, views, and torch functions between them."""
    norm, up, down = weights
    for _ in range(3):
        wide = linear(add_rms_norm_(x, residual, norm, 1e-5), up)
        first, second = wide.view(len(x), 2, -1).split_with_sizes((1, 1), dim=1)
        x = linear(silu_mul(torch.cat([second, first], dim=1).flatten(1)), down).add_(1.0)
    return x[:, :5].float()


def test_a_replay_reads_what_lies_there_now(tape) -> None:
    weights = [normal(16), pack(normal(48, 16)), pack(normal(16, 24))]
    x, residual = normal(3, 16), normal(3, 16)
    recorded = tape.record(lambda: block(x, residual, weights), tape.Arena())
    x.copy_(normal(3, 16))
    residual.copy_(normal(3, 16))
    want = block(x, residual.clone(), weights)
    recorded.replay()
    assert torch.equal(recorded.result, want)


def test_tapes_share_their_buffers_and_disturb_no_other(tape) -> None:
    arena, weights = tape.Arena(), [normal(16), pack(normal(48, 16)), pack(normal(16, 24))]
    inputs = [(normal(rows, 16), normal(rows, 16)) for rows in (4, 3)]
    tapes, sizes = [], []
    for x, residual in inputs:
        tapes.append(tape.record(lambda x=x, residual=residual: block(x, residual.clone(), weights), arena))
        sizes.append(arena.nbytes)
    for (x, residual), recorded in zip(inputs, tapes, strict=True):
        recorded.replay()
        assert torch.equal(recorded.result, block(x, residual.clone(), weights))
    assert sizes[1] - sizes[0] < sizes[0] / 4


def test_a_view_holds_its_buffer(tape) -> None:
    arena = tape.Arena()

    def run() -> torch.Tensor:
        view = linear(x, weight).view(-1)
        return view + linear(x, other).view(-1)

    x, weight, other = normal(2, 16), pack(normal(8, 16)), pack(normal(8, 16))
    recorded = tape.record(run, arena)
    recorded.replay()
    assert torch.equal(recorded.result, run())


def test_a_number_that_python_reads_is_refused(tape) -> None:
    x, weight = normal(2, 16), pack(normal(8, 16))
    with pytest.raises(Unsupported, match="reads numbers back"):
        tape.record(lambda: linear(x, weight).sum().item(), tape.Arena())


def test_what_no_native_kernel_does_is_refused_and_afterwards_all_is_as_before(tape) -> None:
    half = torch.ones(2, 2, 16, dtype=torch.float16)
    cache = torch.ones(1, 4, 2, 16, dtype=torch.float16)
    starts, lens, table = (torch.tensor(each, dtype=torch.int32) for each in ([0, 1, 2], [1, 1], [[0], [0]]))

    def run() -> torch.Tensor:
        return paged_attention(half, cache, cache, starts, lens, table, max_query=1, max_seq=1, scale=1.0)

    with pytest.raises(Unsupported, match="paged_attention"):
        tape.record(run, tape.Arena())
    assert run().shape == half.shape


def test_two_threads_that_record_at_once_leave_to_others_what_no_native_kernel_does(tape) -> None:
    x, weight, began, ended = normal(2, 16), pack(normal(8, 16)), Event(), Event()
    cache, source, target = normal(4, 4, 2, 16), torch.tensor([0]), torch.tensor([1])

    def first() -> torch.Tensor:
        other.append(threads.submit(tape.record, second, tape.Arena()))
        assert began.wait(60)
        return linear(x, weight)

    def second() -> torch.Tensor:
        began.set()
        assert ended.wait(60)
        return linear(x, weight)

    with ThreadPoolExecutor() as threads:
        other = []
        tape.record(first, tape.Arena())
        ended.set()
        other[0].result()
    copy_blocks_(cache, cache.clone(), source, target)
    assert torch.equal(cache[1], cache[0])
