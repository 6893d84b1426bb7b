"""Puts the registry together: one call for the composition root."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter

from ..core.log import event, get_logger
from ..engine.adapter_metrics import AdapterMetrics
from ..engine.client import EngineClient
from ..lora.store import AdapterStore
from ..lora.validate import TargetSpec
from . import audit
from .adapters import AdapterService
from .admin_key import admin_key
from .arrivals import Arrivals
from .batches import Worker
from .books import Books
from .canaries import Canaries
from .catalog import AdapterCatalog
from .db import Database
from .feed import Feed
from .gate import Gate
from .guard import front, guard
from .keyring import Keyring
from .migrate import upgrade
from .quotas import Quotas
from .reconcile import Reconciler
from .responses import Responses
from .routes.adapters import AdapterRoutes
from .routes.aliases import AliasRoutes
from .routes.audit import AuditRoutes
from .routes.batches import BatchRoutes
from .routes.files import FileRoutes
from .routes.incoming import IncomingRoutes
from .routes.keys import KeyRoutes
from .routes.tenants import TenantRoutes
from .routes.uploads import UploadRoutes
from .routes.usage import UsageRoutes
from .routes.vllm import VllmRoutes
from .server_id import new_server_id
from .settings import AdminSettings
from .shadows import Shadows
from .store_of import belong

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Admin:
    """The registry, ready to be mounted. Whoever mounts `routers` also answers core.errors over HTTP."""

    routers: list[APIRouter]
    service: AdapterService
    catalog: AdapterCatalog
    keyring: Keyring
    books: Books
    shadows: Shadows
    canaries: Canaries
    key_path: Path | None  # where a key that was made here can be read
    database: Database
    store: AdapterStore
    move_store: bool
    reconciler: Reconciler
    feed: Feed
    gate: Gate
    arrivals: Arrivals
    responses: Responses | None  # None: none is kept
    batches: Worker  # to be started with whoever answers requests

    async def start(self) -> None:
        """Migrate, see that the store is the database's, learn the keys, finish what a crash left, load what is active,
        and go on reconciling. Call before serving."""
        await asyncio.to_thread(upgrade, self.database)
        await asyncio.to_thread(self._belong)
        await self.feed.begin()
        await self.keyring.reload()
        log.info(event("audit_read", **await self.database.look(audit.head)))
        self.books.start()
        await asyncio.to_thread(self.store.sweep)
        if self.responses is not None:
            await self.responses.sweep(alone=self.database.is_sqlite)
        await self.reconciler.once()
        self.reconciler.start()
        self.feed.start()
        await self.gate.start()
        await self.arrivals.start()

    def _belong(self) -> None:
        mark, place = self.store.identity(), self.store.place
        self.database.transact(lambda session: belong(session, mark, place, moved=self.move_store))

    async def close(self) -> None:
        """Stop; what is half done is finished by the next start."""
        self.feed.stop()
        await self.batches.close()
        self.arrivals.stop()
        self.gate.stop()
        self.reconciler.stop()
        self.shadows.close()
        self.canaries.close()
        await self.service.close()
        await self.books.close()
        await asyncio.to_thread(self.database.close)


def build(settings: AdminSettings, engine: EngineClient, store: AdapterStore, targets: TargetSpec) -> Admin:
    """The registry of one server, which alone has the state folder. Touches no network yet.

    Raises InvalidRequest for settings that cannot work.
    """
    key = admin_key(settings)
    database = Database(settings.url)
    keyring = Keyring(database, key.digest, settings.api_keys)
    service = AdapterService(settings, database, store, engine, targets)
    shadows, canaries = Shadows(engine, service.load), Canaries(service)
    service.catalog.on_failure(canaries.failed)
    books = Books(database, Quotas(keyring.limits), [AdapterMetrics(), shadows, canaries])
    arrivals = Arrivals(settings, database, store, service, new_server_id())
    responses = (
        Responses(database, days=settings.response_days, max_bytes=settings.response_bytes)
        if settings.response_days
        else None
    )
    batches = Worker(database, keyring.stands_for, new_server_id(), lines_at_once=settings.batch_lines)
    sweeps = [batches.sweep] if responses is None else [batches.sweep, responses.sweep]
    reconciler = Reconciler(service, database, settings.reconcile_seconds, sweeps)
    present, past, openai = guard(keyring), guard(keyring, keyring.looking_back), front(keyring)
    faces = (
        IncomingRoutes(present, service, arrivals, settings.max_upload_bytes),
        AliasRoutes(present, service, shadows, canaries),
        AdapterRoutes(present, service),
        UploadRoutes(present, arrivals),
        TenantRoutes(present, database, keyring, service),
        KeyRoutes(present, database, keyring),
        UsageRoutes(past, database, books, engine.model.id),
        AuditRoutes(past, database),
        VllmRoutes(present, service, arrivals),
        FileRoutes(openai, database, settings.max_file_bytes),
        BatchRoutes(openai, database, batches),
    )
    feed = Feed(database, [keyring, service])
    gate = Gate(service, database, store, engine, targets)
    return Admin(
        routers=[each.router for each in faces],
        service=service,
        catalog=service.catalog,
        keyring=keyring,
        books=books,
        shadows=shadows,
        canaries=canaries,
        key_path=key.path,
        database=database,
        store=store,
        move_store=settings.move_store,
        reconciler=reconciler,
        feed=feed,
        gate=gate,
        arrivals=arrivals,
        responses=responses,
        batches=batches,
    )
