"""Lines of the log: one event is one line, whatever others have called their things."""

from __future__ import annotations

import pytest
from aril.core.log import event


@pytest.mark.parametrize(
    "text", ["a\nb=c", "a\rb", "\x1b[2Jred", "a\x00b", "\u202eetarip", "a\u2028b", "a\x85b", "a b"]
)
def test_a_value_can_neither_begin_a_line_nor_steer_a_terminal(text: str) -> None:
    line = event("uploaded", adapter=text)
    assert line.isprintable()
    assert line == f"uploaded adapter={text!r}"


def test_plain_values_stand_as_they_are() -> None:
    assert event("uploaded", adapter="org/pirate@3", size=12) == "uploaded adapter=org/pirate@3 size=12"
