// out[M, N] = x[M, K] times W^T, with W packed once into panels [ceil(N / NR)][K][NR] (tile.h says how a panel row looks).
// x becomes float32 once per call, sums are float32, and the result is rounded once to the type of x.
#include "tile.h"

namespace aril {
namespace {

constexpr int64_t ROWS = 96;            // rows of x that stay in L2 while the panels pass by
constexpr int64_t PANEL_BYTES = 20480;  // of one panel in L1 beside the rows of x
constexpr int64_t PANELS = 8;           // of one task, whose partial sums stay in L2 when k is cut
constexpr int64_t TASKS = 4;            // for each thread at least: a thread that is held up must not hold up the others

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

// Rows top .. top + height of the result in the columns of some panels: all panels through one block of k after the other.
template <class X, class T>
void task(X* out, const float* x, const T* w, const Product& p, int64_t top, int64_t height, Range panels) {
    const int64_t cuts = blocks_of_k<T>(height, p.k), group = cuts == 1 ? 1 : PANELS;
    float sums[ROWS * PANELS * NR];
    for (int64_t first = panels.begin; first < panels.end; first += group) {
        const int64_t width = std::min(group, panels.end - first), column = first * NR;
        for (int64_t cut = 0; cut < cuts; cut++) {
            const Range ks(p.k, cut, cuts);
            for (int64_t j = 0; j < width; j++) {
                const T* panel = w + ((first + j) * p.k + ks.begin) * NR;
                panel_product(height, sums + j * NR, group * NR, x + top * p.x_stride + ks.begin, p.x_stride, panel,
                              ks.end - ks.begin, cut > 0, panel + p.k * NR);
            }
        }
        for (int64_t i = 0; i < height; i++)
            copy(out + (top + i) * p.n + column, sums + i * group * NR, std::min(width * NR, p.n - column));
    }
}

// The tasks of a product, shared between the threads as they come. Panels are the inner ones: rows of x stay in L2.
class Tasks {
public:
    Tasks(const Product& p, int threads)
        : p_(p), down_((p.m + ROWS - 1) / ROWS),
          across_(std::max((p.panels() + PANELS - 1) / PANELS, std::min<int64_t>(p.panels(), threads * TASKS))) {}

    template <class X, class T>
    void run(X* out, const float* x, const T* w) {
        for (int64_t at; (at = next_.fetch_add(1)) < down_ * across_;) {
            const int64_t top = at / across_ * ROWS;
            task(out, x, w, p_, top, std::min(ROWS, p_.m - top), Range(p_.panels(), at % across_, across_));
        }
    }

private:
    const Product p_;
    const int64_t down_, across_;
    std::atomic<int64_t> next_{0};
};

template <class T>
void linear(float* out, const float* x, const T* w, Product p, int threads) {
    Tasks tasks(p, threads);
    parallel(threads, [&](int, int) { tasks.run(out, x, w); });
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
    Tasks tasks(p, threads);
    parallel(threads, [&](int thread, int count) {
        if (!is_small) {
            widen(Range(p.m, thread, count));
            barrier(count);
        }
        tasks.run(out, wide, w);
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
    const int threads = worth(cores, double(m) * n * k / W);
    if (x_dtype == BF16) return linear(static_cast<bf16*>(out), static_cast<const bf16*>(x), w, w_dtype, p, threads);
    linear(static_cast<float*>(out), static_cast<const float*>(x), w, w_dtype, p, threads);
}
