"""JSON schemas of tools: what can be told to be none at once, and those of a call and of a list of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import InvalidRequest

DATA = ("const", "enum", "default", "examples")  # keywords whose values are no schemas


def check_schema(schema: Mapping[str, Any] | None, param: str) -> None:
    """Raises InvalidRequest for what no arguments could fulfil or is no schema; grammars find what is wrong deeper."""
    if not schema:
        return
    if schema.get("type", "object") != "object":
        raise InvalidRequest(f"{param}.type: arguments are an object", param=f"{param}.type")
    properties = schema.get("properties", {})
    if not isinstance(properties, Mapping):
        raise InvalidRequest(f"{param}.properties: expected an object", param=f"{param}.properties")
    for name, each in properties.items():
        if not isinstance(each, Mapping | bool):
            raise InvalidRequest(f"{param}.properties: {name} is no JSON schema", param=f"{param}.properties")
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise InvalidRequest(f"{param}.required: expected a list of names", param=f"{param}.required")


def schema_of_call(tools: Mapping[str, Mapping[str, Any]], key: str = "arguments") -> dict[str, Any]:
    """The schema of `{"name": ..., "arguments": {...}}`, a call of one of the tools; `key`: what its arguments are."""
    definitions: dict[str, Any] = {}
    calls = []
    for at, (name, schema) in enumerate(tools.items()):
        definitions[f"tool{at}"] = _moved(schema, place_of(at))
        fields = {"name": {"const": name}, key: {"$ref": place_of(at)}}
        required = list(fields)
        calls.append({"type": "object", "properties": fields, "required": required, "additionalProperties": False})
    return {"anyOf": calls, "$defs": definitions}


def schema_of_calls(tools: Mapping[str, Mapping[str, Any]], *, most: int | None) -> dict[str, Any]:
    """The schema of `[{"name": ..., "arguments": {...}}, ...]`, with at least one call and at most `most`."""
    call = schema_of_call(tools)
    bounds = {"minItems": 1} if most is None else {"minItems": 1, "maxItems": most}
    return {"type": "array", "items": {"anyOf": call["anyOf"]}, **bounds, "$defs": call["$defs"]}


def place_of(at: int) -> str:
    """Where the schema of one of the tools stands in that of their calls."""
    return f"#/$defs/tool{at}"


def _moved(schema: Any, place: str) -> Any:
    """`schema` as it reads when it stands at `place` of a larger one: its references to itself go there."""
    if isinstance(schema, Sequence) and not isinstance(schema, str):
        return [_moved(each, place) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    moved = {name: value if name in DATA else _moved(value, place) for name, value in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = place + reference[1:]
    return moved
