"""Who may use a folder beside whom."""

from __future__ import annotations

from pathlib import Path

import pytest
from aril.admin_api.settings import AdminSettings
from aril.commands._house import _locked
from aril.core.errors import Conflict

WHAT = ("adapter store", "--store")


def test_servers_on_one_postgresql_share_a_store(tmp_path: Path) -> None:
    with _locked(tmp_path, *WHAT, shared=True), _locked(tmp_path, *WHAT, shared=True):
        pass


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (False, False)])
def test_a_server_on_sqlite_shares_its_store_with_nobody(tmp_path: Path, first: bool, second: bool) -> None:
    with (
        _locked(tmp_path, *WHAT, shared=first),
        pytest.raises(Conflict, match=r"another server uses the adapter store"),
        _locked(tmp_path, *WHAT, shared=second),
    ):
        pass


@pytest.mark.parametrize(("url", "is_shared"), [(None, False), ("sqlite:////a/b", False), ("postgresql://h/d", True)])
def test_a_database_is_shared_unless_it_is_a_file(tmp_path: Path, url: str | None, is_shared: bool) -> None:
    assert AdminSettings(state_dir=tmp_path, database_url=url).is_shared == is_shared
