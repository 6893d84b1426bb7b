// Rows of a weight into panels of pairs.
#pragma once

#include "common.h"

namespace aril {

// One panel [pairs][NR][2]; block by block, so that what is written stays in L1 until all rows have given their share. What
// there is no number for becomes 0.
inline void pack_panel(bf16* out, const bf16* w, int64_t rows, int64_t k, int64_t stride) {
    constexpr int64_t BLOCK = 64;
    for (int64_t begin = 0; begin < k; begin += BLOCK) {
        const int64_t end = std::min(k, begin + BLOCK), whole = end / 2 * 2;
        for (int64_t i = 0; i < NR; i++) {
            const bf16* row = w + i * stride;
            bf16* to = out + i * 2;
            int64_t at = begin;
            for (; i < rows && at < whole; at += 2) memcpy(to + at * NR, row + at, 2 * sizeof(bf16));
            for (; at < end; at += 2) {
                to[at * NR] = i < rows ? row[at] : 0;
                to[at * NR + 1] = 0;
            }
        }
    }
}

}  // namespace aril
