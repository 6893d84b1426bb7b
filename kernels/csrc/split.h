// Weights of bfloat16 in three quarters of their bytes, without loss. Sixteen values of a number's upper byte (its sign and seven
// bits of its exponent) make up nearly all of a panel's, as weights have much the same size: they become four bits that point
// into the panel's table. Lower bytes stay as they are. The few other numbers stand in a list, by place. (Exponents of trained
// weights carry 2 to 3 bits: Zhang et al. 2025, "70% Size, 100% Accuracy", DFloat11, which codes them by Huffman; fixed lengths
// are decoded as fast as memory brings them.)
//
// A panel is a Header, its list of Rare numbers, and units [16 pairs of inputs][NR][2] of 1,024 numbers: 512 bytes of
// pointers, then the lower bytes. 128 numbers that follow each other share 64 bytes of pointers, the first half in the lower
// bits; bytes lie as two vectors of 16-bit numbers are packed into one, so that decoding is one interleaving.
#pragma once

#include "amx.h"

#if defined(ARIL_TILES)

namespace aril {

constexpr int64_t UNIT_POINTERS = PAIRED_UNIT / 2, UNIT_BYTES = UNIT_POINTERS + PAIRED_UNIT;
constexpr int64_t NEAR_SPLIT = 8192;  // bytes that memory runs ahead when a panel passes only once
constexpr int64_t SYMBOLS = 16;
constexpr int64_t RARE_A_UNIT = 4;  // room in the list; SmolLM2-135M has 0.07 on average, 0.9 in its worst panel

struct SplitHeader {
    uint8_t table[SYMBOLS];
    int32_t num_rare;
    uint8_t unused[44];
};

struct Rare {
    uint32_t place;  // in the panel
    bf16 number, unused;
};

inline int64_t rare_bytes(int64_t units) { return (units * RARE_A_UNIT * int64_t(sizeof(Rare)) + 63) / 64 * 64; }

inline int64_t split_bytes(int64_t units) { return int64_t(sizeof(SplitHeader)) + rare_bytes(units) + units * UNIT_BYTES; }

// One panel, to be read.
class SplitPanel {
public:
    SplitPanel(const uint8_t* data, int64_t units)
        : header_(reinterpret_cast<const SplitHeader*>(data)),
          rare_(reinterpret_cast<const Rare*>(data + sizeof(SplitHeader))),
          units_(data + sizeof(SplitHeader) + rare_bytes(units)) {}

    // Some units as panels of pairs are.
    void decode(bf16* to, Range some) const {
        const Rare* rare = rare_;
        for (int64_t i = some.begin; i < some.end; i++, to += PAIRED_UNIT) decode(to, i, rare);
    }

    // One of them, when those before it have been: `rare` goes on to where the next one's begin.
    ARIL_INLINE void decode(bf16* to, int64_t i, const Rare*& rare) const {
        const __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(header_->table)));
        const uint8_t* at = unit(i);
        for (int64_t j = 0; j < PAIRED_UNIT / 128; j++) decode_128(to + j * 128, at + j * 64, at + UNIT_POINTERS + j * 128, table);
        for (const Rare* end = rare_ + header_->num_rare; rare < end && rare->place < (i + 1) * PAIRED_UNIT; rare++)
            if (rare->place >= i * PAIRED_UNIT) to[rare->place - i * PAIRED_UNIT] = rare->number;
    }

    const uint8_t* unit(int64_t i) const { return units_ + i * UNIT_BYTES; }

    const Rare* rare() const { return rare_; }

    // The inputs of one output, in order.
    void row(bf16* to, int64_t output, int64_t k) const {
        for (int64_t i = 0; i < k; i++) {
            const uint8_t* unit = this->unit(i / TILE_INPUTS);
            const int64_t place = i % TILE_INPUTS / 2 * 2 * NR + output * 2 + i % 2, within = place % 64;
            const int64_t byte = within % 32 / 8 * 16 + within / 32 * 8 + within % 8;
            const int pointer = unit[place / 128 * 64 + byte] >> (place / 64 % 2 * 4) & 15;
            to[i] = bf16(header_->table[pointer] << 8 | unit[UNIT_POINTERS + place / 64 * 64 + byte]);
        }
        for (const Rare* rare = rare_; rare < rare_ + header_->num_rare; rare++) {
            const int64_t within = rare->place % PAIRED_UNIT, i = rare->place / PAIRED_UNIT * TILE_INPUTS + within / (2 * NR) * 2;
            if (within % (2 * NR) / 2 == output) to[i + within % 2] = rare->number;
        }
    }

private:
    static ARIL_INLINE void decode_128(bf16* to, const uint8_t* pointers, const uint8_t* lower, __m512i table) {
        const __m512i both = _mm512_loadu_si512(pointers), four_bits = _mm512_set1_epi8(15);
        const __m512i upper[2] = {
            _mm512_shuffle_epi8(table, _mm512_and_si512(both, four_bits)),
            _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(both, 4), four_bits)),
        };
        for (int i = 0; i < 2; i++) {
            const __m512i bytes = _mm512_loadu_si512(lower + i * 64);
            _mm512_storeu_si512(to + i * 64, _mm512_unpacklo_epi8(bytes, upper[i]));
            _mm512_storeu_si512(to + i * 64 + 32, _mm512_unpackhi_epi8(bytes, upper[i]));
        }
    }

    const SplitHeader* const header_;
    const Rare* const rare_;
    const uint8_t* const units_;
};

// The units of a panel, each decoded while the one before it is multiplied. (One core of Granite Rapids, 177 MB, one row and
// sixteen: nine units at once 12.4 and 11.8 GB/s of what they mean, one ahead 20.0 and 15.6, pairs 12.8 and 11.9.)
class DecodedUnits {
public:
    DecodedUnits(const SplitPanel& panel, int64_t units) : panel_(panel), rare_(panel.rare()), units_(units) { decode(0); }

    ARIL_INLINE const bf16* unit(int64_t i) {
        if (i + 1 < units_) decode(i + 1);
        return room_ + i % 2 * PAIRED_UNIT;
    }

private:
    ARIL_INLINE void decode(int64_t i) {
        for (int64_t line = 0; line < UNIT_BYTES; line += TILE_BYTES) prefetch(panel_.unit(i) + NEAR_SPLIT + line);
        panel_.decode(room_ + i % 2 * PAIRED_UNIT, i, rare_);
    }

    const SplitPanel panel_;
    const Rare* rare_;
    const int64_t units_;
    alignas(64) bf16 room_[2 * PAIRED_UNIT];
};

// One panel, to be written: numbers come in the order of pairs.
class SplitWriter {
public:
    SplitWriter(uint8_t* data, int64_t units)
        : header_(reinterpret_cast<SplitHeader*>(data)),
          rare_(reinterpret_cast<Rare*>(data + sizeof(SplitHeader))),
          units_(data + sizeof(SplitHeader) + rare_bytes(units)),
          room_(units * RARE_A_UNIT) {}

    // The table is that of the commonest upper bytes of these rows; of many inputs each fourth is asked, of each row others, as an
    // input may be large in all rows. Returns what a panel may be filled up with: a finite number that needs no place in the list.
    bf16 choose(const bf16* w, int64_t rows, int64_t k, int64_t stride) {
        const int64_t step = rows * k > 4096 ? 4 : 1;
        int32_t counts[256] = {};
        for (int64_t i = 0; i < rows; i++)
            for (int64_t at = i % step; at < k; at += step) counts[w[i * stride + at] >> 8]++;
        memset(pointers_, NONE, sizeof pointers_);
        *header_ = {};
        for (uint8_t pointer = 0; pointer < SYMBOLS; pointer++) {
            const auto commonest = std::max_element(counts, counts + 256) - counts;
            header_->table[pointer] = uint8_t(commonest);
            if (counts[commonest] >= 0) pointers_[commonest] = pointer;
            counts[commonest] = -1;
        }
        return bf16(header_->table[0] << 8);
    }

    // False where the list is too short.
    bool encode(const bf16* numbers, int64_t units) {
        bool fits = true;
        for (int64_t at = 0; at < units * PAIRED_UNIT; at += 128) {
            uint8_t* unit = units_ + at / PAIRED_UNIT * UNIT_BYTES;
            const int64_t within = at % PAIRED_UNIT;
            __m512i pointers[2];
            for (int i = 0; i < 2; i++) {
                const bf16* from = numbers + at + i * 64;
                const __m512i first = _mm512_loadu_si512(from), second = _mm512_loadu_si512(from + 32);
                const __m512i low = _mm512_set1_epi16(255);
                const __m512i lower = _mm512_packus_epi16(_mm512_and_si512(first, low), _mm512_and_si512(second, low));
                const __m512i upper = _mm512_packus_epi16(_mm512_srli_epi16(first, 8), _mm512_srli_epi16(second, 8));
                _mm512_storeu_si512(unit + UNIT_POINTERS + within + i * 64, lower);
                pointers[i] = pointers_of(upper);
                if (const __mmask64 none = _mm512_movepi8_mask(pointers[i])) {
                    fits = fits && list(from, at + i * 64);
                    pointers[i] = _mm512_mask_blend_epi8(none, pointers[i], _mm512_setzero_si512());
                }
            }
            _mm512_storeu_si512(unit + within / 2, _mm512_or_si512(pointers[0], _mm512_slli_epi16(pointers[1], 4)));
        }
        return fits;
    }

private:
    static constexpr uint8_t NONE = 255;

    __m512i pointers_of(__m512i upper) const {
        const __m512i* tables = reinterpret_cast<const __m512i*>(pointers_);
        const __m512i low = _mm512_permutex2var_epi8(tables[0], upper, tables[1]);
        const __m512i high = _mm512_permutex2var_epi8(tables[2], upper, tables[3]);
        return _mm512_mask_blend_epi8(_mm512_movepi8_mask(upper), low, high);
    }

    bool list(const bf16* numbers, int64_t place) {
        for (int i = 0; i < 64; i++) {
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
    alignas(64) uint8_t pointers_[256];
};

}  // namespace aril
#endif
