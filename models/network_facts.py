"""A network without weights, in figures and words: its parameters, bytes, attention, positions and formats."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from .attention.base import AttentionSpec
from .base import Build, Decoder
from .facts import AttentionFacts, Positions, QuantisedGroup
from .layers.arrival import Arrival
from .layers.rotary import RopeSpec
from .words import modules, ranges


def num_parameters(build: Build) -> int:
    """Weights, biases and norms; a tied matrix once."""
    matrices = sum(_size(matrix) for matrix in build.matrices)
    norms = (name for name in _others(build) if name.endswith(".weight"))
    return matrices + _num_biases(build) + sum(math.prod(build.wanted[name].shape) for name in norms)


def weight_bytes(build: Build, decoder: Decoder) -> int:
    """What weights and tables will take; what needs no checkpoint is there already, and counts itself."""
    matrices = sum(matrix.method.weight_bytes(matrix.shape) for matrix in build.matrices)
    return decoder.weight_bytes + matrices + _num_biases(build) * build.dtype.itemsize


def positions_of(rope: RopeSpec) -> Positions:
    """A rotary embedding."""
    is_scaled = rope.rule != "default"
    theta = rope.parameters.get("rope_theta")
    return Positions(
        "RoPE",
        rope.rule,
        None if theta is None else float(theta),
        rope.factor if is_scaled else None,
        rope.original if is_scaled else None,
        rope.usual,
        rope.longest,
    )


def attention_facts(specs: Sequence[AttentionSpec]) -> Iterator[AttentionFacts]:
    """Layers that are alike together."""
    for spec in dict.fromkeys(specs):
        layers = ranges(at for at, each in enumerate(specs) if each == spec)
        dtype = str(spec.cache_dtype).removeprefix("torch.")
        yield AttentionFacts(layers, spec.heads, spec.kv_heads, spec.head_dim, spec.window, dtype)


def quantised_groups(build: Build) -> Iterator[QuantisedGroup]:
    """Matrices that are stored alike together, each method in its own words."""
    alike: dict[str, list[Arrival]] = {}
    for matrix in build.matrices:
        alike.setdefault(matrix.method.describe(), []).append(matrix)
    for description, matrices in alike.items():
        yield QuantisedGroup(
            description,
            modules(matrix.name for matrix in matrices),
            len(matrices),
            sum(_size(matrix) for matrix in matrices),
            sum(matrix.method.weight_bytes(matrix.shape) for matrix in matrices),
        )


def kv_cache_words(build: Build) -> str | None:
    """What the checkpoint asks of the KV cache; its scales are all that is neither weight nor bias."""
    if all(name.endswith((".weight", ".bias")) for name in _others(build)):
        return None
    return "keys and values rounded to FP8 (e4m3) with the checkpoint's scales"


def _size(matrix: Arrival) -> int:
    return matrix.shape.in_features * matrix.shape.out_features


def _num_biases(build: Build) -> int:
    """Those that the architecture has; zeros that a tool writes for others do not count."""
    return sum(linear.out_features for linear in build.linears.values() if linear.spec.bias)


def _others(build: Build) -> list[str]:
    """Tensors that are no matrix's."""
    of_matrices = {name for matrix in build.matrices for name, _ in matrix.wanted()}
    return [name for name in build.wanted if name not in of_matrices]
