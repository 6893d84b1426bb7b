// Rows rounded to e4m3, to small integers and to int8, bit for bit as the references do (ops/rounding.py, ops/int8.py).
#include "common.h"

namespace aril {
namespace {

constexpr float SMALLEST = 1.1920928955078125e-07f;  // the scale of what is all zeros

// f of each number; the last ones by way of a whole vector.
template <class To, class X, class F>
ARIL_INLINE void transform(To* to, const X* x, int64_t count, F f) {
    int64_t i = 0;
    for (; i + W <= count; i += W) store(to + i, f(load(x + i)));
    if (i == count) return;
    X given[W] = {};
    To made[W];
    std::copy_n(x + i, count - i, given);
    store(made, f(load(given)));
    std::copy_n(made, count - i, to + i);
}

ARIL_INLINE vf clamped(vf v, float low, float high) { return min(max(v, splat(low)), splat(high)); }

// The nearest whole number, half to even; |v| is at most 2^22.
ARIL_INLINE vf whole(vf v) {
    const vf magic = splat(12582912.0f);  // 1.5 * 2^23
    return (v + magic) - magic;
}

// The smallest and the largest of some numbers and 0.
struct Extent {
    float low = 0, high = 0;

    template <class X>
    Extent(const X* x, int64_t count) {
        vf lows = {}, highs = {};
        int64_t i = 0;
        for (; i + W <= count; i += W) lows = min(lows, load(x + i)), highs = max(highs, load(x + i));
        for (int lane = 0; lane < W; lane++) low = std::min(low, lows[lane]), high = std::max(high, highs[lane]);
        for (; i < count; i++) low = std::min(low, get(x + i)), high = std::max(high, get(x + i));
    }
};

float not_zero(float scale) { return scale == 0 ? SMALLEST : scale; }

// Codes lowest .. lowest + steps of what lies between two numbers: round(x / scale) + zero.
struct Codes {
    float scale, zero, lowest, highest;

    // As compressed-tensors does: the symmetric range is as wide as twice its longer side.
    static Codes of(Extent range, float steps, bool symmetric) {
        const float lowest = -(steps + 1) / 2;
        if (symmetric) return {not_zero(std::max(-range.low, range.high) * 2 / steps), 0, lowest, lowest + steps};
        const float scale = not_zero((range.high - range.low) / steps);
        const float zero = nearbyintf(lowest - range.low / scale);
        return {scale, std::min(std::max(zero, lowest), lowest + steps), lowest, lowest + steps};
    }

    ARIL_INLINE vf operator()(vf x) const {
        const vf steps = clamped(x / scale, -1e6f, 1e6f);  // whatever is further off ends at the same limit
        return clamped(whole(steps) + zero, lowest, highest);
    }
};

// The nearest e4m3 number, half to even: adding and taking off 1.5 * 2^23 steps rounds to a whole number of them. A step is an
// eighth of the number's power of two, and of 2^-6 for the subnormals below that.
ARIL_INLINE vf to_e4m3(vf x) {
    const vf v = clamped(x, -448.0f, 448.0f);
    const vu power = (vu)v & 0x7f800000u, least = vu{} + (121u << 23);
    const vf magic = (vf)((power > least ? power : least) + ((20u << 23) + 0x400000u));
    return (v + magic) - magic;
}

template <class X>
void row_to_e4m3(X* out, const X* x, int64_t k, int64_t group, const float* given) {
    for (int64_t first = 0; first < k; first += group) {
        const int64_t count = std::min(group, k - first);
        float scale = given ? *given : 0;
        if (!given) {
            const Extent range(x + first, count);
            scale = not_zero(std::max(-range.low, range.high) / 448.0f);
        }
        transform(out + first, x + first, count, [&](vf v) { return to_e4m3(v / scale) * scale; });
    }
}

template <class X>
void row_to_integers(X* out, const X* x, int64_t k, int64_t group, float steps, bool symmetric) {
    for (int64_t first = 0; first < k; first += group) {
        const int64_t count = std::min(group, k - first);
        const Codes codes = Codes::of(Extent(x + first, count), steps, symmetric);
        transform(out + first, x + first, count, [&](vf v) { return (codes(v) - codes.zero) * codes.scale; });
    }
}

// body(row, a number of x's type) for every row.
template <class Body>
void by_row(int64_t m, int64_t k, int64_t dtype, int64_t cores, Body body) {
    share_ranges(worth(cores, double(m) * k), m, [&](Range some) {
        for (; some.begin < some.end; some.begin++) dtype == BF16 ? body(some.begin, bf16{}) : body(some.begin, float{});
    });
}

}  // namespace
}  // namespace aril

using namespace aril;

extern "C" void aril_round_to_e4m3(void* out, const void* x, int64_t m, int64_t k, int64_t x_stride, int64_t dtype, int64_t group,
                                   const float* given, int64_t cores) {
    by_row(m, k, dtype, cores, [&](int64_t i, auto number) {
        using X = decltype(number);
        row_to_e4m3(static_cast<X*>(out) + i * k, static_cast<const X*>(x) + i * x_stride, k, group, given);
    });
}

extern "C" void aril_round_to_integers(void* out, const void* x, int64_t m, int64_t k, int64_t x_stride, int64_t dtype,
                                       int64_t bits, int64_t group, int64_t symmetric, int64_t cores) {
    const float steps = float((1 << bits) - 1);
    by_row(m, k, dtype, cores, [&](int64_t i, auto number) {
        using X = decltype(number);
        row_to_integers(static_cast<X*>(out) + i * k, static_cast<const X*>(x) + i * x_stride, k, group, steps, symmetric);
    });
}

// `given` is one scale for all rows or null; `zeros` null where all are 0.
extern "C" void aril_quantize_rows(int8_t* codes, float* scales, int32_t* zeros, const void* x, int64_t m, int64_t k,
                                   int64_t x_stride, int64_t x_dtype, const float* given, int64_t given_zero, int64_t symmetric,
                                   int64_t cores) {
    by_row(m, k, x_dtype, cores, [&](int64_t i, auto number) {
        const auto* row = static_cast<const decltype(number)*>(x) + i * x_stride;
        const Codes of = given ? Codes{*given, float(given_zero), -128, 127} : Codes::of(Extent(row, k), 255, symmetric);
        transform(codes + i * k, row, k, of);
        scales[i] = of.scale;
        if (zeros) zeros[i] = int32_t(of.zero);
    });
}

ARIL_TAPED(aril_round_to_e4m3)
ARIL_TAPED(aril_round_to_integers)
ARIL_TAPED(aril_quantize_rows)
