// Products with plain weights, packed once into panels: [ceil(N / NR)][K][NR] (tile.h says how a panel row looks), or pairs
// [ceil(N / NR)][ceil(K / 2)][NR][2] where the machine multiplies such (dots.h).
#include "dots.h"
#include "packing.h"
#include "product.h"
#include "tiled.h"

namespace aril {
namespace {

template <class T>
struct Plain {
    using In = float;
    static constexpr int64_t BYTES = 20480;  // of one panel in L1 beside the rows of x

    const T* data;
    int64_t k;

    // One block when all rows fit one tile (the panel passes only once), else what L1 holds.
    int64_t cuts(int64_t rows) const {
        const int64_t longest = BYTES / int64_t(NR * sizeof(T));
        return rows <= MR ? 1 : (k + longest - 1) / longest;
    }

    Range block(int64_t cut, int64_t cuts) const { return Range(k, cut, cuts); }

    void multiply(int64_t rows, float* sums, int64_t stride, const float* x, int64_t x_stride, Range panels, Range ks,
                  bool onto) const {
        int64_t at = panels.begin;
        for (; rows == 1 && at + 2 <= panels.end; at += 2, sums += 2 * NR) {
            const T* panel = data + (at * k + ks.begin) * NR;
            const Ahead ahead[2] = {next(panel + 2 * k * NR), next(panel + 3 * k * NR)};
            tile_of_two(sums, x + ks.begin, panel, panel + k * NR, ks.end - ks.begin, onto, ahead);
        }
        for (; at < panels.end; at++, sums += NR) {
            const T* panel = data + (at * k + ks.begin) * NR;
            const int64_t length = ks.end - ks.begin;
            panel_product(rows, sums, stride, x + ks.begin, x_stride, panel, length, onto, next(panel + k * NR),
                          bringer.take(length * tiles_of(rows)));
        }
    }

    static Ahead next(const T* panel) { return {reinterpret_cast<const char*>(panel), NR * sizeof(T)}; }
};

#if defined(__AVX512BF16__)
struct Pairs {
    using In = bf16;
    static constexpr int64_t BYTES = 262144;  // of one panel in L2 beside the rows of x

    const bf16* data;
    int64_t k;

    int64_t pairs() const { return (k + 1) / 2; }

    int64_t cuts(int64_t rows) const {
        const int64_t longest = BYTES / int64_t(NR * 2 * sizeof(bf16));
        return rows <= MR ? 1 : (pairs() + longest - 1) / longest;
    }

    Range block(int64_t cut, int64_t cuts) const { return Range(pairs(), cut, cuts); }

    void multiply(int64_t rows, float* sums, int64_t stride, const bf16* x, int64_t x_stride, Range panels, Range some,
                  bool onto) const {
        constexpr int64_t EACH = NR * 2;
        for (int64_t at = panels.begin; at < panels.end; at++, sums += NR) {
            const bf16* panel = data + (at * pairs() + some.begin) * EACH;
            const bf16* next = panel + (rows <= MR ? NEAR / 2 : pairs() * EACH);
            panel_dots(rows, sums, stride, x + some.begin * 2, x_stride, panel, some.end - some.begin, onto,
                       Ahead{reinterpret_cast<const char*>(next), EACH * sizeof(bf16)});
        }
    }
};
#endif

template <class Out, class X>
void linear(Out* out, const X* x, const void* w, int64_t w_dtype, const Product& p, int64_t cores) {
    if (w_dtype == BF16) return product(out, x, nullptr, Plain<bf16>{static_cast<const bf16*>(w), p.k}, p, cores);
    product(out, x, nullptr, Plain<float>{static_cast<const float*>(w), p.k}, p, cores);
}

template <class T>
void put_row(T* to, const T* from, int64_t k) {
    for (int64_t i = 0; i < k; i++) to[i] = from[i * NR];
}

}  // namespace
}  // namespace aril

extern "C" int aril_panel_width() { return aril::NR; }

// out[m, n]; n counts the outputs of one of `parts`.
extern "C" void aril_linear(void* out, const void* x, const void* w, int64_t m, int64_t n, int64_t k, int64_t x_stride,
                            int64_t x_dtype, int64_t w_dtype, int64_t out_dtype, int64_t parts, int64_t cores) {
    using namespace aril;
    const Product p{m, n, k, x_stride, parts};
    typed(out, out_dtype, [&](auto* to) {
        if (x_dtype == BF16) return linear(to, static_cast<const bf16*>(x), w, w_dtype, p, cores);
        linear(to, static_cast<const float*>(x), w, w_dtype, p, cores);
    });
}

// Whether aril_linear_pairs computes anything here.
extern "C" int aril_has_pairs() {
#if defined(__AVX512BF16__)
    return 1;
#else
    return 0;
#endif
}

extern "C" void aril_linear_pairs(void* out, const uint16_t* x, const uint16_t* w, int64_t m, int64_t n, int64_t k, int64_t x_stride,
                                  int64_t out_dtype, int64_t parts, int64_t cores) {
    using namespace aril;
    const Product p{m, n, k, x_stride, parts};
    typed(out, out_dtype, [&](auto* to) {
#if defined(ARIL_TILES)
        tiled_product(to, x, TiledPairs(w, k), p, cores);
#elif defined(__AVX512BF16__)
        product(to, x, nullptr, Pairs{w, k}, p, cores);
#endif
    });
}

// Rows of a weight [n][k] into panels of pairs.
extern "C" void aril_pack_pairs(uint16_t* out, const uint16_t* w, int64_t n, int64_t k, int64_t stride, int64_t cores) {
    using namespace aril;
    const int64_t pairs = (k + 1) / 2, panels = (n + NR - 1) / NR;
    share(worth(cores, double(n) * k / 2), panels, [&](int64_t at) {
        const int64_t rows = std::min<int64_t>(NR, n - at * NR);
        pack_panel(out + at * pairs * NR * 2, w + at * NR * stride, rows, k, stride);
    });
}

// Rows `ids` of a packed weight, as they were: out[count][k].
extern "C" void aril_rows_of(void* out, const void* w, const int64_t* ids, int64_t count, int64_t k, int64_t dtype, int64_t pairs,
                             int64_t cores) {
    using namespace aril;
    share_ranges(worth(cores, 4.0 * count * k), count, [&](Range some) {
        for (; some.begin < some.end; some.begin++) {
            const int64_t at = some.begin, panel = ids[at] / NR, row = ids[at] % NR;
            if (dtype == F32) {
                put_row(static_cast<float*>(out) + at * k, static_cast<const float*>(w) + panel * k * NR + row, k);
            } else if (pairs) {
                const bf16* from = static_cast<const bf16*>(w) + (panel * ((k + 1) / 2) * NR + row) * 2;
                bf16* to = static_cast<bf16*>(out) + at * k;
                for (int64_t i = 0; i < k; i++) to[i] = from[i / 2 * 2 * NR + i % 2];
            } else {
                const int64_t place = row < W ? 2 * row : 2 * (row - W) + 1;
                put_row(static_cast<bf16*>(out) + at * k, static_cast<const bf16*>(w) + panel * k * NR + place, k);
            }
        }
    });
}

ARIL_TAPED(aril_rows_of)
ARIL_TAPED(aril_linear)
ARIL_TAPED(aril_linear_pairs)
