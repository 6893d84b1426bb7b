"""`aril version`."""

from __future__ import annotations

import argparse

from .. import __version__
from ._command import Command


def run(_args: argparse.Namespace) -> int:
    """Print the version."""
    print(__version__)
    return 0


EXPORT = Command("print the version", lambda _parser: None, run)
