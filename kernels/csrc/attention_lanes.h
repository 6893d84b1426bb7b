// Softmax with a query in each lane (AVX512_BF16): scores [keys][TILE] to weights and back from sums to rows of the result.
#pragma once

#include "attention_amx.h"

#if defined(ARIL_TILES)

namespace aril {
namespace {

// What sixteen queries see of a chunk: keys from .. to for each, which all of them see from `clear.begin` to `clear.end`.
struct Sight {
    vi from, to;
    Range clear;

    // `ends` [TILE], in rising order: one past the last position that each sees; `begin`: of the chunk.
    static Sight of(const int32_t* ends, int64_t begin, int64_t window) {
        vi to;
        memcpy(&to, ends, sizeof to);
        to -= int32_t(begin);
        if (!window) return {vi{}, to, Range(0, ends[0] - begin)};
        return {to - int32_t(window), to, Range(std::max<int64_t>(0, ends[TILE - 1] - window - begin), ends[0] - begin)};
    }
};

// Keys from .. to of a chunk in whole units.
inline Range whole_units(int64_t from, int64_t to) {
    return Range(std::max<int64_t>(0, from) / TILE_INPUTS * TILE_INPUTS, (to + TILE_INPUTS - 1) / TILE_INPUTS * TILE_INPUTS);
}

// 2^x, to 1e-4 before it is rounded: half of the last of bfloat16's places is in it already, so that cutting the rest off
// rounds. What is hidden (-inf) gives 0.
ARIL_INLINE vu weight(vf x) {
    const vf part = (vf)_mm512_reduce_ps((__m512)x, 0x09);  // x less the whole number below it
    vf p = splat(7.802449e-2f);
    p = p * part + 2.2606758e-1f;
    p = p * part + 6.9583318e-1f;
    p = p * part + (0.99992528f + 0x1p-8f);
    return (vu)_mm512_scalef_ps((__m512)p, (__m512)x);
}

// Scores as they are compared, in place: with a cap, or turned round by a scale below 0.
inline void transform(float* scores, Range keys, const Shape& s) {
    const vf cap = splat(s.softcap);
    for (int64_t t = keys.begin; t < keys.end; t++) {
        vf v = load(scores + t * TILE) * s.scale;
        if (s.softcap > 0) v = cap - cap * 2.0f / (exp2(v * (2.0f * LOG2E) / cap) + 1.0f);  // cap * tanh(v / cap)
        store(scores + t * TILE, v);
    }
}

inline void hide(float* scores, Range keys, const Sight& sight) {
    for (int64_t t = keys.begin; t < keys.end; t++) {
        if (t == sight.clear.begin) t = std::max(t, sight.clear.end);
        if (t >= keys.end) return;
        const __m512i at = _mm512_set1_epi32(int(t));
        const __mmask16 seen = _mm512_cmple_epi32_mask((__m512i)sight.from, at) & _mm512_cmpgt_epi32_mask((__m512i)sight.to, at);
        store(scores + t * TILE, (vf)_mm512_mask_mov_ps((__m512)splat(-INFINITY), seen, (__m512)load(scores + t * TILE)));
    }
}

ARIL_INLINE vf highest_of(const float* scores, Range keys) {
    vf top[4] = {splat(NOTHING), splat(NOTHING), splat(NOTHING), splat(NOTHING)};
    for (int64_t t = keys.begin; t < keys.end; t += 4)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) top[i] = max(load(scores + (t + i) * TILE), top[i]);
    return max(max(top[0], top[1]), max(top[2], top[3]));
}

// Scores of `keys`, whole units, become weights relative to the highest, in place: those of two keys as pairs in the row of the
// first. `meanwhile` is called every sixteen keys.
template <class Meanwhile>
ARIL_INLINE void weigh(float* scores, Range keys, const Sight& sight, const Shape& s, float* highest, float* total,
                       const Meanwhile& meanwhile) {
    const bool plain = s.softcap <= 0 && s.scale > 0;
    if (!plain) transform(scores, keys, s);
    hide(scores, keys, sight);
    const vf factor = splat(plain ? s.scale * LOG2E : LOG2E), top = highest_of(scores, keys), none = splat(NOTHING);
    const vf peak = top > none ? top * factor : none, less = top > none ? -peak : vf{};
    const vu ones = vu{} + 0x3f803f80u;
    vf sums[4] = {};
    for (int64_t t = keys.begin; t < keys.end; t += TILE) {
#pragma GCC unroll 8
        for (int i = 0; i < TILE; i += 2) {
            float* at = scores + (t + i) * TILE;
            const vu even = weight((vf)_mm512_fmadd_ps((__m512)load(at), (__m512)factor, (__m512)less));
            const vu odd = weight((vf)_mm512_fmadd_ps((__m512)load(at + TILE), (__m512)factor, (__m512)less));
            const vu pair = (vu)_mm512_mask_mov_epi16((__m512i)odd, 0x55555555, (__m512i)(even >> 16));
            memcpy(at, &pair, sizeof pair);
            sums[i / 2 % 4] = dots(sums[i / 2 % 4], pair, ones);
        }
        meanwhile();
    }
    store(highest, peak);
    store(total, (sums[0] + sums[1]) + (sums[2] + sums[3]));
}

ARIL_INLINE vf joined(vf mine, vf theirs, vf kept, vf added) {
    return (vf)_mm512_fmadd_ps((__m512)mine, (__m512)kept, (__m512)(theirs * added));
}

// What is kept of sixteen queries: sums of values [width][TILE], their highest scores and totals of weights.
struct State {
    float* sums;
    int64_t width;
    float* highest() const { return sums + width * TILE; }
    float* total() const { return highest() + TILE; }

    void empty() const {
        std::fill(sums, highest(), 0.0f);
        std::fill(highest(), total(), NOTHING);
        std::fill(total(), total() + TILE, 0.0f);
    }

    void join(const State& part) const {
        const vf old = load(highest()), next = load(part.highest()), peak = max(next, old);
        const vf kept = exp2(old - peak), added = exp2(next - peak);
        const auto both = [&](float* mine, const float* theirs) {
            store(mine, joined(load(mine), load(theirs), kept, added));
        };
        store(highest(), peak);
        both(total(), part.total());
        for (int64_t d = 0; d < width; d++) both(sums + d * TILE, part.sums + d * TILE);
    }

    // Thirty-two dimensions from `d` on, a query in each row of `rows`.
    void put(bf16* rows, int64_t d) const {
        const vf share = splat(1.0f) / load(total());
        vu pairs[TILE];
        for (int64_t i = 0; i < TILE; i++) {
            const float* even = sums + (d + row_of(2 * i)) * TILE;
            pairs[i] = nearest(load(even) * share) >> 16 | (nearest(load(even + TILE) * share) & 0xffff0000u);
        }
        transpose16(rows, pairs);
    }
};

}  // namespace
}  // namespace aril

#endif
