"""Registers csrc/matmul.cpp: plain weights in panels of two vectors, or of pairs for machines that multiply those."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...core import pages
from ...core.log import event, get_logger
from ..ops.activation import silu_mul
from ..ops.matmul import Weight, linear, linear_silu_mul, pack_panels, packer, rows_of
from .build import DTYPES, INT, POINTER, function, library, takes

log = get_logger(__name__)

PANEL_WIDTH: int = library().aril_panel_width()
HAS_PAIRS: bool = bool(library().aril_has_pairs())

_linear = function("aril_linear", POINTER, POINTER, POINTER, *[INT] * 9)
_linear_pairs = function("aril_linear_pairs", POINTER, POINTER, POINTER, *[INT] * 7)
_rows_of = function("aril_rows_of", POINTER, POINTER, POINTER, INT, INT, INT, INT, INT)
_pack_pairs = function("aril_pack_pairs", POINTER, POINTER, INT, INT, INT, INT)
_linear_split = function("aril_linear_split", POINTER, POINTER, POINTER, *[INT] * 8)
_rows_of_split = function("aril_rows_of_split", POINTER, POINTER, POINTER, INT, INT, INT)
_pack_split = function("aril_pack_split", POINTER, POINTER, POINTER, INT, INT, INT, INT)
_split_bytes = library().aril_split_bytes
_split_bytes.argtypes, _split_bytes.restype = (INT,), INT

CAN_SPLIT: bool = _split_bytes(1) > 0


def _size(n: int, k: int, dtype: torch.dtype) -> int | None:
    if dtype not in DTYPES:
        return None
    each = _split_bytes(k) if _splits(k, dtype) else _whole_bytes(k, dtype)
    return -(-n // PANEL_WIDTH) * each


def _whole_bytes(k: int, dtype: torch.dtype) -> int:
    """Of a panel."""
    return PANEL_WIDTH * (k + k % 2 if dtype == torch.bfloat16 and HAS_PAIRS else k) * dtype.itemsize


def _splits(k: int, dtype: torch.dtype) -> bool:
    """Whether panels of k inputs are split: units that are filled up may be more bytes than a few inputs have."""
    return library().splits and dtype == torch.bfloat16 and _split_bytes(k) < _whole_bytes(k, dtype)


@packer("native", _size)
def pack_native(w: Tensor) -> Weight | None:
    """Panels as wide as the machine's register tile."""
    if not takes(w):
        return None
    return (split_of(w) if _splits(w.shape[1], w.dtype) else None) or whole(w)


def whole(w: Tensor) -> Weight:
    """In all of its bytes."""
    if HAS_PAIRS and w.dtype == torch.bfloat16:
        return pairs_of(w)
    weight = pack_panels(w, PANEL_WIDTH)
    return replace(weight, data=pages.moved(weight.data))


def pairs_of(w: Tensor) -> Weight:
    """What ops.matmul.pack_pairs makes, as fast as memory allows."""
    n, k = w.shape
    data = pages.zeros((-(-n // PANEL_WIDTH), -(-k // 2), PANEL_WIDTH, 2), w.dtype)
    _pack_pairs(data.data_ptr(), w.data_ptr(), n, k, w.stride(0), torch.get_num_threads())
    return Weight(data, "pairs", n, k)


def split_of(w: Tensor) -> Weight | None:
    """In three quarters of the bytes, for which products of few rows wait. None for what is not bfloat16, for numbers
    that have too little in common or are none, and where the kernels split nothing.
    """
    if not CAN_SPLIT or w.dtype != torch.bfloat16 or not w.numel():
        return None
    n, k = w.shape
    data = pages.zeros((-(-n // PANEL_WIDTH), _split_bytes(k)), torch.uint8)
    fits = torch.zeros(1, dtype=torch.int64)
    _pack_split(data.data_ptr(), fits.data_ptr(), w.data_ptr(), n, k, w.stride(0), torch.get_num_threads())
    if not fits:
        log.info(event("weight_not_split", outputs=n, inputs=k, effect="reads a third more bytes in each step"))
        return None
    return Weight(data, "split", n, k)


def _reads(weight: Weight) -> bool:
    if weight.layout == "split":
        return CAN_SPLIT
    return weight.layout != "rows" and weight.data.shape[2] == PANEL_WIDTH and takes(weight.data)


def _multiplies(x: Tensor, weight: Weight, dtype: torch.dtype | None = None) -> bool:
    if not takes(x) or not _reads(weight) or (dtype or x.dtype) not in DTYPES:
        return False
    if not HAS_PAIRS:
        return weight.layout != "pairs"
    return weight.layout == "panels" or x.dtype == weight.dtype


@linear.impl(
    "native",
    when=_multiplies,
    needs=f"float32 or bfloat16 rows on the CPU (of the weight's type for pairs), a weight in panels of {PANEL_WIDTH}",
)
def linear_native(x: Tensor, weight: Weight, dtype: torch.dtype | None = None) -> Tensor:
    """Each row's result has the same bits whatever shares the call."""
    return _product(x, weight, dtype or x.dtype, parts=1)


@linear_silu_mul.impl("native", when=_multiplies, needs="what linear needs")
def linear_silu_mul_native(x: Tensor, weight: Weight) -> Tensor:
    """The sums of a gate's panel and of its partner's meet before either is written."""
    if weight.n % (2 * PANEL_WIDTH):
        return silu_mul(linear(x, weight))
    return _product(x, weight, x.dtype, parts=2)


def _product(x: Tensor, weight: Weight, dtype: torch.dtype, *, parts: int) -> Tensor:
    out = x.new_empty(x.shape[0], weight.n // parts, dtype=dtype)
    pointers = out.data_ptr(), x.data_ptr(), weight.data.data_ptr()
    shape, last = (*out.shape, weight.k, x.stride(0)), (DTYPES[dtype], parts, torch.get_num_threads())
    if weight.layout == "split":
        _linear_split(*pointers, *shape, DTYPES[x.dtype], *last)
    elif weight.layout == "pairs":
        _linear_pairs(*pointers, *shape, *last)
    else:
        _linear(*pointers, *shape, DTYPES[x.dtype], DTYPES[weight.dtype], *last)
    return out


@rows_of.impl(
    "native",
    when=lambda weight, ids: _reads(weight),
    needs=f"a weight in panels of {PANEL_WIDTH}",
)
def rows_of_native(weight: Weight, ids: Tensor) -> Tensor:
    """Copies of numbers that stand a panel's width apart."""
    ids = ids.contiguous()
    out = weight.data.new_empty(len(ids), weight.k, dtype=weight.dtype)
    pointers = out.data_ptr(), weight.data.data_ptr(), ids.data_ptr()
    if weight.layout == "split":
        _rows_of_split(*pointers, len(ids), weight.k, torch.get_num_threads())
        return out
    _rows_of(*pointers, len(ids), weight.k, DTYPES[weight.dtype], weight.layout == "pairs", torch.get_num_threads())
    return out
