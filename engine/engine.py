"""Engine: requests in, chunks out. Synchronous, one thread, no asyncio; it wires what others decide.

It owns the text of every running request and the list of adapters that may be used. All state of scheduling is the
scheduler's, all state of the device the runner's.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ..core.errors import Conflict, EngineDead, InvalidRequest
from ..core.log import event, get_logger
from ..core.metrics import histogram
from ..lora.adapter import AdapterRef
from ..lora.validate import AdapterSummary, TargetSpec, validate
from .assembly import AdapterFolder, assemble, nowhere
from .client import EngineStatus
from .clocks import Clock, clock_of
from .config import EngineConfig
from .detokenizer import Detokenizer
from .grammar.base import Grammar
from .params import MAX_SEED, SamplingParams
from .request import Chunk, Request
from .residents import Residents

STEP_SECONDS = histogram("step_seconds", "Time of one step of the engine")
log = get_logger(__name__)


@dataclass(slots=True)
class _Live:
    """A request that has not ended: the text of its choices so far, by index."""

    request: Request
    clock: Clock
    grammar: Grammar | None  # held for as long as a row may need a matcher of it
    choices: dict[int, Detokenizer] = field(default_factory=dict)


class Engine:
    """One base model with its adapters. Every method belongs to one thread, but for `status`."""

    def __init__(self, config: EngineConfig, *, adapter_folder: AdapterFolder | None = None) -> None:
        """Load everything; `adapter_folder` says where the files of an adapter lie (none can be loaded without)."""
        self._folder = adapter_folder or nowhere
        parts = assemble(config, self._folder)
        self.model = parts.model
        self.text = parts.text
        self.default_params = parts.default_params
        self._adapters = parts.adapters
        self._scheduler = parts.scheduler
        self._runner = parts.runner
        self._memory = parts.memory
        self.grammars = parts.grammars
        self._residents = Residents(parts.adapters)
        self._seeds = random.Random(config.seed)
        self._live: dict[str, _Live] = {}
        self._failure: Exception | None = None
        self._stalled = False
        self._memory.keep(0)

    @property
    def targets(self) -> TargetSpec:
        """What an adapter must fit."""
        return self._adapters.targets

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do."""
        return self._failure is None and self._scheduler.has_work

    @property
    def stalled(self) -> bool:
        """Whether the last step could run nothing: all that wait, wait for an adapter to be read (see `on_ready`)."""
        return self._stalled and self.has_work

    def on_ready(self, callback: Callable[[], None]) -> None:
        """Call `callback`, on another thread, whenever an adapter has been read and a stalled engine may go on."""
        self._adapters.on_ready(callback)

    def add(self, request: Request) -> None:
        """Take in a request with all of its choices. Raises InvalidRequest, EngineDead, or Conflict before the end of
        the last request with its id has been told.
        """
        self._require_life()
        if self.knows(request.id):
            raise Conflict(f"a request with the id {request.id!r} has not ended yet", param="request_id")
        self._check(request)
        asked = request.params.structured_outputs
        grammar = None if asked is None else self.grammars.of(asked).result()
        if request.adapter is not None:
            self._residents.enter(request.adapter)
        try:
            request.params = self._spelled(self._seeded(request.params))
            self._scheduler.add(request)
        except BaseException:
            self._leave(request)
            raise
        live = self._live[request.id] = _Live(request, clock_of(request), grammar)
        for index in range(request.params.n):
            live.choices[index] = self.text.detokenizer(request.params, request.prompt)

    def knows(self, request_id: str) -> bool:
        """Whether a request with that id runs or waits, or its end is still to be told."""
        return request_id in self._live

    def abort(self, request_id: str) -> None:
        """End a request and free what it holds; the next step tells its end. Unknown ids have ended already."""
        self._scheduler.abort(request_id)

    def step(self) -> list[Chunk]:
        """Compute one step of everything that runs; what clients should hear.

        A failure of the whole step ends every request with an error, and the engine with them.
        """
        self._require_life()
        with STEP_SECONDS.time():
            try:
                return self._step()
            except Exception as error:
                return self._die(error)

    def load_adapter(self, ref: AdapterRef, *, pinned: bool = False) -> None:
        """Let requests use `ref` (see `find_adapter`); its bytes are read when first needed, at once when pinned."""
        self._require_life()
        self._residents.welcome(ref, pinned=pinned)

    def unload_adapter(self, ref: AdapterRef, on_free: Callable[[], None]) -> None:
        """Refuse new requests for `ref`; free it and call `on_free` when the last one has ended, which may be now."""
        self._residents.retire(ref, on_free)

    def find_adapter(self, ref: AdapterRef) -> Path:
        """Where its files lie; any thread may ask. Raises NotFound."""
        return self._folder(ref)

    def check_adapter(self, ref: AdapterRef) -> AdapterSummary:
        """Whether its files fit this base; any thread may ask. Raises NotFound or InvalidAdapter with every problem."""
        return validate(self._folder(ref), self.targets)

    def status(self) -> EngineStatus:
        """How things stand; any thread may ask."""
        return EngineStatus(
            alive=self._failure is None,
            running=self._scheduler.num_running,
            waiting=self._scheduler.num_waiting,
            running_adapters=self._scheduler.running_adapters,
            waiting_adapters=self._scheduler.waiting_adapters,
            total_blocks=self._scheduler.pool.num_blocks,
            free_blocks=self._scheduler.pool.num_free,
            loaded_adapters=self._residents.refs,
            adapter_slots=self._adapters.num_slots,
            adapter_slots_used=self._adapters.num_slots_used,
            adapter_slots_busy=self._adapters.num_slots_busy,
            adapter_bytes_used=self._adapters.used_bytes,
            adapter_bytes_total=self._adapters.total_bytes,
        )

    def close(self) -> None:
        """End the background threads. Nothing may be asked afterwards."""
        self._failure = self._failure or EngineDead("the engine was closed")
        self._adapters.close()
        self._memory.close()
        self.grammars.close()

    def _step(self) -> list[Chunk]:
        step = self._scheduler.schedule()
        self._memory.keep(self._scheduler.pool.num_used)
        for row in step.new:
            if (live := self._live.get(row.id)) is not None:
                live.clock.start()
        chunks = self._scheduler.update(step, self._runner.run(step))
        self._stalled = not step.rows and not chunks
        for chunk in chunks:
            self._spell(chunk)
        if not self._live:
            self._memory.rest(self._scheduler.pool.num_used)
        return chunks

    def _spell(self, chunk: Chunk) -> None:
        """Give a chunk its text; end its choice at a stop string, which only the text can tell."""
        live = self._live[chunk.request_id]
        text = live.choices[chunk.index]
        if chunk.token_ids:
            live.clock.count(chunk)
        chunk.queued = live.clock.queued
        chunk.text = text.push(_shown(chunk, live.request.params))
        if text.stop is not None:
            if chunk.finish_reason is None:
                self._scheduler.finish(chunk.request_id, "stop", stop_reason=text.stop, index=chunk.index)
            chunk.finish_reason, chunk.stop_reason = "stop", text.stop
        if chunk.finish_reason is not None:
            chunk.text += text.finish()
            self._end(live, chunk)

    def _end(self, live: _Live, chunk: Chunk) -> None:
        del live.choices[chunk.index]
        live.clock.end(chunk)
        if not live.choices:
            del self._live[chunk.request_id]
            self._leave(live.request)

    def _leave(self, request: Request) -> None:
        if request.adapter is not None:
            self._residents.leave(request.adapter)

    def _check(self, request: Request) -> None:
        """Every token that a request names is one of the model's."""
        vocab = self.model.vocab_size
        params = request.params
        for param, ids in (
            ("prompt", request.prompt),
            ("logit_bias", params.logit_bias),
            ("stop_token_ids", params.stop_token_ids),
            ("allowed_token_ids", params.allowed_token_ids or ()),
        ):
            if wrong := [token for token in ids if not 0 <= token < vocab]:
                raise InvalidRequest(
                    f"{param}: token {wrong[0]} is outside the vocabulary of {vocab} tokens", param=param
                )

    def _seeded(self, params: SamplingParams) -> SamplingParams:
        if params.seed is not None or params.greedy:
            return params
        return dataclasses.replace(params, seed=self._seeds.randrange(MAX_SEED))

    def _spelled(self, params: SamplingParams) -> SamplingParams:
        """With its bad words as token ids; those that the model has no tokens for cannot come anyway."""
        if not (params.bad_words or params.bad_words_ids):
            return params
        params, vocab = self.text.spelled(params), self.model.vocab_size
        possible = tuple(ids for ids in params.bad_words_ids if all(0 <= token < vocab for token in ids))
        return dataclasses.replace(params, bad_words_ids=possible)

    def _require_life(self) -> None:
        if self._failure is not None:
            raise EngineDead(f"the engine has stopped: {self._failure}")

    def _die(self, error: Exception) -> list[Chunk]:
        """The last words to every client."""
        log.critical(event("engine_died", error=repr(error), requests=len(self._live)), exc_info=error)
        self._failure = error
        dead = EngineDead(f"the engine has stopped: {error}")
        ended, self._live = list(self._live.values()), {}
        for live in ended:
            self._leave(live.request)
        return [
            Chunk(live.request.id, index, [], finish_reason="error", num_prompt=len(live.request.prompt), error=dead)
            for live in ended
            for index in live.choices
        ]


def _shown(chunk: Chunk, params: SamplingParams) -> list[int]:
    """The tokens whose text a client sees: a token that ended the choice is not one of them, unless asked for."""
    by_token = chunk.finish_reason == "stop" and not isinstance(chunk.stop_reason, str)
    hidden = by_token and not params.include_stop_str_in_output
    return chunk.token_ids[:-1] if hidden else chunk.token_ids
