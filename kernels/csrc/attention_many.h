// Attention of many queries in tile registers: keys and values are laid out once for blocks of queries that pass them.
#pragma once

#include "attention_lanes.h"

#if defined(ARIL_TILES)

namespace aril {
namespace {

constexpr int64_t COLUMNS = 2 * TILE;  // queries of a block, which pass keys and values together
constexpr int64_t FETCHES_BELOW = 32;  // queries; more of them leave the machine time to read ahead by itself

class ManyWorker {
public:
    static int64_t size(int64_t tokens, const Shape& s) { return tiles_of(tokens * s.shared()) * of_tile(s); }

    ManyWorker(const Tensors<bf16>& tensors, const Shape& shape, const Group& group)
        : t_(tensors), s_(shape), g_(group), n_(group.tokens * shape.shared()), width_(width_of(shape)), size_(of_tile(shape)),
          walk_(tensors, shape, group, 1) {}

    void bring(const Task& task) { walk_.bring(task); }

    void run(const Task& task, const Task* next) {
        registers_.shape(TILE, TILE);
        take_memory(task.heads);
        for (int64_t i = 0; i < task.heads; i++) begin(task.head + i, i);
        const int64_t pulses = n_ < FETCHES_BELOW ? 3 * UNITS : 0;
        walk_.run(task, next, pulses, [&](int64_t chunk, int64_t held, Range heads, Fetch<bf16>& ahead) {
            see({chunk, held, task.head + heads.begin, heads.begin}, ahead);
        });
        for (int64_t i = 0; i < task.heads && !g_.parts; i++) finish(task.head + i, i);
    }

    // Of a group that several tasks shared.
    void join_parts() {
        take_memory(1);
        for (int64_t head = 0; head < s_.kv_heads; head++) {
            for (int64_t tile = 0; tile < tiles_of(n_); tile++) {
                state(0, tile).empty();
                for (int64_t chunk = g_.first; chunk < g_.last; chunk++) state(0, tile).join(part({chunk, 0, head, 0}, tile));
            }
            finish(head, 0);
        }
    }

private:
    struct Place {  // in the work: a chunk, the positions that it holds, a key head and its number in the task
        int64_t chunk, held, head, i;
    };

    static int64_t tiles_of(int64_t n) { return (n + TILE - 1) / TILE; }
    static int64_t width_of(const Shape& s) { return (s.dim + DIMS - 1) / DIMS * DIMS; }
    static int64_t of_tile(const Shape& s) { return (width_of(s) + 2) * TILE; }

    void take_memory(int64_t heads) {
        static thread_local Scratch scratch;
        const int64_t tiles = tiles_of(n_), halves = width_ * (2 * KEYS + heads * tiles * TILE);
        scores_ = scratch.get(COLUMNS * KEYS + size_ * (heads * tiles + 2) + tiles * TILE + halves / 2 + width_ / TILE * 2);
        part_ = scores_ + COLUMNS * KEYS;
        states_ = part_ + 2 * size_;
        ends_ = reinterpret_cast<int32_t*>(states_ + heads * tiles * size_);
        keys_ = reinterpret_cast<bf16*>(ends_ + tiles * TILE);
        values_ = keys_ + KEYS * width_;
        queries_ = values_ + KEYS * width_;
        value_rows_ = reinterpret_cast<const bf16**>(queries_ + heads * tiles * TILE * width_);
    }

    State state(int64_t i, int64_t tile) const { return {states_ + (i * tiles_of(n_) + tile) * size_, width_}; }

    State part(const Place& at, int64_t tile) const {
        const int64_t before = ((at.chunk - g_.first) * s_.kv_heads + at.head) * tiles_of(n_);
        return {g_.parts ? g_.parts + (before + tile) * size_ : part_ + tile % 2 * size_, width_};
    }

    bf16* queries(int64_t i, int64_t tile) const { return queries_ + (i * tiles_of(n_) + tile) * TILE * width_; }

    // Queries past the last are like it.
    void begin(int64_t head, int64_t i) {
        Upcoming nothing(nullptr, nullptr, nullptr, 0, 0);
        for (int64_t tile = 0; tile < tiles_of(n_); tile++) {
            int64_t at[TILE];
            for (int64_t lane = 0; lane < TILE; lane++) {
                const int64_t r = std::min(tile * TILE + lane, n_ - 1), token = r / s_.shared();
                at[lane] = (g_.token + token) * s_.q_stride + (head * s_.shared() + r % s_.shared()) * s_.dim;
                ends_[tile * TILE + lane] = int32_t(g_.position + token + 1);
            }
            key_panel(queries(i, tile), t_.q, at, s_.dim, nothing);
            state(i, tile).empty();
        }
    }

    // Block by block, so that scores and weights stay in L1. (Multiplying for one block while the vectors weigh another took a
    // tenth longer: three blocks of scores do not fit.)
    void see(const Place& at, Fetch<bf16>& ahead) {
        lay(at, ahead);
        for (int64_t block = 0; block * COLUMNS < n_; block++) {
            const Range keys = seen(at, block), tiles(2 * block, 2 * block + 1 + is_pair(block));
            if (keys.begin < keys.end) {
                score(at, block, keys);
                for (int64_t tile = tiles.begin; tile < tiles.end; tile++) weigh_tile(at, tile, keys, ahead);
                add(at, block, keys);
            }
            for (int64_t tile = tiles.begin; tile < tiles.end; tile++) {
                if (keys.begin == keys.end) part(at, tile).empty();
                if (!g_.parts) state(at.i, tile).join(part(at, tile));
            }
        }
    }

    // Keys and values of a chunk as left sides.
    void lay(const Place& at, Fetch<bf16>& ahead) {
        const int64_t count = (at.held + TILE_INPUTS - 1) / TILE_INPUTS * TILE_INPUTS;
        for (int64_t t = 0; t < count; t += TILE) key_rows_[t / TILE] = keys_ + t * width_;
        for (int64_t d = 0; d < width_; d += TILE) value_rows_[d / TILE] = values_ + d * KEYS;
        for (int64_t t = 0; t < count; t += TILE_INPUTS) {
            ahead.pulse();
            pack_keys(keys_ + t * width_, t_.k_cache + at.head * s_.dim, walk_.at() + t, s_.dim);
            pack_values(values_ + t * TILE, t_.v_cache + at.head * s_.dim, walk_.at() + t, s_.dim, UNITS);
        }
    }

    // Keys of a chunk that a block sees, in whole units.
    Range seen(const Place& at, int64_t block) const {
        const int32_t first = ends_[block * COLUMNS], last = ends_[std::min(n_ - 1, (block + 1) * COLUMNS - 1)];
        const int64_t begin = at.chunk * KEYS, to = std::min(at.held, last - begin);
        const Range keys = whole_units(s_.window ? first - s_.window - begin : 0, to);
        return keys.begin < keys.end ? keys : Range(0, 0);
    }

    float* scores(int64_t tile) const { return scores_ + tile % 2 * TILE * KEYS; }

    bool is_pair(int64_t block) const { return block * COLUMNS + TILE < n_; }

    void score(const Place& at, int64_t block, Range keys) {
        const Left left{key_rows_ + keys.begin / TILE, DIMS, REGISTER};
        const Right right{queries(at.i, 2 * block), DIMS, REGISTER, is_pair(block) ? TILE * width_ : 0};
        const Sums sums{scores(0) + keys.begin * TILE, TILE * KEYS};
        Product(sums, left, right, (keys.end - keys.begin) / TILE, Range(0, width_ / DIMS)).finish();
    }

    void weigh_tile(const Place& at, int64_t tile, Range keys, Fetch<bf16>& ahead) {
        const State part = this->part(at, tile);
        const Sight sight = Sight::of(ends_ + tile * TILE, at.chunk * KEYS, s_.window);
        weigh(scores(tile), keys, sight, s_, part.highest(), part.total(), [&] { ahead.pulse(); });
    }

    void add(const Place& at, int64_t block, Range keys) {
        const Left left{value_rows_, DIMS, REGISTER};
        const bf16* weights = reinterpret_cast<const bf16*>(scores(0));
        const Right right{weights, 2 * DIMS, TILE_INPUTS * DIMS, is_pair(block) ? TILE * KEYS * 2 : 0};
        const Range units(keys.begin / TILE_INPUTS, keys.end / TILE_INPUTS);
        Product({part(at, 2 * block).sums, size_}, left, right, width_ / TILE, units).finish();
    }

    void finish(int64_t head, int64_t i) const {
        alignas(64) bf16 rows[TILE * DIMS];
        for (int64_t tile = 0; tile < tiles_of(n_); tile++)
            for (int64_t d = 0; d < s_.dim; d += DIMS) {
                state(i, tile).put(rows, d);
                const uint32_t kept = s_.dim - d >= DIMS ? ~0u : (1u << (s_.dim - d)) - 1;
                for (int64_t r = tile * TILE; r < std::min(n_, (tile + 1) * TILE); r++) {
                    const int64_t token = g_.token + r / s_.shared(), query_head = head * s_.shared() + r % s_.shared();
                    _mm512_mask_storeu_epi16(t_.out + (token * s_.heads + query_head) * s_.dim + d, kept,
                                             _mm512_load_si512(rows + r % TILE * DIMS));
                }
            }
    }

    const Tensors<bf16>& t_;
    const Shape& s_;
    const Group& g_;
    const int64_t n_, width_, size_;  // query vectors with one key head; floats of a sum and of a state of sixteen
    Tiles registers_;
    Walk<bf16, KEYS> walk_;
    const bf16 *key_rows_[KEYS / TILE], **value_rows_ = nullptr;
    float *scores_ = nullptr, *part_ = nullptr, *states_ = nullptr;
    int32_t* ends_ = nullptr;  // of each query: one past the last position that it sees
    bf16 *keys_ = nullptr, *values_ = nullptr, *queries_ = nullptr;
};

}  // namespace
}  // namespace aril

#endif
