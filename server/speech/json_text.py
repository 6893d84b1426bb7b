"""JSON that comes in pieces: each value is told as far as it is certain, and what breaks it is found at once."""

from __future__ import annotations

import json
import re

from .tape import Reading, Sink, Tape

PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
WORD = re.compile(r"[-+.0-9A-Za-z]+")
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
HEX = "0123456789abcdefABCDEF"
LITERALS = ("true", "false", "null")
CLOSERS = {"{": "}", "[": "]"}


def value(tape: Tape, sink: Sink) -> Reading[bool]:
    """Tell `sink` one value, piece by piece; False where the text stops being one, with what has been read told.

    Control characters in strings, which models write and JSON forbids, are told as their escapes.
    """
    open_: list[str] = []  # the closers of the objects and lists that have begun
    while (yield from _begin(tape, sink, open_)):
        if not (yield from _close(tape, sink, open_)):
            return False
        if not open_:
            return True
        if open_[-1] == "}" and not (yield from key(tape, sink)):
            return False
    return False


def key(tape: Tape, sink: Sink) -> Reading[bool]:
    """Tell `sink` a name and its colon, and the white space around them."""
    sink((yield from tape.blanks()))
    if not (yield from string(tape, sink)):
        return False
    sink((yield from tape.blanks()))
    if (yield from tape.peek()) != ":":
        return False
    sink(tape.next())
    return True


def string(tape: Tape, sink: Sink) -> Reading[bool]:
    """Tell `sink` a string with its quotes."""
    if (yield from tape.peek()) != '"':
        return False
    sink(tape.next())
    while True:
        char = yield from tape.peek()
        if char == "":
            return False
        if char == "\\":
            if not (yield from _escape(tape, sink)):
                return False
        elif char == '"':
            sink(tape.next())
            return True
        else:
            sink(tape.run(PLAIN) or json.dumps(tape.next())[1:-1])


def captured(tape: Tape) -> Reading[str | None]:
    """One whole value as text; None where there is none."""
    parts: list[str] = []
    whole = yield from value(tape, parts.append)
    return "".join(parts).strip() if whole else None


def _begin(tape: Tape, sink: Sink, open_: list[str]) -> Reading[bool]:
    """A value that has no parts, or the beginning of one up to its first that has none, or its end if it is empty."""
    while True:
        sink((yield from tape.blanks()))
        char = yield from tape.peek()
        if char == '"':
            return (yield from string(tape, sink))
        if char not in CLOSERS:
            return (yield from _word(tape, sink))
        sink(tape.next())
        sink((yield from tape.blanks()))
        if (yield from tape.peek()) == CLOSERS[char]:
            sink(tape.next())
            return True
        open_.append(CLOSERS[char])
        if char == "{" and not (yield from key(tape, sink)):
            return False


def _close(tape: Tape, sink: Sink, open_: list[str]) -> Reading[bool]:
    """All that ends here, up to the comma before the next value, if there is one."""
    while open_:
        sink((yield from tape.blanks()))
        char = yield from tape.peek()
        if char not in (",", open_[-1]):
            return False
        sink(tape.next())
        if char == ",":
            return True
        open_.pop()
    return True


def _escape(tape: Tape, sink: Sink) -> Reading[bool]:
    """A backslash and what belongs to it, told together."""
    found = tape.next()
    char = yield from tape.peek()
    is_known = char in tuple('"\\/bfnrtu')
    if is_known:
        found += tape.next()
    while is_known and char == "u" and len(found) < 6:
        is_known = (yield from tape.peek()) in tuple(HEX)
        if is_known:
            found += tape.next()
    sink(found)
    return is_known


def _word(tape: Tape, sink: Sink) -> Reading[bool]:
    """A number or true, false, null: told when it is over."""
    found = ""
    while (yield from tape.peek()) and (more := tape.run(WORD)):
        found += more
    sink(found)
    return found in LITERALS or NUMBER.fullmatch(found) is not None


def arguments(given: str) -> str | None:
    """What a model wrote as arguments, as an object: it may be null, or a string that holds one; None for others."""
    if given in ("null", '""'):
        return "{}"
    if given.startswith('"'):
        given = sound(json.loads(given))
    return given if given.lstrip().startswith("{") else None


def written(found: object) -> str:
    """A value as JSON; raises ValueError for what JSON cannot say."""
    return sound(json.dumps(found, ensure_ascii=False, allow_nan=False))


def sound(text: str) -> str:
    """`text` without halves of characters, which JSON can escape and UTF-8 cannot say."""
    return text.encode("utf-8", "replace").decode()
