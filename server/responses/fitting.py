"""`truncation: auto`: the oldest turns of a conversation are left out until the rest fits the context."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from .store import Json

KEPT_ROLES = ("system", "developer")  # what they say holds for all turns


async def newest_that_fit(items: Sequence[Json], fits: Callable[[list[Json]], Awaitable[bool]]) -> list[Json]:
    """As many of the newest turns as fit; the last one alone when nothing does. A turn begins with a user's message."""
    begins = [at for at, item in enumerate(items) if item["type"] == "message" and item["role"] == "user"]
    low, high = 0, len(begins) - 1  # the answer lies in begins[low .. high]
    while low < high:
        middle = (low + high) // 2
        if await fits(_from(items, begins[middle])):
            high = middle
        else:
            low = middle + 1
    return _from(items, begins[low]) if begins else list(items)


def _from(items: Sequence[Json], begin: int) -> list[Json]:
    told = [item for item in items[:begin] if item["type"] == "message" and item["role"] in KEPT_ROLES]
    return [*told, *items[begin:]]
