"""What must agree after a start: registry, store, served models, keys, usage and audit, with what was acknowledged."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from ...lora.store import AdapterStore
from .changes import ADMIN, KINDS, ask
from .known import Known, Weights

GONE = ("retired", "rejected")  # states whose bytes are not kept
NUM_ASKED = 4  # names, and keys, that are tried after each start
LOST_SECONDS = 1.5  # of usage: the second that docs/registry.md grants, and the writing of a batch on a busy machine


def contradictions(client: httpx.Client, store: Path, known: Known, rng: random.Random, killed_at: float) -> list[str]:
    """Everything in which the server that was started again does not agree with itself, or with what is known."""
    views = all_views(client)
    return [
        *_revisions(views, known),
        *_aliases(views, known),
        *_models(client, views),
        *_bytes(client, views, store),
        *_keys(client, known, rng),
        *_arriving(client, known),
        *_usage(client, known, killed_at),
        *_audit(client, known),
        *_silent(
            client,
            rng.sample(active := [view["name"] for view in views if view["active"]], min(len(active), NUM_ASKED)),
        ),
    ]


def all_views(client: httpx.Client) -> list[dict[str, Any]]:
    """All adapters."""
    return list(_pages(client, "adapters"))


def waiting(client: httpx.Client) -> list[str]:
    """The revisions about which the gate has not decided."""
    return [
        f"{view['name']}@{revision['number']}"
        for view in all_views(client)
        for revision in view["revisions"]
        if revision["state"] in ("uploaded", "checking")
    ]


def _revisions(views: Sequence[dict[str, Any]], known: Known) -> Iterator[str]:
    there = {(view["name"], revision["number"]): revision for view in views for revision in view["revisions"]}
    for (name, number), digest in known.revisions.items():
        found = there.get((name, number))
        if found is None or found["digest"] != digest:
            yield f"{name}@{number} was acknowledged with {digest[:12]}, found is {found and found['digest'][:12]}"
        elif found["state"] == "rejected":
            yield f"{name}@{number} was rejected: {found['report']}"
    subject = known.under_way.subject if known.under_way else None
    new = [which for which in there.keys() - known.revisions.keys() if which[0] != subject]
    yield from (f"{name}@{number} was never asked for" for name, number in new)


def _aliases(views: Sequence[dict[str, Any]], known: Known) -> Iterator[str]:
    there = {(view["name"], alias["name"]): alias["weights"] for view in views for alias in view["aliases"]}
    wanted: dict[tuple[str, str], Weights | None] = {}
    if known.under_way is not None:
        wanted = {(known.under_way.subject, known.under_way.alias): known.under_way.weights}
    for which, weights in known.aliases.items():
        if there.get(which) not in (weights, wanted.get(which, weights)):
            yield f"{'@'.join(which)} was acknowledged as {weights}, found is {there.get(which)}"
    states = {(view["name"], str(r["number"])): r["state"] for view in views for r in view["revisions"]}
    for (name, alias), weights in there.items():
        yield from (f"{name}@{alias} leads to {n}, which is not ready" for n in weights if states[name, n] != "ready")


def _models(client: httpx.Client, views: Sequence[dict[str, Any]]) -> Iterator[str]:
    models = [model["id"] for model in client.get("/v1/models").json()["data"]]
    served, active = set(models[1:]), {view["name"] for view in views if view["active"]}
    yield from (f"{name} is active, but not in /v1/models" for name in active - served)
    yield from (f"{name} is in /v1/models, but not active" for name in served - active)


def _bytes(client: httpx.Client, views: Sequence[dict[str, Any]], store: Path) -> Iterator[str]:
    needed = {r["digest"] for view in views for r in view["revisions"] if r["state"] not in GONE}
    stored = set(AdapterStore(store).digests())
    yield from (f"bytes {digest[:12]} are named, but not stored" for digest in needed - stored)
    yield from (f"bytes {digest[:12]} are stored, but nothing names them" for digest in stored - needed)
    yield from (f"staging holds {path.name}" for path in (store / "staging").glob("*/*") if path.name != "graves")
    receiving = {upload["id"] for upload in _uploads(client) if upload["state"] == "receiving"}
    yield from (
        f"parts of {path.name} are left" for path in (store / "uploads").iterdir() if path.name not in receiving
    )


def _keys(client: httpx.Client, known: Known, rng: random.Random) -> Iterator[str]:
    there = {view["id"]: view["revoked"] is not None for view in _pages(client, "keys")}
    subject = known.under_way.subject if known.under_way else None
    for id in known.keys:
        if id not in there or (there[id] != (id in known.revoked) and id != subject):
            yield f"{id}: acknowledged revoked={id in known.revoked}, found {there.get(id, 'nothing')}"
    known.revoked = {id for id in known.keys if there.get(id)}
    for id in rng.sample(sorted(known.keys), min(len(known.keys), 2 * NUM_ASKED)):
        status = client.get("/v1/models", headers={"Authorization": f"Bearer {known.keys[id]}"}).status_code
        if status != (401 if there.get(id) else 200):
            yield f"{id}: revoked={there.get(id)}, but it is answered with {status}"


def _arriving(client: httpx.Client, known: Known) -> Iterator[str]:
    """The upload that was under way goes on where the server says; one whose announcement got lost is given up."""
    arriving = known.arriving
    for other in _uploads(client):
        if other["state"] == "receiving" and (arriving is None or other["id"] != arriving.id):
            client.delete(f"{ADMIN}/uploads/{other['id']}").raise_for_status()
    if arriving is None:
        return
    answer = client.get(f"{ADMIN}/uploads/{arriving.id}")
    if not answer.is_success:
        yield f"{arriving.id} was acknowledged and is gone: {answer.text}"
        known.arriving = None
        return
    view = answer.json()
    for file, received in arriving.received.items():
        found = view["files"][file]["received"]
        if found < received:
            yield f"{arriving.id}: {received} bytes of {file} were acknowledged, {found} are there"
        arriving.received[file] = found
    if view["state"] == "complete":
        known.arriving = None


def _usage(client: httpx.Client, known: Known, killed_at: float) -> Iterator[str]:
    lines = client.get(f"{ADMIN}/usage", params={"group_by": "key", "key": known.meter[0]}).json()["data"]
    written = sum(line["requests"] for line in lines)
    new, ended = written - known.written, sorted(known.ended)
    if not 0 <= new <= len(ended) + KINDS["usage"].num_threads:
        yield f"usage: {len(ended)} requests ended, {new} were counted"
    elif new < len(ended) and (lost := killed_at - ended[new]) > LOST_SECONDS:
        yield f"usage: {len(ended) - new} of {len(ended)} requests are lost, the first ended {lost:.2f} s before"
    known.written, known.ended = written, []


def _audit(client: httpx.Client, known: Known) -> Iterator[str]:
    found = client.get(f"{ADMIN}/audit/verify", params={"expect": known.head} if known.head else {}).json()
    if not found["sound"]:
        yield f"the audit is not sound: {found['reason']}"
    known.head = found["head"]


def _silent(client: httpx.Client, names: Sequence[str]) -> Iterator[str]:
    answers = {name: ask(client, name) for name in names}
    yield from (f"{name} does not answer: {answer.text}" for name, answer in answers.items() if not answer.is_success)


def _uploads(client: httpx.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get(f"{ADMIN}/uploads").json()["data"]
    return found


def _pages(client: httpx.Client, what: str) -> Iterator[dict[str, Any]]:
    params = {"limit": "1000"}
    while True:
        page = client.get(f"{ADMIN}/{what}", params=params).json()
        yield from page["data"]
        if page["next_cursor"] is None:
            return
        params["cursor"] = page["next_cursor"]
