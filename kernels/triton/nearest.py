"""Rounding to few bits inside a kernel, to the last bit as torch does it.

Triton's conversion to e4m3 is wrong in the interpreter, its plain division is approximate on a device, and it has no
rounding half to even; all three are written out here. What is not a number stays so.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def nearest_integer(value):
    """Half to even. Numbers beyond 2 ** 21 become that: no code is so large."""
    value = tl.where(value > 2097152.0, 2097152.0, tl.where(value < -2097152.0, -2097152.0, value))
    return (value + 12582912.0) - 12582912.0  # 1.5 * 2 ** 23: there a float32 has no bits for fractions


@triton.jit
def nearest_e4m3(value):
    """Half to even, clamped to 448: float32 as it came."""
    value = tl.where(value > 448.0, 448.0, tl.where(value < -448.0, -448.0, value))
    bits = value.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)
    subnormal = (value + 24576.0) - 24576.0  # 1.5 * 2 ** 14: there a float32 counts in steps of 2 ** -9
    return tl.where(tl.abs(value) < 0.015625, subnormal, normal)


@triton.jit
def not_zero(scale):
    """A scale of 0, which nothing can be divided by, becomes float32's epsilon."""
    return tl.where(scale == 0.0, 1.1920928955078125e-07, scale)


@triton.jit
def codes_at(value, scale, zero, LOWEST: tl.constexpr, STEPS: tl.constexpr):
    """The integers of `value`, LOWEST .. LOWEST + STEPS, still as float32."""
    codes = nearest_integer(tl.div_rn(value, scale)) + zero
    return tl.minimum(tl.maximum(codes, LOWEST), LOWEST + STEPS)


@triton.jit
def range_of(value, LOWEST: tl.constexpr, STEPS: tl.constexpr, SYMMETRIC: tl.constexpr):
    """The scale and zero point of each row of value[R, C], as compressed-tensors has them: [R, 1] float32 both."""
    low = tl.minimum(tl.min(value, 1, keep_dims=True), 0.0)
    high = tl.maximum(tl.max(value, 1, keep_dims=True), 0.0)
    if SYMMETRIC:
        scale = not_zero(tl.div_rn(tl.maximum(-low, high) * 2.0, STEPS))
        zero = tl.zeros_like(scale)
    else:
        scale = not_zero(tl.div_rn(high - low, STEPS))
        zero = nearest_integer(LOWEST - tl.div_rn(low, scale))
        zero = tl.minimum(tl.maximum(zero, LOWEST), LOWEST + STEPS)
    return scale, zero
