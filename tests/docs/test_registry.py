"""docs/registry.md: every command runs, in their order and in one shell, on an empty database, and prints what it says;
its tables name what is there."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from aril.admin_api.books import FLUSH_SECONDS
from aril.admin_api.quotas import MOST_RESERVED
from aril.cli import _parser
from aril.commands._process import READY
from aril.commands._remote.uploads import LARGE

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "registry.md").read_text()
BLOCK = re.compile(r"^```bash\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall(PAGE)  # commands, and what they print where the page shows it
SERVE = re.search(r"^aril (serve demo .*)$", PAGE, re.MULTILINE)
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # as in an activated environment
WRITTEN_AT = "http://127.0.0.1:8000"
MARK = "=== end of block ==="
CURLS_OWN = {"--data-binary", "--dump-header", "--output", "--silent"}


@dataclass(frozen=True, slots=True)
class Begun:
    """The server of the page, and where `./registry` is in truth."""

    url: str
    state: Path


@pytest.fixture(scope="module")
def begun() -> Iterator[Begun]:
    """The page's own line, but for the port and the folder."""
    assert SERVE is not None
    state = Path(tempfile.mkdtemp())
    words = SERVE[1].replace("./registry", str(state)).split()
    command = [sys.executable, "-m", "aril.cli", *words, "--port", "0", "--kv-cache-memory", "256MiB"]
    hidden = ("ARIL_ADMIN_KEY", "ARIL_API_KEY", "ARIL_DATABASE_URL", "ARIL_STATE_DIR")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    server = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert server.stdout is not None
        yield Begun(next(found[1] for line in server.stdout if (found := READY.match(line.strip()))), state)
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(state)


def test_the_commands_print_what_the_page_shows(begun: Begun) -> None:
    script = f"\necho '{MARK}'\n".join(commands for commands, _ in BLOCKS)
    strict = script.replace(WRITTEN_AT, begun.url).replace("curl ", "curl --fail-with-body --silent ")
    environment = {**os.environ, "ARIL_URL": begun.url, "PATH": PATH}
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", strict.replace("./registry", str(begun.state))],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for (commands, shown), printed in zip(BLOCKS, done.stdout.split(f"{MARK}\n"), strict=True):
        assert not shown or pattern(shown).fullmatch(spaced(printed)), f"{commands}\n{printed}"
        assert printed.strip() or commands.startswith("export "), commands


def test_the_table_of_routes_is_all_of_them(begun: Begun) -> None:
    paths = httpx.get(f"{begun.url}/openapi.json").json()["paths"]
    there = {
        f"{method.upper()} {path.removeprefix('/admin/v1')}"
        for path, methods in paths.items()
        for method in methods
        if path.startswith("/admin/v1")
    }
    assert set(re.findall(r"^\| `([A-Z]+ /[^`]*)` \|", PAGE, re.MULTILINE)) == there


def test_the_page_tells_the_numbers_of_the_code() -> None:
    assert f"up to {MOST_RESERVED:,} tokens" in PAGE
    assert FLUSH_SECONDS == 1
    assert f"From {LARGE >> 20} MiB on" in PAGE


def test_every_flag_on_the_page_is_one() -> None:
    known = {flag for parser in parsers(_parser()) for flag in parser._option_string_actions}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", PAGE)) <= known | CURLS_OWN


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """That of the command line and those of all commands and actions."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from parsers(each)


def pattern(shown: str) -> re.Pattern[str]:
    """What the page shows, in which `...` stands for anything on one line."""
    return re.compile(r"\n".join(re.escape(line).replace(r"\.\.\.", ".*") for line in spaced(shown).split("\n")))


def spaced(text: str) -> str:
    """Lines with single spaces: the widths of columns depend on what is in them."""
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())
