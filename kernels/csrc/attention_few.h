// Attention of a few queries in tile registers: as many key heads together as their queries have lanes, keys as the cache holds
// them, and values that are only interleaved, for here it is memory that takes the time.
//
// The queries of all heads are one right side, zero where a lane is another head's: a score is the same chain with zeros
// added. Weights turn into rows, and each head's values are the right side of its sums, which gives the same bits as the left.
#pragma once

#include "attention_lanes.h"

#if defined(ARIL_TILES)

namespace aril {
namespace {

class FewWorker {
public:
    static bool takes(int64_t tokens, const Shape& s) {
        return tokens * s.shared() <= TILE && s.block_size % TILE == 0 && s.dim % DIMS == 0;
    }

    static int64_t size(int64_t tokens, const Shape& s) { return tokens * s.shared() * s.dim + 2 * TILE; }

    FewWorker(const Tensors<bf16>& tensors, const Shape& shape, const Group& group)
        : t_(tensors), s_(shape), g_(group), n_(group.tokens * shape.shared()), together_(most_together()),
          walk_(tensors, shape, group, together_) {}

    // Nothing is fetched ahead: the machine reads on by itself, and was slowed by hints (Granite Rapids, two threads, 16 rows of
    // 200 positions in 30 layers: 5.5 ms with, 4.1 without).
    void run(const Task& task) {
        registers_.shape(TILE, TILE);
        take_memory(task.heads);
        for (int64_t i = 0; i < task.heads; i += together_) begin(task, i);
        walk_.run(task, nullptr, 0, [&](int64_t chunk, int64_t held, Range heads, Fetch<bf16>&) {
            see(chunk, held, task, heads);
        });
        for (int64_t i = 0; i < task.heads && !g_.parts; i += together_) finish(task.head + i, heads_of(task, i), state(i));
    }

    // Of a group that several tasks of one head shared.
    void join_parts() {
        take_memory(1);
        for (int64_t head = 0; head < s_.kv_heads; head++) {
            empty(state(0), 1);
            for (int64_t chunk = g_.first; chunk < g_.last; chunk++) join(state(0), part(chunk, head), 1);
            finish(head, 1, state(0));
        }
    }

private:
    static constexpr int64_t TOGETHER = 256;  // dimensions of heads that pass together: 128 KiB of L2

    int64_t most_together() const { return std::max<int64_t>(1, std::min(TILE / n_, TOGETHER / s_.dim)); }

    int64_t heads_of(const Task& task, int64_t i) const { return std::min(together_, task.heads - i); }

    int64_t size(int64_t heads) const { return heads * n_ * s_.dim + 2 * TILE; }

    void take_memory(int64_t heads) {
        static thread_local Scratch scratch;
        const int64_t sets = (heads + together_ - 1) / together_;
        const int64_t halves = TILE * KEYS + 8 * REGISTER + sets * together_ * s_.dim * TILE;
        scores_ = scratch.get(KEYS * TILE + 4 * SQUARE + size(together_) * (sets + 1) + halves / 2);
        sums_ = scores_ + KEYS * TILE;
        part_ = sums_ + 4 * SQUARE;
        states_ = part_ + size(together_);
        weights_ = reinterpret_cast<bf16*>(states_ + sets * size(together_));
        values_ = weights_ + TILE * KEYS;
        queries_ = values_ + 8 * REGISTER;
    }

    float* state(int64_t i) const { return states_ + i / together_ * size(together_); }

    float* part(int64_t chunk, int64_t head) const {
        return g_.parts ? g_.parts + ((chunk - g_.first) * s_.kv_heads + head) * size(1) : part_;
    }

    float* highest(float* state, int64_t heads) const { return state + heads * n_ * s_.dim; }
    float* total(float* state, int64_t heads) const { return highest(state, heads) + TILE; }

    bf16* queries(int64_t i) const { return queries_ + i * s_.dim * TILE; }

    void empty(float* state, int64_t heads) const {
        std::fill(state, highest(state, heads), 0.0f);
        std::fill(highest(state, heads), total(state, heads), NOTHING);
        std::fill(total(state, heads), total(state, heads) + TILE, 0.0f);
    }

    const bf16* query(int64_t head, int64_t r) const {
        return t_.q + (g_.token + r / s_.shared()) * s_.q_stride + (head * s_.shared() + r % s_.shared()) * s_.dim;
    }

    void begin(const Task& task, int64_t i) {
        const int64_t heads = heads_of(task, i);
        empty(state(i), heads);
        for (int64_t j = 0; j < heads; j++)
            for (int64_t d = 0; d < s_.dim; d += DIMS) {
                vu rows[TILE] = {};
                for (int64_t r = 0; r < n_; r++) rows[j * n_ + r] = load_dims(query(task.head + i + j, r) + d);
                transpose16(queries(i) + (j * s_.dim + d) * TILE, rows);
            }
    }

    // A lane without a query is like some other.
    Sight sight(int64_t chunk) const {
        int32_t ends[TILE];
        for (int64_t lane = 0; lane < TILE; lane++) ends[lane] = int32_t(g_.position + lane % n_ / s_.shared() + 1);
        Sight sight = Sight::of(ends, chunk * KEYS, s_.window);
        if (s_.window) sight.clear.begin = std::max<int64_t>(0, g_.end() - s_.window - chunk * KEYS);
        return sight;
    }

    void see(int64_t chunk, int64_t held, const Task& task, Range heads) {
        const int64_t count = heads.end - heads.begin, first = task.head + heads.begin;
        const Range keys = whole_units(s_.window ? g_.position + 1 - s_.window - chunk * KEYS : 0, held);
        float* part = this->part(chunk, first);
        score(held, first, count, heads.begin, keys);
        weigh(scores_, keys, sight(chunk), s_, highest(part, count), total(part, count), [] {});
        for (int64_t t = keys.begin; t < keys.end; t += TILE_INPUTS) turn(t);
        for (int64_t j = 0; j < count; j++)
            for (int64_t d = 0; d < s_.dim; d += 2 * DIMS) add(part + j * n_ * s_.dim + d, first + j, j, d, keys);
        if (!g_.parts) join(state(heads.begin), part, count);
    }

    // Where nothing is held any more the last registers of keys are read again: what they give is hidden.
    void score(int64_t held, int64_t head, int64_t heads, int64_t i, Range keys) {
        const bf16* rows[KEYS / TILE];
        const bf16* cache = t_.k_cache + head * s_.dim;
        for (int64_t t = 0; t < keys.end; t += TILE) rows[t / TILE] = cache + walk_.at()[t < held ? t : t - TILE];
        const Left left{rows + keys.begin / TILE, s_.kv_heads * s_.dim, DIMS};
        Product product({scores_ + keys.begin * TILE, 0}, left, {queries(i), DIMS, REGISTER, 0}, (keys.end - keys.begin) / TILE,
                        Range(0, heads * s_.dim / DIMS));
        while (product.step()) {
        }
    }

    // Weights of a unit of keys become rows of a left side.
    void turn(int64_t t) {
        vu pairs[TILE];
        for (int64_t i = 0; i < TILE; i++) memcpy(&pairs[i], scores_ + (t + 2 * i) * TILE, sizeof pairs[i]);
        transpose16(weights_ + t * TILE, pairs);
    }

    // sums[n, stride dim] of up to 64 dimensions from d on, in the order of unpacked registers.
    void add(float* sums, int64_t head, int64_t j, int64_t d, Range keys) {
        const bf16* values = t_.v_cache + head * s_.dim + d;
        const bool wide = s_.dim - d > DIMS;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        lay(values, keys.begin, wide);
        for (int64_t t = keys.begin; t < keys.end; t += TILE_INPUTS) {
            if (t + TILE_INPUTS < keys.end) lay(values, t + TILE_INPUTS, wide);
            multiply(t, wide);
        }
        _tile_stored(0, sums_, TILE_BYTES);
        _tile_stored(1, sums_ + SQUARE, TILE_BYTES);
        _tile_stored(2, sums_ + 2 * SQUARE, TILE_BYTES);
        _tile_stored(3, sums_ + 3 * SQUARE, TILE_BYTES);
        for (int64_t r = 0; r < n_; r++)
            for (int64_t v = 0; v < (wide ? 4 : 2); v++)
                store(sums + r * s_.dim + v * TILE, load(sums_ + v * SQUARE + (j * n_ + r) * TILE));
    }

    bf16* values(int64_t t) const { return values_ + t / TILE_INPUTS % 2 * 4 * REGISTER; }

    // A unit of values as right sides.
    void lay(const bf16* values, int64_t t, bool wide) {
        const int64_t* at = walk_.at() + t;
        for (int64_t d = 0; d < (wide ? 2 * DIMS : DIMS); d += DIMS) {
            bf16* to = this->values(t) + d / DIMS * 2 * REGISTER;
            for (int64_t i = 0; i < TILE; i++, to += DIMS) {
                const vu a = load_dims(values + at[2 * i] + d), b = load_dims(values + at[2 * i + 1] + d);
                const vu low = low_dims(a, b), high = high_dims(a, b);
                memcpy(to, &low, sizeof low), memcpy(to + REGISTER, &high, sizeof high);
            }
        }
    }

    void multiply(int64_t t, bool wide) {
        asm volatile("" ::: "memory");  // what registers are loaded from is written by now
        _tile_loadd(4, weights_ + t * TILE, TILE_BYTES);
        _tile_loadd(6, values(t), TILE_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, values(t) + REGISTER, TILE_BYTES);
        _tile_dpbf16ps(1, 4, 7);
        if (!wide) return;
        _tile_loadd(6, values(t) + 2 * REGISTER, TILE_BYTES);
        _tile_dpbf16ps(2, 4, 6);
        _tile_loadd(7, values(t) + 3 * REGISTER, TILE_BYTES);
        _tile_dpbf16ps(3, 4, 7);
    }

    // As of sixteen queries in lanes, but for where the sums lie.
    void join(float* state, float* part, int64_t heads) const {
        const vf old = load(highest(state, heads)), next = load(highest(part, heads)), peak = max(next, old);
        const vf kept = exp2(old - peak), added = exp2(next - peak);
        float keep[TILE], add[TILE], *mine = total(state, heads);
        store(highest(state, heads), peak), store(keep, kept), store(add, added);
        store(mine, joined(load(mine), load(total(part, heads)), kept, added));
        for (int64_t r = 0; r < heads * n_; r++)
            for (int64_t d = r * s_.dim; d < (r + 1) * s_.dim; d += TILE)
                store(state + d, joined(load(state + d), load(part + d), splat(keep[r]), splat(add[r])));
    }

    void finish(int64_t head, int64_t heads, float* state) const {
        float shares[TILE];
        store(shares, splat(1.0f) / load(total(state, heads)));
        for (int64_t r = 0; r < heads * n_; r++) {
            const int64_t token = g_.token + r % n_ / s_.shared();
            const int64_t query_head = (head + r / n_) * s_.shared() + r % s_.shared();
            bf16* out = t_.out + (token * s_.heads + query_head) * s_.dim;
            const vf share = splat(shares[r]);
            for (int64_t d = 0; d < s_.dim; d += DIMS) {
                const float* sums = state + r * s_.dim + d;
                store_dims(out + d, load(sums) * share, load(sums + W) * share, DIMS);
            }
        }
    }

    const Tensors<bf16>& t_;
    const Shape& s_;
    const Group& g_;
    const int64_t n_, together_;  // query vectors of a head; heads that pass together
    Tiles registers_;
    Walk<bf16, KEYS> walk_;
    float *scores_ = nullptr, *sums_ = nullptr, *part_ = nullptr, *states_ = nullptr;
    bf16 *weights_ = nullptr, *values_ = nullptr, *queries_ = nullptr;
};

}  // namespace
}  // namespace aril

#endif
