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

#if defined(__AVX512F__)
constexpr float NOTHING = -3.0e38f;  // the highest score of no score: a number, so that no difference is NaN
constexpr float LOG2E = 1.44269504088896341f;

// 2^x to 1e-7; what is hidden (-inf) gives 0.
ARIL_INLINE vf exp2(vf x) {
    const vf bounded = (vf)_mm512_max_ps((__m512)splat(-200.0f), (__m512)x);  // NaN stays
    const vf whole = (vf)_mm512_roundscale_ps((__m512)bounded, 0), r = bounded - whole;
    vf p = splat(1.32647e-3f);
    p = p * r + 9.67151e-3f;
    p = p * r + 5.550734e-2f;
    p = p * r + 2.4022242e-1f;
    p = p * r + 6.9314698e-1f;
    p = p * r + 1.0f;
    return (vf)_mm512_scalef_ps((__m512)p, (__m512)whole);
}

#endif

}  // namespace aril
