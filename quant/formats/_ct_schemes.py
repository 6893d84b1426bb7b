"""The schemes of a compressed-tensors config: how the modules of a config group are stored, checked field by field.

Source: compressed-tensors, quantization/quant_args.py, quant_scheme.py and compressors/format.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...core.errors import Unsupported
from ..activations import ToE4M3, ToIntegers
from ._blocks import Blocks
from ._inputs import UNTOUCHED, Calibrated, Inputs, Ruled
from ._microscaling import NvInputs, ToMicroscaled

PACKED, UNPACKED = "pack-quantized", ("int-quantized", "float-quantized", "naive-quantized")
NVFP4, MXFP4, MXFP8 = "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized"
LAYOUTS = (PACKED, *UNPACKED, NVFP4, MXFP4, MXFP8)
INFERRED = (None, "mixed-precision", "dense", "fakequant")  # of a whole model: no layout of a group
EXPONENT = "torch.uint8"  # the scale_dtype of microscaling
IN_GROUP_ORDER = ("group", "dynamic")  # the act orders that write a group for each input


@dataclass(frozen=True, slots=True)
class Args:
    """One QuantizationArgs, at the path `field` of the config."""

    field: str
    bits: int
    kind: str  # int or float
    symmetric: bool
    strategy: str
    group: int | None
    block: tuple[int, int] | None
    dynamic: bool | str
    ordered: bool
    exponents: bool  # scales are powers of 2

    def refused(self, what: str, there_are: str) -> Unsupported:
        return Unsupported(f"quantization_config.{self.field}: {what}; Aril reads {there_are}", param="model")


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the modules of one config group are stored."""

    layout: str
    weights: Args
    blocks: Blocks
    inputs: Inputs


def scheme_of(field: str, raw: Mapping[str, Any], of_all: Any) -> Scheme | None:
    """The scheme of a config group; None when it quantises nothing. `of_all`: the format that the config names for all.

    Raises Unsupported, naming the field, for what cannot be read.
    """
    if raw.get("output_activations"):
        raise _refused(f"{field}.output_activations", "outputs that are quantised", "weights and input_activations")
    if not raw.get("weights"):
        if raw.get("input_activations"):
            raise _refused(f"{field}.weights", "input_activations without weights", "weights, with or without inputs")
        return None
    weights = args_of(f"{field}.weights", raw["weights"])
    inputs = args_of(f"{field}.input_activations", raw["input_activations"]) if raw.get("input_activations") else None
    layout = raw.get("format") or of_all
    if layout in INFERRED:
        layout = _inferred(weights, inputs)
    if layout not in LAYOUTS:
        raise _refused(f"{field}.format" if raw.get("format") else "format", repr(layout), ", ".join(LAYOUTS))
    _check_weights(weights, layout)
    return Scheme(layout, weights, _blocks(weights), UNTOUCHED if inputs is None else _inputs(inputs))


def args_of(field: str, raw: Any) -> Args:
    """QuantizationArgs as the config has them, with what is left out filled in."""
    if not isinstance(raw, Mapping):
        raise _refused(field, repr(raw), "an object of num_bits, type, strategy, ...")
    group, block, bits = raw.get("group_size"), raw.get("block_structure"), raw.get("num_bits", 8)
    if type(bits) is not int or type(group) not in (int, type(None)):
        raise _refused(field, f"num_bits {bits!r} and group_size {group!r}", "whole numbers")
    if isinstance(block, str):
        block = [int(part) if part.isdigit() else 0 for part in block.split("x")]
    if block is not None and not (isinstance(block, list) and len(block) == 2 and all(_is_count(n) for n in block)):
        raise _refused(f"{field}.block_structure", repr(raw["block_structure"]), "[rows, columns]")
    order = raw.get("actorder")
    return Args(
        field,
        bits,
        str(raw.get("type") or "int").lower(),
        raw.get("symmetric", True) is not False,
        str(raw.get("strategy") or _strategy(group)).lower(),
        None if group is None or group < 1 else group,
        (block[0], block[1]) if block else None,
        raw.get("dynamic") or False,
        order is True or str(order).lower() in IN_GROUP_ORDER,
        raw.get("scale_dtype") == EXPONENT,
    )


def _is_count(number: object) -> bool:
    return type(number) is int and number > 0


def _strategy(group: int | None) -> str:
    if group is None:
        return "tensor"
    return "channel" if group == -1 else "group"


def _inferred(weights: Args, inputs: Args | None) -> str:
    """What the tool would have written, most particular first."""
    if weights.kind == "float" and weights.bits == 4:
        return MXFP4 if weights.group == 32 else NVFP4
    if weights.kind == "float":
        return MXFP8 if weights.exponents else "naive-quantized" if inputs is None else "float-quantized"
    return PACKED if inputs is None else "int-quantized"


def _check_weights(args: Args, layout: str) -> None:
    stored = (args.kind, args.bits, args.group)
    expected: tuple[str, int, int | None]
    if args.dynamic:
        raise args.refused("weights that are quantised as they are used", "dynamic false")
    if layout in (NVFP4, MXFP4):
        expected = ("float", 4, 16 if layout == NVFP4 else 32)
    elif layout == MXFP8:
        expected = ("float", 8, 32)
    elif args.kind == "float":
        expected = ("float", 8, args.group)
    else:
        expected = ("int", min(max(args.bits, 2), 8), args.group)
    misplaced = (layout, args.kind) in ((PACKED, "float"), ("float-quantized", "int"))
    if stored != expected or misplaced or (args.strategy == "tensor_group") != (layout == NVFP4):
        what = f"{args.bits}-bit {args.kind} weights, group_size {args.group}, in format {layout}"
        raise args.refused(what, "int weights of 2 to 8 bits, float ones of 8, and of 4 in nvfp4 and mxfp4")
    if args.kind == "float" and not args.symmetric:
        raise args.refused("asymmetric float weights", "symmetric ones")
    if args.exponents and layout not in (MXFP4, MXFP8):
        raise args.refused(f"scale_dtype uint8 in format {layout}", f"it in {MXFP4} and {MXFP8}")


def _blocks(args: Args) -> Blocks:
    if args.strategy in ("group", "tensor_group") and args.group is not None:
        return Blocks(1, args.group)
    if args.strategy == "block" and args.block is not None:
        return Blocks(*args.block)
    if args.strategy in ("channel", "tensor"):
        return Blocks(rows=1) if args.strategy == "channel" else Blocks()
    strategies = "tensor, channel, group (with group_size) and block (with block_structure)"
    raise args.refused(f"strategy {args.strategy!r}", strategies)


def _inputs(args: Args) -> Inputs:
    """A row's answer must not depend on its neighbours: where a tool scales a batch, each row has its own scale."""
    found = (_dynamic if args.dynamic else _static)(args)
    if found is None:
        what = f"{args.bits}-bit {args.kind} inputs, strategy {args.strategy}, dynamic {args.dynamic}"
        what += "" if args.symmetric else ", asymmetric"
        there_are = "int8 and fp8 inputs per tensor, and such of each token or group when dynamic; nvfp4, mxfp4, mxfp8"
        raise args.refused(what, there_are)
    return found


def _dynamic(args: Args) -> Inputs | None:
    group = args.group if args.strategy == "group" else None
    grouped = "" if group is None else f" in groups of {group}"
    if args.dynamic == "local":
        is_nvfp4 = (args.kind, args.bits, args.strategy, args.group) == ("float", 4, "tensor_group", 16)
        return NvInputs() if is_nvfp4 else None
    if args.strategy not in ("token", "tensor", "group") or (args.strategy == "group" and group is None):
        return None
    if args.kind == "int" and 2 <= args.bits <= 8:
        words = f"{'' if args.symmetric else 'asymmetric '}int{args.bits} inputs{grouped}"
        return Ruled(words, ToIntegers(args.bits, group, args.symmetric))
    if args.kind != "float" or not args.symmetric:
        return None
    if args.exponents and group == 32 and args.bits in (4, 8):
        return Ruled(f"mxfp{args.bits} inputs", ToMicroscaled(args.bits))
    return Ruled(f"fp8 inputs{grouped}", ToE4M3(group)) if args.bits == 8 and not args.exponents else None


def _static(args: Args) -> Inputs | None:
    if args.strategy != "tensor" or args.bits != 8:
        return None
    if args.kind == "int":
        return Calibrated("int8", zero=None if args.symmetric else "input_zero_point")
    return Calibrated("fp8") if args.symmetric else None


def _refused(field: str, what: str, there_are: str) -> Unsupported:
    return Unsupported(f"quantization_config.{field}: {what}; Aril reads {there_are}", param="model")
