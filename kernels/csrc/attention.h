// What the two ways to compute attention share: attention.cpp in float32, attention_dots.cpp by dot products of bfloat16.
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

// Needs AVX512_BF16; not defined elsewhere.
void attend_by_dots(const Tensors<bf16>& tensors, const Shape& shape, int64_t cores);

}  // namespace aril
