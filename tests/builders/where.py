"""On which threads functions run while something is awaited: on the event loop's, or beside it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any


@dataclass(slots=True)
class Where:
    """Everything of Python that ran."""

    here: set[CodeType] = field(default_factory=set)  # on the event loop
    beside: set[CodeType] = field(default_factory=set)

    def ran_beside(self, function: Callable[..., Any]) -> bool:
        """Whether all of it ran on other threads, and some did."""
        code = getattr(function, "__func__", function).__code__
        return code in self.beside and code not in self.here


async def watched(work: Awaitable[Any]) -> tuple[Any, Where]:
    """What `work` returned, and where what ran for it; of threads that were there before nothing is told."""
    where = Where()

    def note(into: set[CodeType]) -> Callable[[FrameType, str, Any], None]:
        return lambda frame, event, _: into.add(frame.f_code) if event == "call" else None

    threading.setprofile(note(where.beside))
    sys.setprofile(note(where.here))
    try:
        return await work, where
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
