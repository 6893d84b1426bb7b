"""A streaming HTTP client of few instructions, so that a load on one machine measures the server and not itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ..core.errors import InvalidRequest, Unavailable

MAX_LINE = 1 << 20


@dataclass(frozen=True, slots=True)
class Client:
    """One server. Each request has a connection of its own, as requests of different users do."""

    host: str
    port: int
    api_key: str | None = None

    @classmethod
    def of(cls, url: str, api_key: str | None = None) -> Client:
        """The server at `url`; raises InvalidRequest for anything but plain HTTP."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise InvalidRequest(f"--url {url}: expected http://HOST:PORT", param="url")
        return cls(parts.hostname, parts.port or 80, api_key)

    async def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The decoded answer of one request; raises Unavailable with the server's words for one that failed."""
        async with aclosing(self.stream(method, path, body)) as parts:
            return json.loads(b"".join([part async for part in parts]))

    async def stream(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The body of an answer, in the pieces it comes in. Closing the iterator hangs up."""
        async with aclosing(self.stream_raw(method, path, b"" if body is None else json.dumps(body).encode())) as parts:
            async for part in parts:
                yield part

    async def stream_raw(self, method: str, path: str, body: bytes) -> AsyncGenerator[bytes, None]:
        """The same, of a body that is written already."""
        try:
            reader, writer = await asyncio.open_connection(self.host, self.port, limit=MAX_LINE)
        except OSError as error:
            raise Unavailable(f"no server answers at http://{self.host}:{self.port}: {error.strerror}") from error
        try:
            writer.write(self._request(method, path, body))
            status, headers = await _head(reader)
            if status != 200:
                raise Unavailable(f"{method} {path}: {status} {await _failure(reader, headers)}")
            async for part in _body(reader, headers):
                yield part
        except (OSError, asyncio.IncompleteReadError) as error:
            raise Unavailable(f"{method} {path}: the connection broke ({type(error).__name__})") from error
        finally:
            writer.close()

    def _request(self, method: str, path: str, body: bytes) -> bytes:
        key = f"Authorization: Bearer {self.api_key}\r\n" if self.api_key else ""
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nConnection: close\r\n{key}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


async def events(parts: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The payloads of server-sent events, undecoded; ends with [DONE], or with the stream."""
    rest = b""
    async for part in parts:
        *whole, rest = (rest + part).split(b"\n\n")
        for text in whole:
            if text == b"data: [DONE]":
                return
            if text.startswith(b"data: "):
                yield text[6:]


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    status = (await reader.readuntil(b"\r\n")).split()
    headers = {}
    while line := (await reader.readuntil(b"\r\n")).strip().decode("latin-1"):
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return int(status[1]), headers


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
    if headers.get("transfer-encoding") != "chunked":
        yield await reader.readexactly(int(headers["content-length"])) if "content-length" in headers else b""
        return
    while size := int(await reader.readuntil(b"\r\n"), 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)


async def _failure(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> str:
    text = b"".join([part async for part in _body(reader, headers)])
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text[:200].decode("utf-8", "replace")
