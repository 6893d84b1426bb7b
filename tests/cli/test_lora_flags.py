"""vLLM's flags about adapters: what they mean here."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import httpx
from aril.commands._lora_flags import LoraModule, add_lora_flags, lora_modules
from aril.commands._process import running
from builders.commands import SMALL, Files


def parsed(*words: str) -> argparse.Namespace:
    """What a command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-adapters")
    add_lora_flags(parser)
    return parser.parse_args(words)


def test_modules_come_as_pairs_as_objects_and_as_lists(tmp_path: Path) -> None:
    as_json = {"name": "b", "path": str(tmp_path), "base_model_name": "tiny"}
    args = parsed(
        "--lora-modules", f"a={tmp_path}", json.dumps(as_json), "--lora-modules", json.dumps([as_json | {"name": "c"}])
    )
    assert lora_modules(args.lora_modules) == (
        LoraModule("a", tmp_path),
        LoraModule("b", tmp_path, "tiny"),
        LoraModule("c", tmp_path, "tiny"),
    )


def test_max_loras_is_max_adapters() -> None:
    assert parsed("--enable-lora", "--max-loras", "7").max_adapters == "7"
    assert parsed().max_adapters is None


def test_modules_are_served_from_the_start(files: Files) -> None:
    flags = [*SMALL, "--served-model-name", "tiny", "--lora-modules", f"mine={files.adapter}"]
    with running(str(files.model), flags) as server:
        models = httpx.get(f"{server.url}/v1/models").json()["data"]
        assert [model["id"] for model in models] == ["tiny", "mine"]


def test_a_module_that_cannot_be_served_ends_the_start(files: Files, tmp_path: Path) -> None:
    words = ["serve", str(files.model), *SMALL, "--port", "0", "--state-dir", str(tmp_path / "state")]
    shown = subprocess.run(
        [sys.executable, "-m", "aril.cli", *words, "--lora-modules", f"mine={files.model}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 2
    assert "aril: --lora-modules: mine:" in shown.stderr
