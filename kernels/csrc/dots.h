// The register tile of bfloat16 where the machine has dot products of pairs (AVX512_BF16): up to MR rows of x times one panel
// [pairs][NR][2] of a weight, a lane of 32 bits holding two inputs of one output.
//
// Every element of the result is ONE chain of such dot products over the pairs in rising order, as in tile.h: cutting k into
// blocks continues the chain from the stored float32. An odd k is filled up with a zero on both sides.
#pragma once

#include "tile.h"

#if defined(__AVX512BF16__)

namespace aril {

// Rows of a tile where there must be several: the pointers to 12 do not fit the registers (one core of Zen 4: 210 GFLOP/s
// instead of 227), which costs less than reading a panel twice.
constexpr int DOTS = 8;
constexpr int64_t LINE = 64;
constexpr int64_t NEAR = 4096;  // bytes that memory runs ahead when a panel passes only once

ARIL_INLINE vf dot_pairs(vf sums, vf w, vf x) { return (vf)_mm512_dpbf16_ps((__m512)sums, (__m512bh)w, (__m512bh)x); }

// The pair of inputs at p in every lane.
ARIL_INLINE vf splat_pair(const bf16* p) {
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return (vf)_mm512_set1_epi32(pair);
}

ARIL_INLINE vf load_lanes(const bf16* p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

template <int M>
void dots_tile(float* c, int64_t c_stride, const bf16* x, int64_t x_stride, const bf16* panel, int64_t pairs, bool onto,
               Ahead ahead) {
    vf low[M], high[M];  // in registers, as long as every loop over them is unrolled
#pragma GCC unroll 12
    for (int m = 0; m < M; m++) {
        low[m] = onto ? load(c + m * c_stride) : vf{};
        high[m] = onto ? load(c + m * c_stride + W) : vf{};
    }
    for (int64_t i = 0; i < pairs; i++) {
        prefetch(ahead.at + i * ahead.step);
        prefetch(ahead.at + i * ahead.step + LINE);
        const vf w_low = load_lanes(panel + i * 2 * NR), w_high = load_lanes(panel + i * 2 * NR + NR);
#pragma GCC unroll 12
        for (int m = 0; m < M; m++) {
            const vf both = splat_pair(x + m * x_stride + 2 * i);
            low[m] = dot_pairs(low[m], w_low, both);
            high[m] = dot_pairs(high[m], w_high, both);
        }
    }
#pragma GCC unroll 12
    for (int m = 0; m < M; m++) {
        store(c + m * c_stride, low[m]);
        store(c + m * c_stride + W, high[m]);
    }
}

template <int M>
ARIL_INLINE void dots_tile_of(int rows, float* c, int64_t c_stride, const bf16* x, int64_t x_stride, const bf16* panel,
                              int64_t pairs, bool onto, Ahead ahead) {
    if constexpr (M > 1)
        if (rows < M) return dots_tile_of<M - 1>(rows, c, c_stride, x, x_stride, panel, pairs, onto, ahead);
    dots_tile<M>(c, c_stride, x, x_stride, panel, pairs, onto, ahead);
}

// c[rows, NR] = (or continues with) x[rows, 2 * pairs] times the panel; more rows than one tile takes are cut evenly into tiles
// of at most DOTS, each of which brings its share of `next`.
inline void panel_dots(int64_t rows, float* c, int64_t c_stride, const bf16* x, int64_t x_stride, const bf16* panel, int64_t pairs,
                       bool onto, Ahead next = {nullptr, 0}) {
    if (!next.at) next.at = reinterpret_cast<const char*>(panel);
    const int64_t tiles = rows <= MR ? 1 : (rows + DOTS - 1) / DOTS;
    const int64_t step = next.step / tiles;
    for (int64_t t = 0; t < tiles; t++) {
        const Range part(rows, t, tiles);
        dots_tile_of<MR>(int(part.end - part.begin), c + part.begin * c_stride, c_stride, x + part.begin * x_stride, x_stride,
                         panel, pairs, onto, Ahead{next.at + t * pairs * step, step});
    }
}

}  // namespace aril

#endif
