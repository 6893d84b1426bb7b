"""Which way the served model writes calls and thoughts: what the operator says, else what its chat template teaches."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..core.log import event, get_logger
from ..engine.text import Text
from .speech import calls, reasoning
from .speech.format import CallFormat
from .speech.thoughts import ThoughtFormat

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Formats:
    """`thoughts` is None where they are not told apart from the answer."""

    calls: CallFormat = field(default_factory=lambda: calls.REGISTRY[calls.FALLBACK])
    thoughts: ThoughtFormat | None = None

    @classmethod
    def of(cls, text: Text, tool_call_parser: str | None = None, reasoning_parser: str | None = None) -> Formats:
        """By the parsers' names; raises Unsupported for one that there is not."""
        name = tool_call_parser or calls.taught_by(text.template(with_tools=True))
        log.info(event("formats", tool_call_parser=name, reasoning_parser=reasoning_parser or "none"))
        thoughts = reasoning.REGISTRY[reasoning_parser] if reasoning_parser else None
        return cls(calls.REGISTRY[name], thoughts)

    @property
    def marks(self) -> tuple[str, ...]:
        """What has to be seen of an answer with calls and thoughts, special token or not."""
        return self.calls.marks + (self.thoughts.marks if self.thoughts else ())
