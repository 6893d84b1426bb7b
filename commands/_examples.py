"""The example adapters of the demo base: where they lie, what they say of themselves, and how they enter a registry."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.log import event, get_logger

if TYPE_CHECKING:
    from ..admin_api.adapters import AdapterService

log = get_logger(__name__)
FOLDER = Path(__file__).parents[1] / "examples" / "adapters"
MARK = "examples-registered"  # in the state folder, so that an example that was deleted stays deleted


@dataclass(frozen=True, slots=True)
class Example:
    """One committed adapter; `about` and `ask` stand in its card."""

    name: str
    folder: Path
    about: str
    ask: str


def examples() -> list[Example]:
    """All of them, by name; none where Aril was installed without its examples."""
    return [_read(card.parent) for card in sorted(FOLDER.glob("*/README.md"))]


async def register_examples(service: AdapterService, state_dir: Path) -> None:
    """Upload and activate all examples, once in the life of a state folder."""
    mark = state_dir / MARK
    if mark.exists():
        return
    found = examples()
    await asyncio.gather(*(service.upload_folder(each.name, each.folder, description=each.about) for each in found))
    log.info(event("examples_registered", adapters=", ".join(each.name for each in found)))
    mark.touch()


def _read(folder: Path) -> Example:
    card = (folder / "README.md").read_text(encoding="utf-8")
    about = re.search(r"^# [^:\n]+: (.+)$", card, re.MULTILINE)
    ask = re.search(r'^Ask it: "(.+)"$', card, re.MULTILINE)
    return Example(folder.name, folder, about[1] if about else "", ask[1] if ask else "What is the capital of France?")
