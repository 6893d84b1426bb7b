// Rows of bfloat16 as integer codes meet them where pairs of 16-bit integers are multiplied (grouped_words.h), and what reads
// such codes.
#pragma once

#include "codes.h"

#if defined(__AVX2__) && !defined(ARIL_PAIRS)
#define ARIL_WORDS 1

namespace aril {

constexpr int64_t PIECE = 128;      // inputs at most: 256 codes of 8 bits would fit 32, but the largest sets the step of all
constexpr float TINY = 0x1p-100f;   // a piece of smaller inputs counts as 0

// sums + the products of both halves of each lane. GCC would add up trees of products, and keep them on the stack.
ARIL_INLINE vu add_products(vu sums, vu a, vu b) {
#if defined(__AVX512F__)
    sums += (vu)_mm512_madd_epi16((__m512i)a, (__m512i)b);
    asm("" : "+v"(sums));
#else
    sums += (vu)_mm256_madd_epi16((__m256i)a, (__m256i)b);
    asm("" : "+x"(sums));
#endif
    return sums;
}

// Fields of B bits as words hold them: inputs HALF apart are a pair.
template <int B>
class WordFields {
public:
    static constexpr int PAIRS = 16 / B, HALF = PAIRS;
    static constexpr int64_t INPUTS = 2 * PAIRS;  // of a unit
    static constexpr int first(int j) { return j; }  // input of a pair

    struct Unit {
        vu words[2];
    };

    WordFields(const void* plane, int64_t k, int64_t panel) : at_(static_cast<const uint32_t*>(plane) + panel * ((k * B + 31) / 32) * NR) {}

    ARIL_INLINE void open(Unit& unit, int64_t i) const {
        for (int half = 0; half < 2; half++) memcpy(&unit.words[half], at_ + i * NR + half * W, sizeof unit.words[half]);
        for (int64_t byte = 0; byte < int64_t(sizeof unit); byte += 64) prefetch(reinterpret_cast<const char*>(at_ + i * NR) + AHEAD + byte);
    }

    ARIL_INLINE vu read(const Unit& unit, int j, int half) const { return (unit.words[half] >> uint32_t(B * j)) & MASK; }

private:
    static constexpr uint32_t MASK = ((1u << B) - 1) * 0x10001u;

    const uint32_t* const at_;
};

// Bytes [K][NR]: neighbouring inputs are a pair.
class WordBytes {
public:
    static constexpr int PAIRS = 4, HALF = 1;
    static constexpr int64_t INPUTS = 2 * PAIRS;
    static constexpr int first(int j) { return 2 * j; }

    struct Unit {
        const uint8_t* at;
    };

    WordBytes(const void* plane, int64_t k, int64_t panel) : at_(static_cast<const uint8_t*>(plane) + panel * k * NR) {}

    ARIL_INLINE void open(Unit& unit, int64_t i) const {
        unit.at = at_ + i * INPUTS * NR;
        for (int64_t byte = 0; byte < INPUTS * NR; byte += 64) prefetch(unit.at + AHEAD + byte);
    }

    ARIL_INLINE vu read(const Unit& unit, int j, int half) const {
        const uint8_t* at = unit.at + 2 * j * NR + half * W;
        return widened(at) | widened(at + NR) << 16;
    }

private:
    const uint8_t* const at_;
};

// Units that were read before: [pairs][NR].
template <class Reader>
class Lying {
public:
    static constexpr int PAIRS = Reader::PAIRS;
    static constexpr int64_t INPUTS = Reader::INPUTS;

    struct Unit {
        const uint32_t* at;
    };

    explicit Lying(const uint32_t* at) : at_(at) {}

    ARIL_INLINE void open(Unit& unit, int64_t i) const { unit.at = at_ + i * PAIRS * NR; }

    ARIL_INLINE vu read(const Unit& unit, int j, int half) const {
        vu words;
        memcpy(&words, unit.at + j * NR + half * W, sizeof words);
        return words;
    }

private:
    const uint32_t* const at_;
};

// Rows of x as whole numbers, and of each of their pieces the step and the sum.
struct WordRows {
    const int16_t* wholes;  // [rows][stride], pairs side by side
    const float* steps;     // [rows][pieces]
    const int32_t* sums;
    int64_t stride, pieces;

    WordRows from(int64_t row, int64_t k, int64_t piece) const {
        return {wholes + row * stride + k, steps + row * pieces + piece, sums + row * pieces + piece, stride, pieces};
    }
};

struct WordProduct {
    const void* plane;
    const Factors& factors;
    int64_t m, n, k, group;

    int64_t panels() const { return (n + NR - 1) / NR; }
    int64_t pieces_of_group() const { return (group + PIECE - 1) / PIECE; }
    int64_t pieces() const { return factors.groups * pieces_of_group(); }
    Lack lack() const { return {1.0f, factors.zeros ? 0.0f : factors.zero}; }  // one zero for all is made good in whole numbers
};

// The inputs of a piece, filled up with zeros to whole vectors, as whole numbers in 32 bits; their step, and their sum.
inline void to_wholes(int32_t* to, const float* x, int64_t count, float* step, int32_t* sum) {
    vf tops = {}, rest = {};
    for (int64_t i = 0; i < count; i += W) {
        const vf v = load(x + i);
        tops = max(v, max(-v, tops));
        rest += v - v;  // 0, or NaN where one of them is not finite
    }
    float lanes[W], highest = 0;
    store(lanes, tops);
    for (float lane : lanes) highest = std::max(highest, lane);
    *sum = 0, *step = 1.0f + aril::sum(rest);
    if (*step != 1.0f || highest < TINY) return std::fill(to, to + count, 0);
    int exponent;
    std::frexp(highest, &exponent);
    const float inverse = std::ldexp(1.0f, 15 - exponent), magic = 12582912.0f;  // adding 1.5 * 2^23 rounds to a whole number
    *step = std::ldexp(1.0f, exponent - 15);
    vi total = {};
    for (int64_t i = 0; i < count; i += W) {
        const vi whole = (vi)(load(x + i) * inverse + magic) - 0x4b400000;
        memcpy(to + i, &whole, sizeof whole);
        total += whole;
    }
    for (int i = 0; i < W; i++) *sum += total[i];
}

template <class Reader>
void word_row(int16_t* wholes, float* steps, int32_t* sums, const bf16* x, const int64_t* order, const WordProduct& p) {
    alignas(64) float inputs[PIECE];
    alignas(64) int32_t piece[PIECE];
    for (int64_t group = 0; group < p.k; group += p.group) {
        const int64_t end = std::min(p.k, group + p.group);
        for (int64_t i = 0; i < p.pieces_of_group(); i++, steps++, sums++) {
            const int64_t at = std::min(end, group + i * PIECE), count = std::min(end - at, PIECE), filled = (count + 15) / 16 * 16;
            if (!order) copy(inputs, x + at, count);
            for (int64_t k = 0; order && k < count; k++) inputs[k] = get(x + order[at + k]);
            std::fill(inputs + count, inputs + filled, 0.0f);
            to_wholes(piece, inputs, filled, steps, sums);
            auto* pairs = reinterpret_cast<uint32_t*>(wholes + at);
            for (int64_t k = 0; k < count; k += Reader::INPUTS)
                for (int j = 0; j < Reader::PAIRS; j++)
                    *pairs++ = uint32_t(uint16_t(piece[k + Reader::first(j)])) | uint32_t(piece[k + Reader::first(j) + Reader::HALF]) << 16;
        }
    }
}

}  // namespace aril
#endif
