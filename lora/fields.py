"""The fields of adapter_config.json one by one: which are refused, and how a value is read or found wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from . import patterns, strangers

T = TypeVar("T")

READ = {
    "peft_type", "r", "lora_alpha", "use_rslora", "target_modules", "exclude_modules", "layers_to_transform",
    "layers_pattern", "rank_pattern", "alpha_pattern", "base_model_name_or_path", "task_type", "auto_mapping",
    "init_lora_weights",
}  # fmt: skip
# Of no effect on what a trained adapter adds: training, book-keeping, and options of things that are refused when on.
NO_EFFECT = {
    "lora_dropout", "inference_mode", "peft_version", "revision", "runtime_config", "megatron_core",
    "qalora_group_size", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "ensure_weight_tying",
    "merge_weights",
}  # fmt: skip
REFUSED = {
    "use_dora": "DoRA (a learned magnitude for each output)",
    "modules_to_save": "whole modules trained beside the LoRA",
    "alora_invocation_tokens": "activated LoRA (aLoRA)",
    "trainable_token_indices": "trained token embeddings",
    "lora_bias": "a bias on lora_B",
    "megatron_config": "Megatron layers",
    "fan_in_fan_out": "weights stored transposed (Conv1D), while the served base has plain Linears",
    "layer_replication": "a base with repeated layers",
    "target_parameters": "LoRA on bare parameters",
    "use_qalora": "QA-LoRA (pooled inputs)",
    "use_bdlora": "block-diagonal LoRA",
    "arrow_config": "Arrow routing between adapters",
    "kasa_config": "KaSA (a diagonal between A and B)",
    "velora_config": "VeLoRA",
    "monteclora_config": "Monte Carlo LoRA",
    "enable_lora": "MergedLinear adapters of PEFT 0.2",
}
# These leave the base as it is. The others (pissa, olora, corda, loftq, lora_ga) train against a changed base.
PLAIN_STARTS = (True, False, "gaussian", "eva", "orthogonal", "mica")
TASKS = (None, "CAUSAL_LM")
MAX_KEYS = 2000  # of a pattern; one for each module of an 80-layer base are 560
BASE_CLASSES = ("ForCausalLM", "LMHeadModel", "Model")


def refusals(document: Mapping[str, object]) -> list[str]:
    """Every field of the document that cannot be served, with the reason."""
    found = [
        f"{name}={_shown(document[name])} is not supported: {why}"
        for name, why in REFUSED.items()
        if document.get(name)
    ]
    known = READ | NO_EFFECT | REFUSED.keys() | {"bias"}
    found += [_unknown(name, value) for name, value in document.items() if value and name not in known]
    if document.get("bias", "none") not in ("none", None):
        found.append(f"bias={_shown(document['bias'])}: trained biases are not supported; it must be 'none'")
    return found + _task(document) + _start(document) + _base_class(document)


def _unknown(name: str, value: object) -> str:
    ours = strangers.RENAMED.get(name)
    why = (
        f"PEFT calls it {ours}, and would not read this one" if ours else "unknown field, which may change the numbers"
    )
    return f"{_shown(name, quoted=False)}={_shown(value)}: {why}"


def _task(document: Mapping[str, object]) -> list[str]:
    task = document.get("task_type")
    if task in TASKS:
        return []
    kind = strangers.trained_for(task) if isinstance(task, str) else None
    return [f"task_type={_shown(task)}: {f'that is {kind}; ' if kind else ''}Aril serves CAUSAL_LM"]


def _start(document: Mapping[str, object]) -> list[str]:
    start = document.get("init_lora_weights", True)
    if start in PLAIN_STARTS or start is None:
        return []
    return [
        f"init_lora_weights={_shown(start)}: these weights belong to a changed base; save them as plain LoRA "
        "(save_pretrained(..., path_initial_model_for_weight_conversion=...))"
    ]


def _base_class(document: Mapping[str, object]) -> list[str]:
    mapping = document.get("auto_mapping")
    name = mapping.get("base_model_class") if isinstance(mapping, dict) else None
    if name is None or str(name).endswith(BASE_CLASSES):
        return []
    kind = strangers.trained_on(str(name)) or "no causal language model"
    return [f"auto_mapping: trained on {_shown(str(name), quoted=False)}, which is {kind}; Aril serves CAUSAL_LM"]


class Fields:
    """Typed reading of a document: a value of the wrong kind becomes a problem and the default takes its place."""

    def __init__(self, document: Mapping[str, object], problems: list[str]) -> None:
        self._document = document
        self._problems = problems

    def rank(self, name: str, default: int) -> int:
        """A positive whole number."""
        return int(self._read(name, _is_rank, "a positive whole number") or default)

    def number(self, name: str, default: float) -> float:
        """A finite number."""
        value = self._read(name, _is_number, "a finite number")
        return default if value is None else float(value)

    def boolean(self, name: str) -> bool:
        """True or false; absent is false."""
        return bool(self._read(name, lambda v: isinstance(v, bool), "true or false"))

    def text(self, name: str) -> str | None:
        """A string, or None."""
        return self._read(name, lambda v: isinstance(v, str), "a string") or None

    def integers(self, name: str) -> tuple[int, ...]:
        """One whole number or a list of them."""
        value = self._read(name, lambda v: _all(_as_list(v), int), "a whole number or a list of them")
        return tuple(_as_list(value))

    def names_or_regex(self, name: str) -> str | tuple[str, ...] | None:
        """A list of names, or a string that is a regular expression."""
        value = self._read(name, lambda v: _all(_as_list(v), str), "a list of names or a regular expression")
        if isinstance(value, str):
            return self._checked(name, value, patterns.WHOLE)
        return None if value is None else tuple(value)

    def regexes(self, name: str) -> tuple[str, ...]:
        """One regular expression or a list of them."""
        value = self._read(name, lambda v: _all(_as_list(v), str), "a string or a list of strings")
        return tuple(self._checked(name, pattern, patterns.LAYER) for pattern in _as_list(value) if pattern)

    def pattern(self, name: str, read: Callable[[Fields, str, T], T], default: T) -> dict[str, T]:
        """An object from regular expressions to values."""
        value = (
            self._read(name, lambda v: isinstance(v, dict) and None not in v.values(), "an object, no null in it") or {}
        )
        inner = Fields({f"{name}[{key}]": v for key, v in value.items()}, self._problems)
        if len(value) > MAX_KEYS:
            self._problems.append(f"{name} has {len(value)} keys, and at most {MAX_KEYS} are read")
            return {}
        return {self._checked(name, key, patterns.LAST_PARTS): read(inner, f"{name}[{key}]", default) for key in value}

    def _read(self, name: str, right: Callable[[object], bool], kind: str) -> Any:
        """The value where it is of the right kind; None where it is absent or was found wrong."""
        value = self._document.get(name)
        if value is None or right(value):
            return value
        self._problems.append(f"{name}={_shown(value)} must be {kind}")
        return None

    def _checked(self, name: str, pattern: str, place: str) -> str:
        reason = patterns.problem(pattern, place)
        if reason is None:
            return pattern
        self._problems.append(f"{name}: {_shown(pattern)} {reason}")
        return "0"  # an expression like any other: the adapter is refused


def _is_rank(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _all(values: list[Any], kind: type) -> bool:
    return all(isinstance(value, kind) and not isinstance(value, bool) for value in values)


def _shown(value: object, *, quoted: bool = True) -> str:
    text = repr(value) if quoted else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
