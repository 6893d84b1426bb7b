// Products with weights in codes (ops/grouped.py): in float32 (grouped_floats.h), and rows of bfloat16 in pairs where the machine
// and the codes allow it (grouped_pairs.h, grouped_words.h).
#include "grouped_floats.h"
#include "grouped_pairs.h"
#include "grouped_words.h"

namespace aril {
namespace {

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

namespace aril {
namespace {

// `types`: the type of the fine numbers plus 8 times that of the coarse ones.
Numbers numbers(const void* fine, const void* coarse, int64_t types, int64_t span) { return {fine, coarse, types % 8, types / 8, span}; }

// run(the weight), of such codes.
template <class Run>
void by_codes(const void* const* planes, const void* table, const Factors& factors, const Shape& shape, int64_t bits, int64_t values, Run run) {
    const int64_t low_bits = bits == 2 || bits == 3 ? 2 : 4;
    const Tables tables(low_bits, bits - low_bits, static_cast<const float*>(table));
    by_reader(bits, values, [&](auto type) { run(Codes<typename decltype(type)::type>(planes, tables.both[0], factors, shape)); });
}

}  // namespace
}  // namespace aril

// Planes and numbers in panels; what is absent is null. `scale_types` and `min_types`: the type of the fine numbers plus 8 times
// that of the coarse ones, as in factors.h.
extern "C" void aril_matmul_grouped(void* out, const void* x, const void* low, const void* high, const void* scales,
                                    const void* coarse_scales, const void* mins, const void* coarse_mins, const void* zeros,
                                    const void* table, const void* order, int64_t m, int64_t n, int64_t k, int64_t x_stride,
                                    int64_t x_dtype, int64_t bits, int64_t values, int64_t group, int64_t zero,
                                    int64_t scale_types, int64_t scale_span, int64_t min_types, int64_t min_span, int64_t cores) {
    using namespace aril;
    const Factors factors{numbers(scales, coarse_scales, scale_types, scale_span), numbers(mins, coarse_mins, min_types, min_span),
                          static_cast<const uint8_t*>(zeros), float(zero), (k + group - 1) / group};
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
    by_codes(planes, table, factors, shape, bits, values, [&](const auto& weight) {
        const auto run = [&](auto number) {
            using X = decltype(number);
            product(static_cast<X*>(out), static_cast<const X*>(x), static_cast<const int64_t*>(order), weight,
                    Product{m, n, k, x_stride}, cores);
        };
        x_dtype == BF16 ? run(bf16{}) : run(float{});
    });
}

// Outputs `ids` of the weight itself: out[count][k].
extern "C" void aril_rows_of_grouped(float* out, const int64_t* ids, const void* low, const void* high, const void* scales,
                                     const void* coarse_scales, const void* mins, const void* coarse_mins, const void* zeros,
                                     const void* table, const void* order, int64_t count, int64_t k, int64_t bits, int64_t values,
                                     int64_t group, int64_t zero, int64_t scale_types, int64_t scale_span, int64_t min_types,
                                     int64_t min_span, int64_t cores) {
    using namespace aril;
    const Factors factors{numbers(scales, coarse_scales, scale_types, scale_span), numbers(mins, coarse_mins, min_types, min_span),
                          static_cast<const uint8_t*>(zeros), float(zero), (k + group - 1) / group};
    const void* const planes[2] = {low, high};
    by_codes(planes, table, factors, Shape{k, group}, bits, values, [&](const auto& weight) {
        share_ranges(worth(cores, double(count * k) * NR / W), count, [&](Range some) {
            for (; some.begin < some.end; some.begin++)
                weight.row(out + some.begin * k, ids[some.begin], static_cast<const int64_t*>(order));
        });
    });
}

ARIL_TAPED(aril_matmul_grouped)
ARIL_TAPED(aril_rows_of_grouped)
