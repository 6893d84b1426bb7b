// What the ways to compute attention share: attention.cpp in float32, attention_dots.cpp by dot products of bfloat16,
// attention_amx.cpp in tile registers.
#pragma once

#include "common.h"

namespace aril {

struct Shape {
    int64_t rows, heads, kv_heads, dim, block_size, max_blocks, q_stride;
    float scale, softcap;  // softcap 0: none
    int64_t window;        // 0: none
    int64_t shared() const { return heads / kv_heads; }
};

template <class T>
struct Tensors {
    T* out;
    const T *q, *k_cache, *v_cache;
    const int32_t *query_start, *seq_lens, *block_table;
};

// Need AVX512_BF16 and AMX; not defined elsewhere.
void attend_by_dots(const Tensors<bf16>& tensors, const Shape& shape, int64_t cores);
void attend_by_tiles(const Tensors<bf16>& tensors, const Shape& shape, int64_t cores);

constexpr float NOTHING = -3.0e38f;  // the highest score of no score: a number, so that no difference is NaN
constexpr float LOG2E = 1.44269504088896341f;

// 2^x of x up to 1, to about 1 ulp; what is hidden (-inf) gives 0.
ARIL_INLINE vf exp2(vf x) {
#if defined(__AVX512F__)
    const vf bounded = (vf)_mm512_max_ps((__m512)splat(-200.0f), (__m512)x);  // NaN stays
    const vf whole = (vf)_mm512_roundscale_ps((__m512)bounded, 0), r = bounded - whole;
#else
    const vf low = splat(-126.0f), magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest whole number
    const vf bounded = x < low ? low : x, whole = (bounded + magic) - magic, r = bounded - whole;
#endif
    vf p = splat(1.535336188e-4f);  // exp2f of Cephes
    p = p * r + 1.339887440e-3f;
    p = p * r + 9.618437358e-3f;
    p = p * r + 5.550332471e-2f;
    p = p * r + 2.402264791e-1f;
    p = p * r + 6.931472029e-1f;
    p = p * r + 1.0f;
#if defined(__AVX512F__)
    return (vf)_mm512_scalef_ps((__m512)p, (__m512)whole);
#else
    const vf scaled = (vf)((vi)p + (__builtin_convertvector(whole, vi) << 23));
    return x < low ? vf{} : scaled;
#endif
}

}  // namespace aril
