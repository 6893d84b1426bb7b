"""From an upload to READY or REJECTED: states, reports, aliases, leases and second attempts, on both databases."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from aril.admin_api import repo
from aril.admin_api.gate import GATE, golden_of, worker
from aril.admin_api.gate.elsewhere import warn_of_other_bases
from aril.admin_api.repo import Particulars
from aril.admin_api.tables import AuditLine, Revision, State
from aril.core.callers import LOCAL
from aril.core.errors import Conflict, EngineDead
from aril.lora.fingerprint import Fingerprint, difference
from builders.registry import Place, Registry, SharedEngine, alive, until
from safetensors.torch import load_file, save_file
from sqlalchemy import select, update

Tensors = dict[str, torch.Tensor]


@pytest.fixture
def folder(folders: list[Path], tmp_path: Path) -> Path:
    """A copy of an adapter, to spoil."""
    return Path(shutil.copytree(folders[0], tmp_path / "adapter"))


def edit(folder: Path, change: Callable[[Tensors], Tensors]) -> None:
    weights = folder / "adapter_model.safetensors"
    save_file(change({name: tensor.clone() for name, tensor in load_file(weights).items()}), weights)


def edit_config(folder: Path, **fields: object) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


async def report_of(registry: Registry, answer: httpx.Response) -> dict[str, Any]:
    """The revision that an upload made, as its status URL shows it."""
    assert answer.status_code == 202, answer.text
    found: dict[str, Any] = (await registry.http.get(answer.json()["status_url"])).json()
    return found


@alive
async def test_a_sound_adapter_becomes_ready_with_a_report(place: Place, folder: Path) -> None:
    async with place.running() as registry:
        found = await report_of(registry, await registry.upload("pirate", folder))
        assert found["state"] == "ready"
        report = found["report"]
        assert report["problems"] == []
        assert {check["name"]: check["outcome"] for check in report["checks"]} == {
            **dict.fromkeys(("structure", "base", "numbers", "memory", "licence", "smoke"), "passed"),
            "golden": "skipped",
        }
        assert all(check["seconds"] >= 0 for check in report["checks"] if check["outcome"] != "skipped")
        assert (await registry.resolve("pirate")) is not None


@alive
async def test_a_rejected_adapter_answers_to_nothing_and_says_why(place: Place, folder: Path) -> None:
    edit(folder, lambda tensors: {n: t.zero_() if "lora_B" in n else t for n, t in tensors.items()})
    async with place.running() as registry:
        found = await report_of(registry, await registry.upload("empty", folder))
        assert found["state"] == "rejected"
        assert "the adapter changes nothing" in found["report"]["problems"][0]
        assert "empty" not in await registry.models()
        asked = await registry.http.post("/v1/completions", json={"model": "empty", "prompt": "x"})
        assert asked.status_code == 404


@alive
async def test_the_gate_writes_what_it_decided_to_the_audit(place: Place, folder: Path) -> None:
    async with place.running() as registry:
        await registry.upload("pirate", folder)
        lines = await registry.admin.database.run(
            lambda session: [(line.actor, line.action) for line in session.scalars(select(AuditLine))]
        )
        assert lines == [("admin", "upload"), (GATE.name, "ready"), (GATE.name, "alias")]


@alive
async def test_the_base_that_it_was_checked_on_is_kept(sqlite_place: Place, folder: Path) -> None:
    async with sqlite_place.running() as registry:
        await registry.upload("pirate", folder)
        adapter = await registry.admin.service.get(LOCAL, "pirate")
        base = adapter.revisions[0].base
        assert base == registry.admin.gate.base
        assert (base["layers"], base["heads"], base["vocabulary"]) == (2, 4, 512)
        assert len(base["config"]) == 64


REJECTIONS: dict[str, tuple[Callable[[Path], object], str]] = {
    "NaN": (lambda f: edit(f, lambda ts: {n: t * float("nan") for n, t in ts.items()}), "NaN or Inf"),
    "zeros": (lambda f: edit(f, lambda ts: {n: t * 0 for n, t in ts.items()}), "changes nothing"),
    "too small": (
        lambda f: edit(f, lambda ts: {n: t * 1e-12 for n, t in ts.items()}),
        "every logit is that of the base",
    ),
    "too large": (lambda f: edit(f, lambda ts: {n: t * 1e25 for n, t in ts.items()}), "NaN or Inf"),
}


@pytest.mark.parametrize(("spoil", "said"), REJECTIONS.values(), ids=REJECTIONS.keys())
@alive
async def test_what_is_wrong_with_numbers_is_found_before_anybody_meets_it(
    spoil: Callable[[Path], object], said: str, sqlite_place: Place, folder: Path
) -> None:
    spoil(folder)
    async with sqlite_place.running() as registry:
        found = await report_of(registry, await registry.upload("pirate", folder))
        assert (found["state"], said in "\n".join(found["report"]["problems"])) == ("rejected", True)


@alive
async def test_a_better_upload_follows_a_rejected_one(place: Place, folder: Path, folders: list[Path]) -> None:
    edit(folder, lambda tensors: {n: t * 0 for n, t in tensors.items()})
    async with place.running() as registry:
        await registry.upload("pirate", folder)
        found = await report_of(registry, await registry.upload("pirate", folders[1]))
        assert (found["state"], found["number"]) == ("ready", 2)
        assert (await registry.resolve("pirate")).revision == 2  # type: ignore[union-attr]


def files_of(folder: Path) -> Any:
    return nullcontext({path.name: path for path in folder.iterdir()})


async def settled(registry: Registry, folder: Path, **said: Any) -> Revision:
    """A revision of `pirate` that has been through the gate."""
    service = registry.admin.service
    revision = await service.upload(LOCAL, "pirate", files_of(folder), Particulars(**said))
    return await service.wait(LOCAL, "pirate", revision.number, 60)


@alive
async def test_golden_prompts_decide_too_and_their_answers_are_kept(place: Place, folder: Path) -> None:
    asked = {"prompt": "hello there", "max_tokens": 40}
    async with place.running() as registry:
        wrong = await settled(registry, folder, golden=golden_of([{**asked, "expect": "never said"}]))
        assert wrong.state is State.REJECTED
        answer = wrong.report["checks"][-1]["prompts"][0]["answer"]  # type: ignore[index]
        right = await settled(registry, folder, golden=golden_of([{**asked, "expect": answer[:8]}]))
        assert right.state is State.READY
        assert right.report["checks"][-1]["prompts"] == [{"passed": True, "answer": answer}]  # type: ignore[index]


@alive
async def test_a_forced_upload_is_ready_and_the_audit_says_that_it_was_forced(
    place: Place, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit_config(folder, base_model_name_or_path="meta-llama/Llama-3.2-1B")
    named = replace(place.engine.targets, base=Fingerprint("tiny", ("HuggingFaceTB/SmolLM2-135M",)))
    monkeypatch.setattr(place.engine, "targets", named)
    async with place.running() as registry:
        refused = await settled(registry, folder)
        told = "\n".join(refused.report["problems"])  # type: ignore[index]
        assert ("meta-llama/Llama-3.2-1B" in told, "SmolLM2-135M" in told) == (True, True)
        forced = await settled(registry, folder, force=True)
        assert (forced.state, forced.forced) == (State.READY, True)
        uploads = await registry.admin.database.run(
            lambda session: [line.after for line in session.scalars(select(AuditLine)) if line.action == "upload"]
        )
        assert [upload.get("force", False) for upload in uploads] == [False, True]  # type: ignore[union-attr]


@alive
async def test_what_a_dead_server_was_checking_is_taken_over(place: Place, folder: Path) -> None:
    async with place.running(crash=True) as registry:
        registry.admin.gate.stop()
        await registry.admin.service.upload(LOCAL, "pirate", files_of(folder))
        claimed = await registry.admin.database.run(lambda session: repo.claim(session, "a server that died"))
        assert claimed is not None
        await let_the_lease_end(registry)
    async with place.running() as registry:
        found = await registry.admin.service.wait(LOCAL, "pirate", 1, 60)
        assert (found.state, found.attempts) == (State.READY, 2)


async def let_the_lease_end(registry: Registry) -> None:
    await registry.admin.database.run(
        lambda session: session.execute(update(Revision).values(checked_until=1)) and None
    )


@alive
async def test_a_lease_that_somebody_holds_is_respected(place: Place, folder: Path) -> None:
    async with place.running() as registry:
        registry.admin.gate.stop()
        await registry.admin.service.upload(LOCAL, "pirate", files_of(folder))
        first = await registry.admin.database.run(lambda session: repo.claim(session, "one"))
        second = await registry.admin.database.run(lambda session: repo.claim(session, "other"))
        assert (first is not None, second) == (True, None)


@alive
async def test_a_check_that_lost_its_lease_decides_nothing(place: Place, folder: Path) -> None:
    async with place.running() as registry:
        registry.admin.gate.stop()
        await registry.admin.service.upload(LOCAL, "pirate", files_of(folder))
        database = registry.admin.database
        mine = await database.run(lambda session: repo.claim(session, "slow"))
        await let_the_lease_end(registry)
        await database.run(lambda session: repo.claim(session, "quick"))
        with pytest.raises(Conflict):
            await database.run(lambda session: repo.become_ready(session, mine, {}, GATE))
        with pytest.raises(Conflict):
            await database.run(lambda session: repo.renew(session, mine))


@alive
async def test_an_adapter_that_is_deleted_while_it_is_checked_leaves_nothing(place: Place, folder: Path) -> None:
    async with place.running() as registry:
        for _ in range(5):
            await registry.admin.service.upload(LOCAL, "pirate", files_of(folder))
            await registry.admin.service.delete(LOCAL, "pirate")
        found = await settled(registry, folder)
        assert found.state is State.READY
        await until(lambda: registry.engine.status().loaded_adapters == ())


@alive
async def test_bytes_that_are_gone_are_tried_again_and_then_told_without_blame(
    place: Place, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "MAX_ATTEMPTS", 3)
    monkeypatch.setattr(worker, "LONGEST_PAUSE", -1)
    async with place.running() as registry:
        registry.admin.gate.stop()
        revision = await registry.admin.service.upload(LOCAL, "pirate", files_of(folder))
        shutil.rmtree(registry.store.path(revision.digest))
        await registry.admin.gate.start()
        async with asyncio.timeout(20):
            while (found := await registry.admin.service.wait(LOCAL, "pirate", 1, 0)).state is not State.REJECTED:
                registry.admin.service.uploads.set()
                await asyncio.sleep(0.01)
        assert (found.state, found.attempts) == (State.REJECTED, 3)
        (told,) = found.report["problems"]  # type: ignore[index]
        assert "could not be checked in 3 attempts" in told
        assert "Nothing is known against the files" in told


@alive
async def test_a_revision_that_ends_every_server_is_given_up(place: Place, folder: Path) -> None:
    async with place.running() as registry:
        registry.admin.gate.stop()
        await registry.admin.service.upload(LOCAL, "pirate", files_of(folder))
        killed = {"state": State.CHECKING, "checked_until": 1, "attempts": worker.MAX_ATTEMPTS}
        await registry.admin.database.run(lambda session: session.execute(update(Revision).values(killed)) and None)
    async with place.running() as registry:
        found = await registry.admin.service.wait(LOCAL, "pirate", 1, 60)
        assert found.state is State.REJECTED
        assert "servers ended while they were at it" in found.report["problems"][0]  # type: ignore[index]


@alive
async def test_an_engine_that_is_away_rejects_nothing(
    place: Place, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = place.engine.client
    monkeypatch.setattr(worker, "MAX_ATTEMPTS", 1)

    async def dead(*_: object, **__: object) -> None:
        raise EngineDead("the engine was closed")

    async with place.running() as registry:
        with monkeypatch.context() as away:
            away.setattr(client, "load_adapter", dead)
            await registry.admin.service.upload(LOCAL, "pirate", files_of(folder))
            service = registry.admin.service
            async with asyncio.timeout(20):
                while (found := await service.wait(LOCAL, "pirate", 1, 0)).report is None:
                    await asyncio.sleep(0.01)
        assert (found.state, found.attempts) == (State.CHECKING, 0)
        assert (found.report["waiting"], found.report["problems"]) == ("the engine was closed", [])
        await let_the_lease_end(registry)
        registry.admin.service.uploads.set()
        assert (await service.wait(LOCAL, "pirate", 1, 60)).state is State.READY


@alive
async def test_many_uploads_at_once_all_come_through(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        answers = await asyncio.gather(*(registry.upload(f"pirate-{at}", folders[at % 4]) for at in range(12)))
        assert [answer.json()["state"] for answer in answers] == ["ready"] * 12
        assert registry.engine.status().loaded_adapters == ()


@alive
async def test_a_base_that_was_exchanged_is_said_aloud(
    place: Place, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place.running() as registry:
        await settled(registry, folder)
        base = registry.admin.gate.base
        for other, expected in ((base, []), ({**base, "name": "alias"}, []), ({**base, "layers": 3}, ["pirate@1"])):
            judge = partial(difference, now=other)
            said = await registry.admin.database.run(lambda session, judge=judge: warn_of_other_bases(session, judge))
            assert said == expected


@alive
async def test_what_another_base_was_tried_with_is_served_after_a_check_on_this_one(place: Place, folder: Path) -> None:
    async with place.running() as registry:
        await settled(registry, folder)
        base = registry.admin.gate.base
        other = {**base, "name": "former", "layers": 77}
        await registry.admin.database.run(lambda session: session.execute(update(Revision).values(base=other)))
    async with place.running() as registry:
        for model in ("pirate", "pirate@1"):
            refused = await registry.http.post("/v1/completions", json={"model": model, "prompt": "a"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
            assert (
                "base 'former', and the base here is 'tiny', with another layers" in refused.json()["error"]["message"]
            )
        shown = (await registry.http.get("/admin/v1/adapters/pirate")).json()
        assert (await registry.http.get("/admin/v1/adapters")).json()["data"] == [shown]
        assert (shown["revisions"][0]["state"], shown["active"]) == ("ready", True)
        assert shown["fault"] == shown["revisions"][0]["fault"] is not None
        assert await registry.models() == ["tiny"]
        assert (await registry.http.post("/admin/v1/adapters/pirate/recheck")).status_code == 202
        assert (await registry.admin.service.wait(LOCAL, "pirate", 1, 60)).state is State.READY
        assert await registry.models() == ["tiny", "pirate"]
        assert (await registry.http.post("/admin/v1/adapters/pirate/recheck")).status_code == 409
        line = (await registry.http.get("/admin/v1/audit?action=recheck")).json()["data"][0]
        assert line["before"] == {"state": "ready", "base": "former"}


@alive
async def test_a_report_keeps_whatever_a_model_says(place: Place, folder: Path) -> None:
    said = {"answer": "\x00\x1f\u2028", "problems": []}
    async with place.running() as registry:
        registry.admin.gate.stop()
        await registry.admin.service.upload(LOCAL, "pirate", files_of(folder))
        database = registry.admin.database
        mine = await database.run(lambda session: repo.claim(session, "me"))
        await database.run(lambda session: repo.become_ready(session, mine, said, GATE))
        found = await registry.http.get("/admin/v1/adapters/pirate/revisions/1")
        assert found.status_code == 200
        assert found.json()["report"]["problems"] == []


@alive
async def test_golden_prompts_and_force_come_with_the_form(sqlite_place: Place, folder: Path) -> None:
    golden = json.dumps([{"prompt": "hello", "expect": "never said"}])
    async with sqlite_place.running() as registry:
        found = await report_of(registry, await registry.upload("pirate", folder, golden=golden, force="true"))
        assert (found["state"], found["forced"]) == ("rejected", True)
        assert "golden prompt 1" in found["report"]["problems"][0]
        refused = await registry.upload("pirate", folder, golden='[{"prompt": "hello"}]')
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "golden")


@alive
async def test_known_wrong_files_are_refused_in_their_own_words_at_once(sqlite_place: Place, folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"fine_tune_type": "lora", "lora_parameters": {"rank": 8}}')
    async with sqlite_place.running() as registry:
        refused = await registry.upload("pirate", folder)
        assert refused.status_code == 400
        assert "adapter of MLX-LM" in refused.json()["error"]["message"]


@alive
async def test_servers_that_look_at_once_take_different_revisions(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        registry.admin.gate.stop()
        for at, folder in enumerate(folders):
            await registry.admin.service.upload(LOCAL, f"pirate-{at}", files_of(folder))
        claims = (registry.admin.database.run(lambda session, at=at: repo.claim(session, str(at))) for at in range(4))
        taken = await asyncio.gather(*claims)
        assert {revision.adapter.name for revision in taken if revision} == {f"pirate-{at}" for at in range(4)}


@alive
async def test_an_adapter_that_no_memory_here_holds_is_told_bytes_and_flag(
    base: Path, folder: Path, tmp_path: Path
) -> None:
    cramped = SharedEngine(base, adapter_memory="4KiB")
    try:
        async with Place(cramped, tmp_path, f"sqlite:///{tmp_path}/registry.sqlite3").running() as registry:
            found = await report_of(registry, await registry.upload("pirate", folder))
            (told,) = found["report"]["problems"]
            assert (found["state"], "4096" in told, "--adapter-memory" in told) == ("rejected", True, True)
            assert [check["outcome"] for check in found["report"]["checks"][-2:]] == ["skipped", "skipped"]
    finally:
        await cramped.client.close()


@alive
async def test_a_crowd_of_one_tenant_is_in_nobody_elses_way(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        registry.admin.gate.stop()
        database = registry.admin.database
        await registry.http.post("/admin/v1/tenants", json={"name": "other"})
        for number in range(4):
            await registry.upload(f"many-{number}", folders[0], wait="0")
        other = await database.run(lambda session: repo.acting(session, LOCAL, "other"))
        contents = nullcontext({file.name: file for file in folders[1].iterdir() if file.name != "README.md"})
        await registry.admin.service.upload(other, "alone", contents, Particulars())
        claimed = [await database.run(lambda session: repo.claim(session, "me")) for _ in range(3)]
        assert [revision.adapter.name for revision in claimed if revision] == ["many-0", "alone", "many-1"]
