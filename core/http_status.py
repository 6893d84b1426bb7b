"""How each kind of trouble reads over HTTP: status and OpenAI error body. Plain data; knows no web framework."""

from __future__ import annotations

from .errors import (
    ArilError,
    Conflict,
    DoesNotFit,
    Forbidden,
    InvalidRequest,
    NotFound,
    TooLarge,
    Unauthorized,
    Unavailable,
    Unsupported,
)

STATUS: dict[type[ArilError], tuple[int, str]] = {
    InvalidRequest: (400, "invalid_request_error"),
    Unsupported: (400, "invalid_request_error"),
    Unauthorized: (401, "authentication_error"),
    Forbidden: (403, "permission_error"),
    NotFound: (404, "invalid_request_error"),
    Conflict: (409, "conflict_error"),
    TooLarge: (413, "invalid_request_error"),
    ArilError: (500, "server_error"),
    Unavailable: (503, "server_error"),
    DoesNotFit: (507, "server_error"),
}


def status_of(error: ArilError) -> int:
    """The HTTP status of `error`: that of its nearest class in the table."""
    return _row(error)[0]


def body_of(error: ArilError) -> dict[str, object]:
    """The body as OpenAI's clients read it; `problems` joins it where there are several findings."""
    fields: dict[str, object] = {
        "message": error.message,
        "type": _row(error)[1],
        "param": error.param,
        "code": error.code,
    }
    if error.problems:
        fields["problems"] = list(error.problems)
    return {"error": fields}


def headers_of(error: ArilError) -> dict[str, str]:
    """What a client needs to know in the headers: how to authenticate, when to come back."""
    if isinstance(error, Unauthorized):
        return {"WWW-Authenticate": "Bearer"}
    if isinstance(error, Unavailable):
        return {"Retry-After": "1"}
    return {}


def _row(error: ArilError) -> tuple[int, str]:
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
