"""Mistral: `[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, and since 2025 `[TOOL_CALLS]name[ARGS]{...}`."""

from __future__ import annotations

import json

from ....engine.grammar.spans import Form, Part
from .. import json_text
from ..format import CallFormat, Held, Tools
from ..held import list_of_calls
from ..json_calls import Span
from ..tape import Reading, Tape
from ..teller import Teller, short_call_id

CALLS, ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
LONGEST_NAME = 64  # of a tool, as OpenAI has it


def read(tape: Tape, teller: Teller, tools: Tools) -> Reading[None]:
    """The Script."""
    while (yield from tape.until([CALLS], teller.say)):
        mark = CALLS + (yield from tape.blanks())
        if (yield from tape.peek()) in ("[", "{"):
            yield from Span(tape, teller, tools, mark).read()
        else:
            yield from _named(tape, teller, tools, mark)


def _named(tape: Tape, teller: Teller, tools: Tools, mark: str) -> Reading[None]:
    """A name, perhaps an id, which is not ours, and the arguments."""
    tape.keep()
    name = ""
    while (yield from tape.peek()) not in ("", "{", "[") and len(name) <= LONGEST_NAME:
        name += tape.next()
    name = name.strip()
    if (yield from tape.takes(ID)):
        while (yield from tape.peek()) not in ("", "[", "{"):
            tape.next()
    yield from tape.takes(ARGUMENTS)
    yield from tape.blanks()
    left = tape.kept()
    if name not in tools or (yield from tape.peek()) != "{":
        teller.say(mark + left)
        return
    teller.open(name)
    if not (yield from json_text.value(tape, teller.argue)):
        yield from tape.until([], teller.argue)


def _forms(tools: Tools, most: int | None) -> tuple[Form, ...]:
    """A list, or a name and its arguments, perhaps with an id before them."""
    ids = Part(words=ID), Part(regex="[a-zA-Z0-9]{9}")
    found = list(list_of_calls(tools, most))
    for name, schema in tools.items():
        named, arguments = Part(words=name), Part(schema=json.dumps(schema))
        for between in ((), (Part(words=ARGUMENTS),), (*ids, Part(words=ARGUMENTS))):
            found.append((named, *between, arguments))
    return tuple(found)


def is_taught_by(template: str) -> bool:
    """By its mark."""
    return CALLS in template


EXPORT = CallFormat(read, (CALLS, ID, ARGUMENTS), is_taught_by, short_call_id, Held((CALLS,), _forms))
