// Products of bfloat16 for attention on AVX512_BF16, each in two ways that give the same bits: straight from the cache for few
// queries, from panels for many.
//
// A score is ONE tree: lane i adds up the pairs of dimensions i, i + 16, i + 32, ..., then lanes are added at distance 8, 4,
// 2 and 1. Where keys are read as they lie, the lanes are those of a register; where sixteen keys are transposed, a lane is a
// register of its own, and the additions run on ports that the dot products leave free. A sum of values is ONE chain over
// pairs of positions in rising order.
#pragma once

#include "common.h"

#if defined(__AVX512BF16__)

namespace aril {
namespace {

constexpr int64_t LANES = 16;      // keys of a panel, pairs of a register
constexpr int64_t DIMS = 32;       // dimensions of a step: one register of bf16
constexpr int DIRECT_ROWS = 4;     // queries of a tile that reads the cache
constexpr int SCORE_ROWS = 4;      // of a tile that reads keys from a panel: up to five partial sums of each are alive
constexpr int VALUE_ROWS = 6;      // of a tile that reads values from a panel
constexpr int VALUE_VECTORS = 4;   // of that tile

ARIL_INLINE vf dots(vf sums, vu a, vu b) { return (vf)_mm512_dpbf16_ps((__m512)sums, (__m512bh)a, (__m512bh)b); }

// A value that is made here and now. GCC would begin all sums of a tree first, join them last, and keep them on the stack.
ARIL_INLINE vf now(vf value) {
    asm volatile("" : "+v"(value));
    return value;
}

ARIL_INLINE vu load_dims(const bf16* p) { return (vu)_mm512_loadu_si512(p); }

// Dimensions from `d` on; those past the end are zero.
ARIL_INLINE vu load_dims(const bf16* p, int64_t d, int64_t dim) {
    const uint32_t held = dim - d >= DIMS ? ~0u : (1u << (dim - d)) - 1;
    return (vu)_mm512_maskz_loadu_epi16(held, p + d);
}

ARIL_INLINE vu pair_everywhere(const bf16* p) {
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return (vu)_mm512_set1_epi32(pair);
}

// What will be read next, brought into L2 a line at a time: keys and then values at `at`[t] for each of `count` positions.
class Upcoming {
public:
    Upcoming(const bf16* keys, const bf16* values, const int64_t* at, int64_t count, int64_t dim)
        : line_(keys), values_(values), at_(at), count_(count), dim_(dim) {}

    ARIL_INLINE void step() {
        if (t_ == count_) return;
        prefetch(line_ + at_[t_] + d_);
        if ((d_ += DIMS) < dim_) return;
        d_ = 0;
        if (++t_ == count_ && values_) line_ = values_, values_ = nullptr, t_ = 0;
    }

private:
    const bf16 *line_, *values_;
    const int64_t* at_;
    int64_t count_, dim_, t_ = 0, d_ = 0;
};

// ---- scores straight from the cache

// Lane i of the result: a[i] + a[i + D] where bit D of i is clear, b[i] + b[i - D] where it is set.
template <int D>
ARIL_INLINE vf merged(vf a, vf b) {
    constexpr __mmask16 theirs = D == 8 ? 0xff00 : D == 4 ? 0xf0f0 : D == 2 ? 0xcccc : 0xaaaa;
    const __m512 x = (__m512)a, y = (__m512)b, kept = _mm512_mask_blend_ps(theirs, x, y);
    if constexpr (D == 8) return (vf)kept + (vf)_mm512_shuffle_f32x4(x, y, 0x4e);
    if constexpr (D == 2) return (vf)kept + (vf)_mm512_shuffle_pd((__m512d)x, (__m512d)y, 0x55);
    constexpr int B = 16;  // from b
    const __m512i from = D == 4 ? _mm512_setr_epi32(4, 5, 6, 7, B, B + 1, B + 2, B + 3, 12, 13, 14, 15, B + 8, B + 9, B + 10, B + 11)
                                : _mm512_setr_epi32(1, B, 3, B + 2, 5, B + 4, 7, B + 6, 9, B + 8, 11, B + 10, 13, B + 12, 15, B + 14);
    return (vf)kept + (vf)_mm512_permutex2var_ps(x, from, y);
}

// Sixteen keys' sums, key t in lane t. `lanes(t)` gives a key's lanes before they are added.
template <int D = 1, class Lanes>
ARIL_INLINE vf sum_of_keys(const Lanes& lanes, int t = 0) {
    if constexpr (D == LANES)
        return lanes(t);
    else
        return merged<D>(sum_of_keys<D * 2>(lanes, t), sum_of_keys<D * 2>(lanes, t + D));
}

// Scores of `rows` queries with the sixteen keys at keys + at[..]. STEPS 0: of any dimension.
template <int STEPS>
void direct_scores(int64_t rows, float* scores, int64_t stride, const bf16* q, const bf16* keys, const int64_t* at, int64_t dim,
                   Upcoming& next) {
    const int64_t size = (dim + DIMS - 1) / DIMS * DIMS;
    for (int64_t r = 0; r < rows; r++, q += size, scores += stride) {
        vu query[STEPS + 1];
        for (int j = 0; j < STEPS; j++) query[j] = load_dims(q + j * DIMS);
        store(scores, sum_of_keys([&](int t) ARIL_INLINE_LAMBDA {
                  vf sums = now(vf{});
                  const bf16* key = keys + at[t];
                  next.step();
                  for (int j = 0; j < STEPS; j++) sums = dots(sums, query[j], load_dims(key + j * DIMS));
                  for (int64_t d = 0; STEPS == 0 && d < dim; d += DIMS) sums = dots(sums, load_dims(q + d), load_dims(key, d, dim));
                  return sums;
              }));
    }
}

// ---- scores from panels: [pair of dimensions][16 keys]

ARIL_INLINE void transpose16(bf16* out, vu* r) {
    __m512i a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_epi32((__m512i)r[i], (__m512i)r[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32((__m512i)r[i], (__m512i)r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            b[i + 2 * j] = _mm512_unpacklo_epi64(a[i + j], a[i + j + 2]);
            b[i + 2 * j + 1] = _mm512_unpackhi_epi64(a[i + j], a[i + j + 2]);
        }
    for (int i = 0; i < 4; i++) {  // b[4 g + i], lane l: pair 4 l + i of keys 4 g .. 4 g + 3
        const __m512i low = _mm512_shuffle_i32x4(b[i], b[i + 4], 0x88), high = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0x88);
        const __m512i odd_low = _mm512_shuffle_i32x4(b[i], b[i + 4], 0xdd);
        const __m512i odd_high = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0xdd);
        _mm512_storeu_si512(out + i * DIMS, _mm512_shuffle_i32x4(low, high, 0x88));
        _mm512_storeu_si512(out + (i + 4) * DIMS, _mm512_shuffle_i32x4(odd_low, odd_high, 0x88));
        _mm512_storeu_si512(out + (i + 8) * DIMS, _mm512_shuffle_i32x4(low, high, 0xdd));
        _mm512_storeu_si512(out + (i + 12) * DIMS, _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd));
    }
}

inline void key_panel(bf16* out, const bf16* keys, const int64_t* at, int64_t dim, Upcoming& next) {
    for (int64_t d = 0; d < dim; d += DIMS, out += LANES * DIMS) {
        vu r[LANES];
        for (int t = 0; t < LANES; t++) next.step(), r[t] = load_dims(keys + at[t], d, dim);
        transpose16(out, r);
    }
}

template <int R>
struct Each {  // of R queries
    vf of[R];
};

// `lane(i)` gives lane i of every query's tree.
template <int R, int D = 1, class Lane>
ARIL_INLINE Each<R> sum_of_lanes(const Lane& lane, int i = 0) {
    if constexpr (D == LANES) {
        return lane(i);
    } else {
        Each<R> a = sum_of_lanes<R, D * 2>(lane, i);
        const Each<R> b = sum_of_lanes<R, D * 2>(lane, i + D);
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) a.of[r] = now(a.of[r] + b.of[r]);
        return a;
    }
}

template <int R, int STEPS>
void panel_scores(float* scores, int64_t stride, const bf16* q, const bf16* panel, int64_t steps) {
    const int64_t size = steps * DIMS, count = STEPS ? STEPS : steps;
    const Each<R> sums = sum_of_lanes<R>([&](int i) ARIL_INLINE_LAMBDA {
        Each<R> lane;
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) lane.of[r] = now(vf{});
        for (int64_t j = 0; j < count; j++) {
            const vu keys = load_dims(panel + (i + j * LANES) * DIMS);
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) lane.of[r] = dots(lane.of[r], keys, pair_everywhere(q + r * size + (i + j * LANES) * 2));
        }
        return lane;
    });
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) store(scores + r * stride, sums.of[r]);
}

template <int STEPS, int R = SCORE_ROWS>
ARIL_INLINE void panel_scores_of(int64_t rows, float* scores, int64_t stride, const bf16* q, const bf16* panel, int64_t steps) {
    if constexpr (R > 1)
        if (rows < R) return panel_scores_of<STEPS, R - 1>(rows, scores, stride, q, panel, steps);
    panel_scores<R, STEPS>(scores, stride, q, panel, steps);
}

// ---- sums of values; dimensions 0-3, 8-11, ... of a step and 4-7, 12-15, ... lie in two registers, as unpacking leaves them

ARIL_INLINE vu low_dims(vu a, vu b) { return (vu)_mm512_unpacklo_epi16((__m512i)a, (__m512i)b); }

ARIL_INLINE vu high_dims(vu a, vu b) { return (vu)_mm512_unpackhi_epi16((__m512i)a, (__m512i)b); }

// The two registers of a step as 32 bf16 in order.
ARIL_INLINE void store_dims(bf16* out, vf low, vf high, int64_t held) {
    const __m512i packed = _mm512_packus_epi32((__m512i)(nearest(low) >> 16), (__m512i)(nearest(high) >> 16));
    _mm512_mask_storeu_epi16(out, held >= DIMS ? ~0u : (1u << held) - 1, packed);
}

// sums[R, stride] = weights[R, 2 pairs] times the values at values + at[..], in the dimensions d .. d + 32 STEPS.
template <int R, int STEPS>
void direct_values(float* sums, int64_t stride, const bf16* weights, int64_t weights_stride, int64_t pairs, const bf16* values,
                   const int64_t* at, int64_t d, int64_t dim, Upcoming& next) {
    vf low[R][STEPS] = {}, high[R][STEPS] = {};
    for (int64_t t = 0; t < pairs; t++)
#pragma GCC unroll 2
        for (int j = 0; j < STEPS; j++) {
            next.step(), next.step();
            const vu a = load_dims(values + at[2 * t], d + j * DIMS, dim), b = load_dims(values + at[2 * t + 1], d + j * DIMS, dim);
            const vu lows = low_dims(a, b), highs = high_dims(a, b);
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                const vu weight = pair_everywhere(weights + r * weights_stride + 2 * t);
                low[r][j] = dots(low[r][j], lows, weight), high[r][j] = dots(high[r][j], highs, weight);
            }
        }
#pragma GCC unroll 4  // or the sums are kept in memory all along
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int j = 0; j < STEPS; j++) {
            store(sums + r * stride + d + j * DIMS, low[r][j]);
            store(sums + r * stride + d + j * DIMS + W, high[r][j]);
        }
}

template <int STEPS, int R = DIRECT_ROWS, class... Rest>
ARIL_INLINE void direct_values_of(int64_t rows, Upcoming& next, Rest... rest) {
    if constexpr (R > 1)
        if (rows < R) return direct_values_of<STEPS, R - 1>(rows, next, rest...);
    direct_values<R, STEPS>(rest..., next);
}

// [pair of positions][2 steps vectors]
inline void value_panel(bf16* out, const bf16* values, const int64_t* at, int64_t pairs, int64_t dim, Upcoming& next) {
    for (int64_t t = 0; t < pairs; t++)
        for (int64_t d = 0; d < dim; d += DIMS, out += 2 * DIMS) {
            next.step(), next.step();
            const vu a = load_dims(values + at[2 * t], d, dim), b = load_dims(values + at[2 * t + 1], d, dim);
            const vu low = low_dims(a, b), high = high_dims(a, b);
            memcpy(out, &low, sizeof low), memcpy(out + DIMS, &high, sizeof high);
        }
}

// sums[R, stride] = weights[R, 2 pairs] times V vectors of a panel whose pairs take `step` numbers.
template <int R, int V>
void panel_values(float* sums, int64_t stride, const bf16* weights, int64_t weights_stride, int64_t pairs, const bf16* panel,
                  int64_t step) {
    vf held[R][V] = {};
    for (int64_t t = 0; t < pairs; t++) {
        vu values[V];
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) values[v] = load_dims(panel + t * step + v * DIMS);
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            const vu weight = pair_everywhere(weights + r * weights_stride + 2 * t);
#pragma GCC unroll 4
            for (int v = 0; v < V; v++) held[r][v] = dots(held[r][v], values[v], weight);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) store(sums + r * stride + v * W, held[r][v]);
}

template <int V, int R = VALUE_ROWS, class... Rest>
ARIL_INLINE void panel_values_of(int64_t rows, Rest... rest) {
    if constexpr (R > 1)
        if (rows < R) return panel_values_of<V, R - 1>(rows, rest...);
    panel_values<R, V>(rest...);
}

}  // namespace
}  // namespace aril

#endif
