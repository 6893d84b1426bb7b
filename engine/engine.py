"""Engine: requests in, chunks out. Synchronous, one thread, no asyncio; it wires what others decide.

It owns the text of every running request and the list of adapters that may be used. All state of scheduling is the
scheduler's, all state of the device the runner's.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ..core.errors import EngineDead, InvalidRequest
from ..core.log import event, get_logger
from ..core.metrics import histogram
from ..lora.adapter import AdapterRef
from ..lora.validate import AdapterSummary, TargetSpec, validate
from .assembly import AdapterFolder, assemble, nowhere
from .client import EngineStatus
from .config import EngineConfig
from .detokenizer import Detokenizer
from .params import MAX_SEED, SamplingParams
from .request import Chunk, Request
from .residents import Residents

STEP_SECONDS = histogram("step_seconds", "Time of one step of the engine")
FIRST_TOKEN_SECONDS = histogram("time_to_first_token_seconds", "From a request's arrival to its first token")
TOKEN_SECONDS = histogram("time_per_output_token_seconds", "Mean time between the tokens of a choice, by choice")
REQUEST_SECONDS = histogram("request_seconds", "From a request's arrival to the end of each of its choices")

log = get_logger(__name__)


@dataclass(slots=True)
class _Choice:
    """The text of one choice so far, and when it began to come."""

    detokenizer: Detokenizer
    first_token: float | None = None


@dataclass(slots=True)
class _Live:
    """A request that has not ended: its choices by index."""

    request: Request
    arrival: float = field(default_factory=time.perf_counter)
    choices: dict[int, _Choice] = field(default_factory=dict)


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
        self._residents = Residents(parts.adapters)
        self._seeds = random.Random(config.seed)
        self._live: dict[str, _Live] = {}
        self._failure: Exception | None = None
        self._stalled = False

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
        """Take in a request with all of its choices. Raises InvalidRequest, Conflict or EngineDead."""
        self._require_life()
        self._check(request)
        if request.adapter is not None:
            self._residents.enter(request.adapter)
        try:
            request.params = self._seeded(request.params)
            self._scheduler.add(request)
        except Exception:
            self._leave(request)
            raise
        live = self._live[request.id] = _Live(request)
        for index in range(request.params.n):
            live.choices[index] = _Choice(self.text.detokenizer(request.params, request.prompt))

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
        """Let requests use `ref` (see `check_adapter`); its bytes are read when first needed, at once when pinned."""
        self._require_life()
        self._residents.welcome(ref, pinned=pinned)

    def unload_adapter(self, ref: AdapterRef, on_free: Callable[[], None]) -> None:
        """Refuse new requests for `ref`; free it and call `on_free` when the last one has ended, which may be now."""
        self._residents.retire(ref, on_free)

    def check_adapter(self, ref: AdapterRef) -> AdapterSummary:
        """Whether its files fit this base; any thread may ask. Raises NotFound or InvalidAdapter with every problem."""
        return validate(self._folder(ref), self.targets)

    def status(self) -> EngineStatus:
        """How things stand; any thread may ask."""
        return EngineStatus(
            alive=self._failure is None,
            running=self._scheduler.num_running,
            waiting=self._scheduler.num_waiting,
            total_blocks=self._scheduler.num_blocks,
            free_blocks=self._scheduler.num_free_blocks,
            loaded_adapters=self._residents.refs,
            adapter_slots_used=self._adapters.num_slots_used,
            adapter_slots_busy=self._adapters.num_slots_busy,
            adapter_bytes_used=self._adapters.used_bytes,
            adapter_bytes_total=self._adapters.total_bytes,
        )

    def close(self) -> None:
        """End the background threads. Nothing may be asked afterwards."""
        self._failure = self._failure or EngineDead("the engine was closed")
        self._adapters.close()

    def _step(self) -> list[Chunk]:
        step = self._scheduler.schedule()
        chunks = self._scheduler.update(step, self._runner.run(step))
        self._stalled = not step.rows and not chunks
        for chunk in chunks:
            self._spell(chunk)
        return chunks

    def _spell(self, chunk: Chunk) -> None:
        """Give a chunk its text; end its choice at a stop string, which only the text can tell."""
        live = self._live[chunk.request_id]
        choice = live.choices[chunk.index]
        self._time_first(live, choice, chunk)
        chunk.text = choice.detokenizer.push(_shown(chunk, live.request.params))
        if choice.detokenizer.stop is not None:
            if chunk.finish_reason is None:
                self._scheduler.finish(chunk.request_id, "stop", stop_reason=choice.detokenizer.stop, index=chunk.index)
            chunk.finish_reason, chunk.stop_reason = "stop", choice.detokenizer.stop
        if chunk.finish_reason is not None:
            chunk.text += choice.detokenizer.finish()
            self._end(live, chunk)

    def _end(self, live: _Live, chunk: Chunk) -> None:
        now = time.perf_counter()
        choice = live.choices.pop(chunk.index)
        REQUEST_SECONDS.observe(now - live.arrival)
        if choice.first_token is not None and chunk.num_output > 1:
            TOKEN_SECONDS.observe((now - choice.first_token) / (chunk.num_output - 1))
        if not live.choices:
            del self._live[chunk.request_id]
            self._leave(live.request)

    def _time_first(self, live: _Live, choice: _Choice, chunk: Chunk) -> None:
        if choice.first_token is None and chunk.token_ids:
            choice.first_token = time.perf_counter()
            FIRST_TOKEN_SECONDS.observe(choice.first_token - live.arrival)

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
        ):
            if wrong := [token for token in ids if not 0 <= token < vocab]:
                raise InvalidRequest(
                    f"{param}: token {wrong[0]} is outside the vocabulary of {vocab} tokens", param=param
                )

    def _seeded(self, params: SamplingParams) -> SamplingParams:
        if params.seed is not None or params.greedy:
            return params
        return dataclasses.replace(params, seed=self._seeds.randrange(MAX_SEED))

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
    hidden = chunk.finish_reason == "stop" and not params.include_stop_str_in_output
    return chunk.token_ids[:-1] if hidden else chunk.token_ids
