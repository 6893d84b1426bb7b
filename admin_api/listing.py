"""One adapter as requests know it: which revisions may be used, and where its aliases lead."""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.callers import DEFAULT_TENANT
from ..lora.adapter import AdapterRef
from .canaries import Watch
from .tables import DEFAULT_ALIAS

DIGEST = "sha256:"
NUMBER = re.compile(r"[1-9][0-9]{0,8}")
MOST_TOLD = 10  # revisions, the newest, and aliases that an error names
LEAST_PREFIX = 8  # hex digits of a digest that name a revision


@dataclass(frozen=True, slots=True)
class Route:
    """Where an alias leads: revisions by weight. Some requests are copied to `shadow`, a revision and a share; `watch`
    says which of the revisions are watched, and how."""

    weights: Mapping[int, int]
    sticky_header: str | None = None
    shadow: tuple[int, float] | None = None
    watch: Watch | None = None

    @classmethod
    def of(
        cls, weights: Mapping[str, int], header: str | None, shadow: Mapping[str, Any] | None, watch: Watch | None
    ) -> Route:
        """The route that a row tells."""
        numbers = {int(number): weight for number, weight in weights.items()}
        return cls(numbers, header, (shadow["revision"], shadow["share"]) if shadow else None, watch)

    @property
    def heaviest(self) -> int:
        """The revision that most requests go to, of equals the oldest."""
        return min(self.weights, key=lambda number: (-self.weights[number], number))

    def choose(self, key: str, value: str | None) -> int:
        """The revision for one request: of those who say the same `value`, always the same, else by chance.

        Each revision draws a number from value and weight, and the highest wins (weighted rendezvous hashing): when a
        weight changes, only callers of the revisions whose weight changed move, and no more than must.
        """
        if len(self.weights) == 1:
            return next(iter(self.weights))
        if value is None:
            return random.choices(list(self.weights), list(self.weights.values()))[0]
        return max(self.weights, key=lambda number: self.weights[number] / -math.log(_draw(key, value, number)))

    def choose_shadow(self) -> int | None:
        """The revision that shall receive a copy of one request, if any."""
        return self.shadow[0] if self.shadow is not None and random.random() < self.shadow[1] else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """The READY revisions of one adapter that can be served here, and its aliases."""

    tenant: str
    name: str
    public: bool = False
    revisions: Mapping[int, AdapterRef]
    created: Mapping[int, int]  # seconds since the epoch, of each revision
    routes: Mapping[str, Route]
    refused: Mapping[int, str] = field(default_factory=dict)  # READY revisions of another base, and why not here

    @property
    def known(self) -> set[int]:
        """Every READY revision."""
        return {*self.revisions, *self.refused}

    @classmethod
    def alone(cls, ref: AdapterRef) -> Listed:
        """An adapter of the default tenant that has this one revision, which its bare name means."""
        return cls(
            tenant=DEFAULT_TENANT,
            name=ref.name,
            revisions={ref.revision: ref},
            created={ref.revision: 1},
            routes={DEFAULT_ALIAS: Route({ref.revision: 100})},
        )

    @property
    def default(self) -> AdapterRef | None:
        """The revision that the bare name mostly means."""
        return self.selected(DEFAULT_ALIAS)

    def routed(self) -> Iterator[AdapterRef]:
        """The revisions that aliases lead to, shadows included."""
        for route in self.routes.values():
            for number in (*route.weights, *(route.shadow[:1] if route.shadow else ())):
                if number in self.revisions:
                    yield self.revisions[number]

    def selected(self, selector: str) -> AdapterRef | None:
        """The revision that stands behind an `@`: by number, `sha256:` and the beginning of its digest, or alias."""
        if NUMBER.fullmatch(selector):
            return self.revisions.get(int(selector))
        if selector.startswith(DIGEST):
            return self._by_digest(selector.removeprefix(DIGEST))
        route = self.routes.get(selector)
        return self.revisions.get(route.heaviest) if route else None

    def refusal(self, selector: str) -> str | None:
        """Why what stands behind an `@` is not served here although it is READY."""
        route = self.routes.get(selector)
        number = route.heaviest if route else int(selector) if NUMBER.fullmatch(selector) else 0
        return self.refused.get(number)

    def known_names(self) -> str:
        """What stands behind an `@` instead of what does not, for those of its tenant."""
        numbers = [str(number) for number in sorted(self.known)[-MOST_TOLD:]]
        return f"revisions that are ready: {', '.join(numbers) or 'none'}; aliases: {_some(self.routes)}"

    def _by_digest(self, prefix: str) -> AdapterRef | None:
        """The newest revision whose digest begins so; None when there is none, or several digests do."""
        found = [ref for ref in self.revisions.values() if ref.digest.startswith(prefix)]
        if len(prefix) < LEAST_PREFIX or len({ref.digest for ref in found}) != 1:
            return None
        return max(found, key=lambda ref: ref.revision)


def _some(names: Iterable[str]) -> str:
    found = sorted(names)
    return ", ".join(found[:MOST_TOLD]) + (" and more" if len(found) > MOST_TOLD else "") if found else "none"


def _draw(key: str, value: str, number: int) -> float:
    """A number between 0 and 1 that looks random and is always the same."""
    digest = hashlib.sha256(f"{key}\0{number}\0{value}".encode(errors="surrogatepass")).digest()
    return (int.from_bytes(digest[:7], "big") + 0.5) / (1 << 56)
