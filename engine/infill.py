"""Filling in the middle: the order in which models of code are shown what stands before and after a gap.

Each family has tokens of its own for it, and a vocabulary says which. The orders are those of the papers and model
cards: Bavarian et al., "Efficient training of language models to fill in the middle", 2022 (prefix, suffix, middle),
which all of these follow. Knows tokens, and nothing of requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Marks = tuple[str, str, str]  # before the prefix, before the suffix, before the middle
FAMILIES: tuple[Marks, ...] = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, StarCoder2, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),  # CodeLlama
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),  # DeepSeek-Coder
)
# Beside the end of sequence, what a model writes when the gap is full, or goes on to another file with.
ENDS = ("\u2581<EOT>", "<|fim_pad|>", "<fim_pad>", "<|file_separator|>", "<|file_sep|>", "<file_sep>", "<|repo_name|>")


@dataclass(frozen=True, slots=True)
class Infill:
    """How one model is asked: ids of its marks, and of the tokens that end an answer."""

    marks: tuple[int, int, int]
    ends: tuple[int, ...]

    def prompt(self, lead: Sequence[int], before: Sequence[int], after: Sequence[int]) -> list[int]:
        """The tokens to go on from; `lead` is what every text of the model begins with."""
        prefix, suffix, middle = self.marks
        return [*lead, prefix, *before, suffix, *after, middle]


def infill_of(token_id: Callable[[str], int | None]) -> Infill | None:
    """How the model of a vocabulary fills in; None: it has no tokens for that."""
    for family in FAMILIES:
        prefix, suffix, middle = map(token_id, family)
        if prefix is not None and suffix is not None and middle is not None:
            found = tuple(id_ for id_ in map(token_id, ENDS) if id_ is not None)
            return Infill((prefix, suffix, middle), found)
    return None
