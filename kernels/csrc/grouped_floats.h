// Codes that become the float32 W[n, k] in registers and take part in the chains of tile.h: a row gives the bits that the float32
// matrix would give.
#pragma once

#include "bytes.h"
#include "product.h"

namespace aril {
namespace {

constexpr int FUSED = W == 16 ? 8 : 4;  // rows of a tile that reads codes itself
constexpr int64_t FEW = 2 * FUSED;      // rows for which codes are read by such tiles, once by each; for more they become a
constexpr int64_t BLOCK = 160;          // float32 panel of so many k, which stays in L1 beside the rows of x. One core of Cascade
                                        // Lake, 128 x 4096 of 4 bits in L2, 8 rows: 88 us instead of 108; 16: 174 instead of 186
constexpr int64_t GROUPS_READ = 32;     // whose factors are made at once for such tiles
constexpr int WIDE = W == 16 ? 2 : 1;   // panels at once for one row: the two chains of one panel would wait for themselves

struct Shape {
    int64_t k, group;
};

// Where the factors of P panels stand, from the first group of a range on; `stride` from panel to panel.
struct Scaled {
    const float *scales, *offsets;
    int64_t stride;
};

// body(k, w) for each k of the range, where w are the two vectors of each of P panels.
template <int P, class Reader, class Body>
ARIL_INLINE void walk(const Reader* readers, Scaled at, int64_t group, Range ks, Body body) {
    int64_t end = (ks.begin / group + 1) * group;
    for (int64_t k = ks.begin; k < ks.end; end += group, at.scales += NR, at.offsets += NR) {
        vf scale[2 * P], offset[2 * P];
#pragma GCC unroll 8
        for (int i = 0; i < 2 * P; i++) {
            scale[i] = load(at.scales + i / 2 * at.stride + i % 2 * W);
            offset[i] = load(at.offsets + i / 2 * at.stride + i % 2 * W);
        }
        typename Reader::Unit units[P];
        const auto one = [&](int64_t at_k, int j) ARIL_INLINE_LAMBDA {
            vf w[2 * P];
#pragma GCC unroll 2
            for (int p = 0; p < P; p++) readers[p].read(units[p], j, w[2 * p], w[2 * p + 1]);
#pragma GCC unroll 8
            for (int i = 0; i < 2 * P; i++) w[i] = w[i] * scale[i] + offset[i];
            body(at_k, w);
        };
        for (const int64_t last = std::min(end, ks.end); k < last;) {
            if (k % UNIT == 0 && k + UNIT <= last) {
#pragma GCC unroll 2
                for (int p = 0; p < P; p++) readers[p].open_unit(units[p], k), readers[p].fetch(k);
#pragma GCC unroll 8
                for (int j = 0; j < UNIT; j++) one(k + j, j);
                k += UNIT;
            } else {
#pragma GCC unroll 2
                for (int p = 0; p < P; p++) readers[p].open(units[p], k);
                one(k++, 0);
            }
        }
    }
}

template <class Reader>
class Codes {
public:
    using In = float;

    Codes(const void* const* planes, const float* tables, const Factors& factors, const Shape& shape)
        : planes_(planes), tables_(tables), factors_(factors), shape_(shape) {}

    int64_t cuts(int64_t rows) const { return rows <= FEW ? 1 : (shape_.k + BLOCK - 1) / BLOCK; }

    Range block(int64_t cut, int64_t cuts) const {
        const Range ks(shape_.k, cut, cuts);
        return Range(ks.begin / UNIT * UNIT, cut + 1 == cuts ? shape_.k : ks.end / UNIT * UNIT);
    }

    void multiply(int64_t rows, float* sums, int64_t stride, const float* x, int64_t x_stride, Range panels, Range ks,
                  bool onto) const {
        if (rows > FEW) return by_block(rows, sums, stride, x, x_stride, panels, ks, onto);
        int64_t at = panels.begin;
        for (; rows == 1 && at + WIDE <= panels.end; at += WIDE, sums += WIDE * NR) fused<1, WIDE>(sums, stride, x, x_stride, at);
        for (const int64_t tiles = (rows + FUSED - 1) / FUSED; at < panels.end; at++, sums += NR)
            for (int64_t t = 0; t < tiles; t++) {
                const Range part(rows, t, tiles);
                fused_of<FUSED>(part.end - part.begin, sums + part.begin * stride, stride, x + part.begin * x_stride, x_stride, at);
            }
    }

    // Output `id` as ops/grouped.py's dense has it: (value - zero) * scale + min, each rounded; input k at order[k].
    void row(float* to, int64_t id, const int64_t* order) const {
        static thread_local Scratch scratch;
        const int64_t k = shape_.k, all = factors_.groups, panel = id / NR, lane = id % NR;
        float *values = scratch.get((k + 2 * all + 2) * NR), *scales = values + k * NR, *mins = scales + all * NR;
        float *step = mins + all * NR, *shift = step + NR;
        std::fill(step, shift, Reader::LACK.step), std::fill(shift, shift + NR, Reader::LACK.shift);
        widen(values, panel, Range(0, k), k, Scaled{step, shift, 0});
        factors_.two_levels(factors_.scales, scales, panel, 0, all);
        if (factors_.mins.fine) factors_.two_levels(factors_.mins, mins, panel, 0, all);
        for (int64_t i = 0; i < k; i++) {
            const int64_t at = i / shape_.group * NR + lane;
            const float zero = factors_.zeros ? float(factors_.zeros[panel * all * NR + at]) : factors_.zero;
            const float value = unfused((values[i * NR + lane] - zero) * scales[at]);
            to[order ? order[i] : i] = factors_.mins.fine ? value + mins[at] : value;
        }
    }

private:
    Reader reader(int64_t panel) const { return Reader(planes_, tables_, shape_.k, panel); }

    template <int M>
    void fused_of(int64_t rows, float* sums, int64_t stride, const float* x, int64_t x_stride, int64_t panel) const {
        if constexpr (M > 1)
            if (rows < M) return fused_of<M - 1>(rows, sums, stride, x, x_stride, panel);
        fused<M, 1>(sums, stride, x, x_stride, panel);
    }

    // All of k for M rows and P panels; the factors of some groups after the other.
    template <int M, int P>
    void fused(float* sums, int64_t stride, const float* x, int64_t x_stride, int64_t panel) const {
        static thread_local Scratch scratch;
        const int64_t all = factors_.groups, count = std::min(GROUPS_READ, all), each = count * NR;
        float *scales = scratch.get(2 * P * each), *offsets = scales + P * each;
        for (int m = 0; m < M; m++) std::fill(sums + m * stride, sums + m * stride + P * NR, 0.0f);
        for (int64_t first = 0; first < all; first += count) {
            for (int p = 0; p < P; p++)
                factors_.read(scales + p * each, offsets + p * each, panel + p, first, std::min(count, all - first), Reader::LACK);
            const Range ks(first * shape_.group, std::min(shape_.k, (first + count) * shape_.group));
            continued<M, P>(sums, stride, x, x_stride, panel, ks, Scaled{scales, offsets, each});
        }
    }

    template <int M, int P>
    __attribute__((noinline)) void continued(float* sums, int64_t stride, const float* x, int64_t x_stride, int64_t panel, Range ks,
                                             Scaled factors) const {
        const Reader readers[2] = {reader(panel), reader(panel + P - 1)};
        vf c[M][2 * P];
#pragma GCC unroll 8
        for (int m = 0; m < M; m++)
#pragma GCC unroll 8
            for (int i = 0; i < 2 * P; i++) c[m][i] = load(sums + m * stride + i * W);
        walk<P>(readers, factors, shape_.group, ks, [&](int64_t k, const vf* w) ARIL_INLINE_LAMBDA {
#pragma GCC unroll 8
            for (int m = 0; m < M; m++) {
                const vf value = splat(x[m * x_stride + k]);
#pragma GCC unroll 8
                for (int i = 0; i < 2 * P; i++) c[m][i] += value * w[i];
            }
        });
#pragma GCC unroll 8
        for (int m = 0; m < M; m++)
#pragma GCC unroll 8
            for (int i = 0; i < 2 * P; i++) store(sums + m * stride + i * W, c[m][i]);
    }

    // A block of k of each panel becomes float32 once, for all rows.
    void by_block(int64_t rows, float* sums, int64_t stride, const float* x, int64_t x_stride, Range panels, Range ks,
                  bool onto) const {
        static thread_local Scratch scratch;
        const int64_t first = ks.begin / shape_.group, count = (ks.end - 1) / shape_.group + 1 - first;
        const int64_t length = ks.end - ks.begin;
        float *panel = scratch.get((length + 2 * count) * NR), *scales = panel + length * NR, *offsets = scales + count * NR;
        for (int64_t at = panels.begin; at < panels.end; at++, sums += NR) {
            factors_.read(scales, offsets, at, first, count, Reader::LACK);
            widen(panel, at, ks, shape_.group, Scaled{scales, offsets, 0});
            panel_product(rows, sums, stride, x + ks.begin, x_stride, panel, length, onto, {nullptr, 0},
                          bringer.take(length * tiles_of(rows)));
        }
    }

    __attribute__((noinline)) void widen(float* to, int64_t panel, Range ks, int64_t group, Scaled factors) const {
        const Reader it = reader(panel);
        walk<1>(&it, factors, group, ks, [&](int64_t, const vf* w) ARIL_INLINE_LAMBDA {
            store(to, w[0]);
            store(to + W, w[1]);
            to += NR;
        });
    }

    const void* const* const planes_;
    const float* const tables_;
    const Factors& factors_;
    const Shape& shape_;
};

}  // namespace
}  // namespace aril
