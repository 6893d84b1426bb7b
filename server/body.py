"""Bytes of a request become a checked record. Strict JSON, bounded, and every finding names its field."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, ValidationError

from ..core.errors import InvalidRequest, TooLarge
from ..core.log import event, get_logger
from .deps import face_of

log = get_logger(__name__)


class Body(BaseModel):
    """Ground of all request bodies: no coercion, no NaN, and unknown fields are kept for the log."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    @property
    def unknown(self) -> Mapping[str, Any]:
        """The fields that the schema does not name."""
        return self.model_extra or {}


B = TypeVar("B", bound=Body)


def reads(schema: type[B]) -> Callable[[Request], Awaitable[B]]:
    """A dependency that reads a body of `schema`; raises InvalidRequest or TooLarge."""

    async def read(request: Request) -> B:
        return parse(schema, await _bytes_of(request))

    return read


def parse(schema: type[B], raw: bytes) -> B:
    """`raw` as a record of `schema`; raises InvalidRequest naming the first field at fault."""
    try:
        body = schema.model_validate_json(raw)
    except ValidationError as error:
        raise _explained(error) from None
    if body.unknown:
        log.debug(event("unknown_fields", schema=schema.__name__, fields=",".join(body.unknown)))
    return body


def describes(schema: type[Body]) -> dict[str, object]:
    """What OpenAPI says about a body of `schema`."""
    plain = schema.model_json_schema()
    inlined = _inline(plain, plain.pop("$defs", {}))
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": inlined}}}}


async def _bytes_of(request: Request) -> bytes:
    limit = face_of(request).max_body
    if int(request.headers.get("content-length") or 0) > limit:
        raise TooLarge(f"the body is over {limit} bytes, the most this server reads")
    parts = bytearray()
    async for part in request.stream():
        parts += part
        if len(parts) > limit:
            raise TooLarge(f"the body is over {limit} bytes, the most this server reads")
    return bytes(parts)


def _explained(error: ValidationError) -> InvalidRequest:
    findings = error.errors(include_url=False, include_input=False)
    first, param = findings[0], _path(findings[0]["loc"])
    if first["type"] == "json_invalid":
        return InvalidRequest(f"the body is not valid JSON: {first['ctx']['error']}", code="invalid_json")
    if first["type"] == "missing":
        return InvalidRequest(f"{param}: this field is required", param=param, code="missing_required_parameter")
    if not param:
        return InvalidRequest("the body must be a JSON object", code="invalid_type")
    told = dict.fromkeys(f["msg"] for f in findings if _path(f["loc"]) == param)  # one for each branch of a union
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
