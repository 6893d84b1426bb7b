"""adapter_config.json: every field is read as PEFT reads it, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aril.core.errors import InvalidAdapter
from aril.lora import patterns
from aril.lora.config import AdapterConfig
from peft import LoraConfig
from peft.tuners.tuners_utils import check_target_module_exists
from peft.utils.other import get_pattern_key

PATHS = [
    f"{outer}layers.{layer}.{module}"
    for outer in ("model.", "")
    for layer in (0, 1, 11)
    for module in ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj", "mlp.gate_proj")
]
RULES: list[dict[str, Any]] = [
    {"target_modules": ["q_proj", "down_proj"]},
    {"target_modules": ["proj"]},
    {"target_modules": ["self_attn.q_proj"]},
    {"target_modules": ["model.layers.1.self_attn.q_proj", "v_proj"], "layers_to_transform": [0]},
    {"target_modules": "q_proj"},
    {"target_modules": r"model\.layers\.1.*_proj"},
    {"target_modules": r".*(self_attn|mlp)\.(q|down)_proj"},
    {"target_modules": ["q_proj"], "layers_to_transform": 1},
    {"target_modules": ["q_proj"], "layers_to_transform": [1, 11], "layers_pattern": ["h", "layers"]},
    {"target_modules": ["q_proj"], "layers_to_transform": [1], "layers_pattern": "blocks"},
    {"target_modules": ["q_proj", "v_proj"], "exclude_modules": ["layers.1.self_attn.q_proj"]},
    {"target_modules": ["q_proj", "v_proj"], "exclude_modules": r".*\.11\..*"},
]
PATTERNS: list[dict[str, Any]] = [
    {"q_proj": 3},
    {"proj": 3},
    {"layers.1.self_attn.q_proj": 5, "q_proj": 7},
    {"q_proj": 7, r"layers\.1\..*": 5},
    {"^model.layers.0.mlp.down_proj": 9},
    {r".*\.(0|1)\..*": 2, ".*": 4},
]
REFUSED: dict[str, Any] = {
    "use_dora": True,
    "bias": "all",
    "modules_to_save": ["lm_head"],
    "alora_invocation_tokens": [1, 2],
    "trainable_token_indices": [5],
    "lora_bias": True,
    "megatron_config": {"hidden_size": 8},
    "fan_in_fan_out": True,
    "layer_replication": [[0, 2], [1, 3]],
    "target_parameters": ["mlp.experts.gate_up_proj"],
    "use_qalora": True,
    "init_lora_weights": "pissa_niter_4",
    "task_type": "SEQ_CLS",
    "auto_mapping": {"base_model_class": "BertForMaskedLM"},
    "use_future_trick": True,
    "r": 0,
    "lora_alpha": "16",
    "use_rslora": "false",
    "target_modules": [1, 2],
    "layers_to_transform": ["1"],
    "rank_pattern": {"q_proj": -1},
    "alpha_pattern": {"q_proj": None},
    "exclude_modules": "(unclosed",
    "peft_type": "LOHA",
}
UNREADABLE: dict[str, bytes] = {
    "nested too deep for Python": b"[" * 100_000,
    "nested too deep for clients": b'{"eva_config": ' + b"[" * 40 + b"]" * 40 + b"}",
    "half a character": rb'{"base_model_name_or_path": "\ud800"}',
    "NUL, which PostgreSQL cannot keep": rb'{"base_model_name_or_path": "\u0000"}',
    "NaN, which is no JSON": b'{"lora_dropout": NaN}',
    "an endless file": b'{"peft_type": "LORA"' + b" " * (1 << 20) + b"}",
}
OUT_OF_BOUNDS: list[dict[str, Any]] = [
    {"lora_alpha": 10**400},
    {"alpha_pattern": {"q_proj": 10**400}},
    {"rank_pattern": {f"layers.{at}": 1 for at in range(2001)}},
    {"layers_pattern": "(?P<at>x)", "layers_to_transform": [0]},
    {"rank_pattern": {"(?i)q_proj": 4}},
    {"target_modules": "(" * 5000 + ")" * 5000},
    {"target_modules": "q_proj|" * 20_000},
    {"target_modules": "(?:(?:a{900}){900}){900}"},
    {"target_modules": "(?x)#)\n(?:a{30000}#(\n){30000}"},
    {"exclude_modules": "a{100000000}"},
]
PLAIN = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}


@pytest.mark.parametrize("rules", RULES, ids=str)
def test_the_modules_that_a_config_targets_are_those_of_peft(rules: dict[str, Any]) -> None:
    ours, theirs = parsed({**PLAIN, **rules}), LoraConfig(**rules)
    expected = [path for path in PATHS if check_target_module_exists(theirs, path)]
    assert [path for path in PATHS if ours.adapts(path)] == expected


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_a_pattern_speaks_of_the_modules_that_peft_says(pattern: dict[str, int]) -> None:
    ours = parsed({**PLAIN, "rank_pattern": pattern})
    expected = [pattern.get(get_pattern_key(pattern.keys(), path), 8) for path in PATHS]
    assert [ours.rank(path) for path in PATHS] == expected


@pytest.mark.parametrize("field", REFUSED)
def test_what_cannot_be_served_is_refused_by_name(field: str) -> None:
    problems: list[str] = []
    AdapterConfig.from_json(json.dumps({**PLAIN, field: REFUSED[field]}).encode(), problems)
    assert [field in problem for problem in problems] == [True]


@pytest.mark.parametrize("raw", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_file_that_others_could_not_read_is_refused(raw: bytes) -> None:
    problems: list[str] = []
    assert AdapterConfig.from_json(raw, problems) is None
    assert len(problems) == 1


@pytest.mark.parametrize("fields", OUT_OF_BOUNDS, ids=lambda fields: str(fields)[:40])
def test_what_is_out_of_bounds_is_a_problem_and_not_a_crash(fields: dict[str, Any]) -> None:
    problems: list[str] = []
    AdapterConfig.from_json(json.dumps({**PLAIN, **fields}).encode(), problems)
    assert [next(iter(fields)) in problem for problem in problems] == [True]


def test_an_expression_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "MATCH_SECONDS", 0.02)
    endless = parsed({**PLAIN, "target_modules": r"((\w*\W*)*(\w*)*)*\1(x+x+)+y"})
    with pytest.raises(InvalidAdapter, match="takes too long"):
        endless.adapts("x" * 5000)


def test_every_problem_is_listed_at_once() -> None:
    problems: list[str] = []
    AdapterConfig.from_json(json.dumps({**PLAIN, "use_dora": True, "bias": "all", "r": -2}).encode(), problems)
    assert len(problems) == 3


def test_every_field_that_peft_writes_by_default_is_known(tmp_path: Path) -> None:
    LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM").save_pretrained(str(tmp_path))
    problems: list[str] = []
    AdapterConfig.from_json((tmp_path / "adapter_config.json").read_bytes(), problems)
    assert problems == []


@pytest.mark.parametrize("start", [True, False, "gaussian", "eva", "orthogonal"])
def test_a_start_that_leaves_the_base_alone_is_served(start: object) -> None:
    parsed({**PLAIN, "init_lora_weights": start})


def test_the_spelling_of_a_config_does_not_change_its_canonical_form() -> None:
    one = parsed({**PLAIN, "target_modules": ["v_proj", "q_proj"], "lora_dropout": 0.1})
    other = parsed({"target_modules": ["q_proj", "v_proj"], **{k: v for k, v in PLAIN.items() if k[0] != "t"}})
    assert one.canonical() == other.canonical()


@pytest.mark.parametrize("change", [{"r": 4}, {"lora_alpha": 1}, {"use_rslora": True}, {"rank_pattern": {"q_proj": 2}}])
def test_what_changes_the_numbers_changes_the_canonical_form(change: dict[str, Any]) -> None:
    assert parsed({**PLAIN, **change}).canonical() != parsed(PLAIN).canonical()


def parsed(document: dict[str, Any]) -> AdapterConfig:
    """A config without problems."""
    problems: list[str] = []
    config = AdapterConfig.from_json(json.dumps(document).encode(), problems)
    assert config is not None
    assert problems == []
    return config
