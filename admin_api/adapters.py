"""The life of an adapter in the registry: uploaded, activated, replaced, deleted. The one transaction story.

Bytes are durable before a row names them; a row changes before a name resolves to it; a name stops resolving before
the memory and the bytes behind it go. A crash between two steps leaves work for `reconcile`, never a contradiction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO

from ..core.errors import ArilError, Unavailable
from ..core.log import event, get_logger
from ..engine.client import EngineClient
from ..lora.adapter import AdapterRef
from ..lora.catalog import CatalogEntry
from ..lora.config import CONFIG_FILE, WEIGHTS_FILE
from ..lora.store import AdapterStore, Staged
from ..lora.validate import TargetSpec
from . import repo
from .catalog import AdapterCatalog
from .checked import Facts, facts_of
from .db import Database
from .names import check_name
from .residency import Residency
from .settings import AdminSettings
from .tables import Adapter
from .tasks import Tasks, Turns, all_of

log = get_logger(__name__)
Contents = AbstractContextManager[Mapping[str, BinaryIO | Path]]  # files by name; opened and read in a worker thread


class AdapterService:
    """Changes what is served. Changes under one name take turns; different names do not wait for each other."""

    def __init__(
        self,
        settings: AdminSettings,
        database: Database,
        store: AdapterStore,
        engine: EngineClient,
        targets: TargetSpec,
    ) -> None:
        self.catalog = AdapterCatalog(engine.model.id)
        self._settings = settings
        self._database = database
        self._store = store
        self._targets = targets
        self._residency = Residency(engine)
        self._turns = Turns()
        self._naming = asyncio.Lock()  # held between durable bytes and the row that names them, and by the sweep
        self._retiring = Tasks()

    async def all(self) -> Sequence[Adapter]:
        """All adapters, by name."""
        return await self._database.run(repo.adapters)

    async def get(self, name: str) -> Adapter:
        """One adapter; raises NotFound."""
        return await self._database.run(lambda session: repo.adapter(session, name))

    async def upload(
        self,
        name: str,
        contents: Contents,
        *,
        description: str | None = None,
        activate: bool = True,
        actor: str = "admin",
    ) -> Adapter:
        """Keep `contents` as the newest revision of `name`; the same bytes again change nothing. Durable on return, and
        by default active and loaded. Raises InvalidRequest, InvalidAdapter, TooLarge or Conflict."""
        check_name(name, self.catalog.base)
        staged, facts = await asyncio.to_thread(self._stage, contents)
        async with self._turns.take(name):
            entry = await self._keep(name, staged, facts, description, actor)
            if activate:
                await self._activate(entry, actor)
            return await self.get(name)

    async def upload_folder(self, name: str, folder: Path, *, description: str | None = None) -> Adapter:
        """`upload` of a PEFT folder on this machine."""
        files = {file: folder / file for file in (CONFIG_FILE, WEIGHTS_FILE)}
        return await self.upload(name, nullcontext(files), description=description, actor="local")

    async def activate(self, name: str, number: int | None = None, *, actor: str = "admin") -> Adapter:
        """Make `name` resolve to revision `number`, or the newest. The one before serves until this one is loaded."""
        async with self._turns.take(name):
            entry = await self._database.run(lambda session: repo.entry(repo.chosen(session, name, number)))
            await self._activate(entry, actor)
            return await self.get(name)

    async def deactivate(self, name: str, *, actor: str = "admin") -> Adapter:
        """Stop resolving `name` at once; returns when its last request has ended and its memory is free."""
        async with self._turns.take(name):
            await self._database.run(lambda session: repo.deactivate(session, name, actor=actor))
            leaving = self._withdraw(name)
        await all_of(leaving)
        return await self.get(name)

    async def delete(self, name: str, *, actor: str = "admin") -> None:
        """`deactivate`, and forget the adapter and the bytes that nothing else needs."""
        async with self._turns.take(name):
            await self._database.run(lambda session: repo.delete(session, name, actor=actor))
            leaving = self._withdraw(name)
        await all_of(leaving)
        await self.drop_unneeded()

    async def converge(self, name: str) -> None:
        """Bring catalog and engine to what the registry says of `name`."""
        async with self._turns.take(name):
            entry = await self._database.run(lambda session: repo.active_entry(session, name))
            if entry is None:
                self._withdraw(name)
            else:
                await self._try_to_serve(entry)

    def differs(self, name: str, entry: CatalogEntry | None) -> bool:
        """Whether `converge` has something to do, when the registry says `entry` of `name`."""
        held = {entry.ref} if entry else set()
        return self.catalog.published(name) != entry or set(self._residency.of(name)) != held

    async def drop_unneeded(self) -> None:
        """Drop the bytes that no revision needs and no running request may still read."""
        async with self._naming:
            needed = await self._database.run(repo.needed_digests)
            needed.update(self._residency.digests())
            await asyncio.to_thread(self._drop_all_but, needed)

    async def close(self) -> None:
        """Leave what is still being retired to the next start."""
        self._retiring.cancel()
        self._residency.cancel()

    def _stage(self, contents: Contents) -> tuple[Staged, Facts]:
        try:
            with contents as files:
                staged = self._store.stage(files, self._settings.max_upload_bytes)
        except OSError as error:
            raise Unavailable(f"the upload could not be stored: {error.strerror}", code="store_unavailable") from error
        try:
            return staged, facts_of(staged, self._targets)
        except BaseException:
            staged.discard()
            raise

    async def _keep(self, name: str, staged: Staged, facts: Facts, description: str | None, actor: str) -> CatalogEntry:
        async with self._naming:
            digest = await asyncio.to_thread(self._store.commit, staged)
            return await self._database.run(
                lambda session: repo.entry(
                    repo.record(session, name, digest, facts, description=description, actor=actor)
                )
            )

    async def _activate(self, entry: CatalogEntry, actor: str) -> None:
        await self._residency.load(entry.ref)
        kept = self._settings.kept_revisions
        await self._database.run(
            lambda session: repo.activate(session, entry.name, entry.ref.revision, actor=actor, kept=kept)
        )
        await self._serve(entry)

    async def _serve(self, entry: CatalogEntry) -> None:
        """Resolve to `entry`; what the name resolved to before leaves when nothing uses it."""
        await self._residency.load(entry.ref)
        self.catalog.publish(entry)
        for ref in self._residency.of(entry.name):
            if ref != entry.ref:
                self._retiring.start(self._retire(ref))

    async def _try_to_serve(self, entry: CatalogEntry) -> None:
        try:
            check_name(entry.name, self.catalog.base)
            await self._serve(entry)
        except ArilError as error:
            if self.catalog.fault(entry.name) != error.message:
                log.error(event("adapter_not_served", adapter=entry.name, digest=entry.ref.digest, error=error))
            self._withdraw(entry.name, fault=error.message)

    def _withdraw(self, name: str, *, fault: str | None = None) -> list[asyncio.Task[None]]:
        self.catalog.withdraw(name, fault=fault)
        return [self._residency.leave(ref) for ref in self._residency.of(name)]

    async def _retire(self, ref: AdapterRef) -> None:
        await asyncio.sleep(self._settings.retire_grace_seconds)
        async with self._turns.take(ref.name):
            entry = self.catalog.published(ref.name)
            if ref not in self._residency.of(ref.name) or (entry is not None and entry.ref == ref):
                return
            leaving = self._residency.leave(ref)
        await all_of([leaving])
        await self.drop_unneeded()

    def _drop_all_but(self, needed: set[str]) -> None:
        for digest in self._store.digests():
            if digest not in needed:
                self._store.drop(digest)
                log.info(event("adapter_bytes_dropped", digest=digest))
