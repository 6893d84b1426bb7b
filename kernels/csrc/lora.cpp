// y[i] += (x[i] A^T) B for the adapter of each row, in two passes: shrink to the rank, then expand. What is read of an
// adapter's A and B serves all the tokens of a piece at once. Rows without an adapter are in no piece and are not touched.
#include "common.h"

namespace aril {
namespace {

constexpr int RANKS = 4;          // rows of A that a shrink tile takes at once
constexpr int TOKENS = 3;         // rows of x beside them: 12 accumulators
constexpr int64_t GROUP = 8;      // rows of A in one task
constexpr int64_t COLUMNS = 256;  // of B in one task
constexpr int64_t AHEAD = 128;    // columns of B that memory runs ahead; of A, one tile (8 adapters of rank 16 on one core
                                  // of Zen 3: 14 ms instead of 18)
constexpr int64_t PIECES = 4;     // for each thread, from which on a thread does whole pieces and meets nobody

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

template <class T>
class Delta {
public:
    Delta(const Tensors<T>& t, const Shape& s) : t_(t), s_(s), x_stride_((s.k + 15) / 16 * 16 + 16) {
        for (int64_t i = 0; i < s.num_pieces; i++) {
            filled_ += t.pieces[i].tokens() > 0;
            adapted_ = std::max<int64_t>(adapted_, t.pieces[i].end);
            for (int64_t part = 0; part < s.num_parts; part++) {
                const int64_t rank = entry(t.pieces[i], part).rank;
                highest_ = std::max(highest_, rank);
                work_ += double(rank) * (s.k + t.parts[part].size) * (t.pieces[i].tokens() + 4) / W;
            }
        }
        for (int64_t part = 0; part < s.num_parts; part++) widest_ = std::max(widest_, t.parts[part].size);
    }

    void add(int64_t cores) {
        if (highest_ == 0) return;
        static thread_local Scratch scratch;
        x_ = scratch.get(adapted_ * (x_stride_ + s_.num_parts * highest_));
        shrunk_ = x_ + adapted_ * x_stride_;
        parallel(worth(cores, work_), [&](int thread, int threads) {
            filled_ >= PIECES * threads ? add_by_piece() : add_by_block(thread, threads);
        });
    }

private:
    const Entry& entry(const Piece& piece, int64_t part) const { return t_.table[piece.slot * s_.num_parts + part]; }

    // Each A and B is read by one core.
    void add_by_piece() {
        for (int64_t at; (at = shrinks_.fetch_add(1)) < s_.num_pieces;) {
            const Piece& piece = t_.pieces[at];
            for (int64_t token = piece.start; token < piece.end; token++) widen(token);
            for (int64_t part = 0; part < s_.num_parts; part++)
                for (int64_t r = 0; r < entry(piece, part).rank; r += GROUP) shrink(piece, part, r);
            for (int64_t part = 0; part < s_.num_parts; part++)
                for (int64_t i = 0; i < t_.parts[part].size; i += COLUMNS) expand(piece, part, i);
        }
    }

    // Few adapters: the cores share each of them.
    void add_by_block(int thread, int threads) {
        for (Range mine(adapted_, thread, threads); mine.begin < mine.end; mine.begin++) widen(mine.begin);
        barrier(threads);
        each(shrinks_, (highest_ + GROUP - 1) / GROUP, [&](const Piece& piece, int64_t part, int64_t group) {
            shrink(piece, part, group * GROUP);
        });
        barrier(threads);
        each(expands_, (widest_ + COLUMNS - 1) / COLUMNS, [&](const Piece& piece, int64_t part, int64_t block) {
            expand(piece, part, block * COLUMNS);
        });
    }

    void widen(int64_t at) { copy(x_ + at * x_stride_, t_.x + t_.order[at] * s_.x_stride, s_.k); }

    // Every (piece, part, i < count) once, shared between the threads as they come.
    template <class Body>
    void each(std::atomic<int64_t>& next, int64_t count, Body body) {
        const int64_t total = s_.num_pieces * s_.num_parts * count;
        for (int64_t at; (at = next.fetch_add(1)) < total;) {
            const Piece& piece = t_.pieces[at / count / s_.num_parts];
            if (piece.tokens() > 0) body(piece, at / count % s_.num_parts, at % count);
        }
    }

    float* shrunk(int64_t at, int64_t part) { return shrunk_ + (at * s_.num_parts + part) * highest_; }

    void shrink(const Piece& piece, int64_t part, int64_t first) {
        const Entry& e = entry(piece, part);
        const T* a = t_.arena + e.a_at;
        const int64_t last = std::min(first + GROUP, e.rank);
        for (int64_t at = piece.start; at < piece.end; at += TOKENS) {
            const int tokens = int(std::min<int64_t>(TOKENS, piece.end - at));
            int64_t r = first;
            for (; r + RANKS <= last; r += RANKS) dots_of<TOKENS, RANKS>(tokens, at, part, a + r * s_.k, r);
            for (; r < last; r++) dots_of<TOKENS, 1>(tokens, at, part, a + r * s_.k, r);
        }
    }

    template <int M, int R>
    void dots_of(int tokens, int64_t at, int64_t part, const T* a, int64_t r) {
        if constexpr (M > 1)
            if (tokens < M) return dots_of<M - 1, R>(tokens, at, part, a, r);
        dots<M, R>(at, part, a, r);
    }

    template <int M, int R>
    void dots(int64_t at, int64_t part, const T* a, int64_t r) {
        const float* x = x_ + at * x_stride_;
        vf sums[M][R] = {};
        int64_t i = 0;
        for (; i + W <= s_.k; i += W) {
            prefetch(a + R * (s_.k + i));  // the next tile lies behind this one
            vf rows[R];
            for (int j = 0; j < R; j++) rows[j] = load(a + j * s_.k + i);
#pragma GCC unroll 4
            for (int m = 0; m < M; m++)
                for (int j = 0; j < R; j++) sums[m][j] += load(x + m * x_stride_ + i) * rows[j];
        }
        for (int m = 0; m < M; m++)
            for (int j = 0; j < R; j++) {
                float total = sum(sums[m][j]);
                for (int64_t tail = i; tail < s_.k; tail++) total += x[m * x_stride_ + tail] * get(a + j * s_.k + tail);
                shrunk(at + m, part)[r + j] = total;
            }
    }

    void expand(const Piece& piece, int64_t part, int64_t first) {
        const Entry& e = entry(piece, part);
        const Part& p = t_.parts[part];
        const int64_t last = std::min(first + COLUMNS, p.size);
        if (e.rank == 0 || first >= last) return;
        const T* b = t_.arena + e.b_at;
        for (int64_t i = first; i < last; i += NR) {
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

    template <class B>
    void strip(const Piece& piece, int64_t part, const B* b, int64_t b_stride, int64_t rank, int64_t column, int64_t width) {
        for (int64_t at = piece.start; at < piece.end; at += MR)
            strip_of<MR>(int(std::min<int64_t>(MR, piece.end - at)), at, part, b, b_stride, rank, column, width);
    }

    template <int M, class B>
    void strip_of(int tokens, int64_t at, int64_t part, const B* b, int64_t b_stride, int64_t rank, int64_t column,
                  int64_t width) {
        if constexpr (M > 1)
            if (tokens < M) return strip_of<M - 1>(tokens, at, part, b, b_stride, rank, column, width);
        vf low[M] = {}, high[M] = {};
        const int64_t step = s_.num_parts * highest_;
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
            T* y = t_.y + t_.order[at + m] * s_.y_stride + t_.parts[part].column + column;
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

    const Tensors<T>& t_;
    const Shape& s_;
    const int64_t x_stride_;
    int64_t filled_ = 0, adapted_ = 0, highest_ = 0, widest_ = 0;
    double work_ = 0;
    float *x_ = nullptr, *shrunk_ = nullptr;
    std::atomic<int64_t> shrinks_{0}, expands_{0};
};

}  // namespace
}  // namespace aril

extern "C" void aril_add_delta(void* y, const void* x, const void* arena, const void* table, const void* order,
                               const void* pieces, const void* parts, int64_t k, int64_t num_pieces, int64_t num_parts,
                               int64_t y_stride, int64_t x_stride, int64_t dtype, int64_t cores) {
    using namespace aril;
    const Shape shape{k, num_pieces, num_parts, y_stride, x_stride};
    const auto run = [&](auto zero) {
        using T = decltype(zero);
        const Tensors<T> tensors{static_cast<T*>(y),
                                 static_cast<const T*>(x),
                                 static_cast<const T*>(arena),
                                 static_cast<const Entry*>(table),
                                 static_cast<const int32_t*>(order),
                                 static_cast<const Piece*>(pieces),
                                 static_cast<const Part*>(parts)};
        Delta<T>(tensors, shape).add(cores);
    };
    dtype == BF16 ? run(bf16{}) : run(float{});
}
