"""Where responses are kept that their callers may come back to. Who keeps them, and where, is another's affair."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from ...core.callers import Caller

Json = dict[str, Any]


class ResponseStore(Protocol):
    """Keeps responses for a tenant; of another tenant's it says what it says of those that never were."""

    async def keep(self, caller: Caller, response: Json, items: Sequence[Json], *, ended: bool) -> None:
        """Keep a new response with its whole input; one that has not ended is held by this server. Raises TooLarge."""

    async def find(self, caller: Caller, id: str) -> Json | None:
        """The response of that id, as it stands."""

    async def input_of(self, caller: Caller, id: str) -> list[Json] | None:
        """All items that the response of that id was made from, oldest first."""

    async def finish(self, caller: Caller, id: str, changes: Mapping[str, Any]) -> Json | None:
        """Change a response that is being made, for the last time; one that has ended stays as it is. Returns it as it
        stands then."""

    async def forget(self, caller: Caller, id: str) -> bool:
        """Delete the response of that id; False when there is none."""

    async def hold(self, ids: Collection[str]) -> set[str]:
        """Say that this server still makes those; returns the ones that are still wanted."""
