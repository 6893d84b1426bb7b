"""An alias that moves 200 times under 32 clients: nothing fails, nothing is mixed up."""

from __future__ import annotations

from pathlib import Path

import httpx
from aril.bench.swaps import MOVING, run
from builders.registry import Place, alive


@alive
async def test_no_answer_is_lost_or_mixed_up_while_an_alias_moves(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        await registry.upload("pirate", folders[0])
        await registry.upload("pirate", folders[1], activate="false")
        registry.http.timeout = httpx.Timeout(120)
        found = await run(registry.http, "pirate", swaps=200, clients=32)
        assert found.problems() == []
        assert len(found.swaps) >= 200
        assert {answer.speaker for answer in found.heard if answer.alias == MOVING} == {1, 2}
