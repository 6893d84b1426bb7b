"""Which adapters requests may use, and who still uses one that is leaving. It knows names and counts, no bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from ..core.errors import InvalidRequest
from ..lora.adapter import AdapterRef


class AdapterMemory(Protocol):
    """Who holds the bytes."""

    def pin(self, ref: AdapterRef) -> None: ...

    def unpin(self, ref: AdapterRef) -> None: ...

    def forget(self, ref: AdapterRef) -> None: ...


class Residents:
    """An adapter is welcome, then leaving, then gone. Owned by the engine's thread."""

    def __init__(self, memory: AdapterMemory) -> None:
        self._memory = memory
        self._welcome: dict[AdapterRef, None] = {}
        self._leaving: dict[AdapterRef, list[Callable[[], None]]] = {}
        self._users: Counter[AdapterRef] = Counter()

    @property
    def refs(self) -> tuple[AdapterRef, ...]:
        """Those that new requests may name."""
        return tuple(self._welcome)

    def welcome(self, ref: AdapterRef, *, pinned: bool) -> None:
        """Let requests use `ref`. One that was leaving stays, and those who waited for its end wait no longer."""
        self._welcome[ref] = None
        if pinned:
            self._memory.pin(ref)
        for on_free in self._leaving.pop(ref, ()):
            on_free()

    def retire(self, ref: AdapterRef, on_free: Callable[[], None]) -> None:
        """Refuse new users of `ref`; call `on_free` when the last one has left, which may be now."""
        self._welcome.pop(ref, None)
        self._leaving.setdefault(ref, []).append(on_free)
        self._settle(ref)

    def enter(self, ref: AdapterRef) -> None:
        """One more user; raises InvalidRequest for an adapter that is not welcome."""
        if ref not in self._welcome:
            state = "is being unloaded" if ref in self._leaving else "is not loaded"
            raise InvalidRequest(f"adapter {ref.name!r} {state}", param="model", code="adapter_not_loaded")
        self._users[ref] += 1

    def leave(self, ref: AdapterRef) -> None:
        """One user less."""
        self._users[ref] -= 1
        self._settle(ref)

    def _settle(self, ref: AdapterRef) -> None:
        if self._users[ref]:
            return
        del self._users[ref]
        callbacks = self._leaving.pop(ref, None)
        if callbacks is None:
            return
        self._memory.unpin(ref)
        if ref.digest not in {other.digest for other in (*self._welcome, *self._leaving)}:
            self._memory.forget(ref)
        for on_free in callbacks:
            on_free()
