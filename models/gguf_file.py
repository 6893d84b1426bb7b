"""A GGUF file: its metadata and where its tensors lie. What they mean to a network is not known here.

The `gguf` package's own reader makes an array of every token of the vocabulary and takes seconds for it; this one reads
the header in a tenth of a second. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from ..core.errors import Unsupported

VERSIONS = (2, 3)
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
# The gguf package unpacks 16 rows at a time. A matrix's rows are short and the time goes into calls; rows of this many
# bytes take a third of it, longer ones fall out of the cache (2 cores, AVX2, 53M weights: 1.6 s, 0.5 s, 1.2 s).
ROW_BYTES = 10_000


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor, still packed."""

    shape: tuple[int, ...]  # outermost dimension first
    kind: GGMLQuantizationType
    data: NDArray[np.uint8]  # its bytes, in the file's memory

    def unpack(self) -> NDArray[np.float32]:
        """The values, in float32 whatever they are stored in."""
        block_bytes = GGML_QUANT_SIZES[self.kind][1]
        num_blocks = self.data.size // block_bytes
        longest = max(1, min(num_blocks, ROW_BYTES // block_bytes))
        per_row = next(n for n in range(longest, 0, -1) if num_blocks % n == 0)
        try:
            values: NDArray[np.float32] = dequantize(self.data.reshape(-1, per_row * block_bytes), self.kind)
        except NotImplementedError as error:
            raise Unsupported(f"GGUF tensors of type {self.kind.name} cannot be unpacked", param="model") from error
        if not values.flags.writeable:  # float32 tensors are the file's own memory, which torch does not like
            values = values.copy()
        return values.reshape(self.shape)


class GgufFile:
    """The header of one file, and its tensors by name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.metadata, self.tensors = _Header(np.memmap(path, mode="r"), path).read()
        except (struct.error, ValueError) as error:
            raise Unsupported(f"{path} is not a whole GGUF file: {error}", param="model") from error


class _Header:
    """Reads forwards through the header."""

    def __init__(self, data: NDArray[np.uint8], path: Path) -> None:
        self._view = data.data
        self._data = data
        self._path = path
        self._at = 0

    def read(self) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
        magic, version = self._take("4sI")
        if magic != b"GGUF" or version not in VERSIONS:
            raise Unsupported(
                f"{self._path} is no little-endian GGUF file of version {' or '.join(map(str, VERSIONS))}",
                param="model",
            )
        num_tensors, num_fields = self._take("QQ")
        metadata = {self._string(): self._value(self._take("I")[0]) for _ in range(num_fields)}
        infos = [self._tensor_info() for _ in range(num_tensors)]
        start = _aligned(self._at, int(metadata.get("general.alignment", 32)))
        return metadata, {name: self._tensor(shape, kind, start + at) for name, shape, kind, at in infos}

    def _take(self, layout: str) -> tuple[Any, ...]:
        found = struct.unpack_from("<" + layout, self._view, self._at)
        self._at += struct.calcsize("<" + layout)
        return found

    def _string(self) -> str:
        (length,) = struct.unpack_from("<Q", self._view, self._at)
        start = self._at + 8
        self._at = start + length
        if self._at > len(self._view):
            raise ValueError(f"a string ends at byte {self._at} of {len(self._view)}")
        return bytes(self._view[start : self._at]).decode("utf-8", errors="replace")

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            inner, length = self._take("IQ")
            if inner in SCALARS:
                return list(self._take(f"{length}{SCALARS[inner]}"))
            return [self._value(inner) for _ in range(length)]
        if kind not in SCALARS:
            raise ValueError(f"a field of unknown type {kind}")
        return self._take(SCALARS[kind])[0]

    def _tensor_info(self) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int]:
        name = self._string()
        (num_dims,) = self._take("I")
        shape = self._take(f"{num_dims}Q")[::-1]  # ggml counts the innermost dimension first
        kind, at = self._take("IQ")
        return name, shape, GGMLQuantizationType(kind), at

    def _tensor(self, shape: tuple[int, ...], kind: GGMLQuantizationType, start: int) -> GgufTensor:
        block, block_bytes = GGML_QUANT_SIZES[kind]
        end = start + int(np.prod(shape, dtype=np.int64)) // block * block_bytes
        if end > len(self._view):
            raise ValueError(f"its tensors end at byte {end}, the file at {len(self._view)}")
        return GgufTensor(shape, kind, self._data[start:end])


def _aligned(at: int, alignment: int) -> int:
    return -(-at // alignment) * alignment
