"""Random blocks of GGUF's types: llama.cpp's Python library can read all of them, but writes only a few."""

from __future__ import annotations

import gguf
import numpy as np
from numpy.typing import NDArray

# Where the float16 numbers of a block stand, and how large each is beside the first: minima centre the weights on zero.
HALVES: dict[str, dict[int, float]] = {
    "Q4_0": {0: 1.0},
    "Q4_1": {0: 1.0, 2: -7.5},
    "Q5_0": {0: 1.0},
    "Q5_1": {0: 1.0, 2: -15.5},
    "Q8_0": {0: 1.0},
    "Q2_K": {80: 1.0, 82: 1.5},
    "Q3_K": {108: 1.0},
    "Q4_K": {0: 1.0, 2: 7.5},
    "Q5_K": {0: 1.0, 2: 15.5},
    "Q6_K": {208: 1.0},
    "IQ4_NL": {0: 1.0},
    "IQ4_XS": {0: 1.0},
}


def random_blocks(kind: str, rows: int, columns: int, seed: int, std: float = 0.1) -> NDArray[np.uint8]:
    """uint8 [rows, bytes of a row]: every bit of the codes and small scales is random, weights are of size `std`."""
    noise = np.random.default_rng(seed)
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    raw = noise.integers(0, 256, (rows, columns // block, size), dtype=np.uint8)
    spread = noise.uniform(0.5, 1.5, (rows, columns // block))
    _put_halves(raw, kind, spread)
    unscaled = dequantised(raw.reshape(rows, -1), kind).std()
    _put_halves(raw, kind, spread * std / unscaled)
    return raw.reshape(rows, -1)


def dequantised(raw: NDArray[np.uint8], kind: str) -> NDArray[np.float32]:
    """What llama.cpp's library takes the rows for: [rows, columns]."""
    found: NDArray[np.float32] = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    return found


def _put_halves(raw: NDArray[np.uint8], kind: str, scales: NDArray[np.float64]) -> None:
    for at, factor in HALVES[kind].items():
        halves = (scales * factor).astype(np.float16)[..., None]
        raw[..., at : at + 2] = halves.view(np.uint8)
