"""A registry at work: a real engine on a tiny model, a real store and database, and both HTTP faces in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import httpx
from aril.admin_api.app import Admin, build
from aril.admin_api.settings import AdminSettings
from aril.core.callers import LOCAL
from aril.engine.aio import AsyncEngine
from aril.engine.config import EngineConfig
from aril.engine.engine import Engine
from aril.engine.params import SamplingParams
from aril.lora.adapter import AdapterRef
from aril.lora.config import CONFIG_FILE, WEIGHTS_FILE
from aril.lora.store import AdapterStore
from aril.server.app import create_app
from aril.server.inside import Inside
from fastapi import FastAPI

BASE = "tiny"
CONTEXT = 1 << 15  # tokens that the base can hold
ADMIN_KEY = "the-admin-key"
ADAPTERS = "/admin/v1/adapters"


@dataclass(frozen=True, slots=True)
class Registry:
    """One life of a server in a place."""

    admin: Admin
    engine: AsyncEngine
    store: AdapterStore
    http: httpx.AsyncClient

    async def send(self, method: str, path: str, **fields: Any) -> httpx.Response:
        """One request with the admin key."""
        return await self.http.request(method, path, **fields)

    async def upload(self, name: str, folder: Path, **fields: str) -> httpx.Response:
        """POST the two files of a PEFT folder, and wait for the gate."""
        files = [("files", (file, (folder / file).read_bytes())) for file in (CONFIG_FILE, WEIGHTS_FILE)]
        return await self.http.post(ADAPTERS, data={"name": name, "wait": "60", **fields}, files=files)

    async def models(self) -> list[str]:
        """The ids of /v1/models."""
        return [model["id"] for model in (await self.http.get("/v1/models")).json()["data"]]

    async def resolve(self, model: str) -> AdapterRef | None:
        """The adapter that `model` names to somebody on this machine."""
        return (await self.admin.catalog.resolve(model, LOCAL, lambda _header: None)).ref

    @asynccontextmanager
    async def answering(self, model: str) -> AsyncIterator[None]:
        """While a request is being answered that would take minutes; it is hung up at the end of the context."""
        params = SamplingParams(temperature=0.0, max_tokens=CONTEXT - 8, ignore_eos=True)
        adapter = await self.resolve(model)
        chunks = self.engine.generate(f"long-{model}", [5], params, adapter=adapter)
        async with aclosing(chunks):  # type: ignore[type-var]  # it is a generator
            await anext(chunks)
            yield

    async def answer(self, model: str, num_tokens: int = 8) -> list[int]:
        """The greedy tokens that `model` gives to one fixed prompt."""
        adapter = await self.resolve(model)
        params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
        tokens: list[int] = []
        async for chunk in self.engine.generate(f"{model}-{id(tokens)}", list(range(3, 40)), params, adapter=adapter):
            tokens += chunk.token_ids
        return tokens


class SharedEngine:
    """One engine for all tests, as loading is what takes time; each life of a registry gives it its own store."""

    def __init__(self, model: Path, **flags: Any) -> None:
        small = {"dtype": "float32", "kv_cache_memory": 32 << 20, "threads": 1}
        config = EngineConfig(model=str(model), served_model_name=BASE, **{**small, **flags})
        engine = Engine(config, adapter_folder=lambda ref: self.store.path(ref.digest))
        self.targets = engine.targets
        self.client = AsyncEngine(engine)
        self.store: AdapterStore

    async def forget_all(self) -> None:
        """Hold no adapter, as after a start."""
        for ref in self.client.status().loaded_adapters:
            await self.client.unload_adapter(ref)


@dataclass(frozen=True, slots=True)
class Place:
    """What outlives a process: the state folder and the database. A server can run there, one at a time."""

    engine: SharedEngine
    state: Path
    database_url: str

    @property
    def store(self) -> AdapterStore:
        """The bytes on disk."""
        return AdapterStore(self.state / "store")

    @property
    def num_staged(self) -> int:
        """How many things are under way in the store, or were left half done."""
        return sum(1 for path in (self.state / "store" / "staging").glob("*/*") if path.name != "graves")

    @asynccontextmanager
    async def running(self, *, crash: bool = False, **settings: Any) -> AsyncIterator[Registry]:
        """A server from start to end; with `crash` it ends without closing the registry."""
        assert self.engine.client.status().alive, "an earlier test killed the engine that all share: see its log"
        self.engine.store = self.store
        given = {"state_dir": self.state, "database_url": self.database_url, "admin_key": ADMIN_KEY}
        options = AdminSettings(**{**given, "retire_grace_seconds": 0.0, **settings})
        admin = build(options, self.engine.client, self.engine.store, self.engine.targets)
        await admin.start()
        try:
            face = {"keys": admin.keyring, "meter": admin.books, "kept": admin.responses, "routers": admin.routers}
            app = create_app(self.engine.client, admin.catalog, **face)
            await admin.batches.start(Inside(app))
            async with _client(app) as http:
                yield Registry(admin, self.engine.client, self.engine.store, http)
        finally:
            if not crash:
                await admin.close()
            await self.engine.forget_all()


def _client(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app, raise_app_exceptions=False),
        base_url="http://aril",
        headers={"Authorization": f"Bearer {ADMIN_KEY}"},
    )


async def until(condition: Any) -> None:
    """Give other tasks their turn until `condition()` holds."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


def alive(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on an event loop."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run
