"""The header of a safetensors file: its names for types, and in words what is wrong with a broken one.

Reading is the safetensors library's, which refuses every broken header but seldom says which tensor is at fault.
Format: https://huggingface.co/docs/safetensors/index#format
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

DTYPES: Mapping[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}
PACKED_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}  # types below a byte, for which torch has no name of one value
LONGEST = 100_000_000  # bytes of a header, as the library has it
FIELDS = ("dtype", "shape", "data_offsets")
SIZE = struct.Struct("<Q")


def fault_of(path: Path) -> str | None:
    """The first thing that is wrong with the file's header, naming the tensor; None when this finds nothing."""
    try:
        with path.open("rb") as file:
            num_bytes = path.stat().st_size
            start = file.read(SIZE.size)
            if len(start) < SIZE.size:
                return f"it has {num_bytes} bytes, and the length of its header alone takes {SIZE.size}"
            (length,) = SIZE.unpack(start)
            if length > min(LONGEST, num_bytes - SIZE.size):
                return f"its header would take {length} bytes of a file of {num_bytes} (at most {LONGEST})"
            return _fault(file.read(length), num_bytes - SIZE.size - length)
    except OSError as error:
        return error.strerror or type(error).__name__


def _fault(header: bytes, num_bytes: int) -> str | None:
    try:
        document = json.loads(header)
    except (ValueError, RecursionError) as error:
        return f"its header is not JSON: {error}"
    if not isinstance(document, dict):
        return f"its header is a JSON {type(document).__name__}, not an object"
    tensors = {name: facts for name, facts in document.items() if name != "__metadata__"}
    malformed = next(_malformed(tensors), None)
    return malformed or _misplaced(tensors, num_bytes)


def _malformed(tensors: Mapping[str, Any]) -> Iterator[str]:
    """Tensors whose own facts contradict each other."""
    for name, facts in tensors.items():
        kind, shape, offsets = _facts(facts)
        if kind is None or not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
            yield f"tensor {name} lacks dtype, shape or data_offsets, or they are no whole numbers"
        elif kind not in DTYPES and kind not in PACKED_BITS:
            yield f"tensor {name} is of type {kind!r}; there are {', '.join([*DTYPES, *PACKED_BITS])}"
        else:
            bits = PACKED_BITS.get(kind) or 8 * DTYPES[kind].itemsize
            needed, given = math.prod(shape) * bits // 8, offsets[1] - offsets[0]
            if needed != given:
                yield f"tensor {name}, {kind} {shape}, takes {needed} bytes, and its data_offsets are of {given}"


def _misplaced(tensors: Mapping[str, Any], num_bytes: int) -> str | None:
    """Tensors that do not lie one behind the other up to the end of the file."""
    at = 0
    for name, facts in sorted(tensors.items(), key=lambda item: item[1]["data_offsets"]):
        start, end = facts["data_offsets"]
        if start != at:
            return f"tensor {name} begins at byte {start} of the data, where the one before it ends at {at}"
        if end > num_bytes:
            return f"tensor {name} ends at byte {end} of the data, and the file holds {num_bytes}: it is cut short"
        at = end
    return f"its tensors end at byte {at} of the data, and the file holds {num_bytes}" if at != num_bytes else None


def _facts(facts: Any) -> tuple[str | None, list[int], list[int]]:
    """dtype, shape, data_offsets; whatever is no such thing comes out as None or empty."""
    if not isinstance(facts, dict) or not all(key in facts for key in FIELDS):
        return None, [], []
    return str(facts["dtype"]), facts["shape"], facts["data_offsets"]


def _are_counts(numbers: Any) -> bool:
    return isinstance(numbers, list) and all(type(number) is int and number >= 0 for number in numbers)
