// Products with codes on machines with tile registers (amx.h): the codes of a piece of a panel become pairs of bfloat16 in L1,
// once for all rows. One row is met by vectors, in the very chains of sums that the registers make (tile_chains.h): codes come
// from memory no slower than they did.
#pragma once

#include "paired_rows.h"
#include "tile_chains.h"

#if defined(ARIL_TILES) && defined(ARIL_PAIRS)
namespace aril {

constexpr int64_t CODES_AHEAD = 4096;  // bytes that memory runs ahead, as FAR of grouped_pairs.h

// Whether pieces are whole units of the registers.
template <class Reader>
bool is_tiled(const Cut& cut) {
    return Reader::COUNT == 1 && (cut.group >= cut.k || cut.group % TILE_INPUTS == 0);
}

// body(first input, end, group from the first one on) for every piece of some groups.
template <class Body>
ARIL_INLINE void each_piece(Range inputs, int64_t group, Body body) {
    for (int64_t at = inputs.begin, g = 0; at < inputs.end; at += group, g++)
        for (int64_t k = at, end = std::min(inputs.end, at + group); k < end; k += PIECE) body(k, std::min(end, k + PIECE), g);
}

// A row's share of a piece in 16 columns.
ARIL_INLINE void add_piece(float* sums, vf dots, const float* scale, const float* offset, const float* x_sum) {
    vf sum = fused(dots, load(scale), load(sums));
    if (x_sum) sum = fused(load(offset), splat(*x_sum), sum);
    store(sums, sum);
}

// One row times P panels.
template <int P, class Reader>
__attribute__((noinline)) void chained_codes(float* sums, const PairedRows& x, const Reader* readers, PanelFactors factors,
                                             Range inputs, int64_t group) {
    constexpr int64_t STEP = 2 * Reader::PAIRS;
    static thread_local Scratch scratch;
    const int64_t filled = (inputs.end - inputs.begin + STEP - 1) / STEP * STEP;
    float* wide = scratch.get(filled);
    copy(wide, x.pairs + inputs.begin, filled);
    const float* x_sums = x.sums;
    each_piece(inputs, group, [&](int64_t k, int64_t end, int64_t g) ARIL_INLINE_LAMBDA {
        vf dots[2 * P] = {};
        while (k < end) {
            Columns chains[2 * P] = {};
            for (const int64_t last = std::min(end, k + TILE_INPUTS); k < last; k += STEP) {
                typename Reader::Unit unit[P];
#pragma GCC unroll 2
                for (int p = 0; p < P; p++) readers[p].open(unit[p], k / STEP), readers[p].fetch(k / STEP, CODES_AHEAD);
#pragma GCC unroll 8
                for (int j = 0; j < Reader::PAIRS; j++) {
                    __m512i w[P][1][2];
                    const float* pair = wide + (k - inputs.begin) + 2 * j;
#pragma GCC unroll 2
                    for (int p = 0; p < P; p++) readers[p].read(unit[p], j, w[p]);
#pragma GCC unroll 4
                    for (int i = 0; i < 2 * P; i++) {
                        const Columns values = columns_of(w[i / 2][0][i % 2]);
                        chains[i].even = _mm512_fmadd_ps(values.even, _mm512_set1_ps(pair[0]), chains[i].even);
                        chains[i].odd = _mm512_fmadd_ps(values.odd, _mm512_set1_ps(pair[1]), chains[i].odd);
                    }
                }
            }
#pragma GCC unroll 4
            for (int i = 0; i < 2 * P; i++) dots[i] = (vf)_mm512_add_ps((__m512)dots[i], _mm512_add_ps(chains[i].even, chains[i].odd));
        }
#pragma GCC unroll 4
        for (int i = 0; i < 2 * P; i++) {
            const int64_t at = i / 2 * factors.stride + g * NR + i % 2 * W;
            add_piece(sums + i * W, dots[i], factors.scales + at, factors.offsets + at, x_sums);
        }
        if (x_sums) x_sums++;
    });
}

// to[pairs][NR][2], with zeros up to a whole unit of the registers.
template <class Reader>
ARIL_INLINE void read_pairs(bf16* to, const Reader& reader, Range inputs) {
    constexpr int64_t STEP = 2 * Reader::PAIRS;
    int64_t k = inputs.begin;
    for (; k < inputs.end; k += STEP) {
        typename Reader::Unit unit;
        reader.open(unit, k / STEP), reader.fetch(k / STEP, CODES_AHEAD);
#pragma GCC unroll 8
        for (int j = 0; j < Reader::PAIRS; j++, to += 2 * NR) {
            __m512i w[1][2];
            reader.read(unit, j, w);
            _mm512_store_si512(to, w[0][0]);
            _mm512_store_si512(to + NR, w[0][1]);
        }
    }
    for (; (k - inputs.begin) % TILE_INPUTS; k += 2, to += 2 * NR) std::fill(to, to + 2 * NR, 0);
    for_tiles(to);
}

// Rows times a panel, 32 at a time.
template <class Reader>
void tiled_codes(int64_t rows, float* sums, int64_t stride, const PairedRows& x, const Reader& reader, PanelFactors factors,
                 Range inputs, int64_t group) {
    alignas(64) bf16 pairs[PIECE * NR];
    alignas(64) float dots[2 * TILE * NR];
    const int64_t steps = (rows + 2 * TILE - 1) / (2 * TILE);
    Tiles tiles;
    int64_t piece = 0;
    each_piece(inputs, group, [&](int64_t k, int64_t end, int64_t g) {
        read_pairs(pairs, reader, Range(k, end));
        for (int64_t step = 0; step < steps; step++) {
            const Range some(rows, step, steps);
            const int64_t count = (end - k + TILE_INPUTS - 1) / TILE_INPUTS * TILE;
            tile_product(tiles, some.end - some.begin, dots, NR, x.pairs + some.begin * x.stride + k, x.stride,
                         LyingUnits{pairs, {nullptr, 0}}, count, false);
            for (int64_t m = some.begin; m < some.end; m++)
                for (int i = 0; i < 2; i++) {
                    const int64_t at = g * NR + i * W;
                    add_piece(sums + m * stride + i * W, load(dots + (m - some.begin) * NR + i * W), factors.scales + at,
                              factors.offsets + at, x.sums ? x.sums + m * x.sums_stride + piece : nullptr);
                }
        }
        piece++;
    });
}

// sums[rows][P * NR] += x times the codes of some groups. x begins at input 0 and at the first piece of those.
template <int P, class Reader>
void by_tiles(int64_t rows, float* sums, int64_t stride, const PairedRows& x, const Reader* readers, PanelFactors factors, Range inputs,
              int64_t group) {
    if (rows == 1) return chained_codes<P>(sums, x, readers, factors, inputs, group);
    for (int p = 0; p < P; p++, factors.scales += factors.stride, factors.offsets += factors.stride)
        tiled_codes(rows, sums + p * NR, stride, x, readers[p], factors, inputs, group);
}

}  // namespace aril
#endif
