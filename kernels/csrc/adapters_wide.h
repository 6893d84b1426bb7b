// The adapters' products with every number widened to float32: one chain of fused multiply-adds for each column of B,
// one for each lane of a row of A.
#pragma once

#include "adapters.h"

namespace aril {

template <class T>
class Wide {
public:
    static constexpr bool PREPARES = true;
    static constexpr int64_t READING = 12, TOKENS = 0;

    struct Hands {};

    explicit Wide(const Call<T>& call) : c_(call), x_stride_((call.k + 15) / 16 * 16 + 16) {}

    int64_t room() const { return c_.adapted * (x_stride_ + c_.num_parts * c_.highest); }

    void prepare(const Piece& piece) const {
        for (int64_t at = piece.start; at < piece.end; at++)
            copy(c_.scratch + at * x_stride_, c_.x + c_.order[at] * c_.x_stride, c_.k);
    }

    void shrink(Hands&, const Piece& piece, int64_t part, Range ranks, const Matrix<T>&) const {
        for (int64_t r = ranks.begin; r < ranks.end; r += MOST_RANKS)
            shrink_by(piece, part, Range(r, std::min(r + MOST_RANKS, ranks.end)));
    }

    void expand(Hands&, const Piece& piece, int64_t part, Range columns, const Matrix<T>&) const {
        const Entry& e = c_.entry(piece, part);
        const Part& p = c_.parts[part];
        const int64_t last = columns.end;
        const T* b = c_.arena + e.b_at;
        for (int64_t i = columns.begin; i < last; i += NR) {
            if (i + NR <= last) {
                strip(piece, part, b + i, p.size, e.rank, i, NR);
            } else {  // the last columns, filled up to a strip
                static thread_local Scratch scratch;
                float* filled = scratch.get(e.rank * NR);
                std::fill(filled, filled + e.rank * NR, 0.0f);
                for (int64_t r = 0; r < e.rank; r++) copy(filled + r * NR, b + r * p.size + i, last - i);
                strip(piece, part, filled, NR, e.rank, i, last - i);
            }
        }
    }

private:
    static constexpr int ROWS = 4;          // rows of A that a shrink tile takes at once
    static constexpr int MOST = 3;          // rows of x beside them: 12 accumulators
    static constexpr int64_t AHEAD = 128;   // columns of B that memory runs ahead; of A, one tile (8 adapters of rank 16 on
                                            // one core of Zen 3: 14 ms instead of 18)

    float* shrunk(int64_t at, int64_t part) const {
        return c_.scratch + c_.adapted * x_stride_ + (at * c_.num_parts + part) * c_.highest;
    }

    // A few rows of A, which stay in the cache for all tokens.
    void shrink_by(const Piece& piece, int64_t part, Range ranks) const {
        const T* a = c_.arena + c_.entry(piece, part).a_at;
        for (int64_t at = piece.start; at < piece.end; at += MOST) {
            const int tokens = int(std::min<int64_t>(MOST, piece.end - at));
            int64_t r = ranks.begin;
            for (; r + ROWS <= ranks.end; r += ROWS) dots_of<MOST, ROWS>(tokens, at, part, a + r * c_.k, r);
            for (; r < ranks.end; r++) dots_of<MOST, 1>(tokens, at, part, a + r * c_.k, r);
        }
    }

    template <int M, int R>
    void dots_of(int tokens, int64_t at, int64_t part, const T* a, int64_t r) const {
        if constexpr (M > 1)
            if (tokens < M) return dots_of<M - 1, R>(tokens, at, part, a, r);
        dots<M, R>(at, part, a, r);
    }

    template <int M, int R>
    void dots(int64_t at, int64_t part, const T* a, int64_t r) const {
        const float* x = c_.scratch + at * x_stride_;
        vf sums[M][R] = {};
        int64_t i = 0;
        for (; i + W <= c_.k; i += W) {
            prefetch(a + R * (c_.k + i));  // the next tile lies behind this one
            vf rows[R];
            for (int j = 0; j < R; j++) rows[j] = load(a + j * c_.k + i);
#pragma GCC unroll 4
            for (int m = 0; m < M; m++)
                for (int j = 0; j < R; j++) sums[m][j] += load(x + m * x_stride_ + i) * rows[j];
        }
        for (int m = 0; m < M; m++)
            for (int j = 0; j < R; j++) {
                float total = sum(sums[m][j]);
                for (int64_t tail = i; tail < c_.k; tail++) total += x[m * x_stride_ + tail] * get(a + j * c_.k + tail);
                shrunk(at + m, part)[r + j] = total;
            }
    }

    template <class B>
    void strip(const Piece& piece, int64_t part, const B* b, int64_t b_stride, int64_t rank, int64_t column,
               int64_t width) const {
        for (int64_t at = piece.start; at < piece.end; at += MR)
            strip_of<MR>(int(std::min<int64_t>(MR, piece.end - at)), at, part, b, b_stride, rank, column, width);
    }

    template <int M, class B>
    void strip_of(int tokens, int64_t at, int64_t part, const B* b, int64_t b_stride, int64_t rank, int64_t column,
                  int64_t width) const {
        if constexpr (M > 1)
            if (tokens < M) return strip_of<M - 1>(tokens, at, part, b, b_stride, rank, column, width);
        vf low[M] = {}, high[M] = {};
        const int64_t step = c_.num_parts * c_.highest;
        const float* h = shrunk(at, part);
        for (int64_t r = 0; r < rank; r++) {
            prefetch(b + r * b_stride + AHEAD);
            const vf b_low = load(b + r * b_stride), b_high = load(b + r * b_stride + W);
#pragma GCC unroll 12
            for (int m = 0; m < M; m++) {
                const vf value = splat(h[m * step + r]);
                low[m] += value * b_low;
                high[m] += value * b_high;
            }
        }
#pragma GCC unroll 12
        for (int m = 0; m < M; m++) {
            T* y = c_.y + c_.order[at + m] * c_.y_stride + c_.parts[part].column + column;
            if (width == NR) {
                store(y, load(y) + low[m]);
                store(y + W, load(y + W) + high[m]);
            } else {
                float both[NR];
                store(both, low[m]), store(both + W, high[m]);
                for (int64_t i = 0; i < width; i++) put(y + i, get(y + i) + both[i]);
            }
        }
    }

    const Call<T>& c_;
    const int64_t x_stride_;
};

}  // namespace aril
