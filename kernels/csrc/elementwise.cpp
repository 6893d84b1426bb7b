// What is done to each row alone: norms, gated activations, rotary positions and cache writes. They follow the rounding of the
// torch references: float32 inside, and one rounding wherever the reference stores a tensor.
#include "gate.h"

namespace aril {
namespace {

// body(row) for every row; `size` elementary operations each.
template <class Body>
void each_row(int64_t rows, int64_t size, int64_t cores, Body body) {
    share_ranges(worth(cores, double(rows) * size / W), rows, [&](Range some) {
        for (; some.begin < some.end; some.begin++) body(some.begin);
    });
}

template <class T>
float sum_of_squares(const T* x, int64_t size) {
    vf squares = {};
    int64_t i = 0;
    for (; i + W <= size; i += W) squares += load(x + i) * load(x + i);
    float total = sum(squares);
    for (; i < size; i++) total += get(x + i) * get(x + i);
    return total;
}

// In float32 they are added up in torch's order (ATen/native/cpu/SumKernel.cpp on x86: 4 accumulators of 8 lanes, in 4
// levels), so that a norm is transformers' to the last bit: where a format rounds what comes next, that bit shows.
float sum_of_squares(const float* x, int64_t size) {
    constexpr int lanes = 8, sums = 4, levels = 4;
    typedef float v8 __attribute__((vector_size(4 * lanes), aligned(4)));
    const auto square = [&](int64_t at) {
        const v8 each = *reinterpret_cast<const v8*>(x + at * lanes);
        return unfused(each * each);
    };
    const int64_t vectors = size / lanes, steps = vectors / sums;
    int log = 0;
    while ((int64_t(1) << log) < steps) log++;
    const int power = std::max(4, log / levels);
    v8 level[levels][sums] = {};
    for (int64_t i = 0; i < steps;) {
        for (int k = 0; k < sums; k++) level[0][k] += square(i * sums + k);
        i++;
        for (int j = 1; j < levels && i % (int64_t(1) << (j * power)) == 0; j++) {
            for (int k = 0; k < sums; k++) {
                level[j][k] += level[j - 1][k];
                level[j - 1][k] = v8{};
            }
        }
    }
    for (int j = 1; j < levels; j++)
        for (int k = 0; k < sums; k++) level[0][k] += level[j][k];
    for (int64_t at = steps * sums; at < vectors; at++) level[0][0] += square(at);
    for (int k = 1; k < sums; k++) level[0][0] += level[0][k];
    float total = 0;
    for (int64_t at = vectors * lanes; at < size; at++) total += unfused(x[at] * x[at]);
    for (int lane = 0; lane < lanes; lane++) total += level[0][0][lane];
    return total;
}

template <class T>
void norm_row(T* out, const T* x, const T* weight, int64_t size, float eps) {
    const float scale = 1.0f / std::sqrt(sum_of_squares(x, size) / float(size) + eps);
    int64_t i = 0;
    for (; i + W <= size; i += W) store(out + i, rounded<T>(load(x + i) * scale) * load(weight + i));
    for (; i < size; i++) put(out + i, rounded<T>(get(x + i) * scale) * get(weight + i));
}

template <class T>
void add_row(T* to, const T* x, int64_t size) {
    int64_t i = 0;
    for (; i + W <= size; i += W) store(to + i, load(to + i) + load(x + i));
    for (; i < size; i++) put(to + i, get(to + i) + get(x + i));
}

template <class T>
void silu_mul_row(T* out, const T* gate, int64_t size) {
    const T* up = gate + size;
    int64_t i = 0;
    for (; i + W <= size; i += W) store(out + i, gated<T>(load(gate + i), load(up + i)));
    if (i == size) return;
    float last_gate[W] = {}, last_up[W] = {}, last[W];
    copy(last_gate, gate + i, size - i);
    copy(last_up, up + i, size - i);
    store(last, gated<T>(load(last_gate), load(last_up)));
    copy(out + i, last, size - i);
}

// One head's pairs (a, b) turn by the angle of each: a cos - b sin, b cos + a sin.
template <class T>
void rotate_head(T* x, const float* cos, const float* sin, int64_t half, bool interleaved) {
    const int64_t step = interleaved ? 2 : 1, apart = interleaved ? 1 : half;
    int64_t i = 0;
    for (; !interleaved && i + W <= half; i += W) {
        const vf a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
        store(x + i, unfused(a * c) - unfused(b * s));
        store(x + half + i, unfused(b * c) + unfused(a * s));
    }
    for (; i < half; i++) {
        T *first = x + i * step, *second = first + apart;
        const float a = get(first), b = get(second);
        put(first, unfused(a * cos[i]) - unfused(b * sin[i]));
        put(second, unfused(b * cos[i]) + unfused(a * sin[i]));
    }
}

template <class Run>
void by_dtype(int64_t dtype, Run run) {
    dtype == BF16 ? run(bf16{}) : run(float{});
}

}  // namespace
}  // namespace aril

using namespace aril;

// Row r of x is the vector r % inner of the outer row r / inner, which begin x_stride apart; out is contiguous.
extern "C" void aril_rms_norm(void* out, const void* x, const void* weight, int64_t rows, int64_t inner, int64_t size,
                              int64_t x_stride, double eps, int64_t dtype, int64_t cores) {
    by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        each_row(rows, 2 * size, cores, [&](int64_t r) {
            const T* row = static_cast<const T*>(x) + r / inner * x_stride + r % inner * size;
            norm_row(static_cast<T*>(out) + r * size, row, static_cast<const T*>(weight), size, float(eps));
        });
    });
}

extern "C" void aril_add_rms_norm(void* out, const void* x, void* residual, const void* weight, int64_t rows, int64_t size,
                                  int64_t x_stride, int64_t residual_stride, double eps, int64_t dtype, int64_t cores) {
    by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        each_row(rows, 3 * size, cores, [&](int64_t r) {
            T* row = static_cast<T*>(residual) + r * residual_stride;
            add_row(row, static_cast<const T*>(x) + r * x_stride, size);
            norm_row(static_cast<T*>(out) + r * size, row, static_cast<const T*>(weight), size, float(eps));
        });
    });
}

extern "C" void aril_silu_mul(void* out, const void* x, int64_t rows, int64_t size, int64_t x_stride, int64_t dtype,
                              int64_t cores) {
    by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        each_row(rows, 12 * size, cores, [&](int64_t r) {
            silu_mul_row(static_cast<T*>(out) + r * size, static_cast<const T*>(x) + r * x_stride, size);
        });
    });
}

extern "C" void aril_rotate(void* q, void* k, const void* positions, const void* cos, const void* sin, int64_t tokens,
                            int64_t q_heads, int64_t k_heads, int64_t dim, int64_t half, int64_t q_stride, int64_t k_stride,
                            int64_t interleaved, int64_t dtype, int64_t cores) {
    by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        each_row(tokens, 4 * (q_heads + k_heads) * half, cores, [&](int64_t token) {
            const int64_t at = static_cast<const int64_t*>(positions)[token] * half;
            const float *c = static_cast<const float*>(cos) + at, *s = static_cast<const float*>(sin) + at;
            T *q_row = static_cast<T*>(q) + token * q_stride, *k_row = static_cast<T*>(k) + token * k_stride;
            for (int64_t head = 0; head < q_heads; head++) rotate_head(q_row + head * dim, c, s, half, interleaved);
            for (int64_t head = 0; head < k_heads; head++) rotate_head(k_row + head * dim, c, s, half, interleaved);
        });
    });
}

// Sizes and strides are in bytes: what the numbers are does not matter here.
extern "C" void aril_write_kv(void* k_cache, void* v_cache, const void* k, const void* v, const void* slots, int64_t tokens,
                              int64_t size, int64_t k_stride, int64_t v_stride, int64_t cores) {
    each_row(tokens, size / 4, cores, [&](int64_t token) {
        const int64_t at = static_cast<const int64_t*>(slots)[token] * size;
        memcpy(static_cast<char*>(k_cache) + at, static_cast<const char*>(k) + token * k_stride, size);
        memcpy(static_cast<char*>(v_cache) + at, static_cast<const char*>(v) + token * v_stride, size);
    });
}

ARIL_TAPED(aril_rms_norm)
ARIL_TAPED(aril_add_rms_norm)
ARIL_TAPED(aril_silu_mul)
ARIL_TAPED(aril_rotate)
ARIL_TAPED(aril_write_kv)
