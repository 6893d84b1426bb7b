"""A worker in a tool's own Python: a job in as JSON, progress out as lines of JSON, all chatter into a log."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...core.errors import ArilError, Unavailable
from .tools import clean_environment

WORKERS = Path(__file__).parent / "workers"
SHOWN = 3  # last lines of the log in an error


def run_worker(python: Path, worker: str, job: Mapping[str, Any], log: Path) -> Iterator[dict[str, Any]]:
    """Run `workers/<worker>.py` in `python`, yielding what it tells: {"event": ..., ...}, the last one "done".

    The worker ends with the iteration, however that ends. Raises Unavailable, with its last words, when it fails.
    """
    command = [
        str(python.absolute()),
        "-I",
        str(WORKERS / "run.py"),
        worker,
    ]  # -I: nothing of ours is imported
    with log.open("ab") as chatter:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=chatter,
            text=True,
            env=_environment(),
            cwd=log.parent,  # GPTQModel writes logs to where it stands
        )
        try:
            yield from _talk(process, job, worker, log)
        finally:
            process.kill()
            process.wait()


def _talk(process: subprocess.Popen[str], job: Mapping[str, Any], worker: str, log: Path) -> Iterator[dict[str, Any]]:
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):  # it has died; what follows says so
        process.stdin.write(json.dumps(job))
        process.stdin.close()
    done = False
    for line in process.stdout:
        told = json.loads(line)
        if told["event"] == "failed":
            raise _failed(worker, told["reason"], log)
        done = told["event"] == "done"
        yield told
    if process.wait() or not done:
        raise _failed(worker, f"exit code {process.returncode}; {_last_words(log)}", log)


def _failed(worker: str, reason: str, log: Path) -> ArilError:
    return Unavailable(f"{worker} could not quantise this model: {reason} (its log: {log})")


def _last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-SHOWN:]) or "it said nothing"


def _environment() -> dict[str, str]:
    return {**clean_environment(), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
