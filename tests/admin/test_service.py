"""An adapter's life: what resolves to what, what survives, what is loaded and what lies on disk, at every turn."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
from aril.admin_api.tables import AuditLine, State
from aril.core.errors import Conflict, InvalidAdapter, NotFound, Unavailable
from builders.registry import BASE, Place, alive, until
from sqlalchemy import select


@alive
async def test_an_upload_is_active_loaded_and_on_disk_when_it_returns(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        adapter = await registry.admin.service.upload_folder("pirate", folders[0])
        assert adapter.active is not None
        ref = await registry.admin.catalog.resolve("pirate")
        assert ref is not None
        assert (ref.revision, ref.digest) == (1, adapter.active.digest)
        assert registry.engine.status().loaded_adapters == (ref,)
        assert registry.store.digests() == [ref.digest]


@alive
async def test_what_was_active_is_served_after_a_crash(place: Place, folders: list[Path]) -> None:
    async with place.running(crash=True) as registry:
        await registry.admin.service.upload_folder("on", folders[0])
        await registry.admin.service.upload_folder("off", folders[1])
        await registry.admin.service.deactivate("off")
        before = await registry.answer("on")
    async with place.running() as registry:
        assert await registry.models() == [BASE, "on"]
        assert await registry.answer("on") == before


@alive
async def test_the_same_bytes_again_change_nothing(sqlite_place: Place, folders: list[Path]) -> None:
    async with sqlite_place.running() as registry:
        await registry.admin.service.upload_folder("pirate", folders[0])
        again = await registry.admin.service.upload_folder("pirate", folders[0])
        assert [revision.number for revision in again.revisions] == [1]


@alive
async def test_new_bytes_under_an_old_name_answer_at_once(sqlite_place: Place, folders: list[Path]) -> None:
    async with sqlite_place.running() as registry:
        await registry.admin.service.upload_folder("other", folders[1])
        await registry.admin.service.upload_folder("pirate", folders[0])
        before = await registry.answer("pirate")
        await registry.admin.service.upload_folder("pirate", folders[1])
        after = await registry.answer("pirate")
        assert after != before
        assert after == await registry.answer("other")


@alive
async def test_an_older_revision_can_be_activated_again(sqlite_place: Place, folders: list[Path]) -> None:
    async with sqlite_place.running() as registry:
        await registry.admin.service.upload_folder("pirate", folders[0])
        before = await registry.answer("pirate")
        await registry.admin.service.upload_folder("pirate", folders[1])
        await registry.admin.service.activate("pirate", 1)
        assert await registry.answer("pirate") == before


@alive
async def test_an_upload_that_is_not_activated_leaves_the_old_revision_serving(
    sqlite_place: Place, folders: list[Path]
) -> None:
    async with sqlite_place.running() as registry:
        await registry.admin.service.upload_folder("pirate", folders[0])
        contents = nullcontext({file.name: file for file in folders[1].glob("adapter_*")})
        adapter = await registry.admin.service.upload("pirate", contents, activate=False)
        assert [revision.state for revision in adapter.revisions] == [State.ACTIVE, State.STORED]
        ref = await registry.admin.catalog.resolve("pirate")
        assert ref is not None
        assert ref.revision == 1


@alive
async def test_old_revisions_retire_and_their_bytes_go(place: Place, folders: list[Path]) -> None:
    async with place.running(kept_revisions=1) as registry:
        for folder in folders:
            adapter = await registry.admin.service.upload_folder("pirate", folder)
        await until(lambda: len(registry.store.digests()) == 2)
        kept = {revision.digest for revision in adapter.revisions[-2:]}
        assert set(registry.store.digests()) == kept
        with pytest.raises(Conflict, match="retired"):
            await registry.admin.service.activate("pirate", 1)


@alive
async def test_a_deleted_adapter_stops_resolving_before_its_last_request_ends(
    place: Place, folders: list[Path]
) -> None:
    async with place.running() as registry:
        await registry.admin.service.upload_folder("pirate", folders[0])
        answer = asyncio.create_task(registry.answer("pirate", num_tokens=120))
        await until(lambda: registry.engine.status().running)
        deletion = asyncio.create_task(registry.admin.service.delete("pirate"))
        await until(lambda: registry.admin.catalog.published("pirate") is None)
        with pytest.raises(NotFound) as refusal:
            await registry.admin.catalog.resolve("pirate")
        assert (refusal.value.code, refusal.value.param) == ("model_not_found", "model")
        assert not deletion.done()
        assert len(await answer) == 120
        await deletion
        assert registry.engine.status().loaded_adapters == ()
        assert registry.store.digests() == []


@alive
async def test_a_name_can_be_used_anew_while_its_deleted_bearer_still_answers(
    sqlite_place: Place, folders: list[Path]
) -> None:
    async with sqlite_place.running() as registry:
        await registry.admin.service.upload_folder("pirate", folders[0])
        answer = asyncio.create_task(registry.answer("pirate", num_tokens=400))
        await until(lambda: registry.engine.status().running)
        deletion = asyncio.create_task(registry.admin.service.delete("pirate"))
        await until(lambda: registry.admin.catalog.published("pirate") is None)
        await registry.admin.service.upload_folder("pirate", folders[1])
        assert not answer.done()
        assert len(await registry.answer("pirate")) == 8
        answer.cancel()
        await deletion
        assert len(registry.store.digests()) == 1


@alive
async def test_bytes_that_another_adapter_names_stay(sqlite_place: Place, folders: list[Path]) -> None:
    async with sqlite_place.running() as registry:
        await registry.admin.service.upload_folder("one", folders[0])
        await registry.admin.service.upload_folder("two", folders[0])
        before = await registry.answer("two")
        await registry.admin.service.delete("one")
        assert await registry.answer("two") == before


@alive
async def test_a_request_of_a_replaced_revision_ends_as_it_began(sqlite_place: Place, folders: list[Path]) -> None:
    async with sqlite_place.running() as registry:
        await registry.admin.service.upload_folder("pirate", folders[0])
        undisturbed = await registry.answer("pirate", num_tokens=100)
        answer = asyncio.create_task(registry.answer("pirate", num_tokens=100))
        await until(lambda: registry.engine.status().running)
        await registry.admin.service.upload_folder("pirate", folders[1])
        assert await answer == undisturbed


@alive
async def test_a_replaced_revision_that_still_answers_can_be_activated_again(
    sqlite_place: Place, folders: list[Path]
) -> None:
    async with sqlite_place.running() as registry:
        await registry.admin.service.upload_folder("pirate", folders[0])
        before = await registry.answer("pirate")
        answer = asyncio.create_task(registry.answer("pirate", num_tokens=400))
        await until(lambda: registry.engine.status().running)
        await registry.admin.service.upload_folder("pirate", folders[1])
        await until(lambda: len(registry.engine.status().loaded_adapters) == 1)  # the old one is leaving
        await registry.admin.service.activate("pirate", 1)
        assert not answer.done()
        assert await registry.answer("pirate") == before
        answer.cancel()


@alive
async def test_changes_of_one_name_at_once_end_in_one_state(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        service = registry.admin.service
        await asyncio.gather(
            *(service.upload_folder("pirate", folder) for folder in folders),
            *(service.upload_folder(f"other-{at}", folder) for at, folder in enumerate(folders)),
        )
        adapter = await service.get("pirate")
        ref = await registry.admin.catalog.resolve("pirate")
        assert [revision.number for revision in adapter.revisions] == [1, 2, 3, 4]
        assert ref is not None
        assert adapter.active is not None
        assert (ref.revision, ref.digest) == (adapter.active.number, adapter.active.digest)
        assert len(await registry.admin.catalog.list()) == 5


@alive
async def test_an_upload_that_another_call_deletes_at_once_has_still_been_an_upload(
    sqlite_place: Place, folders: list[Path]
) -> None:
    async with sqlite_place.running() as registry:
        service = registry.admin.service
        upload = asyncio.create_task(service.upload_folder("pirate", folders[0]))
        await until(lambda: registry.admin.catalog.published("pirate") is not None)
        await service.delete("pirate")
        assert (await upload).name == "pirate"


@alive
async def test_a_bad_adapter_leaves_no_trace(sqlite_place: Place, folders: list[Path], tmp_path: Path) -> None:
    broken = shutil.copytree(folders[0], tmp_path / "broken")
    (broken / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 3, "use_dora": true}')
    async with sqlite_place.running() as registry:
        with pytest.raises(InvalidAdapter) as refusal:
            await registry.admin.service.upload_folder("pirate", broken)
        assert len(refusal.value.problems) > 1
        assert await registry.admin.service.all() == []
        assert registry.store.digests() == []
        assert registry.store.sweep() == 0


@alive
async def test_lost_bytes_make_a_fault_and_not_the_base(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        await registry.admin.service.upload_folder("pirate", folders[0])
        await registry.admin.service.upload_folder("sound", folders[1])
        ref = await registry.admin.catalog.resolve("pirate")
    assert ref is not None
    place.store.drop(ref.digest)
    async with place.running() as registry:
        assert await registry.models() == [BASE, "sound"]
        with pytest.raises(Unavailable, match="no adapter bytes"):
            await registry.admin.catalog.resolve("pirate")
        await registry.admin.service.upload_folder("pirate", folders[0])
        assert await registry.models() == [BASE, "pirate", "sound"]


@alive
async def test_bytes_without_a_row_are_dropped_at_start(place: Place, folders: list[Path]) -> None:
    store = place.store
    store.commit(store.stage({file.name: file for file in folders[0].glob("adapter_*")}, 1 << 20))
    store.stage({"adapter_config.json": b"{}"}, 1 << 20)
    async with place.running() as registry:
        assert registry.store.digests() == []
        assert registry.store.sweep() == 0


@alive
async def test_changes_of_another_process_are_followed(place: Place, folders: list[Path]) -> None:
    async with place.running(reconcile_seconds=0.01) as registry:
        await registry.admin.service.upload_folder("pirate", folders[0])
        await registry.admin.service.upload_folder("other", folders[1])
        with registry.admin.database.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE revisions SET state = 'stored' WHERE rank = 4")
        await until(lambda: registry.admin.catalog.published("pirate") is None)
        assert await registry.models() == [BASE, "other"]
        await until(lambda: [ref.name for ref in registry.engine.status().loaded_adapters] == ["other"])


@alive
async def test_every_change_leaves_an_audit_line(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        service = registry.admin.service
        await service.upload_folder("pirate", folders[0])
        await service.deactivate("pirate", actor="someone")
        await service.delete("pirate", actor="someone")
        lines = await registry.admin.database.run(
            lambda session: [(line.actor, line.action) for line in session.scalars(select(AuditLine))]
        )
    assert lines == [("local", "upload"), ("local", "activate"), ("someone", "deactivate"), ("someone", "delete")]


@alive
async def test_the_base_resolves_to_no_adapter(sqlite_place: Place) -> None:
    async with sqlite_place.running() as registry:
        assert await registry.admin.catalog.resolve(BASE) is None
