"""The tools that quantise, each in a Python environment of its own: their pins exclude each other, and some our torch.

An environment is made at the first use and kept under Aril's cache, by what is pinned in it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import Unavailable

TORCH = "torch==2.13.0"
OURS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")  # what would lead another Python to our packages
READY = "ready.txt"  # written last: what pip says is installed
SHOWN = 4  # lines of pip's complaint


@dataclass(frozen=True, slots=True)
class Tool:
    """A library at a pinned version; `steps` are arguments of `pip install`, one call after another, behind torch."""

    name: str
    packages: tuple[str, ...]  # whose versions the model card names
    steps: tuple[tuple[str, ...], ...]

    @property
    def key(self) -> str:
        """Names the folder of the environment: another pin or another Python is another folder."""
        said = repr((TORCH, self.steps, sys.version_info[:2]))
        return f"{self.name}-{hashlib.sha256(said.encode()).hexdigest()[:12]}"


TOOLS = {
    tool.name: tool
    for tool in (
        Tool(
            "llmcompressor",
            ("llmcompressor", "compressed-tensors", "torch"),
            (("llmcompressor==0.14.0.1", "compressed-tensors==0.19.0", "transformers==5.17.0"),),
        ),
        Tool(
            "gptqmodel",  # wants torch >= 2.14.1, but imports and quantises with 2.13: its needs are named by hand
            ("gptqmodel", "transformers", "torch"),
            (
                (
                    "transformers==5.24.0",
                    "accelerate>=1.15",
                    "datasets>=5.1",
                    "defuser>=0.0.28",
                    "device-smi>=0.5.7",
                    "dill>=0.4.1",
                    "filelock>=4.2.4",
                    "jinja2>=3.1.6",
                    "logbar>=0.4.15",
                    "ninja>=1.13.2",
                    "numpy>=2.4.6",
                    "packaging>=26.3",
                    "pillow>=13.0.0",
                    "protobuf>=7.36.2",
                    "pyarrow>=26.0.0",
                    "pypcre>=0.6.4",
                    "requests>=2.34.2",
                    "safetensors>=0.8.0",
                    "threadpoolctl>=3.7.0",
                    "tokenicer>=0.0.14",
                    "torchao>=0.18.0",
                ),
                ("--no-deps", "gptqmodel==7.7.0"),
            ),
        ),
    )
}


def environment(tool: Tool, cache: Path) -> Path:
    """Where the environment of `tool` is, or will be."""
    return cache / "tools" / tool.key


def is_ready(tool: Tool, cache: Path) -> bool:
    """Whether nothing would be installed."""
    return (environment(tool, cache) / READY).is_file()


def ensure(tool: Tool, cache: Path) -> Path:
    """The Python of the tool's environment, made when it is not there; processes that start together wait.

    Raises Unavailable with pip's last words when it cannot be made.
    """
    folder = environment(tool, cache)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_suffix(".lock")):
        if not (folder / READY).is_file():
            shutil.rmtree(folder, ignore_errors=True)  # what an interrupted call left
            _make(tool, folder)
    return _python(folder)


def _make(tool: Tool, folder: Path) -> None:
    _run([sys.executable, "-m", "venv", str(folder)], f"no environment for {tool.name} in {folder}")
    pip = [str(_python(folder)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    index = os.environ.get("TORCH_INDEX")
    _run([*pip, TORCH, *(["--index-url", index] if index else [])], f"{TORCH} for {tool.name} cannot be installed")
    for step in tool.steps:
        _run([*pip, *step], f"{tool.name} cannot be installed")
    listed = _run([str(_python(folder)), "-m", "pip", "freeze"], f"the environment of {tool.name} is broken")
    (folder / READY).write_text(listed)


def _run(command: Sequence[str], complaint: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=clean_environment())
    if done.returncode:
        last = " / ".join(line for line in done.stderr.strip().splitlines()[-SHOWN:])
        raise Unavailable(f"{complaint}: {last or f'exit code {done.returncode}'}")
    return done.stdout


def clean_environment() -> dict[str, str]:
    """Ours without what would lead another Python to our packages."""
    return {name: value for name, value in os.environ.items() if name not in OURS}


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
