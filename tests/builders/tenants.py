"""Tenants of a registry, and how one looks at another: with a key of its own, over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from aril.lora.config import CONFIG_FILE, WEIGHTS_FILE

from .registry import ADAPTERS, Place, Registry

ALL = ["infer", "adapters:read", "adapters:write"]
PROMPT = {"prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0, "ignore_eos": True}


class Tenant:
    """Somebody who holds one key."""

    def __init__(self, registry: Registry, key: dict[str, Any]) -> None:
        self.registry = registry
        self.id: str = key["id"]
        self.headers = {"Authorization": f"Bearer {key['key']}"}

    async def send(self, method: str, path: str, **fields: Any) -> httpx.Response:
        """One request with the key."""
        return await self.registry.http.request(method, path, headers=self.headers, **fields)

    async def upload(self, name: str, folder: Path) -> httpx.Response:
        """POST the two files of a PEFT folder, and wait for the gate."""
        files = [("files", (file, (folder / file).read_bytes())) for file in (CONFIG_FILE, WEIGHTS_FILE)]
        return await self.send("POST", ADAPTERS, data={"name": name, "wait": "60"}, files=files)

    async def ask(self, model: str) -> httpx.Response:
        """A completion."""
        return await self.send("POST", "/v1/completions", json={"model": model, **PROMPT})

    async def models(self) -> list[str]:
        """The ids of /v1/models."""
        return [model["id"] for model in (await self.send("GET", "/v1/models")).json()["data"]]


async def tenant(registry: Registry, name: str, **key: Any) -> Tenant:
    """A tenant, made if need be, and a key of it."""
    await registry.http.post("/admin/v1/tenants", json={"name": name})
    made = await registry.http.post("/admin/v1/keys", json={"name": "k", "tenant": name, "scopes": ALL, **key})
    assert made.status_code == 201, made.text
    return Tenant(registry, made.json())


@asynccontextmanager
async def two(place: Place, folder: Path) -> AsyncIterator[tuple[Tenant, Tenant, str]]:
    """One who owns the adapter `secret`, one who does not, and the digest of `secret`."""
    async with place.running() as registry:
        owner, stranger = [await tenant(registry, name) for name in ("owner", "stranger")]
        uploaded = await owner.upload("secret", folder)
        assert uploaded.json()["state"] == "ready", uploaded.text
        yield owner, stranger, uploaded.json()["digest"]


def told(answer: httpx.Response, name: str) -> tuple[int, str, list[tuple[str, str]]]:
    """All that an answer says, with its own name for the adapter taken out."""
    quiet = ("date", "content-length", "x-request-id")
    headers = sorted((header, value) for header, value in answer.headers.items() if header not in quiet)
    return answer.status_code, answer.text.replace(name, "NAME"), headers
