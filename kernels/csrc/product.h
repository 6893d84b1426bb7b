// out[M, N] = x[M, K] times W^T for a weight in panels of NR outputs, whatever its panels are made of. x becomes float32 once
// per call where it is not multiplied as it is, sums are float32, and the result is rounded once, to the type of `out`.
//
// A `Weights` type answers
//     cuts(rows)                  into how many blocks of k so many rows are multiplied
//     block(cut, cuts)            the range of one of them
//     multiply(rows, sums, stride, x, x_stride, panels, ks, onto)
//                                 sums[rows, NR of each panel] = (or continues with) x[rows, ks] times some panels; x begins
//                                 at input 0
#pragma once

#include <type_traits>

#include "foreseen.h"
#include "gate.h"

namespace aril {

constexpr int64_t ROWS = 96;   // rows of x that stay in L2 while the panels pass by
constexpr int64_t PANELS = 8;  // of one task, whose partial sums stay in L2 when k is cut
constexpr int64_t PAIR = 2;    // of each part at once when it is not
static_assert(2 * PAIR <= PANELS, "sums of a task have room for PANELS");
constexpr int64_t TASKS = 2;   // for each thread at least: one that is held up must not hold up the others (4: up to 7% slower)

// run(`out` as what it points to)
template <class Run>
void typed(void* out, int64_t dtype, Run run) {
    dtype == BF16 ? run(static_cast<bf16*>(out)) : run(static_cast<float*>(out));
}

struct Product {
    int64_t m, n, k, x_stride;  // n: outputs of a part
    int64_t parts = 1;          // 2: the weight is a gate and what it lets through, each of whole panels; their results become one
    int64_t panels() const { return (n + NR - 1) / NR; }
    double work() const { return double(m + 3) * double(n * parts * k) / W; }  // reading the weight is worth three rows
};

// Sums of a row become its result; those of the second part lie `apart`.
template <class Out>
ARIL_INLINE void finish(Out* out, const float* sums, int64_t apart, int64_t width, const Product& p) {
    if (p.parts == 1) return copy(out, sums, width);
    for (int64_t i = 0; i < width; i += W)
        store(out + i, gated<Out>(rounded<Out>(load(sums + i)), rounded<Out>(load(sums + apart + i))));
}

// Rows top .. top + height of the result in the columns of some panels: all panels through one block of k after the other.
template <class Out, class Weights>
void task(Out* out, const typename Weights::In* x, const Weights& w, const Product& p, int64_t top, int64_t height, Range panels) {
    const int64_t cuts = w.cuts(height), all = cuts == 1 ? PAIR * p.parts : PANELS, group = all / p.parts;
    float sums[ROWS * PANELS * NR];
    for (int64_t first = panels.begin; first < panels.end; first += group) {
        const int64_t last = std::min(first + group, panels.end);
        for (int64_t part = 0; part < p.parts; part++)
            for (int64_t cut = 0, skip = part * p.panels(); cut < cuts; cut++)
                w.multiply(height, sums + part * group * NR, all * NR, x + top * p.x_stride, p.x_stride,
                           Range(first + skip, last + skip), w.block(cut, cuts), cut > 0);
        const int64_t column = first * NR, width = std::min((last - first) * NR, p.n - column);
        for (int64_t i = 0; i < height; i++) finish(out + (top + i) * p.n + column, sums + i * all * NR, group * NR, width, p);
    }
}

// All of a product. Panels are the inner tasks: rows of x stay in L2.
template <class Out, class Weights>
void tasks(Out* out, const typename Weights::In* x, const Weights& w, const Product& p, int threads) {
    const int64_t down = (p.m + ROWS - 1) / ROWS, panels = p.panels();
    const int64_t across = tasks_of(panels, PANELS, threads, TASKS);
    const Foreseen& next = foreseen();
    share(threads, down * across, [&](int64_t at) {
        const int64_t top = at / across * ROWS, height = std::min(ROWS, p.m - top);
        const Range some(panels, at % across, across);
        const bool waits_for_products = p.m > MR && down == 1;
        if (waits_for_products)
            bringer = Bringer(next, Range(next.bytes(), at, across), (some.end - some.begin) * p.parts * p.k * tiles_of(height));
        task(out, x, w, p, top, height, some);
        bringer = {};
    });
}

// Whether a tile reads such rows well where they lie: in whole pairs, and not all from the same set of L1.
inline bool in_place(const Product& p, const bf16*) { return p.k % 2 == 0 && (p.m < 8 || p.x_stride % 512 != 0); }

inline bool in_place(const Product&, const float*) { return true; }

// `order`, if not null, names for each input of the weight the one of x that it meets.
template <class Out, class X, class Weights>
void product(Out* out, const X* x, const int64_t* order, const Weights& w, Product p, int64_t cores) {
    using In = typename Weights::In;
    const int threads = worth(cores, p.work());
    if constexpr (std::is_same_v<X, In>)
        if (!order && in_place(p, x)) return tasks(out, x, w, p, threads);
    static thread_local Scratch scratch;
    const int64_t stride = (p.k + 31) / 32 * 32 + 32;  // never a power of two: rows of x must not share one cache set
    In* rows = reinterpret_cast<In*>(scratch.get(p.m * stride));
    share_ranges(worth(cores, double(p.m) * p.k / W), p.m, [&](Range some) {
        for (int64_t i = some.begin; i < some.end; i++) {
            In* to = rows + i * stride;
            if (!order) copy(to, x + i * p.x_stride, p.k);
            for (int64_t k = 0; order && k < p.k; k++) put(to + k, get(x + i * p.x_stride + order[k]));
            put(to + p.k, 0.0f);  // the other half of an odd k's last pair
        }
    });
    p.x_stride = stride;
    tasks(out, rows, w, p, threads);
}

}  // namespace aril
