"""How much of the steps goes to work that nobody waits for: all of it when it is alone, a sliver beside others.

Measured on two cores with a base of 135M, two clients and a shadow for each of their requests: a row in every step of
theirs doubled the time between their tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from .request import Request

EVERY = 16  # of so many steps that others take part in, one has background rows
CHUNK = 16  # tokens that such a row has: a prompt's worth would hold up everybody's next token


class Background:
    """Decides for one step at a time."""

    def __init__(self) -> None:
        self._steps = 0
        self._waits = False
        self._beside_others = False

    def begin(self, running: Sequence[Request]) -> None:
        """A step of `running` begins, the most senior first."""
        self._beside_others = bool(running) and not running[0].is_background
        self._steps += self._beside_others
        self._waits = self._beside_others and self._steps % EVERY != 0

    def skips(self, request: Request) -> bool:
        """Whether it has no row in this step."""
        return self._waits and request.is_background

    def most(self, request: Request, budget: int) -> int:
        """How many tokens its row may have; the rows of others come first."""
        if not request.is_background:
            self._beside_others = True
            return budget
        return min(budget, CHUNK) if self._beside_others else budget
