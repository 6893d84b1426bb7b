"""A model's config.json with the defaults of its transformers class, without the class.

transformers reads it once, and what it said is remembered: its config classes import half of torch.distributed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..core.errors import Unsupported
from .remembered import remembered


class Config:
    """The fields as attributes, under their own names and those that the class gives them besides."""

    def __init__(self, fields: Mapping[str, Any], aliases: Mapping[str, str] | None = None) -> None:
        """`aliases`: further name -> field. A dtype is told by its name."""
        self._fields = dict(fields)
        self.__dict__.update(fields)
        self.__dict__.update({name: fields[field] for name, field in (aliases or {}).items() if field in fields})
        dtype = fields.get("dtype")
        if isinstance(dtype, str):
            self.dtype: Any = getattr(torch, dtype)

    def to_dict(self) -> dict[str, Any]:
        """The fields, for a config.json."""
        return dict(self._fields)


def read_config(folder: Path, *, trust_remote_code: bool) -> Any:
    """The config of a model folder; raises Unsupported when transformers cannot read it."""
    if trust_remote_code:  # its code may have changed, and its config may be a class of its own
        return _by_transformers(folder, trust_remote_code)
    content = (folder / "config.json").read_bytes()
    found = remembered("config", [content], lambda: _document(_by_transformers(folder, trust_remote_code)))
    return Config(found["fields"], found["aliases"])


def _by_transformers(folder: Path, trust_remote_code: bool) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except Exception as error:  # transformers and its validators raise whatever they like
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise Unsupported(f"transformers cannot read {folder / 'config.json'}: {first_line}", param="model") from error


def _document(config: Any) -> dict[str, Any]:
    return {"fields": config.to_dict(), "aliases": dict(config.attribute_map)}
