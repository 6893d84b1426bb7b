"""Bearer keys, for every face that asks for one: made, read from a header, refused in a URL, known by their digest."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable

from .errors import InvalidRequest, Unauthorized

PARAMETERS = frozenset(
    {"access_token", "admin_key", "api_key", "apikey", "authorization", "bearer", "token", "x_api_key"}
)


def new_key() -> str:
    """A key that nobody can guess. It begins with a letter: a command line would take `-x...` for a flag."""
    return f"aril-{secrets.token_urlsafe(32)}"


def key_in(header: str | None) -> str:
    """The key in an Authorization header; raises Unauthorized when there is none."""
    scheme, _, key = (header or "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise Unauthorized("no API key: send the header 'Authorization: Bearer KEY'", code="missing_api_key")
    return key.strip()


def refuse_in_url(parameters: Iterable[str]) -> None:
    """Raises InvalidRequest where a query parameter is one that keys are put into."""
    for name in parameters:
        if name.lower().replace("-", "_") in PARAMETERS:
            raise key_in_url(name)


def key_in_url(parameter: str) -> InvalidRequest:
    """The words for a key in the query string."""
    message = (
        f"{parameter}: a URL is no place for a key, as logs and histories keep it; send it as 'Authorization: Bearer'"
    )
    return InvalidRequest(message, param=parameter, code="key_in_url")


def digest_of(key: str) -> bytes:
    """What is kept and compared in place of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
