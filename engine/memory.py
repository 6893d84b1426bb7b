"""How the memory is divided: weights, adapters, working memory, and blocks of the KV cache with all the rest.

Decided once at start, logged in one line. What does not fit is refused with the bytes and the flag to turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..core.errors import DoesNotFit
from ..core.log import event, get_logger
from ..core.platform import Platform
from ..models.base import Decoder
from .config import EngineConfig
from .sizing import logits_bytes, need_of, working_bytes

log = get_logger(__name__)

CPU_SHARE = 0.4  # of the free main memory that a KV cache takes by default; other programs live there too
CPU_MOST = 4 * 1024**3


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of each share, and what they are worth."""

    weights: int
    adapters: int
    working: int
    kv: int
    num_blocks: int
    context: int  # tokens of the longest request that the model knows, or that the operator wants
    max_model_len: int  # the longest that fits, too


def divide(config: EngineConfig, platform: Platform, network: Decoder, *, probe: Callable[[], None]) -> Memory:
    """Divide what is free now that weights and adapters have their place. `probe` runs the largest step once.

    Raises DoesNotFit.
    """
    working = _working(config, platform, network, probe)
    kv, flag = _for_kv(config, platform, working)
    need = need_of(network, config, network.weight_bytes, config.adapter_memory)
    blocks = min(kv, need.kv) // need.per_block
    fits = blocks * config.block_size
    if fits < (config.max_model_len or min(need.context, config.block_size)):
        raise DoesNotFit(
            f"one request of {need.context} tokens takes {shown(need.per_request)} of KV cache, and there are "
            f"{shown(max(kv, 0))} for it (weights {shown(need.weights)}, adapters "
            f"{shown(need.adapters)}, working memory {shown(working)}): raise {flag}, or lower "
            f"--max-model-len to {max(fits, 0)} or less",
            param="max_model_len",
        )
    longest = min(need.context, fits)
    memory = Memory(need.weights, need.adapters, working, blocks * need.per_block, blocks, need.context, longest)
    log.info(_line(memory))
    if longest < need.context:
        advice = f"raise {flag}, or say that it is meant by --max-model-len {longest}"
        log.warning(event("kv_cache_cuts_context", longest_request=longest, of=need.context, advice=advice))
    return memory


def shown(num_bytes: int) -> str:
    """Bytes as people read them."""
    size, units = float(num_bytes), ["B", "KiB", "MiB", "GiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.4g} {units[0]}"


def require(platform: Platform, num_bytes: int, *, what: str, flag: str) -> None:
    """Raise DoesNotFit when the device has not that much left."""
    free = platform.free_memory()
    if num_bytes > free:
        raise DoesNotFit(f"{what} takes {shown(num_bytes)}, and {shown(free)} are free: lower {flag}")


def _working(config: EngineConfig, platform: Platform, network: Decoder, probe: Callable[[], None]) -> int:
    """Bytes that a step takes besides what lasts: counted on a CPU, measured where torch keeps what it has taken."""
    if platform.kind == "cpu":
        return working_bytes(network, config)
    before = platform.free_memory()
    probe()
    platform.synchronize()
    return logits_bytes(network, config) + max(0, before - platform.free_memory())


def _for_kv(config: EngineConfig, platform: Platform, working: int) -> tuple[int, str]:
    """Bytes for the KV cache, and the flag that turns them."""
    free = platform.free_memory()
    if config.kv_cache_memory is not None:
        require(platform, config.kv_cache_memory, what="the KV cache", flag="--kv-cache-memory")
        return config.kv_cache_memory, "--kv-cache-memory"
    if platform.kind == "cpu":
        return int(min(CPU_MOST, CPU_SHARE * max(0, free - working))), "--kv-cache-memory"
    taken = platform.memory - free  # the probe's share is part of it, as torch keeps it
    return int(platform.memory * config.gpu_memory_utilization) - taken, "--gpu-memory-utilization"


def _line(memory: Memory) -> str:
    return event(
        "memory",
        weights=shown(memory.weights),
        adapters=shown(memory.adapters),
        working=shown(memory.working),
        kv_cache=shown(memory.kv),
        blocks=memory.num_blocks,
        longest_request=memory.max_model_len,
    )
