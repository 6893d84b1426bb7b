// y[i] += (x[i] A^T) B for the adapter of each row, in two passes: shrink to the rank, then expand. What is read of an
// adapter's A and B serves all the tokens of a piece at once. Rows without an adapter are in no piece and are not touched.
#include "adapters_pairs.h"
#include "adapters_wide.h"
#include "tape.h"

namespace aril {
namespace {

constexpr int64_t READING = 12;   // tokens' products take as long as reading A and B
constexpr double UNEVEN = 1.4;    // times the fair share that a thread may be at when each does whole pieces and meets nobody;
constexpr int64_t COLUMNS = 256;  // else a task is so many columns of B, or MOST_RANKS rows of A: a tile fills up with zeros
                                  // what it has no rows for, which must be nobody else's

template <class T, class Products>
class Delta {
public:
    explicit Delta(Call<T>& call) : c_(call) {
        for (; filled_ < c_.num_pieces && c_.pieces[filled_].tokens() > 0; filled_++) {
            const Piece& piece = c_.pieces[filled_];
            c_.adapted = std::max<int64_t>(c_.adapted, piece.end);
            double work = 0;
            for (int64_t part = 0; part < c_.num_parts; part++) {
                const int64_t rank = c_.entry(piece, part).rank;
                c_.highest = std::max(c_.highest, rank);
                work += double(rank) * (c_.k + c_.parts[part].size) * (piece.tokens() + READING) / W;
            }
            work_ += work;
            most_ = std::max(most_, work);
        }
        for (int64_t part = 0; part < c_.num_parts; part++) widest_ = std::max(widest_, c_.parts[part].size);
    }

    void add(int64_t cores) {
        if (c_.highest == 0) return;
        static thread_local Scratch scratch;
        const Products products(c_);
        c_.scratch = scratch.get(products.room());
        const int threads = worth(cores, work_);
        is_even(threads) ? add_by_piece(products, threads) : add_by_block(products, threads);
    }

private:
    // Whether whole pieces, taken as they come, keep all threads busy nearly to the end.
    bool is_even(int threads) const {
        const double longest = std::min((filled_ + threads - 1) / threads * most_, work_ / threads + most_);
        return threads == 1 || longest <= UNEVEN * work_ / threads;
    }

    // Each A and B is read by one core, which has the next one brought while it works on one.
    void add_by_piece(const Products& products, int threads) {
        share(threads, filled_, [&](int64_t at) {
            const Piece& piece = c_.pieces[at];
            for (int64_t token = piece.start; Products::PREPARES && token < piece.end; token++) products.prepare(token);
            for (int64_t part = 0; part < c_.num_parts; part++)
                if (c_.entry(piece, part).rank > 0) add_part(products, at, part, threads);
        });
    }

    void add_part(const Products& products, int64_t at, int64_t part, int threads) {
        const Piece& piece = c_.pieces[at];
        const Entry& e = c_.entry(piece, part);
        const int64_t size = c_.parts[part].size;
        Upcoming b(c_.arena + e.b_at, e.rank * size, Products::shrinking_steps(c_.k, e.rank));
        for (int64_t r = 0; r < e.rank; r += MOST_RANKS)
            products.shrink(piece, part, Range(r, std::min(r + MOST_RANKS, e.rank)), b);
        Upcoming next = a_after(at, part, threads, Products::expanding_steps(size, e.rank));
        products.expand(piece, part, Range(0, size), next);
    }

    // The A of the next part, or of the piece that this thread will be at next.
    Upcoming a_after(int64_t at, int64_t part, int threads, int64_t steps) const {
        if (++part == c_.num_parts) part = 0, at += threads;
        if (at >= filled_) return Upcoming();
        const Entry& e = c_.entry(c_.pieces[at], part);
        return Upcoming(c_.arena + e.a_at, e.rank * c_.k, steps);
    }

    // Few adapters: the cores share each of them. With some rows of A come the same ones of B.
    void add_by_block(const Products& products, int threads) {
        if (Products::PREPARES) share(threads, c_.adapted, [&](int64_t at) { products.prepare(at); });
        each(threads, c_.highest, MOST_RANKS, [&](const Piece& piece, int64_t part, Range ranks) {
            const Entry& e = c_.entry(piece, part);
            const int64_t size = c_.parts[part].size, count = std::min(ranks.end, e.rank) - ranks.begin;
            if (count <= 0) return;
            Upcoming b(c_.arena + e.b_at + ranks.begin * size, count * size, Products::shrinking_steps(c_.k, count));
            products.shrink(piece, part, Range(ranks.begin, ranks.begin + count), b);
        });
        each(threads, widest_, COLUMNS, [&](const Piece& piece, int64_t part, Range columns) {
            columns.end = std::min(columns.end, c_.parts[part].size);
            Upcoming nothing;
            if (columns.begin < columns.end && c_.entry(piece, part).rank > 0) products.expand(piece, part, columns, nothing);
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

#if defined(__AVX512BF16__)
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

ARIL_TAPED(aril_add_delta)
