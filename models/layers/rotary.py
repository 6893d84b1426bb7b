"""Rotary position embedding: the frequencies of every scaling rule, and the tables that the op reads.

The K of a token is cached and shared, so it may depend on nothing but the tokens before it. transformers lets `dynamic`
and `longrope` change their frequencies when a text grows; here they are fixed at load by the longest text the network
is loaded for (`num_positions`): longrope takes its long factors iff that is over the original length, and dynamic
stretches its base for that length. A shorter `--max-model-len` therefore gives the frequencies of short texts.

Sources: RoFormer (arXiv 2104.09864); linear, arXiv 2306.15595; dynamic and YaRN, arXiv 2309.00071; LongRoPE,
arXiv 2402.13753; llama3, the Llama 3.1 model card's reference code. Rounding follows transformers, float32 throughout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...core.errors import Unsupported
from ...kernels.ops.rope import rotate_


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """A config's `rope_parameters`, completed: `parameters` holds rope_type, rope_theta and the rule's own fields."""

    parameters: Mapping[str, Any]
    head_dim: int
    max_position_embeddings: int

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise Unsupported(f"no RoPE scaling {self.rule!r}; there are {', '.join(RULES)}", param="model")
        if self.parameters.get("partial_rotary_factor", 1.0) != 1.0:
            raise Unsupported("this family does not rotate a part of each head (partial_rotary_factor)", param="model")
        missing = [name for name in NEEDED.get(self.rule, ()) if self.parameters.get(name) is None]
        if missing:
            raise Unsupported(f"RoPE scaling {self.rule!r} lacks {', '.join(missing)} in the config", param="model")

    @property
    def rule(self) -> str:
        """The scaling rule's name."""
        return str(self.parameters.get("rope_type", "default"))

    @property
    def original(self) -> int:
        """Positions that the base was trained on before the rule stretched it."""
        return int(self.parameters.get("original_max_position_embeddings") or self.max_position_embeddings)

    @property
    def longest(self) -> int:
        """Positions that the rule is made for."""
        if self.rule in ("linear", "dynamic"):
            return int(self.max_position_embeddings * self.factor)
        if self.rule == "yarn":
            return max(self.max_position_embeddings, int(self.original * self.factor))
        return self.max_position_embeddings

    @property
    def usual(self) -> int:
        """Positions when nobody asks for a length.

        For linear and dynamic the config's own: checkpoints disagree whether it is multiplied by the factor already,
        and dynamic is the plain rule up to there.
        """
        return self.max_position_embeddings if self.rule in ("linear", "dynamic") else self.longest

    @property
    def factor(self) -> float:
        """How many times longer than the original the stretched texts are."""
        return float(self.parameters.get("factor") or self.max_position_embeddings / self.original)

    def frequencies(self, num_positions: int) -> tuple[Tensor, float]:
        """Inverse frequencies [head_dim / 2] and the factor on cos and sin, for texts up to `num_positions`."""
        return RULES[self.rule](self, num_positions)

    def wavelengths(self, theta: float | None = None) -> Tensor:
        """theta ** (2i / head_dim), [head_dim / 2]."""
        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.int64).float() / self.head_dim
        return (theta or float(self.parameters["rope_theta"])) ** exponents


class Rotary:
    """The tables of one network: cos and sin of every position, shared by its layers."""

    def __init__(self, spec: RopeSpec, num_positions: int, device: torch.device) -> None:
        inverse, factor = spec.frequencies(num_positions)
        angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * inverse
        self.cos = (angles.cos() * factor).to(device)  # [positions, head_dim / 2] float32
        self.sin = (angles.sin() * factor).to(device)  # [positions, head_dim / 2] float32

    def __call__(self, q: Tensor, k: Tensor, positions: Tensor) -> None:
        """Rotate q[T, heads, D] and k[T, kv_heads, D] in place for positions[T]."""
        rotate_(q, k, positions, self.cos, self.sin)

    def nbytes(self) -> int:
        return self.cos.nbytes + self.sin.nbytes


def _default(spec: RopeSpec, num_positions: int) -> tuple[Tensor, float]:
    return 1.0 / spec.wavelengths(), 1.0


def _linear(spec: RopeSpec, num_positions: int) -> tuple[Tensor, float]:
    return 1.0 / spec.wavelengths() / spec.parameters["factor"], 1.0


def _dynamic(spec: RopeSpec, num_positions: int) -> tuple[Tensor, float]:
    factor, original, dim = spec.parameters["factor"], spec.max_position_embeddings, spec.head_dim
    stretch = (factor * max(num_positions, original) / original) - (factor - 1)
    return 1.0 / spec.wavelengths(spec.parameters["rope_theta"] * stretch ** (dim / (dim - 2))), 1.0


def _llama3(spec: RopeSpec, num_positions: int) -> tuple[Tensor, float]:
    p = spec.parameters
    low, high = p["low_freq_factor"], p["high_freq_factor"]
    inverse = 1.0 / spec.wavelengths()
    wavelength = 2 * math.pi / inverse
    long, short = spec.original / low, spec.original / high
    slowed = torch.where(wavelength > long, inverse / p["factor"], inverse)
    blend = (spec.original / wavelength - low) / (high - low)
    blended = (1 - blend) * slowed / p["factor"] + blend * slowed
    between = (wavelength >= short) & (wavelength <= long)
    return torch.where(between, blended, slowed), 1.0


def _yarn(spec: RopeSpec, num_positions: int) -> tuple[Tensor, float]:
    p, factor = spec.parameters, spec.factor
    low, high = _yarn_range(spec)
    ramp = (torch.arange(spec.head_dim // 2, dtype=torch.float32) - low) / (high - low)
    kept = 1 - ramp.clamp(0, 1)  # 1 = as trained, 0 = interpolated
    wavelengths = spec.wavelengths()
    inverse = 1.0 / (factor * wavelengths) * (1 - kept) + 1.0 / wavelengths * kept
    attention_factor = p.get("attention_factor")
    if attention_factor is None:
        attention_factor = _yarn_attention_factor(factor, p.get("mscale"), p.get("mscale_all_dim"))
    return inverse, attention_factor


def _yarn_range(spec: RopeSpec) -> tuple[float, float]:
    """The dimensions between which YaRN goes over from trained to interpolated frequencies."""
    p, dim = spec.parameters, spec.head_dim

    def dimension(rotations: float) -> float:
        return (dim * math.log(spec.original / (rotations * 2 * math.pi))) / (2 * math.log(p["rope_theta"]))

    low, high = dimension(p.get("beta_fast") or 32), dimension(p.get("beta_slow") or 1)
    if p.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    return low, high + 0.001 if low == high else high  # a range of nothing would divide by zero


def _yarn_attention_factor(factor: float, mscale: float | None, mscale_all_dim: float | None) -> float:
    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    return scale(mscale) / scale(mscale_all_dim) if mscale and mscale_all_dim else scale(1)


def _longrope(spec: RopeSpec, num_positions: int) -> tuple[Tensor, float]:
    p = spec.parameters
    factors = p["long_factor"] if num_positions > spec.original else p["short_factor"]
    attention_factor = p.get("attention_factor")
    if attention_factor is None:
        factor = spec.factor
        attention_factor = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(spec.original))
    return 1.0 / (torch.tensor(factors, dtype=torch.float32) * spec.wavelengths()), attention_factor


NEEDED = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": ("long_factor", "short_factor"),
}
RULES: dict[str, Callable[[RopeSpec, int], tuple[Tensor, float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
