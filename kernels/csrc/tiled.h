// out[M, N] = x[M, K] times W^T by tile registers (amx.h), for a weight whose panels can be had as pairs [K / 2][NR][2].
//
// A `Panels` type answers
//     once(panel)                       its units, for rows that pass but once: what comes next is brought a little ahead
//     cut(panel, units, room)           where some units lie that many rows pass by; `room` may take TILED_UNITS of them
//     ahead(panel, units, step, steps)  what to bring meanwhile
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
public:
    TiledPairs(const bf16* data, int64_t k) : data_(data), pairs_((k + 1) / 2) {}

    LyingUnits once(int64_t panel) const {
        return {at(panel), {reinterpret_cast<const char*>(at(panel)) + NEAR, UNIT_BYTES / TILE_BYTES}};
    }

    const bf16* cut(int64_t panel, Range units, bf16*) const { return at(panel) + units.begin * PAIRED_UNIT; }

    AheadLines ahead(int64_t panel, Range units, int64_t step, int64_t steps) const {
        return share_of(at(panel + 1), units, UNIT_BYTES, step, steps);
    }

private:
    static constexpr int64_t UNIT_BYTES = PAIRED_UNIT * sizeof(bf16);

    const bf16* at(int64_t panel) const { return data_ + panel * pairs_ * 2 * NR; }

    const bf16* const data_;
    const int64_t pairs_;
};

// sums[height, NR] of rows of x in the columns of a panel, a cut of the inputs after the other.
template <class Panels>
void tiled_sums(Tiles& tiles, float* sums, const bf16* x, const Panels& w, const Product& p, int64_t height, int64_t panel) {
    alignas(64) bf16 room[TILED_UNITS * PAIRED_UNIT];
    const int64_t pairs = (p.k + 1) / 2, units = (pairs + TILE - 1) / TILE, steps = (height + TILED_STEP - 1) / TILED_STEP;
    const int64_t cuts = (units + TILED_UNITS - 1) / TILED_UNITS;
    for (int64_t cut = 0; cut < cuts; cut++) {
        const Range some(units, cut, cuts);
        const bf16* found = w.cut(panel, some, room);
        const int64_t count = std::min(some.end * TILE, pairs) - some.begin * TILE;
        for (int64_t step = 0; step < steps; step++) {
            const Range rows(height, step, steps);
            tile_product(tiles, rows.end - rows.begin, sums + rows.begin * NR, NR,
                         x + rows.begin * p.x_stride + some.begin * TILE_INPUTS, p.x_stride,
                         LyingUnits{found, w.ahead(panel, some, step, steps)}, count, cut > 0);
        }
    }
}

// Rows top .. top + height in the columns of some panels.
template <class Out, class Panels>
void tiled_task(Out* out, const bf16* x, const Panels& w, const Product& p, int64_t top, int64_t height, Range panels) {
    alignas(64) float sums[2 * TILED_ROWS * NR];
    Tiles tiles;
    x += top * p.x_stride;
    for (int64_t at = panels.begin; at < panels.end; at++) {
        for (int64_t part = 0; part < p.parts; part++) {
            float* to = sums + part * TILED_ROWS * NR;
            const int64_t panel = at + part * p.panels();
            if (height <= TILED_STEP)
                tile_product(tiles, height, to, NR, x, p.x_stride, w.once(panel), (p.k + 1) / 2, false);
            else
                tiled_sums(tiles, to, x, w, p, height, panel);
        }
        const int64_t column = at * NR, width = std::min<int64_t>(NR, p.n - column);
        for (int64_t i = 0; i < height; i++) finish(out + (top + i) * p.n + column, sums + i * NR, TILED_ROWS * NR, width, p);
    }
}

template <class Out, class Panels>
void tiled_tasks(Out* out, const bf16* x, const Panels& w, const Product& p, int threads) {
    const int64_t down = (p.m + TILED_ROWS - 1) / TILED_ROWS, panels = p.panels();
    const int64_t across = tasks_of(panels, PANELS, threads, TASKS);
    share(threads, down * across, [&](int64_t at) {
        const Range rows(p.m, at / across, down);
        tiled_task(out, x, w, p, rows.begin, rows.end - rows.begin, Range(panels, at % across, across));
    });
}

template <class Out, class Panels>
void tiled_product(Out* out, const bf16* x, const Panels& w, Product p, int64_t cores) {
    const int threads = worth(cores, p.work());
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
