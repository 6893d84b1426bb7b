"""What a model that is not loaded would need, and which devices have it. Field names are the keys of the JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..models.base import Decoder
from .config import EngineConfig
from .devices import Device
from .sizing import Need, adapter_bytes, fit, need_of


@dataclass(frozen=True, slots=True)
class DeviceForecast:
    """One device. Bytes; requests are of the forecast's context, and none shares a beginning with another."""

    name: str
    memory: int
    usable: int
    left: int  # for the KV cache, once weights, adapters and working memory are there
    fits: bool
    most_requests: int
    longest_request: int  # tokens of one that is alone; no more than the model knows
    source: str | None  # of a named card's figure


@dataclass(frozen=True, slots=True)
class Forecast:
    """Bytes of each share."""

    context: int  # tokens
    concurrency: int
    num_adapters: int
    adapter_rank: int
    weights: int
    adapters: int
    working: int
    kv_per_request: int
    kv: int
    total: int
    devices: tuple[DeviceForecast, ...]


def foretell(
    network: Decoder,
    config: EngineConfig,
    *,
    weights: int,
    num_adapters: int,
    rank: int,
    longest: int | None,
    devices: Sequence[Device],
) -> Forecast:
    """The needs of `network` under `config`. Its weights take `weights` bytes, and it knows `longest` positions."""
    need = need_of(network, config, weights, num_adapters * adapter_bytes(network, rank))
    return Forecast(
        need.context,
        need.concurrency,
        num_adapters,
        rank,
        need.weights,
        need.adapters,
        need.working,
        need.per_request,
        need.kv,
        need.total,
        tuple(_forecast(device, need, longest) for device in devices),
    )


def _forecast(device: Device, need: Need, longest: int | None) -> DeviceForecast:
    found = fit(need, device.usable)
    return DeviceForecast(
        device.name,
        device.memory,
        device.usable,
        found.left,
        found.fits,
        found.most_requests,
        min(found.longest_request, longest or found.longest_request),
        device.source,
    )
