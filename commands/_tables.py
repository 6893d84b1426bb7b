"""How the registry reads in a terminal: tables, sizes, times. Texts of others cannot steer the terminal."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Lines of aligned columns, numbers to the right. None is a dash."""
    found = [list(row) for row in rows]
    cells = [list(titles), *([cell(value) for value in row] for row in found)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    right = [_is_numeric(column) for column in zip(*found, strict=True)] if found else [False] * len(titles)
    return [
        "  ".join(
            text.rjust(width) if is_right else text.ljust(width)
            for text, width, is_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in cells
    ]


def cell(value: object) -> str:
    """One value on one line."""
    if value is None or value == "":
        return "-"
    return plain(str(value))


def plain(text: str) -> str:
    """Without what a terminal obeys."""
    return "".join(c if c.isprintable() else " " for c in text)


def size(num_bytes: int) -> str:
    """Bytes as people say them."""
    amount, unit = float(num_bytes), 0
    while amount >= 1000 and unit < len(UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.0f} {UNITS[unit]}" if amount >= 10 or unit == 0 else f"{amount:.1f} {UNITS[unit]}"


def when(seconds: int | None) -> str | None:
    """A moment, in UTC."""
    return None if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))


def _is_numeric(column: Iterable[object]) -> bool:
    given = [value for value in column if value is not None]
    return bool(given) and all(isinstance(value, int | float) for value in given)
