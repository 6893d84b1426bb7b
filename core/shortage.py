"""Telling that memory ran out from all else that goes wrong: each library says it in its own way."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

from .errors import ArilError, DoesNotFit

SAID = re.compile(r"allocate memory|out of memory|not enough memory|bad_alloc", re.IGNORECASE)
ASKED = re.compile(r"(?:tried to allocate|unable to mmap) (\d+) bytes")  # torch's allocator on a CPU


def shortage(error: BaseException) -> str | None:
    """What could not be had, when `error` says that memory is out; None when it says something else."""
    text = " ".join(str(error).split())
    out = isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM or SAID.search(text)
    if not out:
        return None
    asked = ASKED.search(text)
    return f"{int(asked[1]) / 2**20:.4g} MiB more cannot be had" if asked else text or type(error).__name__


@contextmanager
def refused_when_full(what: str, advice: str, param: str) -> Iterator[None]:
    """Memory that runs out within is a DoesNotFit that says of what, and what to turn."""
    try:
        yield
    except ArilError:
        raise
    except Exception as error:  # safetensors has a type of its own for it
        said = shortage(error)
        if said is None:
            raise
        raise DoesNotFit(f"{what}: {said}; {advice}", param=param) from error
