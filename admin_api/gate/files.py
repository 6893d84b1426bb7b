"""The checks that need no engine: structure, base, numbers, room, licence. Blocking; for a worker thread.

Bytes are kept once, whoever has uploaded them: what an uploader claims of them comes with the revision, never from the
configuration or the card that the store has from the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...lora.fingerprint import contradiction
from ...lora.image import size_of
from ...lora.magnitudes import measure
from ...lora.store import CARD
from ...lora.validate import CheckedAdapter, TargetSpec, open_adapter
from .report import Report

IF_THE_SAME = "where they are the same model, upload it with --force (over HTTP: force=true)"


@dataclass(frozen=True, slots=True)
class Claims:
    """What an uploader says of the bytes."""

    base: str | None = None  # that they were trained on
    licence: str | None = None
    forced: bool = False  # in spite of the base


def check_files(report: Report, folder: Path, targets: TargetSpec, claims: Claims, *, adapter_memory: int) -> None:
    """Add what is found to the report; `adapter_memory` is what all adapters of the engine have together."""
    with report.check("structure") as check, open_adapter(folder, targets) as adapter:
        check.problems += adapter.problems
        check.numbers |= {"modules": len(adapter.pairs), "tensors": len(list(adapter.file.keys()))}
    if report.problems:
        return
    with open_adapter(folder, targets) as adapter:
        _check_base(report, targets, claims)
        _check_numbers(report, adapter)
        _check_room(report, adapter, adapter_memory)
    _tell_licence(report, claims)


def _check_base(report: Report, targets: TargetSpec, claims: Claims) -> None:
    with report.check("base") as check:
        check.numbers |= {"trained_on": claims.base, "served_on": targets.base.name}
        other = contradiction(claims.base, targets.base)
        if other is None:
            return
        if claims.forced:
            check.notes.append(f"forced: {other}")
        else:
            check.problems.append(f"{other}; {IF_THE_SAME}")


def _check_numbers(report: Report, adapter: CheckedAdapter) -> None:
    with report.check("numbers") as check:
        magnitudes = measure(adapter)
        check.problems += adapter.problems
        check.numbers |= magnitudes.said()
        if magnitudes.is_nothing and not check.problems:
            check.problems.append(
                "the adapter changes nothing: in every module A or B is zero. It was saved before it was trained, or "
                "its trained weights were left out"
            )


def _check_room(report: Report, adapter: CheckedAdapter, adapter_memory: int) -> None:
    with report.check("memory") as check:
        needed = size_of(adapter)
        check.numbers |= {"bytes": needed, "adapter_memory": adapter_memory}
        if needed > adapter_memory:
            check.problems.append(
                f"the adapter takes {needed} bytes of memory, and all adapters here have {adapter_memory} together; "
                f"start the server with --adapter-memory {needed} or more"
            )


def _tell_licence(report: Report, claims: Claims) -> None:
    with report.check("licence") as check:
        check.numbers |= {"licence": claims.licence, "stated_in": CARD if claims.licence else None}
