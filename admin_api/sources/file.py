"""file:///folder: a PEFT folder under a root that the operator allowed, links followed as long as they stay there."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from ...core.errors import Forbidden, InvalidRequest, NotFound
from ...lora.store import KEPT
from ..origins import Allowed, Order, Origin

PIECE = 1 << 20
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe that nobody writes to blocks nobody


class FileSource:
    """Folders of this machine."""

    def check(self, origin: Origin, allowed: Allowed) -> None:
        """Raises Forbidden for what lies, links resolved, under no root."""
        _root_of(origin.path, allowed)

    def fetch(self, origin: Origin, order: Order) -> str:
        """Copy the files that are kept of an adapter."""
        self.check(origin, order.allowed)
        size = 0
        for name in KEPT:
            with suppress(FileNotFoundError), _open(f"{origin.path}/{name}", order.allowed) as file:
                size += _copy(file, order.folder / name, order.room(origin, size))
                order.room(origin, size)
        if not any(order.folder.iterdir()):
            raise NotFound(f"there is no adapter in {origin}", param="source")
        return str(origin)


def _root_of(path: str, allowed: Allowed) -> tuple[Path, Path]:
    """The allowed root that `path` lies under, and the rest; both without links."""
    try:
        real = Path(os.path.realpath(path))
    except OSError as error:  # a part of it became another thing while it was looked at
        raise InvalidRequest(f"{path!r} cannot be read: {error.strerror}", param="source") from error
    for root in allowed.roots:
        real_root = Path(os.path.realpath(root))
        if real.is_relative_to(real_root):
            return real_root, real.relative_to(real_root)
    raise Forbidden(
        f"this server may not read {path!r}: its operator has to allow a folder above it with --adapter-root",
        param="source",
        code="source_not_allowed",
    )


def _open(path: str, allowed: Allowed) -> BinaryIO:
    """A plain file under a root. Each step of the way is opened from the one before and may be no link, so that nothing
    that is exchanged meanwhile leads elsewhere."""
    root, rest = _root_of(path, allowed)
    *folders, name = rest.parts
    here = os.open(root, FOLDER)
    try:
        for folder in folders:
            below = os.open(folder, FOLDER, dir_fd=here)
            os.close(here)
            here = below
        file = os.open(name, FILE, dir_fd=here)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InvalidRequest(f"{path!r} cannot be read: {error.strerror}", param="source") from error
    finally:
        os.close(here)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise InvalidRequest(f"{path!r} is not a plain file", param="source")
    return os.fdopen(file, "rb")


def _copy(file: BinaryIO, to: Path, room: int) -> int:
    """Copy up to one piece more than `room`; returns how much that was."""
    size = 0
    with to.open("wb") as copy:
        while size <= room and (piece := file.read(PIECE)):
            size += copy.write(piece)
    return size


EXPORT = FileSource()
