"""Runs one worker: `python -I run.py WORKER`, a job as JSON on stdin, lines of JSON on what was stdout.

Libraries print wherever they like; their stdout becomes stderr before any is imported.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import traceback
from importlib.metadata import version
from pathlib import Path
from typing import Any


def main(worker: str) -> int:
    """0 when the worker went through; the last line told is `done` or `failed`."""
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    job = json.load(sys.stdin)

    def tell(event: str, **facts: Any) -> None:
        channel.write(json.dumps({"event": event, **facts}) + "\n")

    try:
        _load(worker).quantize(job, tell)
        tell("done", versions={name: version(name) for name in job["packages"]})
    except BaseException as error:
        traceback.print_exc()
        said = str(error).strip().splitlines()
        tell("failed", reason=f"{type(error).__name__}: {said[0] if said else 'without a word'}")
        return 1
    return 0


def _load(worker: str) -> Any:
    """The module `worker` of this folder, by its file: it may be called what the tool is called."""
    path = Path(__file__).with_name(f"{worker}.py")
    spec = importlib.util.spec_from_file_location(f"aril_worker_{worker}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
