// What is kept of the queries that share a key head, and how the parts of chunks are joined (online softmax, Milakov and
// Gimelshein 2018).
#pragma once

#include "attention.h"

namespace aril {
namespace {

struct Layout {  // of n queries: their sums, the highest score and the total of weights of each
    int64_t n, width;
    static Layout of(int64_t tokens, const Shape& s) { return {tokens * s.shared(), (s.dim + NR - 1) / NR * NR}; }
    int64_t lanes() const { return (n + W - 1) / W * W; }
    int64_t size() const { return n * width + 2 * lanes(); }
    float* highest(float* part) const { return part + n * width; }
    float* total(float* part) const { return highest(part) + lanes(); }
};

// What earlier chunks gave, in `state`, and the next one's part.
void join(float* state, float* part, const Layout& layout) {
    float *highest = layout.highest(state), *theirs = layout.highest(part);
    float *total = layout.total(state), *more = layout.total(part);
    for (int64_t i = 0; i < layout.n; i += W) {
        const vf old = load(highest + i), next = load(theirs + i), peak = max(next, old);
        const vf kept = exp2(old - peak), added = exp2(next - peak);
        store(highest + i, peak);
        store(total + i, fused(load(total + i), kept, load(more + i) * added));
        float keep[W], add[W];
        store(keep, kept), store(add, added);
        for (int64_t r = i; r < std::min(i + W, layout.n); r++) {
            const vf a = splat(keep[r - i]), b = splat(add[r - i]);
            float *sums = state + r * layout.width, *other = part + r * layout.width;
            for (int64_t d = 0; d < layout.width; d += W)
                store(sums + d, fused(load(sums + d), a, load(other + d) * b));
        }
    }
}

void empty(float* state, const Layout& layout) {
    std::fill(state, layout.highest(state), 0.0f);
    std::fill(layout.highest(state), layout.total(state), NOTHING);
    std::fill(layout.total(state), state + layout.size(), 0.0f);
}

}  // namespace
}  // namespace aril
