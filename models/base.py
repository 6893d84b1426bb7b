"""The skeleton of a decoder and what builds one. A family says which layers a config asks for; this says the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from ..core.registry import Registry
from ..quant.base import LinearShape, QuantFormat
from .attention.base import AttentionSpec
from .batch import ForwardBatch
from .identity import Identity
from .layers.arrival import Arrival
from .layers.attention import Attention
from .layers.embedding import Embedding, Head
from .layers.linear import Linear, LinearSpec
from .layers.norm import RMSNorm
from .layers.rotary import RopeSpec, Rotary
from .parallel import Ranks
from .wanted import Wanted


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The facts of a loaded network that others ask for."""

    architecture: str
    hidden_size: int
    num_layers: int
    vocab_size: int
    max_position: int  # no token may stand at this position or behind; the rotary tables end here
    dtype: torch.dtype
    eos_token_ids: tuple[int, ...] = ()  # of generation_config.json, else of the config; may be empty
    config: Any = None  # the transformers config object
    generation_config: Mapping[str, Any] = field(default_factory=dict)  # generation_config.json, raw; a GGUF has none
    identity: Identity = field(default_factory=Identity)


class Block(Protocol):
    """One layer of a decoder."""

    def __call__(self, x: Tensor, residual: Tensor, batch: ForwardBatch) -> Tensor:
        """x[T, hidden], not yet added to residual[T, hidden] -> what is next to add; updates residual in place."""


@dataclass(frozen=True, slots=True)
class Build:
    """What every layer is made with; collects what they want from the checkpoint while a family makes them."""

    dtype: torch.dtype
    device: torch.device
    quant: QuantFormat
    ranks: Ranks
    num_positions: int
    wanted: dict[str, Wanted] = field(default_factory=dict)  # by checkpoint name
    linears: dict[str, Linear] = field(default_factory=dict)  # by our name: layers.0.qkv
    matrices: list[Arrival] = field(default_factory=list)  # of Linears, embedding and head; a tied one stands once
    attention_specs: list[AttentionSpec] = field(default_factory=list)  # one per layer
    sizes: list[Callable[[], int]] = field(default_factory=list)  # bytes of each layer, once loaded

    def linear(
        self,
        name: str,
        in_features: int,
        parts: Sequence[tuple[str, int]],
        *,
        bias: bool = False,
        splits_inputs: bool = False,
    ) -> Linear:
        """A Linear known as `name` to adapters' slots, of checkpoint matrices `parts` (module path, outputs)."""
        spec = LinearSpec(in_features, tuple(parts), self.dtype, self.device, bias, splits_inputs)
        self.linears[name] = made = Linear(spec, self.quant, self.ranks)
        self.matrices.extend(made.arrivals)
        self._await(made)
        return made

    def norm(self, path: str, size: int, eps: float) -> RMSNorm:
        """The RMSNorm at module path `path`."""
        made = RMSNorm(path, size, eps, dtype=self.dtype, device=self.device)
        self._await(made)
        return made

    def embedding(self, path: str, vocab_size: int, size: int) -> Embedding:
        """The token embedding at `path`."""
        made = Embedding(path, LinearShape(size, vocab_size, self.dtype), self.quant, self.device)
        self.matrices.append(made.arrival)
        self._await(made)
        return made

    def head(self, path: str, vocab_size: int, size: int) -> Head:
        """The head whose weight stands at `path`; a tied one names the embedding's."""
        made = Head(path, LinearShape(size, vocab_size, self.dtype), self.quant, self.device)
        self.matrices.append(made.arrival)
        self._await(made)
        return made

    def rotary(self, spec: RopeSpec) -> Rotary:
        """The rotary tables."""
        made = Rotary(spec, self.num_positions, self.device)
        self.sizes.append(made.nbytes)
        return made

    def attention(self, path: str, spec: AttentionSpec) -> Attention:
        """The attention of the next layer, at module path `path`."""
        made = Attention(len(self.attention_specs), spec, device=self.device, scales=self.quant.kv_scales(path))
        self.attention_specs.append(spec)
        self._await(made)
        return made

    def _await(self, layer: _Loadable) -> None:
        self.wanted.update(layer.wanted())
        self.sizes.append(layer.nbytes)


class _Loadable(Protocol):
    def wanted(self) -> Iterator[tuple[str, Wanted]]: ...

    def nbytes(self) -> int: ...


class Decoder:
    """Embedding, blocks, norm, head: tokens in, logits out. It has never heard of a request."""

    def __init__(
        self,
        spec: ModelSpec,
        build: Build,
        *,
        embed: Callable[[Tensor], Tensor],
        blocks: Sequence[Block],
        norm: RMSNorm,
        head: Head,
    ) -> None:
        self.spec = spec
        self.linears = build.linears
        self.attention_specs = build.attention_specs
        self._build = build
        self._embed = embed
        self._blocks = blocks
        self._norm = norm
        self._head = head

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch) -> Tensor:
        """Logits of the tokens at `batch.sample_at`: [S, vocab] float32. K and V of all tokens go to the caches."""
        return self.head(self.hidden(batch))

    @torch.inference_mode()
    def hidden(self, batch: ForwardBatch) -> Tensor:
        """What `forward` gives to the head: the last hidden states [S, hidden], after the norm."""
        residual = self._embed(batch.tokens)
        x = torch.zeros_like(residual)
        for block in self._blocks:
            x = block(x, residual, batch)
        at = batch.sample_at  # in rising order, none twice
        if len(at) < len(x):
            x, residual = x[at], residual[at]
        return self._norm.add_(x, residual)

    @torch.inference_mode()
    def head(self, hidden: Tensor) -> Tensor:
        """Logits [S, vocab] float32 of `hidden` [S, hidden]."""
        return self._head(hidden)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights and tables, as they are kept."""
        return sum(size() for size in self._build.sizes)


class Family(Protocol):
    """Networks of one kind: one file in families/."""

    architectures: Sequence[str]  # as config.json names them

    def check(self, config: Any) -> None:
        """Raises Unsupported, naming the field, for what the config asks for and the family does not do."""

    def rope(self, config: Any) -> RopeSpec:
        """How the config's heads are rotated."""

    def build(self, spec: ModelSpec, build: Build) -> Decoder:
        """The network of `spec.config`, still without weights."""


families: Registry[Family] = Registry("model family", package=f"{__package__}.families")
