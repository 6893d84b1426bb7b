// bfloat16 rows times codes on machines that multiply pairs of bfloat16. With W = value * scale + offset in each group,
//
//     x . W = sum over groups of  scale * (x . values)  +  offset * (sum of x)
//
// where a group of more than PIECE inputs counts as several. The inner product is one chain of sums of pairs, and the pieces are
// added in rising order: every element of the result is the same chain of operations whatever the shape around it.
#pragma once

#include "grouped_tiles.h"

#if defined(ARIL_PAIRS)

namespace aril {

constexpr int64_t ROWS_PAIRED = 96;   // rows of x that stay in L2 while the panels pass by
constexpr int64_t PANELS_PAIRED = 8;  // of one task, whose sums stay in L2
constexpr int64_t GROUPS_PAIRED = 32; // whose factors are made at once
constexpr int64_t FAR = 4096;         // bytes that memory runs ahead of a tile. One core of Zen 4, 4 bits, 1 row: 22.0 GB/s; 1024:
                                      // 20.2; 16384: 20.5. 8 rows: 212 GFLOP/s; 1024: 185
constexpr int64_t TASKS_PAIRED = 4;   // for each thread at least

// sums[M][P * NR] += x times the codes of some units, from the first one of a group on; `group` units are one.
template <int M, int P, class Reader>
__attribute__((noinline)) void paired_tile(float* sums, int64_t stride, const PairedRows& rows, const Reader* readers,
                                           PanelFactors factors, Range units, int64_t group) {
    constexpr int PAIRS = Reader::PAIRS, T = Reader::COUNT;
    constexpr int64_t most = PIECE / (2 * PAIRS);
    const bf16* x = rows.pairs;
    const float* x_sums = rows.sums;
    int64_t group_end = units.begin + group;
    for (int64_t at = units.begin; at < units.end;) {
        const int64_t end = std::min(std::min(at + most, group_end), units.end);
        vf dots[M][2 * P];
#pragma GCC unroll 8
        for (int m = 0; m < M; m++)
#pragma GCC unroll 4
            for (int i = 0; i < 2 * P; i++) dots[m][i] = vf{};
        for (; at < end; at++) {
            typename Reader::Unit unit[P];
#pragma GCC unroll 2
            for (int p = 0; p < P; p++) readers[p].open(unit[p], at), readers[p].fetch(at, FAR);
#pragma GCC unroll 8
            for (int j = 0; j < PAIRS; j++, x += 2) {
                __m512i w[P][T][2];
#pragma GCC unroll 2
                for (int p = 0; p < P; p++) readers[p].read(unit[p], j, w[p]);
#pragma GCC unroll 8
                for (int m = 0; m < M; m++) {
                    const vf pair = splat_pair(x + m * rows.stride);
#pragma GCC unroll 2
                    for (int t = 0; t < T; t++)
#pragma GCC unroll 4
                        for (int i = 0; i < 2 * P; i++) dots[m][i] = dot_pairs(dots[m][i], (vf)w[i / 2][t][i % 2], pair);
                }
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < 2 * P; i++) {
            const vf scale = load(factors.scales + i / 2 * factors.stride + i % 2 * W);
            const vf offset = load(factors.offsets + i / 2 * factors.stride + i % 2 * W);
#pragma GCC unroll 8
            for (int m = 0; m < M; m++) {
                float* to = sums + m * stride + i * W;
                vf sum = fused(dots[m][i], scale, load(to));
                if (x_sums) sum = fused(offset, splat(x_sums[m * rows.sums_stride]), sum);
                store(to, sum);
            }
        }
        if (x_sums) x_sums++;
        if (at == group_end) group_end += group, factors.scales += NR, factors.offsets += NR;
    }
}

template <int M, int P, class Reader>
ARIL_INLINE void paired_tile_of(int64_t count, float* sums, int64_t stride, const PairedRows& rows, const Reader* readers,
                                PanelFactors factors, Range units, int64_t group) {
    if constexpr (M > 1)
        if (count < M) return paired_tile_of<M - 1, P>(count, sums, stride, rows, readers, factors, units, group);
    paired_tile<M, P>(sums, stride, rows, readers, factors, units, group);
}

struct PairedProduct {
    const void* const* planes;
    const PairTables& tables;
    const Factors& factors;
    Lack lack;
    Cut cut;
    int64_t m, n;
    int64_t panels() const { return (n + NR - 1) / NR; }
};

template <class Reader>
class PairedCodes {
public:
    explicit PairedCodes(const PairedProduct& p) : p_(p) {}

    // sums[rows][stride] += x times some panels.
    void multiply(int64_t rows, float* sums, int64_t stride, const PairedRows& x, Range panels) const {
        int64_t at = panels.begin;
        for (; rows == 1 && at + 2 <= panels.end; at += 2, sums += 2 * NR) multiply_by<1, 2>(rows, sums, stride, x, at);
        for (; at < panels.end; at++, sums += NR) multiply_by<DOTS, 1>(rows, sums, stride, x, at);
    }

private:
    static int64_t units(int64_t inputs) { return (inputs + 2 * Reader::PAIRS - 1) / (2 * Reader::PAIRS); }

    Reader reader(int64_t panel) const { return Reader(p_.planes, p_.tables, p_.cut.k, panel); }

    // P panels; the factors of some groups after the other, and all rows in tiles of at most M: what the first brings from
    // memory lies in a cache for the others.
    template <int M, int P>
    void multiply_by(int64_t rows, float* sums, int64_t stride, const PairedRows& x, int64_t panel) const {
        static thread_local Scratch scratch;
        const int64_t all = p_.factors.groups, count = std::min(GROUPS_PAIRED, all), each = count * NR;
        const int64_t tiles = (rows + M - 1) / M, group = units(p_.cut.group);
        float *scales = scratch.get(2 * P * each), *offsets = scales + P * each;
        const Reader readers[2] = {reader(panel), reader(panel + P - 1)};
        for (int64_t first = 0; first < all; first += count) {
            const bool is_last = first + count >= all;
            for (int p = 0; p < P; p++) {
                p_.factors.read(scales + p * each, offsets + p * each, panel + p, first, std::min(count, all - first), p_.lack);
                p_.factors.fetch(panel + p + (is_last ? P : 0), is_last ? 0 : first + count, count);
            }
            const int64_t k = first * p_.cut.group, end = std::min(p_.cut.k, k + count * p_.cut.group);
#if defined(ARIL_TILES)
            if constexpr (Reader::COUNT == 1)
                if (is_tiled<Reader>(p_.cut)) {
                    const PanelFactors some{scales, offsets, each};
                    by_tiles<P>(rows, sums, stride, x.from(0, 0, p_.cut.piece_at(first)), readers, some, Range(k, end), p_.cut.group);
                    continue;
                }
#endif
            for (int64_t t = 0; t < tiles; t++) {
                const Range part(rows, t, tiles);
                paired_tile_of<M, P>(part.end - part.begin, sums + part.begin * stride, stride,
                                     x.from(part.begin, k, p_.cut.piece_at(first)), readers, PanelFactors{scales, offsets, each},
                                     Range(units(k), units(end)), group);
            }
        }
    }

    const PairedProduct& p_;
};

template <class Reader>
void paired_tasks(bf16* out, const PairedRows& x, const PairedProduct& p, int threads) {
    const int64_t down = (p.m + ROWS_PAIRED - 1) / ROWS_PAIRED, panels = p.panels();
    const int64_t across = tasks_of(panels, PANELS_PAIRED, threads, TASKS_PAIRED);
    const PairedCodes<Reader> codes(p);
    share(threads, down * across, [&](int64_t at) {
#if defined(ARIL_TILES)
        const NoTiny rule;
#endif
        const int64_t top = at / across * ROWS_PAIRED, height = std::min(ROWS_PAIRED, p.m - top), stride = PANELS_PAIRED * NR;
        const Range some(panels, at % across, across);
        float sums[ROWS_PAIRED * PANELS_PAIRED * NR];
        std::fill(sums, sums + height * stride, 0.0f);
        codes.multiply(height, sums, stride, x.from(top, 0, 0), some);
        const int64_t column = some.begin * NR, width = std::min(some.end * NR, p.n) - column;
        for (int64_t i = 0; i < height; i++) copy(out + (top + i) * p.n + column, sums + i * stride, width);
    });
}

// Whether groups are whole units of the codes.
template <class Reader>
bool is_paired(const Cut& cut) {
    return cut.group >= cut.k || cut.group % (2 * Reader::PAIRS) == 0;
}

template <class Reader>
void paired_product(bf16* out, const bf16* x, const int64_t* order, const PairedProduct& p, int64_t x_stride, int64_t cores) {
    static thread_local Scratch scratch;
    const int64_t stride = (p.cut.k + 31) / 32 * 32 + 32;  // never a power of two: rows of x must not share one cache set
    const int64_t pieces = p.factors.has_offsets(p.lack) ? p.cut.pieces() : 0;
    float* sums = scratch.get(p.m * (stride / 2 + pieces));
    auto* pairs = reinterpret_cast<bf16*>(sums + p.m * pieces);
    share_ranges(worth(cores, double(p.m) * p.cut.k / W), p.m, [&](Range rows) {
        for (int64_t i = rows.begin; i < rows.end; i++) {
            bf16* row = pairs + i * stride;
            pair_row(row, x + i * x_stride, order, p.cut.k, Reader::HALF);
            if (pieces) sum_pieces(sums + i * pieces, row, p.cut);
        }
    });
    const int threads = worth(cores, double(p.m + 3) * p.n * p.cut.k / (4 * W));  // reading the weight is worth three rows
    paired_tasks<Reader>(out, PairedRows{pairs, pieces ? sums : nullptr, stride, pieces}, p, threads);
}

ARIL_INLINE bf16 bf16_of(float value) {
    bf16 rounded;
    put(&rounded, value);
    return rounded;
}

// What the codes mean as pairs; `lack` becomes what that is short of.
inline PairTables pair_tables(int64_t bits, int64_t values, const float* given, const Factors& factors, Lack& lack) {
    PairTables tables = {};
    if (values == INTEGERS) lack = bits == 8 ? Lack{0.5f, 127.5f} : Lack{1.0f, factors.zeros ? float(1 << (bits - 1)) : factors.zero};
    for (int i = 0; bits < 8 && i < 64; i++) {
        const int code = i & ((1 << bits) - 1);
        const float value = given ? given[code] : float(code) - lack.shift;
        tables.fields[0][i] = bf16_of(value);
        tables.fields[1][i] = bf16_of(value - get(&tables.fields[0][i]));
    }
    for (int i = 0; bits == 8 && i < 128; i++) {
        const float e4m3 = i == 127 ? NAN : i < 8 ? std::ldexp(float(i), -9) : std::ldexp(float(8 + i % 8), i / 8 - 10);
        const bf16 value = bf16_of(values == E4M3 ? e4m3 : float(2 * i + 1));
        tables.low[i] = uint8_t(value), tables.high[i] = uint8_t(value >> 8);
    }
    return tables;
}

// run(Type<the reader of such codes as pairs>)
template <class Run>
void by_pair_reader(int64_t bits, const PairTables& tables, Run run) {
    const bool is_exact = std::all_of(tables.fields[1], tables.fields[1] + 64, [](bf16 rest) { return (rest & 0x7fff) == 0; });
    switch (bits) {
        case 2: return is_exact ? run(Type<FieldPairs<2, 0, 1>>{}) : run(Type<FieldPairs<2, 0, 2>>{});
        case 3: return run(Type<FieldPairs<2, 1, 1>>{});
        case 4: return is_exact ? run(Type<FieldPairs<4, 0, 1>>{}) : run(Type<FieldPairs<4, 0, 2>>{});
        case 5: return run(Type<FieldPairs<4, 1, 1>>{});
        case 6: return run(Type<FieldPairs<4, 2, 1>>{});
        default: return run(Type<BytePairs>{});
    }
}

}  // namespace aril
#endif
