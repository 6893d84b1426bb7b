// What the ways of doing the adapters' products share: where things lie. Float32 numbers and machines without products of
// bfloat16 pairs take adapters_wide.h, those with tile registers adapters_tiles.h, the others adapters_pairs.h.
//
// A way of doing them answers, for the tokens of a piece in one part,
//     room()                                     floats of scratch memory for the call
//     prepare(piece)                             its tokens, before all else; if PREPARES
//     shrink(hands, piece, part, ranks, next)    the products with those rows of A
//     expand(hands, piece, part, columns, next)  of what came of that with those columns of B, onto y
// and may bring `next` into the cache meanwhile. Hands are what a thread holds while it is at a piece. It also tells
//     TOKENS   that a piece should have; fewer where the work is uneven, 0: pieces stay as they are
//     READING  tokens whose products take as long as reading A and B
#pragma once

#include "common.h"

namespace aril {

constexpr int64_t MOST_RANKS = 16;

struct Piece {
    int32_t slot, start, end;
    int64_t tokens() const { return end - start; }
};

struct Entry {  // of the table: one adapter's pair for one part
    int64_t a_at, b_at, rank;
};

struct Part {
    int64_t column, size;
};

struct Shape {
    int64_t k, num_pieces, num_parts, y_stride, x_stride;
};

template <class T>
struct Tensors {
    T* y;
    const T *x, *arena;
    const Entry* table;
    const int32_t* order;
    const Piece* pieces;
    const Part* parts;
};

// One call: its arguments, and the scratch memory that its tasks share.
template <class T>
struct Call : Tensors<T>, Shape {
    Call(const Tensors<T>& t, const Shape& s) : Tensors<T>(t), Shape(s) {}

    int64_t highest = 0;  // rank in this call
    int64_t adapted = 0;  // tokens, the first ones of `order`
    float* scratch = nullptr;

    const Entry& entry(const Piece& piece, int64_t part) const { return this->table[piece.slot * num_parts + part]; }
};

// An A or a B, or some rows of it. No rows: nothing.
template <class T>
struct Matrix {
    const T* at = nullptr;
    int64_t rows = 0, width = 0;
};

// Memory that is needed soon, brought a few lines at a time while other things are computed.
struct Upcoming {
    const char *at = nullptr, *end = nullptr;
    int64_t lines = 0;  // with each step

    // All of it over so many steps.
    template <class T>
    Upcoming(const Matrix<T>& matrix, int64_t steps)
        : at(reinterpret_cast<const char*>(matrix.at)),
          end(reinterpret_cast<const char*>(matrix.at + matrix.rows * matrix.width)),
          lines(((end - at) / LINE + steps) / std::max<int64_t>(steps, 1)) {}
    Upcoming() = default;

    ARIL_INLINE void step() {
        for (int64_t i = 0; i < lines && at < end; i++, at += LINE) prefetch(at);
    }

private:
    static constexpr int64_t LINE = 64;
};

}  // namespace aril
