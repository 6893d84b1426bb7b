"""The store in a bucket: what one server commits all of them read, and no drop takes what somebody relies on."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aril.core.errors import Conflict, InvalidRequest, NotFound, Unavailable
from aril.lora.bucket import BucketStore
from aril.lora.objects import Bucket
from aril.lora.store import content_digest
from builders.s3 import S3, running_s3

CONFIG = b'{"peft_type": "LORA", "r": 8, "target_modules": ["q_proj"]}'
FILES = {"adapter_config.json": CONFIG, "adapter_model.safetensors": b"weights", "README.md": b"card"}
# A process that stores and drops revisions until it is killed; it says which digests it was told are safe.
WRITER = """
import json, random, sys
from pathlib import Path
from aril.lora.bucket import BucketStore
store, random = BucketStore(sys.argv[1], Path(sys.argv[2])), random.Random(int(sys.argv[3]))
while True:
    config = json.dumps({"peft_type": "LORA", "r": random.randint(1, 1 << 30)}).encode()
    files = {"adapter_config.json": config, "adapter_model.safetensors": random.randbytes(1 << 16)}
    digest = store.commit(store.stage(files, 1 << 30))
    print("kept", digest, flush=True)
    if random.random() < 0.3:
        print("dropping", digest, flush=True)
        store.drop(digest)
"""
Open = Callable[..., BucketStore]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with running_s3() as server:
        yield server


@pytest.fixture
def place(s3: S3, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return s3.new_place()


@pytest.fixture
def replica(place: str, tmp_path: Path) -> Open:
    """Opens the store as one more server, with a cache of its own, that believes in no hold unless told to."""

    def open(cache: str, **patience: float) -> BucketStore:
        return BucketStore(place, tmp_path / cache, **{"hold_seconds": 0, **patience})

    return open


def commit(store: BucketStore) -> str:
    return store.commit(store.stage(FILES, 1000))


def test_what_one_server_commits_another_reads(replica: Open) -> None:
    digest = commit(replica("one"))
    two = replica("two")
    assert two.digests() == [digest]
    assert {file.name: file.read_bytes() for file in two.path(digest).iterdir()} == FILES


def test_the_same_content_is_sent_once(replica: Open, place: str) -> None:
    assert commit(replica("one")) == commit(replica("two"))
    weights = [entry for entry in Bucket(place).list() if entry.name.endswith("adapter_model.safetensors")]
    assert len(weights) == 1


def test_a_drop_takes_the_bytes_from_the_bucket_and_from_the_cache(replica: Open, place: str) -> None:
    one, two = replica("one"), replica("two")
    digest = commit(one)
    two.path(digest)
    assert one.drop(digest)
    assert list(Bucket(place).list()) == []
    with pytest.raises(NotFound, match=digest):
        one.path(digest)
    assert two.drop(digest)  # what is left of it there
    assert not two.drop(digest)
    assert two.digests() == []


def test_what_another_server_has_just_committed_is_not_dropped(replica: Open) -> None:
    one, two = replica("one"), replica("two", hold_seconds=60)
    digest = commit(one)
    assert not two.drop(digest)
    assert one.drop(digest)


def test_what_is_needed_by_the_time_of_the_drop_stays(replica: Open) -> None:
    one, two = replica("one"), replica("two")
    digest = commit(one)
    answers = iter([False, True])
    assert not one.drop(digest, needed=lambda: next(answers))
    assert content_digest(two.path(digest)) == digest


def test_a_commit_during_a_drop_of_the_same_bytes_keeps_them(replica: Open) -> None:
    one, two = replica("one"), replica("two")
    digest = commit(one)
    steps = iter([lambda: None, lambda: commit(two)])

    def needed() -> bool:  # asked a second time when the bytes are out of sight
        next(steps)()
        return False

    one.drop(digest, needed=needed)
    assert content_digest(replica("three").path(digest)) == digest


def test_a_drop_that_died_halfway_is_undone(replica: Open) -> None:
    one = replica("one")
    digest = commit(one)
    answers: Iterator[bool] = iter([False])
    with pytest.raises(StopIteration):  # between its two questions
        one.drop(digest, needed=lambda: next(answers))
    assert replica("two").digests() == []
    late = replica("three", leftover_seconds=0)
    until_older()
    assert late.sweep() == 1
    assert content_digest(late.path(digest)) == digest


def test_bytes_that_are_not_what_their_digest_says_are_refused(replica: Open, place: str) -> None:
    digest = commit(replica("one"))
    weights = next(e.name for e in Bucket(place).list() if e.name.endswith("adapter_model.safetensors"))
    Bucket(place).write(weights, b"forged")
    with pytest.raises(Unavailable, match="something else"):
        replica("two").path(digest)


def test_without_the_bucket_what_is_cached_is_read_and_nothing_is_committed(
    replica: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    digest = commit(replica("one"))
    monkeypatch.setattr("aril.lora.objects.RETRIES", 0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    cut_off = replica("one")
    assert content_digest(cut_off.path(digest)) == digest
    with pytest.raises(Unavailable, match="does not answer"):
        commit(cut_off)
    with pytest.raises(Unavailable, match="does not answer"):
        replica("two").path(digest)


def test_parts_of_an_upload_are_shared(replica: Open, tmp_path: Path) -> None:
    one, two = replica("one"), replica("two")
    (tmp_path / "part").write_bytes(b"abc")
    one.parts.keep("upload_1", "0-aa", tmp_path / "part")
    assert two.parts.uploads() == ["upload_1"]
    with two.parts.open("upload_1", "0-aa") as part:
        assert part.read() == b"abc"
    two.parts.drop("upload_1")
    with pytest.raises(FileNotFoundError):
        one.parts.open("upload_1", "0-aa")


@pytest.mark.parametrize("url", ["s3://", "s3://b/../c", "https://b/c", "s3://Bucket/x", "s3://bucket//x"])
def test_what_is_no_place_in_a_bucket_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="s3://bucket/prefix"):
        BucketStore(url, tmp_path)


def test_a_kill_at_any_moment_loses_nothing(replica: Open, place: str, tmp_path: Path) -> None:
    kept: set[str] = set()
    for seed in range(4):
        command = [sys.executable, "-c", WRITER, place, str(tmp_path / "writer"), str(seed)]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        said = [writer.stdout.readline() for _ in range(2 + seed)]
        writer.send_signal(signal.SIGKILL)
        said += writer.communicate()[0].splitlines()
        words = [line.split() for line in said if len(line.split()) == 2 and len(line.split()[1]) == 64]
        kept |= {d for word, d in words if word == "kept"} - {d for word, d in words if word == "dropping"}
    until_older()
    reader = replica("reader", leftover_seconds=0)
    reader.sweep()
    assert kept <= set(reader.digests())
    assert {content_digest(reader.path(digest)) for digest in reader.digests()} == set(reader.digests())


def until_older() -> None:
    """Until what has been written is older than nothing: the bucket's clock counts whole seconds."""
    end = int(time.time()) + 1
    while time.time() <= end:
        time.sleep(0.05)


def test_a_bucket_belongs_to_the_registry_that_claimed_it_first(replica: Open) -> None:
    first, second = replica("a"), replica("b")
    second.claim(None)
    first.claim("one")
    second.claim("one")
    for other in ("two", None):
        with pytest.raises(Conflict, match="that of another registry"):
            second.claim(other)
