// Products of int8 rows with int8 weights as integers (ops/int8.py). The sums are exact, so a row's result has the same bits in
// any batch and on any instruction set; 32 bits hold them as long as k is at most 65536, which the packer sees to.
//
// A weight lies in panels [ceil(N / NR)][ceil(K / 4)][NR][4]: a lane of 32 bits holds four k of one output, which is what a dot
// product of bytes takes. x is kept as unsigned bytes x + 128, since that instruction wants one side unsigned; the surplus of
// 128 * sum(w) is taken off at the end, together with the zero point's share.
#include "tile.h"

namespace aril {
namespace {

constexpr int64_t ROWS = 96;  // rows of x that stay in L2 while the panels pass by
constexpr int64_t TASKS = 4;  // for each thread at least: a thread that is held up must not hold up the others
constexpr int64_t BLOCK = 256;  // rows of a weight that are added up at once
constexpr int64_t NEAR = 4096;  // bytes that memory runs ahead when a panel passes only once

ARIL_INLINE vi load_bytes(const int8_t* p) {
    vi v;
    memcpy(&v, p, sizeof v);
    return v;
}

// sums[lane] += the four products of the lane's signed bytes with the four unsigned bytes of x.
#if defined(__AVX512VNNI__)
ARIL_INLINE vi dot(vi sums, vi w, uint32_t x) {
    return (vi)_mm512_dpbusd_epi32((__m512i)sums, _mm512_set1_epi32(int(x)), (__m512i)w);
}
#elif defined(__AVX512BW__)
ARIL_INLINE vi dot(vi sums, vi w, uint32_t x) {  // through 16 bits, where nothing saturates
    const __m512i even = _mm512_srai_epi16(_mm512_slli_epi16((__m512i)w, 8), 8), odd = _mm512_srai_epi16((__m512i)w, 8);
    const __m512i both = _mm512_add_epi32(_mm512_madd_epi16(even, _mm512_set1_epi32(int(x & 0x00ff00ff))),
                                          _mm512_madd_epi16(odd, _mm512_set1_epi32(int(x >> 8 & 0x00ff00ff))));
    return sums + (vi)both;
}
#elif defined(__AVX2__)
ARIL_INLINE vi dot(vi sums, vi w, uint32_t x) {
    const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16((__m256i)w, 8), 8), odd = _mm256_srai_epi16((__m256i)w, 8);
    const __m256i both = _mm256_add_epi32(_mm256_madd_epi16(even, _mm256_set1_epi32(int(x & 0x00ff00ff))),
                                          _mm256_madd_epi16(odd, _mm256_set1_epi32(int(x >> 8 & 0x00ff00ff))));
    return sums + (vi)both;
}
#else
ARIL_INLINE vi dot(vi sums, vi w, uint32_t x) {
    for (int shift = 0; shift < 32; shift += 8) sums += ((w << (24 - shift)) >> 24) * int32_t(x >> shift & 255);
    return sums;
}
#endif

// The sums of M rows and one panel: of quads of inputs, whose unsigned bytes x holds.
template <int M>
void tile(int32_t* sums, const uint32_t* x, int64_t x_stride, const int8_t* panel, int64_t quads, Ahead ahead) {
    vi low[M], high[M];  // in registers, as long as every loop over them is unrolled
#pragma GCC unroll 12
    for (int m = 0; m < M; m++) low[m] = high[m] = vi{};
    for (int64_t i = 0; i < quads; i++, panel += NR * 4) {
        for (int64_t line = 0; line < ahead.step; line += 64) prefetch(ahead.at + i * ahead.step + line);
        const vi w_low = load_bytes(panel), w_high = load_bytes(panel + W * 4);
#pragma GCC unroll 12
        for (int m = 0; m < M; m++) {
            const uint32_t four = x[m * x_stride + i];
            low[m] = dot(low[m], w_low, four);
            high[m] = dot(high[m], w_high, four);
        }
    }
#pragma GCC unroll 12
    for (int m = 0; m < M; m++) {
        memcpy(sums + m * NR, &low[m], sizeof low[m]);
        memcpy(sums + m * NR + W, &high[m], sizeof high[m]);
    }
}

template <int M>
void tile_of(int64_t rows, int32_t* sums, const uint32_t* x, int64_t x_stride, const int8_t* panel, int64_t quads, Ahead ahead) {
    if constexpr (M > 1)
        if (rows < M) return tile_of<M - 1>(rows, sums, x, x_stride, panel, quads, ahead);
    tile<M>(sums, x, x_stride, panel, quads, ahead);
}

struct Weight {
    const int8_t* data;
    const float* scales;
    const int32_t* sums;
    int64_t n, k;
    int64_t quads() const { return (k + 3) / 4; }
    int64_t panels() const { return (n + NR - 1) / NR; }
};

struct Rows {
    const uint32_t* bytes;  // [m][stride], four inputs in each
    const float* scales;
    const int32_t* zeros;  // null: all 0
    int64_t stride;
};

// What a panel's sums are multiplied by and what is taken off them, filled up to its width.
struct Outputs {
    float scales[NR] = {};
    int32_t sums[NR] = {};

    Outputs(const Weight& w, int64_t column, int64_t width) {
        std::copy_n(w.scales + column, width, scales);
        std::copy_n(w.sums + column, width, sums);
    }

    // to[NR] = the numbers that a row's sums mean.
    void finish(float* to, const int32_t* row, float scale, int32_t surplus) const {
        for (int i = 0; i < NR; i += W) {
            vi sum, surplus_of;
            memcpy(&sum, row + i, sizeof sum);
            memcpy(&surplus_of, sums + i, sizeof surplus_of);
            store(to + i, __builtin_convertvector(sum - surplus_of * surplus, vf) * scale * load(scales + i));
        }
    }
};

// Rows top .. top + height of the result in the columns of one panel.
template <class X>
void panel_of(X* out, const Rows& x, const Weight& w, int64_t top, int64_t height, int64_t panel) {
    const int64_t column = panel * NR, width = std::min<int64_t>(NR, w.n - column), bytes = w.quads() * NR * 4;
    const int64_t tiles = (height + MR - 1) / MR, step = NR * 4 / tiles;
    const int8_t* at = w.data + panel * bytes;
    const Outputs outputs(w, column, width);
    int32_t sums[MR * NR];
    float numbers[NR];
    for (int64_t t = 0; t < tiles; t++) {
        const Range rows(height, t, tiles);
        const auto* next = reinterpret_cast<const char*>(at) + (tiles == 1 ? NEAR : bytes + t * w.quads() * step);
        tile_of<MR>(rows.end - rows.begin, sums, x.bytes + (top + rows.begin) * x.stride, x.stride, at, w.quads(), Ahead{next, step});
        for (int64_t i = rows.begin; i < rows.end; i++) {
            const int32_t surplus = 128 + (x.zeros ? x.zeros[top + i] : 0);
            outputs.finish(numbers, sums + (i - rows.begin) * NR, x.scales[top + i], surplus);
            copy(out + (top + i) * w.n + column, numbers, width);
        }
    }
}

// sums[count] = those of neighbouring rows, which are read side by side where they lie so.
void sum_rows(int32_t* sums, const int8_t* data, int64_t count, int64_t k, int64_t n_stride, int64_t k_stride) {
    std::fill(sums, sums + count, 0);
    if (n_stride == 1) {
        for (int64_t i = 0; i < k; i++)
            for (int64_t row = 0; row < count; row++) sums[row] += data[i * k_stride + row];
        return;
    }
    for (int64_t row = 0; row < count; row++, data += n_stride) {
        int32_t sum = 0;
        if (k_stride == 1)
            for (int64_t i = 0; i < k; i++) sum += data[i];
        else
            for (int64_t i = 0; i < k; i++) sum += data[i * k_stride];
        sums[row] = sum;
    }
}

template <class X>
void product(X* out, const int8_t* x, const float* scales, const int32_t* zeros, int64_t m, const Weight& w, int64_t cores) {
    static thread_local Scratch scratch;
    const int64_t stride = (w.quads() + 15) / 16 * 16 + 16;  // never a power of two, as in product.h
    auto* bytes = reinterpret_cast<uint32_t*>(scratch.get(m * stride));
    const auto lift = [&](Range some) {
        for (int64_t i = some.begin; i < some.end; i++) {
            auto* to = reinterpret_cast<uint8_t*>(bytes + i * stride);
            for (int64_t k = 0; k < w.k; k++) to[k] = uint8_t(x[i * w.k + k]) ^ 0x80;
            for (int64_t k = w.k; k < w.quads() * 4; k++) to[k] = 0;  // meets weights of 0
        }
    };
    const Rows rows{bytes, scales, zeros, stride};
    const int threads = worth(cores, double(m + 3) * w.n * w.k / (4 * W));  // reading the weight is worth three rows
    const int64_t down = (m + ROWS - 1) / ROWS, across = std::min<int64_t>(w.panels(), threads * TASKS);
    share_ranges(worth(cores, double(m) * w.k / 4), m, lift);
    share(threads, down * across, [&](int64_t at) {
        const int64_t top = at / across * ROWS;
        const Range panels(w.panels(), at % across, across);
        for (int64_t panel = panels.begin; panel < panels.end; panel++)
            panel_of(out, rows, w, top, std::min(ROWS, m - top), panel);
    });
}

}  // namespace
}  // namespace aril

extern "C" void aril_sum_rows(int32_t* sums, const int8_t* data, int64_t n, int64_t k, int64_t n_stride, int64_t k_stride,
                              int64_t cores) {
    using namespace aril;
    const int64_t blocks = (n + BLOCK - 1) / BLOCK;
    share(worth(cores, double(n) * k / W), blocks, [&](int64_t block) {
        const int64_t first = block * BLOCK, count = std::min(BLOCK, n - first);
        sum_rows(sums + first, data + first * n_stride, count, k, n_stride, k_stride);
    });
}

extern "C" void aril_matmul_int8(void* out, const int8_t* x, const float* x_scales, const int32_t* x_zeros, const int8_t* w,
                                 const float* w_scales, const int32_t* w_sums, int64_t m, int64_t n, int64_t k, int64_t dtype,
                                 int64_t cores) {
    using namespace aril;
    const Weight weight{w, w_scales, w_sums, n, k};
    if (dtype == BF16) return product(static_cast<bf16*>(out), x, x_scales, x_zeros, m, weight, cores);
    product(static_cast<float*>(out), x, x_scales, x_zeros, m, weight, cores);
}

ARIL_TAPED(aril_matmul_int8)
