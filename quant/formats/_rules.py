"""GPTQModel's `dynamic`: expressions that give modules settings of their own, or leave them unquantised.

The first that matches a module's path from its start on wins. `-:` leaves a module alone, `+:` or nothing changes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..patterns import begins
from ._config import Fields


@dataclass(frozen=True, slots=True)
class Rule:
    """What one expression asks for; None = the modules stay in 16 bits."""

    pattern: str
    changes: Mapping[str, Any] | None
    place: str  # for messages


class Rules:
    """The expressions in their order."""

    def __init__(self, fields: Fields) -> None:
        """Raises Unsupported for what is no expression, whether or not a module would ever meet it."""
        found = fields.values.get("dynamic") or {}
        if not isinstance(found, Mapping):
            raise fields.refusal("dynamic", f"is a {type(found).__name__}; it must be an object")
        self._rules = [self._rule(fields, str(written), changes) for written, changes in found.items()]
        for rule in self._rules:
            begins(rule.pattern, "", rule.place)

    def __iter__(self) -> Iterator[Rule]:
        return iter(self._rules)

    def of(self, name: str) -> Rule | None:
        """The rule of a module, None where there is none."""
        return next((rule for rule in self._rules if begins(rule.pattern, name, rule.place)), None)

    @staticmethod
    def _rule(fields: Fields, written: str, changes: Any) -> Rule:
        place = f"{fields.place}: dynamic {written!r}"
        if written.startswith("-:"):
            return Rule(written[2:], None, place)
        if changes is not None and not isinstance(changes, Mapping):
            raise fields.refusal("dynamic", f"{written!r} holds {changes!r}; it must be an object")
        return Rule(written.removeprefix("+:"), changes or {}, place)
