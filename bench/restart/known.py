"""What a server has acknowledged, and the one change that was under way when it died."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Weights = dict[str, int]


@dataclass(slots=True)
class Arriving:
    """An upload in parts: its bytes by file, and how many of each the server has acknowledged."""

    id: str
    name: str
    contents: dict[str, bytes]
    received: dict[str, int]


@dataclass(slots=True)
class UnderWay:
    """A change whose answer has not come: both outcomes are right. `weights` is what it makes of an alias."""

    subject: str
    alias: str = ""
    weights: Weights | None = None


@dataclass(slots=True)
class Known:
    """Everything acknowledged. Written by who makes changes, and between trials."""

    revisions: dict[tuple[str, int], str] = field(default_factory=dict)  # their digests
    aliases: dict[tuple[str, str], Weights] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)  # secrets by id
    revoked: set[str] = field(default_factory=set)
    arriving: Arriving | None = None
    meter: tuple[str, str] = ("", "")  # id and secret of the key whose requests are counted
    written: int = 0  # of its requests, those that the database had after the last start
    ended: list[float] = field(default_factory=list)  # when the others ended
    head: str = ""  # of the audit
    under_way: UnderWay | None = None
    num_acknowledged: int = 0

    def learn(self, view: dict[str, Any]) -> None:
        """What an answer tells of an adapter."""
        name = view["name"]
        self.revisions |= {(name, revision["number"]): revision["digest"] for revision in view["revisions"]}
        self.aliases = {which: weights for which, weights in self.aliases.items() if which[0] != name}
        self.aliases |= {(name, alias["name"]): alias["weights"] for alias in view["aliases"]}

    def adopt(self, views: Iterable[dict[str, Any]]) -> None:
        """Take what is there after a start for granted from now on."""
        self.revisions, self.aliases, self.under_way = {}, {}, None
        for view in views:
            self.learn(view)
