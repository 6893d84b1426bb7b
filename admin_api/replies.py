"""Writes that may be sent again: a write that came with an Idempotency-Key is done once, and answered once.

The answer is kept in the transaction of the change, so that either both are there after a crash or neither is. Writes
with one key at the same time take turns, and all but one get its answer. Failures are not kept: what was refused may be
tried again under the same key.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request, Response
from pydantic import BaseModel
from sqlalchemy import delete
from sqlalchemy.orm import Session

from ..core.errors import Conflict, InvalidRequest
from .guard import CallerDep
from .tables import Reply, now

KEY = re.compile(r"[\x21-\x7e]{1,255}")
KEPT_SECONDS = 24 * 3600


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client gets for a write."""

    body: str
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, view: BaseModel, status: int = 200) -> Answer:
        """A view, with its ETag where it has one."""
        etag = getattr(view, "etag", None)
        return cls(view.model_dump_json(), status, {} if etag is None else {"ETag": etag})

    @property
    def response(self) -> Response:
        """As HTTP."""
        return Response(self.body, self.status, self.headers, media_type="application/json")


UNDER_WAY = Answer("")


@dataclass(frozen=True, slots=True)
class Once:
    """Who sends a write, and under which key; without a key it is done each time."""

    caller: str
    key: str | None
    line: str  # method and path

    def doing(self, work: Callable[[Session], Answer], said: str = "") -> Callable[[Session], Answer]:
        """`work`, or the answer that it had the first time. `said`: what beside method and path makes it this request.

        Raises Conflict for a key that came with another request.
        """

        def once(session: Session) -> Answer:
            kept = self.kept(session, said)
            if kept is None:
                self.keep(session, UNDER_WAY, said)  # whoever else has this key waits here until we are done
                kept = work(session)
                self.keep(session, kept, said)
            return kept

        return once

    def kept(self, session: Session, said: str = "") -> Answer | None:
        """The answer that this request had before; raises Conflict when another had the key."""
        row = session.get(Reply, (self.caller, self.key)) if self.key is not None else None
        if row is None or row.created < now() - KEPT_SECONDS:
            return None
        if row.request != self._digest(said):
            message = f"the Idempotency-Key {self.key!r} came with another request; take a new one for each"
            raise Conflict(message, param="Idempotency-Key", code="idempotency_key_reused")
        return Answer(row.body or "", row.status or 200, dict(row.headers or {}))

    def keep(self, session: Session, answer: Answer, said: str = "") -> None:
        """Answer this request so from now on."""
        if self.key is None:
            return
        row = session.get(Reply, (self.caller, self.key))
        if row is None:
            row = Reply(caller=self.caller, key=self.key)
            session.add(row)
        row.request, row.created = self._digest(said), now()
        row.status, row.headers, row.body = answer.status, dict(answer.headers), answer.body
        session.flush()

    def _digest(self, said: str) -> str:
        return hashlib.sha256(f"{self.line}\n{said}".encode()).hexdigest()


def forget_old(session: Session) -> None:
    """Remove answers that nobody will ask for again."""
    session.execute(delete(Reply).where(Reply.created < now() - KEPT_SECONDS))


async def once_of(request: Request, caller: CallerDep) -> Once:
    """From the headers."""
    key = request.headers.get("idempotency-key")
    if key is not None and not KEY.fullmatch(key):
        raise InvalidRequest("an Idempotency-Key is 1 to 255 visible ASCII characters", param="Idempotency-Key")
    return Once(caller.name, key, f"{request.method} {request.url.path}?{request.url.query}")


OnceDep = Annotated[Once, Depends(once_of)]
