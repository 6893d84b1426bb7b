"""What is known of uploaded files once they are found good: all that a row of the registry says about them."""

from __future__ import annotations

from dataclasses import dataclass

from ..lora.store import Staged
from ..lora.validate import AdapterSummary, TargetSpec, validate


@dataclass(frozen=True, slots=True)
class Facts:
    """A valid adapter: what it is, its bytes on disk, and remarks for a person."""

    summary: AdapterSummary
    size: int
    notes: tuple[str, ...]


def facts_of(staged: Staged, targets: TargetSpec) -> Facts:
    """Check what was staged; raises InvalidAdapter with everything that is wrong."""
    summary = validate(staged.folder, targets)
    size = sum(file.stat().st_size for file in staged.folder.iterdir())
    return Facts(summary, size, (*staged.notes, *summary.notes))
