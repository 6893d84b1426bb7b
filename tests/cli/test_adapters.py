"""`aril adapters` against a real server: what it does, what it says where, and the exit codes that scripts trust."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import termios
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aril.cli import main
from aril.commands._remote import Admin, Listener, Wishes, upload
from builders.adapters import make_adapter
from builders.commands import SMALL, Files
from builders.processes import ADMIN_KEY, Running, started
from builders.proxy import losing

PADDING = 20 << 20  # bytes, so that an archive has three parts


@pytest.fixture(scope="module")
def server(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One whose registry is empty, and which may read what lies beside the files."""
    flags = [*SMALL, "--served-model-name", "tiny", "--adapter-root", str(files.adapter.parent)]
    with started(files.model, tmp_path_factory.mktemp("registry"), flags) as found:
        yield found


@pytest.fixture(scope="module")
def other(files: Files) -> Path:
    """Another adapter than that of the files."""
    return make_adapter(files.adapter.parent / "other", files.model, seed=1)


@pytest.fixture(scope="module")
def without_effect(files: Files) -> Path:
    """An adapter that the gate rejects."""
    return make_adapter(files.adapter.parent / "nothing", files.model, scale=0.0)


@pytest.fixture(scope="module")
def large(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive that takes several parts."""
    path = tmp_path_factory.mktemp("archive") / "adapter.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(files.adapter.iterdir()):
            if file.name != "README.md":
                archive.write(file, file.name)
        archive.writestr("README.md", bytes(range(256)) * (PADDING // 256))
    return path


class Typed:
    """What a person types, and what the terminal shows."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.url = url
        self._capsys = capsys
        self.err = ""

    def __call__(self, *words: str, code: int = 0) -> str:
        """Standard output of a command that ends with `code`."""
        assert main([*words, "--url", self.url, "--admin-key", ADMIN_KEY]) == code, self._capsys.readouterr().err
        shown = self._capsys.readouterr()
        self.err = shown.err
        return shown.out

    def json(self, *words: str, code: int = 0) -> Any:
        """The one document on standard output."""
        return json.loads(self("adapters", *words, "--json", code=code))


@pytest.fixture
def typed(server: Running, capsys: pytest.CaptureFixture[str]) -> Typed:
    """A terminal beside the server."""
    return Typed(str(server.http.base_url), capsys)


def test_an_upload_ends_when_the_gate_has_decided(typed: Typed, files: Files) -> None:
    words = ("upload", "told", str(files.adapter), "--note", "the first", "--tag", "a", "--tag", "b")
    found = typed.json(*words)
    assert (found["state"], found["note"], found["tags"]) == ("ready", "the first", ["a", "b"])
    assert typed.err.splitlines()[-1] == "told@1: ready"
    assert "smoke      passed" in typed("adapters", "show", "told@1")


def test_an_upload_need_not_wait(typed: Typed, other: Path) -> None:
    assert typed.json("upload", "later", str(other), "--no-wait")["number"] == 1
    assert typed.json("wait", "later")["state"] == "ready"
    assert typed.json("wait", "later@1", "--timeout", "0")["state"] == "ready"


def test_what_the_gate_rejects_is_a_failure_with_its_reasons(typed: Typed, without_effect: Path) -> None:
    assert typed("adapters", "upload", "nothing", str(without_effect), code=1) == ""
    assert "aril: nothing@1 was rejected" in typed.err
    assert typed.err.splitlines()[-1].startswith("  - ")
    found = typed.json("wait", "nothing", code=1)
    assert found["report"]["problems"]
    assert "nothing@1 was rejected" in typed.err
    assert [each["name"] for each in typed.json("list", "--state", "rejected")["data"]] == ["nothing"]


def test_golden_prompts_come_from_a_file(typed: Typed, other: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "golden.json"
    prompts.write_text(json.dumps([{"prompt": "a", "expect": "no model says this"}]))
    typed("adapters", "upload", "golden", str(other), "--golden", str(prompts), code=1)
    assert "golden prompt 1" in typed.err
    prompts.write_text("{")
    typed("adapters", "upload", "golden", str(other), "--golden", str(prompts), code=2)


def test_a_source_is_fetched_by_the_server(typed: Typed, other: Path) -> None:
    assert typed.json("upload", "fetched", f"file://{other}")["source"] == f"file://{other}"
    typed("adapters", "upload", "fetched", "file:///etc", code=1)
    assert "--adapter-root" in typed.err
    typed("adapters", "upload", "fetched", f"file://{other}", "--sha256", "0" * 64, code=1)


def test_an_alias_goes_where_it_is_sent(typed: Typed, files: Files, other: Path) -> None:
    typed("adapters", "upload", "a/b", str(files.adapter))
    typed("adapters", "upload", "a/b", str(other), "--inactive")
    assert typed.json("alias", "a/b@prod", "1")["revision"] == 1
    canary = typed.json("canary", "a/b@prod", "2", "--percent", "10", "--max-error-rate", "0.1", "--min-requests", "5")
    assert canary["weights"] == {"1": 90, "2": 10}
    assert canary["bounds"] == {"max_error_rate": 0.1, "min_requests": 5}
    assert typed.json("canary", "a/b@prod", "2", "--percent", "12.5", "--no-bounds")["weights"] == {
        "1": 8750,
        "2": 1250,
    }
    assert typed.json("shadow", "a/b@prod", "2", "--share", "0.5")["shadow"] == {"revision": 2, "share": 0.5}
    assert typed.json("shadow", "a/b@prod", "--remove")["shadow"] is None
    assert typed.json("rollback", "a/b@prod")["weights"] == {"1": 90, "2": 10}
    assert typed.json("alias", "a/b@prod", "1=1", "2=3")["weights"] == {"1": 1, "2": 3}
    assert "a/b@prod -> revision 1 25%, revision 2 75%" in typed("adapters", "alias", "a/b@prod")
    assert typed.json("alias", "a/b", "2", "--sticky-header", "x-team")["sticky_header"] == "x-team"
    assert "a/b@prod means nothing any more" in typed("adapters", "alias", "a/b@prod", "--remove")
    typed("adapters", "show", "a/b@prod", code=1)
    assert typed.json("retire", "a/b@1")["state"] == "retired"
    typed("adapters", "retire", "a/b@2", code=1)
    assert "a/b@default" in typed.err


def test_the_list_tells_rank_and_size_of_what_a_name_means(typed: Typed, files: Files) -> None:
    wide = make_adapter(files.adapter.parent / "wide", files.model, r=16)
    typed("adapters", "upload", "ranked", str(files.adapter))
    typed("adapters", "upload", "ranked", str(wide), "--inactive")
    words = ("adapters", "list", "--query", "ranked")
    assert re.search(r"revision 1 +8 .* 2  ready", typed(*words))
    typed("adapters", "deactivate", "ranked")
    assert re.search(r" - +16 .* 2  ready", typed(*words))


def test_texts_of_others_cannot_steer_the_terminal(typed: Typed, files: Files) -> None:
    typed("adapters", "upload", "escape", str(files.adapter), "--description", "\x1b[2Jowned", "--note", "\x07bell")
    for words in (("list",), ("show", "escape"), ("show", "escape@1")):
        assert not {"\x1b", "\x07"} & set(typed("adapters", *words))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("show", "@3"), "names no adapter"),
        (("retire", "a"), "which revision?"),
        (("wait", "a@prod"), "the number of a revision"),
        (("alias", "a@3", "1"), "this takes an alias"),
        (("alias", "a@prod", "1", "2"), "several as REVISION=WEIGHT"),
        (("alias", "a@prod", "1=2", "1=3"), "there twice"),
        (("alias", "a@prod", "1", "--remove"), "--remove takes no revision"),
        (("shadow", "a@prod"), "REVISION, or --remove"),
        (("edit", "a"), "nothing to change"),
        (("upload", "a", ".", "--sha256", "0"), "for what the server fetches"),
    ],
)
def test_wrong_usage_is_two(typed: Typed, words: tuple[str, ...], complaint: str) -> None:
    typed("adapters", *words, code=2)
    assert complaint in typed.err


def test_an_upload_in_parts_goes_on_after_lost_connections(
    server: Running, large: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with losing(str(server.http.base_url), [10 << 20, 1 << 20]) as proxy:
        found = Typed(proxy.url, capsys).json("upload", "parts", str(large), "--parts")
        assert found["state"] == "ready"
        assert proxy.cut == 2
        assert proxy.sent < large.stat().st_size + (10 << 20)  # two parts anew at most, and not the first


def test_an_upload_begun_again_goes_on_where_it_was(typed: Typed, server: Running, large: Path) -> None:
    def interrupt(done: int, _of: int) -> None:
        if done > 9 << 20:
            raise KeyboardInterrupt

    with Admin(typed.url, ADMIN_KEY) as admin, pytest.raises(KeyboardInterrupt):
        upload(admin, "again", str(large), Wishes(note="n"), in_parts=True, listener=Listener(moved=interrupt))
    with losing(typed.url, []) as proxy:
        assert Typed(proxy.url, typed._capsys).json("upload", "again", str(large), "--parts", "--note", "n")
        assert proxy.sent < large.stat().st_size - (7 << 20)
    uploads = [each for each in server.http.get("/admin/v1/uploads").json()["data"] if each["name"] == "again"]
    assert [each["state"] for each in uploads] == ["complete"]


def test_a_terminal_shows_how_far_an_upload_is(typed: Typed, large: Path) -> None:
    seen, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 100))
    words = ["adapters", "upload", "bar", str(large), "--parts", "--url", typed.url, "--admin-key", ADMIN_KEY, "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "aril.cli", *words], stdout=subprocess.PIPE, stderr=terminal, text=True, check=True
    )
    os.close(terminal)
    shown = os.read(seen, 1 << 16).decode()
    os.close(seen)
    assert "bar:" in shown
    assert "B/s" in shown
    assert json.loads(done.stdout)["state"] == "ready"
