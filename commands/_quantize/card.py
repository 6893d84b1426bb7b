"""The model card of a result: what was done to which base, with what, and what it cost in perplexity."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .scheme import Scheme

UNKNOWN = "unknown"
TERMS = ("LICENSE*", "LICENCE*", "NOTICE*", "COPYING*", "license*", "licence*")  # travel with the weights


@dataclass(frozen=True, slots=True)
class Measured:
    """Perplexity of Aril's own engine on a text that no tool looked at."""

    before: float
    after: float
    num_tokens: int
    text: str

    @property
    def change(self) -> float:
        """In per cent of what it was."""
        return 100 * (self.after / self.before - 1)


@dataclass(frozen=True, slots=True)
class Facts:
    """All that the card tells."""

    base: str  # its name
    base_about: str  # what it was stored as
    licence: str
    scheme: Scheme
    data: str
    versions: Mapping[str, str]
    seconds: float
    bytes_before: int
    bytes_after: int
    measured: Measured | None
    notes: tuple[str, ...] = ()


def card(facts: Facts) -> str:
    """README.md: the hub's front matter, then a table for people."""
    tools = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    rows = {
        "base": f"{facts.base} ({facts.base_about})",
        "licence": facts.licence if facts.licence != UNKNOWN else "that of the base; see there",
        "method": f"{facts.scheme.rule.about}",
        "weights": facts.scheme.describe(),
        "kept in 16 bits": "token embedding, head, norms, biases",
        "data": facts.data,
        "made with": f"`aril quantize`, {tools}, in {facts.seconds:.0f} s",
        "size": f"{_size(facts.bytes_after)}, of {_size(facts.bytes_before)} in 16 bits",
        "perplexity": _perplexity(facts.measured),
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    notes = "".join(f"\n- {note}" for note in facts.notes)
    return (
        f"{_front_matter(facts)}\n# {Path(facts.base).name}, {facts.scheme.describe()}\n\n| | |\n|---|---|\n{table}\n"
        + (f"{notes}\n" if notes else "")
    )


def _front_matter(facts: Facts) -> str:
    licence = facts.licence if re.fullmatch(r"[A-Za-z0-9.\-]+", facts.licence) else UNKNOWN
    lines = [f"base_model: {facts.base}", "base_model_relation: quantized", f"tags: [{facts.scheme.method}, aril]"]
    if licence != UNKNOWN:
        lines.insert(0, f"license: {licence.lower()}")
    return "\n".join(["---", *lines, "---", ""])


def _perplexity(measured: Measured | None) -> str:
    if measured is None:
        return "not measured"
    return (
        f"{measured.before:.3f} before, {measured.after:.3f} after ({measured.change:+.2f}%), "
        f"{measured.num_tokens:,} tokens of {measured.text}, by Aril"
    )


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"
