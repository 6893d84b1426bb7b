// The register tile that matmul and attention share: up to MR rows of x times one panel of NR columns.
//
// Every element of the result is ONE chain of fused multiply-adds over k in rising order, whatever the shape around it.
// Cutting k into blocks continues the chain from the stored float32, so a row gives the same bits alone and in any batch.
#pragma once

#include "common.h"

namespace aril {

// One row of a panel as two vectors. A float32 panel holds the columns in order; a bf16 panel holds column i and column
// W + i side by side, so that a shift and a mask make float32 of them.
ARIL_INLINE void load_row(const float* p, vf& low, vf& high) {
    low = load(p);
    high = load(p + W);
}

ARIL_INLINE void load_row(const bf16* p, vf& low, vf& high) { load_pairs(p, low, high); }

ARIL_INLINE void store_row(float* p, vf low, vf high) {
    store(p, low);
    store(p + W, high);
}

ARIL_INLINE void store_row(bf16* p, vf low, vf high) {
    const vu pairs = nearest(low) >> 16 | (nearest(high) & 0xffff0000u);
    memcpy(p, &pairs, sizeof pairs);
}

// What will be read after this panel, to be brought into L2 meanwhile: `step` bytes with each k. Memory then works while
// the tiles compute, instead of before they do (SmolLM2's layers on one core of Zen 3: 16 rows in 24 ms instead of 31).
struct Ahead {
    const char* at;
    int64_t step;
};

template <int M, class T>
void tile(float* c, int64_t c_stride, const float* x, int64_t x_stride, const T* panel, int64_t k, bool onto, Ahead ahead,
          Ahead also) {
    vf low[M], high[M];  // in registers, as long as every loop over them is unrolled
#pragma GCC unroll 12
    for (int m = 0; m < M; m++) {
        low[m] = onto ? load(c + m * c_stride) : vf{};
        high[m] = onto ? load(c + m * c_stride + W) : vf{};
    }
    for (int64_t i = 0; i < k; i++) {
        vf w_low, w_high;
        prefetch(ahead.at + i * ahead.step);
        prefetch(also.at + i * also.step);
        load_row(panel + i * NR, w_low, w_high);
#pragma GCC unroll 12
        for (int m = 0; m < M; m++) {
            const vf value = splat(x[m * x_stride + i]);
            low[m] += value * w_low;
            high[m] += value * w_high;
        }
    }
#pragma GCC unroll 12
    for (int m = 0; m < M; m++) {
        store(c + m * c_stride, low[m]);
        store(c + m * c_stride + W, high[m]);
    }
}

// One row times two panels: the two chains of one would wait for themselves. c has both.
template <class T>
void tile_of_two(float* c, const float* x, const T* first, const T* second, int64_t k, bool onto, const Ahead (&ahead)[2]) {
    vf sums[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) sums[i] = onto ? load(c + i * W) : vf{};
    for (int64_t i = 0; i < k; i++) {
        vf w[4];
        for (const Ahead& one : ahead) prefetch(one.at + i * one.step);
        load_row(first + i * NR, w[0], w[1]);
        load_row(second + i * NR, w[2], w[3]);
        const vf value = splat(x[i]);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) sums[j] += value * w[j];
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) store(c + i * W, sums[i]);
}

template <int M, class T>
ARIL_INLINE void tile_of(int rows, float* c, int64_t c_stride, const float* x, int64_t x_stride, const T* panel, int64_t k,
                         bool onto, Ahead ahead, Ahead also) {
    if constexpr (M > 1)
        if (rows < M) return tile_of<M - 1>(rows, c, c_stride, x, x_stride, panel, k, onto, ahead, also);
    tile<M>(c, c_stride, x, x_stride, panel, k, onto, ahead, also);
}

inline int64_t tiles_of(int64_t rows) { return (rows + MR - 1) / MR; }

// c[rows, NR] = (or continues with) x[rows, k] times the panel; the rows are cut evenly into tiles of at most MR, each of
// which brings its share of `next`.
template <class T>
void panel_product(int64_t rows, float* c, int64_t c_stride, const float* x, int64_t x_stride, const T* panel, int64_t k,
                   bool onto, Ahead next = {nullptr, 0}, Ahead also = {nullptr, 0}) {
    for (Ahead* each : {&next, &also})
        if (!each->at) each->at = reinterpret_cast<const char*>(panel);
    const int64_t tiles = tiles_of(rows);
    const int64_t step = next.step / tiles;
    for (int64_t t = 0; t < tiles; t++) {
        const Range part(rows, t, tiles);
        tile_of<MR>(int(part.end - part.begin), c + part.begin * c_stride, c_stride, x + part.begin * x_stride, x_stride, panel,
                    k, onto, Ahead{next.at + t * k * step, step}, Ahead{also.at + t * k * also.step, also.step});
    }
}

}  // namespace aril
