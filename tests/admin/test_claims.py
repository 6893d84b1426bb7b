"""What an uploader claims of bytes is their own: the bytes are kept once, and nobody is judged by another's words."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from aril.lora.config import CONFIG_FILE
from aril.lora.fingerprint import Fingerprint
from builders.registry import ADAPTERS, Place, Registry, alive
from builders.tenants import tenant

OURS, OTHER = "HuggingFaceTB/SmolLM2-135M", "secret/Codename-8B"
Claiming = Callable[[str, str], Path]  # a base and a licence


@pytest.fixture
def claiming(folders: list[Path], tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch) -> Claiming:
    """The same weights, and what somebody says of them; the base that is served has a name."""
    monkeypatch.setattr(place.engine, "targets", replace(place.engine.targets, base=Fingerprint("tiny", (OURS,))))

    def made(base: str, licence: str) -> Path:
        folder = Path(shutil.copytree(folders[0], tmp_path / f"{base}-{licence}".replace("/", "-")))
        config = folder / CONFIG_FILE
        config.write_text(json.dumps({**json.loads(config.read_text()), "base_model_name_or_path": base}))
        (folder / "README.md").write_text(f"---\nlicense: {licence}\n---\n")
        return folder

    return made


async def judged(registry: Registry, answer: httpx.Response) -> tuple[str, str]:
    """The state of what was uploaded, and all that is said of it."""
    found = await registry.http.get(answer.json()["status_url"])
    return found.json()["state"], found.text


async def sent(registry: Registry, name: str, folder: Path) -> tuple[str, str]:
    answer = await registry.http.post(ADAPTERS, data={"name": name, "wait": "60"}, files=files_in(folder))
    return await judged(registry, answer)


def files_in(folder: Path) -> list[tuple[str, tuple[str, bytes]]]:
    return [("files", (file.name, file.read_bytes())) for file in sorted(folder.iterdir())]


@alive
async def test_a_right_claim_is_not_judged_by_an_earlier_wrong_one(place: Place, claiming: Claiming) -> None:
    async with place.running() as registry:
        assert (await sent(registry, "pirate", claiming(OTHER, "mit")))[0] == "rejected"
        assert (await sent(registry, "pirate", claiming(OURS, "mit")))[0] == "ready"


@alive
async def test_a_wrong_claim_does_not_pass_behind_a_right_one(place: Place, claiming: Claiming) -> None:
    async with place.running() as registry:
        assert (await sent(registry, "pirate", claiming(OURS, "mit")))[0] == "ready"
        state, said = await sent(registry, "pirate", claiming(OTHER, "mit"))
        assert (state, OTHER in said) == ("rejected", True)


@alive
async def test_nobody_hears_what_another_tenant_said_of_the_same_bytes(place: Place, claiming: Claiming) -> None:
    async with place.running() as registry:
        studio = await tenant(registry, "studio", scopes=["adapters:write", "adapters:read"])
        theirs = {"data": {"name": "theirs", "wait": "60"}, "files": files_in(claiming(OTHER, "their-own"))}
        assert (await studio.send("POST", ADAPTERS, **theirs)).status_code == 202
        state, said = await sent(registry, "ours", claiming(OURS, "apache-2.0"))
        assert (state, OTHER in said, "their-own" in said, "apache-2.0" in said) == ("ready", False, False, True)
