"""What an uploader says of an adapter and wants done with it, as the admin API takes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """All but the bytes.

    `activate`: once READY, True lets the bare name mean it, None does so where it means nothing yet, False never.
    """

    description: str | None = None
    note: str = ""
    tags: tuple[str, ...] = ()
    activate: bool | None = None
    force: bool = False
    golden: tuple[Mapping[str, Any], ...] = ()

    @property
    def fields(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "tags": list(self.tags), "golden": [dict(prompt) for prompt in self.golden]}

    @property
    def form(self) -> dict[str, str]:
        """As the fields of a form, which are all text."""
        said = {"description": self.description, "note": self.note, "tags": ",".join(self.tags)}
        as_json = {"activate": self.activate, "force": self.force, "golden": list(self.golden)}
        return {name: text for name, text in said.items() if text is not None} | {
            name: json.dumps(value) for name, value in as_json.items()
        }
