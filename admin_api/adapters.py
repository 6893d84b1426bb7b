"""The life of an adapter in the registry: uploaded, checked, served, replaced, deleted. The one transaction story.

Bytes are durable before a row names them; a row changes before requests see it; requests stop seeing a revision before
the memory and the bytes behind it go. A crash between two steps leaves work for `reconcile`, never a contradiction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from sqlalchemy.orm import Session

from ..core.callers import EVERYTHING, LOCAL, Caller
from ..core.errors import InvalidAdapter, Unavailable
from ..core.log import event, get_logger
from ..engine.client import EngineClient
from ..lora.adapter import AdapterRef
from ..lora.config import CONFIG_FILE, WEIGHTS_FILE
from ..lora.fingerprint import difference
from ..lora.store import AdapterStore, Staged
from ..lora.validate import TargetSpec
from . import repo
from .adapter_pages import page
from .canaries import Watch
from .catalog import AdapterCatalog
from .checked import Survey, survey_of
from .db import Database
from .etags import etag
from .feed import Change
from .names import check_name
from .repo import Particulars
from .residency import Residency
from .settings import AdminSettings
from .tables import Adapter, Revision, State
from .tasks import News, Tasks, all_of

T = TypeVar("T")
log = get_logger(__name__)
Contents = AbstractContextManager[Mapping[str, BinaryIO | Path]]  # files by name; opened and read in a worker thread
DEFAULTS = Particulars()
REGISTRY = Caller(name="registry", scopes=EVERYTHING)  # what changes by itself
UNDER_WAY = (State.UPLOADED, State.CHECKING)
NAMING = 0x6E616D65  # "name": held between durable bytes and the row that names them, and by the sweep
MOST_KEEPING = 4  # uploads at once that hash and write: each takes two connections to the database
LOOK_AGAIN_SECONDS = 0.5  # how often `wait` looks whether another server's gate has decided


class AdapterService:
    """Changes what is served. `uploads` is set whenever something waits to be checked."""

    def __init__(
        self,
        settings: AdminSettings,
        database: Database,
        store: AdapterStore,
        engine: EngineClient,
        targets: TargetSpec,
    ) -> None:
        self._residency = Residency(engine)
        self.catalog = AdapterCatalog(engine.model.id, self._residency, partial(difference, now=targets.base.said()))
        self.uploads = asyncio.Event()
        self._settings = settings
        self._database = database
        self._store = store
        self._targets = targets
        self._news = News()
        self._looking = asyncio.Lock()  # so that what was read later is also what requests see later
        self._naming = asyncio.Lock()  # held by the sweep
        self._keeping = asyncio.Semaphore(MOST_KEEPING)
        self._under_way: set[asyncio.Task[Revision]] = set()  # bytes are there, or soon, and their row is on its way
        self._retiring = Tasks()

    async def page(self, caller: Caller, wanted: repo.Wanted) -> str:
        """Adapters by name, as the JSON of an AdapterList."""
        return await self._database.look(lambda session: page(session, caller, wanted, self.catalog))

    async def get(self, caller: Caller, name: str) -> Adapter:
        """One adapter, of which requests see all that is READY; raises NotFound."""
        adapter = await self._database.look(lambda session: repo.adapter(session, caller, name))
        seen = self.catalog.seen(caller.tenant, name)
        if {r.number for r in adapter.revisions if r.state is State.READY} - (seen.known if seen else set()):
            await self.refresh(caller.tenant, name)  # the gate may be about to, or another server's
        return adapter

    async def upload(
        self,
        caller: Caller,
        name: str,
        contents: Contents,
        said: Particulars = DEFAULTS,
        *,
        also: Callable[[Session, Revision], None] = lambda _session, _revision: None,
    ) -> Revision:
        """Keep `contents` as the newest revision of `name`, to be checked; the same bytes again change nothing.

        Durable on return; `also` is done in the same transaction. Raises InvalidRequest, InvalidAdapter (what names and
        shapes tell), TooLarge or Conflict.
        """
        check_name(name, self.catalog.base)
        staged, survey = await asyncio.to_thread(self._stage, contents)

        def keep() -> Revision:
            with self._database.among(NAMING):
                facts = survey.with_digest(self._store.commit(staged))
                return self._database.transact(lambda session: record(session, facts))

        def record(session: Session, facts: repo.Facts) -> Revision:
            revision = repo.record(session, caller, name, facts, said, most=self._settings.max_revisions)
            if revision.state is State.READY and self.catalog.judge(revision.base) is not None:
                repo.check_again(session, caller, revision)
            also(session, revision)
            return revision

        async with self._keeping:
            async with self._naming:  # not while a sweep runs
                keeping = asyncio.create_task(asyncio.to_thread(keep))
                self._under_way.add(keeping)
                keeping.add_done_callback(self._under_way.discard)
            revision = await asyncio.shield(keeping)  # the thread goes on whoever waits for it
        self.catalog.found(revision.digest)
        await self.refresh(caller.tenant, name)
        self.uploads.set()
        return revision

    async def wait(self, caller: Caller, name: str, number: int, seconds: float) -> Revision:
        """Revision `number` once it is READY or REJECTED, which requests see then too, or as it stands after `seconds`;
        raises NotFound."""
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            news = self._news.next(f"{caller.tenant}/{name}")
            revision = await self._database.look(lambda session: repo.revision(session, caller, name, number))
            left = deadline - asyncio.get_running_loop().time()
            if revision.state not in UNDER_WAY:
                await self.refresh(caller.tenant, name)  # the gate may be about to, or another server's
                return revision
            if left <= 0:
                return revision
            with suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), min(left, LOOK_AGAIN_SECONDS))

    async def upload_folder(self, name: str, folder: Path, *, description: str | None = None) -> Adapter:
        """Upload a PEFT folder on this machine, and wait until the bare name means it; raises InvalidAdapter."""
        files = {file: folder / file for file in (CONFIG_FILE, WEIGHTS_FILE)}
        revision = await self.upload(
            LOCAL, name, nullcontext(files), Particulars(description=description, activate=True)
        )
        while revision.state in UNDER_WAY:
            revision = await self.wait(LOCAL, name, revision.number, 600)
        if revision.state is State.REJECTED:
            problems = [str(problem) for problem in (revision.report or {}).get("problems", ())]
            raise InvalidAdapter(f"{name!r} was rejected: {'; '.join(problems)}", problems=problems)
        return await self.get(LOCAL, name)

    async def transact(self, work: Callable[[Session], T]) -> T:
        """Do `work`, which changes no adapter, in one transaction."""
        return await self._database.run(work)

    async def change(self, caller: Caller, name: str, work: Callable[[Session], T]) -> T:
        """Do `work`, a change of adapter `name`, in one transaction; requests see it on return."""
        done = await self._database.run(work)
        await self.refresh(caller.tenant, name)
        return done

    async def activate(self, caller: Caller, name: str, number: int | None = None) -> Adapter:
        """Let the bare name mean revision `number`, or the newest that is READY."""
        return await self.change(caller, name, lambda session: repo.activate(session, caller, name, number))

    async def deactivate(self, caller: Caller, name: str) -> Adapter:
        """Let the bare name mean nothing, and `let_go`."""
        adapter = await self.change(caller, name, lambda session: repo.deactivate(session, caller, name))
        await self.let_go(caller, name)
        return adapter

    async def delete(self, caller: Caller, name: str) -> None:
        """Forget an adapter, and `let_go`."""
        await self.change(caller, name, lambda session: repo.delete(session, caller, name))
        await self.let_go(caller, name)

    async def let_go(self, caller: Caller, name: str) -> None:
        """Free the memory of what no alias of `name` leads to, and the bytes that nothing needs; returns when the last
        request for them has ended."""
        listed = self.catalog.seen(caller.tenant, name)
        routed = set(listed.routed()) if listed else set()
        idle = [ref for ref in self._residency if ref.name == name and ref not in routed]
        for ref in idle:
            if not self.catalog.names(ref, besides=caller.tenant):
                self._residency.leave(ref)
        await all_of(self._residency.leaving(name))
        await self.drop_unneeded()

    async def load(self, ref: AdapterRef) -> None:
        """Let the engine use `ref` for what is no request of a caller's; raises NotFound without its bytes."""
        await self._residency.load(ref)

    def watch(self, tenant: str, name: str, alias: str) -> Watch | None:
        """Which revisions of an alias are watched, and how."""
        listed = self.catalog.seen(tenant, name)
        route = listed.routes.get(alias) if listed else None
        return route.watch if route else None

    async def take_back(self, tenant: str, name: str, alias: str, *, version: int, why: Mapping[str, Any]) -> None:
        """Roll an alias back by ourselves if it still has that version; raises Stale when not."""

        def work(session: Session) -> None:
            caller = repo.acting(session, REGISTRY, tenant)
            repo.rollback(session, caller, name, alias, match=etag(version), why=why)

        await self._database.run(work)
        await self.refresh(tenant, name)

    async def refresh(self, tenant: str, name: str) -> None:
        """Let requests see one adapter as the registry has it now; revisions that are gone leave the engine, soon."""
        for ref in await self._see(tenant, name):
            self._retiring.start(self._retire(ref))

    async def changed(self, changes: Sequence[Change] | None) -> None:
        """Some server has changed these, None: anything. Requests see what the registry says now."""
        if changes is None:
            await self.refresh_all()
        for tenant, name in dict.fromkeys((change.tenant, change.adapter) for change in changes or ()):
            if name is not None:
                await self.refresh(tenant, name)
        self.uploads.set()

    async def refresh_all(self) -> None:
        """Let requests see everything as the registry has it now."""
        async with self._looking:
            judge = self.catalog.judge
            self.catalog.put_all(await self._database.look(lambda session: repo.all_listed(session, judge)))
        self._news.tell_all()
        for ref in self._residency:
            if not self.catalog.names(ref):
                self._retiring.start(self._retire(ref))

    async def retire_older(self) -> None:
        """Retire old revisions beyond those that are kept of each adapter."""
        kept = self._settings.kept_revisions
        changed = await self._database.run(lambda session: repo.retire_older(session, REGISTRY, kept))
        for adapter in changed:
            await self.refresh(adapter.tenant.name, adapter.name)

    async def drop_unneeded(self) -> None:
        """Drop the bytes that no revision and no running request needs; while uploads come in, the next time."""
        async with self._naming:
            await asyncio.to_thread(self._sweep, may_drop=not self._under_way)

    async def close(self) -> None:
        """Leave what is still being retired to the next start."""
        self._retiring.cancel()
        self._residency.cancel()

    def _stage(self, contents: Contents) -> tuple[Staged, Survey]:
        try:
            with contents as files:
                staged = self._store.stage(files, self._settings.max_upload_bytes)
        except OSError as error:
            raise Unavailable(f"the upload could not be stored: {error.strerror}", code="store_unavailable") from error
        try:
            return staged, survey_of(staged, self._targets)
        except BaseException:
            staged.discard()
            raise

    async def _see(self, tenant: str, name: str) -> list[AdapterRef]:
        """Refresh; returns what the engine holds of that name and no tenant has any more."""
        async with self._looking:
            judge = self.catalog.judge
            listed = await self._database.look(lambda session: repo.listed(session, tenant, name, judge))
            self.catalog.put(tenant, name, listed)
        self._news.tell(f"{tenant}/{name}")
        return [ref for ref in self._residency if ref.name == name and not self.catalog.names(ref)]

    async def _retire(self, ref: AdapterRef) -> None:
        await asyncio.sleep(self._settings.retire_grace_seconds)
        if self._residency.holds(ref) and not self.catalog.names(ref):
            await all_of([self._residency.leave(ref)])
            await self.drop_unneeded()

    def _sweep(self, *, may_drop: bool) -> None:
        with self._database.alone(NAMING) as is_alone:
            needed = self._database.read(repo.needed_digests)
            self._store.claim(self._database.read(repo.registry))
            present = set(self._store.digests())
            for digest in sorted(present - needed) if may_drop and is_alone else ():  # else a row is on its way
                if self._store.drop(digest, needed=partial(self._needs, digest)):
                    log.info(event("adapter_bytes_dropped", digest=digest))
        self.catalog.lose(needed - present)

    def _needs(self, digest: str) -> bool:
        """Whether the registry or the engine has a use for these bytes."""
        held = digest in set(self._residency.digests())
        return held or self._database.transact(lambda session: repo.is_needed(session, digest))
