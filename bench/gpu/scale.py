"""How large everything is: in earnest on a GPU, tiny in a dry run on a CPU that only proves that the check works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...core.platform import Platform, detect


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a Llama."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool  # whether the embedding is the head


@dataclass(frozen=True, slots=True)
class Exact:
    """The small model whose answers are compared token by token, and how much it is asked."""

    config: Mapping[str, int]  # fields of the transformers config
    num_prompts: int  # for the base and for each adapter
    num_tokens: int  # of each answer


@dataclass(frozen=True, slots=True)
class Scale:
    """What the parts read."""

    platform: Platform
    shapes: Mapping[str, Shape]
    rows: tuple[int, ...]
    adapters: tuple[int, ...]
    context: int  # tokens that each decoding row has behind it
    prompt: int  # tokens of a prefill
    steps: int  # timed of each kind
    copy_bytes: int
    cold_bytes: int  # of weights in turn: more than any cache holds
    matmul_size: int
    exact: Exact
    kernels: str  # which conformance tests, as pytest's -k reads it; empty = all


SHAPES = {
    "1B": Shape(2048, 8192, 16, 32, 8, 64, 128256, tied=True),  # Llama 3.2 1B
    "8B": Shape(4096, 14336, 32, 32, 8, 128, 128256, tied=False),  # Llama 3.1 8B
}
TINY = Shape(64, 96, 2, 4, 2, 16, 256, tied=True)
SMALL_MODEL = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8, "num_hidden_layers": 4}


def scale_here() -> Scale:
    """The scale of this machine."""
    platform = detect()
    return dry(platform) if platform.kind == "cpu" else in_earnest(platform)


def in_earnest(platform: Platform) -> Scale:
    """What a GPU of the last years can do within the time."""
    return Scale(
        platform,
        SHAPES,
        rows=(1, 16, 64),
        adapters=(0, 8, 32),
        context=512,
        prompt=2048,
        steps=30,
        copy_bytes=4 * 1024**3,
        cold_bytes=512 * 1024**2,
        matmul_size=8192,
        exact=Exact(SMALL_MODEL, num_prompts=6, num_tokens=24),
        kernels="",
    )


def dry(platform: Platform) -> Scale:
    """Everything tiny."""
    return Scale(
        platform,
        dict.fromkeys(SHAPES, TINY),
        rows=(1, 3),
        adapters=(0, 2),
        context=20,
        prompt=48,
        steps=2,
        copy_bytes=1024**2,
        cold_bytes=0,
        matmul_size=64,
        exact=Exact({"num_hidden_layers": 1}, num_prompts=1, num_tokens=3),
        kernels="silu_mul and torch.float32",
    )
