// out[M, N] = x[M, K] times W^T, with W packed once into panels [ceil(N / NR)][K][NR] (tile.h says how a panel row looks).
// x becomes float32 once per call, sums are float32, and the result is rounded once to the type of x.
#include "tile.h"

namespace aril {
namespace {

constexpr int64_t ROWS = 96;             // rows of x that stay in L2 while the panels pass by
constexpr int64_t PANEL_BYTES = 20480;   // of one panel in L1 beside the rows of x
constexpr int64_t GROUP = 16;            // panels whose partial sums stay in L2 when k is cut

struct Product {
    int64_t m, n, k, x_stride;
    int64_t panels() const { return (n + NR - 1) / NR; }
};

// The k range of one block: one block when all rows fit one tile (the panel passes only once), else what L1 holds.
template <class T>
int64_t blocks_of_k(int64_t rows, int64_t k) {
    const int64_t longest = PANEL_BYTES / int64_t(NR * sizeof(T));
    return rows <= MR ? 1 : (k + longest - 1) / longest;
}

template <class X>
void write(X* out, const float* sums, int64_t sums_stride, int64_t rows, int64_t columns, int64_t out_stride) {
    for (int64_t i = 0; i < rows; i++) copy(out + i * out_stride, sums + i * sums_stride, columns);
}

// Rows `rows` of the result in the columns of panels `panels`, block by block.
template <class X, class T>
void block(X* out, const float* x, const T* w, const Product& p, Range rows, Range panels) {
    const int64_t cuts = blocks_of_k<T>(rows.end - rows.begin, p.k), group = cuts == 1 ? 1 : GROUP;
    float sums[ROWS * GROUP * NR];
    for (int64_t top = rows.begin; top < rows.end; top += ROWS) {
        const int64_t height = std::min(ROWS, rows.end - top);
        for (int64_t first = panels.begin; first < panels.end; first += group) {
            const int64_t width = std::min(group, panels.end - first);
            for (int64_t cut = 0; cut < cuts; cut++) {
                const Range ks(p.k, cut, cuts);
                for (int64_t j = 0; j < width; j++)
                    panel_product(height, sums + j * NR, group * NR, x + top * p.x_stride + ks.begin, p.x_stride,
                                  w + ((first + j) * p.k + ks.begin) * NR, ks.end - ks.begin, cut > 0);
            }
            const int64_t column = first * NR;
            write(out + top * p.n + column, sums, group * NR, height, std::min(width * NR, p.n - column), p.n);
        }
    }
}

template <class X, class T>
void product(X* out, const float* x, const T* w, const Product& p, int thread, int threads) {
    const int64_t across = std::min<int64_t>(threads, std::max<int64_t>(1, p.panels() / 2)), down = threads / across;
    if (thread >= across * down) return;
    block(out, x, w, p, Range(p.m, thread / across, down), Range(p.panels(), thread % across, across));
}

template <class T>
void linear(float* out, const float* x, const T* w, Product p, int threads) {
    parallel(threads, [&](int thread, int count) { product(out, x, w, p, thread, count); });
}

template <class T>
void linear(bf16* out, const bf16* x, const T* w, Product p, int threads) {
    static thread_local Scratch scratch;
    const int64_t stride = (p.k + 15) / 16 * 16 + 16;  // never a power of two: rows of x must not share one cache set
    float* wide = scratch.get(p.m * stride);
    const int64_t given = p.x_stride;
    p.x_stride = stride;
    const auto widen = [&](Range rows) {
        for (int64_t i = rows.begin; i < rows.end; i++) copy(wide + i * stride, x + i * given, p.k);
    };
    const bool is_small = p.m * p.k < 32768;  // cheaper to widen alone than to meet at a barrier
    if (is_small) widen(Range(p.m, 0, 1));
    parallel(threads, [&](int thread, int count) {
        if (!is_small) {
            widen(Range(p.m, thread, count));
            barrier(count);
        }
        product(out, wide, w, p, thread, count);
    });
}

template <class X>
void linear(X* out, const X* x, const void* w, int64_t w_dtype, const Product& p, int threads) {
    if (w_dtype == BF16) return linear(out, x, static_cast<const bf16*>(w), p, threads);
    linear(out, x, static_cast<const float*>(w), p, threads);
}

}  // namespace
}  // namespace aril

extern "C" int aril_panel_width() { return aril::NR; }

extern "C" void aril_linear(void* out, const void* x, const void* w, int64_t m, int64_t n, int64_t k, int64_t x_stride,
                            int64_t x_dtype, int64_t w_dtype, int64_t cores) {
    using namespace aril;
    const Product p{m, n, k, x_stride};
    const int threads = worth(cores, double(m) * n * k / W / 4);
    if (x_dtype == BF16) return linear(static_cast<bf16*>(out), static_cast<const bf16*>(x), w, w_dtype, p, threads);
    linear(static_cast<float*>(out), static_cast<const float*>(x), w, w_dtype, p, threads);
}
