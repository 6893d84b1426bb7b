"""Imports that another thread begins early, so that they pass while the main one waits for disks and kernels."""

from __future__ import annotations

import importlib
from contextlib import suppress
from threading import Thread


def import_ahead(*names: str) -> None:
    """Begin to import packages that know nothing of ours: two threads that import each other's halves could meet.

    What fails here fails again, and aloud, where it is needed.
    """
    Thread(target=_import_all, args=(names,), name="import-ahead", daemon=True).start()


def _import_all(names: tuple[str, ...]) -> None:
    for name in names:
        with suppress(Exception):
            importlib.import_module(name)
