// out[M, N] = x[M, K] times W^T by tile registers (amx.h), for a weight whose panels can be had as pairs [K / 2][NR][2].
//
// A `Panels` type answers, for some units of inputs of a panel, which pass rows only `once` or step by step,
//     most(once)                              of them at once
//     pairs(panel, units, once, room)         where they lie; they may be put into `room`, a buffer of TILED_UNITS
//     ahead(panel, units, once, step, steps)  what to bring meanwhile
#pragma once

#include "amx.h"
#include "dots.h"
#include "product.h"

#if defined(ARIL_TILES)

namespace aril {

// One core of Granite Rapids, 512 rows, gate and up of SmolLM2 and what reads them, down and what reads it:
// all rows and inputs at once 1,875 and 939 us, so 1,547 and 748.
constexpr int64_t TILED_ROWS = 256;  // of x that stay in L2 while the panels pass by
constexpr int64_t TILED_UNITS = 9;   // of inputs of a panel that stay in L1 while the rows pass by
constexpr int64_t TILED_STEP = 2 * TILE;  // rows

// A part of what follows a panel, for step `step` of `steps`; `bytes` for each unit.
inline AheadLines share_of(const void* following, Range units, int64_t bytes, int64_t step, int64_t steps) {
    const int64_t lines = (bytes / TILE_BYTES + steps - 1) / steps, count = units.end - units.begin;
    return {static_cast<const char*>(following) + units.begin * bytes + step * lines * count * TILE_BYTES, lines};
}

class TiledPairs {
    static constexpr int64_t UNIT = TILE * 2 * NR;

public:
    TiledPairs(const bf16* data, int64_t k) : data_(data), pairs_((k + 1) / 2) {}

    int64_t most(bool once) const { return once ? pairs_ : TILED_UNITS; }

    const bf16* pairs(int64_t panel, Range units, bool, bf16*) const { return at(panel) + units.begin * UNIT; }

    AheadLines ahead(int64_t panel, Range units, bool once, int64_t step, int64_t steps) const {
        constexpr int64_t BYTES = UNIT * sizeof(bf16);
        if (once) return {reinterpret_cast<const char*>(at(panel) + units.begin * UNIT) + NEAR, BYTES / TILE_BYTES};
        return share_of(at(panel + 1), units, BYTES, step, steps);
    }

private:
    const bf16* at(int64_t panel) const { return data_ + panel * pairs_ * 2 * NR; }

    const bf16* const data_;
    const int64_t pairs_;
};

// Rows top .. top + height in the columns of some panels.
template <class Panels>
void tiled_task(bf16* out, const bf16* x, const Panels& w, const Product& p, int64_t top, int64_t height, Range panels) {
    alignas(64) float sums[TILED_ROWS * NR];
    alignas(64) bf16 room[TILED_UNITS * TILE * 2 * NR];
    const int64_t pairs = (p.k + 1) / 2, units = (pairs + TILE - 1) / TILE, steps = (height + TILED_STEP - 1) / TILED_STEP;
    const bool once = steps == 1;
    const int64_t cuts = (units + w.most(once) - 1) / w.most(once);
    Tiles tiles;
    for (int64_t at = panels.begin; at < panels.end; at++) {
        for (int64_t cut = 0; cut < cuts; cut++) {
            const Range some(units, cut, cuts);
            const bf16* panel = w.pairs(at, some, once, room);
            const int64_t count = std::min(some.end * TILE, pairs) - some.begin * TILE;
            for (int64_t step = 0; step < steps; step++) {
                const Range rows(height, step, steps);
                const bf16* from = x + (top + rows.begin) * p.x_stride + some.begin * TILE_INPUTS;
                tile_product(tiles, rows.end - rows.begin, sums + rows.begin * NR, NR, from, p.x_stride, panel, count, cut > 0,
                             w.ahead(at, some, once, step, steps));
            }
        }
        const int64_t column = at * NR, width = std::min<int64_t>(NR, p.n - column);
        for (int64_t i = 0; i < height; i++) copy(out + (top + i) * p.n + column, sums + i * NR, width);
    }
}

template <class Panels>
void tiled_tasks(bf16* out, const bf16* x, const Panels& w, const Product& p, int threads) {
    const int64_t down = (p.m + TILED_ROWS - 1) / TILED_ROWS, panels = p.panels();
    const int64_t across = std::max((panels + PANELS - 1) / PANELS, std::min<int64_t>(panels, threads * TASKS));
    share(threads, down * across, [&](int64_t at) {
        const Range rows(p.m, at / across, down);
        tiled_task(out, x, w, p, rows.begin, rows.end - rows.begin, Range(panels, at % across, across));
    });
}

template <class Panels>
void tiled_product(bf16* out, const bf16* x, const Panels& w, Product p, int64_t cores) {
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

}  // namespace aril
#endif
