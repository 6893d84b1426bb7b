"""Registers the packing and unpacking of csrc/fields.cpp: at memory speed, for loading is little else."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops.fields import pack_fields, unpack_fields
from .build import INT, POINTER, function

_unpack_rows = function("aril_unpack_rows", POINTER, POINTER, *[INT] * 6)
_unpack_columns = function("aril_unpack_columns", POINTER, POINTER, *[INT] * 5)
_pack_rows = function("aril_pack_rows", POINTER, POINTER, *[INT] * 6)


@unpack_fields.impl("native", when=lambda words, bits, count: words.is_cpu, needs="words on the CPU")
def unpack_fields_native(words: Tensor, bits: int, count: int) -> Tensor:
    """What comes from the columns of a matrix stays there: the result lies as the words lay."""
    threads = torch.get_num_threads()
    if words.stride(0) == 1 and words.stride(1) != 1:
        columns = torch.empty(count, len(words), dtype=torch.uint8)
        _unpack_columns(columns.data_ptr(), words.data_ptr(), len(words), count, words.stride(1), bits, threads)
        return columns.t()
    words = words if words.stride(1) == 1 else words.contiguous()
    rows, size = words.shape
    out = torch.empty(rows, count, dtype=torch.uint8)
    _unpack_rows(out.data_ptr(), words.data_ptr(), rows, count, size, words.stride(0), bits, threads)
    return out


@pack_fields.impl("native", when=lambda codes, bits: codes.is_cpu, needs="codes on the CPU")
def pack_fields_native(codes: Tensor, bits: int) -> Tensor:
    """Reads the codes where they lie."""
    rows, count = codes.shape
    words = torch.empty(rows, -(-count * bits // 32), dtype=torch.int32)
    _pack_rows(words.data_ptr(), codes.data_ptr(), rows, count, *codes.stride(), bits, torch.get_num_threads())
    return words
