"""How these kernels multiply tiles: on matrix units in the operands' half type, or exactly in float32."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import INTERPRETED


@triton.jit
def dot(a, b, acc, IN_FLOAT32: tl.constexpr):
    """acc + a @ b with float32 accumulation; `a` is rounded to b's type unless IN_FLOAT32."""
    if IN_FLOAT32:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    return tl.dot(a.to(b.dtype), b, acc)


def in_float32(*dtypes: torch.dtype) -> bool:
    """Whether a product of these types must run in float32.

    Not for one half type on a device; the interpreter, however, takes bfloat16's bits for integers in arithmetic.
    """
    return INTERPRETED or torch.float32 in dtypes or len(set(dtypes)) > 1
