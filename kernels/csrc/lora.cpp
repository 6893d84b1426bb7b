// y[i] += (x[i] A^T) B for the adapter of each row, in two passes: shrink to the rank, then expand. What is read of an
// adapter's A and B serves all the tokens of a piece at once. Rows without an adapter are in no piece and are not touched.
#include <vector>

#include "adapters_pairs.h"
#include "adapters_tiles.h"
#include "adapters_wide.h"
#include "foreseen.h"
#include "tape.h"

namespace aril {
namespace {

constexpr double UNEVEN = 1.4;    // times the fair share that a thread may be at when each does whole pieces and meets nobody;
constexpr int64_t COLUMNS = 256;  // else a task is so many columns of B, or MOST_RANKS rows of A: a tile fills up with zeros
                                  // what it has no rows for, which must be nobody else's
constexpr int64_t LEAST = 32;     // tokens of a piece for whose evenness pieces are made smaller

template <class T, class Products>
class Delta {
public:
    explicit Delta(Call<T>& call) : c_(call) {
        int64_t given = 0;
        for (; given < c_.num_pieces && c_.pieces[given].tokens() > 0; given++) {
            const Piece& piece = c_.pieces[given];
            c_.adapted = std::max<int64_t>(c_.adapted, piece.end);
            for (int64_t part = 0; part < c_.num_parts; part++) c_.highest = std::max(c_.highest, c_.entry(piece, part).rank);
        }
        c_.num_pieces = given;
        for (int64_t part = 0; part < c_.num_parts; part++) widest_ = std::max(widest_, c_.parts[part].size);
    }

    void add(int64_t cores) {
        if (c_.highest == 0) return;
        static thread_local Scratch scratch;
        const Products products(c_);
        c_.scratch = scratch.get(products.room());
        const int threads = choose_pieces(cores);
        is_even(threads) ? add_by_piece(products, threads) : add_by_block(products, threads);
    }

private:
    // The largest pieces that the products like and that keep all threads busy. Returns how many threads those are.
    int choose_pieces(int64_t cores) {
        const Piece* given = c_.pieces;
        for (int64_t most = Products::TOKENS;; most /= 2) {
            join(given, most);
            weigh();
            const int threads = worth(cores, work_);
            if (most / 2 < LEAST || is_even(threads)) return threads;
        }
    }

    // Those that are given, or those of one adapter as one with at most so many tokens.
    void join(const Piece* given, int64_t most) {
        static thread_local std::vector<Piece> joined;
        joined.clear();
        for (int64_t i = 0; i < c_.num_pieces; i++) {
            const Piece& next = given[i];
            const bool is_more = !joined.empty() && joined.back().slot == next.slot && joined.back().end == next.start;
            if (is_more && next.end - joined.back().start <= most) joined.back().end = next.end;
            else joined.push_back(next);
        }
        c_.pieces = joined.data(), filled_ = int64_t(joined.size());
    }

    void weigh() {
        work_ = most_ = 0;
        for (int64_t at = 0; at < filled_; at++) {
            const Piece& piece = c_.pieces[at];
            double numbers = 0;
            for (int64_t part = 0; part < c_.num_parts; part++)
                numbers += double(c_.entry(piece, part).rank) * (c_.k + c_.parts[part].size);
            const double work = numbers * (piece.tokens() + Products::READING) / W;
            work_ += work;
            most_ = std::max(most_, work);
        }
    }

    // Whether whole pieces, taken as they come, keep all threads busy nearly to the end.
    bool is_even(int threads) const {
        const double longest = std::min((filled_ + threads - 1) / threads * most_, work_ / threads + most_);
        return threads == 1 || longest <= UNEVEN * work_ / threads;
    }

    // Each A and B is read by one core, which has the next one brought while it works on one.
    void add_by_piece(const Products& products, int threads) {
        share(threads, filled_, [&](int64_t at) {
            products.prepare(c_.pieces[at]);
            typename Products::Hands hands;
            for (int64_t part = 0; part < c_.num_parts; part++) add_part(products, hands, at, part);
        });
    }

    void add_part(const Products& products, typename Products::Hands& hands, int64_t at, int64_t part) {
        const Piece& piece = c_.pieces[at];
        const int64_t rank = c_.entry(piece, part).rank, size = c_.parts[part].size;
        if (rank == 0) return;
        products.shrink(hands, piece, part, Range(0, rank), b_of(piece, part, Range(0, rank)));
        products.expand(hands, piece, part, Range(0, size), a_after(at, part));
    }

    Matrix<T> b_of(const Piece& piece, int64_t part, Range ranks) const {
        const int64_t size = c_.parts[part].size;
        return {c_.arena + c_.entry(piece, part).b_at + ranks.begin * size, ranks.end - ranks.begin, size};
    }

    // The A of the next part, or of the piece that this thread will be at next.
    Matrix<T> a_after(int64_t at, int64_t part) const {
        if (++part == c_.num_parts) part = 0, at++;
        if (at >= filled_) return {};
        const Entry& e = c_.entry(c_.pieces[at], part);
        return {c_.arena + e.a_at, e.rank, c_.k};
    }

    // Few adapters: the cores share each of them. With some rows of A come the same ones of B.
    void add_by_block(const Products& products, int threads) {
        if (Products::PREPARES) share(threads, filled_, [&](int64_t at) { products.prepare(c_.pieces[at]); });
        each(threads, c_.highest, MOST_RANKS, [&](const Piece& piece, int64_t part, Range ranks) {
            ranks.end = std::min(ranks.end, c_.entry(piece, part).rank);
            if (ranks.begin >= ranks.end) return;
            typename Products::Hands hands;
            products.shrink(hands, piece, part, ranks, b_of(piece, part, ranks));
        });
        each(threads, widest_, COLUMNS, [&](const Piece& piece, int64_t part, Range columns) {
            columns.end = std::min(columns.end, c_.parts[part].size);
            if (columns.begin >= columns.end || c_.entry(piece, part).rank == 0) return;
            typename Products::Hands hands;
            products.expand(hands, piece, part, columns, {});
        });
    }

    // Every (piece, part, `step` of `count` things) once, shared between the threads as they come.
    template <class Body>
    void each(int threads, int64_t count, int64_t step, Body body) {
        const int64_t steps = (count + step - 1) / step;
        share(threads, filled_ * c_.num_parts * steps, [&](int64_t at) {
            const int64_t first = at % steps * step;
            body(c_.pieces[at / steps / c_.num_parts], at / steps % c_.num_parts, Range(first, first + step));
        });
    }

    Call<T>& c_;
    int64_t filled_ = 0, widest_ = 0;
    double work_ = 0, most_ = 0;  // of all pieces, of one
};

#if defined(ARIL_TILES)
using Halves = Tiled;
#elif defined(__AVX512BF16__)
using Halves = Pairs;
#else
using Halves = Wide<bf16>;
#endif

}  // namespace
}  // namespace aril

extern "C" void aril_add_delta(void* y, const void* x, const void* arena, const void* table, const void* order,
                               const void* pieces, const void* parts, int64_t k, int64_t num_pieces, int64_t num_parts,
                               int64_t y_stride, int64_t x_stride, int64_t dtype, int64_t cores) {
    using namespace aril;
    foreseen().clear();
    const Shape shape{k, num_pieces, num_parts, y_stride, x_stride};
    const auto run = [&](auto zero, auto products) {
        using T = decltype(zero);
        const Tensors<T> tensors{static_cast<T*>(y),
                                 static_cast<const T*>(x),
                                 static_cast<const T*>(arena),
                                 static_cast<const Entry*>(table),
                                 static_cast<const int32_t*>(order),
                                 static_cast<const Piece*>(pieces),
                                 static_cast<const Part*>(parts)};
        Call<T> call(tensors, shape);
        Delta<T, typename decltype(products)::type>(call).add(cores);
    };
    struct OfHalves {
        using type = Halves;
    };
    struct OfFloats {
        using type = Wide<float>;
    };
    dtype == BF16 ? run(bf16{}, OfHalves{}) : run(float{}, OfFloats{});
}

// A's and B's that the next aril_add_delta of this thread reads; `size` is that of a number. Products of bfloat16 pairs do
// not bring them.
extern "C" void aril_foresee_delta(const void* arena, const void* table, const void* pieces, const void* parts, int64_t k,
                                   int64_t num_pieces, int64_t num_parts, int64_t size) {
#if !defined(__AVX512BF16__)
    using namespace aril;
    const auto* numbers = static_cast<const char*>(arena);
    const auto* piece = static_cast<const Piece*>(pieces);
    foreseen().clear();
    for (int64_t at = 0, slot = 0; at < num_pieces && piece[at].tokens() > 0; slot = piece[at++].slot) {
        const Entry* entries = static_cast<const Entry*>(table) + piece[at].slot * num_parts;
        for (int64_t part = 0; part < num_parts && piece[at].slot != slot; part++) {
            const Entry& e = entries[part];
            if (e.rank == 0) continue;
            foreseen().add(numbers + e.a_at * size, e.rank * k * size);
            foreseen().add(numbers + e.b_at * size, e.rank * static_cast<const Part*>(parts)[part].size * size);
        }
    }
#endif
}

ARIL_TAPED(aril_add_delta)
ARIL_TAPED(aril_foresee_delta)
