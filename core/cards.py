"""The YAML at the top of a model card (README.md), as far as plain fields and lists of them go. Never raises."""

from __future__ import annotations

from pathlib import Path

MAX_BYTES = 1 << 16  # of a card that are read; the YAML stands at its top


def front_matter(card: Path) -> dict[str, list[str]]:
    """The fields between the two lines `---`, each as the list of its values; empty where there is no such thing."""
    lines = _lines(card)
    if not lines or lines[0].strip() != "---":
        return {}
    found: dict[str, list[str]] = {}
    values: list[str] = []
    for line in lines[1:]:
        if line.strip() == "---":
            return found
        if line.lstrip().startswith("- "):
            values += _values(line.lstrip()[2:])
        elif line[:1].strip() and ":" in line:
            name, _, value = line.partition(":")
            values = found[name] = _values(value)
    return {}


def _values(text: str) -> list[str]:
    """A plain value, or a list in brackets on one line."""
    text = text.split(" #", maxsplit=1)[0].strip()
    parts = text[1:-1].split(",") if text.startswith("[") and text.endswith("]") else [text]
    return [value for part in parts if (value := part.strip().strip("\"'"))]


def _lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES).decode("utf-8", errors="replace").splitlines()
    except OSError:
        return []
