"""A job writes beside --out and appears there whole, or not at all; with a tool at hand, one runs to its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aril.commands._quantize.job import Request, plan, run
from aril.commands._quantize.scheme import choose
from aril.commands._quantize.tools import READY, TOOLS, ensure, environment, is_ready
from aril.core.errors import ArilError, Unavailable
from aril.models.source import default_cache
from builders.gguf import make_gguf
from builders.models import make_model

BUILD = "ARIL_TEST_TOOLS"  # set it to let the tests install a tool that is not there yet: gigabytes, minutes
OPENS = (
    "import sys, torch; from transformers import AutoModelForCausalLM as M\n"
    "print(M.from_pretrained(sys.argv[1])(torch.arange(8)[None]).logits[0, -1].argmax().item())"
)


def request_for(model: Path, out: Path, method: str = "int4-rtn", **given: Any) -> Request:
    """As the command makes it, without perplexity."""
    scheme = choose(
        method, bits=None, group_size=given.pop("group_size", None), sym=None, desc_act=False, calibrated=False
    )
    return Request(str(model), scheme, out, **{"perplexity_tokens": 0, **given})


def quiet(_: object) -> None:
    """For those who do not look."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("quantize") / "model")


@pytest.fixture
def broken_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that calls itself ready and holds this Python, which has no tool in it."""
    monkeypatch.setenv("ARIL_CACHE", str(tmp_path / "cache"))
    folder = environment(TOOLS["llmcompressor"], tmp_path / "cache")
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / READY).touch()


def test_what_is_there_is_not_overwritten(model: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").touch()
    with pytest.raises(ArilError, match="exists and is not empty"):
        plan(request_for(model, tmp_path / "out"))


def test_a_shape_is_refused_before_anything_is_written(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ArilError, match=r"--group-size 64 does not divide the inputs of .*down_proj"):
        plan(request_for(model, tmp_path / "out", group_size=64))
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_is_quantised_already_is_refused(model: Path, tmp_path: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (tmp_path / "model").mkdir()
    for path in model.iterdir():
        (tmp_path / "model" / path.name).symlink_to(path)
    (tmp_path / "model" / "config.json").unlink()
    (tmp_path / "model" / "config.json").write_text(
        json.dumps(config | {"quantization_config": {"quant_method": "gptq"}})
    )
    with pytest.raises(ArilError, match="quantised already, by gptq"):
        plan(request_for(tmp_path / "model", tmp_path / "out"))


@pytest.mark.usefixtures("broken_tool")
def test_a_run_that_fails_leaves_its_log_and_no_result(model: Path, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="its log"):
        run(plan(request_for(model, tmp_path / "out")), quiet, quiet)
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "out.partial" / "log.txt").is_file()


@pytest.mark.usefixtures("broken_tool")
def test_another_job_empties_what_one_left(model: Path, tmp_path: Path) -> None:
    for group_size in (32, -1):
        with pytest.raises(Unavailable):
            run(plan(request_for(model, tmp_path / "out", group_size=group_size)), quiet, quiet)
        (tmp_path / "out.partial" / f"mark{group_size}").touch()
    assert not (tmp_path / "out.partial" / "mark32").exists()


def python_with(tool: str) -> Path:
    """The Python of a tool, or the test is skipped."""
    if not is_ready(TOOLS[tool], default_cache()) and not os.environ.get(BUILD):
        pytest.skip(f"no environment of {tool} in {default_cache()}; {BUILD}=1 makes one")
    return ensure(TOOLS[tool], default_cache())


class Interrupted(Exception):
    """Ctrl-C, at a moment of our choice."""


def test_gptq_goes_on_behind_the_last_layer_it_kept(model: Path, tmp_path: Path) -> None:
    python_with("gptqmodel")
    first: list[str] = []
    second: list[str] = []

    def interrupt(event: dict[str, Any]) -> None:
        if event["event"] == "layer":
            first.append(event["name"])
            if len(first) == 2:
                raise Interrupted

    asked = request_for(model, tmp_path / "out", "gptq", group_size=32, max_tokens=64, max_samples=4)
    with pytest.raises(Interrupted):
        run(plan(asked), quiet, interrupt)
    run(plan(asked), quiet, lambda event: second.append(event["name"]) if event["event"] == "layer" else None)
    assert first == ["layer 0", "layer 1"]
    assert second == ["layer 1", "layer 2"]


def test_rounding_goes_on_behind_the_last_layer(model: Path, tmp_path: Path) -> None:
    python_with("llmcompressor")

    def interrupt(event: dict[str, Any]) -> None:
        if event["event"] == "layer":
            raise Interrupted

    asked = request_for(model, tmp_path / "out")
    with pytest.raises(Interrupted):
        run(plan(asked), quiet, interrupt)
    first = next((tmp_path / "out.partial" / "result").glob("model-00001-*.safetensors"))
    written = first.stat().st_mtime_ns
    run(plan(asked), quiet, quiet)
    assert (tmp_path / "out" / first.name).stat().st_mtime_ns == written
    assert not (tmp_path / "out.partial").exists()


@pytest.mark.parametrize("method", ["int4-rtn", "int8", "fp8"])
def test_a_result_opens_in_aril_and_in_transformers(method: str, model: Path, tmp_path: Path) -> None:
    python = python_with("llmcompressor")
    layers: list[str] = []
    found = run(
        plan(request_for(model, tmp_path / "out", method, perplexity_tokens=512)),
        quiet,
        lambda event: layers.append(event["name"]) if event["event"] == "layer" else None,
    )
    assert layers == ["layer 0", "layer 1", "layer 2", "the rest"]
    assert found.measured is not None, found.notes
    assert abs(found.measured.change) < 20
    done = subprocess.run(
        [str(python), "-I", "-c", OPENS, str(tmp_path / "out")], capture_output=True, text=True, check=True
    )
    assert 0 <= int(done.stdout.split()[-1]) < 512
    assert method in (tmp_path / "out" / "README.md").read_text()
    assert len({path.stat().st_mode for path in (tmp_path / "out").iterdir()}) == 1, "one may be read, another not"


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_a_method_that_learns_runs_to_its_end(method: str, tmp_path: Path) -> None:
    python_with("gptqmodel")
    model = make_model(tmp_path / "model", num_key_value_heads=4, intermediate_size=192)
    asked = request_for(model, tmp_path / "out", method, group_size=32, perplexity_tokens=512, max_tokens=64)
    found = run(plan(asked), quiet, quiet)
    assert found.measured is not None, found.notes
    assert abs(found.measured.change) < 20
    assert "gptqmodel 7.7.0" in (tmp_path / "out" / "README.md").read_text()


def test_a_gguf_file_is_written_in_16_bits_first(model: Path, tmp_path: Path) -> None:
    python_with("llmcompressor")
    file = make_gguf(tmp_path / "model.gguf", model)
    found = run(plan(request_for(file, tmp_path / "out", "int8")), quiet, quiet)
    assert found.base_about == "a GGUF file"
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "llama"
