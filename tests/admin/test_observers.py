"""What the whole house learns from how requests end."""

from __future__ import annotations

import time
from pathlib import Path
from uuid import uuid4

import httpx
from aril.admin_api.tables import Adapter, Alias
from builders.registry import Place, Registry, alive, until
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import select
from sqlalchemy.orm import Session


async def value(registry: Registry, name: str, **labels: str) -> float:
    """One series of /metrics; 0 where there is none yet."""
    text = (await registry.http.get("/metrics")).text
    every = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return next((each.value for each in every if each.name == name and each.labels == labels), 0.0)


async def ask(registry: Registry, model: str) -> httpx.Response:
    """One greedy completion of four tokens."""
    body = {"model": model, "prompt": "a", "max_tokens": 4, "ignore_eos": True, "temperature": 0}
    return await registry.http.post("/v1/completions", json=body)


@alive
async def test_requests_and_tokens_are_counted_by_adapter(sqlite_place: Place, folders: list[Path]) -> None:
    name = f"a{uuid4().hex[:8]}"
    async with sqlite_place.running() as registry:
        await registry.upload(name, folders[0])
        await ask(registry, name)
        await ask(registry, f"{name}@1")
        assert await value(registry, "aril_adapter_requests_total", adapter=name) == 2
        assert await value(registry, "aril_adapter_generation_tokens_total", adapter=name) == 8
        assert await value(registry, "aril_adapter_time_to_first_token_seconds_count", adapter=name) == 2


@alive
async def test_a_gateway_sees_which_adapters_are_in_use_now(sqlite_place: Place, folders: list[Path]) -> None:
    async with sqlite_place.running() as registry:
        await registry.upload("busy", folders[0])
        await registry.upload("idle", folders[1])
        async with registry.answering("busy"):
            text = (await registry.http.get("/metrics")).text
    [family] = [each for each in text_string_to_metric_families(text) if each.name == "vllm:lora_requests_info"]
    [sample] = family.samples
    assert sample.labels == {"max_lora": "256", "running_lora_adapters": "busy", "waiting_lora_adapters": ""}
    assert abs(sample.value - time.time()) < 60


@alive
async def test_the_gate_s_results_are_counted_by_adapter(sqlite_place: Place, folders: list[Path]) -> None:
    name = f"a{uuid4().hex[:8]}"
    async with sqlite_place.running() as registry:
        await registry.upload(name, folders[0])
        assert await value(registry, "aril_adapter_gate_results_total", adapter=name, state="ready") == 1


@alive
async def test_a_shadow_hears_what_its_alias_is_asked_and_nobody_sees_its_answer(
    sqlite_place: Place, folders: list[Path]
) -> None:
    name = f"a{uuid4().hex[:8]}"

    def shadowed(session: Session) -> None:
        alias = session.scalars(select(Alias).join(Adapter).where(Adapter.name == name)).one()
        alias.shadow = {"revision": 2, "share": 1.0}

    async with sqlite_place.running() as registry:
        await registry.upload(name, folders[0])
        await registry.upload(name, folders[1], activate="false")
        await registry.admin.database.run(shadowed)
        await registry.admin.service.refresh_all()
        assert (await ask(registry, name)).headers["x-aril-adapter"] == f"{name}@1"
        listed = registry.admin.catalog.seen("default", name)
        assert listed is not None
        await until(lambda: registry.admin.shadows.report(listed.revisions[2]) is not None)
        await until(lambda: registry.admin.shadows.report(listed.revisions[2]).answered == 1)
        assert await value(registry, "aril_adapter_requests_total", adapter=name) == 1
        assert await value(registry, "aril_shadow_tokens_total", adapter=name) == 4
        usage = (await registry.http.get("/admin/v1/usage")).json()
        assert sum(line["requests"] for line in usage["data"] if line["model"] == name) <= 1
