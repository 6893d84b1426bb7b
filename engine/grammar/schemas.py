"""JSON schemas that no answer can be held to: which keyword is at fault, where it stands, and why, in our words.

A backend says what its library found; this file says it to whoever wrote the schema.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.errors import InvalidRequest
from .asked import StructuredOutputs

NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")  # whose keys are the caller's
DATA = ("const", "default", "enum", "examples")  # keywords whose values are no schemas
MEMORY = "a grammar has no memory of what came, to compare or count it"
LATER = "what must come would depend on what came, and no grammar of feasible size says that"
WHY = {
    "not": "it says what must not be, and a grammar only what may be",
    "oneOf": "it also says what must not be: that two alternatives hold at once",
    "uniqueItems": MEMORY,
    "contains": MEMORY,
    "minContains": MEMORY,
    "maxContains": MEMORY,
    "if": LATER,
    "then": LATER,
    "else": LATER,
    "dependencies": LATER,
    "dependentRequired": LATER,
    "dependentSchemas": LATER,
    "unevaluatedItems": LATER,
    "unevaluatedProperties": LATER,
}
UNKNOWN = "no grammar is made of it here"
LONGEST = 200  # characters of a place, or of a value, that are told


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong: `words` follow the keyword and its place; it is the first of `keywords` that the schema has with a
    value of which `has` is true. Without keywords it is a schema as a whole, at `place` where that is known."""

    words: str
    keywords: tuple[str, ...] = ()
    has: Callable[[Any], bool] = lambda _: True
    place: str | None = None  # a JSON pointer


def cannot(keywords: Sequence[str]) -> Fault:
    """That nothing would hold an answer to these keywords; of several the first is explained."""
    others = f" (nor {', '.join(keywords[1:])})" if keywords[1:] else ""
    return Fault(f"cannot be held to{others}: {WHY.get(keywords[0], UNKNOWN)}; leave it out", (keywords[0],))


def refused(asked: StructuredOutputs, fault: Fault) -> InvalidRequest:
    """The error that tells whoever wrote the schemas of `asked`, by the field where the one at fault stands."""
    found = next(filter(None, (_found(json.loads(schema), fault) for schema in asked.schemas)), None)
    keyword, place = found or ((*fault.keywords, "")[0], fault.place)
    param, root = asked.field_at(place)
    words = fault.words if root == "#" else fault.words.replace(root, "#")
    at = "" if place is None or place == root else f"at #{place.removeprefix(root)[:LONGEST]} "
    return InvalidRequest(f"{param}: {f'`{keyword}` ' if keyword else ''}{at}{words}", param=param)


def schemas_in(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """A schema and all schemas in it, in their order, each with its JSON pointer."""
    waiting: list[tuple[str, Any, bool]] = [("#", schema, False)]
    while waiting:
        place, value, is_named = waiting.pop()
        if isinstance(value, list):
            waiting += [(f"{place}/{at}", each, False) for at, each in reversed(list(enumerate(value)))]
        if not isinstance(value, dict):
            continue
        if not is_named:
            yield place, value
        for name, each in reversed(value.items()):
            if is_named or name not in DATA:
                pointer = name.replace("~", "~0").replace("/", "~1")
                waiting.append((f"{place}/{pointer}", each, not is_named and name in NAMED))


def _found(schema: Any, fault: Fault) -> tuple[str, str] | None:
    """The keyword that is at fault, and where it stands; None when nobody can tell."""
    for keyword in fault.keywords:
        for place, each in schemas_in(schema):
            if keyword in each and fault.has(each[keyword]):
                return keyword, place
    return None
