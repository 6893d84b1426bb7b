"""How each kind of trouble reads over HTTP: status and OpenAI error body. Plain data; knows no web framework."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .errors import (
    ArilError,
    Conflict,
    DoesNotFit,
    Forbidden,
    InvalidRequest,
    Misplaced,
    NotFound,
    RateLimited,
    Stale,
    TimedOut,
    TooLarge,
    TooSlow,
    Unauthorized,
    Unavailable,
    Unsupported,
    WrongMedia,
)

STATUS: dict[type[ArilError], int] = {
    InvalidRequest: 400,
    Unsupported: 400,
    DoesNotFit: 400,
    Unauthorized: 401,
    Forbidden: 403,
    NotFound: 404,
    TooSlow: 408,
    Conflict: 409,
    Stale: 412,
    TooLarge: 413,
    WrongMedia: 415,
    RateLimited: 429,
    ArilError: 500,
    Unavailable: 503,
    TimedOut: 504,
}
HEADERS: dict[int, dict[str, str]] = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}


def status_of(error: Exception) -> int:
    """The HTTP status of `error`: that of its nearest class in the table; what is not ours is a fault of ours."""
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)


def body_of(error: Exception) -> dict[str, object]:
    """`{"error": {...}}`, with `problems` where there are several; a bug shows nothing of its insides."""
    if not isinstance(error, ArilError):
        error = ArilError("the server failed to answer this request; its log says why")
    return shape(
        error.message, status=status_of(error), param=error.param, code=error.code, problems=list(error.problems)
    )


def headers_of(error: Exception) -> dict[str, str] | None:
    """What a client must know beside the body: how to authenticate, when to come back."""
    if isinstance(error, RateLimited):
        return {"Retry-After": str(max(1, math.ceil(error.retry_after))), **error.headers}
    if isinstance(error, Misplaced):
        return {"Upload-Offset": str(error.offset)}
    return HEADERS.get(status_of(error))


def shape(
    message: str, *, status: int, param: str | None = None, code: str, problems: Sequence[str] = ()
) -> dict[str, object]:
    """The error body that OpenAI's clients read."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    fields: dict[str, object] = {"message": message, "type": kind, "param": param, "code": code}
    if problems:
        fields["problems"] = list(problems)
    return {"error": fields}
