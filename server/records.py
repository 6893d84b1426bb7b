"""Records: what each request came to, put together while it is answered, and told to whoever writes them down.

A record holds no key. It holds text only where an operator wants that, and then so much of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, cast

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..core.callers import Caller
from ..core.errors import ArilError
from ..engine.request import Chunk
from .request_ids import REQUEST_ID
from .route_names import route_of

if TYPE_CHECKING:
    from .generation import Generation

MOST_TEXT = 4096  # characters of a prompt or an answer that a record keeps
GONE = "client_gone"  # how a request ended that its client did not wait for
CANCELLED = "cancelled"  # how one ended in the background that its caller did not want any more
STATE = "record"  # its name in the state of a request


@dataclass(slots=True)
class Text:
    """The beginning of a text that comes in parts."""

    parts: list[str] = field(default_factory=list)
    room: int = MOST_TEXT

    def take(self, part: str) -> None:
        """Append what there is room for."""
        if part and self.room:
            self.parts.append(part[: self.room])
            self.room -= len(self.parts[-1])

    def __str__(self) -> str:
        return "".join(self.parts)


@dataclass(slots=True)
class Spoken:
    """What one generation has come to so far."""

    asked: Generation
    began: float = field(default_factory=time.perf_counter)
    first_token_seconds: float | None = None
    queued_seconds: float = 0.0
    reasons: dict[tuple[int, int], str] = field(default_factory=dict)  # why choices ended
    texts: dict[tuple[int, int], Text] | None = None  # of choices, where they are kept
    _prompts: dict[int, tuple[int, int]] = field(default_factory=dict)
    _outputs: dict[tuple[int, int], int] = field(default_factory=dict)

    def take(self, prompt_at: int, chunk: Chunk) -> None:
        """One chunk has come."""
        if self.first_token_seconds is None:
            self.first_token_seconds = time.perf_counter() - self.began
            self.queued_seconds = chunk.queued
        choice = prompt_at, chunk.index
        self._prompts[prompt_at] = (chunk.num_prompt, chunk.num_cached)
        self._outputs[choice] = chunk.num_output
        if chunk.finish_reason is not None:
            self.reasons[choice] = chunk.finish_reason
        if self.texts is not None:
            self.texts.setdefault(choice, Text()).take(chunk.text)

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts that were begun."""
        return sum(tokens for tokens, _ in self._prompts.values())

    @property
    def cached_tokens(self) -> int:
        """Those of them whose KV was there already."""
        return sum(cached for _, cached in self._prompts.values())

    @property
    def completion_tokens(self) -> int:
        """Of all choices."""
        return sum(self._outputs.values())

    @property
    def finish_reasons(self) -> list[str]:
        """Of the choices that ended, in their order."""
        return [self.reasons[choice] for choice in sorted(self.reasons)]


@dataclass(slots=True)
class Record:
    """One request, or what goes on of it in the background. Its middleware, its route and its generation each say what
    they know."""

    keeps_text: bool = False
    method: str = ""
    route: str | None = None  # see route_names
    client: str = ""  # its address
    headers: Headers = field(default_factory=Headers)
    began: float = field(default_factory=time.time)
    seconds: float = 0.0
    status: int | None = None  # None: it was never answered
    request_id: str | None = None
    caller: Caller | None = None
    spoken: Spoken | None = None
    prompt: Text | None = None
    error: str | None = None  # a code
    is_background: bool = False
    writers: Sequence[Writer] = ()
    _started: float = field(default_factory=time.perf_counter)

    def begin(self, asked: Generation, spell: Callable[[Sequence[int]], str]) -> Spoken:
        """A generation begins; `spell` knows the text of tokens."""
        self.spoken, self.error = Spoken(asked), GONE  # until it is known how it ends
        if self.keeps_text:
            self.spoken.texts, self.prompt = {}, Text()
            for prompt in asked.prompts:
                if self.prompt.room:
                    self.prompt.take(spell(prompt[: self.prompt.room]))
        return self.spoken

    def fail(self, error: Exception) -> None:
        """It ended with `error`."""
        self.error = error.code if isinstance(error, ArilError) else ArilError.code

    def going_on(self, route: str | None, request_id: str) -> Record:
        """The record of what goes on after this request has been answered, whose outcome is not that of the answer."""
        return Record(
            self.keeps_text,
            self.method,
            route,
            self.client,
            self.headers,
            request_id=request_id,
            caller=self.caller,
            is_background=True,
            writers=self.writers,
        )

    def end(self) -> None:
        """It is over: whoever writes it down is told."""
        self.seconds = time.perf_counter() - self._started
        for writer in self.writers:
            writer.write(self)


class Writer(Protocol):
    """Whoever writes records down."""

    def write(self, record: Record) -> None:
        """One request has ended. Called on the event loop; never waits long and never raises."""

    def close(self) -> None:
        """Nothing more will come; may wait."""


def record_of(scope: Scope) -> Record:
    """The record of the request in `scope`; one that nobody reads where none is kept."""
    return cast(Record, scope.get("state", {}).get(STATE)) or Record()


class Recorded:
    """ASGI middleware, the outermost: a record for each request, to all `writers` when its answer has ended."""

    def __init__(self, app: ASGIApp, writers: Sequence[Writer], *, keeps_text: bool = False) -> None:
        self._app = app
        self._writers = writers
        self._keeps_text = keeps_text

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client = scope.get("client")
        record = Record(self._keeps_text, scope["method"], client=client[0] if client else "", writers=self._writers)
        record.headers = Headers(scope=scope)
        scope.setdefault("state", {})[STATE] = record

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                record.request_id = Headers(raw=message["headers"]).get(REQUEST_ID)
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            record.route = route_of(scope)
            record.caller = record.caller or scope["state"].get("caller")
            record.end()
