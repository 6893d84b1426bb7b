"""vLLM's two routes: its bodies, statuses and words, over the registry, behind keys and within allowed folders."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from builders.registry import Place, Registry, alive

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


async def load(registry: Registry, name: str, path: Path | str, **fields: Any) -> httpx.Response:
    """POST as vLLM's clients do."""
    return await registry.http.post(LOAD, json={"lora_name": name, "lora_path": str(path), **fields})


@alive
async def test_a_loaded_adapter_answers_when_the_route_does(place: Place, folders: list[Path]) -> None:
    async with place.running(adapter_roots=(folders[0].parent,)) as registry:
        answer = await load(registry, "sql", folders[0])
        assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'sql' added successfully.")
        assert await registry.models() == ["tiny", "sql"]
        [revision] = (await registry.http.get("/admin/v1/adapters/sql")).json()["revisions"]
        assert (revision["state"], revision["source"]) == ("ready", f"file://{folders[0]}")


@alive
async def test_a_name_is_loaded_once_unless_in_place(sqlite_place: Place, folders: list[Path]) -> None:
    async with sqlite_place.running(adapter_roots=(folders[0].parent,)) as registry:
        await load(registry, "sql", folders[0])
        again = await load(registry, "sql", folders[1])
        assert again.status_code == 400
        assert again.json()["error"]["message"].startswith(
            "The lora adapter 'sql' has already been loaded. If you want"
        )
        assert (await load(registry, "sql", folders[1], load_inplace=True)).status_code == 200
        ref = await registry.resolve("sql")
        assert ref is not None
        assert ref.revision == 2


@alive
async def test_what_is_unloaded_is_gone_and_can_be_loaded_again(sqlite_place: Place, folders: list[Path]) -> None:
    async with sqlite_place.running(adapter_roots=(folders[0].parent,)) as registry:
        await load(registry, "sql", folders[0])
        answer = await registry.http.post(UNLOAD, json={"lora_name": "sql", "lora_int_id": 7})
        assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'sql' removed successfully.")
        assert await registry.models() == ["tiny"]
        assert (await registry.http.post(UNLOAD, json={"lora_name": "sql"})).status_code == 404
        assert (await load(registry, "sql", folders[0])).status_code == 200
        assert await registry.models() == ["tiny", "sql"]


@alive
async def test_what_cannot_be_loaded_is_told_as_vllm_does(
    sqlite_place: Place, folders: list[Path], tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(folders[0], broken)
    (broken / "adapter_model.safetensors").write_bytes(b"no weights")
    async with sqlite_place.running(adapter_roots=(tmp_path,)) as registry:
        for name, path, status, words in (
            ("", folders[0], 400, "Both 'lora_name' and 'lora_path' must be provided."),
            ("sql", "", 400, "Both 'lora_name' and 'lora_path' must be provided."),
            ("sql", tmp_path / "nowhere", 404, "there is no adapter in"),
            ("sql", folders[0], 403, "--adapter-root"),
            ("sql", "/etc/passwd", 403, "--adapter-root"),
            ("sql", tmp_path / "x" / ".." / ".." / "etc", 403, "--adapter-root"),
            ("sql", "hf://someone/something", 403, "--allow-source"),
            ("sql", "ftp://someone/something", 400, "adapter source"),
            ("sql", broken, 400, "adapter_model.safetensors"),
        ):
            answer = await load(registry, name, path)
            assert (answer.status_code, words in answer.json()["error"]["message"]) == (status, True), answer.text
        assert await registry.models() == ["tiny"]
        unnamed = await registry.http.post(UNLOAD, json={})
        assert (unnamed.status_code, "'lora_name' needs to be provided" in unnamed.text) == (400, True)


@pytest.mark.parametrize("route", [LOAD, UNLOAD])
@alive
async def test_the_routes_open_to_keys_that_may_write_and_to_no_others(
    sqlite_place: Place, folders: list[Path], route: str
) -> None:
    body = {"lora_name": "sql", "lora_path": str(folders[0])} if route == LOAD else {"lora_name": "sql"}
    async with sqlite_place.running(adapter_roots=(folders[0].parent,)) as registry:
        statuses = {}
        for scopes in (["infer", "adapters:read"], ["adapters:write"]):
            made = await registry.http.post("/admin/v1/keys", json={"name": "k", "scopes": scopes})
            headers = {"Authorization": f"Bearer {made.json()['key']}"}
            statuses[scopes[-1]] = (await registry.http.post(route, json=body, headers=headers)).status_code
        without = await registry.http.post(route, json=body, headers={"Authorization": ""})
        assert statuses == {"adapters:read": 403, "adapters:write": 200 if route == LOAD else 404}
        assert without.status_code == 401
