"""The responses of this server: where they are kept, and those that are made while nobody waits for them.

What is made here is held in the store, again and again, so that other servers know that somebody makes it; by the way
this one hears which are not wanted any more.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...core.callers import Caller
from ...core.errors import ArilError, InvalidRequest, NotFound, Overloaded, RateLimited
from ...core.log import event, get_logger
from .event_log import Log
from .store import ResponseStore

log = get_logger(__name__)

BEAT = 8.0  # seconds; a response is held for several times as long
MOST = 1000  # responses that one server makes in the background
MOST_OF_ONE = 250  # of them, of one tenant
COME_BACK = 5.0  # seconds after which a tenant may try again; nobody knows how long responses take
STOPPED = {"code": "server_error", "message": "the server stopped while it made this response"}


@dataclass(slots=True)
class _Run:
    task: asyncio.Task[None]
    log: Log


@dataclass(slots=True)
class Shelf:
    """The one owner of what runs in the background. Without a store nothing is kept, and nothing runs there."""

    store: ResponseStore | None = None
    _runs: dict[str, _Run] = field(default_factory=dict)
    _places: dict[str, int] = field(default_factory=dict)  # the tenant of each that is made, or is about to be
    _beating: asyncio.Task[None] | None = None

    def needed(self, param: str) -> ResponseStore:
        """The store; raises InvalidRequest for a request whose field needs one."""
        if self.store is None:
            message = f"{param}: this server keeps no responses; its operator can have them kept with --response-days"
            raise InvalidRequest(message, param=param, code="unsupported_parameter")
        return self.store

    def check_room(self, caller: Caller) -> None:
        """Raises RateLimited when the tenant has too many on the way, Overloaded when all together have."""
        mine = sum(tenant_id == caller.tenant_id for tenant_id in self._places.values())
        if mine >= MOST_OF_ONE and not caller.alone:
            message = (
                f"background: {mine} responses of the tenant {caller.tenant!r} are made in the background, the most "
                f"there may be; try again in {COME_BACK:g} s, or send background: false"
            )
            raise RateLimited(message, retry_after=COME_BACK, code="too_many_responses", param="background")
        if len(self._places) >= MOST:
            raise Overloaded(f"{MOST} responses are made in the background, the most that this server makes; try again")

    @contextmanager
    def place(self, id: str, caller: Caller) -> Iterator[None]:
        """A place for a response that is about to be made; it is given back where it was not started, and when it has
        ended. Raises as `check_room`."""
        self.check_room(caller)
        self._places[id] = caller.tenant_id
        try:
            yield
        finally:
            if id not in self._runs:
                self._places.pop(id, None)

    def start(self, id: str, work: Coroutine[object, object, None], log: Log) -> None:
        """Do `work` in the background, in its place; it writes events to `log`."""
        task = asyncio.get_running_loop().create_task(work)
        self._runs[id] = _Run(task, log)
        task.add_done_callback(lambda ended: self._ended(id, ended))
        if self._beating is None or self._beating.done():
            self._beating = asyncio.get_running_loop().create_task(self._beat())

    def running(self) -> set[asyncio.Task[None]]:
        """All that is being made here."""
        return {run.task for run in self._runs.values()}

    def log(self, id: str) -> Log | None:
        """The events of a response that is being made here."""
        return self._runs[id].log if id in self._runs else None

    def cancel(self, id: str) -> None:
        """Stop making a response, if it is made here."""
        if id in self._runs:
            self._runs[id].task.cancel()

    async def close(self) -> None:
        """Stop all; each leaves in the store that it has failed."""
        tasks = [run.task for run in self._runs.values()]
        if self._beating is not None:
            tasks.append(self._beating)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, id: str, task: asyncio.Task[None]) -> None:
        self._places.pop(id, None)
        self._runs.pop(id).log.end()
        if not task.cancelled() and (error := task.exception()) is not None:  # whoever looks hears that it failed
            told = None if isinstance(error, ArilError) else error
            log.error(event("response_not_kept", response=id, error=error), exc_info=told)

    async def _beat(self) -> None:
        """As long as anything runs."""
        while self._runs:
            await asyncio.sleep(BEAT)
            ids = list(self._runs)
            try:
                wanted = await self.needed("store").hold(ids)
            except Exception as error:  # it goes on: nobody else would hear what is not wanted any more
                log.warning(event("responses_not_held", error=repr(error)))
                continue
            for id in ids:
                if id not in wanted:
                    self.cancel(id)


def missing(id: str) -> NotFound:
    """The words for a response that is not there, whatever the reason."""
    return NotFound(f"no response {json.dumps(id[:64])} is kept here", param="response_id", code="response_not_found")
