"""One part of the check in this process: `python -m aril.bench.gpu.part MODULE JSON_FILE [ARGUMENT ...]`.

A part is a module of this folder with `run(report, scale, *arguments)`. Exit code 1 = it failed or found a problem; the
file says what.
"""

from __future__ import annotations

import importlib
import sys
import time
import traceback
from pathlib import Path

from .report import Report
from .scale import scale_here


def main(module: str, path: str, *arguments: str) -> int:
    """Run it; the exit code."""
    report = Report(Path(path))
    started = time.monotonic()
    try:
        importlib.import_module(f"{__package__}.{module}").run(report, scale_here(), *arguments)
    except BaseException:
        report.set("traceback", traceback.format_exc())
        report.expect(False, traceback.format_exc().strip().splitlines()[-1])
    report.set("seconds", round(time.monotonic() - started, 1))
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
