// Attention in tile registers: how keys and values are laid out for them, and their products, made a step at a time.
//
// Keys are the left side of a product of scores and values, transposed, that of a sum: sixteen queries are the right side of
// both, and a score or a weight is where its query's lane is. So the highest score and the sum of weights need no steps across.
#pragma once

#include "amx.h"
#include "attention.h"
#include "attention_tiles.h"
#include "attention_walk.h"

#if defined(ARIL_TILES)

namespace aril {
namespace {

constexpr int64_t KEYS = 128;  // positions of one chunk (256: a tenth slower on Granite Rapids, where L1 does not hold it)
constexpr int64_t UNITS = KEYS / TILE_INPUTS;
constexpr int64_t REGISTER = TILE * TILE_INPUTS;  // numbers of bf16
constexpr int64_t SQUARE = TILE * TILE;           // sums of a register

// ---- operands

// A unit of positions' keys as registers [TILE positions][unit of dimensions].
inline void pack_keys(bf16* out, const bf16* keys, const int64_t* at, int64_t dim) {
    for (int64_t t = 0; t < TILE_INPUTS; t += TILE)
        for (int64_t d = 0; d < dim; d += DIMS, out += REGISTER)
            for (int64_t i = 0; i < TILE; i++) {
                const vu key = load_dims(keys + at[t + i], d, dim);
                memcpy(out + i * DIMS, &key, sizeof key);
            }
}

// Their values as registers [TILE dimensions][unit of positions], `units` apart; rows lie as `row_of` says.
inline void pack_values(bf16* out, const bf16* values, const int64_t* at, int64_t dim, int64_t units) {
    for (int64_t d = 0; d < dim; d += DIMS, out += 2 * units * REGISTER) {
        vu low[TILE], high[TILE];
        for (int64_t i = 0; i < TILE; i++) {
            const vu a = load_dims(values + at[2 * i], d, dim), b = load_dims(values + at[2 * i + 1], d, dim);
            low[i] = low_dims(a, b), high[i] = high_dims(a, b);
        }
        transpose16(out, low);
        transpose16(out + units * REGISTER, high);
    }
}

// Where dimension `d` of 32 is in two registers of values: unpacking leaves them so.
constexpr int64_t row_of(int64_t d) { return d / 4 % 2 * TILE + d / 8 * 4 + d % 4; }

// ---- products

struct Left {
    const bf16* const* at;  // of each sixteen rows
    int64_t row, unit;      // numbers from one to the next
};

struct Right {
    const bf16* at;
    int64_t row, unit, second;  // numbers to the next; second: to the second sixteen columns, 0: there are none
};

// Sums [rows][TILE]; `second`: numbers to those of the second sixteen columns.
struct Sums {
    float* at;
    int64_t second;
};

// sums = left times right, made in steps of one unit and up to four registers of sums, between which memory can be fetched.
// Sixteens of the left side come in pairs.
class Product {
public:
    Product() : sums_{}, left_{}, right_{}, units_(0, 0) {}
    Product(Sums sums, Left left, Right right, int64_t sixteens, Range units)
        : sums_(sums), left_(left), right_(right), end_(sixteens), unit_(units.begin), units_(units) {}

    ARIL_INLINE bool step() {
        if (at_ == end_) return false;
        asm volatile("" ::: "memory");  // the compiler does not know that loads of registers read what is written up to here
        if (unit_ == units_.begin) clear();
        const int64_t part = unit_ * left_.unit;
        const bf16* right = right_.at + unit_ * right_.unit;
        _tile_loadd(6, right, right_.row * 2);
        _tile_loadd(4, left_.at[at_] + part, left_.row * 2);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, left_.at[at_ + 1] + part, left_.row * 2);
        _tile_dpbf16ps(2, 5, 6);
        if (right_.second) {
            _tile_loadd(7, right + right_.second, right_.row * 2);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(3, 5, 7);
        }
        if (++unit_ == units_.end) store();
        return true;
    }

    void finish() {
        while (step()) continue;
    }

private:
    static ARIL_INLINE void clear() {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }

    ARIL_INLINE void store() {
        float* to = sums_.at + at_ * SQUARE;
        _tile_stored(0, to, TILE_BYTES);
        _tile_stored(2, to + SQUARE, TILE_BYTES);
        if (right_.second) {
            _tile_stored(1, to + sums_.second, TILE_BYTES);
            _tile_stored(3, to + sums_.second + SQUARE, TILE_BYTES);
        }
        unit_ = units_.begin, at_ += 2;
    }

    Sums sums_;
    Left left_;
    Right right_;
    int64_t at_ = 0, end_ = 0, unit_ = 0;
    Range units_;
};

}  // namespace
}  // namespace aril

#endif
