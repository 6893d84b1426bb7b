"""A database has one store: a server that comes with another is refused, unless its operator says that it has moved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from aril.core.errors import Conflict
from builders.registry import Place, alive


@alive
async def test_another_store_is_refused_by_both_names(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        await registry.upload("pirate", folders[0])
    other = replace(place, state=place.state / "other")
    with pytest.raises(Conflict, match="--store") as refusal:
        async with other.running():
            pass
    for known in (place, other):
        assert f"{known.state / 'store'} on " in refusal.value.message
    async with place.running() as registry:
        assert await registry.models() == ["tiny", "pirate"]


@alive
async def test_a_store_that_is_gone_for_good_can_be_replaced_and_the_audit_says_so(
    place: Place, folders: list[Path]
) -> None:
    async with place.running() as registry:
        await registry.upload("pirate", folders[0])
    other = replace(place, state=place.state / "other")
    async with other.running(move_store=True) as registry:
        assert await registry.models() == ["tiny"]
        line = (await registry.http.get("/admin/v1/audit?kind=store")).json()["data"][0]
        assert (line["action"], line["actor"]) == ("move", "operator")
        assert str(other.state) in line["after"]["place"]
        await registry.upload("pirate", folders[1], activate="true")
    async with other.running() as registry:
        assert await registry.models() == ["tiny", "pirate"]
    with pytest.raises(Conflict, match="--move-store"):
        async with place.running():
            pass


@alive
async def test_a_store_is_the_same_wherever_its_folder_lies(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        await registry.upload("pirate", folders[0])
    moved = replace(place, state=place.state / "moved")
    moved.state.mkdir()
    (place.state / "store").rename(moved.state / "store")
    async with moved.running() as registry:
        assert await registry.models() == ["tiny", "pirate"]
