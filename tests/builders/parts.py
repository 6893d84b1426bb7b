"""A client that sends an adapter in parts."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from aril.lora.config import CONFIG_FILE, WEIGHTS_FILE

UPLOADS = "/admin/v1/uploads"


def files_of(folder: Path) -> dict[str, bytes]:
    """The two files of a PEFT folder."""
    return {file: (folder / file).read_bytes() for file in (CONFIG_FILE, WEIGHTS_FILE)}


def digest_header(data: bytes) -> str:
    """Content-Digest of a part."""
    return f"sha-256=:{base64.b64encode(hashlib.sha256(data).digest()).decode()}:"


@dataclass(slots=True)
class Sender:
    """One upload; `url` is where it is."""

    http: httpx.AsyncClient
    files: Mapping[str, bytes]
    url: str = ""

    async def announce(self, name: str = "pirate", **fields: object) -> httpx.Response:
        """Begin it."""
        files = {f: {"size": len(d), "sha256": hashlib.sha256(d).hexdigest()} for f, d in self.files.items()}
        answer = await self.http.post(UPLOADS, json={"name": name, "files": files, **fields})
        self.url = answer.headers.get("location", "")
        return answer

    async def put(self, file: str, offset: int, data: Any, **headers: str) -> httpx.Response:
        """Send one part."""
        digest = {"Content-Digest": digest_header(data)} if isinstance(data, bytes) else {}
        given = {"Upload-Offset": str(offset), **digest, **headers}
        return await self.http.put(f"{self.url}/files/{file}", content=data, headers=given)

    async def send(self, part_bytes: int = 100_000) -> None:
        """Send all that is missing, from where the server says that it goes on."""
        for file, state in (await self.state())["files"].items():
            for offset in range(state["received"], state["size"], part_bytes):
                answer = await self.put(file, offset, self.files[file][offset : offset + part_bytes])
                assert answer.status_code == 200, answer.text

    async def complete(self) -> httpx.Response:
        """End it."""
        return await self.http.post(f"{self.url}/complete")

    async def state(self) -> dict[str, Any]:
        """What the server says of it."""
        answer = await self.http.get(self.url)
        assert answer.status_code == 200, answer.text
        state: dict[str, Any] = answer.json()
        return state
