"""One logger factory; events read `event key=value`."""

from __future__ import annotations

import logging
import sys

FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


def get_logger(name: str) -> logging.Logger:
    """The logger of one module (`get_logger(__name__)`)."""
    return logging.getLogger(name)


def configure(level: str = "INFO") -> None:
    """Send Aril's own events to stderr at `level`; other libraries stay at WARNING."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(FORMAT, "%H:%M:%S"))
    ours = logging.getLogger("aril")
    ours.handlers[:] = [handler]
    ours.setLevel(level)
    ours.propagate = False


def event(name: str, **fields: object) -> str:
    """One log line, `name key=value ...`; a value with spaces is quoted, what could steer a terminal escaped."""
    return " ".join([name, *(f"{key}={_shown(value)}" for key, value in fields.items())])


def _shown(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and " " not in text else repr(text)
