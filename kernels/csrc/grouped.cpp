// Products with weights in codes (ops/grouped.py): a code becomes the float32 W[n, k] in registers and takes part in the same
// chain of fused multiply-adds as in tile.h, so a row gives the bits that the float32 matrix would give. Rows of bfloat16 are
// multiplied in pairs where the machine and the codes allow it (grouped_pairs.h, grouped_words.h).
#include "bytes.h"
#include "grouped_pairs.h"
#include "grouped_words.h"
#include "product.h"

namespace aril {
namespace {

constexpr int FUSED = W == 16 ? 8 : 4;  // rows of a tile that reads codes itself
constexpr int64_t FEW = 2 * FUSED;      // rows for which codes are read by such tiles, once by each; for more they become a
constexpr int64_t BLOCK = 160;          // float32 panel of so many k, which stays in L1 beside the rows of x. One core of Cascade
                                        // Lake, 128 x 4096 of 4 bits in L2, 8 rows: 88 us instead of 108; 16: 174 instead of 186
constexpr int64_t GROUPS_READ = 32;     // whose factors are made at once for such tiles
constexpr int WIDE = W == 16 ? 2 : 1;   // panels at once for one row: the two chains of one panel would wait for themselves

struct Shape {
    int64_t k, group;
};

// Where the factors of P panels stand, from the first group of a range on; `stride` from panel to panel.
struct Scaled {
    const float *scales, *offsets;
    int64_t stride;
};

// body(k, w) for each k of the range, where w are the two vectors of each of P panels.
template <int P, class Reader, class Body>
ARIL_INLINE void walk(const Reader* readers, Scaled at, int64_t group, Range ks, Body body) {
    int64_t end = (ks.begin / group + 1) * group;
    for (int64_t k = ks.begin; k < ks.end; end += group, at.scales += NR, at.offsets += NR) {
        vf scale[2 * P], offset[2 * P];
#pragma GCC unroll 8
        for (int i = 0; i < 2 * P; i++) {
            scale[i] = load(at.scales + i / 2 * at.stride + i % 2 * W);
            offset[i] = load(at.offsets + i / 2 * at.stride + i % 2 * W);
        }
        typename Reader::Unit units[P];
        const auto one = [&](int64_t at_k, int j) ARIL_INLINE_LAMBDA {
            vf w[2 * P];
#pragma GCC unroll 2
            for (int p = 0; p < P; p++) readers[p].read(units[p], j, w[2 * p], w[2 * p + 1]);
#pragma GCC unroll 8
            for (int i = 0; i < 2 * P; i++) w[i] = w[i] * scale[i] + offset[i];
            body(at_k, w);
        };
        for (const int64_t last = std::min(end, ks.end); k < last;) {
            if (k % UNIT == 0 && k + UNIT <= last) {
#pragma GCC unroll 2
                for (int p = 0; p < P; p++) readers[p].open_unit(units[p], k), readers[p].fetch(k);
#pragma GCC unroll 8
                for (int j = 0; j < UNIT; j++) one(k + j, j);
                k += UNIT;
            } else {
#pragma GCC unroll 2
                for (int p = 0; p < P; p++) readers[p].open(units[p], k);
                one(k++, 0);
            }
        }
    }
}

template <class Reader>
class Codes {
public:
    using In = float;

    Codes(const void* const* planes, const float* tables, const Factors& factors, const Shape& shape)
        : planes_(planes), tables_(tables), factors_(factors), shape_(shape) {}

    int64_t cuts(int64_t rows) const { return rows <= FEW ? 1 : (shape_.k + BLOCK - 1) / BLOCK; }

    Range block(int64_t cut, int64_t cuts) const {
        const Range ks(shape_.k, cut, cuts);
        return Range(ks.begin / UNIT * UNIT, cut + 1 == cuts ? shape_.k : ks.end / UNIT * UNIT);
    }

    void multiply(int64_t rows, float* sums, int64_t stride, const float* x, int64_t x_stride, Range panels, Range ks,
                  bool onto) const {
        if (rows > FEW) return by_block(rows, sums, stride, x, x_stride, panels, ks, onto);
        int64_t at = panels.begin;
        for (; rows == 1 && at + WIDE <= panels.end; at += WIDE, sums += WIDE * NR) fused<1, WIDE>(sums, stride, x, x_stride, at);
        for (const int64_t tiles = (rows + FUSED - 1) / FUSED; at < panels.end; at++, sums += NR)
            for (int64_t t = 0; t < tiles; t++) {
                const Range part(rows, t, tiles);
                fused_of<FUSED>(part.end - part.begin, sums + part.begin * stride, stride, x + part.begin * x_stride, x_stride, at);
            }
    }

private:
    Reader reader(int64_t panel) const { return Reader(planes_, tables_, shape_.k, panel); }

    template <int M>
    void fused_of(int64_t rows, float* sums, int64_t stride, const float* x, int64_t x_stride, int64_t panel) const {
        if constexpr (M > 1)
            if (rows < M) return fused_of<M - 1>(rows, sums, stride, x, x_stride, panel);
        fused<M, 1>(sums, stride, x, x_stride, panel);
    }

    // All of k for M rows and P panels; the factors of some groups after the other.
    template <int M, int P>
    void fused(float* sums, int64_t stride, const float* x, int64_t x_stride, int64_t panel) const {
        static thread_local Scratch scratch;
        const int64_t all = factors_.groups, count = std::min(GROUPS_READ, all), each = count * NR;
        float *scales = scratch.get(2 * P * each), *offsets = scales + P * each;
        for (int m = 0; m < M; m++) std::fill(sums + m * stride, sums + m * stride + P * NR, 0.0f);
        for (int64_t first = 0; first < all; first += count) {
            for (int p = 0; p < P; p++)
                factors_.read(scales + p * each, offsets + p * each, panel + p, first, std::min(count, all - first), Reader::LACK);
            const Range ks(first * shape_.group, std::min(shape_.k, (first + count) * shape_.group));
            continued<M, P>(sums, stride, x, x_stride, panel, ks, Scaled{scales, offsets, each});
        }
    }

    template <int M, int P>
    __attribute__((noinline)) void continued(float* sums, int64_t stride, const float* x, int64_t x_stride, int64_t panel, Range ks,
                                             Scaled factors) const {
        const Reader readers[2] = {reader(panel), reader(panel + P - 1)};
        vf c[M][2 * P];
#pragma GCC unroll 8
        for (int m = 0; m < M; m++)
#pragma GCC unroll 8
            for (int i = 0; i < 2 * P; i++) c[m][i] = load(sums + m * stride + i * W);
        walk<P>(readers, factors, shape_.group, ks, [&](int64_t k, const vf* w) ARIL_INLINE_LAMBDA {
#pragma GCC unroll 8
            for (int m = 0; m < M; m++) {
                const vf value = splat(x[m * x_stride + k]);
#pragma GCC unroll 8
                for (int i = 0; i < 2 * P; i++) c[m][i] += value * w[i];
            }
        });
#pragma GCC unroll 8
        for (int m = 0; m < M; m++)
#pragma GCC unroll 8
            for (int i = 0; i < 2 * P; i++) store(sums + m * stride + i * W, c[m][i]);
    }

    // A block of k of each panel becomes float32 once, for all rows.
    void by_block(int64_t rows, float* sums, int64_t stride, const float* x, int64_t x_stride, Range panels, Range ks,
                  bool onto) const {
        static thread_local Scratch scratch;
        const int64_t first = ks.begin / shape_.group, count = (ks.end - 1) / shape_.group + 1 - first;
        const int64_t length = ks.end - ks.begin;
        float *panel = scratch.get((length + 2 * count) * NR), *scales = panel + length * NR, *offsets = scales + count * NR;
        for (int64_t at = panels.begin; at < panels.end; at++, sums += NR) {
            factors_.read(scales, offsets, at, first, count, Reader::LACK);
            widen(panel, at, ks, Scaled{scales, offsets, 0});
            panel_product(rows, sums, stride, x + ks.begin, x_stride, panel, length, onto);
        }
    }

    __attribute__((noinline)) void widen(float* to, int64_t panel, Range ks, Scaled factors) const {
        const Reader it = reader(panel);
        walk<1>(&it, factors, shape_.group, ks, [&](int64_t, const vf* w) ARIL_INLINE_LAMBDA {
            store(to, w[0]);
            store(to + W, w[1]);
            to += NR;
        });
    }

    const void* const* const planes_;
    const float* const tables_;
    const Factors& factors_;
    const Shape& shape_;
};

// What the fields of the two planes mean: integers, or the given value of each code, which then lies in one plane.
struct Tables {
    float both[2][16];

    Tables(int64_t low_bits, int64_t high_bits, const float* given) {
        for (int i = 0; i < 16; i++) {
            const int field = i & ((1 << low_bits) - 1);
            both[0][i] = given ? given[field] : float(field);
            both[1][i] = float((i & ((1 << high_bits) - 1)) << low_bits);
        }
    }
};

// run(Type<the reader of such codes>)
template <class Run>
void by_reader(int64_t bits, int64_t values, Run run) {
    constexpr bool ALIKE = W == 16;  // integers are looked up too
    if (values == E4M3) return run(Type<E4m3>{});
    if (values == TABLE) return bits == 2 ? run(Type<Fields<2, 0, true>>{}) : run(Type<Fields<4, 0, true>>{});
    switch (bits) {
        case 2: return run(Type<Fields<2, 0, ALIKE>>{});
        case 3: return run(Type<Fields<2, 1, false>>{});
        case 4: return run(Type<Fields<4, 0, ALIKE>>{});
        case 5: return run(Type<Fields<4, 1, false>>{});
        case 6: return run(Type<Fields<4, 2, false>>{});
        default: return run(Type<Integers>{});
    }
}

#if defined(ARIL_PAIRS)

// The product in pairs, where the codes allow it; false: nothing is done.
bool multiplied_in_pairs(bf16* out, const bf16* x, const int64_t* order, const void* const* planes, const float* table, int64_t bits,
                         int64_t values, const Factors& factors, const Product& p, int64_t group, int64_t cores) {
    Lack lack{1.0f, 0.0f};
    const PairTables tables = pair_tables(bits, values, table, factors, lack);
    const PairedProduct paired{planes, tables, factors, lack, Cut{p.k, group}, p.m, p.n};
    bool done = false;
    by_pair_reader(bits, tables, [&](auto type) {
        using Reader = typename decltype(type)::type;
        done = is_paired<Reader>(paired.cut);
        if (done) paired_product<Reader>(out, x, order, paired, p.x_stride, cores);
    });
    return done;
}

#endif

}  // namespace
}  // namespace aril

// Whether bytes and high planes lie as pairs.h says.
extern "C" int aril_reads_pairs() {
#if defined(ARIL_PAIRS)
    return 1;
#else
    return 0;
#endif
}

// Planes and numbers in panels; what is absent is null. `scale_types` and `min_types`: the type of the fine numbers plus 8 times
// that of the coarse ones, as in factors.h.
extern "C" void aril_matmul_grouped(void* out, const void* x, const void* low, const void* high, const void* scales,
                                    const void* coarse_scales, const void* mins, const void* coarse_mins, const void* zeros,
                                    const void* table, const void* order, int64_t m, int64_t n, int64_t k, int64_t x_stride,
                                    int64_t x_dtype, int64_t bits, int64_t values, int64_t group, int64_t zero,
                                    int64_t scale_types, int64_t scale_span, int64_t min_types, int64_t min_span, int64_t cores) {
    using namespace aril;
    const Factors factors{{scales, coarse_scales, scale_types % 8, scale_types / 8, scale_span},
                          {mins, coarse_mins, min_types % 8, min_types / 8, min_span},
                          static_cast<const uint8_t*>(zeros),
                          float(zero),
                          (k + group - 1) / group};
    const Shape shape{k, group};
    const void* const planes[2] = {low, high};
#if defined(ARIL_PAIRS)
    if (x_dtype == BF16 && multiplied_in_pairs(static_cast<bf16*>(out), static_cast<const bf16*>(x), static_cast<const int64_t*>(order), planes,
                                               static_cast<const float*>(table), bits, values, factors, Product{m, n, k, x_stride}, group, cores))
        return;
#endif
#if defined(ARIL_WORDS)
    const WordProduct words{low, factors, m, n, k, group};
    if (x_dtype == BF16 && values == INTEGERS && by_word_reader(bits, words, [&](auto type) {
            word_product<typename decltype(type)::type>(static_cast<bf16*>(out), static_cast<const bf16*>(x), static_cast<const int64_t*>(order),
                                                        words, x_stride, cores);
        }))
        return;
#endif
    const int64_t low_bits = bits == 2 || bits == 3 ? 2 : 4;
    const Tables tables(low_bits, bits - low_bits, static_cast<const float*>(table));
    by_reader(bits, values, [&](auto type) {
        const Codes<typename decltype(type)::type> weight(planes, tables.both[0], factors, shape);
        const auto run = [&](auto number) {
            using X = decltype(number);
            product(static_cast<X*>(out), static_cast<const X*>(x), static_cast<const int64_t*>(order), weight,
                    Product{m, n, k, x_stride}, cores);
        };
        x_dtype == BF16 ? run(bf16{}) : run(float{});
    });
}

ARIL_TAPED(aril_matmul_grouped)
