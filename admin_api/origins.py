"""URLs that adapters can be fetched from, and what an operator allows of them: nothing by default.

A URL is taken apart strictly: no escapes, dots, queries, user names, or anything else that two readers could read
differently. How a kind of source is fetched stands in its file in sources/.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Protocol
from urllib.parse import unquote

from ..core.errors import Forbidden, InvalidRequest, TooLarge, Unavailable
from ..core.registry import Registry

MAX_LENGTH = 2048
SHAPE = re.compile(r"([a-z][a-z0-9]*)://([A-Za-z0-9._:\[\]-]+)((?:/[A-Za-z0-9._~!$'()*+,;=:@-]+)*)(/?)")
NAT64 = ipaddress.ip_network("64:ff9b::/96")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Origin:
    """One URL. `host` is a bucket for s3, an organisation for hf, nothing for a file; `path` begins with a slash."""

    scheme: str
    host: str
    path: str

    @classmethod
    def of(cls, url: str) -> Origin:
        """Raises InvalidRequest for a URL that could be misread, Unsupported for a kind that there is not."""
        scheme = url.partition("://")[0][:40]
        _ = sources[scheme]
        if scheme == "file":
            path = unquote(url.removeprefix("file://"), errors="strict")
            found = cls(scheme, "", path) if path.startswith("/") and "\0" not in path else None
        else:
            match = SHAPE.fullmatch(url)
            found = cls(match[1], match[2].lower() if scheme == "https" else match[2], match[3]) if match else None
        dots = {".", ".."} & set(found.path.split("/")) if found else set()
        if found is None or dots or len(url) > MAX_LENGTH:
            raise InvalidRequest(
                f"the source {url[:200]!r} is no plain URL such as https://host/folder; escapes, '..', queries and "
                "user names are not taken",
                param="source",
            )
        return found

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}{self.path}"

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Allowed:
    """What may be fetched: folders under `roots`; everything at and below a pattern; addresses that are not public."""

    roots: tuple[Path, ...] = ()
    patterns: tuple[Origin, ...] = ()
    networks: tuple[Network, ...] = ()

    @classmethod
    def of(cls, roots: tuple[Path, ...], patterns: tuple[str, ...], addresses: tuple[str, ...]) -> Allowed:
        """From flags; raises InvalidRequest naming the flag."""
        try:
            networks = tuple(ipaddress.ip_network(address) for address in addresses)
        except ValueError as error:
            raise InvalidRequest(f"--allow-address: {error}") from None
        for root in roots:
            if not root.is_dir():
                raise InvalidRequest(f"--adapter-root {root}: there is no such folder")
        return cls(roots, tuple(_pattern(text) for text in patterns), networks)

    def check(self, origin: Origin) -> None:
        """Raises Forbidden for what no pattern covers."""
        if not any(_covers(pattern, origin) for pattern in self.patterns):
            raise Forbidden(
                f"this server may not fetch {origin}: its operator has to allow it with --allow-source",
                param="source",
                code="source_not_allowed",
            )

    def check_address(self, host: str, text: str) -> None:
        """Raises Forbidden for an address that is not public, unless it lies in one of the networks."""
        address = ipaddress.ip_address(text.partition("%")[0])
        if any(address in network for network in self.networks if network.version == address.version):
            return
        if not all(_is_public(each) for each in _meanings(address)):
            raise Forbidden(
                f"{host} is at {address}, which is not a public address: the operator has to allow it with "
                "--allow-address",
                param="source",
                code="source_not_allowed",
            )


@dataclass(frozen=True, slots=True)
class Order:
    """What a source needs to know beside the URL. It writes into `folder`, which is empty at first."""

    folder: Path
    max_bytes: int
    allowed: Allowed
    given_up: Event = field(default_factory=Event)  # nobody waits for it any more

    def room(self, origin: Origin, size: int) -> int:
        """How many bytes may come after `size`, to be asked while they come; raises TooLarge, and Unavailable when it
        has been given up."""
        if self.given_up.is_set():
            raise Unavailable(f"{origin} is not needed any more", param="source")
        if size > self.max_bytes:
            raise TooLarge(
                f"{origin} holds more than the {self.max_bytes} bytes that an adapter may have", param="source"
            )
        return self.max_bytes - size


class Source(Protocol):
    """A kind of URL, by its scheme."""

    def check(self, origin: Origin, allowed: Allowed) -> None:
        """Raises InvalidRequest for a URL that names nothing there, Forbidden for one that the operator does not
        allow. Asks nobody else."""

    def fetch(self, origin: Origin, order: Order) -> str:
        """Bring the files of an adapter that are kept, or one archive of them, into the order's folder, and say where
        they came from as exactly as possible. Blocks. Raises what `check` raises, NotFound, TooLarge, Unavailable."""


sources: Registry[Source] = Registry("adapter source", f"{__package__}.sources")
Resolve = Callable[[str, int], list[str]]


def _pattern(text: str) -> Origin:
    origin = Origin.of(text.removesuffix("*") if text.endswith("/*") else text)
    if origin.scheme == "file":
        raise InvalidRequest(f"--allow-source {text}: folders are allowed with --adapter-root")
    return origin


def _covers(pattern: Origin, origin: Origin) -> bool:
    same = (pattern.scheme, pattern.host) == (origin.scheme, origin.host)
    at = origin.path.partition("@")[0] if origin.scheme == "hf" and "@" not in pattern.path else origin.path
    return same and f"{at}/".startswith(f"{pattern.path}/")


def _is_public(address: Address) -> bool:
    """Python calls some addresses global that old or strange routes may lead inside by: `::7f00:1`, `fec0::1`."""
    inner = isinstance(address, ipaddress.IPv6Address) and address.is_site_local
    reserved = address.is_reserved and address not in NAT64
    return address.is_global and not address.is_multicast and not reserved and not inner


def _meanings(address: Address) -> list[Address]:
    """The address, and those that it stands for where it holds another one."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    inner = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in NAT64:
        inner.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return [address.ipv4_mapped] if address.ipv4_mapped else [address, *(each for each in inner if each is not None)]
