"""A part of an S3 bucket, as names with bytes. Errors are ours; what the bytes mean is not known here.

Keys, region and endpoint come from the environment, as AWS's own tools read it: AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL, or the role of the machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from ..core.errors import Forbidden, InvalidRequest, NotFound, Unavailable
from ..core.log import event, get_logger

log = get_logger(__name__)
URL = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9!_.*'()=+,:@-]+)*/?")
PIECE = 1 << 20
RETRIES = 3
PATIENCE = timedelta(seconds=30)  # for all tries together


@dataclass(frozen=True, slots=True)
class Entry:
    """An object as a listing shows it."""

    name: str
    size: int
    written: float  # seconds since the epoch, by the bucket's clock


class Bucket:
    """Everything under `s3://bucket/prefix`. Its methods may be called from any thread.

    They raise NotFound, Forbidden (the server's own keys do not reach there) or Unavailable.
    """

    def __init__(self, url: str) -> None:
        if not URL.fullmatch(url) or "/." in url:
            raise InvalidRequest(f"{url[:200]!r} is no place in a bucket; write s3://bucket/prefix")
        self.url = url.rstrip("/")
        plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
        with _said_as_ours(self.url):
            self._objects = S3Store.from_url(
                self.url,
                client_options={"allow_http": plain, "connect_timeout": "10s", "timeout": "600s"},
                retry_config={"max_retries": RETRIES, "retry_timeout": PATIENCE},
            )

    def list(self, under: str = "") -> Iterator[Entry]:
        """Every object whose name begins with the path `under`."""
        with _said_as_ours(f"{self.url}/{under}"):
            for piece in obstore.list(self._objects, under or None):
                for meta in piece:
                    yield Entry(meta["path"], meta["size"], meta["last_modified"].timestamp())

    def size(self, name: str) -> int:
        """Bytes of an object."""
        with _said_as_ours(f"{self.url}/{name}"):
            return int(obstore.head(self._objects, name)["size"])

    def read(self, name: str) -> Iterator[bytes]:
        """An object's bytes, in pieces."""
        with _said_as_ours(f"{self.url}/{name}"):
            for piece in obstore.get(self._objects, name).stream(PIECE):
                yield bytes(piece)

    def write(self, name: str, source: Path | bytes) -> None:
        """Put an object there, whole or not at all."""
        with _said_as_ours(f"{self.url}/{name}"):
            obstore.put(self._objects, name, source)

    def delete(self, names: Sequence[str]) -> None:
        """Remove objects; those that are not there are fine."""
        with _said_as_ours(self.url):
            if names:
                obstore.delete(self._objects, list(names))


@contextmanager
def _said_as_ours(where: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(f"there is no {where}") from error
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise Forbidden(f"the server's own keys do not open {where}", code="source_forbidden") from error
    except (BaseError, OSError, ValueError) as error:
        log.warning(event("bucket_failed", where=where, error=error))
        raise Unavailable(f"{where} does not answer; the server's log says why", code="store_unavailable") from error
