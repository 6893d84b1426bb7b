// The adapters' products with every number widened to float32: one chain of fused multiply-adds for each column of B,
// one for each lane of a row of A. Of bfloat16, which load_row() takes in pairs, x is kept in their order.
#pragma once

#include <type_traits>

#include "adapters.h"
#include "tile.h"

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
        for (int64_t at = piece.start; at < piece.end; at++) {
            const T* from = c_.x + c_.order[at] * c_.x_stride;
            float* to = c_.scratch + at * x_stride_;
            int64_t i = 0;
            for (vf low, high; i + NR <= c_.k; i += NR) {
                load_row(from + i, low, high);
                store(to + i, low), store(to + i + W, high);
            }
            copy(to + i, from + i, c_.k - i);
        }
    }

    void shrink(Hands&, const Piece& piece, int64_t part, Range ranks, const Matrix<T>&) const {
        for (int64_t r = ranks.begin; r < ranks.end; r += MOST_RANKS)
            shrink_by(piece, part, Range(r, std::min(r + MOST_RANKS, ranks.end)));
    }

    void expand(Hands&, const Piece& piece, int64_t part, Range columns, const Matrix<T>&) const {
        const Entry& e = c_.entry(piece, part);
        const int64_t size = c_.parts[part].size, last = columns.end;
        const T* b = c_.arena + e.b_at;
        int64_t i = columns.begin;
        for (; i + 2 * NR <= last; i += 2 * NR) strips<MR / 2, 2>(piece, part, b + i, size, e.rank, i, NR);
        for (; i + NR <= last; i += NR) strips<MR, 1>(piece, part, b + i, size, e.rank, i, NR);
        if (i == last) return;
        static thread_local Scratch scratch;  // the last columns, filled up to a strip
        float* filled = scratch.get(e.rank * NR);
        std::fill(filled, filled + e.rank * NR, 0.0f);
        for (int64_t r = 0; r < e.rank; r++) copy(filled + r * NR, b + r * size + i, last - i);
        strips<MR, 1>(piece, part, filled, NR, e.rank, i, last - i);
    }

private:
    static constexpr int ROWS = 4;          // rows of A that a shrink tile takes at once
    static constexpr int MOST = 2;          // rows of x beside them: 8 accumulators, and room for what is loaded
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
        for (; i + NR <= c_.k; i += NR) {
            for (int64_t line = 0; line < R * NR; line += 64 / sizeof(T)) prefetch(a + R * (c_.k + i) + line);  // of the next tile
#pragma GCC unroll 4
            for (int j = 0; j < R; j++) {
                vf low, high;
                load_row(a + j * c_.k + i, low, high);
#pragma GCC unroll 4
                for (int m = 0; m < M; m++) sums[m][j] = fused(load(x + m * x_stride_ + i), low, sums[m][j]);
#pragma GCC unroll 4
                for (int m = 0; m < M; m++) sums[m][j] = fused(load(x + m * x_stride_ + i + W), high, sums[m][j]);
            }
        }
#pragma GCC unroll 4
        for (int m = 0; m < M; m++)
#pragma GCC unroll 4
            for (int j = 0; j < R; j++) {
                float total = sum(sums[m][j]);
                for (int64_t tail = i; tail < c_.k; tail++) total += x[m * x_stride_ + tail] * get(a + j * c_.k + tail);
                shrunk(at + m, part)[r + j] = total;
            }
    }

    // C strips at once, of all tokens; `width` columns of the last one.
    template <int MOST_TOKENS, int C, class B>
    void strips(const Piece& piece, int64_t part, const B* b, int64_t b_stride, int64_t rank, int64_t column, int64_t width) const {
        for (int64_t at = piece.start; at < piece.end; at += MOST_TOKENS) {
            const int tokens = int(std::min<int64_t>(MOST_TOKENS, piece.end - at));
            strips_of<MOST_TOKENS, C>(tokens, at, part, b, b_stride, rank, column, width);
        }
    }

    template <int M, int C, class B>
    void strips_of(int tokens, int64_t at, int64_t part, const B* b, int64_t b_stride, int64_t rank, int64_t column,
                   int64_t width) const {
        if constexpr (M > 1)
            if (tokens < M) return strips_of<M - 1, C>(tokens, at, part, b, b_stride, rank, column, width);
        vf low[M][C] = {}, high[M][C] = {};
        const int64_t step = c_.num_parts * c_.highest;
        const float* h = shrunk(at, part);
        for (int64_t r = 0; r < rank; r++) {
            prefetch(b + r * b_stride + AHEAD);
            vf b_low[C], b_high[C];
#pragma GCC unroll 2
            for (int s = 0; s < C; s++) load_row(b + r * b_stride + s * NR, b_low[s], b_high[s]);
#pragma GCC unroll 12
            for (int m = 0; m < M; m++) {
                const vf value = splat(h[m * step + r]);
#pragma GCC unroll 2
                for (int s = 0; s < C; s++) low[m][s] += value * b_low[s], high[m][s] += value * b_high[s];
            }
        }
#pragma GCC unroll 12
        for (int m = 0; m < M; m++) {
            T* y = c_.y + c_.order[at + m] * c_.y_stride + c_.parts[part].column + column;
#pragma GCC unroll 2
            for (int s = 0; s < C; s++) finish<B>(y + s * NR, low[m][s], high[m][s], s + 1 < C ? NR : width);
        }
    }

    // y += the sums of `width` columns of a strip, which lie as B's did.
    template <class B>
    static ARIL_INLINE void finish(T* y, vf low, vf high, int64_t width) {
        if constexpr (std::is_same_v<B, T>) {
            if (width == NR) {
                prefetch(y + 2 * NR);
                vf y_low, y_high;
                load_row(y, y_low, y_high);
                return store_row(y, y_low + low, y_high + high);
            }
        }
        float both[NR];
        store(both, low), store(both + W, high);
        for (int64_t i = 0; i < width; i++) put(y + i, get(y + i) + both[i]);
    }

    const Call<T>& c_;
    const int64_t x_stride_;
};

}  // namespace aril
