"""The kinds of change that a kill may meet. A new kind is a method here and a line in KINDS."""

from __future__ import annotations

import base64
import hashlib
import itertools
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch
from safetensors.torch import load_file, save_file

from ...lora.config import CONFIG_FILE, WEIGHTS_FILE
from .known import Arriving, Known, UnderWay, Weights

ADMIN = "/admin/v1"
NUM_NAMES = 12
RECENT = 3  # revisions of a name that an alias may be moved to; older ones retire
NUM_PARTS = 6
GATE_SECONDS = 60


class Changes:
    """Makes changes and writes down what was acknowledged. A kind is driven by one thread, but for `usage`."""

    def __init__(self, adapter: Path, known: Known, rng: random.Random) -> None:
        self.known = known
        self._config = (adapter / CONFIG_FILE).read_bytes()
        self._tensors = load_file(adapter / WEIGHTS_FILE)
        self._numbers = itertools.count()
        self._rng = rng

    def begin(self, client: httpx.Client) -> None:
        """See to it that there is something to change."""
        for _ in range(NUM_NAMES + RECENT):
            self.upload(client)
        made = _sent(client.post(f"{ADMIN}/keys", json={"name": "meter"}))
        self.known.meter = made["id"], made["key"]

    def upload(self, client: httpx.Client) -> None:
        """A revision, until it is served."""
        self._send(client, wait=GATE_SECONDS)

    def gate(self, client: httpx.Client) -> None:
        """A revision, acknowledged before it is checked."""
        self._send(client, wait=0)

    def parts(self, client: httpx.Client) -> None:
        """One step of an upload in parts: its announcement, a part, or its end."""
        arriving = self.known.arriving
        if arriving is None:
            self._announce(client)
        elif unfinished := [name for name, done in arriving.received.items() if done < len(arriving.contents[name])]:
            self._part(client, arriving, unfinished[0])
        else:
            with self._acknowledging(UnderWay(arriving.name)):
                view = _sent(client.post(f"{ADMIN}/uploads/{arriving.id}/complete"))
                self.known.revisions[arriving.name, view["revision"]] = view["digest"]
                self.known.arriving = None

    def alias(self, client: httpx.Client) -> None:
        """Move an alias to a revision, to several by weight, or back; or what the bare name means."""
        name = self._rng.choice(sorted({name for name, _ in self.known.revisions}))
        view = _sent(client.get(f"{ADMIN}/adapters/{name}"))
        ready = [revision["number"] for revision in view["revisions"] if revision["state"] == "ready"]
        alias = self._rng.choice(["default", "prod", "prod"])
        history: list[Weights] = next((was["history"] for was in view["aliases"] if was["name"] == alias), [])
        path = f"{ADMIN}/adapters/{name}/aliases/{alias}"
        can_go_back = bool(history) and all(int(number) in ready for number in history[-1])
        if can_go_back and self._rng.random() < 0.25:  # the move before the last may lead to what has retired since
            weights, body = history[-1], None
        else:
            recent = ready[-RECENT:]
            few = self._rng.sample(recent, self._rng.randint(1, min(2, len(recent))))
            weights = {str(number): self._rng.randint(1, 100) for number in few}
            body = {"weights": weights}
        with self._acknowledging(UnderWay(name, alias, weights)):
            view = _sent(client.put(path, json=body) if body else client.post(f"{path}/rollback"))
            assert view["weights"] == weights, f"asked for {weights}, got {view}"
            self.known.aliases[name, alias] = weights

    def keys(self, client: httpx.Client) -> None:
        """Make a key, or revoke one."""
        alive = sorted(self.known.keys.keys() - self.known.revoked)
        if len(alive) < 3 or self._rng.random() < 0.5:
            with self._acknowledging(UnderWay("a new key")):
                made = _sent(client.post(f"{ADMIN}/keys", json={"name": "one of many"}))
                self.known.keys[made["id"]] = made["key"]
            return
        id = self._rng.choice(alive)
        with self._acknowledging(UnderWay(id)):
            _sent(client.post(f"{ADMIN}/keys/{id}/revoke"))
            self.known.revoked.add(id)

    def usage(self, client: httpx.Client) -> None:
        """A request that is counted; several threads may send some."""
        name = self._rng.choice(sorted({name for name, _ in self.known.aliases}))
        ask(client, name, self.known.meter[1]).raise_for_status()
        self.known.ended.append(time.monotonic())

    def _send(self, client: httpx.Client, *, wait: int) -> None:
        name, weights = self._next()
        files = [("files", (CONFIG_FILE, self._config)), ("files", (WEIGHTS_FILE, weights))]
        with self._acknowledging(UnderWay(name)):
            fields = {"name": name, "wait": str(wait)}
            view = _sent(client.post(f"{ADMIN}/adapters", data=fields, files=files))
            self.known.learn(view["adapter"])

    def _announce(self, client: httpx.Client) -> None:
        name, weights = self._next()
        contents = {CONFIG_FILE: self._config, WEIGHTS_FILE: weights}
        files = {file: {"size": len(data), "sha256": _sha256(data).hex()} for file, data in contents.items()}
        with self._acknowledging(UnderWay(name)):
            view = _sent(client.post(f"{ADMIN}/uploads", json={"name": name, "files": files}))
            self.known.arriving = Arriving(view["id"], name, contents, dict.fromkeys(contents, 0))

    def _part(self, client: httpx.Client, arriving: Arriving, file: str) -> None:
        begin, whole = arriving.received[file], arriving.contents[file]
        part = whole[begin : begin + len(whole) // NUM_PARTS + 1]
        digest = base64.b64encode(_sha256(part)).decode()
        headers = {"Upload-Offset": str(begin), "Content-Digest": f"sha-256=:{digest}:"}
        with self._acknowledging(UnderWay(arriving.id)):
            view = _sent(client.put(f"{ADMIN}/uploads/{arriving.id}/files/{file}", content=part, headers=headers))
            arriving.received[file] = view["files"][file]["received"]

    @contextmanager
    def _acknowledging(self, change: UnderWay) -> Iterator[None]:
        self.known.under_way = change
        yield
        self.known.under_way = None
        self.known.num_acknowledged += 1

    def _next(self) -> tuple[str, bytes]:
        """A name, and weights a little different each time."""
        number = next(self._numbers)
        with tempfile.TemporaryDirectory() as folder:
            path, factor = Path(folder) / WEIGHTS_FILE, torch.tensor(1.0 + number / 1000)
            save_file({name: (tensor * factor).to(tensor.dtype) for name, tensor in self._tensors.items()}, path)
            return f"adapter-{number % NUM_NAMES}", path.read_bytes()


@dataclass(frozen=True, slots=True)
class Kind:
    """What is done, by how many threads; the kill comes up to `within` seconds after the first acknowledgement."""

    act: Callable[[Changes, httpx.Client], None]
    within: float
    num_threads: int = 1


KINDS = {
    "upload": Kind(Changes.upload, 1.0),
    "parts": Kind(Changes.parts, 0.5),
    "gate": Kind(Changes.gate, 0.2),
    "alias": Kind(Changes.alias, 0.5),
    "keys": Kind(Changes.keys, 0.5),
    "usage": Kind(Changes.usage, 2.5, num_threads=4),
}


def ask(client: httpx.Client, name: str, key: str | None = None) -> httpx.Response:
    """A short completion."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return client.post("/v1/completions", json={"model": name, "prompt": "Hello", "max_tokens": 2}, headers=headers)


def _sent(answer: httpx.Response) -> dict[str, Any]:
    if answer.is_error:
        raise RuntimeError(f"{answer.request.method} {answer.request.url}: {answer.status_code} {answer.text[:500]}")
    view: dict[str, Any] = answer.json()
    return view


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
