"""Asking this server from within: the seam between who has requests to make, a batch, and the face that answers."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from .callers import Caller

NOT_NOW = (429, 503)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a client would have received."""

    status: int
    request_id: str
    body: bytes  # JSON
    retry_after: float | None = None  # seconds, as the header says

    @property
    def is_not_now(self) -> bool:
        """Whether the same request may be answered later: a limit has been reached, or the server cannot do it yet."""
        return self.status in NOT_NOW

    @property
    def error(self) -> Mapping[str, Any]:
        """What it says went wrong; empty where nothing did."""
        with suppress(ValueError):
            said = json.loads(self.body)
            if isinstance(said, dict) and isinstance(said.get("error"), dict):
                return dict(said["error"])
        return {}


class Answerer(Protocol):
    """Whoever answers requests as the HTTP face does, as background work: nobody who waits stands behind them."""

    @property
    def paths(self) -> Collection[str]:
        """The routes that batches may be made for."""

    async def answer(self, caller: Caller, path: str, body: bytes) -> Answer:
        """POST `body` as `caller`, of whom no key is asked. Cancelled, it ends the request."""
