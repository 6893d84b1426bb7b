"""Adapters fetched from a source: in the background, seen while they come, told in words when they do not."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest
from builders.parts import UPLOADS
from builders.registry import ADAPTERS, Place, Registry, alive, until
from builders.web import Authority, Site, closing, site


async def order(registry: Registry, source: str, **fields: Any) -> httpx.Response:
    return await registry.http.post(ADAPTERS, json={"name": "pirate", "source": source, **fields})


async def ended(registry: Registry, url: str) -> dict[str, Any]:
    """The upload at `url` once nothing more happens to it."""
    state: dict[str, Any] = {"state": "fetching"}

    async def look() -> None:
        nonlocal state
        state = (await registry.http.get(url)).json()

    while state["state"] == "fetching":
        await look()
    return state


@alive
async def test_a_folder_is_fetched_and_served(place: Place, folders: list[Path]) -> None:
    async with place.running(adapter_roots=(folders[0].parent,)) as registry:
        answer = await order(registry, folders[0].as_uri(), note="from a folder")
        assert answer.status_code == 202
        asked = answer.json()
        assert (asked["name"], asked["state"], asked["revision"]) == ("pirate", "fetching", None)
        state = await ended(registry, asked["status_url"])
        assert (state["state"], state["revision"]) == ("complete", 1)
        revision = (await registry.http.get(state["revision_url"])).json()
        assert (revision["source"], revision["note"]) == (folders[0].as_uri(), "from a folder")
        await until(lambda: place.num_staged == 0)


@alive
async def test_who_waits_is_told_of_the_revision(sqlite_place: Place, folders: list[Path]) -> None:
    async with sqlite_place.running(adapter_roots=(folders[0].parent,)) as registry:
        answer = await order(registry, folders[0].as_uri(), wait=30)
        assert (answer.status_code, answer.json()["revision"], answer.json()["state"]) == (202, 1, "ready")


@pytest.mark.parametrize(
    ("source", "flag"),
    [
        ("file:///etc", "--adapter-root"),
        ("hf://org/repo", "--allow-source"),
        ("s3://bucket/prefix", "--allow-source"),
        ("https://host/adapter.zip", "--allow-source"),
    ],
)
@alive
async def test_nothing_is_fetched_unless_the_operator_allowed_it(sqlite_place: Place, source: str, flag: str) -> None:
    async with sqlite_place.running() as registry:
        answer = await order(registry, source)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "source_not_allowed")
        assert flag in answer.json()["error"]["message"]
        assert (await registry.http.get(UPLOADS)).json()["data"] == []


@alive
async def test_why_a_fetch_failed_stands_where_its_state_does(
    sqlite_place: Place, folders: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    async with sqlite_place.running(adapter_roots=(tmp_path, folders[0].parent)) as registry:
        empty = await order(registry, (tmp_path / "empty").as_uri())
        state = await ended(registry, empty.json()["status_url"])
        assert (state["state"], state["problem"]["code"]) == ("failed", "not_found")
        other = await order(registry, folders[0].as_uri(), sha256="0" * 64)
        state = await ended(registry, other.json()["status_url"])
        assert (state["state"], state["problem"]["code"]) == ("failed", "bad_checksum")
        assert (await registry.http.get(ADAPTERS)).json()["data"] == []
        await until(lambda: sqlite_place.num_staged == 0)


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    """Whose certificates are trusted."""
    (tmp_path / "authority").mkdir()
    found = Authority(tmp_path / "authority")
    monkeypatch.setenv("SSL_CERT_FILE", str(found.file))
    return found


class Web:
    """A site with one archive; once it has been asked it answers when `now` is set."""

    def __init__(self, authority: Authority, folder: Path) -> None:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            archive.add(folder, "pirate")
        self.content = packed.getvalue()
        self.begun, self.now = threading.Event(), threading.Event()
        self.running = site(authority, "localhost", {"/pirate.tar.gz": self._answer})

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.begun.set()
        self.now.wait(20)
        closing(self.content)(handler)


def allowing(web: Site) -> tuple[str, dict[str, Any]]:
    """The URL of the archive, and what the operator has to allow."""
    url = f"https://127.0.0.1:{web.port}/pirate.tar.gz"
    return url, {"allowed_sources": (url,), "allowed_addresses": ("127.0.0.1",)}


@alive
async def test_an_archive_from_the_web_is_held_to_its_checksum(
    sqlite_place: Place, folders: list[Path], authority: Authority
) -> None:
    web = Web(authority, folders[0])
    web.now.set()
    with web.running as running:
        url, allowed = allowing(running)
        async with sqlite_place.running(**allowed) as registry:
            answer = await order(registry, url, sha256=hashlib.sha256(web.content).hexdigest(), wait=30)
            assert answer.json()["state"] == "ready"
            refused = await ended(registry, (await order(registry, url, sha256="1" * 64)).json()["status_url"])
            assert refused["problem"]["code"] == "bad_checksum"


@alive
async def test_a_fetch_that_a_crash_cut_off_goes_on(place: Place, folders: list[Path], authority: Authority) -> None:
    web = Web(authority, folders[0])
    with web.running as running:
        url, allowed = allowing(running)
        async with place.running(crash=True, **allowed) as registry:
            status_url = (await order(registry, url)).json()["status_url"]
            await until(web.begun.is_set)
            registry.admin.arrivals.stop()  # the end of its process
            with registry.admin.database.engine.begin() as connection:
                connection.exec_driver_sql("UPDATE uploads SET held_until = 1")  # long ago
        web.now.set()
        async with place.running(**allowed) as registry:
            assert (await ended(registry, status_url))["state"] == "complete"


@alive
async def test_a_fetch_that_is_deleted_makes_no_revision(
    sqlite_place: Place, folders: list[Path], authority: Authority
) -> None:
    web = Web(authority, folders[0])
    with web.running as running:
        url, allowed = allowing(running)
        async with sqlite_place.running(**allowed) as registry:
            status_url = (await order(registry, url)).json()["status_url"]
            await until(web.begun.is_set)
            assert (await registry.http.delete(status_url)).status_code == 204
            web.now.set()
            await until(lambda: sqlite_place.num_staged == 0)
            assert (await registry.http.get(ADAPTERS)).json()["data"] == []


@alive
async def test_an_order_that_is_sent_again_is_one_fetch(place: Place, folders: list[Path]) -> None:
    async with place.running(adapter_roots=(folders[0].parent,)) as registry:
        body = {"name": "pirate", "source": folders[0].as_uri(), "wait": 30}
        headers = {"Idempotency-Key": "one"}
        first, again = [await registry.http.post(ADAPTERS, json=body, headers=headers) for _ in range(2)]
        assert (first.json()["state"], first.json()) == ("ready", again.json())
        assert len((await registry.http.get(UPLOADS)).json()["data"]) == 1


@alive
async def test_one_tenant_does_not_take_every_hand(place: Place, folders: list[Path], authority: Authority) -> None:
    web = Web(authority, folders[0])
    with web.running as running:
        url, allowed = allowing(running)
        async with place.running(**allowed) as registry:
            orders = [(await order(registry, url)).json()["status_url"] for _ in range(3)]
            with registry.admin.database.engine.begin() as connection:
                held = connection.exec_driver_sql("SELECT count(*) FROM uploads WHERE held_by IS NOT NULL").scalar()
            assert held == 2
            web.now.set()
            for status_url in orders[:2]:
                assert (await ended(registry, status_url))["state"] == "complete"
            await registry.admin.arrivals.tend()
            assert (await ended(registry, orders[2]))["state"] == "complete"
