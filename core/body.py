"""JSON bodies become checked records. Strict, and every finding names its field. Knows no web framework."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json

from .errors import InvalidRequest, WrongMedia
from .weight import check_weight


class Body(BaseModel):
    """Ground of the bodies of OpenAI's face: no coercion, no NaN, and unknown fields are kept for the log."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    @property
    def unknown(self) -> Mapping[str, Any]:
        """The fields that the schema does not name."""
        return self.model_extra or {}


class ExactBody(BaseModel):
    """Ground of the admin face's bodies: as above, and a field that the schema does not name is an error."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


B = TypeVar("B", bound=BaseModel)


def parse(schema: type[B], raw: bytes) -> B:
    """`raw` as a record of `schema`; raises InvalidRequest naming the first field at fault.

    Read first and checked then: in one call pydantic takes twice as long, and no other thread runs meanwhile.
    """
    check_weight(raw)
    body = checked(schema, _read(raw))
    if b"NaN" in raw or b"Infinity" in raw:  # words of a text, or numbers where the schema takes anything
        _read(raw, allow_inf_nan=False)
    return body


def checked(schema: type[B], fields: object) -> B:
    """`fields`, which have been JSON, as a record of `schema`; raises InvalidRequest as `parse` does."""
    try:
        return schema.model_validate(fields)
    except ValidationError as error:
        raise _explained(error, schema) from None


def parse_exact(schema: type[B], raw: bytes) -> B:
    """`parse` for small bodies, whose fields may be of what JSON spells as text: a name out of a few, a date. A name
    that stands twice in one object is an error: readers differ in which one they take.
    """
    with suppress(ValueError, RecursionError):  # what follows has the words for these
        json.loads(raw, object_pairs_hook=_once)
    check_weight(raw)
    _read(raw, allow_inf_nan=False)
    try:
        return schema.model_validate_json(raw)
    except ValidationError as error:
        raise _explained(error, schema) from None


def check_media(given: str | None) -> None:
    """A body that does not say what it is counts as JSON. A form does not, nor text: any page may send one, unasked."""
    kind = "application/json" if given is None else given.partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise WrongMedia(
            f"the body is said to be {given!r}; send JSON, with the header 'Content-Type: application/json'"
        )


def words_of(finding: Mapping[str, Any]) -> str:
    """What one of pydantic's findings says, in our words where we have any, and without a kind before those of a check
    of our own."""
    message: str = _WORDS.get(finding["type"], finding["msg"])
    return message.removeprefix("Value error, ")


def describes(schema: type[BaseModel]) -> dict[str, object]:
    """What OpenAPI says about a body of `schema`."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": inlined(schema)}}}}


def inlined(schema: type[BaseModel]) -> dict[str, object]:
    """The JSON schema of `schema` in one piece."""
    plain = schema.model_json_schema()
    whole: dict[str, object] = _inline(plain, plain.pop("$defs", {}))
    return whole


def _read(raw: bytes, *, allow_inf_nan: bool = True) -> object:
    try:
        found: object = from_json(raw, allow_inf_nan=allow_inf_nan)
    except ValueError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}", code="invalid_json") from None
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise InvalidRequest(f"{name}: stands twice in one object", param=name, code="duplicate_field")
        found[name] = value
    return found


def _explained(error: ValidationError, schema: type[BaseModel]) -> InvalidRequest:
    findings = error.errors(include_url=False, include_input=False)
    first, param = findings[0], _path(findings[0]["loc"])
    if first["type"] == "missing":
        return InvalidRequest(f"{param}: this field is required", param=param, code="missing_required_parameter")
    if first["type"] == "extra_forbidden":
        known = ", ".join(schema.model_fields)
        return InvalidRequest(f"{param}: there is no such field; there are {known}", param=param, code="unknown_field")
    if not param:
        return InvalidRequest("the body must be a JSON object", code="invalid_type")
    told = dict.fromkeys(words_of(found) for found in findings if _path(found["loc"]) == param)  # of a union
    code = "invalid_type" if first["type"].endswith("_type") else "invalid_value"
    return InvalidRequest(f"{param}: {'; or: '.join(told)}", param=param, code=code)


def _path(location: tuple[int | str, ...]) -> str | None:
    """`("messages", 0, "role")` as `messages[0].role`; names of union branches are left out."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part.islower() and part not in _BRANCHES:
            path += f".{part}" if path else part
    return path or None


_WORDS = {  # of JSON, for those that speak of Python
    "dict_type": "Input should be an object",
    "list_type": "Input should be a valid array",
    "model_type": "Input should be an object",
}
_BRANCHES = frozenset({"str", "int", "float", "bool", "list", "dict", "none"})


def _inline(node: Any, definitions: Mapping[str, Any]) -> Any:
    """JSON schema without references, which would point outside the place where it is shown."""
    if isinstance(node, list):
        return [_inline(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inline(definitions[node["$ref"].rsplit("/", 1)[-1]], definitions)
    return {key: _inline(value, definitions) for key, value in node.items()}
