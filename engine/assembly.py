"""How an engine is put together: model, memory, adapters, scheduler and runner, in the order that memory asks for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import torch

from ..core import pages
from ..core.errors import NotFound
from ..core.platform import Platform, detect, usable_cores
from ..core.shortage import refused_when_full
from ..lora.adapter import AdapterRef
from ..lora.fingerprint import Fingerprint
from ..lora.manager import LoraManager
from ..models.attention.base import AttentionBackend, choose
from ..models.base import Decoder
from ..models.batch import LayerCache
from ..models.loader import load_model
from ..models.source import Source, locate
from .client import ModelInfo
from .config import EngineConfig
from .defaults import sampling_defaults
from .embedding import sizes_of
from .grammar.constraints import Constraints
from .grammar.grammars import Grammars
from .graphs import Graphed, num_spare_blocks, recorder_for
from .inputs import Packer, RowState
from .kv.ahead import MemoryAhead
from .kv.tensors import allocate
from .memory import Memory, divide, require
from .params import Pooling, SamplingParams
from .passes import Eager, Pass
from .runner import Runner
from .sampler import Sampler
from .scheduler import Scheduler
from .step import NewRow, Row
from .text import Text

AdapterFolder = Callable[[AdapterRef], Path]


@dataclass(frozen=True, slots=True)
class Parts:
    """All that an engine owns."""

    model: ModelInfo
    text: Text
    default_params: dict[str, object]
    adapters: LoraManager
    scheduler: Scheduler
    runner: Runner
    memory: MemoryAhead
    grammars: Grammars


def assemble(config: EngineConfig, adapter_folder: AdapterFolder) -> Parts:
    """Load the model and divide the memory. `adapter_folder` says where the files of an adapter lie.

    Raises what any of it raises: NotFound, Unsupported, InvalidRequest, DoesNotFit.
    """
    platform = detect(config.device)
    torch.set_num_threads(config.threads or usable_cores())
    source = locate(config.model, revision=config.revision)
    with refused_when_full(f"{source.name} does not fit", "use a smaller model or a smaller --dtype", "model"):
        text = Text.load(source, chat_template=config.chat_template, trust_remote_code=config.trust_remote_code)
        network = _load(config, platform, source)
    defaults = sampling_defaults(config.generation_config, network.spec.generation_config)
    with refused_when_full("the memory of adapters does not fit", "lower --adapter-memory", "adapter_memory"):
        adapters = _adapters(config, platform, network, _fingerprint(config, source, network), adapter_folder)
    backend = choose(config.attention_backend, network.attention_specs, platform)
    make = _Maker(config, platform, network, backend, adapters)
    memory = divide(config, platform, network, probe=make.probe)
    eos = {*network.spec.eos_token_ids, *text.eos_token_ids}
    scheduler = Scheduler(
        config,
        adapters,
        num_blocks=memory.num_blocks,
        max_model_len=memory.max_model_len,
        eos_token_ids=eos,
        spell=text.detokenizer,
    )
    model = ModelInfo(
        id=config.served_model_name or source.name,
        source=os.path.realpath(config.model) if os.path.exists(config.model) else config.model,
        max_model_len=memory.max_model_len,
        context=memory.context,
        vocab_size=network.spec.vocab_size,
        dtype=str(network.spec.dtype).removeprefix("torch."),
        created=int(time.time()),
        pooling=cast(Pooling, config.pooling_type),
        embedding_sizes=sizes_of(network.spec.config, network.spec.hidden_size),
    )
    grammars = Grammars(config.grammar_backend, lambda: text.vocabulary(model.vocab_size, sorted(eos)))
    with refused_when_full("the KV cache does not fit", "lower --kv-cache-memory", "kv_cache_memory"):
        caches = make.caches(memory)
        sampler = Sampler(sorted(eos), Constraints(grammars.found, model.vocab_size, sorted(eos), text.token_bytes))
        runner = make.runner(memory, caches, sampler)
    ahead = MemoryAhead(caches if platform.kind == "cpu" and pages.CAN_FETCH else ())
    return Parts(model, text, defaults, adapters, scheduler, runner, ahead, grammars)


def _load(config: EngineConfig, platform: Platform, source: Source) -> Decoder:
    return load_model(
        source,
        dtype=config.dtype,
        device=platform.device,
        max_model_len=config.max_model_len,
        trust_remote_code=config.trust_remote_code,
        attention_backend=config.attention_backend,
        quantization=config.quantization,
    )


def _adapters(
    config: EngineConfig, platform: Platform, network: Decoder, base: Fingerprint, folder: AdapterFolder
) -> LoraManager:
    require(platform, config.adapter_memory, what="the memory of adapters", flag="--adapter-memory")
    return LoraManager(
        folder,
        network.linears,
        arena_bytes=config.adapter_memory,
        max_slots=config.max_adapters,
        cache_bytes=config.adapter_cache_memory,
        dtype=network.spec.dtype,
        device=platform.device,
        base=base,
    )


def _fingerprint(config: EngineConfig, source: Source, network: Decoder) -> Fingerprint:
    """What a revision records of the base that it was checked on."""
    spec, attention = network.spec, network.attention_specs[0]
    return Fingerprint(
        config.served_model_name or source.name,
        (source.name, *spec.identity.names),
        {
            "architecture": spec.architecture,
            "layers": spec.num_layers,
            "hidden_size": spec.hidden_size,
            "heads": attention.heads,
            "kv_heads": attention.kv_heads,
            "vocabulary": spec.vocab_size,
            "config": spec.identity.config,
        },
    )


def nowhere(ref: AdapterRef) -> Path:
    """The place of adapters in an engine that has none."""
    raise NotFound(f"this engine was started without a place for adapters; {ref.name!r} cannot be found")


@dataclass(frozen=True, slots=True)
class _Maker:
    """Makes passes and runner from what is already there."""

    config: EngineConfig
    platform: Platform
    network: Decoder
    backend: AttentionBackend
    adapters: LoraManager

    def probe(self) -> None:
        """Run the largest step once, over a few blocks that all its rows share."""
        num_rows = min(self.config.max_num_seqs, self.config.max_num_batched_tokens)
        length = min(self.config.max_num_batched_tokens // num_rows, self.network.spec.max_position)
        eager = self._eager(self._allocated(-(-length // self.config.block_size)), length)
        new = partial(NewRow, token_ids=[0] * length, num_prompt=length, params=SamplingParams(), index=0, slot=0)
        blocks = tuple(range(-(-length // self.config.block_size)))
        states = [RowState(new(id=str(at), blocks=blocks)) for at in range(num_rows)]
        eager.run([(Row(state.id, 0, length, samples=True), state) for state in states])

    def caches(self, memory: Memory) -> list[LayerCache]:
        """The KV cache; the spare blocks are its last."""
        return self._allocated(memory.num_blocks + num_spare_blocks(self.config.block_size))

    def runner(self, memory: Memory, caches: Sequence[LayerCache], sampler: Sampler) -> Runner:
        """The runner over all of the KV cache."""
        spare = range(memory.num_blocks, memory.num_blocks + num_spare_blocks(self.config.block_size))
        eager = self._eager(caches, memory.max_model_len)
        pass_: Pass = eager
        if not self.config.enforce_eager:
            pass_ = Graphed(
                eager,
                recorder_for(self.platform, self.config.max_num_seqs),
                max_model_len=memory.max_model_len,
                spare_blocks=spare,
                block_size=self.config.block_size,
            )
        return Runner(pass_, sampler, caches=caches, adapters=self.adapters)

    def _allocated(self, num_blocks: int) -> list[LayerCache]:
        return allocate(self.network.attention_specs, num_blocks, self.config.block_size, self.platform.device)

    def _eager(self, caches: Sequence[LayerCache], max_len: int) -> Eager:
        block_size = self.config.block_size
        packer = Packer(
            max_tokens=self.config.max_num_batched_tokens,
            max_rows=self.config.max_num_seqs,
            max_blocks=max(-(-max_len // block_size), num_spare_blocks(block_size)),
            block_size=block_size,
            device=self.platform.device,
        )
        return Eager(self.network, self.backend, caches, packer, self.adapters)
