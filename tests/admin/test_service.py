"""An adapter's life: what resolves to what, what survives, what is loaded and what lies on disk, at every turn."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
from aril.admin_api.adapters import NAMING
from aril.admin_api.repo import Particulars
from aril.admin_api.tables import AuditLine, State
from aril.core.callers import DEFAULT_TENANT, EVERYTHING, LOCAL, Caller
from aril.core.errors import Conflict, InvalidAdapter, NotFound, Unavailable
from builders.registry import BASE, Place, alive, until
from sqlalchemy import select


@alive
async def test_an_upload_is_active_loaded_and_on_disk_when_it_returns(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        adapter = await registry.admin.service.upload_folder("pirate", folders[0])
        assert adapter.active is not None
        ref = await registry.resolve("pirate")
        assert ref is not None
        assert (ref.revision, ref.digest) == (1, adapter.active.digest)
        assert registry.engine.status().loaded_adapters == (ref,)
        assert registry.store.digests() == [ref.digest]


@alive
async def test_what_was_active_is_served_after_a_crash(place: Place, folders: list[Path]) -> None:
    async with place.running(crash=True) as registry:
        await registry.admin.service.upload_folder("on", folders[0])
        await registry.admin.service.upload_folder("off", folders[1])
        await registry.admin.service.deactivate(LOCAL, "off")
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
        await registry.admin.service.activate(LOCAL, "pirate", 1)
        assert await registry.answer("pirate") == before


@alive
async def test_an_upload_that_is_not_activated_leaves_the_old_revision_serving(
    sqlite_place: Place, folders: list[Path]
) -> None:
    async with sqlite_place.running() as registry:
        await registry.admin.service.upload_folder("pirate", folders[0])
        contents = nullcontext({file.name: file for file in folders[1].glob("adapter_*")})
        revision = await registry.admin.service.upload(LOCAL, "pirate", contents, Particulars(activate=False))
        assert (await registry.admin.service.wait(LOCAL, "pirate", revision.number, 60)).state is State.READY
        ref = await registry.resolve("pirate")
        assert ref is not None
        assert ref.revision == 1


@alive
async def test_old_revisions_retire_and_their_bytes_go(place: Place, folders: list[Path]) -> None:
    async with place.running(kept_revisions=1, reconcile_seconds=0.05) as registry:
        for folder in folders:
            adapter = await registry.admin.service.upload_folder("pirate", folder)
        await until(lambda: len(registry.store.digests()) == 2)
        kept = {revision.digest for revision in adapter.revisions[-2:]}
        assert set(registry.store.digests()) == kept
        with pytest.raises(Conflict, match="retired"):
            await registry.admin.service.activate(LOCAL, "pirate", 1)


@alive
async def test_a_deleted_adapter_stops_resolving_before_its_last_request_ends(
    place: Place, folders: list[Path]
) -> None:
    async with place.running() as registry:
        await registry.admin.service.upload_folder("pirate", folders[0])
        answer = asyncio.create_task(registry.answer("pirate", num_tokens=120))
        await until(lambda: registry.engine.status().running)
        deletion = asyncio.create_task(registry.admin.service.delete(LOCAL, "pirate"))
        await until(lambda: registry.admin.catalog.seen(DEFAULT_TENANT, "pirate") is None)
        with pytest.raises(NotFound) as refusal:
            await registry.resolve("pirate")
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
        async with registry.answering("pirate"):
            deletion = asyncio.create_task(registry.admin.service.delete(LOCAL, "pirate"))
            await until(lambda: registry.admin.catalog.seen(DEFAULT_TENANT, "pirate") is None)
            await registry.admin.service.upload_folder("pirate", folders[1])
            assert len(await registry.answer("pirate")) == 8
            assert not deletion.done()
        await deletion
        assert len(registry.store.digests()) == 1


@alive
async def test_bytes_that_another_adapter_names_stay(sqlite_place: Place, folders: list[Path]) -> None:
    async with sqlite_place.running() as registry:
        await registry.admin.service.upload_folder("one", folders[0])
        await registry.admin.service.upload_folder("two", folders[0])
        before = await registry.answer("two")
        await registry.admin.service.delete(LOCAL, "one")
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
        async with registry.answering("pirate"):
            await registry.admin.service.upload_folder("pirate", folders[1])
            assert await registry.answer("pirate") != before
            await registry.admin.service.activate(LOCAL, "pirate", 1)
            assert await registry.answer("pirate") == before


@alive
async def test_changes_of_one_name_at_once_end_in_one_state(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        service = registry.admin.service
        await asyncio.gather(
            *(service.upload_folder("pirate", folder) for folder in folders),
            *(service.upload_folder(f"other-{at}", folder) for at, folder in enumerate(folders)),
        )
        adapter = await service.get(LOCAL, "pirate")
        ref = await registry.resolve("pirate")
        assert [revision.number for revision in adapter.revisions] == [1, 2, 3, 4]
        assert ref is not None
        assert adapter.active is not None
        assert (ref.revision, ref.digest) == (adapter.active.number, adapter.active.digest)
        assert len(await registry.admin.catalog.list(LOCAL)) == 5


@alive
async def test_an_upload_that_another_call_deletes_at_once_has_still_been_an_upload(
    sqlite_place: Place, folders: list[Path]
) -> None:
    async with sqlite_place.running() as registry:
        upload = asyncio.create_task(registry.upload("pirate", folders[0]))
        await until(lambda: registry.admin.catalog.seen(DEFAULT_TENANT, "pirate") is not None)
        await registry.admin.service.delete(LOCAL, "pirate")
        assert (await upload).json()["digest"]


@alive
async def test_a_bad_adapter_leaves_no_trace(sqlite_place: Place, folders: list[Path], tmp_path: Path) -> None:
    broken = shutil.copytree(folders[0], tmp_path / "broken")
    (broken / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 3, "use_dora": true}')
    async with sqlite_place.running() as registry:
        with pytest.raises(InvalidAdapter) as refusal:
            await registry.admin.service.upload_folder("pirate", broken)
        assert len(refusal.value.problems) > 1
        assert (await registry.http.get("/admin/v1/adapters")).json()["data"] == []
        assert registry.store.digests() == []
        assert sqlite_place.num_staged == 0


@alive
async def test_lost_bytes_make_a_fault_and_not_the_base(
    place: Place, folders: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    async with place.running() as registry:
        await registry.admin.service.upload_folder("pirate", folders[0])
        await registry.admin.service.upload_folder("sound", folders[1])
        ref = await registry.resolve("pirate")
    assert ref is not None
    place.store.drop(ref.digest)
    async with place.running() as registry:
        assert await registry.models() == [BASE, "sound"]
        with pytest.raises(Unavailable, match="no adapter bytes"):
            await registry.resolve("pirate")
        [told] = [text for record in caplog.records if "bytes_missing" in (text := record.getMessage())]
        assert f"digests=1 first={ref.digest}" in told
        await registry.admin.service.upload_folder("pirate", folders[0])
        assert await registry.models() == [BASE, "pirate", "sound"]


@alive
async def test_bytes_without_a_row_are_dropped_at_start(place: Place, folders: list[Path]) -> None:
    store = place.store
    store.commit(store.stage({file.name: file for file in folders[0].glob("adapter_*")}, 1 << 20))
    async with place.running() as registry:
        assert registry.store.digests() == []


@alive
async def test_changes_of_another_process_are_followed(place: Place, folders: list[Path]) -> None:
    async with place.running(reconcile_seconds=0.01) as registry:
        await registry.admin.service.upload_folder("pirate", folders[0])
        await registry.admin.service.upload_folder("other", folders[1])
        with registry.admin.database.engine.begin() as connection:
            connection.exec_driver_sql("DELETE FROM aliases WHERE adapter_id = 1")
        async with asyncio.timeout(20):
            while await registry.models() != [BASE, "other"]:
                await asyncio.sleep(0)  # an application that is asked in this process gives way to nobody


@alive
async def test_reconciling_goes_on_after_any_fault(sqlite_place: Place) -> None:
    again = asyncio.Event()

    async def faulty() -> None:
        if reconciler._sweeps == (faulty,):
            reconciler._sweeps = (faulty, faulty)
            raise RuntimeError("a fault of our own")
        again.set()

    async with sqlite_place.running(reconcile_seconds=0.01) as registry, asyncio.timeout(20):
        reconciler = registry.admin.reconciler
        reconciler._sweeps = (faulty,)
        await again.wait()


@alive
async def test_every_change_leaves_an_audit_line(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        service, someone = registry.admin.service, Caller(name="someone", scopes=EVERYTHING)
        await service.upload_folder("pirate", folders[0])
        await service.deactivate(someone, "pirate")
        await service.delete(someone, "pirate")
        lines = await registry.admin.database.run(
            lambda session: [(line.actor, line.action) for line in session.scalars(select(AuditLine))]
        )
    by_gate = [("gate", "ready"), ("gate", "alias")]
    assert lines == [("local", "upload"), *by_gate, ("someone", "unalias"), ("someone", "delete")]


@alive
async def test_the_base_resolves_to_no_adapter(sqlite_place: Place) -> None:
    async with sqlite_place.running() as registry:
        assert await registry.resolve(BASE) is None


@alive
async def test_a_sweep_leaves_bytes_whose_row_is_on_its_way_in_another_server(
    place: Place, folders: list[Path]
) -> None:
    if place.database_url.startswith("sqlite"):
        return  # one server
    async with place.running() as registry:
        admin, store = registry.admin, registry.store
        store.commit(store.stage({file.name: file for file in folders[0].glob("adapter_*")}, 1 << 20))
        with admin.database.among(NAMING):
            await admin.service.drop_unneeded()
            assert len(store.digests()) == 1
        await admin.service.drop_unneeded()
        assert store.digests() == []


@alive
async def test_a_registry_refuses_the_store_of_another(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        await registry.admin.service.upload_folder("pirate", folders[0])
        await registry.admin.reconciler.once()
    other = Place(place.engine, place.state, f"sqlite:///{place.state}/other.sqlite3")
    with pytest.raises(Conflict, match="store is that of another registry"):
        async with other.running():
            pass
    async with place.running() as registry:
        assert await registry.models() == [BASE, "pirate"]
