// Rows times rows in tile registers (amx.h), where both sides lie row by row in memory: one is read as it lies, the other must
// be turned first, into pairs of inputs. Which one it is makes no difference to the result.
#pragma once

#include "amx.h"

#if defined(ARIL_TILES)
namespace aril {

constexpr int64_t LEFT_ROWS = 4 * TILE;  // at once: as many sums as there are registers for them

ARIL_INLINE __mmask32 first_numbers(int64_t count) {
    return count >= 32 ? ~__mmask32(0) : (__mmask32(1) << std::max<int64_t>(count, 0)) - 1;
}

// The pairs of N vectors side by side: v[0][0], v[1][0], .. v[N - 1][0], v[0][1] ..
template <int N>
ARIL_INLINE void interleave(__m512i* v) {
    if constexpr (N > 1) {
        constexpr int HALF = N / 2;
        interleave<HALF>(v), interleave<HALF>(v + HALF);
        alignas(64) int32_t low[16], high[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            low[i] = i / N * HALF + i % HALF + i / HALF % 2 * 16;
            high[i] = low[i] + 8;
        }
        const __m512i lower = _mm512_load_si512(low), upper = _mm512_load_si512(high);
        __m512i both[N];
#pragma GCC unroll 8
        for (int i = 0; i < HALF; i++) {
            both[2 * i] = _mm512_permutex2var_epi32(v[i], lower, v[HALF + i]);
            both[2 * i + 1] = _mm512_permutex2var_epi32(v[i], upper, v[HALF + i]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < N; i++) v[i] = both[i];
    }
}

template <int N>
__attribute__((noinline)) void turn_by(bf16* to, const bf16* const* rows, int64_t count, int64_t k) {
    for (int64_t i = 0; i < k; i += TILE_INPUTS, to += N * TILE_INPUTS) {
        const __mmask32 real = first_numbers(k - i);
        __m512i v[N];
#pragma GCC unroll 16
        for (int n = 0; n < N; n++) v[n] = n < count ? _mm512_maskz_loadu_epi16(real, rows[n] + i) : __m512i{};
        interleave<N>(v);
#pragma GCC unroll 16
        for (int n = 0; n < N; n++) _mm512_storeu_si512(to + n * TILE_INPUTS, v[n]);
    }
    for_tiles(to);
}

// The columns of so many rows when they are turned: a power of two.
inline int turned(int64_t rows) { return rows <= 1 ? 1 : 2 * turned((rows + 1) / 2); }

// to[pairs][columns][2] = rows[count][k], with zeros for what is not there and up to a whole unit.
inline void turn(bf16* to, const bf16* const* rows, int64_t count, int64_t columns, int64_t k) {
    switch (columns) {
        case 1: return turn_by<1>(to, rows, count, k);
        case 2: return turn_by<2>(to, rows, count, k);
        case 4: return turn_by<4>(to, rows, count, k);
        case 8: return turn_by<8>(to, rows, count, k);
        default: return turn_by<16>(to, rows, count, k);
    }
}

// The side that is read as it lies: `count` rows, `each` to a register. The last one ends where they end, and may share some
// with the one before.
struct Left {
    const bf16* at;
    int64_t stride, count, each;
    int64_t start(int64_t block) const { return std::min(block * each, count - each); }
};

struct Right {
    const bf16* at;
    int64_t columns, k;
};

template <int N>
ARIL_INLINE void add_unit(const bf16* const* rows, int64_t stride, int64_t k, const bf16* right, int64_t columns) {
    _tile_loadd(6, right, columns * 4);
    _tile_loadd(4, rows[0] + k, stride * 2);
    _tile_dpbf16ps(0, 4, 6);
    if (N > 1) _tile_loadd(5, rows[1] + k, stride * 2);
    if (N > 1) _tile_dpbf16ps(1, 5, 6);
    if (N > 2) _tile_loadd(4, rows[2] + k, stride * 2);
    if (N > 2) _tile_dpbf16ps(2, 4, 6);
    if (N > 3) _tile_loadd(5, rows[3] + k, stride * 2);
    if (N > 3) _tile_dpbf16ps(3, 5, 6);
}

// The inputs from k on, which are no whole unit: what lies behind them is somebody else's.
template <int N>
__attribute__((noinline)) void add_rest(const bf16* const* rows, const Left& left, int64_t k, const bf16* right, const Right& all) {
    alignas(64) bf16 filled[N * TILE * TILE_INPUTS];
    const bf16* starts[N];
    const __mmask32 real = first_numbers(all.k - k);
    for (int i = 0; i < N; i++) {
        bf16* to = filled + i * TILE * TILE_INPUTS;
        for (int64_t j = 0; j < left.each; j++)
            _mm512_store_si512(to + j * TILE_INPUTS, _mm512_maskz_loadu_epi16(real, rows[i] + j * left.stride + k));
        starts[i] = to;
    }
    for_tiles(filled);
    add_unit<N>(starts, TILE_INPUTS, 0, right, all.columns);
}

template <int N, class Ahead>
void turned_product_of(float* to, const Left& left, const Right& right, Ahead& ahead) {
    const bf16* rows[N];
    for (int i = 0; i < N; i++) rows[i] = left.at + left.start(i) * left.stride;
    const int64_t columns = right.columns;
    clear_sums();
    const bf16* at = right.at;
    int64_t k = 0;
    for (; k + TILE_INPUTS <= right.k; k += TILE_INPUTS, at += columns * TILE_INPUTS) {
        ahead.step();
        add_unit<N>(rows, left.stride, k, at, columns);
    }
    if (k < right.k) add_rest<N>(rows, left, k, at, right);
    _tile_stored(0, to, columns * 4);
    if (N > 1) _tile_stored(1, to + left.start(1) * columns, columns * 4);
    if (N > 2) _tile_stored(2, to + left.start(2) * columns, columns * 4);
    if (N > 3) _tile_stored(3, to + left.start(3) * columns, columns * 4);
}

// to[rows][columns] = at most LEFT_ROWS rows times a side that is turned. Registers are shaped for `each` and `columns`; with
// every unit comes a step of what is ahead.
template <class Ahead>
void turned_product(float* to, const Left& left, const Right& right, Ahead& ahead) {
    switch ((left.count + left.each - 1) / left.each) {
        case 1: return turned_product_of<1>(to, left, right, ahead);
        case 2: return turned_product_of<2>(to, left, right, ahead);
        case 3: return turned_product_of<3>(to, left, right, ahead);
        default: return turned_product_of<4>(to, left, right, ahead);
    }
}

}  // namespace aril
#endif
