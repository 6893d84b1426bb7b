// Small fields in 32-bit words (ops/fields.py), and the planes of panels that are made from codes. Eight fields of B bits are B
// bytes of a little-endian stream, whatever B is: the unit here wherever a stream lies in one piece.
#include <type_traits>

#include "common.h"

namespace aril {
namespace {

constexpr int64_t COLUMNS = 1024;  // neighbouring rows at once; their words stay in L1 while their fields are read
constexpr int64_t DEPTH = 1024;    // k at once of a panel, whose words stay in L1 while its outputs come

// `width` ones from bit 0 on, again after each `apart` bits.
constexpr uint64_t ones(int width, int apart) {
    uint64_t mask = 0;
    for (int i = 0; i < 64; i += apart) mask |= (~uint64_t(0) >> (64 - width)) << i;
    return mask;
}

// Eight fields side by side become eight bytes: halves, quarters and single fields move apart.
template <int B>
ARIL_INLINE uint64_t spread(uint64_t fields) {
    fields = (fields & ones(4 * B, 64)) | (fields << (32 - 4 * B) & ones(4 * B, 64) << 32);
    fields = (fields & ones(2 * B, 32)) | (fields << (16 - 2 * B) & ones(2 * B, 32) << 16);
    return (fields & ones(B, 16)) | (fields << (8 - B) & ones(B, 16) << 8);
}

// The low B bits of eight bytes, side by side.
template <int B>
ARIL_INLINE uint64_t gathered(uint64_t bytes) {
    bytes = (bytes & ones(B, 16)) | (bytes >> (8 - B) & ones(B, 16) << B);
    bytes = (bytes & ones(2 * B, 32)) | (bytes >> (16 - 2 * B) & ones(2 * B, 32) << 2 * B);
    return (bytes & ones(4 * B, 64)) | (bytes >> (32 - 4 * B) & ones(4 * B, 64) << 4 * B);
}

template <int B>
void unpack_row(uint8_t* to, const char* words, int64_t size, int64_t count) {
    for (int64_t i = 0, at = 0; i < count; i += 8, at += B) {
        uint64_t fields = 0;
        if (at + 8 <= size) memcpy(&fields, words + at, 8);
        else memcpy(&fields, words + at, std::min<int64_t>(B, size - at));
        fields = spread<B>(fields);
        if (i + 8 <= count) memcpy(to + i, &fields, 8);
        else memcpy(to + i, &fields, count - i);
    }
}

// Fields first .. last of neighbouring rows: to[i * stride + row].
template <int B>
void unpack_columns(uint8_t* to, const uint32_t* words, int64_t stride, int64_t words_stride, int64_t rows, Range fields) {
    for (int64_t i = fields.begin; i < fields.end; i++) {
        const int shift = int(i * B % 32);
        const uint32_t* at = words + i * B / 32 * words_stride;
        uint8_t* row = to + i * stride;
        if (shift + B <= 32) {
            for (int64_t r = 0; r < rows; r++) row[r] = uint8_t(at[r] >> shift & ((1u << B) - 1));
        } else {
            const uint32_t* next = at + words_stride;
            for (int64_t r = 0; r < rows; r++) row[r] = uint8_t((at[r] >> shift | next[r] << (32 - shift)) & ((1u << B) - 1));
        }
    }
}

// Codes of rows [0, n) and inputs [0, k), a byte each, in any strides.
struct Codes {
    const uint8_t* at;
    int64_t n, k, n_stride, k_stride;

    // Eight inputs of a row; 0 beyond the last.
    ARIL_INLINE uint64_t eight(int64_t row, int64_t i) const {
        const uint8_t* from = at + row * n_stride + i * k_stride;
        uint64_t bytes = 0;
        if (k_stride == 1 && i + 8 <= k) {
            memcpy(&bytes, from, 8);
            return bytes;
        }
        for (int64_t j = 0; j < std::min<int64_t>(8, k - i); j++) bytes |= uint64_t(from[j * k_stride]) << 8 * j;
        return bytes;
    }

    // One input of NR rows: where it lies, or else copied into `room`; 0 beyond the last row.
    ARIL_INLINE const uint8_t* column(int64_t row, int64_t i, uint8_t* room) const {
        const uint8_t* from = at + row * n_stride + i * k_stride;
        if (n_stride == 1 && row + NR <= n) return from;
        for (int64_t r = 0; r < NR; r++) room[r] = row + r < n ? from[r * n_stride] : 0;
        return room;
    }
};

template <int B>
void pack_row(char* words, int64_t size, const Codes& codes, int64_t row) {
    for (int64_t at = 0; at < size; at += B) {
        const uint64_t fields = at / B * 8 < codes.k ? gathered<B>(codes.eight(row, at / B * 8)) : 0;
        memcpy(words + at, &fields, B);
    }
}

// One panel of words, from rows whose inputs lie in one piece: the outputs come one by one.
template <int B>
void pack_by_rows(char* panel, const Codes& codes, int64_t row, int shift) {
    const int64_t all = (codes.k * B + 31) / 32 * 32 / B;
    for (int64_t first = 0; first < all; first += DEPTH)
        for (int64_t lane = 0; lane < NR; lane++)
            for (int64_t i = first; i < std::min(all, first + DEPTH); i += 8) {
                uint64_t fields = 0;
                if (i < codes.k && row + lane < codes.n) fields = gathered<B>(codes.eight(row + lane, i) >> shift);
                if (B == 8) {
                    memcpy(panel + (i / 4 * NR + lane) * 4, &fields, 4);
                    if (i + 4 < all) memcpy(panel + ((i / 4 + 1) * NR + lane) * 4, reinterpret_cast<char*>(&fields) + 4, 4);
                } else {
                    memcpy(panel + (i * B / 32 * NR + lane) * 4 + i * B / 8 % 4, &fields, B % 8);
                }
            }
}

// One panel of words, from rows that lie in any other way: the inputs come one by one.
template <int B>
void pack_by_columns(char* panel, const Codes& codes, int64_t row, int shift) {
    uint8_t room[NR];
    for (int64_t first = 0; first < codes.k; first += 32 / B, panel += NR * 4) {
        vu low = {}, high = {};
        for (int64_t i = first; i < std::min<int64_t>(codes.k, first + 32 / B); i++) {
            const uint8_t* from = codes.column(row, i, room);
            const uint32_t mask = (1u << B) - 1, place = uint32_t(i - first) * B;
            low |= (widened(from) >> uint32_t(shift) & mask) << place;
            high |= (widened(from + W) >> uint32_t(shift) & mask) << place;
        }
        memcpy(panel, &low, sizeof low);
        memcpy(panel + sizeof low, &high, sizeof high);
    }
}

// One panel of bytes [K][NR], the outputs of a row in order or, if `paired`, output i beside output W + i.
void pack_bytes(uint8_t* panel, const Codes& codes, int64_t row, bool paired) {
    constexpr int64_t LINE = 64;
    uint8_t room[NR];
    if (codes.k_stride != 1 || row + NR > codes.n) {
        for (int64_t i = 0; i < codes.k; i++, panel += NR) {
            const uint8_t* from = codes.column(row, i, room);
            if (!paired) memcpy(panel, from, NR);
            for (int lane = 0; paired && lane < W; lane++) panel[2 * lane] = from[lane], panel[2 * lane + 1] = from[W + lane];
        }
        return;
    }
    for (int64_t first = 0; first < codes.k; first += LINE)
        for (int64_t lane = 0; lane < NR; lane++) {
            const uint8_t* from = codes.at + (row + lane) * codes.n_stride;
            uint8_t* to = panel + (paired ? lane % W * 2 + lane / W : lane);
            for (int64_t i = first; i < std::min(codes.k, first + LINE); i++) to[i * NR] = from[i];
        }
}

// One panel of bytes in the pairs of pairs.h, k filled up to a whole unit: those of e4m3 as they are, integers as a sign and the
// seven bits that it flips.
void pack_byte_pairs(uint8_t* panel, const Codes& codes, int64_t row, bool integers) {
    constexpr int64_t LINE = 64;
    const int64_t all = (codes.k + 7) / 8 * 8;
    const uint64_t low = ones(7, 8), ones_of_bytes = ones(1, 8);
    for (int64_t first = 0; first < all; first += LINE)
        for (int64_t lane = 0; lane < NR; lane++) {
            uint8_t* to = panel + lane % W / 4 * 16 + lane / W * 8 + lane % 4 * 2;
            for (int64_t i = first; i < std::min(all, first + LINE); i += 8) {
                uint64_t bytes = row + lane < codes.n ? codes.eight(row + lane, i) : 0;
                if (integers) bytes ^= ~low | (~bytes >> 7 & ones_of_bytes) * 127;
                for (int64_t j = 0; j < 8; j += 2, bytes >>= 16) memcpy(to + (i + j) * NR, &bytes, 2);
            }
        }
}

// run(an integral constant of `bits`)
template <int FIRST, int LAST, class Run>
void by_bits(int64_t bits, Run run) {
    if (bits == FIRST) return run(std::integral_constant<int, FIRST>{});
    if constexpr (FIRST < LAST) by_bits<FIRST + 1, LAST>(bits, run);
}

// body(i) for 0 <= i < count, of so many elementary operations in all.
template <class Body>
void each(int64_t count, double operations, int64_t cores, Body body) {
    share(worth(cores, operations), count, body);
}

}  // namespace
}  // namespace aril

using namespace aril;

// Rows of words in one piece each, `row_stride` words apart: out[rows][count].
extern "C" void aril_unpack_rows(void* out, const void* words, int64_t rows, int64_t count, int64_t size, int64_t row_stride,
                                 int64_t bits, int64_t cores) {
    by_bits<1, 8>(bits, [&](auto width) {
        each(rows, double(rows) * count / 2, cores, [&](int64_t row) {
            const char* at = reinterpret_cast<const char*>(static_cast<const uint32_t*>(words) + row * row_stride);
            unpack_row<width()>(static_cast<uint8_t*>(out) + row * count, at, size * 4, count);
        });
    });
}

// Neighbouring rows side by side, a row's words `word_stride` apart: out[count][rows].
extern "C" void aril_unpack_columns(void* out, const void* words, int64_t rows, int64_t count, int64_t word_stride, int64_t bits,
                                    int64_t cores) {
    const int64_t across = (rows + COLUMNS - 1) / COLUMNS, down = (count + 31) / 32;
    by_bits<1, 8>(bits, [&](auto width) {
        each(across * down, double(rows) * count / 8, cores, [&](int64_t at) {
            const int64_t first = at % across * COLUMNS, field = at / across * 32;
            unpack_columns<width()>(static_cast<uint8_t*>(out) + first, static_cast<const uint32_t*>(words) + first, rows, word_stride,
                                    std::min(COLUMNS, rows - first), Range(field, std::min(count, field + 32)));
        });
    });
}

extern "C" void aril_pack_rows(void* out, const void* codes, int64_t rows, int64_t count, int64_t row_stride, int64_t stride,
                               int64_t bits, int64_t cores) {
    const Codes from{static_cast<const uint8_t*>(codes), rows, count, row_stride, stride};
    const int64_t size = (count * bits + 31) / 32 * 4;
    by_bits<1, 8>(bits, [&](auto width) {
        each(rows, double(rows) * count / 2, cores, [&](int64_t row) {
            if constexpr (32 % width() == 0) pack_row<width()>(static_cast<char*>(out) + row * size, size, from, row);
        });
    });
}

// The panels of words of one plane: the `bits` bits of each code from `shift` on. 8 bits: words of four inputs.
extern "C" void aril_pack_plane(void* out, const void* codes, int64_t n, int64_t k, int64_t n_stride, int64_t k_stride,
                                int64_t shift, int64_t bits, int64_t cores) {
    const Codes from{static_cast<const uint8_t*>(codes), n, k, n_stride, k_stride};
    const int64_t size = (k * bits + 31) / 32 * NR * 4;
    by_bits<1, 8>(bits, [&](auto width) {
        each((n + NR - 1) / NR, double(n) * k / 2, cores, [&](int64_t panel) {
            char* to = static_cast<char*>(out) + panel * size;
            if constexpr (32 % width() == 0)
                k_stride == 1 ? pack_by_rows<width()>(to, from, panel * NR, int(shift))
                              : pack_by_columns<width()>(to, from, panel * NR, int(shift));
        });
    });
}

extern "C" void aril_pack_bytes(void* out, const void* codes, int64_t n, int64_t k, int64_t n_stride, int64_t k_stride,
                                int64_t paired, int64_t cores) {
    const Codes from{static_cast<const uint8_t*>(codes), n, k, n_stride, k_stride};
    each((n + NR - 1) / NR, double(n) * k, cores,
         [&](int64_t panel) { pack_bytes(static_cast<uint8_t*>(out) + panel * k * NR, from, panel * NR, paired); });
}

extern "C" void aril_pack_byte_pairs(void* out, const void* codes, int64_t n, int64_t k, int64_t n_stride, int64_t k_stride,
                                     int64_t integers, int64_t cores) {
    const Codes from{static_cast<const uint8_t*>(codes), n, k, n_stride, k_stride};
    const int64_t size = (k + 7) / 8 * 8 * NR;
    each((n + NR - 1) / NR, double(n) * k / 2, cores,
         [&](int64_t panel) { pack_byte_pairs(static_cast<uint8_t*>(out) + panel * size, from, panel * NR, integers); });
}
