"""Puts the registry together: one call for the composition root."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter, Depends, Request

from ..engine.client import EngineClient
from ..lora.store import AdapterStore
from ..lora.validate import TargetSpec
from .adapters import AdapterService
from .catalog import AdapterCatalog
from .db import Database
from .keys import AdminKey, admin_key
from .migrate import upgrade
from .reconcile import Reconciler
from .routes.adapters import AdapterRoutes
from .settings import AdminSettings

PREFIX = "/admin/v1"


@dataclass(frozen=True, slots=True)
class Admin:
    """The registry, ready to be mounted. Whoever mounts `router` also answers core.errors over HTTP."""

    router: APIRouter
    service: AdapterService
    catalog: AdapterCatalog
    key_path: Path | None  # where a key that was made here can be read
    database: Database
    store: AdapterStore
    reconciler: Reconciler

    async def start(self) -> None:
        """Migrate, finish what a crash left, load what is active, and go on reconciling. Call before serving."""
        await asyncio.to_thread(upgrade, self.database)
        await asyncio.to_thread(self.store.sweep)
        await self.reconciler.once()
        self.reconciler.start()

    async def close(self) -> None:
        """Stop; what is half done is finished by the next start."""
        self.reconciler.stop()
        await self.service.close()
        await asyncio.to_thread(self.database.close)


def build(settings: AdminSettings, engine: EngineClient, store: AdapterStore, targets: TargetSpec) -> Admin:
    """The registry of one server, which alone has the state folder. Touches no network yet.

    Raises InvalidRequest for settings that cannot work.
    """
    key = admin_key(settings)
    database = Database(settings.url)
    service = AdapterService(settings, database, store, engine, targets)
    router = APIRouter(prefix=PREFIX, dependencies=[Depends(_guard(key))])
    router.include_router(AdapterRoutes(service, settings.max_upload_bytes).router)
    reconciler = Reconciler(service, database, settings.reconcile_seconds)
    return Admin(router, service, service.catalog, key.path, database, store, reconciler)


def _guard(key: AdminKey) -> Callable[[Request], Awaitable[None]]:
    async def guard(request: Request) -> None:
        """Lets the holder of the admin key pass, before any of the body is read."""
        key.check(request.headers.get("authorization"))

    return guard
