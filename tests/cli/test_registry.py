"""`aril tenants`, `keys`, `usage` and `audit` against a real server, and how commands find one on their machine."""

from __future__ import annotations

import csv
import io
import json
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from aril.cli import main
from aril.commands._running import sign, state_dir_of
from builders.commands import SMALL, Files
from builders.processes import ADMIN_KEY, Running, started

FLAGS = [*SMALL, "--served-model-name", "tiny"]
TODAY = datetime.now(UTC).date().isoformat()
BODY = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 2, "ignore_eos": True}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where state folders are, as XDG_STATE_HOME."""
    return tmp_path_factory.mktemp("state-home")


@pytest.fixture(scope="module")
def server(files: Files, home: Path) -> Iterator[Running]:
    """One whose state folder is at the usual place."""
    state = home / "aril" / "some-model"
    state.mkdir(parents=True)
    (state / "admin.key").write_text(ADMIN_KEY)
    with started(files.model, state, FLAGS) as found:
        yield found


@pytest.fixture(autouse=True)
def at_home(home: Path, server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the machine of that server, with nothing told but its URL."""
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    for name in ("ARIL_ADMIN_KEY", "ARIL_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)


class Typed:
    """What a person types, and what the terminal shows."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._url = url
        self._capsys = capsys
        self.err = ""

    def __call__(self, *words: str, code: int = 0) -> str:
        """Standard output of a command that ends with `code`."""
        assert main([*words, "--url", self._url]) == code, self._capsys.readouterr().err
        shown = self._capsys.readouterr()
        self.err = shown.err
        return shown.out

    def json(self, *words: str, code: int = 0) -> Any:
        """The one document on standard output."""
        return json.loads(self(*words, "--json", code=code))


@pytest.fixture
def typed(server: Running, capsys: pytest.CaptureFixture[str]) -> Typed:
    """A terminal beside the server."""
    return Typed(str(server.http.base_url), capsys)


def test_a_key_is_alone_on_stdout_so_that_scripts_can_take_it(typed: Typed, server: Running) -> None:
    secret = typed("keys", "create", "for scripts", "--quiet").rstrip("\n")
    bearer = {"Authorization": f"Bearer {secret}"}
    url = f"{server.http.base_url}/v1/models"
    assert httpx.get(url, headers=bearer).is_success
    (made,) = (key for key in typed.json("keys", "list")["data"] if key["name"] == "for scripts")
    assert secret.startswith(made["shown"])
    assert secret not in typed("keys", "show", made["id"])
    assert "revoked" in typed("keys", "revoke", made["id"])
    assert httpx.get(url, headers=bearer).status_code == 401


def test_a_key_goes_by_its_name_where_no_other_has_it(typed: Typed) -> None:
    first, second = (typed.json("keys", "create", "twin")["id"] for _ in range(2))
    typed("keys", "revoke", "twin", code=2)
    assert f"2 keys are called 'twin': give the id, {' or '.join(sorted((first, second)))}" in typed.err
    typed("keys", "revoke", first)
    assert typed.json("keys", "revoke", "twin")["id"] == second
    typed("keys", "revoke", "nobody", code=1)
    assert "no key has the id or the name 'nobody'" in typed.err


def test_the_first_key_says_that_v1_asks_for_one_and_so_does_the_next_start(
    files: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with started(files.model, tmp_path, FLAGS) as server:
        assert "/v1, for holders of a key" not in server.banner()
        typed = Typed(f"{server.http.base_url}", capsys)
        words = ("keys", "create", "a", "--admin-key", ADMIN_KEY)
        said = [(typed(*words), typed.err)[1] for _ in range(2)]
        assert ["from now on /v1 asks everybody for a key" in each for each in said] == [True, False]
    with started(files.model, tmp_path, FLAGS) as server:
        assert "/v1, for holders of a key" in server.banner()


def test_a_key_is_what_its_flags_say(typed: Typed) -> None:
    words = ("--scope", "infer", "--scope", "adapters:read", "--adapter", "a/b", "--expires", "30d")
    made = typed.json("keys", "create", "k", *words, "--requests-per-minute", "5")
    assert (made["scopes"], made["adapters"], made["requests_per_minute"]) == (["adapters:read", "infer"], ["a/b"], 5)
    assert made["expires"] - made["created"] in range(30 * 86_400 - 2, 30 * 86_400 + 3)
    assert typed.json("keys", "limit", made["id"], "--requests-per-minute", "none")["requests_per_minute"] is None


def test_a_tenant_has_limits_keys_and_an_end(typed: Typed) -> None:
    made = typed.json("tenants", "create", "acme", "--tokens-per-minute", "9000", "--max-adapter-bytes", "1GiB")
    assert (made["tokens_per_minute"], made["max_adapter_bytes"]) == (9000, 1 << 30)
    assert "max adapters 3" in typed("tenants", "limit", "acme", "--max-adapters", "3", "--tokens-per-minute", "none")
    assert typed.json("keys", "create", "theirs", "--tenant", "acme")["tenant"] == "acme"
    assert typed.json("tenants", "show", "acme")["tokens_per_minute"] is None
    assert "acme" in typed("tenants", "list")
    assert "deleted acme" in typed("tenants", "delete", "acme")
    typed("tenants", "show", "acme", code=1)


def test_usage_is_the_same_in_every_form(typed: Typed, server: Running) -> None:
    assert server.http.post("/v1/completions", json=BODY).is_success
    asked = ("usage", "--group-by", "model", "--model", "tiny", "--from", "2020-01-01")
    (line,) = typed.json(*asked)["data"]
    (row,) = csv.DictReader(io.StringIO(typed(*asked, "--csv")))
    assert {name: str(value) for name, value in line.items() if value is not None} == row
    shown = typed(*asked).splitlines()
    assert shown[0].split()[:3] == ["MODEL", "REQUESTS", "ERRORS"]
    assert shown[1].split() == list(row.values())


def test_the_audit_is_verified_with_and_without_a_server(typed: Typed, home: Path, tmp_path: Path) -> None:
    typed("tenants", "create", "noted")
    assert typed("audit", "list", "--subject", "noted").splitlines()[1].split()[-1] != ""
    assert len(typed.json("audit", "list", "--limit", "1")["data"]) == 1
    typed("audit", "list", "--kind", "tenants", code=1)
    assert "kind: Input should be 'adapter', 'alias', 'tenant', 'key' or 'store'" in typed.err
    head = typed.json("audit", "verify")["head"]
    assert f"head {head}" in typed("audit", "verify", "--expect", head)
    copy = tmp_path / "copy.sqlite3"
    with sqlite3.connect(home / "aril" / "some-model" / "registry.sqlite3") as whole, sqlite3.connect(copy) as to:
        whole.backup(to)
    assert typed.json("audit", "verify", "--database-url", f"sqlite:///{copy}")["head"] == head
    with sqlite3.connect(copy) as database:
        database.execute("UPDATE audit SET actor = 'nobody' WHERE id = 2")
    assert typed.json("audit", "verify", "--database-url", f"sqlite:///{copy}", code=1)["broken"] == 2
    assert "aril: the audit is not sound: line 2" in typed.err
    typed("audit", "verify", "--expect", "f" * 64, code=1)
    typed("audit", "verify", "--database-url", f"sqlite:///{tmp_path}/none.sqlite3", code=1)
    assert not (tmp_path / "none.sqlite3").exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("tenants", "limit", "default"), "nothing to change"),
        (("tenants", "limit", "default", "--max-adapters", "many"), "a whole number, or none"),
        (("tenants", "limit", "default", "--max-adapter-bytes", "big"), "is no size"),
        (("keys", "create", "k", "--expires", "soon"), "write 12h, 30d, or a day"),
        (("keys", "create", "k", "--expires", ""), "write 12h, 30d, or a day"),
        (("keys", "create", "k", "--expires", "2001-01-01"), "--expires 2001-01-01 is over already"),
        (
            ("keys", "create", "k", "--expires", TODAY),
            f"--expires {TODAY} is over already (a day is meant from its first",
        ),
        (("usage", "--csv", "--json"), "take one of them"),
        (("keys", "list", "--admin-key", "a b\n"), "incorrect API key"),
    ],
)
def test_wrong_usage_is_told_in_one_line(typed: Typed, words: tuple[str, ...], complaint: str) -> None:
    typed(*words, code=1 if "incorrect" in complaint else 2)
    assert complaint in typed.err
    assert len(typed.err.splitlines()) == 1


def test_the_key_of_a_server_that_has_ended_goes_nowhere(home: Path, server: Running) -> None:
    url = str(server.http.base_url)
    port = url.rsplit(":", 1)[1].strip("/")
    assert state_dir_of(url) == state_dir_of(f"http://localhost:{port}") == home / "aril" / "some-model"
    assert state_dir_of(f"http://elsewhere:{port}") is None
    ended = subprocess.Popen(["true"])
    ended.wait()
    dead = home / "aril" / "dead"
    dead.mkdir()
    (dead / "lock").write_text(f"{ended.pid} http://127.0.0.1:1\n")
    assert state_dir_of("http://127.0.0.1:1") is None
    with (dead / "lock").open("a") as lock:
        sign(lock, "http://127.0.0.1:1")
    assert state_dir_of("http://127.0.0.1:1") == dead
    assert (dead / "lock").read_text() == f"{os.getpid()} http://127.0.0.1:1\n"
    (dead / "lock").unlink()


def test_a_server_is_found_wherever_its_state_folder_is(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock:
        sign(lock, "http://127.0.0.1:2")
        assert state_dir_of("http://127.0.0.1:2") == tmp_path
    assert state_dir_of("http://127.0.0.1:2") is None


@pytest.mark.parametrize("kept", ["ARIL_ADMIN_KEY", "admin.key"])
def test_an_empty_key_is_not_another_one(typed: Typed, kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kept == "ARIL_ADMIN_KEY":
        monkeypatch.setenv(kept, ADMIN_KEY)
    typed("keys", "list")
    typed("keys", "list", "--admin-key", "", code=2)
    assert typed.err == "aril: --admin-key is empty; give a key, or neither it nor ARIL_ADMIN_KEY\n"


def test_without_any_key_it_is_told_where_one_may_be(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "list", "--url", "http://127.0.0.1:1"]) == 2
    told = capsys.readouterr().err
    assert "no admin key for http://127.0.0.1:1" in told
    assert "--admin-key or ARIL_ADMIN_KEY, or by --state-dir the folder with its admin.key" in told
    assert str(server.http.base_url).strip("/") in told
