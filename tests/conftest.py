"""What every test may use: the tiny models made on the spot, and the demo base."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED_DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Public data that may lie beside the checkout; tests that want it are skipped where it does not."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no public data beside the checkout ({SHARED_DATA})")
    return SHARED_DATA
