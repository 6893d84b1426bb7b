"""Names of bases: copies of one model are the same, another model is refused by both names, a path says nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from aril.lora.fingerprint import Fingerprint, contradiction, is_known, remark

DEMO = Fingerprint("smollm2-135m-instruct", ("smollm2-135m-instruct", "SmolLM2-135M-Instruct.Q4_1"))
QWEN = Fingerprint("qwen", ("./Qwen2.5-7B-Instruct",))
LLAMA = Fingerprint("chat", ("/srv/model", "meta-llama/Meta-Llama-3.1-8B"))
PHI = Fingerprint("phi", ("microsoft/Phi-3-mini-4k-instruct",))
MUTE = Fingerprint("chat", ("/srv/model",))

SAME = [
    (DEMO, "HuggingFaceTB/SmolLM2-135M-Instruct"),
    (DEMO, "HuggingFaceTB/SmolLM2-135M-Instruct/"),
    (DEMO, "unsloth/SmolLM2-135M-Instruct-bnb-4bit"),
    (DEMO, "unsloth/SmolLM2-135M-Instruct-GGUF"),
    (DEMO, "/home/me/models/SmolLM2-135M-Instruct"),
    (DEMO, "C:\\models\\SmolLM2-135M-Instruct"),
    (
        DEMO,
        "/root/.cache/huggingface/hub/models--HuggingFaceTB--SmolLM2-135M-Instruct/snapshots/7e27bd9f95328f0f3b08261",
    ),
    (DEMO, "https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct"),
    (DEMO, "smollm2-135m-instruct-q8_0.gguf"),
    (QWEN, "Qwen/Qwen2.5-7B-Instruct"),
    (QWEN, "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4"),
    (QWEN, "Qwen/Qwen2.5-7B-Instruct-AWQ"),
    (QWEN, "unsloth/qwen2.5-7b-instruct-unsloth-bnb-4bit"),
    (QWEN, "neuralmagic/Qwen2.5-7B-Instruct-FP8-dynamic"),
    (QWEN, "RedHatAI/Qwen2.5-7B-Instruct-quantized.w4a16"),
    (QWEN, "mlx-community/Qwen2.5-7B-Instruct-4bit"),
    (QWEN, "/mnt/cache/modelscope/hub/Qwen/Qwen2___5-7B-Instruct"),
    (LLAMA, "meta-llama/Llama-3.1-8B"),
    (LLAMA, "unsloth/meta-llama-3.1-8b-bnb-4bit"),
    (LLAMA, "unsloth/Llama-3.1-8B-unsloth-bnb-4bit"),
    (LLAMA, "TheBloke/Llama-3.1-8B-GPTQ-4bit-128g"),
    (PHI, "unsloth/phi-3-mini-4k-instruct-bnb-4bit"),
]


@pytest.mark.parametrize(("base", "name"), SAME)
def test_copies_of_one_model_are_one_model(base: Fingerprint, name: str) -> None:
    assert is_known(name, base)
    assert contradiction(name, base) is None
    assert remark(name, base) is None


OTHERS = [
    (DEMO, "HuggingFaceTB/SmolLM2-135M"),
    (DEMO, "HuggingFaceTB/SmolLM2-360M-Instruct"),
    (DEMO, "HuggingFaceTB/SmolLM-135M-Instruct"),
    (DEMO, "gpt-135m"),
    (
        DEMO,
        "/root/.cache/huggingface/hub/models--Qwen--Qwen2.5-0.5B/snapshots/060db6499f32faf8b98477b0a26969ef7d8b9987",
    ),
    (QWEN, "Qwen/Qwen2.5-7B"),
    (QWEN, "Qwen/Qwen2.5-Coder-7B-Instruct"),
    (QWEN, "Qwen/Qwen2-5.7B-Instruct-long"),
    (LLAMA, "meta-llama/Llama-3.1-8B-Instruct"),
    (LLAMA, "microsoft/phi-1_5"),
]


@pytest.mark.parametrize(("base", "name"), OTHERS)
def test_another_model_is_refused_by_both_names(base: Fingerprint, name: str) -> None:
    told = contradiction(name, base) or ""
    assert name in told
    assert base.name in told


PATHS = ["/home/x/checkpoints/base", "./base", "../Llama-3.1-8B", "output/checkpoint-500", "models/chatglm-6b", "base"]


@pytest.mark.parametrize("path", PATHS)
def test_a_path_of_somebodys_machine_is_a_note(path: str) -> None:
    assert contradiction(path, DEMO) is None
    assert path in (remark(path, DEMO) or "")


def test_a_folder_whose_name_has_a_size_tells_which_base_it_is() -> None:
    assert contradiction("Qwen/Qwen2.5-7B", Fingerprint("qwen", ("/models/Llama-3.1-8B",))) is not None


def test_a_base_whose_names_say_nothing_refuses_nobody() -> None:
    assert contradiction("Qwen/Qwen2.5-7B-Instruct", MUTE) is None
    assert "Qwen/Qwen2.5-7B-Instruct" in (remark("Qwen/Qwen2.5-7B-Instruct", MUTE) or "")


def test_the_name_that_an_operator_chose_agrees_but_does_not_contradict() -> None:
    assert remark("somebody/chat", MUTE) is None
    assert contradiction("Qwen/Qwen2.5-7B", Fingerprint("our-7b", ("/srv/model",))) is None


def test_an_adapter_without_a_base_is_a_note() -> None:
    assert contradiction(None, DEMO) is None
    assert "does not say" in (remark(None, DEMO) or "")


def test_bases_of_real_configs_contradict_only_where_they_name_a_model(shared_data: Path) -> None:
    entries = json.loads((shared_data / "adapter_configs" / "index.json").read_text())
    named = {entry["base"]: "local base path" in entry["unusual"] for entry in entries if entry["base"]}
    paths = {base for base in named if base.startswith("/")}
    assert {base for base in named if contradiction(base, DEMO) is None} == {*paths, "models/chatglm-6b"}
    assert {base for base, is_local in named.items() if is_local} <= paths
