"""Which config group of a compressed-tensors config speaks of a module: by name, by expression, by class.

Source: compressed-tensors, utils/match.py (match_targets) and quantization/lifecycle/apply.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..patterns import begins
from ._ct_schemes import Scheme

EXPRESSION = "re:"


class Targets:
    """The groups' targets in the order in which they are tried: names, then expressions, then classes."""

    def __init__(self, groups: Mapping[str, tuple[Sequence[str], Scheme | None]], ignore: Sequence[str]) -> None:
        self._schemes: dict[str, tuple[str, Scheme | None]] = {}  # by target; a later group's replaces an earlier one's
        for group, (targets, scheme) in groups.items():
            self._schemes |= dict.fromkeys(targets, (group, scheme))
        self._order = sorted(self._schemes, key=lambda target: (EXPRESSION in target, target))
        self._ignore = ignore

    def ignores(self, name: str) -> bool:
        """Whether the config says that the module stays as it is."""
        return any(_names(target, name, "ignore") or target == class_of(name) for target in self._ignore)

    def find(self, name: str) -> tuple[str, Scheme | None] | None:
        """The group that speaks of the module, and its scheme; None when none does."""
        named = (target for target in self._order if _names(target, name, f"config_groups.{self._schemes[target][0]}"))
        target = next(named, class_of(name))
        return self._schemes.get(target)


def class_of(name: str) -> str:
    """The torch class of the module at a path, as transformers has it."""
    return "Embedding" if name.endswith("embed_tokens") else "Linear"


def _names(target: str, name: str, field: str) -> bool:
    if target.startswith(EXPRESSION):
        return begins(target.removeprefix(EXPRESSION), name, f"quantization_config.{field}")
    return target == name
