"""How models write calls of tools: one such way, which a file in calls/ exports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .tape import Reading, Tape
from .teller import Scripted, Teller, new_call_id

Tools = Mapping[str, Mapping[str, Any]]  # the tools that are offered: name -> JSON schema of its arguments


@dataclass(frozen=True, slots=True)
class CallFormat:
    """`marks` are shown to the parser even where they are special tokens, which are hidden else."""

    read: Callable[[Tape, Teller, Tools], Reading[None]]
    marks: tuple[str, ...]
    is_taught_by: Callable[[str], bool]  # whether a chat template, by its text, makes models write so
    new_id: Callable[[], str] = new_call_id

    def listener(self, tools: Tools, most: int | None) -> Scripted:
        """Hears at most `most` calls of `tools`."""
        return Scripted(lambda tape, teller: self.read(tape, teller, tools), Teller(self.new_id, most))
