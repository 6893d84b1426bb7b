// Readers of codes for machines that multiply pairs of bfloat16: a lane of 32 bits becomes the values of two k of one output.
// Every value is exact in bfloat16, or is given as the sum of two that are.
//
// A word of a plane (codes.h) is two halves of 16 bits, which hold the fields of neighbouring k one after the other: field j of
// both halves is a pair, so a shift brings it to the low bits of both, and one permutation of 16-bit entries looks both up.
#pragma once

#include "dots.h"

#if defined(__AVX512BF16__) && defined(__AVX512VBMI__)
#define ARIL_PAIRS 1

namespace aril {

// The values of fields, each entry again and again where a code has fewer than 6 bits; of a codebook what the first entry
// is short of stands in the second. Bytes: the value of the low 7 bits; the eighth is its sign.
struct PairTables {
    alignas(64) bf16 fields[2][64];
    alignas(64) uint8_t low[128], high[128];
};

ARIL_INLINE __m512i integers_at(const void* p) { return _mm512_loadu_si512(p); }

// Words of LOW bits and, if HIGH, of the bits above them; TERMS values are added up for each code.
template <int LOW, int HIGH, int TERMS>
class FieldPairs {
public:
    static constexpr int PAIRS = 16 / LOW, BYTES = (LOW + HIGH) * NR * 2 * PAIRS / 8;  // of a unit: one word of each output
    static constexpr int COUNT = TERMS, HALF = PAIRS;  // the inputs of a pair are HALF apart

    struct Unit {
        __m512i low[2], high[2];
    };

    FieldPairs(const void* const* planes, const PairTables& tables, int64_t k, int64_t panel)
        : low_(words(planes[0], LOW, k, panel)), high_(HIGH ? words(planes[1], HIGH, k, panel) : nullptr) {
        for (int i = 0; i < 2; i++) tables_[i] = integers_at(TERMS == 2 ? tables.fields[i] : tables.fields[0] + 32 * i);
    }

    ARIL_INLINE void open(Unit& unit, int64_t at) const {
        for (int i = 0; i < 2; i++) unit.low[i] = integers_at(low_ + at * NR + i * W);
        if (!HIGH) return;
        constexpr int SHARING = HIGH ? LOW / (HIGH ? HIGH : 1) : 1;
        const __m128i above = _mm_cvtsi64_si128(at % SHARING * HIGH * PAIRS);
        for (int i = 0; i < 2; i++) unit.high[i] = _mm512_srl_epi32(integers_at(high_ + at / SHARING * NR + i * W), above);
    }

    ARIL_INLINE void read(const Unit& unit, int j, __m512i (&w)[TERMS][2]) const {
        for (int i = 0; i < 2; i++) {
            __m512i code = _mm512_srli_epi32(unit.low[i], unsigned(LOW * j));
            if (HIGH) {
                const int left = LOW - HIGH * j;
                const __m512i high = (__m512i)(left >= 0 ? (vu)unit.high[i] << uint32_t(left) : (vu)unit.high[i] >> uint32_t(-left));
                code = _mm512_ternarylogic_epi32(_mm512_set1_epi16((1 << LOW) - 1), code, high, 0xca);  // the mask's bits of code
            }
            if (LOW + HIGH == 6) {
                w[0][i] = _mm512_permutex2var_epi16(tables_[0], code, tables_[1]);
                continue;
            }
            for (int t = 0; t < TERMS; t++) w[t][i] = _mm512_permutexvar_epi16(code, tables_[t]);
        }
    }

    ARIL_INLINE void fetch(int64_t at, int64_t bytes) const {
        for (int i = 0; i < 2; i++) prefetch(reinterpret_cast<const char*>(low_ + at * NR + i * W) + bytes);
        for (int i = 0; HIGH && i < 2; i++) prefetch(reinterpret_cast<const char*>(high_ + at * HIGH / LOW * NR + i * W) + bytes);
    }

private:
    static const uint32_t* words(const void* plane, int bits, int64_t k, int64_t panel) {
        return static_cast<const uint32_t*>(plane) + panel * ((k * bits + 31) / 32) * NR;
    }

    const uint32_t *const low_, *const high_;
    __m512i tables_[2];
};

// Bytes of a sign and seven bits, [K / 2][NR][2] in the order of PLACE, with k filled up to whole units.
class BytePairs {
public:
    static constexpr int PAIRS = 4, BYTES = 2 * PAIRS * NR, COUNT = 1, HALF = 1;

    struct Unit {
        const uint8_t* at;
    };

    BytePairs(const void* const* planes, const PairTables& tables, int64_t k, int64_t panel)
        : at_(static_cast<const uint8_t*>(planes[0]) + panel * ((k + 7) / 8) * BYTES) {
        for (int i = 0; i < 2; i++) low_[i] = integers_at(tables.low + 64 * i), high_[i] = integers_at(tables.high + 64 * i);
    }

    ARIL_INLINE void open(Unit& unit, int64_t at) const { unit.at = at_ + at * BYTES; }

    ARIL_INLINE void read(const Unit& unit, int j, __m512i (&w)[1][2]) const {
        const __m512i bytes = integers_at(unit.at + j * 2 * NR);
        const __m512i low = _mm512_permutex2var_epi8(low_[0], bytes, low_[1]);
        __m512i high = _mm512_permutex2var_epi8(high_[0], bytes, high_[1]);
        high = _mm512_ternarylogic_epi32(_mm512_set1_epi8(-128), bytes, high, 0xea);  // the sign of bytes as well
        w[0][0] = _mm512_unpacklo_epi8(low, high);
        w[0][1] = _mm512_unpackhi_epi8(low, high);
    }

    ARIL_INLINE void fetch(int64_t at, int64_t bytes) const {
        for (int i = 0; i < BYTES; i += 64) prefetch(at_ + at * BYTES + i + bytes);
    }

private:
    const uint8_t* const at_;
    __m512i low_[2], high_[2];
};

}  // namespace aril
#endif
