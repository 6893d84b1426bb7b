"""The admin key: made once, readable by its owner alone."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from aril.admin_api.admin_key import AdminKey, admin_key
from aril.admin_api.settings import AdminSettings
from aril.core.bearer import digest_of
from aril.core.errors import InvalidRequest


def test_a_key_is_made_once_and_kept_for_its_owner(tmp_path: Path) -> None:
    settings = AdminSettings(state_dir=tmp_path / "state")
    first, second = admin_key(settings), admin_key(settings)
    assert first == second
    assert first.path is not None
    assert stat.S_IMODE(first.path.stat().st_mode) == 0o600
    assert first.digest == digest_of(first.path.read_text().strip())


def test_a_made_key_may_follow_a_flag(tmp_path: Path) -> None:
    path = admin_key(AdminSettings(state_dir=tmp_path)).path
    assert path is not None
    assert path.read_text().startswith("aril-")


def test_starts_at_once_agree_on_one_key(tmp_path: Path) -> None:
    settings = AdminSettings(state_dir=tmp_path)
    with ThreadPoolExecutor(8) as threads:
        keys = set(threads.map(lambda _: admin_key(settings), range(32)))
    assert len(keys) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["admin.key"]


def test_a_given_key_is_written_nowhere(tmp_path: Path) -> None:
    key = admin_key(AdminSettings(state_dir=tmp_path, admin_key="secret"))
    assert key == AdminKey(digest_of("secret"), path=None)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_key_is_no_key(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="empty"):
        AdminSettings(state_dir=tmp_path, admin_key=" ")
