"""The quantization config of GPTQ-like checkpoints: spread over files, spelled by several tools, believed in no word.

A value is looked at before it is used; what two places say of the same thing must be the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...core.errors import Unsupported

FILES = (
    "quantize_config.json",
    "quant_config.json",
)  # beside config.json; the model's opener puts them under these keys
SPELLINGS = {"w_bit": "bits", "q_group_size": "group_size", "format": "checkpoint_format", "method": "quant_method"}
STEERING = (
    "quant_method",
    "bits",
    "group_size",
    "sym",
    "desc_act",
    "checkpoint_format",
    "pack_dtype",
    "dynamic",
    "lm_head",
    "modules_in_block_to_quantize",
    "zero_point",
    "version",
    "modules_to_not_convert",
)


@dataclass(frozen=True, slots=True)
class Fields:
    """Values by their newest names, and where they stand, for messages."""

    values: Mapping[str, Any]
    place: str = "quantization config"

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number; raises Unsupported where there is none, or something else."""
        found = self.values.get(name, default)
        if isinstance(found, bool) or not isinstance(found, int):
            raise self.refusal(name, f"is {'missing' if found is None else repr(found)}; it must be a whole number")
        return found

    def flag(self, name: str) -> bool | None:
        """True, false, or None where nothing is said."""
        found = self.values.get(name)
        if found is not None and not isinstance(found, bool):
            raise self.refusal(name, f"is {found!r}; it must be true or false")
        return found

    def word(self, name: str, default: str) -> str:
        """A word in lower case."""
        found = self.values.get(name, default)
        if not isinstance(found, str):
            raise self.refusal(name, f"is {found!r}; it must be a word")
        return found.lower()

    def names(self, name: str) -> list[str]:
        """A list of strings, which tools also write as a list of lists."""
        return [each for each in self._flat(name, self.values.get(name, [])) if each]

    def changed(self, changes: Mapping[str, Any], place: str) -> Fields:
        """The same but for `changes`, which stand at `place`."""
        return Fields({**self.values, **_spelled(changes, place)}, place)

    def refusal(self, name: str, why: str) -> Unsupported:
        """An error that names the field."""
        return Unsupported(f"{self.place}: {name} {why}", param="model")

    def _flat(self, name: str, found: Any) -> Iterator[str]:
        if isinstance(found, str):
            yield found
        elif isinstance(found, list | tuple):
            for each in found:
                yield from self._flat(name, each)
        else:
            raise self.refusal(name, f"holds {found!r}; it must be a list of names")


def fields_of(config: Mapping[str, Any]) -> Fields:
    """config.json's part and the files beside it in one; raises Unsupported where they contradict each other.

    The order of `dynamic` counts, and config.json is written with its keys sorted: the other file's is taken.
    """
    found = _spelled({name: value for name, value in config.items() if name not in FILES}, "config.json")
    for file in FILES:
        if not isinstance(config.get(file), Mapping):
            continue
        beside = _spelled(config[file], file)
        for name in STEERING:
            if name in found and name in beside and _plain(found[name]) != _plain(beside[name]):
                raise Unsupported(
                    f"config.json says {name} {found[name]!r}, {file} says {beside[name]!r}: they must agree",
                    param="model",
                )
        found = {**beside, **found, **({"dynamic": beside["dynamic"]} if "dynamic" in beside else {})}
    return Fields(found)


def _spelled(config: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Newest names, nulls left out."""
    found: dict[str, Any] = {}
    for written, value in config.items():
        name = SPELLINGS.get(written, written)
        if value is None:
            continue
        if name in found and _plain(found[name]) != _plain(value):
            raise Unsupported(f"{place}: {written} {value!r} contradicts {name} {found[name]!r}", param="model")
        found[name] = value
    return found


def _plain(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value
