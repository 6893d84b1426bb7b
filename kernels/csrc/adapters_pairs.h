// The adapters' products of bfloat16 by pairs, which the machine multiplies and adds onto a float32 in one go
// (VDPBF16PS). Rows of A meet rows of x as both lie in memory; two rows of B are made one of pairs on their way.
//
// What comes of the first product meets the second as bfloat16, as it does in PEFT. The chain of operations of every result is
// the same whatever tile it is in: tiles differ in how much they read at once.
#pragma once

#include "adapters.h"

#if defined(__AVX512BF16__)
namespace aril {

class Pairs {
    static constexpr int PAIRS = 16, NUMBERS = 32;  // in a vector

public:
    static constexpr bool PREPARES = false;
    static constexpr int64_t READING = 12, TOKENS = 0;

    struct Hands {};

    explicit Pairs(const Call<bf16>& call) : c_(call), width_((call.highest + PAIRS - 1) / PAIRS * PAIRS) {}

    int64_t room() const { return c_.adapted * c_.num_parts * width_ / 2; }

    void prepare(const Piece&) const {}

    void shrink(Hands&, const Piece& piece, int64_t part, Range ranks, const Matrix<bf16>& next) const {
        const int64_t count = ranks.end - ranks.begin;
        Upcoming upcoming(next, times(PAIRS, count) * times(NUMBERS, c_.k));  // by the smallest tiles
        for (int64_t r = ranks.begin; r < ranks.end; r += MOST_RANKS)
            shrink_by(piece, part, Range(r, std::min(r + MOST_RANKS, ranks.end)), upcoming);
    }

    void expand(Hands&, const Piece& piece, int64_t part, Range columns, const Matrix<bf16>& next) const {
        const int64_t strips = times(4 * NUMBERS, columns.end - columns.begin), rank = c_.entry(piece, part).rank;
        Upcoming upcoming(next, strips * times(2, rank)), nothing, *ahead = &upcoming;  // the first tokens bring it
        for (int64_t at = piece.start; at < piece.end; ahead = &nothing) {
            const int tokens = int(std::min<int64_t>(8, piece.end - at));
            const auto strips = tokens == 1   ? &Pairs::strips<1, 4>
                                : tokens == 2 ? &Pairs::strips<2, 4>
                                : tokens <= 4 ? &Pairs::strips<4, 2>
                                              : &Pairs::strips<8, 1>;
            (this->*strips)(tokens, at, piece, part, columns, *ahead);
            at += tokens;
        }
    }

private:
    // A few rows of A, which stay in the cache for all tokens.
    void shrink_by(const Piece& piece, int64_t part, Range ranks, Upcoming& next) const {
        const bf16* a = c_.arena + c_.entry(piece, part).a_at + ranks.begin * c_.k;
        Upcoming nothing, *ahead = &next;  // the first tokens bring it
        for (int64_t at = piece.start; at < piece.end; ahead = &nothing) {
            const int tokens = int(std::min<int64_t>(4, piece.end - at));
            const auto dots = tokens == 1 ? &Pairs::dots<1> : tokens == 2 ? &Pairs::dots<2> : &Pairs::dots<4>;
            (this->*dots)(tokens, at, part, a, ranks, *ahead);
            at += tokens;
        }
    }

    static int64_t times(int64_t width, int64_t count) { return (count + width - 1) / width; }

    static ARIL_INLINE __m512 onto(__m512 sum, __m512i a, __m512i b) {
        return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
    }

    static ARIL_INLINE __mmask32 first_of(int64_t count) {
        return count >= NUMBERS ? ~__mmask32(0) : (__mmask32(1) << std::max<int64_t>(count, 0)) - 1;
    }

    // What a token's part was shrunk to: [width_].
    bf16* shrunk(int64_t at, int64_t part) const {
        return reinterpret_cast<bf16*>(c_.scratch) + (at * c_.num_parts + part) * width_;
    }

    // 16 / M rows of A times M tokens. Where there are fewer, the last one stands in for those that are missing.
    template <int M>
    void dots(int tokens, int64_t at, int64_t part, const bf16* a, Range ranks, Upcoming& next) const {
        constexpr int R = PAIRS / M;
        const int count = int(ranks.end - ranks.begin);
        const bf16* x[M];
        for (int m = 0; m < M; m++) x[m] = c_.x + c_.order[at + std::min(m, tokens - 1)] * c_.x_stride;
        for (int r = 0; r < count; r += R) {
            const bf16* rows[R];
            for (int j = 0; j < R; j++) rows[j] = a + std::min(r + j, count - 1) * c_.k;
            __m512 sums[PAIRS] = {};
            const auto step = [&](int64_t i, auto load) ARIL_INLINE_LAMBDA {
                __m512i values[M];
#pragma GCC unroll 4
                for (int m = 0; m < M; m++) values[m] = load(x[m] + i);
#pragma GCC unroll 16
                for (int j = 0; j < R; j++) {
                    const __m512i row = load(rows[j] + i);
#pragma GCC unroll 4
                    for (int m = 0; m < M; m++) sums[m * R + j] = onto(sums[m * R + j], row, values[m]);
                }
                next.step();
            };
            int64_t i = 0;
            for (; i + NUMBERS <= c_.k; i += NUMBERS) step(i, [](const bf16* p) { return _mm512_loadu_si512(p); });
            const __mmask32 rest = first_of(c_.k - i);
            if (rest) step(i, [=](const bf16* p) { return _mm512_maskz_loadu_epi16(rest, p); });
            keep<M>(tokens, sums_of(sums), count - r, shrunk(at, part) + ranks.begin + r);
        }
    }

    // Lane i is the sum of the lanes of v[i], of which always the two furthest apart are added first.
    static ARIL_INLINE __m512 sums_of(const __m512* v) {
        __m512 quarters[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            const __m512 low = halves(v[i], v[4 + i]), high = halves(v[8 + i], v[12 + i]);
            quarters[i] = _mm512_shuffle_f32x4(low, high, 0x88) + _mm512_shuffle_f32x4(low, high, 0xdd);
        }
        const __m512 low = pairs(quarters[0], quarters[1]), high = pairs(quarters[2], quarters[3]);
        return _mm512_shuffle_ps(low, high, 0x88) + _mm512_shuffle_ps(low, high, 0xdd);
    }

    static ARIL_INLINE __m512 halves(__m512 a, __m512 b) {
        return _mm512_shuffle_f32x4(a, b, 0x44) + _mm512_shuffle_f32x4(a, b, 0xee);
    }

    static ARIL_INLINE __m512 pairs(__m512 a, __m512 b) {
        return _mm512_shuffle_ps(a, b, 0x44) + _mm512_shuffle_ps(a, b, 0xee);
    }

    // Zeros fill the row up: a pair of B that is half missing must meet one.
    template <int M>
    void keep(int tokens, __m512 sums, int ranks, bf16* to) const {
        constexpr int R = PAIRS / M;
        constexpr uint16_t EACH = M == 1 ? 1 : M == 2 ? 0x0101 : 0x1111;
        const uint16_t real = uint16_t(ranks >= R ? 0xffff : EACH * ((1 << ranks) - 1));
        const __m512 values = _mm512_maskz_mov_ps(real, sums);
        bf16 kept[PAIRS];
        _mm256_storeu_si256((__m256i*)kept, (__m256i)_mm512_cvtneps_pbh(values));
        for (int m = 0; m < tokens; m++) memcpy(to + m * c_.num_parts * width_, kept + m * R, R * sizeof(bf16));
    }

    template <int M, int C>
    void strips(int tokens, int64_t at, const Piece& piece, int64_t part, Range columns, Upcoming& next) const {
        for (int64_t i = columns.begin; i < columns.end; i += C * NUMBERS)
            strip<M, C>(tokens, at, piece, part, i, columns.end - i, next);
    }

    // M tokens times C * 32 columns of B, added to y. Columns are in the order in which pairs are made: the lower and the
    // upper four of each eight.
    template <int M, int C>
    void strip(int tokens, int64_t at, const Piece& piece, int64_t part, int64_t first, int64_t width, Upcoming& next) const {
        const Entry& e = c_.entry(piece, part);
        const int64_t size = c_.parts[part].size;
        const bf16* b = c_.arena + e.b_at + first;
        const bf16* h[M];
        for (int m = 0; m < M; m++) h[m] = shrunk(at + std::min(m, tokens - 1), part);
        __mmask32 real[C];
        for (int c = 0; c < C; c++) real[c] = first_of(width - c * NUMBERS);
        __m512 low[M][C] = {}, high[M][C] = {};
        const auto step = [&](int64_t r, bool both) ARIL_INLINE_LAMBDA {
            __m512i lower[C], upper[C];
#pragma GCC unroll 4
            for (int c = 0; c < C; c++) {
                const bf16* p = b + r * size + c * NUMBERS;
                const __m512i one = _mm512_maskz_loadu_epi16(real[c], p);
                const __m512i other = both ? _mm512_maskz_loadu_epi16(real[c], p + size) : __m512i{};
                lower[c] = _mm512_unpacklo_epi16(one, other);
                upper[c] = _mm512_unpackhi_epi16(one, other);
            }
#pragma GCC unroll 8
            for (int m = 0; m < M; m++) {
                const __m512i value = pair_at(h[m] + r);
#pragma GCC unroll 4
                for (int c = 0; c < C; c++) {
                    low[m][c] = onto(low[m][c], value, lower[c]);
                    high[m][c] = onto(high[m][c], value, upper[c]);
                }
            }
            next.step();
        };
        int64_t r = 0;
        for (; r + 2 <= e.rank; r += 2) step(r, true);
        if (r < e.rank) step(r, false);
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
            if (m >= tokens) break;
            bf16* y = c_.y + c_.order[at + m] * c_.y_stride + c_.parts[part].column + first;
#pragma GCC unroll 4
            for (int c = 0; c < C; c++) add(y + c * NUMBERS, real[c], low[m][c], high[m][c]);
        }
    }

    static ARIL_INLINE __m512i pair_at(const bf16* p) {
        int32_t both;
        memcpy(&both, p, sizeof both);
        return _mm512_set1_epi32(both);
    }

    static ARIL_INLINE void add(bf16* y, __mmask32 real, __m512 low, __m512 high) {
        const __m512i was = _mm512_maskz_loadu_epi16(real, y);
        low += (__m512)_mm512_unpacklo_epi16(__m512i{}, was);
        high += (__m512)_mm512_unpackhi_epi16(__m512i{}, was);
        const __m512i fours = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
        const __m512i is = _mm512_permutexvar_epi64(fours, (__m512i)_mm512_cvtne2ps_pbh(high, low));
        if (real == ~__mmask32(0)) return _mm512_storeu_si512(y, is);
        _mm512_mask_storeu_epi16(y, real, is);
    }

    const Call<bf16>& c_;
    const int64_t width_;  // of a row in scratch memory, in whole vectors
};

}  // namespace aril
#endif
