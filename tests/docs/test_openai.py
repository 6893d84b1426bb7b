"""docs/openai.md: its commands run, its tests exist, its numbers are those of the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import get_type_hints

import pytest
from aril.commands._process import running
from aril.core.body import Body
from aril.engine.grammar import nursery
from aril.engine.grammar.asked import LARGEST
from aril.engine.params import MAX_BAD_WORDS
from aril.server.schemas import ChatRequest, CompletionRequest
from aril.server.unsupported import CHAT, COMPLETIONS, Refusals
from openai.types import completion_create_params as completion_params
from openai.types.chat import completion_create_params as chat_params

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "openai.md").read_text()
BLOCKS = re.findall(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # as in an activated environment
WRITTEN_AT = "http://127.0.0.1:8000"


def test_the_commands_succeed() -> None:
    assert BLOCKS
    with running("demo", ["--kv-cache-memory", "256MiB"]) as server:
        for text in BLOCKS:
            strict = text.replace(WRITTEN_AT, server.url).replace("curl ", "curl --fail-with-body --silent ")
            done = subprocess.run(
                ["bash", "-ec", strict],
                cwd=ROOT,
                env={**os.environ, "PATH": PATH},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, text + done.stdout + done.stderr
            assert done.stdout.strip(), text


def test_every_test_that_the_page_names_is_there() -> None:
    written = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert {name for name in named if f"def {name}(" not in written} == set()
    assert all((ROOT / path).is_file() for path in re.findall(r"`(tests/[\w/]+\.py)`", PAGE))


FIELD_ROWS = re.findall(
    r"^\| (`\w+`(?:, `\w+`)*) \| (both|chat|completions) \| .+ \| (`test_\w+`.*) \|$", PAGE, re.MULTILINE
)


def fields_of(module: ModuleType) -> set[str]:
    """Every field of the requests that the openai package sends."""
    kinds = ("Base", "NonStreaming", "Streaming")
    return {name for kind in kinds for name in get_type_hints(getattr(module, f"CompletionCreateParams{kind}"))}


@pytest.mark.parametrize(
    ("where", "theirs", "ours", "refused"),
    [
        ("chat", chat_params, ChatRequest, CHAT),
        ("completions", completion_params, CompletionRequest, COMPLETIONS),
    ],
)
def test_every_field_stands_in_the_table(where: str, theirs: ModuleType, ours: type[Body], refused: Refusals) -> None:
    told = [name for names, of, _ in FIELD_ROWS if of in (where, "both") for name in re.findall(r"`(\w+)`", names)]
    assert len(told) == len(set(told)), "a field stands there twice"
    assert set(told) == fields_of(theirs) | ours.model_fields.keys() | refused.keys()


def test_the_page_tells_the_numbers_of_the_code() -> None:
    times = (nursery.CPU_SECONDS, nursery.SECONDS, nursery.QUICK_CPU_SECONDS)
    for number in (*times, nursery.MOST_SLOW, nursery.MEMORY >> 20, f"{LARGEST:,}", f"{MAX_BAD_WORDS:,}"):
        assert f"{number} " in " ".join(PAGE.split())
