// Readers of a panel of codes in bytes, [K][NR], as those of codes.h. Where bfloat16 is multiplied in pairs, pairs.h says how they
// lie; they are read here for float32.
#pragma once

#include "codes.h"

namespace aril {

// Bring what lies AHEAD of a unit of bytes.
ARIL_INLINE void fetch_bytes(const uint8_t* unit) {
    for (int i = 0; i < UNIT * NR; i += 64) prefetch(unit + AHEAD + i);
}

#if defined(ARIL_PAIRS)
// Where the bytes of two k stand in a row of pairs: those of the first and then of the second, outputs in order or, if BESIDE,
// output i beside output W + i.
template <bool BESIDE>
struct Places {
    alignas(64) uint8_t at[2 * NR] = {};

    constexpr Places() {
        for (int i = 0; i < NR; i++)
            for (int k = 0; k < 2; k++) at[k * NR + (BESIDE ? i % W * 2 + i / W : i)] = uint8_t(i % W / 4 * 16 + i / W * 8 + i % 4 * 2 + k);
    }
};

template <bool BESIDE>
ARIL_INLINE __m512i in_order(const uint8_t* row) {
    static constexpr Places<BESIDE> places;
    return _mm512_permutexvar_epi8(integers_at(places.at), integers_at(row));
}

// The bytes of a panel of pairs.
ARIL_INLINE int64_t size_of_bytes(int64_t k) { return (k + 7) / 8 * 8 * NR; }

// Bytes of a sign and seven bits, which are the integers 128 + bits and 127 - bits.
class Integers {
public:
    static constexpr Lack LACK{1.0f, 0.0f};

    struct Unit {
        uint8_t codes[UNIT][NR];
    };

    Integers(const void* const* planes, const float*, int64_t k, int64_t panel)
        : at_(static_cast<const uint8_t*>(planes[0]) + panel * size_of_bytes(k)) {}

    ARIL_INLINE void open_unit(Unit& unit, int64_t k) const {
#pragma GCC unroll 4
        for (int i = 0; i < UNIT; i += 2) _mm512_storeu_si512(unit.codes[i], codes(k + i));
        asm volatile("" ::: "memory");
    }

    ARIL_INLINE void open(Unit& unit, int64_t k) const {
        uint8_t both[2 * NR];
        _mm512_storeu_si512(both, codes(k / 2 * 2));
        memcpy(unit.codes[0], both + k % 2 * NR, NR);
    }

    ARIL_INLINE void read(const Unit& unit, int j, vf& low, vf& high) const {
        low = load(unit.codes[j]);
        high = load(unit.codes[j] + W);
    }

    ARIL_INLINE void fetch(int64_t k) const { fetch_bytes(at_ + k * NR); }

private:
    ARIL_INLINE __m512i codes(int64_t k) const {
        const __m512i bytes = in_order<false>(at_ + k * NR);
        const __m512i flipped = _mm512_xor_si512(bytes, _mm512_set1_epi8(-1));
        return _mm512_mask_blend_epi8(_mm512_movepi8_mask(bytes), _mm512_xor_si512(bytes, _mm512_set1_epi8(-128)), flipped);
    }

    const uint8_t* const at_;
};
#else
// Bytes that are integers: output i of a row is byte i.
class Integers {
public:
    static constexpr Lack LACK{1.0f, 0.0f};
    using Unit = const uint8_t*;

    Integers(const void* const* planes, const float*, int64_t k, int64_t panel)
        : at_(static_cast<const uint8_t*>(planes[0]) + panel * k * NR) {}

    ARIL_INLINE void open_unit(Unit& unit, int64_t k) const { unit = at_ + k * NR; }

    ARIL_INLINE void open(Unit& unit, int64_t k) const { unit = at_ + k * NR; }

    ARIL_INLINE void read(const Unit& unit, int j, vf& low, vf& high) const {
        low = load(unit + j * NR);
        high = load(unit + j * NR + W);
    }

    ARIL_INLINE void fetch(int64_t k) const { fetch_bytes(at_ + k * NR); }

private:
    const uint8_t* const at_;
};

ARIL_INLINE int64_t size_of_bytes(int64_t k) { return k * NR; }
#endif

// Bytes of e4m3: output i of a row lies beside output W + i. But for where its bits stand and for the excess of its exponent,
// which LACK makes good, such a byte is a float16, of which a unit holds all: a shift and a mask of 16 bits make two at once,
// and float16's subnormals are read at full speed, as float32's are not.
class E4m3 {
public:
    struct Unit {
        f16 numbers[UNIT / 2][2][NR];  // of two k: the low outputs of both, then the high ones
    };

    E4m3(const void* const* planes, const float*, int64_t k, int64_t panel)
        : at_(static_cast<const uint8_t*>(planes[0]) + panel * size_of_bytes(k)) {}

    ARIL_INLINE void fetch(int64_t k) const { fetch_bytes(at_ + k * NR); }

#if defined(__AVX512F__) || defined(__F16C__)
    static constexpr Lack LACK{256.0f, 0.0f};

    ARIL_INLINE void open_unit(Unit& unit, int64_t k) const {
#pragma GCC unroll 4
        for (int i = 0; i < UNIT / 2; i++) {
            const vp pairs = load_two(at_ + (k + 2 * i) * NR);
            keep(unit.numbers[i][0], pairs << 8);
            keep(unit.numbers[i][1], pairs);
        }
        asm volatile("" ::: "memory");  // read back from memory: to take a register apart costs more
    }

    ARIL_INLINE void open(Unit& unit, int64_t k) const {
        const vp pairs = load_one(k);
        keep(unit.numbers[0][0], pairs << 8);
        keep(unit.numbers[0][1], pairs);
    }

    ARIL_INLINE void read(const Unit& unit, int j, vf& low, vf& high) const {
        low = load(unit.numbers[j / 2][0] + j % 2 * W);
        high = load(unit.numbers[j / 2][1] + j % 2 * W);
    }

private:
    typedef int16_t vp __attribute__((vector_size(2 * NR)));  // of two k

#if defined(ARIL_PAIRS)
    static ARIL_INLINE vp load_two(const uint8_t* p) { return (vp)in_order<true>(p); }

    ARIL_INLINE vp load_one(int64_t k) const {
        const vp both = load_two(at_ + k / 2 * 2 * NR);
        vp one = {};
        memcpy(&one, reinterpret_cast<const char*>(&both) + k % 2 * NR, NR);
        return one;
    }
#else
    static ARIL_INLINE vp load_two(const uint8_t* p) {
        vp two;
        memcpy(&two, p, sizeof two);
        return two;
    }

    ARIL_INLINE vp load_one(int64_t k) const {
        vp one = {};
        memcpy(&one, at_ + k * NR, NR);
        return one;
    }
#endif

    static ARIL_INLINE void keep(f16* to, vp upper) {
        const vp numbers = upper >> 1 & int16_t(0xbf80);
        memcpy(to, &numbers, sizeof numbers);
    }
#else
    static constexpr Lack LACK{1.0f, 0.0f};

    ARIL_INLINE void open_unit(Unit& unit, int64_t k) const { memcpy(&unit, at_ + k * NR, UNIT * NR); }

    ARIL_INLINE void open(Unit& unit, int64_t k) const { memcpy(&unit, at_ + k * NR, NR); }

    void read(const Unit& unit, int j, vf& low, vf& high) const {
        vh pairs;
        memcpy(&pairs, reinterpret_cast<const char*>(&unit) + j * NR, sizeof pairs);
        low = value(widened(pairs) & 0xff);
        high = value(widened(pairs) >> 8);
    }

private:
    static vf value(vu bytes) {
        const vf magnitude = (vf)((bytes & 0x7f) << 20) * 0x1p120f;
        return (vf)((vu)magnitude | (bytes & 0x80) << 24);
    }
#endif

    const uint8_t* const at_;
};

}  // namespace aril
