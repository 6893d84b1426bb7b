"""A tenant's uploads are received a few at a time; what waits too long is told when to come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aril.admin_api.turns import Turns
from aril.core.errors import RateLimited
from builders.registry import ADAPTERS, Place, alive


@alive
async def test_one_upload_too_many_waits_for_its_own_tenant_alone() -> None:
    turns = Turns(most=1, seconds=0.01)
    async with turns.of("acme"):
        async with turns.of("other"):
            pass
        with pytest.raises(RateLimited, match="acme"):
            async with turns.of("acme"):
                pass
    async with turns.of("acme"):
        pass


@pytest.mark.parametrize("path", [ADAPTERS, "/v1/files"])
@alive
async def test_uploads_that_never_end_leave_the_rest_unread(
    sqlite_place: Place, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Turns.__init__, "__kwdefaults__", {"most": 2, "seconds": 0.05})
    begun, end = asyncio.Semaphore(0), asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield b"--x\r\n"
        begun.release()
        await end.wait()

    form = {"content-type": "multipart/form-data; boundary=x"}
    async with sqlite_place.running() as registry, asyncio.TaskGroup() as group:
        slow = [group.create_task(registry.http.post(path, content=endless(), headers=form)) for _ in range(2)]
        for _ in slow:
            await begun.acquire()
        refused = await registry.http.post(path, content=b"", headers=form)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_uploads")
        assert int(refused.headers["retry-after"]) >= 1
        end.set()
        await asyncio.wait(slow)
        assert (await registry.http.post(path, content=b"", headers=form)).status_code == 400
