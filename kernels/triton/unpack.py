"""How words become numbers inside a kernel: fields of the layout `runs`, and the scales of their groups.

Between the words' load and the matrix unit lie only element-wise operations on loaded values and constants: then the
compiler moves the words once, into the registers that the unit wants, and unpacks them there. A scalar argument among
them would send every unpacked tile through shared memory.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def code_of(low, high, AT: tl.constexpr, TO: tl.constexpr, FROM: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr):
    """Field AT of the planes, as a code whose lowest bit is bit TO; that of the low plane is TO + FROM."""
    code = (low >> FROM) & (((1 << LOW) - 1) << TO)
    if HIGH:
        SHIFT: tl.constexpr = AT * HIGH - (TO + LOW)
        MASK: tl.constexpr = ((1 << HIGH) - 1) << (TO + LOW)
        if SHIFT > 0:
            code |= (high >> SHIFT) & MASK
        else:
            code |= (high << -SHIFT) & MASK
    return code


@triton.jit
def values_of(low, high, zero, table, AT: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, VALUES: tl.constexpr):
    """What the codes in field AT stand for, less the zero point, exactly: float32."""
    FIRST: tl.constexpr = AT * LOW  # bit of the low plane's word
    if VALUES == "e4m3":
        # The byte's sign becomes the float's, its exponent and mantissa the float's lowest exponent bits and highest
        # mantissa bits; 2 ** 120 is between the biases, and makes normal numbers of subnormal ones.
        bits = ((low << (24 - FIRST)) >> 4) & -0x78100000
        return bits.to(tl.float32, bitcast=True) * 1.329227995784916e36 - zero
    if VALUES == "table":
        return tl.load(table + code_of(low, high, AT, 0, FIRST, LOW, HIGH)).to(tl.float32) - zero
    # A code that is put into a float's mantissa, from bit TO on, adds itself to 2 ** (23 - TO).
    FROM: tl.constexpr = 16 if FIRST + LOW + HIGH > 23 else 0
    TO: tl.constexpr = FIRST - FROM
    code = code_of(low, high, AT, TO, FROM, LOW, HIGH) | ((150 - TO) << 23)
    return code.to(tl.float32, bitcast=True) - (zero + 2.0 ** (23 - TO))


@triton.jit
def numbers_of(fine, coarse, g, n, inside, n_size, SPAN: tl.constexpr):
    """The scales or minima of group g; a SPAN of 0 means one level."""
    found = tl.load(fine + g * n_size + n, mask=inside, other=0.0).to(tl.float32)
    if SPAN:
        found *= tl.load(coarse + g // SPAN * n_size + n, mask=inside, other=0.0).to(tl.float32)
    return found


@triton.jit
def zeros_of(zeros, g, n, inside, n_size, ZERO: tl.constexpr):
    """The zero points of group g; a ZERO that is not None is that of all."""
    if ZERO is None:
        return tl.load(zeros + g * n_size + n, mask=inside, other=0).to(tl.float32)[:, None]
    else:  # or both ways would be compiled
        return tl.full((1, 1), ZERO, tl.float32)
