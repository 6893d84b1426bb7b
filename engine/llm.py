"""LLM: the engine without a server. Prompts in, finished outputs out, in order; all of them in the same batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

from tqdm import tqdm

from ..core.errors import InvalidRequest, NotFound
from ..lora.adapter import AdapterRef
from .config import EngineConfig
from .embedding import check_dimensions, shaped
from .engine import Engine
from .folders import AdapterFolders
from .params import Pooling, SamplingParams
from .request import Chunk, Request, TokenLogprobs, Vector

Prompt = str | Sequence[int]
Message = Mapping[str, Any]


@dataclass(slots=True)
class CompletionOutput:
    """One choice. `cumulative_logprob` is the sum over its tokens when log-probabilities were asked for."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    cumulative_logprob: float | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class Timings:
    """When things happened, in seconds of `time.perf_counter`."""

    arrival: float
    tokens: list[float] = field(default_factory=list)  # of every choice, as they came
    finished: float | None = None

    @property
    def first_token(self) -> float | None:
        """When the first token came."""
        return self.tokens[0] if self.tokens else None

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from arrival to the first token."""
        return None if self.first_token is None else self.first_token - self.arrival

    @property
    def latency(self) -> float | None:
        """Seconds from arrival to the end of the last choice."""
        return None if self.finished is None else self.finished - self.arrival


@dataclass(slots=True)
class RequestOutput:
    """What became of one prompt. `prompt` is None for one that was given as token ids."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    metrics: Timings
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    num_cached_tokens: int = 0
    adapter: str | None = None
    embedding: Vector | None = None

    def take(self, chunk: Chunk) -> None:
        """News of one choice; raises what made it fail."""
        if chunk.error is not None:
            raise chunk.error
        output = self.outputs[chunk.index]
        output.text += chunk.text
        output.token_ids += chunk.token_ids
        output.finish_reason, output.stop_reason = chunk.finish_reason, chunk.stop_reason
        if chunk.logprobs is not None:
            output.logprobs = (output.logprobs or []) + chunk.logprobs
            output.cumulative_logprob = sum(one.logprob for one in output.logprobs)
        self.prompt_logprobs = self.prompt_logprobs or chunk.prompt_logprobs
        self.embedding = chunk.embedding
        self.num_cached_tokens = max(self.num_cached_tokens, chunk.num_cached)
        self.metrics.tokens += [time.perf_counter()] * len(chunk.token_ids)
        if all(one.finish_reason is not None for one in self.outputs):
            self.metrics.finished = time.perf_counter()


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """The vector of one prompt."""

    embedding: list[float]


@dataclass(frozen=True, slots=True)
class EmbeddingRequestOutput:
    """What became of one prompt that was embedded."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: EmbeddingOutput
    num_cached_tokens: int = 0
    adapter: str | None = None


class LLM:
    """One base model and the adapters in `adapters` (name -> folder). `flags` are fields of EngineConfig.

    Raises InvalidAdapter, naming every problem, for an adapter that does not fit the base.
    """

    def __init__(self, model: str, *, adapters: Mapping[str, str | Path] | None = None, **flags: Any) -> None:
        folders = AdapterFolders({name: Path(folder).expanduser() for name, folder in (adapters or {}).items()})
        self._refs = folders.refs
        self._engine = Engine(EngineConfig(model=model, **flags), adapter_folder=folders.home)
        self._ids = count()
        self._ready = Event()
        self._engine.on_ready(self._ready.set)
        folders.check(self._engine)
        for ref in self._refs.values():
            self._engine.load_adapter(ref)

    @property
    def default_params(self) -> SamplingParams:
        """What a call without `params` uses: the model's own defaults."""
        return SamplingParams(**self._engine.default_params)  # type: ignore[arg-type]

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: str | Sequence[str | None] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Continue each prompt (text, or token ids); no chat template is applied.

        `params` and `adapter` are one for all, or one for each prompt; an adapter of None is the base.
        """
        asked = _listed(prompts)
        texts = [prompt if isinstance(prompt, str) else None for prompt in asked]
        tokens = [self._engine.text.encode(p) if isinstance(p, str) else list(p) for p in asked]
        return self._run(texts, tokens, params, adapter, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: str | Sequence[str | None] | None = None,
        use_tqdm: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **template: Any,
    ) -> list[RequestOutput]:
        """Answer a conversation, or each of several; `template` goes to the chat template (`tools`, ...).

        `chat_template_kwargs` are variables of the template, by name.
        """
        told = {**template, "variables": chat_template_kwargs}
        tokens = [self._engine.text.render(conversation, **told) for conversation in _conversations(messages)]
        texts: list[str | None] = [self._engine.text.decode(ids, skip_special_tokens=False) for ids in tokens]
        return self._run(texts, tokens, params, adapter, use_tqdm)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling: Pooling | None = None,
        dimensions: int | None = None,
        normalize: bool = True,
        adapter: str | Sequence[str | None] | None = None,
        use_tqdm: bool = True,
    ) -> list[EmbeddingRequestOutput]:
        """One vector for each prompt: the hidden states of its last token, or the mean of all (`pooling="mean"`)."""
        check_dimensions(dimensions, self._engine.model.embedding_sizes)
        params = SamplingParams.embedding(pooling or self._engine.model.pooling)
        found = self.generate(prompts, params, adapter=adapter, use_tqdm=use_tqdm)
        return [_embedded(one, dimensions, normalize) for one in found]

    def close(self) -> None:
        """Free the engine's threads; nothing may be asked afterwards."""
        self._engine.close()

    def _run(
        self,
        texts: Sequence[str | None],
        tokens: Sequence[list[int]],
        params: SamplingParams | Sequence[SamplingParams] | None,
        adapter: str | Sequence[str | None] | None,
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        """All prompts through the engine together. A failure ends them all."""
        each_params = _spread(params or self.default_params, SamplingParams, len(tokens), "params")
        each_ref = [self._ref(name) for name in _spread(adapter, str, len(tokens), "adapter")]
        outputs: dict[str, RequestOutput] = {}
        try:
            for text, ids, wanted, ref in zip(texts, tokens, each_params, each_ref, strict=True):
                request = Request(str(next(self._ids)), ids, wanted, ref)
                self._engine.add(request)
                choices = [CompletionOutput(index) for index in range(wanted.n)]
                metrics = Timings(time.perf_counter())
                outputs[request.id] = RequestOutput(
                    request.id, text, ids, choices, metrics, adapter=None if ref is None else ref.name
                )
            self._finish(outputs, use_tqdm)
        except BaseException:
            self._drop(outputs)
            raise
        return list(outputs.values())

    def _finish(self, outputs: Mapping[str, RequestOutput], use_tqdm: bool) -> None:
        """Turn the engine until it has nothing to do."""
        with tqdm(total=len(outputs), desc="prompts", dynamic_ncols=True, disable=None if use_tqdm else True) as bar:
            while self._engine.has_work:
                self._ready.clear()
                for chunk in self._engine.step():
                    output = outputs[chunk.request_id]
                    output.take(chunk)
                    bar.update(output.metrics.finished is not None)
                if self._engine.stalled:
                    self._ready.wait()

    def _drop(self, outputs: Mapping[str, RequestOutput]) -> None:
        for request_id in outputs:
            self._engine.abort(request_id)
        if self._engine.has_work:
            self._engine.step()  # tells the ends of the aborted ones, to nobody

    def _ref(self, name: str | None) -> AdapterRef | None:
        if name is None:
            return None
        if name not in self._refs:
            known = ", ".join(self._refs) or "none"
            raise NotFound(f"no adapter {name!r}; there are {known}", param="adapter", code="model_not_found")
        return self._refs[name]


def _embedded(found: RequestOutput, dimensions: int | None, normalize: bool) -> EmbeddingRequestOutput:
    assert found.embedding is not None, "a prompt that is pooled ends with its vector"
    vector = EmbeddingOutput(shaped(found.embedding, dimensions=dimensions, normalize=normalize).tolist())
    told = found.request_id, found.prompt, found.prompt_token_ids
    return EmbeddingRequestOutput(*told, vector, found.num_cached_tokens, found.adapter)


def _listed(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """One prompt is a list of one."""
    single = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))
    return [prompts] if single else prompts  # type: ignore[list-item, return-value]


def _conversations(given: Any) -> Sequence[Sequence[Message]]:
    """One conversation is a list of one; raises InvalidRequest for what is none."""
    found: Sequence[Sequence[Message]] = [given] if given and _lists(given, _is_message) else given
    if not _lists(found, lambda each: _lists(each, _is_message)):
        raise InvalidRequest(
            'messages: chat takes [{"role": "user", "content": "..."}], or a list of such lists; generate takes text',
            param="messages",
        )
    return found


def _lists(given: object, fits: Callable[[object], bool]) -> bool:
    return isinstance(given, Sequence) and not isinstance(given, str) and all(map(fits, given))


def _is_message(given: object) -> bool:
    return isinstance(given, Mapping)


def _spread(given: Any, kind: type, num_prompts: int, what: str) -> Sequence[Any]:
    """One for all, or one for each."""
    if given is None or isinstance(given, kind):
        return [given] * num_prompts
    if len(given) != num_prompts:
        raise InvalidRequest(f"{what}: {len(given)} for {num_prompts} prompts; give one, or one for each", param=what)
    return list(given)
