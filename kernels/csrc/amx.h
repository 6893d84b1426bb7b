// The tile registers of AMX: products of bfloat16 pairs, 16 rows by 16 outputs by 32 inputs with each instruction.
//
// Every element of a result is ONE chain over units of 32 inputs in rising order. Within a unit the machine adds up the even
// inputs and the odd ones apart, then both, then onto the sum: a row gives the same bits alone and in any batch, and a product
// is the same with its sides exchanged. Tiny numbers count as 0.
//
// Registers by convention: 0 to 3 are sums (0, 1 of the first sixteen rows, 2, 3 of the next; even ones of the first sixteen
// outputs), 4 and 5 the left side of either, 6 and 7 the right side. A thread's registers must be shaped before their use.
#pragma once

#include "common.h"

#if defined(__AMX_BF16__)
#define ARIL_TILES 1

namespace aril {

constexpr int64_t TILE = 16;        // rows of a register
constexpr int64_t TILE_INPUTS = 32; // inputs of a unit
constexpr int64_t TILE_BYTES = 64;  // of a row of a register

// What is written to p stays before the instructions after this: of what those of tiles read the compiler does not know.
ARIL_INLINE void for_tiles(const void* p) { asm volatile("" ::"r"(p) : "memory"); }

// How the registers of this thread are cut, while it lives: the left side has `first` rows in one and `second` in the other, of
// so many pairs of inputs; the right side has so many columns.
class Tiles {
public:
    Tiles() = default;
    Tiles(const Tiles&) = delete;
    ~Tiles() {
        if (first_) _tile_release();
    }

    // Zeros in all registers, where the shape is not what it was.
    ARIL_INLINE void shape(int64_t first, int64_t second, int64_t columns = TILE, int64_t pairs = TILE) {
        if (first == first_ && second == second_ && columns == columns_ && pairs == pairs_) return;
        first_ = first, second_ = second, columns_ = columns, pairs_ = pairs;
        struct {
            uint8_t palette = 1, start = 0, reserved[14] = {};
            uint16_t bytes[16] = {};
            uint8_t rows[16] = {};
        } config;
        for (int i = 0; i < 8; i++) config.bytes[i] = uint16_t(4 * columns), config.rows[i] = uint8_t(pairs);
        config.bytes[4] = config.bytes[5] = uint16_t(4 * pairs);
        config.rows[0] = config.rows[1] = config.rows[4] = uint8_t(first);
        config.rows[2] = config.rows[3] = config.rows[5] = uint8_t(second ? second : 1);
        for_tiles(&config);
        _tile_loadconfig(&config);
    }

private:
    int64_t first_ = 0, second_ = 0, columns_ = 0, pairs_ = 0;
};

// Memory that is brought into L2 meanwhile: `step` lines with each unit.
struct AheadLines {
    const char* at;
    int64_t step;
    ARIL_INLINE void fetch() {
        for (int64_t i = 0; i < step; i++, at += TILE_BYTES) prefetch(at);
    }
};

constexpr int64_t PAIRED_UNIT = TILE * 2 * NR;  // numbers of a panel of pairs in a unit

// Units of a panel of pairs, one after the other.
struct LyingUnits {
    const bf16* at;
    AheadLines ahead;

    ARIL_INLINE const bf16* unit(int64_t i) {
        ahead.fetch();
        return at + i * PAIRED_UNIT;
    }
};

// The sums of x[rows, count units] times units of a panel, in the registers as they were shaped; SECOND: more than sixteen rows.
template <bool SECOND, class Units>
ARIL_INLINE void tile_sums(const bf16* x, int64_t x_stride, Units& units, int64_t count) {
    for (int64_t i = 0; i < count; i++, x += TILE_INPUTS) {
        const bf16* unit = units.unit(i);
        for_tiles(unit);
        _tile_loadd(6, unit, 2 * TILE_BYTES);
        _tile_loadd(4, x, x_stride * 2);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, unit + NR, 2 * TILE_BYTES);
        _tile_dpbf16ps(1, 4, 7);
        if (!SECOND) continue;
        _tile_loadd(5, x + TILE * x_stride, x_stride * 2);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

// The sums of rows, or of more than sixteen, in memory: load_sums and store_sums are exact.
ARIL_INLINE void load_sums(const float* c, int64_t c_stride, bool second) {
    _tile_loadd(0, c, c_stride * 4);
    _tile_loadd(1, c + TILE, c_stride * 4);
    if (!second) return;
    _tile_loadd(2, c + TILE * c_stride, c_stride * 4);
    _tile_loadd(3, c + TILE * c_stride + TILE, c_stride * 4);
}

ARIL_INLINE void store_sums(float* c, int64_t c_stride, bool second) {
    _tile_stored(0, c, c_stride * 4);
    _tile_stored(1, c + TILE, c_stride * 4);
    if (!second) return;
    _tile_stored(2, c + TILE * c_stride, c_stride * 4);
    _tile_stored(3, c + TILE * c_stride + TILE, c_stride * 4);
}

ARIL_INLINE void clear_sums() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

// c[rows, NR] = (or continues with) x[rows, 2 * pairs] times units of a panel [pairs][NR][2], for at most 32 rows. x has zeros
// up to a whole unit.
template <class Units>
ARIL_INLINE void tile_product(Tiles& tiles, int64_t rows, float* c, int64_t c_stride, const bf16* x, int64_t x_stride, Units units,
                              int64_t pairs, bool onto) {
    const bool second = rows > TILE;
    const int64_t whole = pairs / TILE, rest = pairs % TILE;
    tiles.shape(std::min(rows, TILE), second ? rows - TILE : 0);
    for_tiles(c);
    onto ? load_sums(c, c_stride, second) : clear_sums();
    second ? tile_sums<true>(x, x_stride, units, whole) : tile_sums<false>(x, x_stride, units, whole);
    if (rest) {
        alignas(64) bf16 last[PAIRED_UNIT] = {};
        const bf16 *from = units.unit(whole), *at = x + whole * TILE_INPUTS;
        std::copy(from, from + rest * 2 * NR, last);
        LyingUnits one{last, {nullptr, 0}};
        second ? tile_sums<true>(at, x_stride, one, 1) : tile_sums<false>(at, x_stride, one, 1);
    }
    store_sums(c, c_stride, second);
}

}  // namespace aril
#endif
