"""Where a server listens: a port, or a unix socket."""

from __future__ import annotations

import os
import socket
import ssl
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import Conflict, InvalidRequest


@dataclass(frozen=True, slots=True)
class Door:
    """What clients come through."""

    listener: socket.socket
    url: str
    tls: ssl.SSLContext | None


def url_of(host: str, listener: socket.socket, *, scheme: str = "http") -> str:
    """Where a server on this machine is reached; a unix socket in the words of nginx's proxy_pass."""
    if listener.family == socket.AF_UNIX:
        return f"{scheme}://unix:{listener.getsockname()}:"
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"{scheme}://{shown}:{listener.getsockname()[1]}"


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A bound socket; raises Conflict when the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP: asyncio sets TCP_NODELAY only then, without which small answers wait 40 ms for an acknowledgement.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except (OSError, OverflowError) as error:
            if isinstance(error, OSError) and isinstance(error.errno, int) and "in use" in str(error):
                raise Conflict(f"port {port} on {host} is in use; choose another with --port") from None
            raise InvalidRequest(f"cannot listen on {host} port {port}: {error}", param="port") from None
        yield listener


@contextmanager
def listening_at(path: Path) -> Iterator[socket.socket]:
    """A bound unix socket, whose file goes with it; raises Conflict when another server listens there."""
    _clear(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            listener.bind(os.fspath(path))
        except OSError as error:
            raise InvalidRequest(f"--uds {path}: cannot listen there: {error.strerror or error}", param="uds") from None
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)


def _clear(path: Path) -> None:
    """Remove the socket file of a server that is no more."""
    with suppress(FileNotFoundError, NotADirectoryError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise InvalidRequest(f"--uds {path}: there is something else of that name", param="uds")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(os.fspath(path))
            except ConnectionRefusedError:
                path.unlink()
                return
            except OSError as error:
                raise InvalidRequest(f"--uds {path}: {error.strerror}", param="uds") from None
        raise Conflict(f"another server listens at {path}; choose another place with --uds")
