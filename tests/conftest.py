"""What every test may use.

Without a GPU the Triton kernels run in Triton's interpreter. It must be asked for before anything imports Triton, whose
own functions are decorated then: so here, and not beside the kernels' tests. Interpreted kernels are only ever forced,
so the other tests of the same process do not meet them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

collect_ignore = ["clients"]  # they have an environment of their own: make clients

SHARED_DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Public data that may lie beside the checkout; tests that want it are skipped where it does not."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no public data beside the checkout ({SHARED_DATA})")
    return SHARED_DATA


@pytest.fixture(autouse=True)
def room_for_every_name() -> None:
    """Adapters that one test made busy keep those of another out of no metric."""
    from aril.core.metrics import ADAPTERS

    ADAPTERS.limit = 1_000_000
