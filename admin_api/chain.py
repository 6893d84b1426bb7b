"""Whether the audit is what was written: its chain of hashes walked from the first line, a page at a time.

A line that was altered, removed or put in breaks the chain where it stood. Lines cut off at the end leave a sound
chain: whoever wants to notice that keeps the head (the hash of the last line) elsewhere, and has it looked for later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from .audit import hash_of
from .db import Database
from .tables import AuditLine

LINES_AT_ONCE = 1000  # each page is a transaction of its own, so that no change waits for the walk


@dataclass(slots=True)
class Verification:
    """What a walk has found so far. `head` is the hash of the last line; `broken` the id of the first that is wrong."""

    expected: str | None = None  # a head of earlier
    lines: int = 0
    head: str = ""
    last: int = 0
    broken: int | None = None
    found: bool = False  # the line with the hash `expected`

    @property
    def reason(self) -> str | None:
        """What is wrong, if anything."""
        if self.broken is not None:
            return f"line {self.broken} is not what was written, or the one before it is not"
        if self.expected is not None and not self.found:
            return f"no line has the hash {self.expected}: the end was cut off, or all was written anew"
        return None

    def take(self, lines: Sequence[AuditLine]) -> None:
        """Walk on over the next lines, up to the first wrong one."""
        for line in lines:
            if line.hash != hash_of(line, self.head):
                self.broken = line.id
                return
            self.lines, self.head, self.last = self.lines + 1, line.hash, line.id
            self.found = self.found or line.hash == self.expected


def verify(database: Database, expected: str | None = None) -> Verification:
    """Walk over the whole audit, in the order of ids; `expected` is a head that must be among the lines."""
    walk = Verification(expected, found=expected == "")

    def page(session: Session) -> Sequence[AuditLine]:
        lines = select(AuditLine).where(AuditLine.id > walk.last).order_by(AuditLine.id)
        return session.scalars(lines.limit(LINES_AT_ONCE)).all()

    while walk.broken is None and (lines := database.read(page)):
        walk.take(lines)
    return walk
