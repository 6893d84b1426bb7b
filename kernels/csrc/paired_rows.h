// Rows of bfloat16 as weights in codes meet them (pairs.h): in their pairs, and cut into pieces of a group.
#pragma once

#include "codes.h"

#if defined(ARIL_PAIRS)
namespace aril {

constexpr int64_t PIECE = 256;  // inputs under one inner product at most: a multiple of every unit

// How k is cut.
struct Cut {
    int64_t k, group;

    int64_t in_group() const { return (group + PIECE - 1) / PIECE; }
    int64_t pieces() const { return (k + group - 1) / group * in_group(); }
    int64_t piece_at(int64_t group_at) const { return group_at * in_group(); }
};

// Rows of x in the pairs of the codes, and the sums of their pieces.
struct PairedRows {
    const bf16* pairs;  // [rows][stride]
    const float* sums;  // [rows][sums_stride]; null where no offset needs them
    int64_t stride, sums_stride;

    PairedRows from(int64_t row, int64_t k, int64_t piece) const {
        return {pairs + row * stride + k, sums ? sums + row * sums_stride + piece : nullptr, stride, sums_stride};
    }
};

// x[k] of one row, 0 beyond k, with the inputs HALF apart in each unit of 2 * HALF side by side.
inline void pair_row(bf16* to, const bf16* x, const int64_t* order, int64_t k, int half) {
    alignas(64) uint16_t places[2 * W], ordered[2 * W];
    for (int i = 0; i < 2 * W; i++) places[i] = uint16_t(i / 2 / half * 2 * half + i / 2 % half + i % 2 * half);
    const __m512i place = integers_at(places);
    for (int64_t at = 0; at < k; at += 2 * W) {
        const int64_t count = std::min<int64_t>(2 * W, k - at);
        for (int64_t i = 0; order && i < count; i++) ordered[i] = x[order[at + i]];
        const __mmask32 there = count == 2 * W ? ~0u : (1u << count) - 1;
        const __m512i some = _mm512_maskz_loadu_epi16(there, order ? ordered : x + at);
        _mm512_storeu_si512(to + at, _mm512_permutexvar_epi16(place, some));
    }
}

// The sums of the pieces of a row that `pair_row` has made, which keeps a piece's inputs together.
inline void sum_pieces(float* to, const bf16* x, const Cut& cut) {
    const int64_t filled = (cut.k + 2 * W - 1) / (2 * W) * 2 * W;
    for (int64_t first = 0; first < cut.k; first += cut.group)
        for (int64_t at = first, end = std::min(cut.k, first + cut.group); at < end; at += PIECE) {
            const int64_t last = std::min(end, at + PIECE) == cut.k ? filled : std::min(end, at + PIECE);
            vf sums = {};
            for (int64_t i = at; i < last; i += 2 * W) {
                const __mmask32 there = last - i >= 2 * W ? ~0u : (1u << (last - i)) - 1;
                sums = dot_pairs(sums, (vf)_mm512_maskz_loadu_epi16(there, x + i), (vf)_mm512_set1_epi16(0x3f80));  // times 1
            }
            *to++ = sum(sums);
        }
}

// Where the factors of P panels stand, from the first group of a range on; `stride` from panel to panel.
struct PanelFactors {
    const float *scales, *offsets;
    int64_t stride;
};

}  // namespace aril
#endif
