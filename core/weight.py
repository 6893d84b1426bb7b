"""How many values a JSON text holds, told without reading it: what makes a few megabytes cost seconds.

A reader makes an object of each, in one call into C that lets no other thread run. So the number is bounded, not the
size: a text of 16 MiB is one value. On a quiet core of 2.5 GHz `pydantic_core.from_json` and a schema take together
50 ns for a number and 150 ns for a list, a name or a text, so what is let through takes some 60 ms at most.
"""

from __future__ import annotations

from .errors import InvalidRequest

MOST_VALUES = 1 << 20  # of any kind: a prompt of a million token ids is one of them, and a few
MOST_PARTS = 1 << 19  # of them that are lists, objects or texts, names of fields included: 65,536 messages have 5 each
STEP = 1 << 18  # bytes that are looked through at a time; between them other threads may run
QUOTE, BACKSLASH = b'"', ord("\\")


def check_weight(raw: bytes) -> None:
    """Raises InvalidRequest for a JSON text of too many values. Of what is no JSON it says nothing that counts."""
    if len(raw) <= MOST_PARTS or not _Counted().with_all(raw).too_many:
        return  # a comma within a text has been taken for one between values, and still there are not too many
    if _Counted().with_json(raw).too_many:
        raise InvalidRequest(
            f"the body holds over {MOST_VALUES} values, or over {MOST_PARTS} that are texts, lists or objects, the "
            "most this server reads at once; send several requests",
            code="too_many_values",
        )


class _Counted:
    """Marks so far."""

    def __init__(self) -> None:
        self._commas = 0  # one before each value, but for the first of a list or an object
        self._parts = 0

    @property
    def too_many(self) -> bool:
        return self._commas > MOST_VALUES or self._parts > MOST_PARTS

    def with_all(self, raw: bytes) -> _Counted:
        """At least what is in `raw`: marks within texts count too."""
        self._count(raw, 0, len(raw))
        self._parts += sum(raw.count(QUOTE, at, at + STEP) for at in range(0, len(raw), STEP)) // 2
        return self

    def with_json(self, raw: bytes) -> _Counted:
        """Exactly what is in `raw`, or up to where it is too many."""
        at = 0
        while not self.too_many:
            begin = raw.find(QUOTE, at)
            if begin < 0:
                self._count(raw, at, len(raw))
                break
            self._count(raw, at, begin)
            self._parts += 1
            at = _end_of_text(raw, begin + 1)
        return self

    def _count(self, raw: bytes, begin: int, end: int) -> None:
        for at in range(begin, end, STEP):
            upto = min(at + STEP, end)
            self._commas += raw.count(b",", at, upto)
            self._parts += raw.count(b"[", at, upto) + raw.count(b"{", at, upto)


def _end_of_text(raw: bytes, at: int) -> int:
    """The place behind the text whose first character stands at `at`."""
    while (end := raw.find(QUOTE, at)) >= 0:
        before = end
        while before > at and raw[before - 1] == BACKSLASH:
            before -= 1
        if (end - before) % 2 == 0:
            return end + 1
        at = end + 1
    return len(raw)
