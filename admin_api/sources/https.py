"""https://host/folder, https://host/adapter.tar.gz: files or one archive from a web server.

The operator allows hosts by name; names are looked up once for each connection, every answer must be an address that is
allowed, and the connection goes to an answer that was looked at. Redirects are followed to places that are allowed too.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpcore
import httpx

from ...core.errors import ArilError, InvalidRequest, NotFound, Unavailable
from ...core.log import event, get_logger
from ...lora.config import CONFIG_FILE, WEIGHTS_FILE
from .. import archives
from ..origins import Allowed, Order, Origin, Resolve

MAX_REDIRECTS = 3
HEADERS = [("Accept", "*/*"), ("Accept-Encoding", "identity"), ("User-Agent", "aril")]
REDIRECTS = (301, 302, 303, 307, 308)
log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds to wait."""

    connect: float = 10.0
    silence: float = 30.0
    whole: float = 3600.0  # for one file


def addresses_of(host: str, port: int) -> list[str]:
    """Every address that the system's resolver gives for a name."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class HttpsSource:
    """Web servers."""

    def __init__(self, resolve: Resolve = addresses_of, patience: Patience = Patience()) -> None:
        self._resolve = resolve
        self._patience = patience

    def check(self, origin: Origin, allowed: Allowed) -> None:
        """Raises Forbidden for what is not allowed."""
        allowed.check(origin)

    def fetch(self, origin: Origin, order: Order) -> str:
        """Download an archive, or the files of a folder; a URL of the weights means their folder."""
        with _said_as_ours(origin), self._pool(order.allowed) as pool:
            web = _Web(pool, order, self._patience)
            if origin.name.lower().endswith(archives.SUFFIXES):
                web.download(origin)
                return str(origin)
            folder = origin.path.removesuffix(f"/{WEIGHTS_FILE}")
            for name in (CONFIG_FILE, WEIGHTS_FILE):
                web.download(Origin(origin.scheme, origin.host, f"{folder}/{name}"))
            return str(origin)

    def _pool(self, allowed: Allowed) -> httpcore.ConnectionPool:
        return httpcore.ConnectionPool(
            ssl_context=httpx.create_ssl_context(), network_backend=_Checked(allowed, self._resolve)
        )


class _Web:
    """Downloads for one order, within its bounds all together."""

    def __init__(self, pool: httpcore.ConnectionPool, order: Order, patience: Patience) -> None:
        self._pool = pool
        self._order = order
        self._size = 0
        self._patience = patience

    def download(self, origin: Origin) -> None:
        """One file into the order's folder, under its own name."""
        deadline = time.monotonic() + self._patience.whole
        url = str(origin)
        for _ in range(MAX_REDIRECTS + 1):
            self._order.allowed.check(Origin.of(url.partition("?")[0]))
            with self._answer(url) as response:
                if response.status not in REDIRECTS:
                    self._keep(response, origin, deadline)
                    return
                url = _target(url, response)
        raise Unavailable(f"{origin} was redirected more than {MAX_REDIRECTS} times", param="source")

    @contextmanager
    def _answer(self, url: str) -> Iterator[httpcore.Response]:
        waits = {"connect": self._patience.connect, "read": self._patience.silence}
        with self._pool.stream("GET", url, headers=HEADERS, extensions={"timeout": waits}) as response:
            yield response

    def _keep(self, response: httpcore.Response, origin: Origin, deadline: float) -> None:
        if response.status in (404, 410):
            raise NotFound(f"there is no {origin}", param="source")
        if response.status != 200 or _header(response, "content-encoding") not in ("", "identity"):
            raise Unavailable(f"{origin} was answered with status {response.status}", param="source")
        with (self._order.folder / origin.name).open("wb") as file:
            for piece in response.iter_stream():
                self._size += len(piece)
                self._order.room(origin, self._size)
                if time.monotonic() > deadline:
                    raise Unavailable(f"{origin} took over {self._patience.whole:g} s", param="source")
                file.write(piece)


class _Checked(httpcore.NetworkBackend):
    """Connects to addresses that were looked at, and to nothing else."""

    def __init__(self, allowed: Allowed, resolve: Resolve) -> None:
        self._allowed = allowed
        self._resolve = resolve
        self._plain = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        addresses = self._resolve(host.strip("[]"), port)
        for address in addresses:
            self._allowed.check_address(host, address)
        for address in addresses[:-1]:
            try:
                return self._plain.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return self._plain.connect_tcp(addresses[-1], port, timeout, local_address, socket_options)


def _target(url: str, response: httpcore.Response) -> str:
    """Where a redirect leads; a target may have a query, which is kept nowhere."""
    target = httpx.URL(url).join(_header(response, "location"))
    if target.scheme != "https" or target.userinfo:
        raise InvalidRequest(f"{url.partition('?')[0]} is redirected to what is not https", param="source")
    return str(target.copy_with(fragment=None))


def _header(response: httpcore.Response, name: str) -> str:
    found = [value for key, value in response.headers if key.decode("latin-1").lower() == name]
    return found[0].decode("latin-1") if found else ""


@contextmanager
def _said_as_ours(origin: Origin) -> Iterator[None]:
    try:
        yield
    except ArilError:
        raise
    except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError, OSError, ValueError) as error:
        log.warning(event("source_failed", source=origin, error=error))
        raise Unavailable(f"{origin} could not be fetched: {type(error).__name__}", param="source") from error
    except (httpcore.UnsupportedProtocol, httpx.InvalidURL) as error:
        raise InvalidRequest(f"{origin} cannot be fetched: {error}", param="source") from error


EXPORT = HttpsSource()
