"""The tensors of adapter_model.safetensors: which half of which module each is, and the numbers as they are served.

Names are those that PEFT writes, with or without an adapter name (`.default`) and with or without the outer `model.`
level (adapters trained on a bare LlamaModel have none). Knows shapes and numbers, not configurations or files on disk.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

TENSOR_NAME = re.compile(r"(?:base_model\.model\.)?(?P<path>.+)\.lora_(?P<half>[AB])(?:\.[^.]+)?\.weight")
OUTER = "model."
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# What other tensors of PEFT are, so that a refusal can say more than "matches no module".
KNOWN = {
    "lora_magnitude_vector": "DoRA is not supported",
    "lora_embedding_": "LoRA on embeddings is not supported",
    "embed_tokens": "LoRA on embeddings is not supported, nor are trained embeddings",
    "lm_head": "LoRA on the output head is not supported, nor is a trained head",
    "modules_to_save": "whole trained modules are not supported",
    "trainable_tokens": "trained token embeddings are not supported",
    "lora_A.bias": "a bias on lora_A is not supported",
    "lora_B.bias": "a bias on lora_B is not supported",
    "vision_": "it belongs to the vision part of a vision-language model, and a language model is served",
    "visual.": "it belongs to the vision part of a vision-language model, and a language model is served",
    "encoder.": "it belongs to an encoder; decoders are served",
    ".bias": "trained biases are not supported",
}


class TensorFile(Protocol):
    """An opened safetensors file."""

    def keys(self) -> Iterable[str]: ...
    def get_slice(self, name: str) -> TensorSlice: ...
    def get_tensor(self, name: str) -> Tensor: ...


class TensorSlice(Protocol):
    """A tensor of which only the header has been read."""

    def get_shape(self) -> list[int]: ...
    def get_dtype(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Pair:
    """The two factors of one module, ready to be multiplied: y += (x a^T) b."""

    a: Tensor  # [rank, in]
    b: Tensor  # [rank, out]: transposed, the scale folded in


@dataclass(frozen=True, slots=True)
class PairNames:
    """Where the two halves of one module are in the file. `trained_at` is the module's path in the trained model."""

    trained_at: str
    a: str
    b: str


def pair_up(names: Iterable[str], modules: Mapping[str, tuple[int, int]], problems: list[str]) -> dict[str, PairNames]:
    """The complete pairs by path in the served base; names that fit nowhere, twins and lone halves are problems."""
    halves: dict[str, dict[str, str]] = {}
    trained_at: dict[str, str] = {}
    for name in sorted(names):
        match = TENSOR_NAME.fullmatch(name)
        path = _served_path(match["path"], modules) if match else None
        if match is None or path is None:
            problems.append(f"tensor {name}: {_what_it_is(name)}")
            continue
        twin = halves.setdefault(path, {}).setdefault(match["half"], name)
        if twin != name:
            problems.append(f"tensor {name}: the same half of the same module as {twin}")
        trained_at[path] = match["path"]
    return {
        path: PairNames(trained_at[path], found["A"], found["B"])
        for path, found in halves.items()
        if _is_complete(path, found, problems)
    }


def check_shapes(file: TensorFile, pair: PairNames, shape: tuple[int, int], rank: int) -> list[str]:
    """What is wrong with the headers of a pair for a module of `shape` (in, out) and a configured rank."""
    expected = {pair.a: [rank, shape[0]], pair.b: [shape[1], rank]}
    return [reason for name, want in expected.items() if (reason := _mismatch(file.get_slice(name), name, want))]


def rank_of(file: TensorFile, pair: PairNames) -> int | None:
    """The rank that both halves of a pair have; None where they have none in common."""
    a, b = (list(file.get_slice(name).get_shape()) for name in (pair.a, pair.b))
    return a[0] if len(a) == len(b) == 2 and a[0] == b[1] else None


def read_pair(file: TensorFile, pair: PairNames, scale: float, dtype: torch.dtype, problems: list[str]) -> Pair:
    """The pair in the serving dtype, the scale folded into b in float32; numbers that are not finite are problems."""
    a = file.get_tensor(pair.a)  # [rank, in]
    b = file.get_tensor(pair.b)  # [out, rank]
    served = Pair(a.float().to(dtype), (b.float() * scale).t().contiguous().to(dtype))
    for name, raw, cast in ((pair.a, a, served.a), (pair.b, b, served.b)):
        reason = _not_finite(raw, cast)
        if reason is not None:
            problems.append(f"tensor {name}: {reason}")
    return served


def _served_path(path: str, modules: Mapping[str, tuple[int, int]]) -> str | None:
    return next((p for p in (path, OUTER + path) if p in modules), None)


def _what_it_is(name: str) -> str:
    return next((why for part, why in KNOWN.items() if part in name), "matches no module of the base")


def _is_complete(path: str, found: dict[str, str], problems: list[str]) -> bool:
    for half, name in found.items():
        other = "B" if half == "A" else "A"
        if other not in found:
            problems.append(f"tensor {name}: its other half is missing ({path}.lora_{other}.weight)")
    return len(found) == 2


def _mismatch(tensor: TensorSlice, name: str, want: list[int]) -> str | None:
    if tensor.get_dtype() not in DTYPES:
        return f"tensor {name}: dtype {tensor.get_dtype()} is not one of {', '.join(DTYPES)}"
    shape = list(tensor.get_shape())
    if shape == want:
        return None
    return f"tensor {name}: shape {shape}, while the base and the configured rank make it {want}"


def _not_finite(raw: Tensor, cast: Tensor) -> str | None:
    if torch.isfinite(cast).all():
        return None
    if torch.isfinite(raw).all():
        return f"its numbers, scaled, are too large for {str(cast.dtype).removeprefix('torch.')}"
    return "holds NaN or Inf"
