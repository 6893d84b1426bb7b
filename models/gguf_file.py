"""A GGUF file: its metadata and where its tensors lie. What they mean to a network is not known here.

The `gguf` package's own reader makes an array of every token of the vocabulary and takes seconds for it; this one reads
the header in a tenth of a second. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray
from torch import Tensor

from ..core.errors import Unsupported
from ..core.shortage import shortage

VERSIONS = (2, 3)
MOST_DIMS = 4  # of a tensor, as ggml has it
DEEPEST = 4  # arrays within arrays
LEAST_FIELD = 13  # bytes: an empty name, the type, one byte
LEAST_TENSOR = 24  # bytes: an empty name, no dimensions, type, offset
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
LENGTH = struct.Struct("<Q")  # of a string
KINDS = {kind.value: kind for kind in GGMLQuantizationType}
STORED = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor, still packed."""

    shape: tuple[int, ...]  # outermost dimension first
    kind: GGMLQuantizationType
    data: NDArray[np.uint8]  # its bytes, in the file's memory

    def values(self) -> Tensor:
        """Its numbers where they are stored as such, [*shape]; else the packed bytes of each row: uint8 [N, bytes]."""
        if self.kind in STORED:
            return torch.frombuffer(self.data.data, dtype=STORED[self.kind]).view(self.shape)
        return torch.from_numpy(self.data).view(*self.shape[:-1], -1)


class GgufFile:
    """The header of one file, and its tensors by name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.metadata, self.tensors = _Header(
                np.memmap(path, mode="c")
            ).read()  # torch warns of memory that it may not write
        except (struct.error, ValueError, OSError) as error:
            if shortage(error):
                raise
            raise Unsupported(f"{path} is not a whole GGUF file: {error}", param="model") from error


@dataclass(frozen=True, slots=True)
class _Info:
    """What the header says of a tensor."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    at: int  # first byte, from where the tensors begin
    size: int  # bytes


class _Header:
    """Reads forwards through the header; raises ValueError, naming field or tensor, for what cannot be."""

    def __init__(self, data: NDArray[np.uint8]) -> None:
        self._view = data.data
        self._data = data
        self._at = 0
        self._reading = "its first bytes"  # for messages

    def read(self) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
        magic, version = self._take("4sI")
        if magic != b"GGUF" or version not in VERSIONS:
            raise ValueError(
                f"it begins with {magic!r} and version {version}; little-endian files begin with b'GGUF' and version "
                f"{' or '.join(map(str, VERSIONS))}"
            )
        self._reading = "the numbers of tensors and fields"
        num_tensors, num_fields = self._take("QQ")
        self._check_count(num_fields, LEAST_FIELD, "metadata fields")
        metadata = dict(_once(self._field() for _ in range(num_fields)))
        self._check_count(num_tensors, LEAST_TENSOR, "tensors")
        infos = dict(_once((info.name, info) for info in (self._info() for _ in range(num_tensors))))
        alignment = _alignment(metadata)
        start = -(-self._at // alignment) * alignment
        _check_places(infos.values(), alignment, len(self._view) - start)
        return metadata, {name: self._tensor(info, start + info.at) for name, info in infos.items()}

    def _check_count(self, count: int, least: int, what: str) -> None:
        if count * least > len(self._view) - self._at:
            raise ValueError(f"it claims {count} {what} in {len(self._view)} bytes")

    def _take(self, layout: str) -> tuple[Any, ...]:
        try:
            found = struct.unpack_from("<" + layout, self._view, self._at)
        except struct.error:
            raise ValueError(f"it ends within {self._reading}") from None
        self._at += struct.calcsize("<" + layout)
        return found

    def _string(self) -> str:
        try:
            (length,) = LENGTH.unpack_from(self._view, self._at)  # most of a header is strings
        except struct.error:
            raise ValueError(f"it ends within {self._reading}") from None
        start = self._at + LENGTH.size
        self._at = start + length
        if self._at > len(self._view):
            raise ValueError(f"a string of {self._reading} ends at byte {self._at} of {len(self._view)}")
        return bytes(self._view[start : self._at]).decode("utf-8", errors="replace")

    def _field(self) -> tuple[str, Any]:
        name = self._string()
        self._reading = f"field {name}"
        return name, self._value(self._take("I")[0])

    def _value(self, kind: int, depth: int = 0) -> Any:
        if kind == STRING:
            return self._string()
        if kind == ARRAY and depth < DEEPEST:
            inner, length = self._take("IQ")
            self._check_count(length, 1, f"entries of {self._reading}")
            if inner in SCALARS:
                return list(self._take(f"{length}{SCALARS[inner]}"))
            return [self._value(inner, depth + 1) for _ in range(length)]
        if kind not in SCALARS:
            raise ValueError(f"{self._reading} is of the unknown type {kind}")
        return self._take(SCALARS[kind])[0]

    def _info(self) -> _Info:
        name = self._string()
        self._reading = f"the facts of tensor {name}"
        (num_dims,) = self._take("I")
        if not 1 <= num_dims <= MOST_DIMS:
            raise ValueError(f"tensor {name} has {num_dims} dimensions; there are 1 to {MOST_DIMS}")
        shape = self._take(f"{num_dims}Q")[::-1]  # ggml counts the innermost dimension first
        number, at = self._take("IQ")
        if number not in KINDS:
            raise ValueError(f"tensor {name} is of the unknown type {number}")
        kind = KINDS[number]
        block, block_bytes = GGML_QUANT_SIZES[kind]
        if not all(shape) or shape[-1] % block:
            raise ValueError(f"tensor {name} has rows of {shape[-1]}; {kind.name} packs {block} numbers at a time")
        return _Info(name, shape, kind, at, math.prod(shape) // block * block_bytes)

    def _tensor(self, info: _Info, start: int) -> GgufTensor:
        return GgufTensor(info.shape, info.kind, self._data[start : start + info.size])


def _once(pairs: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """The pairs as they come; a name that comes again is refused."""
    seen = set()
    for name, value in pairs:
        if name in seen:
            raise ValueError(f"{name} stands in it twice")
        seen.add(name)
        yield name, value


def _alignment(metadata: Mapping[str, Any]) -> int:
    found = metadata.get("general.alignment", 32)
    if not isinstance(found, int) or found <= 0 or found % 8:
        raise ValueError(f"general.alignment is {found!r}; it is a multiple of 8")
    return found


def _check_places(infos: Iterable[_Info], alignment: int, num_bytes: int) -> None:
    """Tensors lie apart from each other, aligned, and within the file."""
    before, end = "", 0
    for info in sorted(infos, key=lambda info: info.at):
        if info.at % alignment:
            raise ValueError(f"tensor {info.name} begins at byte {info.at}, which {alignment} does not divide")
        if info.at < end:
            raise ValueError(f"tensor {info.name} begins at byte {info.at}, within tensor {before}")
        before, end = info.name, info.at + info.size
        if end > num_bytes:
            raise ValueError(f"tensor {info.name} ends at byte {end} of {num_bytes}: the file is cut short")
