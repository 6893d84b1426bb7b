"""The results of all parts as text that fits a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Parts = Mapping[str, Mapping[str, Any]]
WIDTH = 15
MOST_TOLD = 300  # characters of one problem; the rest is in the JSON


def lines(parts: Parts) -> Iterator[str]:
    """Facts, tables, problems."""
    for name, part in parts.items():
        yield f"== {name} ({part.get('seconds', '?')} s): {'FAILED' if part['problems'] else 'ok'}"
        for key, value in part.items():
            if key in ("problems", "traceback", "seconds", "kernels", "returncode"):
                continue
            if isinstance(value, list):
                yield from _table(key, value)
            else:
                yield f"{key}: {value}"
        yield from (f"problem: {problem[:MOST_TOLD]}" for problem in part["problems"])
        yield ""


def _table(title: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    columns = [column for column in rows[0] if column not in ("failures", "output")]
    yield f"{title}:"
    yield " ".join(f"{column:>{WIDTH}}" for column in columns)
    for row in rows:
        yield " ".join(f"{row.get(column, '')!s:>{WIDTH}}" for column in columns)
