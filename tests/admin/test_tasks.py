"""Pieces of asyncio: who is cancelled, and what goes on."""

from __future__ import annotations

import asyncio

import pytest
from aril.admin_api.tasks import seen_through
from builders.registry import alive


@alive
async def test_who_is_cancelled_while_something_is_written_ends_after_it() -> None:
    begun, may_end, done = asyncio.Event(), asyncio.Event(), []

    async def write() -> None:
        begun.set()
        await may_end.wait()
        done.append("written")

    waiter = asyncio.create_task(seen_through(write()))
    await begun.wait()
    waiter.cancel()
    asyncio.get_running_loop().call_soon(may_end.set)
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert done == ["written"]
