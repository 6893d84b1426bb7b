"""Small engines over tiny models, and what comes out of them."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from aril.core.errors import NotFound
from aril.engine.config import EngineConfig
from aril.engine.engine import Engine
from aril.engine.params import SamplingParams
from aril.engine.request import Chunk, Request, TokenLogprobs, Vector
from aril.lora.adapter import AdapterRef
from torch import Tensor


def make_config(model: Path, **flags: object) -> EngineConfig:
    """A float32 engine on the CPU that needs little; `flags` win."""
    small = {"kv_cache_memory": "4MiB", "adapter_memory": "4MiB", "max_num_seqs": 16, "max_num_batched_tokens": 64}
    return EngineConfig(model=str(model), **{"dtype": "float32", "device": "cpu", "threads": 1, **small, **flags})


def make_engine(model: Path, adapters: dict[AdapterRef, Path] | None = None, **flags: object) -> Engine:
    """An engine that has been told of `adapters`."""
    places = dict(adapters or {})

    def folder(ref: AdapterRef) -> Path:
        if ref not in places:
            raise NotFound(f"no adapter {ref.name!r}")
        return places[ref]

    engine = Engine(make_config(model, **flags), adapter_folder=folder)
    for ref in places:
        engine.load_adapter(ref)
    return engine


def greedy(max_tokens: int = 12, **fields: object) -> SamplingParams:
    """The most likely tokens, and none of them the end."""
    return SamplingParams(**{"temperature": 0.0, "max_tokens": max_tokens, "ignore_eos": True, **fields})


@dataclasses.dataclass
class Told:
    """All that was told about one choice."""

    token_ids: list[int] = dataclasses.field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprobs] = dataclasses.field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    prompt_logits: list[Tensor] | None = None
    embedding: Vector | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: Exception | None = None
    num_cached: int = 0

    def take(self, chunk: Chunk) -> None:
        """One more chunk."""
        assert self.finish_reason is None, "nothing may follow the last chunk"
        self.token_ids += chunk.token_ids
        self.text += chunk.text
        self.logprobs += chunk.logprobs or []
        self.prompt_logprobs = self.prompt_logprobs or chunk.prompt_logprobs
        self.prompt_logits = self.prompt_logits or chunk.prompt_logits
        self.embedding = chunk.embedding
        self.finish_reason, self.stop_reason, self.error = chunk.finish_reason, chunk.stop_reason, chunk.error
        self.num_cached = chunk.num_cached


def drain(engine: Engine) -> dict[tuple[str, int], Told]:
    """Step until nothing is left to do; what was told, by request and choice."""
    told: dict[tuple[str, int], Told] = defaultdict(Told)
    while engine.has_work:
        for chunk in engine.step():
            told[chunk.request_id, chunk.index].take(chunk)
    return told


def run(engine: Engine, requests: Iterable[Request]) -> list[Told]:
    """The first choice of each request, all in the same batches."""
    ids = []
    for request in requests:
        engine.add(request)
        ids.append(request.id)
    told = drain(engine)
    return [told[id_, 0] for id_ in ids]


def ask(
    prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams], **fields: object
) -> list[Request]:
    """A request for each prompt."""
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else params
    return [Request(f"r{at}", list(p), one, **fields) for at, (p, one) in enumerate(zip(prompts, each, strict=True))]
