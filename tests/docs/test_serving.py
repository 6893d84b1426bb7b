"""docs/serving.md: its flags and its tests exist, its defaults are those of the code."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from aril.server.config import ServerConfig

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "serving.md").read_text()


def test_every_test_that_the_page_names_is_there() -> None:
    written = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert {name for name in named if f"def {name}(" not in written} == set()


def test_the_pages_tell_of_every_flag() -> None:
    flags = {each.metadata["flag"] for each in fields(ServerConfig)}
    pages = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    assert {flag for flag in flags if flag not in pages} == set()


def test_the_page_tells_the_defaults_of_the_code() -> None:
    defaults = {each.metadata["flag"]: each.default for each in fields(ServerConfig)}
    rows = re.findall(r"^\| `(--[\w-]+)[^`]*` \| (\S+) \|", PAGE, re.MULTILINE)
    assert rows
    assert {flag: shown for flag, shown in rows if str(defaults[flag]) != shown} == {}
