"""Waiting for the gate: until a revision is READY, REJECTED or not to be waited for any longer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ...core.errors import ArilError, Unavailable
from .admin import Admin, adapter_path

UNDER_WAY = ("uploaded", "checking")
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.5  # seconds between two looks
PATIENCE_SECONDS = 30  # with a server that does not answer while we wait


def decided(
    admin: Admin, name: str, number: int, *, timeout: float, tell: Callable[[str], None] = lambda _line: None
) -> dict[str, Any]:
    """The revision once the gate has decided; `tell` hears of each state.

    Raises Unavailable when that takes longer than `timeout` seconds.
    """
    deadline, pause, told = time.monotonic() + timeout, FIRST_PAUSE, ""
    while True:
        found = _look(admin, name, number, min(deadline, time.monotonic() + PATIENCE_SECONDS))
        state = _words(found)
        if state != told:
            tell(f"{name}@{number}: {state}")
            told = state
        if found["state"] not in UNDER_WAY:
            return found
        left = deadline - time.monotonic()
        if left <= 0:
            more = f"`aril adapters wait {name}@{number}` goes on waiting"
            raise Unavailable(f"{name}@{number} is still {state} after {timeout:g} s; {more}")
        time.sleep(min(pause, left))
        pause = min(1.5 * pause, LONGEST_PAUSE)


def rejection(name: str, revision: dict[str, Any]) -> ArilError | None:
    """Why a revision cannot be served, for one that the gate has refused."""
    if revision["state"] != "rejected":
        return None
    problems = [str(problem) for problem in (revision["report"] or {}).get("problems", ())]
    return ArilError(f"{name}@{revision['number']} was rejected", problems=problems)


def _look(admin: Admin, name: str, number: int, deadline: float) -> dict[str, Any]:
    while True:
        try:
            return admin.get(adapter_path(name, "revisions", number))
        except Unavailable:
            if time.monotonic() >= deadline:
                raise
            time.sleep(LONGEST_PAUSE)


def _words(revision: dict[str, Any]) -> str:
    state, waiting = str(revision["state"]), (revision["report"] or {}).get("waiting")
    return f"{state}; {waiting}" if waiting and state in UNDER_WAY else state
