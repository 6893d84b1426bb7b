"""What one part has found so far, in a JSON file that is whole after every line: a part may be killed at any time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Report:
    """The one writer of its file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, Any] = {"problems": []}
        self._write()

    @property
    def problems(self) -> list[str]:
        """What was found to be wrong."""
        return list(self._found["problems"])

    def set(self, name: str, value: Any) -> None:
        """One fact."""
        self._found[name] = value
        self._write()

    def add(self, name: str, row: Any) -> None:
        """One more line of the list `name`."""
        self._found.setdefault(name, []).append(row)
        self._write()

    def expect(self, held: bool, otherwise: str) -> None:
        """A claim; one that does not hold is a problem, and the part goes on."""
        if not held:
            self.add("problems", otherwise)

    def _write(self) -> None:
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps(self._found, indent=1))
        fresh.replace(self._path)
