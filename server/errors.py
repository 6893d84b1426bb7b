"""Failures become answers: everything under one application, in the shape that OpenAI's clients read."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..core.body import words_of
from ..core.errors import ArilError, InvalidRequest, Overloaded, ShuttingDown, TimedOut
from ..core.http_status import body_of, headers_of, status_of
from ..core.log import event, get_logger
from .records import record_of

log = get_logger(__name__)

CLIENT_GONE = 499  # nginx's number for a client that hung up; nobody reads it but the metrics
EXPECTED = (Overloaded, ShuttingDown, TimedOut)  # a server that is full or ends has enough to do
CODES = {404: "not_found", 405: "method_not_allowed"}


def ours(error: Exception) -> ArilError:
    """`error` as a client may see it: what is not ours shows nothing of its insides."""
    if isinstance(error, ArilError):
        return error
    log.error(event("request_crashed", error=type(error).__name__), exc_info=error)
    return ArilError("the server failed to answer this request; its log says why")


def answer(error: Exception) -> JSONResponse:
    """The response that `error` deserves."""
    shown = ours(error)
    if status_of(shown) >= 500 and not isinstance(shown, EXPECTED):
        log.warning(event("request_failed", code=shown.code, message=shown.message))
    return JSONResponse(body_of(shown), status_of(shown), headers_of(shown))


class Crashes:
    """ASGI middleware, the innermost: a bug becomes an answer, which passes through the others as any does."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def noting(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception as error:
            if started or scope["type"] != "http":
                raise
            record_of(scope).fail(error)
            await answer(error)(scope, receive, send)


def install(app: FastAPI) -> None:
    """Answer every failure under `app` in this shape, unknown paths and methods too. Before any other middleware."""
    app.add_middleware(Crashes)
    app.add_exception_handler(ArilError, _failed)
    app.add_exception_handler(HTTPException, _refused_by_framework)
    app.add_exception_handler(RequestValidationError, _wrong_parameter)
    app.add_exception_handler(ClientDisconnect, _gone)


async def _failed(request: Request, error: Exception) -> Response:
    record_of(request.scope).fail(error)
    return answer(error)


async def _wrong_parameter(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = str(first["loc"][-1])
    return await _failed(request, InvalidRequest(f"{name}: {words_of(first)}", param=name))


async def _refused_by_framework(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{error.detail}: {request.method} {request.url.path}"
    code = record_of(request.scope).error = CODES.get(error.status_code, "http_error")
    fields = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return JSONResponse({"error": fields}, error.status_code, error.headers)


async def _gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)
