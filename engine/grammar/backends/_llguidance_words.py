"""What llguidance says of a JSON schema that it cannot compile, and what that means to whoever wrote the schema."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..schemas import LONGEST, Fault, cannot

FORMATS = "date-time, time, date, duration, email, hostname, ipv4, ipv6, uuid and uri"
TYPES = "array, boolean, integer, null, number, object and string"
# The schema may be a part of a grammar, of which the library shows some lines, and a part of it may be named.
FRAME = (
    r"(?:at \d+\(\d+\): failed to compile JSON schema: )?(.*?)"
    r"(?:\n  while processing json-schema:///(#\S*))?(?:\n +\d+ \| .*)?"
)
KINDS = {
    "f64": "a number",
    "array": "an array",
    "object": "an object",
    "string": "a string",
    "boolean": "true or false",
}


def fault_in(said: str) -> Fault:
    """The fault; what is not known here keeps the library's words."""
    framed = re.fullmatch(FRAME, said, re.DOTALL)
    why, place = framed.groups() if framed else (said, None)
    for pattern, explain in RULES.items():
        if found := re.match(pattern, why, re.DOTALL):
            return replace(explain(*found.groups()), place=place)
    return Fault(f"no answer can be held to this schema ({why})", place=place)


def _count(keyword: str, value: str) -> Fault:
    words = f"is {value[:LONGEST]}; it takes a whole number that is not negative, written without a point"
    return Fault(words, (keyword,), _is(value))


def _kind(kind: str, keyword: str, value: str) -> Fault:
    return Fault(f"is {value[:LONGEST]}; it takes {KINDS.get(kind, kind)}", (keyword,), _is(value))


def _made_of(keyword: str, kind: str) -> Fault:
    wanted: dict[str, type] = {"object": dict, "array": list}
    of = wanted.get(kind, type(None))
    return Fault(f"takes {KINDS.get(kind, kind)}", (keyword,), lambda value: not isinstance(value, of))


def _overlapping(one: str, other: str) -> Fault:
    words = f"cannot be held to: a name may match both {one} and {other}, and would have to fulfil two schemas"
    return Fault(f"{words}; write patterns that exclude each other", ("patternProperties",))


def _alternatives() -> Fault:
    return Fault(f"{cannot(['oneOf']).words}, make its alternatives exclude each other, or use anyOf", ("oneOf",))


def _elsewhere(target: str) -> Fault:
    words = f"leads to {target[:LONGEST]!r}, another document, and nothing is fetched; put that under $defs "
    return Fault(
        f"{words}and refer to #/$defs/NAME, or leave it out",
        ("$ref", "$schema"),
        lambda value: not str(value).startswith("#"),
    )


def _nowhere(pointer: str) -> Fault:
    return Fault(
        f"leads to #{pointer[:LONGEST]}, and nothing is there", ("$ref",), lambda value: value == f"#{pointer}"
    )


def _format(name: str) -> Fault:
    return Fault(
        f"is {name!r}, which no answer is held to; there are {FORMATS}", ("format",), lambda value: value == name
    )


def _type(name: str) -> Fault:
    words = f"is {name!r}, which there is not; there are {TYPES}"
    return Fault(words, ("type",), lambda value: value == name or (isinstance(value, list) and name in value))


def _pattern(shown: str, why: str) -> Fault:
    lines = [line.strip() for line in shown.splitlines()]
    words = f"is no expression that an answer can be held to ({why[:LONGEST].strip()}); it takes Rust's syntax"

    def is_it(value: Any) -> bool:
        return any(each in lines for each in (value if isinstance(value, dict) else [value]))

    return Fault(f"{words}, without look-around and back references", ("pattern", "patternProperties"), is_it)


def _properties() -> Fault:
    words = "can only be held to where all of `properties` are `required`; require them, or leave it out"
    return Fault(words, ("minProperties", "maxProperties"))


RULES: dict[str, Callable[..., Fault]] = {
    r"Unimplemented keys: (\[.*\])$": lambda keys: cannot(json.loads(keys)),
    r"patternProperty regexes /(.*)/ and /(.*)/ are not disjoint": _overlapping,
    r"Expected positive integer for '([\w$]+)', got (.*)": _count,
    r"Expected (\w+) for '([\w$]+)', got (.*)": _kind,
    r"([\w$]+) must be an? (object|array)": _made_of,
    r"oneOf constraints are not supported": _alternatives,
    r"Resource '(?:json-schema:///)?(.*)' is not present in a registry": _elsewhere,
    r"Pointer '(.*)' does not exist": _nowhere,
    r"Unknown format: (.*)": _format,
    r"Invalid type: (.*)": _type,
    r"regex parse error:\n(.*)\nerror: (.*)": _pattern,
    r"Unsatisfiable schema: (.*)": lambda why: Fault(f"nothing fulfils this schema ({why[:LONGEST]})"),
    r"Value for '([\w$]+)' has too many digits": lambda name: Fault("has too many digits; round it", (name,)),
    r"invalid multiple of$": lambda: Fault("takes a number over 0", ("multipleOf",), lambda value: value == 0),
    r"min/maxProperties only supported": _properties,
}


def _is(value: str) -> Callable[[Any], bool]:
    """Whether something is what the library shows as `value`."""
    return lambda given: json.dumps(given) == value
