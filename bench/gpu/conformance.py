"""Every kernel against its reference on the device: the suite's own conformance test, in several processes at once."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

from .report import Report
from .scale import Scale

ROOT = Path(__file__).parent.parent.parent
KERNELS = "tests/kernels/test_conformance.py"
GRAPHS = "tests/engine/test_graphs.py"
DTYPES = ("torch.float32", "torch.float16", "torch.bfloat16")
CODES = "matmul_grouped"  # most kinds of kernel by far, so it has processes of its own
MOST_TOLD = 2000  # characters of one failure


def run(report: Report, scale: Scale) -> None:
    """Compiling is most of the work, so each dtype has processes, and what is no matter of dtype another."""
    by_dtype = [f"{which} and {dtype}" for which in (CODES, f"not {CODES}") for dtype in DTYPES]
    groups = {which: [KERNELS] for which in by_dtype} | {f"not ({' or '.join(DTYPES)})": [KERNELS, GRAPHS]}
    chosen = {scale.kernels: [KERNELS]} if scale.kernels else groups
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{at}.xml" for at in range(len(chosen))]
        running = [_start(which, tests, file) for (which, tests), file in zip(chosen.items(), files, strict=True)]
        try:
            for which, file, process in zip(chosen, files, running, strict=True):
                _collect(report, which, file, process)
        finally:
            for process in running:
                process.kill()


def _start(which: str, tests: Sequence[str], file: Path) -> subprocess.Popen[str]:
    options = ["-p", "no:cacheprovider", "--rootdir", str(ROOT), f"--junitxml={file}", "-k", which]
    command = [sys.executable, "-m", "pytest", *(str(ROOT / test) for test in tests), *options]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _collect(report: Report, which: str, file: Path, process: subprocess.Popen[str]) -> None:
    output, _ = process.communicate()
    if not file.exists():
        report.expect(False, f"pytest -k {which!r} ended with {process.returncode} and no result")
        report.add("groups", {"tests": which, "output": output[-MOST_TOLD:]})
        return
    cases = list(ET.parse(file).getroot().iter("testcase"))
    failed = {case.get("name", "?"): _told(case) for case in cases if _told(case)}
    skipped = sum(case.find("skipped") is not None for case in cases)
    counts = {"passed": len(cases) - len(failed) - skipped, "skipped": skipped, "failed": len(failed)}
    report.add("groups", {"tests": which, **counts, "failures": failed})
    report.expect(bool(cases) and process.returncode == 0, f"{which}: {', '.join(failed) or output[-MOST_TOLD:]}")


def _told(case: ET.Element) -> str:
    found = [node for kind in ("failure", "error") for node in case.findall(kind)]
    return "\n".join(f"{node.get('message')}\n{node.text}" for node in found)[-MOST_TOLD:]
