"""Decode and prefill of a random Llama, each beside what the device could do at most.

A decode step must read all weights once, the KV of every row and the adapters of the batch: those bytes over the
measured copy bandwidth are the least time it can take. A prefill must do its multiplications.
"""

from __future__ import annotations

from typing import Any

import torch

from ...engine.kv.tensors import block_bytes
from ...engine.memory import shown
from .report import Report
from .rig import BLOCK_SIZE, PREFILLS, RANK, Rig, blocks_per_row
from .roofline import Roof, measure
from .scale import Scale, Shape

WORKING = 6 * 1024**3  # bytes for logits, graphs and torch's own reserves, generously


def run(report: Report, scale: Scale, name: str) -> None:
    """All combinations of rows and adapters on the shape called `name`."""
    shape = scale.shapes[name]
    roof = measure(scale)
    needed, free = bytes_needed(shape, scale), scale.platform.free_memory()
    if scale.platform.kind != "cpu" and needed > free:
        report.set("left_out", f"needs about {shown(needed)} of device memory, and {shown(free)} are free")
        return
    with torch.inference_mode():
        rig = Rig.build(shape, scale)
        for num_adapters in scale.adapters:
            for num_rows in scale.rows:
                report.add("decode", _decode(rig, roof, num_rows, num_adapters))
        eager = rig.decode_pass(1, 0, rig.eager)
        report.set("eager_pass_ms_of_one_row", _ms(eager))
        for num_prompts in PREFILLS:
            num_adapters = 0 if num_prompts == 1 else min(num_prompts, max(scale.adapters))
            report.add("prefill", _prefill(rig, shape, roof, num_prompts, num_adapters))


def bytes_needed(shape: Shape, scale: Scale) -> int:
    """About what the device must hold."""
    embeddings = shape.vocab * shape.hidden * (1 if shape.tied else 2)
    adapters = max(scale.adapters) * RANK * _adapted_width(shape)
    cached = max(scale.rows) * blocks_per_row(scale) * BLOCK_SIZE * 2 * shape.layers * shape.kv_heads * shape.head_dim
    return 2 * (linear_parameters(shape) + embeddings + adapters + cached) + WORKING


def linear_parameters(shape: Shape) -> int:
    """Numbers in the Linears of all layers."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return shape.layers * shape.hidden * (2 * q + 2 * kv + 3 * shape.inner)


def _adapted_width(shape: Shape) -> int:
    """Inputs plus outputs of all seven projections of all layers."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return shape.layers * (7 * shape.hidden + 2 * q + 2 * kv + 3 * shape.inner)


def _decode(rig: Rig, roof: Roof, num_rows: int, num_adapters: int) -> dict[str, Any]:
    passing = rig.decode_pass(num_rows, num_adapters, rig.decoding)
    step = rig.decode_step(num_rows, num_adapters)
    least = _bytes_of_a_step(rig, num_rows, num_adapters) / roof.num_bytes
    return {
        "rows": num_rows,
        "adapters": num_adapters,
        "step_ms": _ms(step),
        "tokens_per_s": round(num_rows / step, 1),
        "step_share": round(least / step, 3),
        "pass_ms": _ms(passing),
        "pass_share": round(least / passing, 3),
    }


def _bytes_of_a_step(rig: Rig, num_rows: int, num_adapters: int) -> int:
    network = rig.eager.network
    head = network.spec.vocab_size * network.spec.hidden_size * network.spec.dtype.itemsize
    weights = sum(linear.nbytes() for linear in network.linears.values()) + head
    cached = num_rows * rig.scale.context * block_bytes(network.attention_specs, 1)
    return weights + cached + min(num_rows, num_adapters) * rig.adapters.bytes_each


def _prefill(rig: Rig, shape: Shape, roof: Roof, num_prompts: int, num_adapters: int) -> dict[str, Any]:
    length = rig.scale.prompt // num_prompts
    seconds = rig.prefill(num_prompts, num_adapters)
    tokens = num_prompts * length
    seen = num_prompts * length**2 // 2  # pairs of a query and a key: half of each square is masked
    attention = 4 * seen * shape.heads * shape.head_dim * shape.layers
    flops = 2 * tokens * linear_parameters(shape) + attention + 2 * num_prompts * shape.vocab * shape.hidden
    return {
        "prompts": num_prompts,
        "length": length,
        "adapters": num_adapters,
        "ms": _ms(seconds),
        "tokens_per_s": round(tokens / seconds, 1),
        "share_of_bf16_flops": round(flops / seconds / roof.flops, 3),
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
