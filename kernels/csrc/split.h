// Weights of bfloat16 in three quarters of their bytes, without loss. Sixteen values of a number's upper byte (its sign and seven
// bits of its exponent) make up nearly all of a panel's, as weights have much the same size: they become four bits that point
// into the panel's table. Lower bytes stay as they are. The few other numbers stand in a list, by place. (Exponents of trained
// weights carry 2 to 3 bits: Zhang et al. 2025, "70% Size, 100% Accuracy", DFloat11, which codes them by Huffman; fixed lengths
// are decoded as fast as memory brings them.)
//
// A panel is a Header, its list of Rare numbers, and units of 1,024 numbers as the machine multiplies them, in pairs of inputs
// [pairs][NR][2] or in the order of tile.h, [inputs][NR]: 512 bytes of pointers, then the lower bytes. The numbers of four
// vectors share one vector of pointers, the first two in the lower bits; bytes lie as two vectors of 16-bit numbers are packed
// into one, so that decoding is one interleaving.
#pragma once

#include "common.h"

#if defined(__AVX2__)
#define ARIL_SPLIT 1

namespace aril {

constexpr int64_t SPLIT_UNIT = 1024, SPLIT_INPUTS = SPLIT_UNIT / NR;
constexpr int64_t UNIT_POINTERS = SPLIT_UNIT / 2, UNIT_BYTES = UNIT_POINTERS + SPLIT_UNIT;
constexpr int64_t HALVES = 2 * W;  // 16-bit numbers of a vector
constexpr int64_t SYMBOLS = 16;
constexpr int64_t RARE = 16, RARE_A_UNIT = 4;  // room in the list; SmolLM2-135M has 0.07 a unit on average, 0.9 in its worst panel

struct SplitHeader {
    uint8_t table[SYMBOLS];
    int32_t num_rare;
    uint8_t width, together;  // outputs of the panel, inputs that stand side by side
    uint8_t unused[42];
};

struct Rare {
    uint32_t place;  // in the panel
    bf16 number, unused;
};

inline int64_t split_units(int64_t k) { return (k + SPLIT_INPUTS - 1) / SPLIT_INPUTS; }

inline int64_t rare_room(int64_t units) { return RARE + units * RARE_A_UNIT; }

inline int64_t rare_bytes(int64_t units) { return (rare_room(units) * int64_t(sizeof(Rare)) + 63) / 64 * 64; }

inline int64_t split_bytes(int64_t units) { return int64_t(sizeof(SplitHeader)) + rare_bytes(units) + units * UNIT_BYTES; }

// Where in a panel the number of an input and an output stands.
inline int64_t split_place(int64_t input, int64_t output) {
#if defined(__AVX512BF16__)
    return input / 2 * 2 * NR + output * 2 + input % 2;
#else
    return input * NR + (output < W ? 2 * output : 2 * (output - W) + 1);
#endif
}

// Where in a vector of bytes that of a number of two vectors stands.
inline int64_t split_byte(int64_t at) { return at % HALVES / 8 * 16 + at / HALVES * 8 + at % 8; }

typedef uint16_t Words __attribute__((vector_size(HALVES * 2)));

// Vectors of bytes, whose operations keep to parts of 16.
#if defined(__AVX512F__)
using Bytes = __m512i;
ARIL_INLINE Bytes table_of(__m128i some) { return _mm512_broadcast_i32x4(some); }
ARIL_INLINE Bytes looked_up(Bytes table, Bytes at) { return _mm512_shuffle_epi8(table, at); }
ARIL_INLINE Bytes lower_bits(Bytes v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
ARIL_INLINE Bytes packed(Bytes first, Bytes second) { return _mm512_packus_epi16(first, second); }
ARIL_INLINE Bytes interleaved_low(Bytes lower, Bytes upper) { return _mm512_unpacklo_epi8(lower, upper); }
ARIL_INLINE Bytes interleaved_high(Bytes lower, Bytes upper) { return _mm512_unpackhi_epi8(lower, upper); }
#else
using Bytes = __m256i;
ARIL_INLINE Bytes table_of(__m128i some) { return _mm256_broadcastsi128_si256(some); }
ARIL_INLINE Bytes looked_up(Bytes table, Bytes at) { return _mm256_shuffle_epi8(table, at); }
ARIL_INLINE Bytes lower_bits(Bytes v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
ARIL_INLINE Bytes packed(Bytes first, Bytes second) { return _mm256_packus_epi16(first, second); }
ARIL_INLINE Bytes interleaved_low(Bytes lower, Bytes upper) { return _mm256_unpacklo_epi8(lower, upper); }
ARIL_INLINE Bytes interleaved_high(Bytes lower, Bytes upper) { return _mm256_unpackhi_epi8(lower, upper); }
#endif

ARIL_INLINE Bytes bytes_at(const void* p) {
    Bytes v;
    memcpy(&v, p, sizeof v);
    return v;
}

ARIL_INLINE void put_bytes(void* p, Bytes v) { memcpy(p, &v, sizeof v); }

// One panel, to be read.
class SplitPanel {
public:
    SplitPanel(const uint8_t* data, int64_t units)
        : header_(reinterpret_cast<const SplitHeader*>(data)),
          rare_(reinterpret_cast<const Rare*>(data + sizeof(SplitHeader))),
          units_(data + sizeof(SplitHeader) + rare_bytes(units)) {}

    // Some units as panels that are not split have them.
    void decode(bf16* to, Range some) const {
        const Rare* rare = rare_;
        for (int64_t i = some.begin; i < some.end; i++, to += SPLIT_UNIT) decode(to, i, rare);
    }

    // One of them, when those before it have been: `rare` goes on to where the next one's begin.
    ARIL_INLINE void decode(bf16* to, int64_t i, const Rare*& rare) const {
        const Bytes table = table_of(_mm_loadu_si128(reinterpret_cast<const __m128i*>(header_->table)));
        const uint8_t* at = unit(i);
#pragma GCC unroll 8
        for (int64_t j = 0; j < SPLIT_UNIT; j += 4 * HALVES) decode_four(to + j, at + j / 2, at + UNIT_POINTERS + j, table);
        for (const Rare* end = rare_ + header_->num_rare; rare < end && rare->place < (i + 1) * SPLIT_UNIT; rare++)
            if (rare->place >= i * SPLIT_UNIT) to[rare->place - i * SPLIT_UNIT] = rare->number;
    }

    const uint8_t* unit(int64_t i) const { return units_ + i * UNIT_BYTES; }

    const Rare* rare() const { return rare_; }

    void fetch_header() const {
        for (int i = 0; i < 2; i++) prefetch(reinterpret_cast<const char*>(header_) + i * 64);
    }

    // The inputs of one output, in order.
    void row(bf16* to, int64_t output, int64_t k) const {
        for (int64_t i = 0; i < k; i++) {
            const uint8_t* unit = this->unit(i / SPLIT_INPUTS);
            const int64_t place = split_place(i % SPLIT_INPUTS, output), within = place % (2 * HALVES), byte = split_byte(within);
            const int pointer = unit[place / (4 * HALVES) * 2 * HALVES + byte] >> (place / (2 * HALVES) % 2 * 4) & 15;
            to[i] = bf16(header_->table[pointer] << 8 | unit[UNIT_POINTERS + place - within + byte]);
        }
        for (const Rare* rare = rare_; rare < rare_ + header_->num_rare; rare++)
            for (int64_t first = rare->place / (2 * NR) * 2, i = first; i < std::min(first + 2, k); i++)
                if (split_place(i, output) == rare->place) to[i] = rare->number;
    }

private:
    static ARIL_INLINE void decode_four(bf16* to, const uint8_t* pointers, const uint8_t* lower, Bytes table) {
        const Bytes both = bytes_at(pointers);
        const Bytes upper[2] = {looked_up(table, lower_bits(both)), looked_up(table, lower_bits((Bytes)((Words)both >> 4)))};
        for (int i = 0; i < 2; i++) {
            const Bytes bytes = bytes_at(lower + i * 2 * HALVES);
            put_bytes(to + i * 2 * HALVES, interleaved_low(bytes, upper[i]));
            put_bytes(to + i * 2 * HALVES + HALVES, interleaved_high(bytes, upper[i]));
        }
    }

    const SplitHeader* const header_;
    const Rare* const rare_;
    const uint8_t* const units_;
};

// The units of a panel, each decoded while the one before it is multiplied, and memory brought NEAR bytes ahead (0: by others). (One
// core of Granite Rapids, 177 MB, one row and sixteen: nine units at once 12.4 and 11.8 GB/s of what they mean, one ahead 20.0 and
// 15.6, pairs 12.8 and 11.9.)
template <int64_t NEAR>
class DecodedUnits {
public:
    DecodedUnits(const SplitPanel& panel, int64_t units) : panel_(panel), rare_(panel.rare()), units_(units) { decode(0); }

    ARIL_INLINE const bf16* unit(int64_t i) {
        if (i + 1 < units_) decode(i + 1);
        return room_ + i % 2 * SPLIT_UNIT;
    }

private:
    ARIL_INLINE void decode(int64_t i) {
        for (int64_t line = 0; NEAR && line < UNIT_BYTES; line += 64) prefetch(panel_.unit(i) + NEAR + line);
        panel_.decode(room_ + i % 2 * SPLIT_UNIT, i, rare_);
    }

    const SplitPanel panel_;
    const Rare* rare_;
    const int64_t units_;
    alignas(64) bf16 room_[2 * SPLIT_UNIT];
};

// One panel, to be written: numbers come in the order of its units.
class SplitWriter {
public:
    SplitWriter(uint8_t* data, int64_t units)
        : header_(reinterpret_cast<SplitHeader*>(data)),
          rare_(reinterpret_cast<Rare*>(data + sizeof(SplitHeader))),
          units_(data + sizeof(SplitHeader) + rare_bytes(units)),
          room_(rare_room(units)) {}

    // The table is that of the commonest upper bytes of these rows; of many inputs each fourth is asked, of each row others, as an
    // input may be large in all rows. Returns what a panel may be filled up with: a finite number that needs no place in the list.
    bf16 choose(const bf16* w, int64_t rows, int64_t k, int64_t stride) {
        const int64_t step = rows * k > 4096 ? 4 : 1;
        int32_t counts[256] = {};
        for (int64_t i = 0; i < rows; i++)
            for (int64_t at = i % step; at < k; at += step) counts[w[i * stride + at] >> 8]++;
        memset(pointers_, NONE, sizeof pointers_);
        *header_ = {};
        header_->width = NR, header_->together = uint8_t(split_place(1, 0) == 1 ? 2 : 1);
        for (uint8_t pointer = 0; pointer < SYMBOLS; pointer++) {
            const auto commonest = std::max_element(counts, counts + 256) - counts;
            header_->table[pointer] = uint8_t(commonest);
            pointers_[commonest] = pointer;
            counts[commonest] = -1;
        }
        return bf16(header_->table[0] << 8);
    }

    // False where the list is too short.
    bool encode(const bf16* numbers, int64_t units) {
        bool fits = true;
        for (int64_t at = 0; at < units * SPLIT_UNIT && fits; at += 4 * HALVES) {
            uint8_t* unit = units_ + at / SPLIT_UNIT * UNIT_BYTES;
            const int64_t within = at % SPLIT_UNIT;
            Words pointers[2];
            for (int i = 0; i < 2; i++) {
                const bf16* from = numbers + at + i * 2 * HALVES;
                const Words first = (Words)bytes_at(from), second = (Words)bytes_at(from + HALVES);
                put_bytes(unit + UNIT_POINTERS + within + i * 2 * HALVES, packed((Bytes)(first & 255), (Bytes)(second & 255)));
                if (points(pointers[i], packed((Bytes)(first >> 8), (Bytes)(second >> 8)))) continue;
                fits = fits && list(from, at + i * 2 * HALVES);
            }
            put_bytes(unit + within / 2, (Bytes)(pointers[0] | pointers[1] << 4));
        }
        return fits;
    }

private:
    static constexpr uint8_t NONE = 255;

    // Where the table has each of some upper bytes; false, and the table's first, where it has not.
    bool points(Words& to, Bytes upper) const {
        uint8_t bytes[2 * HALVES], all = 0;
        put_bytes(bytes, upper);
        for (uint8_t& byte : bytes) all |= byte = pointers_[byte];
        for (uint8_t& byte : bytes) byte = byte == NONE ? 0 : byte;
        to = (Words)bytes_at(bytes);
        return all != NONE;
    }

    bool list(const bf16* numbers, int64_t place) {
        for (int64_t i = 0; i < 2 * HALVES; i++) {
            if (pointers_[numbers[i] >> 8] != NONE) continue;
            if (header_->num_rare == room_) return false;
            rare_[header_->num_rare++] = {uint32_t(place + i), numbers[i], 0};
        }
        return true;
    }

    SplitHeader* const header_;
    Rare* const rare_;
    uint8_t* const units_;
    const int64_t room_;
    uint8_t pointers_[256];
};

}  // namespace aril
#endif
