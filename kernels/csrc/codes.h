// Readers of a panel of codes in words: the values of one k for the NR outputs of the panel, as two vectors; bytes.h has those
// of bytes.
//
// A plane of 4, 2 or 1 bits is words [ceil(K / fields of a word)][NR]: one lane for each output, holding consecutive k from its
// low bits on. A reader opens UNIT consecutive k at once, or any single one. Where bfloat16 is multiplied in pairs, pairs.h says
// how the high planes lie; they are read here for float32.
#pragma once

#include "factors.h"
#include "pairs.h"

namespace aril {

constexpr int UNIT = 8;
constexpr int AHEAD = 4096;  // bytes that memory runs ahead of a reader. One core of Cascade Lake, 4096 x 4096, 1 row, 4 bits in
                             // groups of 32: 1.13 ms; one panel ahead, as in tile.h: 1.57 ms

// What the fields of a plane of B bits mean: a table of 16 numbers, which repeats itself after 2^B. The bits above a field are
// not looked at, where the machine has a permutation of a register for that.
template <int B, bool IS_TABLE>
class Meaning {
public:
#if defined(__AVX512F__)
    explicit Meaning(const float* table) : table_(load(table)) {}
    ARIL_INLINE vf operator()(vu fields) const { return (vf)_mm512_permutexvar_ps((__m512i)fields, (__m512)table_); }

private:
    const vf table_;
#elif defined(__AVX2__)
    explicit Meaning(const float* table) : low_(load(table)), high_(load(table + W)) {}
    ARIL_INLINE vf operator()(vu fields) const {
        if (B == 4 && !IS_TABLE) return __builtin_convertvector((vi)(fields & 15), vf);
        const __m256 low = _mm256_permutevar8x32_ps((__m256)low_, (__m256i)fields);
        if (B < 4) return (vf)low;
        const __m256 high = _mm256_permutevar8x32_ps((__m256)high_, (__m256i)fields);
        return (vf)_mm256_blendv_ps(low, high, (__m256)(fields << 28));
    }

private:
    const vf low_, high_;
#else
    explicit Meaning(const float* table) : table_(table) {}
    vf operator()(vu fields) const {
        fields &= (1u << B) - 1;
        if (!IS_TABLE) return __builtin_convertvector(fields, vf) * table_[1];
        vf found;
        for (int i = 0; i < W; i++) found[i] = table_[fields[i]];
        return found;
    }

private:
    const float* const table_;
#endif
};

// Words of B bits each in one plane of a panel; B = 0: there is no such plane.
template <int B>
class Plane {
public:
    static int64_t words(int64_t k) { return (k * B + 31) / 32; }

    Plane(const void* plane, int64_t k, int64_t panel) : at_(static_cast<const uint32_t*>(plane) + panel * words(k) * NR) {}

    // The words that hold field k, which becomes their lowest; `k` may be any.
    ARIL_INLINE void open(vu (&words)[2], int64_t k) const {
        words[0] = load_words(at_ + k * B / 32 * NR) >> uint32_t(k * B % 32);
        words[1] = load_words(at_ + k * B / 32 * NR + W) >> uint32_t(k * B % 32);
    }

    ARIL_INLINE void open_unit(vu (&words)[2], int64_t k) const {
        if (B * UNIT != 32) return open(words, k);
        words[0] = load_words(at_ + k / UNIT * NR);
        words[1] = load_words(at_ + k / UNIT * NR + W);
    }

    ARIL_INLINE void fetch(int64_t k) const {
        const char* at = reinterpret_cast<const char*>(at_) + k * NR * B / 8 + AHEAD;
        for (int i = 0; i < NR * B; i += 64) prefetch(at + i);
    }

private:
    static ARIL_INLINE vu load_words(const uint32_t* p) {
        vu words;
        memcpy(&words, p, sizeof words);
        return words;
    }

    const uint32_t* const at_;
};

// Where field k of a high plane stands: as its code does among the fields of the low words that share one high word.
template <int LOW, int HIGH>
ARIL_INLINE int64_t high_field(int64_t k) {
#if defined(ARIL_PAIRS)
    constexpr int64_t HALF = 16 / LOW, ALL = 32 / (HIGH ? HIGH : 1);
    return k / ALL * ALL + k % ALL / (2 * HALF) * HALF + k % HALF + k / HALF % 2 * (ALL / 2);
#else
    return k;
#endif
}

// Codes of LOW + HIGH bits in two planes, or of LOW in one. The value of a code is the sum of the values of its two fields.
template <int LOW, int HIGH, bool IS_TABLE>
class Fields {
public:
    static constexpr Lack LACK{1.0f, 0.0f};

    struct Unit {
        vu low[2], high[2];
    };

    Fields(const void* const* planes, const float* tables, int64_t k, int64_t panel)
        : low_(planes[0], k, panel), high_(planes[1], k, panel), low_means_(tables), high_means_(tables + 16) {}

    ARIL_INLINE void open_unit(Unit& unit, int64_t k) const {
        low_.open_unit(unit.low, k);
        if (HIGH) high_.open(unit.high, high_field<LOW, HIGH>(k));
    }

    ARIL_INLINE void open(Unit& unit, int64_t k) const {
        low_.open(unit.low, k);
        if (HIGH) high_.open(unit.high, high_field<LOW, HIGH>(k));
    }

    // The values of field j from where the unit was opened.
    ARIL_INLINE void read(const Unit& unit, int j, vf& low, vf& high) const {
        low = low_means_(unit.low[0] >> (j * LOW));
        high = low_means_(unit.low[1] >> (j * LOW));
        if (!HIGH) return;
        const int64_t above = high_field<LOW, HIGH>(j) * HIGH;
        low += high_means_(unit.high[0] >> uint32_t(above));
        high += high_means_(unit.high[1] >> uint32_t(above));
    }

    // Bring what lies AHEAD of the unit at k.
    ARIL_INLINE void fetch(int64_t k) const {
        low_.fetch(k);
        if (HIGH) high_.fetch(k);
    }

private:
    const Plane<LOW> low_;
    const Plane<HIGH> high_;
    const Meaning<LOW, IS_TABLE> low_means_;
    const Meaning<HIGH ? HIGH : 1, false> high_means_;
};

enum Values : int { INTEGERS = 0, E4M3 = 1, TABLE = 2 };

// A type as a value, for whoever chooses a reader.
template <class T>
struct Type {
    using type = T;
};

}  // namespace aril
