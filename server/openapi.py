"""The OpenAPI document: what the routes say of themselves, and what they all have in common, which is said here once.

FastAPI would add its own 422 to whatever has a parameter; here a wrong one is a 400, in the shape of every other error.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel

from ..core.body import inlined
from ..engine.params import RANGES

Responses = dict[int | str, dict[str, Any]]
Operation = dict[str, Any]

ERROR = "Error"
THEIRS = ("HTTPValidationError", "ValidationError")
ERROR_PROPERTIES: dict[str, Any] = {
    "message": {"type": "string"},
    "type": {"enum": ["invalid_request_error", "server_error"]},
    "param": {"type": ["string", "null"], "description": "the field at fault"},
    "code": {"type": "string"},
    "problems": {"type": "array", "items": {"type": "string"}},
}
ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": ERROR_PROPERTIES,
        }
    },
}
ANTHROPIC_ERROR = "AnthropicError"
ANTHROPIC_SCHEMA = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {**ERROR_PROPERTIES, "type": {"type": "string"}},
        },
    },
}
REQUEST_ID = {"x-request-id": {"required": True, "schema": {"type": "string"}}}
KEPT = ("/v1/files", "/v1/batches")  # what tenants keep so many of
METERED = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages")


def answers(model: type[BaseModel], *, event: type[BaseModel] | None = None) -> Responses:
    """The `responses` of a route that answers with `model`, or, when a stream is asked for, with events of `event`."""
    if event is None:
        return {200: {"model": model}}
    payload = {
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [inlined(event), ERROR_SCHEMA, ANTHROPIC_SCHEMA]},
    }
    stream = {
        "type": "object",
        "description": "One event. The last one of OpenAI's streams has the data `[DONE]`.",
        "required": ["data"],
        "properties": {"data": {"anyOf": [{"const": "[DONE]"}, {"type": "string", **payload}]}},
    }
    return {200: {"model": model, "content": {"text/event-stream": {"schema": stream}}}}


class Documented(FastAPI):
    """An application whose OpenAPI document is whole. It takes a second to make, so that is done on a thread, once."""

    def setup(self) -> None:
        """The one page that the framework would make too."""
        self._making = threading.Lock()
        self._written: dict[str, bytes] = {}  # by the path that all is served under
        assert self.openapi_url is not None
        self.add_route(self.openapi_url, self._answer, include_in_schema=False)

    def openapi(self) -> dict[str, Any]:
        """The document; made once, on any thread."""
        if self.openapi_schema is None:
            _complete(super().openapi())
        assert self.openapi_schema is not None
        return self.openapi_schema

    async def _answer(self, request: Request) -> Response:
        root_path = request.scope.get("root_path", "").rstrip("/")
        written = self._written.get(root_path) or await asyncio.to_thread(self._write, root_path)
        return Response(written, media_type="application/json")

    def _write(self, root_path: str) -> bytes:
        with self._making:
            if root_path not in self._written:
                servers = {"servers": [{"url": root_path}]} if root_path else {}
                self._written[root_path] = json.dumps({**self.openapi(), **servers}, ensure_ascii=False).encode()
            return self._written[root_path]


def _complete(document: dict[str, Any]) -> None:
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for name in THEIRS:
        schemas.pop(name, None)
    schemas |= {ERROR: ERROR_SCHEMA, ANTHROPIC_ERROR: ANTHROPIC_SCHEMA}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            responses = operation["responses"]
            responses.pop("422", None)
            _tell_ranges(operation)
            for status in _errors(path, method, operation):
                responses.setdefault(str(status), _error(status, path))
            for response in responses.values():
                response["headers"] = {**response.get("headers", {}), **REQUEST_ID}


def _tell_ranges(operation: Operation) -> None:
    """Of the numbers in a body that the engine, not its schema, has bounds for."""
    content = operation.get("requestBody", {}).get("content", {})
    properties = content.get("application/json", {}).get("schema", {}).get("properties", {})
    for name, low, high in RANGES:
        for kind in properties.get(name, {}).get("anyOf", ()):
            if kind["type"] in ("integer", "number"):
                kind.setdefault("minimum", low)
                if high < math.inf:
                    kind.setdefault("maximum", high)


def _errors(path: str, method: str, operation: Operation) -> Iterator[int]:
    """The statuses of what may go wrong."""
    has_body = "requestBody" in operation
    if has_body or "parameters" in operation or "security" in operation:  # a key in the URL is refused
        yield HTTPStatus.BAD_REQUEST
    if "security" in operation or path == "/metrics":
        yield HTTPStatus.UNAUTHORIZED
    if "security" in operation:
        yield HTTPStatus.FORBIDDEN
        yield HTTPStatus.NOT_FOUND
    if has_body:
        yield HTTPStatus.REQUEST_TIMEOUT
        yield HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        yield HTTPStatus.UNSUPPORTED_MEDIA_TYPE
    if path.startswith(("/admin/", *KEPT)) and method != "get":
        yield HTTPStatus.CONFLICT
    if path.startswith("/admin/") and method != "get":
        yield HTTPStatus.PRECONDITION_FAILED
    if path in METERED:
        yield HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        yield HTTPStatus.TOO_MANY_REQUESTS
        yield HTTPStatus.GATEWAY_TIMEOUT
    if path == "/v1/batches" and method == "post":
        yield HTTPStatus.TOO_MANY_REQUESTS
    if path not in ("/version", "/metrics"):
        yield HTTPStatus.SERVICE_UNAVAILABLE


def _error(status: int, path: str) -> dict[str, Any]:
    name = ANTHROPIC_ERROR if path.startswith("/v1/messages") else ERROR
    schema = {"$ref": f"#/components/schemas/{name}"}
    return {"description": HTTPStatus(status).phrase, "content": {"application/json": {"schema": schema}}}
