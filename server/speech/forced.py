"""Calls that a grammar makes the model write: a list of them, or the arguments of the one that was named."""

from __future__ import annotations

from collections.abc import Callable

from .base import CallDelta, Delta
from .format import Tools
from .json_calls import JsonCalls
from .teller import Scripted, Teller

LIST = JsonCalls({}, bare=True)


def calls_listener(tools: Tools, most: int | None, new_id: Callable[[], str]) -> Scripted:
    """Hears `[{"name": ..., "arguments": {...}}, ...]`; what is cut before its arguments is no call, and no words."""
    return Scripted(lambda tape, teller: LIST.read(tape, teller, tools), Teller(new_id, most, has_words=False))


class Arguments:
    """The Listener for which everything is arguments of one call."""

    def __init__(self, name: str, new_id: Callable[[], str]) -> None:
        self._first: CallDelta | None = CallDelta(0, new_id(), name)

    def feed(self, text: str) -> Delta:
        if not text:
            return Delta()
        first, self._first = self._first or CallDelta(0), None
        return Delta(calls=(CallDelta(0, first.id, first.name, text),))

    def end(self) -> Delta:
        return Delta()
