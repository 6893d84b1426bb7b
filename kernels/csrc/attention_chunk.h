// One chunk of attention and how chunks are joined (AVX512_BF16): scores to weights, and states of online softmax.
#pragma once

#include "attention.h"
#include "attention_tiles.h"

#if defined(__AVX512BF16__)

namespace aril {
namespace {

constexpr int64_t KEYS = 128;        // positions of one chunk

struct Layout {  // of what is kept of n queries with one key head
    int64_t n, width;
    static Layout of(int64_t tokens, const Shape& s) { return {tokens * s.shared(), (s.dim + DIMS - 1) / DIMS * DIMS}; }
    int64_t lanes() const { return (n + W - 1) / W * W; }
    int64_t size() const { return n * width + 2 * lanes(); }
    float* highest(float* part) const { return part + n * width; }
    float* total(float* part) const { return highest(part) + lanes(); }
};

// Scores [count] become weights relative to the highest; `from` and `to` bound what the query sees.
void soften(bf16* weights, float* scores, int64_t count, int64_t from, int64_t to, const Shape& s, float* highest, float* total) {
    const vf scale = splat(s.softcap > 0 ? s.scale : s.scale * LOG2E), cap = splat(s.softcap);
    vf top = splat(NOTHING);
    for (int64_t t = 0; t < count; t += W) {
        vf v = load(scores + t) * scale;
        if (s.softcap > 0) v = (cap - cap * 2.0f / (exp2(v * (2.0f * LOG2E) / cap) + 1.0f)) * LOG2E;  // cap * tanh(v / cap)
        const auto bit = [t](int64_t end) { return (1u << std::max<int64_t>(0, std::min<int64_t>(end - t, W))) - 1; };
        v = (vf)_mm512_mask_mov_ps((__m512)splat(-INFINITY), __mmask16(bit(to) & ~bit(from)), (__m512)v);
        store(scores + t, v);
        top = max(v, top);
    }
    const float peak = _mm512_reduce_max_ps((__m512)top);
    const vu ones = vu{} + 0x3f803f80u;
    vf sums = {};
    for (int64_t t = 0; t < count; t += 2 * W) {
        const vf low = exp2(load(scores + t) - peak), high = exp2(load(scores + t + W) - peak);
        const vu both = (vu)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
        memcpy(weights + t, &both, sizeof both);
        sums = dots(sums, both, ones);
    }
    *highest = peak;
    *total = _mm512_reduce_add_ps((__m512)sums);
}

// What earlier chunks gave, in `state`, and the next one's part.
void join(float* state, float* part, const Layout& layout) {
    float *highest = layout.highest(state), *theirs = layout.highest(part);
    float *total = layout.total(state), *more = layout.total(part);
    for (int64_t i = 0; i < layout.n; i += W) {
        const vf old = load(highest + i), next = load(theirs + i), peak = max(next, old);
        const vf kept = exp2(old - peak), added = exp2(next - peak);
        store(highest + i, peak);
        store(total + i, (vf)_mm512_fmadd_ps((__m512)load(total + i), (__m512)kept, (__m512)(load(more + i) * added)));
        float keep[W], add[W];
        store(keep, kept), store(add, added);
        for (int64_t r = i; r < std::min(i + W, layout.n); r++) {
            const vf a = splat(keep[r - i]), b = splat(add[r - i]);
            float *sums = state + r * layout.width, *other = part + r * layout.width;
            for (int64_t d = 0; d < layout.width; d += W)
                store(sums + d, (vf)_mm512_fmadd_ps((__m512)load(sums + d), (__m512)a, (__m512)(load(other + d) * b)));
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

#endif
