"""EngineConfig: every choice an operator has about the engine, checked once, passed by hand.

Each field carries its flag, its help and how its text is read, so that a command line can be made from this list and
nothing is named twice. Knows nothing of models, devices or servers: a name that only a folder can judge (an attention
backend, a model) is judged there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from ..core.errors import InvalidRequest
from .params import POOLINGS

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

BYTE_UNITS = {
    "": 1,
    "b": 1,
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", start=1)},
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", start=1)},
}
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def parse_bytes(text: str) -> int:
    """Bytes of `2GiB`, `512MiB`, `1.5GB` or a plain number; raises ValueError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in BYTE_UNITS:
        raise ValueError(f"{text!r} is no size; sizes read like 1073741824, 1GiB (1024 MiB) or 1.5GB (1500 MB)")
    return int(float(match[1]) * BYTE_UNITS[match[2]])


def parse_int(text: str) -> int:
    """A whole number; raises ValueError for anything else."""
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"it takes a whole number, not {text!r}") from None


def parse_float(text: str) -> float:
    """A number; raises ValueError for anything else."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"it takes a number, not {text!r}") from None


def parse_switch(text: str) -> bool:
    """True or False; raises ValueError for anything else."""
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def parse_name(text: str) -> str:
    """The name itself; raises ValueError for a blank one, which a script whose variable is not set would give."""
    if not text.strip():
        raise ValueError("it names nothing; leave the flag out, or give it a name")
    return text


def parse_list(given: object) -> tuple[str, ...]:
    """The texts of a list in JSON, of a single one, or of several of either; raises ValueError for anything else."""
    found: list[str] = []
    for each in given if isinstance(given, list | tuple) else [given]:
        text = str(each).strip()
        items = _in_json(text) if text.startswith("[") else [text]
        if not all(isinstance(item, str) and item for item in items):
            raise ValueError("it takes a list of strings")
        found += items
    return tuple(found)


def _in_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"it takes a list of strings, and what begins with [ is read as JSON: {error}") from None


def option(
    flag: str,
    help: str,
    default: object = MISSING,
    *,
    parse: Callable[[Any], object] = str,
    choices: Sequence[object] | None = None,
    low: float | None = None,
    high: float | None = None,
) -> Any:  # as dataclasses.field: the annotation beside it says the type
    """One field of a config: its flag, its help, its default; `parse` reads the text of the flag."""
    facts = {"flag": flag, "help": help, "parse": parse, "choices": choices, "low": low, "high": high}
    return field(metadata=facts) if default is MISSING else field(default=default, metadata=facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What an engine is built from. Values may be given as a flag's text (`kv_cache_memory="2GiB"`).

    Raises InvalidRequest that names the flag and what it takes.
    """

    model: str = option("model", "what to serve: a local folder, a .gguf file, a hub id, or demo")
    served_model_name: str | None = option("--served-model-name", "id of the base in the API", None)
    revision: str | None = option("--revision", "branch, tag or commit of a hub id", None)
    trust_remote_code: bool = option(
        "--trust-remote-code", "let a model folder bring Python code", False, parse=parse_switch
    )
    device: str = option("--device", "where to run", "auto", choices=("auto", "cpu", "cuda"))
    dtype: str = option(
        "--dtype",
        "number format of weights and KV cache; auto is the checkpoint's own",
        "auto",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    quantization: str | None = option(
        "--quantization",
        "int8, int4 or fp8 rounds a 16-bit model as it is loaded, once; else the format that the model is in already",
        None,
        parse=parse_name,
    )
    max_model_len: int | None = option(
        "--max-model-len",
        "most tokens of prompt and output together; by default the model's own",
        None,
        parse=parse_int,
        low=2,
    )
    max_num_seqs: int = option("--max-num-seqs", "most requests in one step", 64, parse=parse_int, low=1)
    max_num_batched_tokens: int = option(
        "--max-num-batched-tokens",
        "most tokens in one step; longer prompts are cut into chunks",
        512,
        parse=parse_int,
        low=1,
    )
    block_size: int = option("--block-size", "tokens in one KV-cache block", 16, parse=parse_int, choices=BLOCK_SIZES)
    enable_prefix_caching: bool = option(
        "--enable-prefix-caching", "reuse the KV of equal prompt beginnings", True, parse=parse_switch
    )
    kv_cache_memory: int | None = option(
        "--kv-cache-memory",
        "memory of the KV cache, such as 2GiB; by default from what is free",
        None,
        parse=parse_bytes,
        low=1,
    )
    gpu_memory_utilization: float = option(
        "--gpu-memory-utilization", "share of a GPU's memory to fill", 0.9, parse=parse_float, low=0.01, high=1.0
    )
    attention_backend: str = option("--attention-backend", "attention to use; auto is the first that can", "auto")
    enforce_eager: bool = option("--enforce-eager", "never capture device graphs", False, parse=parse_switch)
    generation_config: str = option(
        "--generation-config", "sampling defaults: auto (the model's file), vllm (neutral), or a folder", "auto"
    )
    chat_template: str | None = option("--chat-template", "a Jinja chat template, or a file that holds one", None)
    pooling_type: str = option(
        "--pooling-type", "how a prompt is embedded where its request does not say", "last", choices=POOLINGS
    )
    grammar_backend: str = option(
        "--grammar-backend", "library that holds answers to a schema, a regex or a grammar", "llguidance"
    )
    seed: int = option("--seed", "seeds the requests that bring no seed", 0, parse=parse_int, low=0, high=2**63 - 1)
    threads: int | None = option(
        "--threads", "processor threads of the engine; by default all usable cores", None, parse=parse_int, low=1
    )
    adapter_memory: int = option(
        "--adapter-memory", "device memory for loaded adapters", 512 * 1024**2, parse=parse_bytes, low=1
    )
    max_adapters: int = option("--max-adapters", "most adapters loaded at once", 256, parse=parse_int, low=1)
    adapter_cache_memory: int = option(
        "--adapter-cache-memory", "host memory for adapters that are ready to load", 1024**3, parse=parse_bytes, low=0
    )
    adapter_store: str | None = option(
        "--store", "adapter files: a folder, or s3://bucket/prefix; by default in the state folder", None
    )

    def __post_init__(self) -> None:
        settle(self)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InvalidRequest(
                f"--max-num-batched-tokens {self.max_num_batched_tokens} is under --max-num-seqs {self.max_num_seqs}, "
                "and every running request needs a token in each step: raise the first or lower the second",
                param="max_num_batched_tokens",
            )


def settle(config: DataclassInstance) -> None:
    """Read and check every field of a record that is made of `option`s. Raises InvalidRequest that names the flag."""
    for each in fields(config):
        value = getattr(config, each.name)
        if value is not None or each.default is not None:
            object.__setattr__(config, each.name, _checked(each.name, value, each.metadata))


def _checked(name: str, value: object, facts: Mapping[str, Any]) -> object:
    flag, choices, low, high = facts["flag"], facts["choices"], facts["low"], facts["high"]
    try:
        value = facts["parse"](value if facts["parse"] is parse_list else str(value))
    except ValueError as error:
        shown = value if str(value).strip() else repr(value)
        raise InvalidRequest(f"{flag} {shown}: {error}", param=name) from error
    if choices is not None and value not in choices:
        raise InvalidRequest(f"{flag} {value}: there are {', '.join(map(str, choices))}", param=name)
    if (low is not None and not value >= low) or (high is not None and not value <= high):  # also refuses NaN
        shown = f"{low} or more" if high is None else f"from {low} to {high}"
        raise InvalidRequest(f"{flag} {value} is out of range; it takes {shown}", param=name)
    return value
