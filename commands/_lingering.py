"""A connection's end that waits for what the client still sends, so that it hears what it was told before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

LINGER = 5.0  # seconds


class Lingering:
    """An asyncio.Transport. Closed while bytes come, the system would tell the client of a reset, and throw away the
    answer that it has not read yet: so only our half is closed at first, where `owes` says that the client still sends.
    """

    def __init__(self, transport: asyncio.Transport, owes: Callable[[], bool]) -> None:
        self._transport = transport
        self._owes = owes
        self._timer: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Whether nothing more is said or heard."""
        return self._timer is not None or self._transport.is_closing()

    def close(self) -> None:
        """After the client's own end, or some seconds; the second time at once. TLS has no half to close."""
        if self.is_closing() or not self._owes() or not self._transport.can_write_eof():
            if self._timer is not None:
                self._timer.cancel()
            self._transport.close()
            return
        self._timer = asyncio.get_running_loop().call_later(LINGER, self._transport.close)
        self._transport.write_eof()
        self._transport.resume_reading()
