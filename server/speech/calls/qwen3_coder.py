"""Qwen3-Coder and kin: `<tool_call><function=name><parameter=a>value</parameter></function></tool_call>`.

Values are plain text; the schema of the tool says what they are in JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .. import json_text
from ..format import CallFormat, Tools
from ..tape import Reading, Tape
from ..teller import Teller

CALL, CALL_END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
LONGEST_NAME = 256
ENDS = ("", ">", "<")  # where a name is over


def read(tape: Tape, teller: Teller, tools: Tools) -> Reading[None]:
    """The Script."""
    while mark := (yield from tape.until([CALL, FUNCTION], teller.say)):
        tape.keep()
        if mark == CALL:
            yield from tape.blanks()
        begins = mark == FUNCTION or (yield from tape.takes(FUNCTION))
        name = (yield from _name(tape)) if begins else ""
        left = tape.kept()
        if name not in tools:
            teller.say(mark + left)
            continue
        teller.open(name)
        yield from _arguments(tape, teller, tools[name])
        yield from tape.blanks()
        yield from tape.takes(CALL_END)


def _name(tape: Tape) -> Reading[str]:
    """Up to the bracket that ends it; "" where none does."""
    name = ""
    while (yield from tape.peek()) not in ENDS and len(name) < LONGEST_NAME:
        name += tape.next()
    return name.strip() if (yield from tape.takes(">")) else ""


def _arguments(tape: Tape, teller: Teller, schema: Mapping[str, Any]) -> Reading[None]:
    """One parameter after the other; a call that breaks off leaves its object open."""
    teller.argue("{")
    comma = ""
    while True:
        yield from tape.blanks()
        if not (yield from tape.takes(PARAMETER)):
            break
        name = yield from _name(tape)
        parts: list[str] = []
        is_whole = yield from tape.until([PARAMETER_END], parts.append)
        found = "".join(parts).removeprefix("\n").removesuffix("\n")
        shown = _as_json(found, schema.get("properties", {}).get(name)) if is_whole else json_text.written(found)[:-1]
        teller.argue(f"{comma}{json_text.written(name)}: {shown}")
        if not is_whole:
            return
        comma = ", "
    if (yield from tape.takes(FUNCTION_END)) or (yield from tape.starts(CALL_END)):
        teller.argue("}")
    else:
        yield from tape.until([FUNCTION_END], teller.argue)


def _as_json(given: str, schema: Any) -> str:
    """A value as its schema has it: where that allows more than texts and the value reads as JSON, it is JSON."""
    types = schema.get("type") if isinstance(schema, Mapping) else None
    if types == "string":
        return json_text.written(given)
    try:
        found = json.loads(given)
        json_text.written(found)
    except (ValueError, RecursionError):
        return json_text.written({"True": True, "False": False, "None": None}.get(given, given))
    is_text = isinstance(types, list) and "string" in types and not _fits(found, types)
    return json_text.written(given) if is_text else given.strip()


def _fits(found: object, types: list[Any]) -> bool:
    """Whether JSON's value is of one of the types that are not texts."""
    kinds = {type(None): ("null",), bool: ("boolean",), int: ("integer", "number"), float: ("number",)}
    return any(kind in types for kind in kinds.get(type(found), ("object", "array")))


def is_taught_by(template: str) -> bool:
    """By what it puts between the marks that it shares with others."""
    return FUNCTION in template and PARAMETER in template


EXPORT = CallFormat(read, (CALL, CALL_END), is_taught_by)
