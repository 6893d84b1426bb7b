"""`aril inspect`: one table for people, one object for programs, and exit code 0 also for what is not served."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from aril.cli import main
from aril.core.platform import detect
from aril.engine.config import EngineConfig
from aril.engine.memory import divide
from aril.lora.fingerprint import Fingerprint
from aril.lora.image import load_image
from aril.lora.validate import TargetSpec
from aril.models.demo import MEMBER
from aril.models.loader import load_model
from aril.models.source import default_cache, locate
from builders.adapters import make_adapter
from builders.commands import Files
from builders.gguf import make_gguf
from builders.hub import serving
from builders.models import make_model

MODEL_KEYS = {
    "name": "str",
    "path": "str",
    "kind": "str",
    "served": "bool",
    "problem": "NoneType",
    "architecture": "str",
    "model_type": "str",
    "network": "num_layers hidden_size intermediate_size vocab_size tied_embeddings dtype num_parameters",
    "positions": "scheme rule theta factor original usual longest",
    "attention": "layers heads kv_heads head_dim window cache_dtype",
    "backends": "name fits reason",
    "quantisation": "method settings groups kv_cache on_load",
    "tokenizer": "kind file vocab_size special_tokens chat_template",
    "licence": "stated stated_in file first_line",
    "remote_code": "list",
    "disk": "num_files num_bytes weight_files weight_bytes",
    "weight_bytes": "int",
}
MEMORY_KEYS = "context concurrency num_adapters adapter_rank weights adapters working kv_per_request kv total devices"
DEVICE_KEYS = "name memory usable left fits most_requests longest_request source"
GROUP_KEYS = "description modules num_matrices num_parameters num_bytes"


@pytest.fixture
def asked(capsys: pytest.CaptureFixture[str]) -> Any:
    """The object that `aril inspect ARGV --json` prints."""

    def ask(*argv: str) -> Any:
        assert main(["inspect", *argv, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return ask


def test_the_keys_of_the_object_stay(files: Files, asked: Any) -> None:
    found = asked(str(files.model), "--device-memory", "24GB")
    assert found.keys() == {"model", "memory"}
    assert {key: kind(value) for key, value in found["model"].items()} == MODEL_KEYS
    assert kind(found["model"]["quantisation"]["groups"]) == GROUP_KEYS
    assert kind(found["memory"]) == MEMORY_KEYS
    assert kind(found["memory"]["devices"]) == DEVICE_KEYS


def test_the_table_says_what_people_ask(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["inspect", str(files.model), "--context", "256", "--concurrency", "16", "--adapters", "8"]
    assert main([*argv, "--device-memory", "RTX 4090", "--device-memory", "1MiB"]) == 0
    shown = capsys.readouterr().out
    for told in (
        "\n  served        yes\n",
        "\n  parameters    195,008\n",
        "q,k,v,o,gate,up,down of layers 0-2; embed_tokens,lm_head: not quantised",
        "\nMemory for 16 requests of 256 tokens\n",
        "(8 adapters of rank 16 on every Linear)",
    ):
        assert told in shown
    answers = {
        line[:10].strip(): line.split() for line in shown.splitlines() if line.startswith(("  RTX 4090", "  1MiB"))
    }
    assert ("yes" in answers["RTX 4090"], "no" in answers["1MiB"]) == (True, True)
    assert "--max-model-len 256 --max-num-seqs 16 --kv-cache-memory 3MiB --max-adapters 8 --adapter-memory" in shown


def test_the_bytes_are_those_by_which_an_engine_divides_its_memory(files: Files, asked: Any) -> None:
    found = asked(str(files.model), "--context", "128", "--concurrency", "4", "--dtype", "float32")["memory"]
    network = load_model(locate(str(files.model)), dtype="float32", device=torch.device("cpu"))
    config = EngineConfig(model="x", max_model_len=128, max_num_seqs=4, kv_cache_memory=1 << 30)
    memory = divide(config, detect("cpu"), network, probe=lambda: None)
    assert (memory.weights, memory.working, memory.kv) == (found["weights"], found["working"], found["kv"])
    assert found["total"] == sum(found[share] for share in ("weights", "adapters", "working", "kv"))


def test_an_adapter_takes_what_it_is_said_to_take(files: Files, asked: Any) -> None:
    found = asked(str(files.model), "--adapters", "1", "--adapter-rank", "4", "--dtype", "float32")["memory"]
    network = load_model(locate(str(files.model)), dtype="float32", device=torch.device("cpu"))
    adapter = make_adapter(files.adapter.parent / "everywhere", files.model, r=4, targets="all-linear")
    targets = TargetSpec.of(Fingerprint("x"), network.linears, torch.float32)
    parts = [part.name for linear in network.linears.values() for part in linear.parts]
    assert load_image(adapter, targets, parts).data.nbytes == found["adapters"]


def test_each_named_device_is_judged_by_its_own_memory(files: Files, asked: Any) -> None:
    argv = [word for name in ("nvidia-geforce rtx-4090", "H100 80GB", "24GB") for word in ("--device-memory", name)]
    devices = asked(str(files.model), *argv)["memory"]["devices"]
    assert [device["name"] for device in devices] == ["RTX 4090", "H100 80GB", "24GB"]
    assert [device["memory"] for device in devices] == [24564 << 20, 81559 << 20, 24 * 10**9]
    assert [device["source"] is not None for device in devices] == [True, True, False]


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["/nowhere"], 1, "no file or folder '/nowhere'"),
        (["x", "--device-memory", "RTX 9999"], 2, "'RTX 9999' is neither a size like 24GB nor a card"),
        (["x", "--concurrency", "0"], 2, "--concurrency 0: it takes 1 or more"),
        (["x", "--context", "1"], 2, "--context 1: it takes 2 or more"),
        (["x", "--adapter-rank", "0"], 2, "--adapter-rank 0: it takes 1 or more"),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    words: list[str], code: int, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", *words]) == code
    shown = capsys.readouterr().err
    assert complaint in shown
    assert len(shown.splitlines()) == 1


def test_a_model_that_is_not_served_is_no_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_model(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["MambaForCausalLM"]}))
    assert main(["inspect", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert (
        "served        no, because architecture MambaForCausalLM is not supported; Aril serves LlamaForCausalLM"
        in shown
    )
    assert "parameters    195,008" in shown
    assert "What it would need cannot be said" in shown


def test_what_is_quantised_already_is_not_said_to_be_rounded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = make_gguf(tmp_path / "tiny.gguf", make_model(tmp_path / "base"), "Q8_0")
    assert main(["inspect", str(file), "--quantization", "int8"]) == 0
    shown = capsys.readouterr().out
    assert "served        no, because --quantization int8 rounds 16-bit checkpoints; this one is quantised" in shown
    assert "rounded to" not in shown
    assert "\n  quantisation  gguf\n" in shown
    assert " (as on disk)\n" in shown


def test_texts_of_the_files_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_model(tmp_path)
    (folder / "LICENSE").write_text("\x1b[2J\x1b]0;owned\x07" + "x" * 10_000)
    assert main(["inspect", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert max(map(len, shown.splitlines())) < 1000


def test_of_a_hub_id_only_headers_are_fetched(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", hidden_size=256, intermediate_size=1024)
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    with serving("some/model", folder) as hub:
        quiet = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        there = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), **quiet}
        argv = [sys.executable, "-m", "aril.cli", "inspect", "some/model", "--json"]
        model = json.loads(subprocess.run(argv, env=there, capture_output=True, check=True).stdout)["model"]
    assert (model["served"], model["path"], model["licence"]["stated"]) == (True, None, "mit")
    assert model["disk"]["weight_bytes"] == (folder / "model.safetensors").stat().st_size
    assert 0 < hub.weight_bytes_sent < model["disk"]["weight_bytes"] / 10


@pytest.mark.skipif(not (default_cache() / "demo" / Path(MEMBER).name).is_file(), reason="the demo is not fetched here")
def test_the_demo_is_described(asked: Any) -> None:
    model = asked("demo")["model"]
    assert (model["served"], model["kind"], model["licence"]["stated"]) == (True, "gguf", "apache-2.0")
    assert model["network"]["num_parameters"] == 134_515_008


def test_its_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\nfrom aril.cli import main\ntry: main(['inspect', '--help'])\nexcept SystemExit: pass\n"
        "print([m for m in 'torch transformers numpy'.split() if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == "[]"


def kind(value: Any) -> str:
    """The keys of an object or of the objects in a list; else the type."""
    inner = value[0] if isinstance(value, list) and value else value
    return " ".join(inner) if isinstance(inner, dict) else type(value).__name__
