"""GPTQ and AWQ checkpoints written on the spot, bit by bit; what their weights are is known from the codes, unread.

Packing is done here by the bits of the values and by where each format puts them, not as Aril unpacks.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from aril.quant.base import LinearShape, QuantFormat, Stored
from aril.quant.matrix import Matrix
from safetensors.torch import load_file, save_file
from torch import Tensor

MODULE = "model.layers.0.mlp.down_proj"  # whom a matrix alone is taken for
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Codes:
    """A matrix as integers: values [N, K], zeros and scales [G, N], and the group of each input, index [K]."""

    bits: int
    values: Tensor
    zeros: Tensor
    scales: Tensor
    index: Tensor

    def dense(self) -> Tensor:
        """What they mean: [N, K] float32."""
        zeros, scales = (each.float()[self.index].t() for each in (self.zeros, self.scales))
        return scales * (self.values.float() - zeros)


def groups_of(inputs: int, group: int, act_order: bool = False, seed: int = 0) -> Tensor:
    """The group of each input: one after the other, or in act order (shuffled); -1 = one group."""
    index = torch.arange(inputs) // (inputs if group == -1 else group)
    return index[torch.randperm(inputs, generator=torch.Generator().manual_seed(seed))] if act_order else index


def some_codes(n: int, bits: int, index: Tensor, *, symmetric: bool, lowest: int = 0, seed: int = 0) -> Codes:
    """Random codes; asymmetric zero points are at least `lowest`."""
    noise, groups = torch.Generator().manual_seed(seed), int(index.max()) + 1
    values = torch.randint(1 << bits, (n, len(index)), generator=noise)
    zeros = torch.randint(lowest, 1 << bits, (groups, n), generator=noise)
    scales = (torch.rand(groups, n, generator=noise) + 0.1) / (1 << bits)
    return Codes(bits, values, torch.full_like(zeros, 1 << (bits - 1)) if symmetric else zeros, scales.half(), index)


def rounded(weight: Tensor, bits: int, index: Tensor, *, symmetric: bool, dtype: torch.dtype = torch.float16) -> Codes:
    """The nearest codes of a weight [N, K]."""
    top, groups = (1 << bits) - 1, int(index.max()) + 1
    parts = [weight[:, index == group] for group in range(groups)]
    low = torch.stack([part.amin(1).clamp(max=0) for part in parts])  # [G, N]
    high = torch.stack([part.amax(1).clamp(min=0) for part in parts])
    spread = 2 * torch.maximum(-low, high) if symmetric else high - low
    scales = (spread / top).to(dtype)
    zeros = torch.full(scales.shape, 1 << (bits - 1)) if symmetric else (-low / scales.float()).round().long()
    values = (weight / scales.float()[index].t()).round() + zeros[index].t()
    return Codes(bits, values.clamp(0, top).long(), zeros, scales, index)


def stream(values: Tensor, bits: int) -> Tensor:
    """Rows of values [R, C] as the bits of int32 words [R, C * bits / 32], low bits first."""
    each = (values.numpy()[:, :, None] >> np.arange(bits)) & 1
    packed = np.packbits(each.reshape(len(values), -1).astype(np.uint8), axis=1, bitorder="little")
    return torch.from_numpy(packed.view("<i4").copy())


def gptq_tensors(codes: Codes, *, less_one: bool = True) -> Tensors:
    """What GPTQModel writes; `less_one`: checkpoint_format gptq, else gptq_v2."""
    return {
        "qweight": stream(codes.values, codes.bits).t().contiguous(),
        "qzeros": _less_one(codes.zeros, codes.bits) if less_one else stream(codes.zeros, codes.bits),
        "scales": codes.scales,
        "g_idx": codes.index.int(),
    }


def values_of(words: Tensor, bits: int) -> Tensor:
    """What `stream` packed."""
    each = np.unpackbits(words.numpy().copy().view(np.uint8), axis=1, bitorder="little")
    return torch.from_numpy(each.reshape(len(words), -1, bits) @ (1 << np.arange(bits)))


def read_by_hand(folder: Path) -> Tensors:
    """The weights of a GPTQ or AWQ (gemm) checkpoint by module path, float32."""
    tensors = {name: each for file in folder.glob("*model*.safetensors") for name, each in load_file(file).items()}
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    read = _awq_by_hand if config["quant_method"] == "awq" else _gptq_by_hand
    names = [name.removesuffix(".qweight") for name in tensors if name.endswith(".qweight")]
    return {
        name: read({kind: tensors.get(f"{name}.{kind}") for kind in ("qweight", "qzeros", "scales", "g_idx")}, config)
        for name in names
    }


def _gptq_by_hand(found: Mapping[str, Any], config: Mapping[str, Any]) -> Tensor:
    bits = 32 * len(found["qweight"]) // len(found["g_idx"])
    zeros = values_of(found["qzeros"], bits)
    if config.get("checkpoint_format") != "gptq_v2":
        zeros = (zeros + 1) % (1 << bits)
    values = values_of(found["qweight"].t().contiguous(), bits)
    return Codes(bits, values, zeros, found["scales"], found["g_idx"].long()).dense()


def _awq_by_hand(found: Mapping[str, Any], config: Mapping[str, Any]) -> Tensor:
    back = torch.tensor(AWQ_ORDER).argsort()
    dealt = (values_of(found[kind], 4).unflatten(1, (-1, 8)) for kind in ("qweight", "qzeros"))
    values, zeros = (each[:, :, back].flatten(1) for each in dealt)
    return Codes(4, values.t(), zeros, found["scales"], groups_of(len(values), config["group_size"])).dense()


def _less_one(zeros: Tensor, bits: int) -> Tensor:
    """One less in every field, borrowed through the word; 3 bits each by itself."""
    if bits == 3:
        return stream((zeros - 1) & 7, 3)
    ones = sum(1 << at for at in range(0, 32, bits))
    return torch.from_numpy((stream(zeros, bits).numpy().astype(np.int64) - ones).astype(np.uint32).view(np.int32))


def awq_tensors(codes: Codes, layout: str) -> Tensors:
    """What AutoAWQ writes."""
    if layout == "gemm":
        qweight, qzeros = (stream(_dealt(each), 4) for each in (codes.values.t(), codes.zeros))
        return {"qweight": qweight, "qzeros": qzeros, "scales": codes.scales}
    zeros, scales = _padded(codes.zeros, codes), _padded(codes.scales, codes)
    if layout == "gemv":
        return {"qweight": stream(codes.values, 4), "qzeros": stream(zeros.t(), 4), "scales": scales.t().contiguous()}
    minus = -(scales.float() * zeros.float())
    return {"qweight": _interleaved(codes.values), "qzeros": minus.half(), "scales": scales}


def _dealt(rows: Tensor) -> Tensor:
    return rows.unflatten(1, (-1, 8))[:, :, AWQ_ORDER].flatten(1)


def _padded(numbers: Tensor, codes: Codes) -> Tensor:
    """Rows of groups [G, N] filled up with zeros to what gemv's kernels read at once."""
    size = codes.values.shape[1] // len(numbers)
    unit = 8 * (1 if size >= 128 else 2 if size >= 64 else 4)
    return torch.nn.functional.pad(numbers, (0, 0, 0, -len(numbers) % unit))


def _interleaved(values: Tensor) -> Tensor:
    """gemv_fast's int16 [N / 4, K]: where each value goes, one by one."""
    n, k = values.shape
    row, at = np.indices((n, k))
    a, b, c = at % 32 // 8, at % 8 // 2, at % 2
    moved = at // 32 * 32 + 8 * b + 4 * c + a
    in_block = row % 4 * 64 + moved % 64
    words = np.zeros((n // 4, k), dtype=np.uint16)
    spots = row // 4, moved // 64 * 64 + in_block // 4
    np.bitwise_or.at(words, spots, (values.numpy() << (4 * (in_block % 4))).astype(np.uint16))
    return torch.from_numpy(words.view(np.int16))


def make_quantised(
    folder: Path,
    base: Path,
    config: Mapping[str, Any] | None,
    pack: Callable[[str, Tensor], tuple[Tensors, Tensor] | None],
    **beside: Mapping[str, Any],
) -> Tensors:
    """Write the model in `base` with its matrices packed, and return what those mean, by module path.

    `pack` is asked for every matrix but the embedding: its tensors and what they mean, or None to leave it alone.
    `config` goes into config.json; `beside` are files of their own: quantize_config={...}.
    """
    shutil.copytree(base, folder, dirs_exist_ok=True)
    tensors, dense = load_file(base / "model.safetensors"), {}
    for name in [name for name, each in tensors.items() if each.dim() == 2 and "embed_tokens" not in name]:
        module = name.removesuffix(".weight")
        packed = pack(module, tensors[name])
        if packed is not None:
            del tensors[name]
            tensors |= {f"{module}.{kind}": each.contiguous() for kind, each in packed[0].items()}
            dense[module] = packed[1]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    written = json.loads((folder / "config.json").read_text())
    if config is not None:
        (folder / "config.json").write_text(json.dumps({**written, "quantization_config": dict(config)}))
    for file, content in beside.items():
        (folder / f"{file}.json").write_text(json.dumps(content))
    return dense


def read_matrix(format_: type[QuantFormat], config: Mapping[str, Any], tensors: Tensors, codes: Codes) -> Matrix:
    """The matrix that a format makes of `tensors` and its config, which must ask for all of them in their shapes."""
    n, k = codes.values.shape
    stored = {f"{MODULE}.{name}": Stored(tuple(each.shape), each.dtype) for name, each in tensors.items()}
    shape = LinearShape(k, n, torch.float32)
    method = format_.from_checkpoint(config, stored).linear(MODULE, shape)
    for name, spec in method.tensors(shape).items():
        assert tuple(tensors[name].shape) == spec.shape, name
        assert tensors[name].dtype in spec.dtypes, name
    return method.read({name: tensors[name] for name in method.tensors(shape)}, shape)
