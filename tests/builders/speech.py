"""Texts as a listener hears them: whole, in two at every place, letter by letter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from aril.server.speech.base import Call, Heard, Listener

Said = tuple[str, str, list[tuple[str, str]]]  # reasoning, content, (name, arguments) of each call


def heard(listener: Listener, pieces: Iterable[str]) -> Heard:
    """All that `pieces` say."""
    found = Heard()
    for piece in pieces:
        found.take(listener.feed(piece))
    found.take(listener.end())
    return found


def said(found: Heard) -> Said:
    """Without the ids, which differ every time."""
    return found.reasoning, found.content, [(call.name, call.arguments) for call in found.calls]


def cuts(text: str) -> Iterator[list[str]]:
    """The whole, in two at every place, and letter by letter."""
    yield [text]
    yield from ([text[:at], text[at:]] for at in range(1, len(text)))
    yield list(text)


def said_however_cut(make: Callable[[], Listener], text: str) -> Said:
    """What `text` says, which must not depend on how it comes."""
    whole = said(heard(make(), [text]))
    for pieces in cuts(text):
        assert said(heard(make(), pieces)) == whole, pieces
    return whole


def ids(calls: Iterable[Call]) -> list[str]:
    """Of all calls."""
    return [call.id for call in calls]
