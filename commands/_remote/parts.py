"""One upload in parts. After a lost connection it goes on where the server has it; so does the same upload begun again
by a later command."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.errors import ArilError, InvalidRequest, Unavailable
from .admin import Admin
from .wishes import Wishes

PIECE = 1 << 18  # bytes between two movements of a progress bar
PAUSES = (0.2, 0.5, 1, 2, 4, 8, 15, 30)  # seconds before each further attempt; a minute in all
WRONG_OFFSET = "wrong_offset"
State = dict[str, Any]  # an upload, as the server tells it


@dataclass(frozen=True, slots=True)
class Listener:
    """Who hears how an upload goes on: bytes done, of how many; and lines about what is out of the ordinary."""

    moved: Callable[[int, int], None] = lambda _done, _of: None
    said: Callable[[str], None] = lambda _line: None


def send(admin: Admin, name: str, paths: list[Path], wishes: Wishes, listener: Listener) -> int:
    """Bring `paths` to the server; the number of the revision that they become."""
    files = {path.name: {"size": path.stat().st_size, "sha256": _sha256(path)} for path in paths}
    order = {"name": name, "files": files, **wishes.fields}
    state = _begun(admin, order, wishes) or admin.post("/uploads", order)
    sending = _Sending(admin, listener, sum(path.stat().st_size for path in paths))
    for path in paths:
        state = sending.file(state, path)
    return sending.complete(state)


def _begun(admin: Admin, order: Mapping[str, Any], wishes: Wishes) -> State | None:
    """The same upload, if an earlier command began it."""
    for state in admin.get("/uploads")["data"]:
        files = {name: {"size": file["size"], "sha256": file["sha256"]} for name, file in state["files"].items()}
        is_same = files == order["files"] and state["name"] == order["name"] and state["wishes"] == wishes.fields
        if is_same and state["state"] == "receiving":
            return dict(state)
    return None


@dataclass(frozen=True, slots=True)
class _Sending:
    """The parts of one upload on their way."""

    admin: Admin
    listener: Listener
    size: int  # of all files

    def file(self, state: State, path: Path) -> State:
        """Send what the server has not yet of one file."""
        with path.open("rb") as file:
            while (at := state["files"][path.name]["received"]) < state["files"][path.name]["size"]:
                file.seek(at)
                part = file.read(state["part_bytes"])
                if not part:
                    raise InvalidRequest(f"{path} has become shorter while it was being sent")
                state = self._patiently(state, lambda: self._part(state, path.name, at, part))  # noqa: B023
        return state

    def complete(self, state: State) -> int:
        """Let it become a revision; asking again does no harm."""
        self.listener.moved(self.size, self.size)
        done = self._patiently(state, lambda: self.admin.post(f"/uploads/{state['id']}/complete"))
        return int(done["revision"])

    def _part(self, state: State, name: str, at: int, part: bytes) -> State:
        before = sum(file["received"] for file in state["files"].values())
        digest = base64.b64encode(hashlib.sha256(part).digest()).decode()
        headers = {
            "Upload-Offset": str(at),
            "Content-Digest": f"sha-256=:{digest}:",
            "Content-Length": str(len(part)),
            "Content-Type": "application/octet-stream",
        }
        pieces = self._pieces(part, before)
        return self.admin.ask("PUT", f"/uploads/{state['id']}/files/{name}", {}, headers=headers, content=pieces)

    def _pieces(self, part: bytes, before: int) -> Iterator[bytes]:
        for at in range(0, len(part), PIECE):
            self.listener.moved(before + at, self.size)
            yield part[at : at + PIECE]

    def _patiently(self, state: State, attempt: Callable[[], State]) -> State:
        """Try until the server answers, or has not for long. Where a part got lost on the way, it is sent anew from
        where the server says that it stands."""
        for pause in PAUSES:
            try:
                return attempt()
            except Unavailable as error:
                self.listener.said(f"{error.message}; trying again in {pause:g} s")
                time.sleep(pause)
            except ArilError as error:
                if error.code != WRONG_OFFSET:
                    raise
                return self.admin.get(f"/uploads/{state['id']}")  # it had come, and only the answer was lost
        return attempt()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
