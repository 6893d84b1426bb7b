// Vectors and bfloat16 for the CPU kernels. One source serves every instruction set: the compiler flags decide how
// wide a vector is, and build.py picks the flags of the machine that runs. Nothing here knows what is computed.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#if defined(__AVX__)
#include <immintrin.h>
#endif

#include "pool.h"
#include "tape.h"

namespace aril {

#if defined(__AVX512F__)
constexpr int W = 16;   // floats in a vector
constexpr int MR = 12;  // rows of a register tile: MR x 2 accumulators, two weights and a broadcast fit the register file
#elif defined(__AVX2__)
constexpr int W = 8;
constexpr int MR = 6;
#else
constexpr int W = 4;
constexpr int MR = 4;
#endif
constexpr int NR = 2 * W;  // columns of a register tile, and of a panel

#define ARIL_INLINE inline __attribute__((always_inline))
#define ARIL_INLINE_LAMBDA __attribute__((always_inline))

using bf16 = uint16_t;
typedef float vf __attribute__((vector_size(W * 4)));
typedef int32_t vi __attribute__((vector_size(W * 4)));
typedef uint32_t vu __attribute__((vector_size(W * 4)));
typedef uint16_t vh __attribute__((vector_size(W * 2)));
typedef int8_t vb __attribute__((vector_size(W)));

enum Dtype : int { F32 = 0, BF16 = 1 };

// ---- loads and stores: always unaligned, always through memcpy, which compiles to one move

ARIL_INLINE vf splat(float value) { return value - vf{}; }

ARIL_INLINE vf load(const float* p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

// GCC makes five instructions of the portable form of these two; the intrinsics are one and two.
ARIL_INLINE vu widened(vh h) {
#if defined(__AVX512F__)
    return (vu)_mm512_cvtepu16_epi32((__m256i)h);
#elif defined(__AVX2__)
    return (vu)_mm256_cvtepu16_epi32((__m128i)h);
#else
    return __builtin_convertvector(h, vu);
#endif
}

ARIL_INLINE vh high_halves(vu v) {
#if defined(__AVX512F__)
    return (vh)_mm512_cvtepi32_epi16((__m512i)(v >> 16));
#elif defined(__AVX2__)
    const __m256i shifted = (__m256i)(v >> 16);
    return (vh)_mm_packus_epi32(_mm256_castsi256_si128(shifted), _mm256_extracti128_si256(shifted, 1));
#else
    return __builtin_convertvector(v >> 16, vh);
#endif
}

ARIL_INLINE vf load(const bf16* p) {
    vh h;
    memcpy(&h, p, sizeof h);
    return (vf)(widened(h) << 16);
}

ARIL_INLINE void store(float* p, vf v) { memcpy(p, &v, sizeof v); }

// The upper half of each is the nearest bf16, ties to even; a NaN stays a (quiet) NaN.
ARIL_INLINE vu nearest(vf v) {
    const vu bits = (vu)v;
    return v == v ? bits + 0x7fff + ((bits >> 16) & 1) : bits | 0x400000;
}

// The nearest bf16 of each. What is too small for a normal number becomes 0 where one instruction does it all.
ARIL_INLINE vh halves(vf v) {
#if defined(__AVX512BF16__)
    return (vh)_mm512_cvtneps_pbh((__m512)v);
#else
    return high_halves(nearest(v));
#endif
}

ARIL_INLINE void store(bf16* p, vf v) {
    const vh h = halves(v);
    memcpy(p, &h, sizeof h);
}

ARIL_INLINE void store(int8_t* p, vf whole) {
    const vb bytes = __builtin_convertvector(__builtin_convertvector(whole, vi), vb);
    memcpy(p, &bytes, sizeof bytes);
}

ARIL_INLINE float get(const float* p) { return *p; }

ARIL_INLINE float get(const bf16* p) {
    const uint32_t bits = uint32_t(*p) << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

ARIL_INLINE void put(float* p, float value) { *p = value; }

ARIL_INLINE void put(bf16* p, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    *p = value == value ? (bits + 0x7fff + ((bits >> 16) & 1)) >> 16 : (bits | 0x400000) >> 16;
}

// What a value becomes when it is stored as T and read again.
template <class T>
ARIL_INLINE vf rounded(vf v) {
    return sizeof(T) == sizeof(float) ? v : (vf)(widened(halves(v)) << 16);
}

template <class T>
ARIL_INLINE float rounded(float value) {
    T kept;
    put(&kept, value);
    return get(&kept);
}

struct f16 {
    uint16_t bits;
};

ARIL_INLINE vf load(const f16* p) {
    vh h;
    memcpy(&h, p, sizeof h);
#if defined(__AVX512F__)
    return (vf)_mm512_cvtph_ps((__m256i)h);
#elif defined(__AVX2__) && defined(__F16C__)
    return (vf)_mm256_cvtph_ps((__m128i)h);
#else
    const vu bits = widened(h), magnitude = (bits & 0x7fff) << 13;
    const vu exponents = magnitude >= 0x0f800000u ? vu{} + 0x70000000u : vu{};  // of what is not finite
    return (vf)((vu)((vf)magnitude * 0x1p112f) | exponents | (bits & 0x8000) << 16);
#endif
}

ARIL_INLINE vu widened(const uint8_t* p) {
#if defined(__AVX512F__)
    return (vu)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
#elif defined(__AVX2__)
    return (vu)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
#else
    uint8_t bytes __attribute__((vector_size(W)));
    memcpy(&bytes, p, sizeof bytes);
    return __builtin_convertvector(bytes, vu);
#endif
}

ARIL_INLINE vf load(const uint8_t* p) { return __builtin_convertvector((vi)widened(p), vf); }

ARIL_INLINE vf load(const int8_t* p) {
    return __builtin_convertvector((vi)(widened(reinterpret_cast<const uint8_t*>(p)) << 24) >> 24, vf);
}

// Adjacent pairs of bf16 as two vectors: the even ones and the odd ones.
ARIL_INLINE void load_pairs(const bf16* p, vf& even, vf& odd) {
    vu pairs;
    memcpy(&pairs, p, sizeof pairs);
    even = (vf)(pairs << 16);
    odd = (vf)(pairs & 0xffff0000u);
}

// ---- arithmetic

ARIL_INLINE float sum(vf v) {
    float lanes[W];
    store(lanes, v);
    for (int half = W / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
}

// a * b + c by name: what the compiler fuses by itself may differ from place to place.
ARIL_INLINE vf fused(vf a, vf b, vf c) {
#if defined(__AVX512F__)
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

// A product that is rounded before it is added, as torch's is.
template <class T>
ARIL_INLINE T unfused(T product) {
#if defined(__has_builtin)
#if __has_builtin(__builtin_assoc_barrier)
    return __builtin_assoc_barrier(product);
#endif
#endif
    return product;
}

ARIL_INLINE vf max(vf a, vf b) { return a > b ? a : b; }

ARIL_INLINE vf min(vf a, vf b) { return a < b ? a : b; }

// exp to about 1 ulp: 2^n * p(r) with the Cephes polynomial; of what is far below it is 0, of what is far above inf.
ARIL_INLINE vf exp(vf x) {
#if defined(__AVX512F__)
    const vf clipped = (vf)_mm512_min_ps((__m512)splat(105.0f), _mm512_max_ps((__m512)splat(-105.0f), (__m512)x));  // NaN stays
    const vf n = (vf)_mm512_roundscale_ps((__m512)(clipped * 1.44269504088896341f), 0);
#else
    const vf low = splat(-87.33f), high = splat(88.8f);
    const vf clipped = max(min(x, high), low);
    const vf magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest whole number
    const vf n = (clipped * 1.44269504088896341f + magic) - magic;
#endif
    const vf r = (clipped - n * 0.693359375f) + n * 2.12194440e-4f;
    vf p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
#if defined(__AVX512F__)
    return (vf)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    const vi whole = __builtin_convertvector(n, vi), half = whole >> 1;  // 2^128 is past the exponents of one float
    const vf scaled = p * (vf)((half + 127) << 23) * (vf)((whole - half + 127) << 23);
    return x < low ? vf{} : x == x ? scaled : x;
#endif
}

template <class To, class From>
ARIL_INLINE void copy(To* to, const From* from, int64_t count) {
    int64_t i = 0;
    for (; i + W <= count; i += W) store(to + i, load(from + i));
    for (; i < count; i++) put(to + i, get(from + i));
}

// ---- memory

// Bring a line into the cache with a load, of which many are under way at once. A burst of prefetches does less: the machine
// drops those for which it has no room (measured on Zen 3: blocks of the KV cache came at 7 GB/s instead of 2).
ARIL_INLINE void touch(const void* line) { asm volatile("" ::"r"(*static_cast<const volatile char*>(line))); }

// A hint, dropped when the machine is busy; any address will do.
ARIL_INLINE void prefetch(const void* line) { __builtin_prefetch(line, 0, 2); }

// A buffer that grows and is kept; each user has its own per thread.
class Scratch {
public:
    ~Scratch() { free(data_); }
    float* get(int64_t count) {
        if (count > count_) {
            free(data_);
            count_ = count;
            data_ = static_cast<float*>(aligned_alloc(64, (count * sizeof(float) + 63) / 64 * 64));
        }
        return data_;
    }

private:
    float* data_ = nullptr;
    int64_t count_ = 0;
};

struct Range {
    int64_t begin, end;
    Range(int64_t first, int64_t last) : begin(first), end(last) {}
    // The share of `count` things that falls to one thread.
    Range(int64_t count, int64_t part, int64_t parts) : begin(count * part / parts), end(count * (part + 1) / parts) {}
};

// Threads worth calling for this many vector operations.
inline int worth(int64_t threads, double operations) {
    return int(std::max(1.0, std::min(double(threads), operations / 6e3)));
}

// run(a range) for pieces of `count` things, a few for each thread.
template <class Run>
void share_ranges(int64_t threads, int64_t count, Run run) {
    const int64_t pieces = threads <= 1 ? 1 : std::min(count, threads * 4);
    share(threads, pieces, [&](int64_t i) { run(Range(count, i, pieces)); });
}

}  // namespace aril
