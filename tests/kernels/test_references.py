"""The references themselves, against transformers and against the formulas written out."""

from __future__ import annotations

import pytest
import torch
from aril.kernels import dispatch
from aril.kernels.cases import Case, Inputs
from aril.kernels.ops.attention import paged_attention
from aril.kernels.ops.lora import DeltaRows, add_delta_
from aril.kernels.ops.norm import add_rms_norm_, rms_norm
from aril.kernels.ops.rope import rotate_
from torch import Tensor
from transformers.models.gptj.modeling_gptj import rotate_every_two
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

CPU = torch.device("cpu")


def cases(op: dispatch.Op[..., object], dtype: torch.dtype = torch.float32) -> list[Case]:
    assert op.case_maker is not None
    return [case for case in op.case_maker(Inputs(CPU, dtype)) if not case.large]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rms_norm_rounds_as_transformers_does(dtype: torch.dtype) -> None:
    make = Inputs(CPU, dtype)
    x, theirs = make.normal(5, 576), LlamaRMSNorm(576, eps=1e-5).to(dtype)
    theirs.weight.data = make.normal(576)
    torch.testing.assert_close(rms_norm.reference(x, theirs.weight, 1e-5), theirs(x), rtol=1e-6, atol=1e-6)


def test_add_rms_norm_leaves_the_sum_in_the_residual() -> None:
    make = Inputs(CPU, torch.float32)
    x, residual, weight = make.normal(4, 32), make.normal(4, 32), make.normal(32)
    total = x + residual
    normed = add_rms_norm_.reference(x, residual, weight, 1e-6)
    assert torch.equal(residual, total)
    assert torch.equal(normed, rms_norm.reference(total, weight, 1e-6))


def test_rotate_turns_halves_as_llama_does() -> None:
    make = Inputs(CPU, torch.float32)
    q, k, angles = make.normal(6, 4, 16), make.normal(6, 2, 16), make.normal(9, 8)
    positions = make.integers(9, 6)
    both = torch.cat((angles, angles), -1)[positions].unsqueeze(0)
    expected = apply_rotary_pos_emb(q.unsqueeze(0), k.unsqueeze(0), both.cos(), both.sin(), unsqueeze_dim=2)
    rotate_.reference(q, k, positions, angles.cos(), angles.sin())
    torch.testing.assert_close((q.unsqueeze(0), k.unsqueeze(0)), expected)


def test_rotate_turns_neighbours_as_gptj_does_and_leaves_the_other_dimensions() -> None:
    make = Inputs(CPU, torch.float32)
    q, k, angles = make.normal(6, 4, 16), make.normal(6, 2, 16), make.normal(9, 4)
    positions, before = make.integers(9, 6), q.clone()
    both = angles[positions].repeat_interleave(2, -1).unsqueeze(1)
    head = q[None, ..., :8]
    expected = torch.cat(((head * both.cos() + rotate_every_two(head) * both.sin())[0], before[..., 8:]), -1)
    rotate_.reference(q, k, positions, angles.cos(), angles.sin(), interleaved=True)
    torch.testing.assert_close(q, expected)


@pytest.mark.parametrize("case", cases(paged_attention), ids=lambda case: case.label)
def test_paged_attention_is_dense_attention_over_each_rows_own_keys(case: Case) -> None:
    expected = _dense(*case.args, **case.kwargs)
    torch.testing.assert_close(paged_attention.reference(*case.args, **case.kwargs), expected, rtol=1e-5, atol=1e-5)


def _dense(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, query_start: Tensor, seq_lens: Tensor, block_table: Tensor, **options
) -> Tensor:
    out = torch.empty_like(q)
    shared = q.shape[1] // k_cache.shape[2]
    for row, seq_len in enumerate(seq_lens.tolist()):
        start, end = query_start[row : row + 2].tolist()
        k, v = (c[block_table[row].long()].flatten(0, 1)[:seq_len] for c in (k_cache, v_cache))
        for token in range(start, end):
            at = seq_len - (end - token)
            first = max(0, at + 1 - (options.get("window") or seq_len))
            for head in range(q.shape[1]):
                scores = k[first : at + 1, head // shared] @ q[token, head] * options["scale"]
                if options.get("softcap"):
                    scores = options["softcap"] * torch.tanh(scores / options["softcap"])
                out[token, head] = scores.softmax(0) @ v[first : at + 1, head // shared]
    return out


@pytest.mark.parametrize("case", cases(add_delta_), ids=lambda case: case.label)
def test_add_delta_adds_each_rows_own_product(case: Case) -> None:
    y, x, arena, table, rows, parts = case.args
    expected, k = y.clone(), x.shape[1]
    for i, slot in enumerate(rows.slot.tolist()):
        for (column, size), (a_at, b_at, rank) in zip(parts, table[slot].tolist(), strict=True):
            a, b = arena[a_at : a_at + rank * k].view(rank, k), arena[b_at : b_at + rank * size].view(rank, size)
            expected[i, column : column + size] += x[i] @ a.T @ b
    add_delta_.reference(*case.args)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("slots", [[], [0, 0], [3, 0, 3, 1], [2] * 300 + [0] * 5 + [7] * 65])
def test_the_pieces_cover_each_adapted_token_once_and_have_a_fixed_length(slots: list[int]) -> None:
    rows = DeltaRows.build(slots, CPU, max_segments=4)
    order = rows.order.tolist()
    covered = [(order[i], slot) for slot, start, end in rows.pieces.tolist() for i in range(start, end)]
    assert sorted(covered) == [(i, slot) for i, slot in enumerate(slots) if slot]
    assert rows.pieces.shape == DeltaRows.build([0] * len(slots), CPU, max_segments=4).pieces.shape
