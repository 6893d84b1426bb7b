"""schemathesis over the OpenAPI document: whatever is sent, the answer is one that the document tells of, and no 5xx.

It makes requests up by the document, right ones and wrong ones; `--examples` says how many for each operation.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from .conftest import ADMIN_KEY, Server, run, serving

ADMIN = "^/admin|_lora_adapter$"
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)

pytestmark = pytest.mark.timeout(3600)  # as many requests as are asked for


@pytest.fixture
def short(home: Path, tmp_path: Path) -> Iterator[Server]:
    """A context of 128 tokens keeps the longest answer short."""
    with serving(home, tmp_path / "state", "--max-model-len", "128", "--lora-modules", f"red={home / 'red'}") as found:
        yield found


def generated(server: Server, *flags: str, checks: Sequence[str] = CHECKS) -> int:
    """How many requests were sent, none of which found anything."""
    command = [str(Path(sys.executable).parent / "st"), "run", f"{server.url}/openapi.json", "--seed", "1"]
    common = [
        "--checks",
        ",".join(checks),
        "--request-timeout",
        "60",
        "--warnings",
        "off",
        "--no-shrink",
        "--continue-on-failure",
    ]
    said = run([*command, *common, *flags], SCHEMATHESIS_HOOKS="hooks", PYTHONPATH=str(Path(__file__).parent))
    found = re.search(r"(\d+) generated (\d+) passed", said.replace(",", ""))
    assert found, said
    print(f"{found[1]} requests generated")
    return int(found[1])


def test_openais_face_answers_as_its_document_tells(short: Server, pytestconfig: pytest.Config) -> None:
    flags = [
        "--exclude-path-regex",
        ADMIN,
        "--phases",
        "coverage,fuzzing",
        "--max-examples",
        str(pytestconfig.getoption("--examples")),
    ]
    assert generated(short, *flags, checks=[*CHECKS, "unsupported_method"]) > 1000


def test_the_admin_face_answers_as_its_document_tells(short: Server, pytestconfig: pytest.Config) -> None:
    key = ["--header", f"Authorization: Bearer {ADMIN_KEY}", "--phases", "fuzzing"]
    flags = ["--include-path-regex", ADMIN, "--max-examples", str(pytestconfig.getoption("--examples"))]
    assert generated(short, *key, *flags) > 200
