// What tile registers (amx.h) make of a few rows of bfloat16, bit for bit, by vectors of float32: to fill and to empty a register
// costs as much for one row as for sixteen. Each unit of 32 inputs is a chain over the even ones, a chain over the odd ones,
// then the sum of both, added onto what came before. The right side may lie as it is: no pairs are needed.
#pragma once

#include "amx.h"

#if defined(ARIL_TILES)
namespace aril {

// Tiny numbers count as 0, read or written, while this lives: as they do in tile registers.
class NoTiny {
public:
    NoTiny() : were_(_mm_getcsr()) { set(were_ | 0x8040); }
    NoTiny(const NoTiny&) = delete;
    ~NoTiny() { set(were_); }

private:
    static void set(unsigned bits) {
        asm volatile("" ::: "memory");
        _mm_setcsr(bits);
        asm volatile("" ::: "memory");
    }

    const unsigned were_;
};

// Two vectors of 16 sums: those of the even columns and those of the odd ones.
struct Columns {
    __m512 even, odd;

    ARIL_INLINE void fuse(__m512 value, const Columns& with) {
        even = _mm512_fmadd_ps(value, with.even, even);
        odd = _mm512_fmadd_ps(value, with.odd, odd);
    }

    ARIL_INLINE void add(const Columns& other) {
        even = _mm512_add_ps(even, other.even);
        odd = _mm512_add_ps(odd, other.odd);
    }
};

ARIL_INLINE Columns columns_of(__m512i numbers) {
    const __m512i upper = _mm512_set1_epi32(int32_t(0xffff0000));
    return {(__m512)_mm512_slli_epi32(numbers, 16), (__m512)_mm512_and_si512(numbers, upper)};
}

// sums[M][C] = h[M][rank] times C strips of 32 columns of b[rank][stride], of which the `real` ones are there.
template <int M, int C>
ARIL_INLINE void tile_chains(Columns (&sums)[M][C], const float* const (&h)[M], const bf16* b, int64_t stride, int64_t rank,
                             const __mmask32 (&real)[C]) {
    for (int m = 0; m < M; m++)
        for (int c = 0; c < C; c++) sums[m][c] = Columns{};
    for (int64_t unit = 0; unit < rank; unit += TILE_INPUTS) {
        Columns chains[2][M][C] = {};
        const auto step = [&](int64_t r, Columns (&chain)[M][C]) ARIL_INLINE_LAMBDA {
            Columns row[C];
#pragma GCC unroll 4
            for (int c = 0; c < C; c++) row[c] = columns_of(_mm512_maskz_loadu_epi16(real[c], b + r * stride + c * NR));
#pragma GCC unroll 4
            for (int m = 0; m < M; m++)
#pragma GCC unroll 4
                for (int c = 0; c < C; c++) chain[m][c].fuse(_mm512_set1_ps(h[m][r]), row[c]);
        };
        const int64_t end = std::min(rank, unit + TILE_INPUTS);
        int64_t r = unit;
        for (; r + 2 <= end; r += 2) step(r, chains[0]), step(r + 1, chains[1]);
        if (r < end) step(r, chains[0]);
#pragma GCC unroll 4
        for (int m = 0; m < M; m++)
#pragma GCC unroll 4
            for (int c = 0; c < C; c++) chains[0][m][c].add(chains[1][m][c]), sums[m][c].add(chains[0][m][c]);
    }
}

}  // namespace aril
#endif
