"""Memory that runs out while an engine is made is a refusal in one line, whichever library notices it."""

from __future__ import annotations

import errno
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from aril.core.errors import DoesNotFit, NotFound
from aril.core.shortage import refused_when_full, shortage
from builders.engines import make_engine
from builders.models import make_model

TOO_MUCH = 1 << 60
MIB = 1 << 20


def map_a_file() -> None:
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


@pytest.mark.parametrize(
    ("take", "said"),
    [
        (lambda: torch.empty(TOO_MUCH, dtype=torch.uint8), "MiB more cannot be had"),
        (lambda: np.zeros(TOO_MUCH, dtype=np.uint8), "Unable to allocate"),
        (lambda: bytearray(TOO_MUCH), "MemoryError"),
        (map_a_file, "Cannot allocate memory"),
    ],
    ids=["torch", "numpy", "python", "mmap"],
)
def test_every_library_is_understood(take: Callable[[], object], said: str) -> None:
    refusal = rf"^the tea does not fit: .*{said}.*; lower --cups$"
    with pytest.raises(DoesNotFit, match=refusal), refused_when_full("the tea does not fit", "lower --cups", "cups"):
        take()


@pytest.mark.parametrize("error", [ValueError("no"), RuntimeError("shapes differ"), OSError(errno.ENOENT, "gone")])
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    assert shortage(error) is None
    with pytest.raises(type(error)), refused_when_full("x", "y", "z"):
        raise error


def test_a_refusal_within_stays_what_it_is() -> None:
    with pytest.raises(NotFound), refused_when_full("x", "y", "z"):
        raise NotFound("no adapter 'out of memory'")


def test_weights_that_do_not_fit_the_process_are_refused(tmp_path: Path) -> None:
    model = make_model(tmp_path / "wide", vocab_size=200_000)  # two matrices of 49 MiB
    with at_most_more(50 * MIB), pytest.raises(DoesNotFit, match=r"wide does not fit: .*; use a smaller model"):
        make_engine(model)


def test_a_cache_that_does_not_fit_the_process_is_refused(tmp_path: Path) -> None:
    model = make_model(tmp_path / "long", max_position_embeddings=65_536)  # 768 KiB per 1,024 tokens: 768 MiB at once
    flags = {"max_num_seqs": 16, "kv_cache_memory": "1GiB"}
    with at_most_more(400 * MIB), pytest.raises(DoesNotFit, match=r"^the KV cache does not fit: .*--kv-cache-memory"):
        make_engine(model, **flags)


@contextmanager
def at_most_more(num_bytes: int) -> Iterator[None]:
    """This process may map that much more, as under `ulimit -v`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
