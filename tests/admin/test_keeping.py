"""How much an adapter keeps: revisions retire, their history is forgotten, and what cannot be is refused."""

from __future__ import annotations

from pathlib import Path

from builders.registry import ADAPTERS, Place, alive


@alive
async def test_the_oldest_history_makes_room(place: Place, folders: list[Path]) -> None:
    async with place.running(kept_revisions=1, max_revisions=4) as registry:
        for at in range(7):
            uploaded = await registry.upload("pirate", folders[at % 4], activate="true")
            assert uploaded.json()["revision"] == at + 1
            await registry.admin.service.retire_older()
        shown = (await registry.http.get(f"{ADAPTERS}/pirate")).json()
        assert [revision["number"] for revision in shown["revisions"]] == [4, 5, 6, 7]
        assert (await registry.resolve("pirate")).revision == 7  # type: ignore[union-attr]
        forgotten = (await registry.http.get("/admin/v1/audit?action=forget")).json()["data"]
        assert [line["before"] for line in forgotten] == [{"revisions": [3]}, {"revisions": [2]}, {"revisions": [1]}]


@alive
async def test_revisions_that_are_all_in_use_leave_no_room(place: Place, folders: list[Path]) -> None:
    async with place.running(kept_revisions=1, max_revisions=3) as registry:
        for at in range(3):
            await registry.upload("pirate", folders[at], activate="false")
        refused = await registry.upload("pirate", folders[3])
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "too_many_revisions")
        assert (await registry.http.post(f"{ADAPTERS}/pirate/revisions/1/retire")).is_success
        assert (await registry.upload("pirate", folders[3])).json()["revision"] == 4
