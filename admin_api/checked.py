"""What is known of uploaded files from their names, headers and configuration; nobody has read their numbers yet."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.cards import front_matter
from ..lora.store import CARD, Staged
from ..lora.validate import AdapterSummary, TargetSpec, inspect
from .repo import Facts


@dataclass(frozen=True, slots=True)
class Survey:
    """An adapter whose structure fits: what it is, its bytes on disk, and remarks for a person."""

    summary: AdapterSummary
    size: int
    notes: tuple[str, ...]
    licence: str | None

    def with_digest(self, digest: str) -> Facts:
        """All that a row of the registry says about the files."""
        return Facts(
            digest=digest,
            size=self.size,
            rank=self.summary.rank,
            target_modules=self.summary.target_modules,
            config=self.summary.config,
            notes=self.notes,
            licence=self.licence,
        )


def survey_of(staged: Staged, targets: TargetSpec) -> Survey:
    """Look at what was staged; raises InvalidAdapter with everything that is wrong."""
    summary = inspect(staged.folder, targets)
    size = sum(file.stat().st_size for file in staged.folder.iterdir())
    licence = ", ".join(front_matter(staged.folder / CARD).get("license", []))[:200] or None
    return Survey(summary, size, (*staged.notes, *summary.notes), licence)
