"""What a checkpoint says of itself: names of its own, and a digest that copies of one model share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aril.lora.fingerprint import Fingerprint, contradiction
from aril.models.identity import digest_of, of_folder, of_gguf

CONFIG = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "dtype": "bfloat16"}
EXAMPLES = Path(__file__).parents[2] / "examples" / "adapters"


@pytest.mark.parametrize(
    "copied",
    [
        {"_name_or_path": "somewhere/else"},
        {"dtype": "float16", "torch_dtype": "float16"},
        {"transformers_version": "4.40.0", "use_cache": False},
        {"quantization_config": {"quant_method": "gptq", "bits": 4}},
    ],
)
def test_copies_of_a_model_share_a_digest(copied: dict[str, Any]) -> None:
    assert digest_of({**CONFIG, **copied}) == digest_of(CONFIG)


def test_another_network_has_another_digest() -> None:
    assert digest_of({**CONFIG, "num_hidden_layers": 3}) != digest_of(CONFIG)


CARDS = {
    "base_model: owner/m-7b\nbase_model_relation: quantized": ("owner/m-7b",),
    "base_model:\n- owner/m-7b\nbase_model_relation: quantized": ("owner/m-7b",),
    "base_model: [owner/m-7b]\nbase_model_relation: finetune": (),
    "base_model: owner/m-7b": (),
    "license: mit": (),
}


@pytest.mark.parametrize(("card", "names"), CARDS.items())
def test_a_card_names_the_model_of_a_quantised_copy_alone(card: str, names: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(f"---\n{card}\n---\n# A model\n")
    assert of_folder(tmp_path, CONFIG).names == names


def test_a_copy_that_is_quantised_need_not_say_so_on_its_card(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("---\nbase_model: owner/m-7b\n---\n")
    quantised = {**CONFIG, "_name_or_path": "/tmp/m", "quantization_config": {"quant_method": "awq"}}
    assert of_folder(tmp_path, quantised).names == ("/tmp/m", "owner/m-7b")


def test_a_gguf_is_known_by_its_file_and_by_its_metadata() -> None:
    meta = {"general.name": "M Seven", "general.basename": "M", "general.size_label": "7B", "general.finetune": "Chat"}
    assert of_gguf(Path("/models/m-q4_0.gguf"), meta, CONFIG).names == ("m-q4_0", "M Seven", "M-7B-Chat")


def test_the_example_adapters_are_for_the_demo_base() -> None:
    demo = Fingerprint("anything", of_gguf(Path("SmolLM2-135M-Instruct.Q4_1.gguf"), {}, CONFIG).names)
    configs = [json.loads(path.read_text()) for path in EXAMPLES.glob("*/adapter_config.json")]
    assert len(configs) == 5
    assert [contradiction(config["base_model_name_or_path"], demo) for config in configs] == [None] * 5
