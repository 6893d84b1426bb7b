"""auto-round's own config over GPTQ's or AWQ's layout: which of the two `packing_format` says, modules' own settings
`extra_config`.

Source: auto-round's auto_round/export/export_to_autoround/export.py and inference/{backend,convert_model}.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..base import QuantFormat, Stored
from ._config import Fields, fields_of
from .awq import Awq
from .gptq import Gptq

# What files say, as far as it means a layout. Newer ones have packing_format, older ones backend, with a kernel's name
# behind a colon.
WITHOUT = re.compile(r"^auto_?round(:gptqmodel)?(:(exllamav2|tritonv2|triton))?$")  # zero points as they are
LESS_ONE = re.compile(r"^(auto_?round:)?(auto_)?gptq(:\w+)?$")
AWQ = re.compile(r"^(auto_?round:)?(auto_)?awq(:\w+)?$")
USUAL = "auto_round:auto_gptq"
LITERAL = re.compile(r"[\w.]+")  # a module's path; all else in extra_config is an expression
SETTINGS = ("bits", "group_size", "sym", "data_type", "act_bits")


class AutoRound(QuantFormat):
    """Reads as GPTQ or AWQ."""

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any], stored: Mapping[str, Stored]) -> QuantFormat:
        fields = fields_of(config)
        layout = fields.word("packing_format", fields.word("backend", USUAL)).replace("-", "_")
        if fields.values.get("rotation_config"):
            raise fields.refusal(
                "rotation_config", "asks for rows that are rotated on the way; such files are not read"
            )
        values = {key: value for key, value in fields.values.items() if key not in ("packing_format", "backend")}
        values |= {"desc_act": False, "dynamic": dict(_dynamic(fields)), "meta": {"quantizer": ["auto-round"]}}
        if AWQ.match(layout):
            return Awq(Fields({**values, "version": "gemm"}), stored)
        if LESS_ONE.match(layout) or layout == "auto":
            return Gptq(Fields({**values, "checkpoint_format": "gptq"}), stored)
        if WITHOUT.match(layout):
            return Gptq(Fields({**values, "checkpoint_format": "gptq_v2"}), stored)
        raise fields.refusal(
            "packing_format", f"is {layout!r}; auto_round, auto_round:auto_gptq and auto_round:auto_awq are read"
        )


def _dynamic(fields: Fields) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """`extra_config` as GPTQModel's `dynamic`: modules by their paths come first, then expressions found anywhere."""
    extra = fields.values.get("extra_config") or {}
    if not isinstance(extra, Mapping):
        raise fields.refusal("extra_config", f"is a {type(extra).__name__}; it must be an object")
    for name, settings in sorted(extra.items(), key=lambda item: LITERAL.fullmatch(item[0]) is None):
        if not isinstance(settings, Mapping):
            raise fields.refusal("extra_config", f"{name!r} holds {settings!r}; it must be an object")
        pattern = f"^{re.escape(name)}$" if LITERAL.fullmatch(name) else f".*?(?:{name})"
        bits = settings.get("bits")
        if isinstance(bits, int) and bits >= 16:
            yield f"-:{pattern}", {}
        else:
            yield f"+:{pattern}", {key: settings[key] for key in SETTINGS if key in settings}


EXPORT = AutoRound
