"""Bearer keys, for every face that asks for one: read from a header, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac

from .errors import Unauthorized


def key_in(header: str | None) -> str:
    """The key in an Authorization header; raises Unauthorized when there is none."""
    scheme, _, key = (header or "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise Unauthorized("no API key: send the header 'Authorization: Bearer KEY'", code="missing_api_key")
    return key.strip()


def digest_of(key: str) -> bytes:
    """What is kept and compared in place of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def is_same(given: str, digest: bytes) -> bool:
    """Whether `given` is the key of `digest`; the time taken tells nothing."""
    return hmac.compare_digest(digest_of(given), digest)
