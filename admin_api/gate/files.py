"""The checks that need the files alone: structure, base, numbers, room, licence. Blocking; for a worker thread."""

from __future__ import annotations

from pathlib import Path

from ...core.cards import front_matter
from ...lora.fingerprint import contradiction
from ...lora.image import size_of
from ...lora.magnitudes import measure
from ...lora.validate import CheckedAdapter, TargetSpec, open_adapter
from .report import Report

CARD = "README.md"


def check_files(report: Report, folder: Path, targets: TargetSpec, *, forced: bool, adapter_memory: int) -> None:
    """Add what the files tell to the report; `adapter_memory` is what all adapters of the engine have together."""
    with report.check("structure") as check, open_adapter(folder, targets) as adapter:
        check.problems += adapter.problems
        check.numbers |= {"modules": len(adapter.pairs), "tensors": len(list(adapter.file.keys()))}
    if report.problems:
        return
    with open_adapter(folder, targets) as adapter:
        _check_base(report, adapter, forced)
        _check_numbers(report, adapter)
        _check_room(report, adapter, adapter_memory)
    _check_licence(report, folder)


def _check_base(report: Report, adapter: CheckedAdapter, forced: bool) -> None:
    said = adapter.config.base
    with report.check("base") as check:
        check.numbers |= {"trained_on": said, "served_on": adapter.targets.base.name}
        other = contradiction(said, adapter.targets.base)
        if other is not None:
            (check.notes if forced else check.problems).append(f"forced: {other}" if forced else other)


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


def _check_licence(report: Report, folder: Path) -> None:
    with report.check("licence") as check:
        stated = front_matter(folder / CARD).get("license", [])
        check.numbers |= {"licence": ", ".join(stated)[:200] or None, "stated_in": CARD if stated else None}
