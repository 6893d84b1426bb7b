"""What models write that were taught nothing else: JSON, bare, between `<tool_call>` marks, or fenced as code.

server/in_words.py asks for it where a chat template knows no tools.
"""

from __future__ import annotations

from ..format import CallFormat, Held
from ..held import one_call
from ..json_calls import JsonCalls

MARKS = {"<tool_call>": "</tool_call>", "```json\n": "```"}
HELD = Held(("<tool_call>",), one_call, everywhere=False)  # an answer in JSON may begin as a bare call does


def is_taught_by(template: str) -> bool:
    """It is what remains when no other is."""
    return False


EXPORT = CallFormat(JsonCalls(MARKS, bare=True).read, ("<tool_call>", "</tool_call>"), is_taught_by, held=HELD)
