"""`quant_method: compressed-tensors`: what llm-compressor writes, several schemes side by side in one model.

config_groups say which modules are stored how, `ignore` which are not; the layout of each is in _ct_*.py. Source:
compressed-tensors, quantization/quant_config.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...core.errors import Unsupported
from ...core.log import event, get_logger
from ..base import FLOATS, LinearMethod, LinearShape, QuantFormat, Stored
from ._ct_fp4 import Fp4Method
from ._ct_integers import Header, IntegerMethod
from ._ct_schemes import MXFP4, MXFP8, NVFP4, Args, Scheme, args_of, scheme_of
from ._ct_targets import Targets
from ._float8 import EXPONENTS, Float8Method, Scales
from ._kv_scales import kv_scales_in
from .none import PlainMethod

QUANTISED = ("weight_packed", "weight_scale")  # one of them is there wherever a module is quantised

log = get_logger(__name__)


class CompressedTensors(QuantFormat):
    """The modules of a checkpoint by its config groups."""

    def __init__(self, targets: Targets, kv_cache: Args | None, header: Header) -> None:
        self._targets = targets
        self._kv_cache = kv_cache
        self._header = header

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any], stored: Mapping[str, Stored]) -> CompressedTensors:
        _refuse_what_changes_weights(config)
        found = _mapping(config, "config_groups")
        if not found:
            raise Unsupported("quantization_config.config_groups is empty; it says what is quantised", param="model")
        groups = {}
        for name, raw in found.items():
            field = f"config_groups.{name}"
            if not isinstance(raw, Mapping) or not isinstance(raw.get("targets"), list):
                told = f"quantization_config.{field} is {raw!r}; Aril reads an object of targets (a list), weights, ..."
                raise Unsupported(told, param="model")
            groups[name] = ([str(target) for target in raw["targets"]], scheme_of(field, raw, config.get("format")))
        _tell_of_4_bit_floats([scheme for _, scheme in groups.values() if scheme])
        targets = Targets(groups, [str(name) for name in config.get("ignore") or ()])
        return cls(targets, _kv_cache(config), Header(stored, _version(config.get("version"))))

    def linear(self, name: str, shape: LinearShape) -> LinearMethod:
        group, scheme = (None, None) if self._targets.ignores(name) else self._targets.find(name) or (None, None)
        quantised = next((f"{name}.{each}" for each in QUANTISED if self._header.of(f"{name}.{each}")), None)
        if scheme is None:
            if quantised is not None:
                told = f"quantization_config leaves {name} as it is, but the checkpoint holds {quantised}"
                raise Unsupported(told, param="model")
            return PlainMethod(name)
        weight = self._header.of(f"{name}.weight")
        if weight is not None and weight.dtype in FLOATS:
            told = f"config_groups.{group} targets {name}, but {name}.weight is plain ({weight.dtype})"
            raise Unsupported(f"quantization_config.{told}: compress it, or put {name} under ignore", param="model")
        return self._method(name, scheme)

    def kv_scales(self, path: str) -> Mapping[str, str]:
        if self._kv_cache is None:
            return {}
        return kv_scales_in(self._header.stored, path) or {which: f"{path}.{which}_scale" for which in "kv"}

    def _method(self, name: str, scheme: Scheme) -> LinearMethod:
        if scheme.layout in (NVFP4, MXFP4):
            return Fp4Method(name, scheme, self._header.stored)
        if scheme.weights.kind == "int":
            return IntegerMethod(name, scheme, self._header)
        dtypes = EXPONENTS if scheme.layout == MXFP8 else FLOATS
        return Float8Method(name, Scales("weight_scale", scheme.blocks, dtypes), scheme.inputs, self._header.stored)


def _refuse_what_changes_weights(config: Mapping[str, Any]) -> None:
    """Sparsity and transforms, which weights would have to be read through."""
    sparsity = _mapping(config, "sparsity_config")
    if sparsity.get("format") not in (None, "dense"):
        told = f"quantization_config.sparsity_config.format is {sparsity['format']!r}; Aril reads dense weights"
        raise Unsupported(told, param="model")
    transforms = _mapping(_mapping(config, "transform_config"), "config_groups")
    if transforms:
        told = f"quantization_config.transform_config rotates weights and inputs ({', '.join(map(str, transforms))})"
        raise Unsupported(f"{told}; Aril reads checkpoints without it", param="model")


def _mapping(config: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    found = config.get(field) or {}
    if not isinstance(found, Mapping):
        raise Unsupported(f"quantization_config.{field} is {found!r}; Aril reads an object", param="model")
    return found


def _kv_cache(config: Mapping[str, Any]) -> Args | None:
    if not config.get("kv_cache_scheme"):
        return None
    args = args_of("kv_cache_scheme", config["kv_cache_scheme"])
    if (args.kind, args.bits, args.symmetric, args.strategy, args.dynamic) != ("float", 8, True, "tensor", False):
        kind = f"{args.bits}-bit {args.kind}, strategy {args.strategy}, dynamic {args.dynamic}"
        raise args.refused(kind + ("" if args.symmetric else ", asymmetric"), "static symmetric fp8 per tensor")
    return args


def _version(text: object) -> tuple[int, ...] | None:
    found = re.match(r"(\d+)\.(\d+)", text) if isinstance(text, str) else None
    return None if found is None else (int(found[1]), int(found[2]))


def _tell_of_4_bit_floats(schemes: list[Scheme]) -> None:
    for layout in dict.fromkeys(scheme.layout for scheme in schemes if scheme.layout in (NVFP4, MXFP4)):
        log.info(event("float4_weights", format=layout, kept="as codes of 4 bits", multiplied="dequantised"))


EXPORT = CompressedTensors
