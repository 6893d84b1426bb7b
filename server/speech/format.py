"""How models write calls of tools: one such way, which a file in calls/ exports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...engine.grammar.spans import Form
from .tape import Reading, Tape
from .teller import Scripted, Teller, new_call_id

Tools = Mapping[str, Mapping[str, Any]]  # the tools that are offered: name -> JSON schema of its arguments


@dataclass(frozen=True, slots=True)
class Held:
    """Where calls of a format can be held to the schemas of their tools: behind `marks`, as one of `forms`.

    `forms` are those of the tools, for at most so many calls.
    """

    marks: tuple[str, ...]
    forms: Callable[[Tools, int | None], tuple[Form, ...]]
    everywhere: bool = True  # whether a call stands nowhere else


@dataclass(frozen=True, slots=True)
class CallFormat:
    """`marks` are shown to the parser even where they are special tokens, which are hidden else.

    `held` is None where nothing tells safely that a call has begun.
    """

    read: Callable[[Tape, Teller, Tools], Reading[None]]
    marks: tuple[str, ...]
    is_taught_by: Callable[[str], bool]  # whether a chat template, by its text, makes models write so
    new_id: Callable[[], str] = new_call_id
    held: Held | None = None

    def listener(self, tools: Tools, most: int | None) -> Scripted:
        """Hears at most `most` calls of `tools`."""
        return Scripted(lambda tape, teller: self.read(tape, teller, tools), Teller(self.new_id, most))
