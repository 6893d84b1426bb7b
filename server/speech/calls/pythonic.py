"""Llama 3.2 and 4 and others: the whole answer is a list of calls in Python, `[f(a=1, b="x"), g()]`.

Each argument is told once it is complete. Literals alone are read, by Python's parser; nothing is ever run.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from .. import json_text
from ..format import CallFormat, Tools
from ..tape import Reading, Sink, Tape
from ..teller import Teller

START, END = "<|python_start|>", "<|python_end|>"
CLOSERS = {"(": ")", "[": "]", "{": "}"}
DEEPEST = 50  # brackets within each other; Python's parser gives up at 200
LONGEST_NAME = 256
JSON_NAMES = {"true": True, "false": False, "null": None}


def read(tape: Tape, teller: Teller, tools: Tools) -> Reading[None]:
    """The Script."""
    teller.say((yield from tape.blanks()))
    if (yield from tape.starts("[")):
        yield from _calls(tape, teller, tools, "", "")
    while mark := (yield from tape.until([START], teller.say)):
        yield from _calls(tape, teller, tools, mark, END)


def _calls(tape: Tape, teller: Teller, tools: Tools, mark: str, end: str) -> Reading[None]:
    tape.keep()
    yield from tape.blanks()
    opener = "[" if (yield from tape.takes("[")) else ""
    left = mark
    while True:
        yield from tape.blanks()
        name = yield from _name(tape, "(")
        if name not in tools or not (yield from tape.takes("(")):
            break
        tape.kept()
        teller.open(name)
        if not (yield from _arguments(tape, teller.argue)):
            yield from tape.until([end] if end else [], teller.argue)
            return
        left = ""
        tape.keep()
        yield from tape.blanks()
        if not (yield from tape.takes(",")):
            if opener and not (yield from tape.takes("]")):
                break
            yield from tape.blanks()
            if end and not (yield from tape.takes(end)):
                break
            tape.kept()
            return
    teller.say(left + tape.kept())


def _name(tape: Tape, end: str) -> Reading[str]:
    """What stands before `end`, if it is a name."""
    name = ""
    while (char := (yield from tape.peek())) and len(name) < LONGEST_NAME and (char.isalnum() or char in "_-."):
        name += tape.next()
    yield from tape.blanks()
    return name if (yield from tape.starts(end)) else ""


def _arguments(tape: Tape, sink: Sink) -> Reading[bool]:
    """`a=1, b="x")` as an object; what cannot be read is told as it stands, and False."""
    sink("{")
    comma = ""
    while True:
        yield from tape.blanks()
        if (yield from tape.takes(")")):
            sink("}")
            return True
        tape.keep()
        name = yield from _name(tape, "=")
        yield from tape.takes("=")
        given = (yield from _literal(tape)) if name else None
        found = _as_json(given) if given else None
        left = tape.kept()
        if found is None:
            sink(comma + left)
            return False
        sink(f"{comma}{json_text.written(name)}: {found}")
        comma = ", "
        yield from tape.blanks()
        yield from tape.takes(",")


def _literal(tape: Tape) -> Reading[str | None]:
    """Up to the comma or bracket that ends it, which stays; None where the text ends, or nests too deeply."""
    found, closers = "", list[str]()
    while char := (yield from tape.peek()):
        if not closers and char in ",)":
            return found
        if char in "\"'":
            found += yield from _string(tape)
            continue
        if char in CLOSERS:
            closers.append(CLOSERS[char])
        elif closers and char == closers[-1]:
            closers.pop()
        if len(closers) > DEEPEST:
            return None
        found += tape.next()
    return None


def _string(tape: Tape) -> Reading[str]:
    """A string with its quotes."""
    quote = found = tape.next()
    while char := (yield from tape.peek()):
        found += tape.next()
        if char == "\\" and (yield from tape.peek()):
            found += tape.next()
        elif char == quote:
            break
    return found


def _as_json(given: str) -> str | None:
    """A literal as JSON; None for anything else."""
    try:
        return json_text.written(_value(ast.parse(given.strip(), mode="eval").body))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> object:
    """What a literal means; raises ValueError for what is none."""
    match node:
        case ast.Constant(value=None | bool() | int() | float() | str()):
            return node.value
        case ast.Name(id=name) if name in JSON_NAMES:
            return JSON_NAMES[name]
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_value(part) for part in parts]
        case ast.Dict(keys=keys, values=values):
            return dict(zip(_names(keys), map(_value, values), strict=True))
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
    raise ValueError(node)


def _names(keys: Sequence[ast.expr | None]) -> list[str]:
    found = [None if key is None else _value(key) for key in keys]
    if not all(isinstance(key, str) for key in found):
        raise ValueError(found)
    return [str(key) for key in found]


def is_taught_by(template: str) -> bool:
    """By the form that it asks for."""
    return "func_name1(params_name1=" in template


EXPORT = CallFormat(read, (START, END), is_taught_by)
