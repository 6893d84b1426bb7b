"""How the answers to one request are heard: what of their tokens is shown, held to which form, and told apart how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..core.errors import InvalidRequest
from ..engine.grammar.thoughts import Thoughts
from ..engine.params import SamplingParams
from ..engine.request import Chunk
from ..engine.text import Text
from .deps import Face
from .formats import Formats
from .schemas import ChatRequest
from .speech.base import Delta, Listener, joined
from .tool_use import ToolUse

TAIL = 16  # tokens of a prompt in which a mark that ends it is found


@dataclass(frozen=True, slots=True)
class Hearing:
    """One request's. `thinks`: whether the answer begins amid thoughts, None when it will say so itself."""

    formats: Formats
    use: ToolUse
    thinks: bool | None
    shows_thoughts: bool

    @classmethod
    def of(cls, face: Face, body: ChatRequest, use: ToolUse, prompt: Sequence[int]) -> Hearing:
        """Raises InvalidRequest where thoughts are to be left out and nobody can tell them."""
        thoughts, shows = face.formats.thoughts, body.include_reasoning is not False
        if thoughts is None:
            if not shows:
                message = "include_reasoning: this server does not tell reasoning apart; it needs --reasoning-parser"
                raise InvalidRequest(message, param="include_reasoning")
            return cls(face.formats, use, None, shows)
        said = body.messages[-1].content if body.continue_final_message else None
        if isinstance(said, str):
            return cls(face.formats, use, thoughts.is_open_after(said, goes_on=True), shows)
        tail = face.engine.text.decode(prompt[-TAIL:], skip_special_tokens=False)
        return cls(face.formats, use, thoughts.is_open_after(tail), shows)

    def params(self, params: SamplingParams, text: Text) -> SamplingParams:
        """`params`, with what tools and thoughts add to them."""
        marks = self.formats.calls.marks if self.use.how == "auto" else ()
        marks += self.formats.thoughts.marks if self.formats.thoughts else ()
        return replace(
            params,
            structured_outputs=self.use.constraint(params.structured_outputs, self.formats.calls),
            thoughts=self._thoughts(text),
            shown_token_ids=text.special_ids(marks),
        )

    def _thoughts(self, text: Text) -> Thoughts | None:
        """What may come before the form that an answer is held to."""
        if self.formats.thoughts is None or self.thinks is False:
            return None
        begins = text.token_ids(self.formats.thoughts.begins)
        return Thoughts(self.formats.thoughts.ends, begins, are_open=self.thinks is True)

    def hearer(self) -> Hearer:
        """For one choice."""
        listener = self.use.listener(self.formats.calls)
        if self.formats.thoughts is not None:
            listener = self.formats.thoughts.listener(listener, self.thinks)
        return Hearer(listener, self.shows_thoughts, waits_for_results=self.use.how != "named")


@dataclass(slots=True)
class Hearer:
    """One choice's listener, and whether it has heard a call."""

    listener: Listener
    shows_thoughts: bool
    waits_for_results: bool  # whether calls are how such an answer ends, in OpenAI's words; not where one was named
    calls: bool = False

    def delta(self, chunk: Chunk) -> Delta:
        """What a chunk's text turned out to be."""
        delta = self.listener.feed(chunk.text)
        if chunk.finish_reason is not None:
            delta = joined((delta, self.listener.end()))
        self.calls = self.calls or bool(delta.calls)
        return delta if self.shows_thoughts else replace(delta, reasoning="")

    def finish_reason(self, chunk: Chunk) -> str | None:
        """Why the choice is over, if it is."""
        has_called = self.calls and self.waits_for_results
        return "tool_calls" if has_called and chunk.finish_reason == "stop" else chunk.finish_reason
