// Keys and values of a chunk as panels of float32 (tile.h), and the products of few queries.
#pragma once

#include "attention_walk.h"
#include "tile.h"

namespace aril {
namespace {

constexpr int64_t BYTES = 32;  // of each of eight keys that are turned at once

#if defined(__AVX2__)
// Eight rows of eight numbers of 32 bits, turned.
ARIL_INLINE void transpose8(__m256i (&r)[8]) {
    __m256i a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
        a[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            b[i + 2 * j] = _mm256_unpacklo_epi64(a[i + j], a[i + j + 2]);
            b[i + 2 * j + 1] = _mm256_unpackhi_epi64(a[i + j], a[i + j + 2]);
        }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
        r[i + 4] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
    }
}

// Their dimensions from where they are on: rows of eight keys, NR numbers apart.
ARIL_INLINE void turn(float* out, __m256i (&r)[8], float) {
    transpose8(r);
    for (int i = 0; i < 8; i++) _mm256_storeu_si256((__m256i*)(out + i * NR), r[i]);
}

ARIL_INLINE void turn(float* out, __m256i (&r)[8], bf16) {
    transpose8(r);
    for (int i = 0; i < 8; i++) {
        _mm256_storeu_si256((__m256i*)(out + 2 * i * NR), _mm256_slli_epi32(r[i], 16));
        _mm256_storeu_si256((__m256i*)(out + (2 * i + 1) * NR), _mm256_and_si256(r[i], _mm256_set1_epi32(int(0xffff0000))));
    }
}
#endif

// Keys as panels [padded / NR][dim][NR]: the right-hand side of q times K^T.
template <class T>
void key_panels(float* out, const T* keys, const int64_t* at, int64_t padded, int64_t dim, Fetch<T>& ahead) {
    for (int64_t first = 0; first < padded; first += 8) {
        float* column = out + first / NR * dim * NR + first % NR;
        int64_t d = 0;
#if defined(__AVX2__)
        for (constexpr int64_t EACH = BYTES / sizeof(T); d + EACH <= dim; d += EACH) {
            __m256i r[8];
            for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_si256((const __m256i*)(keys + at[first + i] + d));
            turn(column + d * NR, r, T{});
            ahead.pulse();
        }
#endif
        for (; d < dim; d++)
            for (int i = 0; i < 8; i++) column[d * NR + i] = get(keys + at[first + i] + d);
    }
}

// Values as panels [width / NR][count][NR], the last one filled up with zeros.
template <class T>
void value_panels(float* out, const T* values, const int64_t* at, int64_t count, int64_t dim, Fetch<T>& ahead) {
    for (int64_t t = 0; t < count; t++, out += NR) {
        const T* from = values + at[t];
        float* to = out;
        int64_t d = 0;
        for (; d + NR <= dim; d += NR, to += count * NR) store(to, load(from + d)), store(to + W, load(from + d + W));
        if (d < dim) {
            copy(to, from + d, dim - d);
            std::fill(to + dim - d, to + NR, 0.0f);
        }
        ahead.pulse();
    }
}

// c[M, V vectors] = x[M, k] times the rows that row(i, v) gives a vector of; the chains are those of tile.h.
template <int M, int V, class Row, class Ahead>
ARIL_INLINE void few(float* c, int64_t c_stride, const float* x, int64_t x_stride, int64_t k, const Row& row, Ahead& ahead) {
    vf sums[M][V] = {};
    for (int64_t i = 0; i < k; i++) {
        ahead.pulse();
        vf left[M];
#pragma GCC unroll 12
        for (int m = 0; m < M; m++) left[m] = splat(x[m * x_stride + i]);
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) {
            const vf right = row(i, v);
#pragma GCC unroll 12
            for (int m = 0; m < M; m++) sums[m][v] += left[m] * right;
        }
    }
#pragma GCC unroll 12
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) store(c + m * c_stride + v * W, sums[m][v]);
}

// The same in `width` columns, whole panels; row(i, d) gives a vector at column d.
template <int M = MR, class Row, class Ahead>
void few_rows(int64_t rows, float* c, int64_t c_stride, const float* x, int64_t x_stride, int64_t k, int64_t width, const Row& row,
              Ahead& ahead) {
    if constexpr (M > 1)
        if (rows < M) return few_rows<M - 1>(rows, c, c_stride, x, x_stride, k, width, row, ahead);
    int64_t d = 0;
    for (; M <= MR / 2 && d + 2 * NR <= width; d += 2 * NR)  // as many sums as registers: the chains of a few are too few
        few<M, 4>(c + d, c_stride, x, x_stride, k, [&](int64_t i, int v) ARIL_INLINE_LAMBDA { return row(i, d + v * W); }, ahead);
    for (; d < width; d += NR)
        few<M, 2>(c + d, c_stride, x, x_stride, k, [&](int64_t i, int v) ARIL_INLINE_LAMBDA { return row(i, d + v * W); }, ahead);
}

}  // namespace
}  // namespace aril
