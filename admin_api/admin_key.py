"""The admin key: the operator's, or one made at the first start. Who holds it may change what is served."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from ..core.bearer import digest_of, new_key
from ..core.errors import InvalidRequest
from .settings import AdminSettings


@dataclass(frozen=True, slots=True)
class AdminKey:
    """What a bearer must show. Only its digest is kept; `path` is where a key that was made here can be read."""

    digest: bytes
    path: Path | None


def admin_key(settings: AdminSettings) -> AdminKey:
    """The key in force: that of the settings, that of the state folder, or a new one written there."""
    if settings.admin_key is not None:
        return AdminKey(digest_of(settings.admin_key.strip()), path=None)
    path = settings.key_path
    if not path.exists():
        _create(path)
    key = path.read_text().strip()
    if not key:
        raise InvalidRequest(f"the admin key file {path} is empty; remove it to have a new key made")
    return AdminKey(digest_of(key), path)


def _create(path: Path) -> None:
    """Write a random key that only the owner reads. When two processes start at once, the first file wins whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(new_key() + "\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
