"""OpenAI's client for JavaScript: runs the programs in js/."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Server, run

PROGRAMS = sorted((Path(__file__).parent / "js").glob("*.test.mjs"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_its_programs_end_well(server: Server, program: Path) -> None:
    said = run(["node", "--test", "--test-reporter=tap", str(program)], ARIL_URL=server.url)
    assert "# fail 0" in said
    assert "# skipped 0" in said
