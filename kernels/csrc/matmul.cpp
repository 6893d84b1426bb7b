// Products with plain weights, packed once into panels: [ceil(N / NR)][K][NR] (tile.h says how a panel row looks), or pairs
// [ceil(N / NR)][ceil(K / 2)][NR][2] where the machine multiplies such (dots.h).
#include "amx.h"
#include "dots.h"
#include "product.h"

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
        for (int64_t at = panels.begin; at < panels.end; at++, sums += NR) {
            const T* panel = data + (at * k + ks.begin) * NR;
            panel_product(rows, sums, stride, x + ks.begin, x_stride, panel, ks.end - ks.begin, onto,
                          Ahead{reinterpret_cast<const char*>(panel + k * NR), NR * sizeof(T)});
        }
    }
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

#if defined(ARIL_TILES)
// One core of Granite Rapids, 512 rows, gate and up of SmolLM2 and what reads them, down and what reads it:
// all rows and inputs at once 1,875 and 939 us, so 1,547 and 748.
constexpr int64_t TILED_ROWS = 256;  // of x that stay in L2 while the panels pass by
constexpr int64_t TILED_UNITS = 9;   // of inputs of a panel that stay in L1 while the rows pass by

// Rows top .. top + height in the columns of some panels. A panel that passes only once comes from memory a little ahead;
// else the next one is brought while the rows pass by this one.
void tiled_task(bf16* out, const bf16* x, const bf16* w, const Product& p, int64_t top, int64_t height, Range panels) {
    alignas(64) float sums[TILED_ROWS * NR];
    constexpr int64_t LINES = 2 * TILE, SIZE = 2 * TILE * NR;  // of a unit of a panel
    const int64_t pairs = (p.k + 1) / 2, units = (pairs + TILE - 1) / TILE, steps = (height + 2 * TILE - 1) / (2 * TILE);
    const int64_t cuts = steps == 1 ? 1 : (units + TILED_UNITS - 1) / TILED_UNITS, lines = (LINES + steps - 1) / steps;
    Tiles tiles;
    for (int64_t at = panels.begin; at < panels.end; at++) {
        const bf16* panel = w + at * pairs * 2 * NR;
        const char* next = reinterpret_cast<const char*>(panel + (steps == 1 ? NEAR / 2 : pairs * 2 * NR));
        for (int64_t cut = 0; cut < cuts; cut++) {
            const Range some(units, cut, cuts);
            const int64_t first = some.begin * TILE, count = std::min(some.end * TILE, pairs) - first;
            for (int64_t step = 0; step < steps; step++, next += (some.end - some.begin) * lines * TILE_BYTES) {
                const Range rows(height, step, steps);
                const bf16* from = x + (top + rows.begin) * p.x_stride + some.begin * TILE_INPUTS;
                tile_product(tiles, rows.end - rows.begin, sums + rows.begin * NR, NR, from, p.x_stride,
                             panel + some.begin * SIZE, count, cut > 0, {next, lines});
            }
        }
        const int64_t column = at * NR, width = std::min<int64_t>(NR, p.n - column);
        for (int64_t i = 0; i < height; i++) copy(out + (top + i) * p.n + column, sums + i * NR, width);
    }
}

void tiled_tasks(bf16* out, const bf16* x, const bf16* w, const Product& p, int threads) {
    const int64_t down = (p.m + TILED_ROWS - 1) / TILED_ROWS, panels = p.panels();
    const int64_t across = std::max((panels + PANELS - 1) / PANELS, std::min<int64_t>(panels, threads * TASKS));
    share(threads, down * across, [&](int64_t at) {
        const int64_t top = at / across * TILED_ROWS;
        tiled_task(out, x, w, p, top, std::min(TILED_ROWS, p.m - top), Range(panels, at % across, across));
    });
}

void tiled_product(bf16* out, const bf16* x, const bf16* w, Product p, int64_t cores) {
    const int threads = worth(cores, double(p.m + 3) * p.n * p.k / W);
    if (p.k % TILE_INPUTS == 0) return tiled_tasks(out, x, w, p, threads);
    static thread_local Scratch scratch;
    const int64_t stride = (p.k + TILE_INPUTS - 1) / TILE_INPUTS * TILE_INPUTS;
    auto* rows = reinterpret_cast<bf16*>(scratch.get(p.m * stride / 2));
    for (int64_t i = 0; i < p.m; i++) {
        std::copy(x + i * p.x_stride, x + i * p.x_stride + p.k, rows + i * stride);
        std::fill(rows + i * stride + p.k, rows + (i + 1) * stride, 0);
    }
    p.x_stride = stride;
    tiled_tasks(out, rows, w, p, threads);
}
#endif

// One panel of pairs; block by block, so that what is written stays in L1 until all rows have given their share.
void pack_panel(bf16* out, const bf16* w, int64_t rows, int64_t k, int64_t stride) {
    constexpr int64_t BLOCK = 64;
    for (int64_t begin = 0; begin < k; begin += BLOCK) {
        const int64_t end = std::min(k, begin + BLOCK), whole = end / 2 * 2;
        for (int64_t i = 0; i < NR; i++) {
            const bf16* row = w + i * stride;
            bf16* to = out + i * 2;
            int64_t at = begin;
            for (; i < rows && at < whole; at += 2) memcpy(to + at * NR, row + at, 2 * sizeof(bf16));
            for (; at < end; at += 2) {
                to[at * NR] = i < rows ? row[at] : 0;
                to[at * NR + 1] = 0;
            }
        }
    }
}

template <class X>
void linear(X* out, const X* x, const void* w, int64_t w_dtype, const Product& p, int64_t cores) {
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

extern "C" void aril_linear(void* out, const void* x, const void* w, int64_t m, int64_t n, int64_t k, int64_t x_stride,
                            int64_t x_dtype, int64_t w_dtype, int64_t cores) {
    using namespace aril;
    const Product p{m, n, k, x_stride};
    if (x_dtype == BF16) return linear(static_cast<bf16*>(out), static_cast<const bf16*>(x), w, w_dtype, p, cores);
    linear(static_cast<float*>(out), static_cast<const float*>(x), w, w_dtype, p, cores);
}

// Whether aril_linear_pairs computes anything here.
extern "C" int aril_has_pairs() {
#if defined(__AVX512BF16__)
    return 1;
#else
    return 0;
#endif
}

extern "C" void aril_linear_pairs(uint16_t* out, const uint16_t* x, const uint16_t* w, int64_t m, int64_t n, int64_t k,
                                  int64_t x_stride, int64_t cores) {
    using namespace aril;
#if defined(ARIL_TILES)
    tiled_product(out, x, w, Product{m, n, k, x_stride}, cores);
#elif defined(__AVX512BF16__)
    product(out, x, nullptr, Pairs{w, k}, Product{m, n, k, x_stride}, cores);
#endif
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
