"""Adapters on their way to a server: small ones in one request, large ones in parts, others fetched by the server."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ...core.errors import ArilError, InvalidRequest
from .admin import Admin
from .parts import Listener, send
from .wishes import Wishes

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
LARGE = 32 << 20  # bytes from which an upload comes in parts: some seconds of a usual line
LOOK_SECONDS = 0.25  # between looks at what the server fetches
SILENT = Listener()


def upload(
    admin: Admin,
    name: str,
    source: str,
    wishes: Wishes,
    *,
    in_parts: bool = False,
    sha256: str | None = None,
    listener: Listener = SILENT,
) -> int:
    """Bring a PEFT folder, an archive of one, or what lies at a URL into the registry; the number of the revision.

    It has been taken in then, and waits to be checked. Raises InvalidRequest for what is no adapter on this machine.
    """
    if "://" in source:
        return _fetched(admin, {"name": name, "source": source, "sha256": sha256, **wishes.fields})
    if sha256 is not None:
        raise InvalidRequest("--sha256 is for what the server fetches; files from here are checked anyway")
    paths = _files_of(Path(source))
    size = sum(path.stat().st_size for path in paths)
    if in_parts or size >= LARGE:
        return send(admin, name, paths, wishes, listener)
    return _at_once(admin, name, paths, wishes, lambda done: listener.moved(done, size))


def _files_of(source: Path) -> list[Path]:
    if source.is_file():
        return [source]
    wanted = f"give a folder with {' and '.join(ADAPTER_FILES)}, or one archive of them"
    if not source.is_dir():
        raise InvalidRequest(f"{source} does not exist; {wanted}")
    missing = [name for name in ADAPTER_FILES if not (source / name).is_file()]
    if missing:
        raise InvalidRequest(f"{source} has no {' and no '.join(missing)}; {wanted}")
    return [source / name for name in ADAPTER_FILES]


def _at_once(admin: Admin, name: str, paths: list[Path], wishes: Wishes, tell: Callable[[int], None]) -> int:
    """One multipart form."""
    sent = [0]
    with ExitStack() as stack:
        files = [("files", (path.name, stack.enter_context(_Watched(path, sent, tell)))) for path in paths]
        found = admin.ask("POST", "/adapters", {}, data={"name": name, **wishes.form}, files=files)
    return int(found["revision"])


class _Watched(io.FileIO):
    """A file that tells how much has been read of it and of others that share `sent`."""

    def __init__(self, path: Path, sent: list[int], tell: Callable[[int], None]) -> None:
        super().__init__(path)
        self._sent = sent
        self._tell = tell

    def read(self, size: int | None = -1, /) -> bytes | Any:
        """The next bytes."""
        found = super().read(-1 if size is None else size)
        self._sent[0] += len(found)
        self._tell(self._sent[0])
        return found


def _fetched(admin: Admin, order: Mapping[str, Any]) -> int:
    """The server fetches it; wait for that."""
    found = admin.post("/adapters", order)
    while found["object"] == "upload" and found["state"] not in ("complete", "failed"):
        time.sleep(LOOK_SECONDS)
        found = admin.get(f"/uploads/{found['id']}")
    problem = found.get("problem")
    if problem is not None:
        raise ArilError(str(problem["message"]), problems=[str(each) for each in problem["problems"]])
    return int(found["revision"])
