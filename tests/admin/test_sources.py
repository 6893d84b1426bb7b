"""Sources: a URL has one meaning, and only what lies under the operator's allowance is read, whatever changes."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from aril.admin_api.origins import Allowed, Order, Origin, sources
from aril.admin_api.sources.hf import HubSource
from aril.core.errors import ArilError, Forbidden, InvalidRequest, NotFound, TooLarge, Unavailable, Unsupported
from aril.lora.objects import Bucket
from builders.hub import COMMIT, serving
from builders.s3 import S3, running_s3

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
LIMIT = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An adapter under a root, and a secret beside it."""
    found = tmp_path / "root" / "pirate"
    found.mkdir(parents=True)
    (found / CONFIG).write_bytes(b"{}")
    (found / WEIGHTS).write_bytes(b"weights")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / CONFIG).write_bytes(b"secret")
    return found


def ordered(tmp_path: Path, roots: tuple[Path, ...] = (), patterns: tuple[str, ...] = ()) -> Order:
    folder = tmp_path / f"fetched-{len(list(tmp_path.iterdir()))}"
    folder.mkdir()
    return Order(folder, LIMIT, Allowed.of(roots, patterns, ()))


def fetch(
    url: str, tmp_path: Path, *, roots: tuple[Path, ...] = (), patterns: tuple[str, ...] = ()
) -> dict[str, bytes]:
    origin, order = Origin.of(url), ordered(tmp_path, roots, patterns)
    sources[origin.scheme].fetch(origin, order)
    return contents(order)


def contents(order: Order) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in order.folder.iterdir() if file.is_file()}


def test_there_are_four_kinds() -> None:
    assert sources.names() == ["file", "hf", "https", "s3"]


@pytest.mark.parametrize(
    "url",
    ["https://host/a/../b", "https://host/./a", "https://host/%2e%2e/a", "https://user@host/a", "https://host/a?b=c",
     "https://host/a#b", "https://host\\@evil/a", "https:///a", "https://host//a", "https://hоst/a", "https://host/a b",
     "https://host/\n", "hf://org/re\0po", "s3://bucket/a/../b", "file://host/a", "file:///a/../b", "file:///a%00",
     "https://host/" + "a" * 3000],
)  # fmt: skip
def test_a_url_that_could_be_misread_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="no plain URL"):
        Origin.of(url)


@pytest.mark.parametrize("url", ["http://host/a", "ftp://host/a", "gopher://host", "/etc/passwd", "", "HTTPS://host/a"])
def test_another_kind_of_url_is_answered_with_those_that_there_are(url: str) -> None:
    with pytest.raises(Unsupported, match="file, hf, https, s3"):
        Origin.of(url)


@pytest.mark.parametrize(
    ("pattern", "url", "is_allowed"),
    [
        ("hf://org/*", "hf://org/repo@main", True),
        ("hf://org/repo", "hf://org/repo@refs/pr/1", True),
        ("hf://org/repo@v1", "hf://org/repo@v1", True),
        ("hf://org/repo@v1", "hf://org/repo@v2", False),
        ("hf://org/*", "hf://organisation/repo", False),
        ("hf://org/re", "hf://org/repo", False),
        ("s3://bucket/adapters", "s3://bucket/adapters/pirate", True),
        ("s3://bucket/adapters/*", "s3://bucket/adapters2/pirate", False),
        ("s3://bucket/*", "s3://bucket2/pirate", False),
        ("https://host/*", "https://HOST/a", True),
        ("https://host/*", "https://host.evil/a", False),
        ("https://host/*", "https://host:8443/a", False),
        ("https://host/*", "s3://host/a", False),
    ],
)
def test_a_pattern_covers_itself_and_what_is_below(pattern: str, url: str, is_allowed: bool) -> None:
    allowed = Allowed.of((), (pattern,), ())
    try:
        allowed.check(Origin.of(url))
    except Forbidden:
        assert not is_allowed
    else:
        assert is_allowed


def test_flags_that_cannot_work_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="--adapter-root"):
        Allowed.of((tmp_path / "nowhere",), (), ())
    with pytest.raises(InvalidRequest, match="--allow-address"):
        Allowed.of((), (), ("localhost",))
    with pytest.raises(InvalidRequest, match="--adapter-root"):
        Allowed.of((), ("file:///data/*",), ())


def test_a_folder_under_a_root_is_read(folder: Path, tmp_path: Path) -> None:
    fetched = fetch(folder.as_uri(), tmp_path, roots=(folder.parent,))
    assert fetched == {CONFIG: b"{}", WEIGHTS: b"weights"}


def test_no_folder_is_read_unless_allowed(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(Forbidden, match="--adapter-root"):
        fetch(folder.as_uri(), tmp_path)
    with pytest.raises(Forbidden, match="--adapter-root"):
        fetch((tmp_path / "secret").as_uri(), tmp_path, roots=(folder.parent,))


def test_links_are_followed_inside_a_root(folder: Path, tmp_path: Path) -> None:
    (folder.parent / "link").symlink_to(folder)
    (folder / "README.md").symlink_to(WEIGHTS)
    fetched = fetch((folder.parent / "link").as_uri(), tmp_path, roots=(folder.parent,))
    assert fetched == {CONFIG: b"{}", WEIGHTS: b"weights", "README.md": b"weights"}


def test_links_out_of_a_root_are_not(folder: Path, tmp_path: Path) -> None:
    (folder.parent / "link").symlink_to(tmp_path / "secret")
    (folder / "README.md").symlink_to(tmp_path / "secret" / CONFIG)
    for name in ("link", "pirate"):
        with pytest.raises(Forbidden, match="--adapter-root"):
            fetch((folder.parent / name).as_uri(), tmp_path, roots=(folder.parent,))


def test_a_pipe_in_place_of_a_file_is_refused_and_blocks_nobody(folder: Path, tmp_path: Path) -> None:
    (folder / WEIGHTS).unlink()
    os.mkfifo(folder / WEIGHTS)
    with pytest.raises(InvalidRequest, match="not a plain file"):
        fetch(folder.as_uri(), tmp_path, roots=(folder.parent,))


def test_a_folder_that_is_exchanged_for_a_link_meanwhile_leads_nowhere(folder: Path, tmp_path: Path) -> None:
    stopping, link, aside = threading.Event(), folder.with_name("link"), folder.with_name("aside")
    link.symlink_to(tmp_path / "secret")

    def exchange() -> None:
        while not stopping.is_set():
            folder.rename(aside)
            link.rename(folder)
            folder.rename(link)
            aside.rename(folder)

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        for _ in range(200):
            try:
                read = fetch(folder.as_uri(), tmp_path, roots=(folder.parent,))
            except ArilError:
                continue
            assert b"secret" not in read.values()
    finally:
        stopping.set()
        thread.join()


def test_a_repository_is_fetched_at_the_commit_that_its_revision_names(folder: Path, tmp_path: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    with serving("org/pirate", folder) as hub:
        origin = Origin.of("hf://org/pirate@main")
        order = ordered(tmp_path, patterns=("hf://org/*",))
        assert HubSource(hub.url).fetch(origin, order) == f"hf://org/pirate@{COMMIT}"
    assert contents(order) == {CONFIG: b"{}", WEIGHTS: b"weights"}


def test_a_repository_that_is_too_large_is_not_downloaded(folder: Path, tmp_path: Path) -> None:
    (folder / WEIGHTS).write_bytes(bytes(LIMIT + 1))
    with serving("org/pirate", folder) as hub:
        order = ordered(tmp_path, patterns=("hf://org/*",))
        with pytest.raises(TooLarge):
            HubSource(hub.url).fetch(Origin.of("hf://org/pirate"), order)
        assert hub.weight_bytes_sent == 0


def test_what_the_hub_does_not_have_or_the_operator_not_allow_is_told_apart(folder: Path, tmp_path: Path) -> None:
    with serving("org/pirate", folder) as hub:
        order = ordered(tmp_path, patterns=("hf://org/*",))
        with pytest.raises(NotFound, match="hf://org/parrot"):
            HubSource(hub.url).fetch(Origin.of("hf://org/parrot"), order)
        with pytest.raises(Forbidden, match="--allow-source"):
            HubSource(hub.url).fetch(Origin.of("hf://other/pirate"), order)
    with pytest.raises(Unavailable, match="could not be fetched"):
        HubSource(hub.url).fetch(Origin.of("hf://org/pirate"), order)
    with pytest.raises(InvalidRequest, match="hf://organisation/name"):
        HubSource(hub.url).fetch(Origin.of("hf://org/pirate/deeper"), order)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with running_s3() as server:
        yield server


def test_a_prefix_of_a_bucket_is_read(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    place, weights = s3.new_place(), os.urandom(3 << 18)
    for name, data in {CONFIG: b"{}", WEIGHTS: weights, "optimizer.pt": b"pickle"}.items():
        Bucket(place).write(f"pirate/{name}", data)
    read = fetch(f"{place}/pirate", tmp_path, patterns=(f"{place}/*",))
    assert set(read) == {CONFIG, WEIGHTS}
    assert hashlib.sha256(read[WEIGHTS]).digest() == hashlib.sha256(weights).digest()
    with pytest.raises(NotFound):
        fetch(f"{place}/parrot", tmp_path, patterns=(f"{place}/*",))
    with pytest.raises(Forbidden, match="--allow-source"):
        fetch(f"{place}/pirate", tmp_path, patterns=(f"{place}/parrot",))
    Bucket(place).write(f"pirate/{WEIGHTS}", bytes(LIMIT))
    with pytest.raises(TooLarge):
        fetch(f"{place}/pirate", tmp_path, patterns=(f"{place}/*",))
