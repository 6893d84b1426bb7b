"""How much memory a network needs: the arithmetic by which memory.py divides a device, and `aril inspect` foretells.

All of it follows from shapes, so it is the same for a network with weights and for one without.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..lora.image import image_bytes
from ..models.base import Decoder
from .config import EngineConfig
from .kv.tensors import block_bytes

LOGITS_COPIES = 4  # of a step's logits that sampling holds at once: logits, probabilities, sorted, summed up
# What a driver keeps for itself on a GPU before anything is loaded. An estimate; only a device can say it exactly.
DRIVER_BYTES = 512 * 1024**2


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes of each share of a network at one length of requests and one number of them."""

    weights: int
    adapters: int
    working: int  # what a step takes and gives back
    per_block: int  # of the KV cache, over all layers
    block_size: int  # tokens
    context: int  # tokens of the longest request
    concurrency: int

    @property
    def per_request(self) -> int:
        """KV bytes of one request of `context` tokens."""
        return num_blocks(self.context, self.block_size) * self.per_block

    @property
    def kv(self) -> int:
        """KV bytes of all requests, none of which shares a beginning with another."""
        return self.concurrency * self.per_request

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.adapters + self.working + self.kv


@dataclass(frozen=True, slots=True)
class Fit:
    """What a device with `usable` bytes makes of a Need."""

    usable: int
    left: int  # for the KV cache; below 0 when not even the weights have room
    fits: bool
    most_requests: int  # of the Need's context
    longest_request: int  # tokens, when it is alone


def need_of(network: Decoder, config: EngineConfig, weights: int, adapters: int) -> Need:
    """The Need of requests as `config` has them; `weights` and `adapters` are bytes."""
    return Need(
        weights,
        adapters,
        working_bytes(network, config),
        block_bytes(network.attention_specs, config.block_size),
        config.block_size,
        config.max_model_len or network.spec.max_position,
        config.max_num_seqs,
    )


def fit(need: Need, usable: int) -> Fit:
    """How far `usable` bytes go."""
    left = usable - need.weights - need.adapters - need.working
    blocks = max(0, left // need.per_block)
    return Fit(usable, left, need.kv <= left, max(0, left // need.per_request), blocks * need.block_size)


def usable_bytes(memory: int, share: float) -> int:
    """Of a GPU of `memory` bytes, what weights, adapters, working memory and KV cache may fill together."""
    return int(memory * share) - DRIVER_BYTES


def num_blocks(num_tokens: int, block_size: int) -> int:
    """Blocks of the KV cache that one request of that length holds."""
    return -(-num_tokens // block_size)


def logits_bytes(network: Decoder, config: EngineConfig) -> int:
    """What sampling holds for a full step."""
    return LOGITS_COPIES * config.max_num_seqs * network.spec.vocab_size * 4


def working_bytes(network: Decoder, config: EngineConfig) -> int:
    """Bytes that the largest step takes besides what lasts."""
    widest = max(linear.in_features + linear.out_features for linear in network.linears.values())
    activations = config.max_num_batched_tokens * (2 * widest + 4 * network.spec.hidden_size) * 4
    return logits_bytes(network, config) + activations


def adapter_bytes(network: Decoder, rank: int) -> int:
    """Bytes of an adapter of `rank` on every Linear, as it lies in device memory."""
    return image_bytes(_modules(network), rank, network.spec.dtype)


def _modules(network: Decoder) -> Iterable[tuple[int, int]]:
    return ((linear.in_features, part.size) for linear in network.linears.values() for part in linear.parts)
