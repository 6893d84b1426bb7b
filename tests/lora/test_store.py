"""The store: bytes are there completely or not at all, under the digest of what they are."""

from __future__ import annotations

import io
import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aril.core.errors import Conflict, InvalidAdapter, NotFound, TooLarge
from aril.lora.store import AdapterStore, content_digest

CONFIG = json.dumps({"peft_type": "LORA", "r": 8, "target_modules": ["q_proj", "v_proj"]}).encode()
# A process that stores and drops revisions until it is killed; it says which digests it was told are safe.
WRITER = """
import json, random, sys
from pathlib import Path
from aril.lora.store import AdapterStore
store, random = AdapterStore(Path(sys.argv[1])), random.Random(int(sys.argv[2]))
while True:
    config = json.dumps({"peft_type": "LORA", "r": random.randint(1, 1 << 30)}).encode()
    files = {"adapter_config.json": config, "adapter_model.safetensors": random.randbytes(1 << 20)}
    digest = store.commit(store.stage(files, 1 << 30))
    print("kept", digest, flush=True)
    if random.random() < 0.3:
        print("dropping", digest, flush=True)
        store.drop(digest)
"""


@pytest.fixture
def store(tmp_path: Path) -> AdapterStore:
    return AdapterStore(tmp_path)


def upload(weights: bytes = b"weights", config: bytes = CONFIG, **others: bytes) -> dict[str, bytes]:
    return {"adapter_config.json": config, "adapter_model.safetensors": weights, **others}


def test_what_is_committed_is_found_by_its_digest(store: AdapterStore) -> None:
    digest = store.commit(store.stage(upload(b"abc"), 1000))
    assert (store.path(digest) / "adapter_model.safetensors").read_bytes() == b"abc"
    assert store.digests() == [digest] == [content_digest(store.path(digest))]


def test_the_same_content_is_kept_once(store: AdapterStore, tmp_path: Path) -> None:
    other_spelling = json.dumps(
        {"target_modules": ["v_proj", "q_proj"], "r": 8, "peft_type": "LORA", "peft_version": "1"}
    )
    first = store.commit(store.stage(upload(), 1000))
    second = store.commit(store.stage(upload(config=other_spelling.encode()), 1000))
    assert first == second
    assert store.digests() == [first]
    assert staged_in(tmp_path) == 0


@pytest.mark.parametrize(
    "change", [{"weights": b"other"}, {"config": CONFIG.replace(b"8", b"4")}], ids=["bytes", "rank"]
)
def test_other_content_has_another_digest(change: dict[str, bytes], store: AdapterStore) -> None:
    assert store.commit(store.stage(upload(), 1000)) != store.commit(store.stage(upload(**change), 1000))


def test_streams_and_paths_are_read_alike(store: AdapterStore, tmp_path: Path) -> None:
    (tmp_path / "config").write_bytes(CONFIG)
    mixed = {"adapter_config.json": tmp_path / "config", "adapter_model.safetensors": io.BytesIO(b"weights")}
    assert store.commit(store.stage(mixed, 1000)) == store.commit(store.stage(upload(), 1000))


def test_an_upload_over_the_limit_leaves_nothing(store: AdapterStore, tmp_path: Path) -> None:
    with pytest.raises(TooLarge, match="limit of 100 bytes"):
        store.stage(upload(b"x" * 101), 100)
    assert staged_in(tmp_path) == 0


@pytest.mark.parametrize("name", ["../evil", "a/b", "a\\b", "..", "", "a\0b", "a\nb", "a\x7fb"])
def test_a_file_name_that_is_a_path_is_refused(name: str, store: AdapterStore) -> None:
    with pytest.raises(InvalidAdapter, match="not a plain name"):
        store.stage({**upload(), name: b""}, 1000)


def test_pickled_weights_are_refused(store: AdapterStore) -> None:
    with pytest.raises(InvalidAdapter, match="pickle"):
        store.stage({"adapter_config.json": CONFIG, "adapter_model.bin": b""}, 1000)


def test_files_that_are_not_needed_are_left_out_and_named(store: AdapterStore) -> None:
    staged = store.stage({**upload(), "tokenizer.json": b"{}", "README.md": b"card"}, 1000)
    assert sorted(p.name for p in staged.folder.iterdir()) == [
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    assert ["tokenizer.json" in note for note in staged.notes] == [True]


@pytest.mark.parametrize("digest", ["0" * 64, "../staging", ""])
def test_a_digest_that_is_not_there_is_not_found(digest: str, store: AdapterStore) -> None:
    with pytest.raises(NotFound):
        store.path(digest)


def test_a_dropped_revision_is_gone_and_may_be_dropped_again(store: AdapterStore, tmp_path: Path) -> None:
    digest = store.commit(store.stage(upload(), 1000))
    assert store.drop(digest)
    assert not store.drop(digest)
    assert store.digests() == []
    assert staged_in(tmp_path) == 0
    with pytest.raises(NotFound, match=digest):
        store.path(digest)


def test_what_is_needed_by_the_time_of_the_drop_stays(store: AdapterStore) -> None:
    digest = store.commit(store.stage(upload(b"abc"), 1000))
    answers = iter([False, True])  # it became needed when the drop had begun
    assert not store.drop(digest, needed=lambda: next(answers))
    assert (store.path(digest) / "adapter_model.safetensors").read_bytes() == b"abc"


def test_a_commit_during_a_drop_of_the_same_bytes_keeps_them(store: AdapterStore) -> None:
    digest = store.commit(store.stage(upload(), 1000))
    asked = 0

    def needed() -> bool:  # asked a second time when the bytes are out of sight
        nonlocal asked
        asked += 1
        if asked == 2:
            store.commit(store.stage(upload(), 1000))
        return False

    store.drop(digest, needed=needed)
    assert store.digests() == [digest] == [content_digest(store.path(digest))]


def test_a_drop_that_cannot_ask_changes_nothing(store: AdapterStore) -> None:
    digest = store.commit(store.stage(upload(), 1000))
    answers: Iterator[bool] = iter([False])
    with pytest.raises(StopIteration):
        store.drop(digest, needed=lambda: next(answers))
    assert store.digests() == [digest]


def test_what_another_living_process_works_on_is_not_swept(store: AdapterStore, tmp_path: Path) -> None:
    with other_process(tmp_path, "store.stage(files, 1 << 20); print('ready', flush=True); input()"):
        assert store.sweep() == 0
        assert staged_in(tmp_path) == 1
    assert store.sweep() == 1
    assert staged_in(tmp_path) == 0


def test_a_process_that_dies_in_the_middle_of_a_drop_has_dropped_nothing(store: AdapterStore, tmp_path: Path) -> None:
    digest = store.commit(store.stage(upload(), 1000))
    asks = "def ask():\n    print('ready', flush=True)\n    return bool(len(input()))\n"
    program = f"{asks}answers = iter([lambda: False, ask])\nstore.drop('{digest}', needed=lambda: next(answers)())"
    with other_process(tmp_path, program):
        assert store.digests() == []
    assert store.sweep() == 1
    assert store.digests() == [digest] == [content_digest(store.path(digest))]


def test_commits_and_drops_of_the_same_bytes_at_once_never_mix(store: AdapterStore, tmp_path: Path) -> None:
    stopping = threading.Event()

    def drop(other: AdapterStore) -> None:
        while not stopping.is_set():
            other.drop(digest)

    digest = store.commit(store.stage(upload(), 1000))
    droppers = [threading.Thread(target=drop, args=(AdapterStore(tmp_path),)) for _ in range(2)]
    for dropper in droppers:
        dropper.start()
    for _ in range(200):
        assert store.commit(store.stage(upload(), 1000)) == digest
        assert set(store.digests()) <= {digest}
    stopping.set()
    for dropper in droppers:
        dropper.join()
    assert store.commit(store.stage(upload(), 1000)) == content_digest(store.path(digest))
    assert staged_in(tmp_path) == 0


def staged_in(root: Path) -> int:
    """How many things are under way or were left half done."""
    return sum(1 for path in (root / "staging").glob("*/*") if path.name != "graves" or any(path.iterdir()))


@contextmanager
def other_process(root: Path, program: str) -> Iterator[None]:
    """A process with a `store` and the `files` of an adapter, from when it is ready until it is killed."""
    start = (
        "import sys; from pathlib import Path; from aril.lora.store import AdapterStore\n"
        "store = AdapterStore(Path(sys.argv[1]))\n"
        f"files = {{'adapter_config.json': {CONFIG!r}, 'adapter_model.safetensors': b'weights'}}\n"
    )
    command = [sys.executable, "-c", start + program, str(root)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield
    finally:
        process.kill()
        process.communicate()


def test_a_kill_at_any_moment_loses_and_leaves_nothing(tmp_path: Path) -> None:
    for seed in range(10):
        kept, dropping = run_until_killed(tmp_path, seed)
        store = AdapterStore(tmp_path)
        store.sweep()
        there = set(store.digests())
        assert kept - dropping <= there
        assert {content_digest(store.path(digest)) for digest in there} == there
        assert staged_in(tmp_path) == 0
        for digest in there:
            store.drop(digest)


def run_until_killed(root: Path, seed: int) -> tuple[set[str], set[str]]:
    """(digests that were acknowledged, digests that were being dropped)."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(root), str(seed)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    said = [writer.stdout.readline()]  # it is at work
    try:
        writer.wait(timeout=random.Random(seed).uniform(0, 0.1))
    except subprocess.TimeoutExpired:
        writer.send_signal(signal.SIGKILL)
    said += writer.communicate()[0].splitlines()
    words = [line.split() for line in said if len(line.split()) == 2 and len(line.split()[1]) == 64]
    return {d for word, d in words if word == "kept"}, {d for word, d in words if word == "dropping"}


def test_a_store_belongs_to_the_registry_that_claimed_it_first(tmp_path: Path) -> None:
    first, second = AdapterStore(tmp_path), AdapterStore(tmp_path)
    second.claim(None)
    first.claim("one")
    second.claim("one")
    for other in ("two", None):
        with pytest.raises(Conflict, match="that of another registry"):
            second.claim(other)
