// bfloat16 rows times integer codes by products of pairs of 16-bit integers, on machines that multiply no pairs of bfloat16. A
// row is cut into pieces, and the inputs of a piece become whole numbers of 15 bits times a power of two: exact if they are no
// smaller than a 128th of the largest, as bfloat16 has 8 bits, and to 2^-15 of the largest otherwise. With W = code * scale +
// offset in each group
//
//     x . W = sum over pieces of  scale * step * (wholes . codes)  +  offset * step * (sum of wholes)
//
// where sums of a piece are exact and pieces are added in rising order: every element of the result is the same chain of
// operations whatever the shape around it.
#pragma once

#include "word_rows.h"

#if defined(ARIL_WORDS)
namespace aril {

constexpr int64_t WORD_ROWS = 96;     // of x that stay in L2 while the panels pass by
constexpr int64_t WORD_PANELS = 8;    // of one task at most
constexpr int64_t WORD_BLOCK = 256;   // inputs of a panel that are read once for many rows: 16 KiB of L1
constexpr int64_t WORD_GROUPS = 32;   // whose factors are made at once
constexpr int64_t WORD_TASKS = 4;     // for each thread at least
constexpr int DIRECT = 4;             // rows of a tile that reads codes itself

// Where the factors of a panel stand, from the first group of a range on.
template <class Number>
struct WordFactors {
    const Number *scales, *offsets;  // offsets: null where there are none
};

// dots[M][NR] += x times the unit at input k.
template <int M, class Source>
ARIL_INLINE void add_unit(vu (&dots)[M][2], const WordRows& x, const Source& source, int64_t k) {
    typename Source::Unit unit;
    source.open(unit, k / Source::INPUTS);
#pragma GCC unroll 8
    for (int j = 0; j < Source::PAIRS; j++) {
        const vu low = source.read(unit, j, 0), high = source.read(unit, j, 1);
#pragma GCC unroll 12
        for (int m = 0; m < M; m++) {
            uint32_t pair;
            memcpy(&pair, x.wholes + m * x.stride + k + 2 * j, sizeof pair);
            dots[m][0] = add_products(dots[m][0], low, vu{} + pair);
            dots[m][1] = add_products(dots[m][1], high, vu{} + pair);
        }
    }
}

// sums[M][NR] += x times the units of some groups, from the first one on. GROUP: inputs of each of them; 0: p knows.
template <int M, int64_t GROUP, class Source, class Number>
__attribute__((noinline)) void word_tile(float* sums, int64_t stride, WordRows x, const Source& source, WordFactors<Number> factors,
                                         int64_t inputs, const WordProduct& p) {
    const int64_t in_group = GROUP ? GROUP : p.group;
    const auto zero = int32_t(p.factors.zeros ? 0 : p.factors.zero);
    constexpr bool IN_REGISTERS = M <= 2;  // the sums: of more rows they would be moved out and in again
    vf all[M][2];
    const auto move_in = [&](int m) ARIL_INLINE_LAMBDA { all[m][0] = load(sums + m * stride), all[m][1] = load(sums + m * stride + W); };
    const auto move_out = [&](int m) ARIL_INLINE_LAMBDA { store(sums + m * stride, all[m][0]), store(sums + m * stride + W, all[m][1]); };
#pragma GCC unroll 12
    for (int m = 0; m < M && IN_REGISTERS; m++) move_in(m);
    for (int64_t group = 0; group < inputs; group += in_group, factors.scales += NR) {
        const int64_t end = GROUP ? group + GROUP : std::min(inputs, group + in_group);
        for (int64_t at = group; at < end; at += PIECE, x.steps++, x.sums++) {
            vu dots[M][2];
#pragma GCC unroll 12
            for (int m = 0; m < M; m++) dots[m][0] = dots[m][1] = vu{} - uint32_t(zero) * uint32_t(x.sums[m * x.pieces]);
            if constexpr (GROUP > 0 && GROUP <= PIECE) {
#pragma GCC unroll 8
                for (int64_t k = 0; k < GROUP; k += Source::INPUTS) add_unit(dots, x, source, at + k);
            } else {
                for (int64_t k = at, last = std::min(end, at + PIECE); k < last; k += Source::INPUTS) add_unit(dots, x, source, k);
            }
#pragma GCC unroll 12
            for (int m = 0; m < M; m++) {
                const float step = x.steps[m * x.pieces], total = step * float(x.sums[m * x.pieces]);
                if (!IN_REGISTERS) move_in(m);
#pragma GCC unroll 2
                for (int i = 0; i < 2; i++) {
                    all[m][i] = fused(__builtin_convertvector((vi)dots[m][i], vf) * step, load(factors.scales + i * W), all[m][i]);
                    if (factors.offsets) all[m][i] = fused(load(factors.offsets + i * W), splat(total), all[m][i]);
                }
                if (!IN_REGISTERS) move_out(m);
            }
        }
        if (factors.offsets) factors.offsets += NR;
    }
#pragma GCC unroll 12
    for (int m = 0; m < M && IN_REGISTERS; m++) move_out(m);
}

template <int M, int64_t GROUP, class Source, class Number>
ARIL_INLINE void word_tile_of(int64_t rows, float* sums, int64_t stride, const WordRows& x, const Source& source,
                              WordFactors<Number> factors, int64_t inputs, const WordProduct& p) {
    if constexpr (M > 1)
        if (rows < M) return word_tile_of<M - 1, GROUP>(rows, sums, stride, x, source, factors, inputs, p);
    word_tile<M, GROUP>(sums, stride, x, source, factors, inputs, p);
}

template <class Reader>
class WordCodes {
public:
    explicit WordCodes(const WordProduct& p)
        : p_(p), has_offsets_(p.factors.has_offsets(p.lack())), are_halves_(!p.factors.zeros && is_half(p.factors.scales) &&
                                                                              (!p.factors.mins.fine || is_half(p.factors.mins))) {}

    // sums[rows][NR] += x times a panel; the factors of some groups after the other.
    void multiply(int64_t rows, float* sums, int64_t stride, const WordRows& x, int64_t panel) const {
        if (rows <= DIRECT && are_halves_) return multiply_halves(rows, sums, stride, x, panel);
        static thread_local Scratch scratch;
        const int64_t all = p_.factors.groups, each = std::max<int64_t>(1, WORD_BLOCK / p_.group);
        const int64_t count = std::min(all, rows > DIRECT ? std::min(each, WORD_GROUPS) : WORD_GROUPS);
        const int64_t room = rows > DIRECT ? (std::min(count * p_.group, p_.k) + Reader::INPUTS) / 2 * NR : 0;
        float *scales = scratch.get(2 * count * NR + room), *offsets = scales + count * NR;
        auto* lying = reinterpret_cast<uint32_t*>(offsets + count * NR);
        const Reader reader(p_.plane, p_.k, panel);
        for (int64_t first = 0; first < all; first += count) {
            const int64_t some = std::min(count, all - first), begin = first * p_.group, end = std::min(p_.k, begin + some * p_.group);
            p_.factors.read(scales, offsets, panel, first, some, p_.lack());
            const WordFactors<float> factors{scales, has_offsets_ ? offsets : nullptr};
            const WordRows from = x.from(0, begin, first * p_.pieces_of_group());
            if (rows <= DIRECT) {
                word_tile_of<DIRECT, 0>(rows, sums, stride, from, Shifted{reader, begin / Reader::INPUTS}, factors, end - begin, p_);
                continue;
            }
            lay(lying, reader, Range(begin / Reader::INPUTS, (end + Reader::INPUTS - 1) / Reader::INPUTS));
            for (int64_t t = 0, tiles = (rows + MR - 1) / MR; t < tiles; t++) {
                const Range part(rows, t, tiles);
                word_tile_of<MR, 0>(part.end - part.begin, sums + part.begin * stride, stride, from.from(part.begin, 0, 0), Lying<Reader>(lying),
                                 factors, end - begin, p_);
            }
        }
    }

private:
    static bool is_half(const Numbers& numbers) { return numbers.fine_type == NUMBER_F16 && !numbers.coarse; }

    // The same with the factors where they lie.
    void multiply_halves(int64_t rows, float* sums, int64_t stride, const WordRows& x, int64_t panel) const {
        const auto of_panel = [&](const void* numbers) {
            return numbers ? static_cast<const f16*>(numbers) + panel * p_.factors.groups * NR : nullptr;
        };
        const WordFactors<f16> factors{of_panel(p_.factors.scales.fine), of_panel(p_.factors.mins.fine)};
        const Reader reader(p_.plane, p_.k, panel);
        if (p_.group == 32 && p_.k % 32 == 0) return word_tile_of<DIRECT, 32>(rows, sums, stride, x, reader, factors, p_.k, p_);
        word_tile_of<DIRECT, 0>(rows, sums, stride, x, reader, factors, p_.k, p_);
    }

    // A reader that counts units from where a range begins.
    struct Shifted {
        static constexpr int PAIRS = Reader::PAIRS;
        static constexpr int64_t INPUTS = Reader::INPUTS;
        using Unit = typename Reader::Unit;

        const Reader& reader;
        int64_t first;

        ARIL_INLINE void open(Unit& unit, int64_t i) const { reader.open(unit, first + i); }
        ARIL_INLINE vu read(const Unit& unit, int j, int half) const { return reader.read(unit, j, half); }
    };

    static void lay(uint32_t* to, const Reader& reader, Range units) {
        for (int64_t i = units.begin; i < units.end; i++) {
            typename Reader::Unit unit;
            reader.open(unit, i);
#pragma GCC unroll 8
            for (int j = 0; j < Reader::PAIRS; j++, to += NR)
                for (int half = 0; half < 2; half++) {
                    const vu words = reader.read(unit, j, half);
                    memcpy(to + half * W, &words, sizeof words);
                }
        }
    }

    const WordProduct& p_;
    const bool has_offsets_, are_halves_;  // whether factors are float16 and nothing else
};

template <class Reader>
void word_product(bf16* out, const bf16* x, const int64_t* order, const WordProduct& p, int64_t x_stride, int64_t cores) {
    static thread_local Scratch scratch;
    const int64_t stride = (p.k + 31) / 32 * 32 + 32, pieces = p.pieces();  // never a power of two: rows must not share a cache set
    float* steps = scratch.get(p.m * (stride / 2 + 2 * pieces));
    auto* sums = reinterpret_cast<int32_t*>(steps + p.m * pieces);
    auto* wholes = reinterpret_cast<int16_t*>(sums + p.m * pieces);
    share_ranges(worth(cores, double(p.m) * p.k / 2), p.m, [&](Range rows) {
        for (int64_t i = rows.begin; i < rows.end; i++)
            word_row<Reader>(wholes + i * stride, steps + i * pieces, sums + i * pieces, x + i * x_stride, order, p);
    });
    const WordRows all{wholes, steps, sums, stride, pieces};
    const int threads = worth(cores, double(p.m + 3) * p.n * p.k / (2 * W));  // reading the weight is worth three rows
    const int64_t down = (p.m + WORD_ROWS - 1) / WORD_ROWS, panels = p.panels();
    const int64_t across = tasks_of(panels, WORD_PANELS, threads, WORD_TASKS);
    const WordCodes<Reader> codes(p);
    share(threads, down * across, [&](int64_t at) {
        const int64_t top = at / across * WORD_ROWS, height = std::min(WORD_ROWS, p.m - top);
        const Range some(panels, at % across, across);
        float sums[WORD_ROWS * NR];
        for (int64_t panel = some.begin; panel < some.end; panel++) {
            std::fill(sums, sums + height * NR, 0.0f);
            codes.multiply(height, sums, NR, all.from(top, 0, 0), panel);
            const int64_t column = panel * NR, width = std::min<int64_t>(NR, p.n - column);
            for (int64_t i = 0; i < height; i++) copy(out + (top + i) * p.n + column, sums + i * NR, width);
        }
    });
}

// run(Type<the reader of such codes>); false: there is none.
template <class Run>
bool by_word_reader(int64_t bits, const WordProduct& p, Run run) {
    const auto fits = [&](int64_t inputs) { return p.group >= p.k || p.group % inputs == 0; };
    if (bits == 2 && fits(16)) return run(Type<WordFields<2>>{}), true;
    if (bits == 4 && fits(8)) return run(Type<WordFields<4>>{}), true;
    if (bits == 8 && fits(8) && p.k % 8 == 0) return run(Type<WordBytes>{}), true;
    return false;
}

}  // namespace aril
#endif
