// Attention over a bfloat16 cache by dot products of pairs (AVX512_BF16), in chunks at fixed positions. A chunk's weights are
// taken relative to its own highest score and rounded to bfloat16, and the sum that they are divided by in the end is that of
// the rounded weights; chunks are joined in order (Milakov and Gimelshein 2018).
//
// So a chunk can be computed by whoever is free, and a query's result has the same bits whether its token came in a prompt, in
// a piece of one, or alone, and however a long row was cut.
#include "attention_chunk.h"
#include "attention_plan.h"
#include "attention_tiles.h"

#if defined(__AVX512BF16__)

#include <type_traits>

namespace aril {
namespace {

constexpr int64_t PANELS_FROM = 8;   // queries for which making panels is worth it
constexpr int64_t FETCHES_BELOW = 32;  // queries; more of them leave the machine time to read ahead by itself

constexpr int64_t KEYS = 128;          // positions of one chunk

// Scores [count] become weights relative to the highest; `from` and `to` bound what the query sees.
void soften(bf16* weights, float* scores, int64_t count, int64_t from, int64_t to, const Shape& s, float* highest, float* total) {
    const vf scale = splat(s.softcap > 0 ? s.scale : s.scale * LOG2E), cap = splat(s.softcap);
    vf top = splat(NOTHING);
    for (int64_t t = 0; t < count; t += W) {
        vf v = load(scores + t) * scale;
        if (s.softcap > 0) v = (cap - cap * 2.0f / (exp2(v * (2.0f * LOG2E) / cap) + 1.0f)) * LOG2E;  // cap * tanh(v / cap)
        const auto bit = [t](int64_t end) { return (1u << std::max<int64_t>(0, std::min<int64_t>(end - t, W))) - 1; };
        v = (vf)_mm512_mask_mov_ps((__m512)splat(-INFINITY), __mmask16(bit(to) & ~bit(from)), (__m512)v);
        store(scores + t, v);
        top = max(v, top);
    }
    const float peak = _mm512_reduce_max_ps((__m512)top);
    const vu ones = vu{} + 0x3f803f80u;
    vf sums = {};
    for (int64_t t = 0; t < count; t += 2 * W) {
        const vf low = exp2(load(scores + t) - peak), high = exp2(load(scores + t + W) - peak);
        const vu both = (vu)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
        memcpy(weights + t, &both, sizeof both);
        sums = dots(sums, both, ones);
    }
    *highest = peak;
    *total = _mm512_reduce_add_ps((__m512)sums);
}

class DotsWorker {
public:
    using T = bf16;
    static constexpr int64_t KEYS = aril::KEYS, APART_FROM = PANELS_FROM;
    static constexpr double WORTH = 1e6;  // about 3 us
    static constexpr int64_t QUERY_ROWS = 96;  // 48: 6% slower on Zen 5

    static int64_t size(int64_t tokens, const Shape& s) { return Layout::of(tokens, s).size(); }

    DotsWorker(const Tensors<bf16>& tensors, const Shape& shape, const Group& group)
        : t_(tensors), s_(shape), g_(group), layout_(Layout::of(group.tokens, shape)) {}

    // `next`, if not null, is what this thread will most likely do after that.
    void run(const Task& task, const Task* next) {
        take_memory(task.heads);
        for (int64_t i = 0; i < task.heads; i++) begin(task.head + i, i);
        int64_t held = find_chunk(g_, task.first, at_);
        for (int64_t chunk = task.first; chunk < task.last; chunk++) {
            const bool more = chunk + 1 < task.last, few = layout_.n < FETCHES_BELOW;
            const int64_t held_next =
                more ? find_chunk(g_, chunk + 1, next_) : next ? find_chunk(*next->group, next->first, next_) : 0;
            for (int64_t i = 0; i < task.heads; i++) {
                float* part = this->part(chunk, task.head + i);
                const bool same = i + 1 < task.heads;
                const int64_t head = same ? task.head + i + 1 : more || !next ? task.head : next->head;
                Upcoming ahead(t_.k_cache + head * s_.dim, t_.v_cache + head * s_.dim, same ? at_ : next_,
                               !few ? 0 : same ? held : held_next, s_.dim);
                see(chunk, task.head + i, i, part, ahead);
                if (!g_.parts) join(state(i), part, layout_);
            }
            std::copy(next_, next_ + KEYS, at_);
            held = held_next;
        }
        for (int64_t i = 0; i < task.heads && !g_.parts; i++) finish(task.head + i, state(i));
    }

    // The first keys and values of a task that nobody has fetched.
    void bring(const Task& task) {
        const int64_t held = find_chunk(g_, task.first, at_);
        for (const bf16* cache : {t_.k_cache, t_.v_cache})
            for (int64_t t = 0; t < held; t++)
                for (int64_t d = 0; d < s_.dim; d += DIMS) touch(cache + at_[t] + task.head * s_.dim + d);
    }

    // Of a group that several tasks shared.
    void join_parts() {
        take_memory(1);
        for (int64_t head = 0; head < s_.kv_heads; head++) {
            empty(state(0), layout_);
            for (int64_t chunk = g_.first; chunk < g_.last; chunk++) join(state(0), part(chunk, head), layout_);
            finish(head, state(0));
        }
    }

private:
    void take_memory(int64_t heads) {
        static thread_local Scratch scratch;
        const int64_t n = layout_.n, width = layout_.width, halves = n * KEYS + (LANES + KEYS + heads * n) * width;
        scores_ = scratch.get(n * KEYS + layout_.size() * (heads + 1) + halves / 2);
        part_ = scores_ + n * KEYS;
        states_ = part_ + layout_.size();
        weights_ = reinterpret_cast<bf16*>(states_ + heads * layout_.size());
        keys_ = weights_ + n * KEYS;
        values_ = keys_ + LANES * width;
        queries_ = values_ + KEYS * width;
    }

    float* state(int64_t i) const { return states_ + i * layout_.size(); }

    bf16* queries(int64_t i) const { return queries_ + i * layout_.n * layout_.width; }

    float* part(int64_t chunk, int64_t head) const {
        return g_.parts ? g_.parts + ((chunk - g_.first) * s_.kv_heads + head) * layout_.size() : part_;
    }

    void begin(int64_t head, int64_t i) {
        empty(state(i), layout_);
        bf16* to = queries(i);
        for (int64_t r = 0; r < layout_.n; r++, to += layout_.width) {
            const bf16* q = t_.q + (g_.token + r / s_.shared()) * s_.q_stride + (head * s_.shared() + r % s_.shared()) * s_.dim;
            std::copy(q, q + s_.dim, to);
            std::fill(to + s_.dim, to + layout_.width, 0);
        }
    }

    int64_t find_chunk(const Group& group, int64_t chunk, int64_t* at) const { return find(t_, s_, group, chunk, KEYS, at); }

    void see(int64_t chunk, int64_t head, int64_t i, float* part, Upcoming& ahead) {
        const int64_t begin = chunk * KEYS, held = std::min(KEYS, g_.end() - begin), count = (held + DIMS - 1) / DIMS * DIMS;
        const bf16 *keys = t_.k_cache + head * s_.dim, *values = t_.v_cache + head * s_.dim;
        const bool panels = layout_.n >= PANELS_FROM;
        for (int64_t t = 0; t < held; t += LANES) {
            panels ? score_panel(queries(i), keys, t, ahead) : score(queries(i), keys, t, ahead);
        }
        for (int64_t r = 0; r < layout_.n; r++) {
            const int64_t to = g_.position + r / s_.shared() + 1 - begin, from = s_.window ? to - s_.window : 0;
            soften(weights_ + r * KEYS, scores_ + r * KEYS, count, from, to, s_, layout_.highest(part) + r, layout_.total(part) + r);
        }
        panels ? add_panel(part, values, (held + 1) / 2, ahead) : add(part, values, (held + 1) / 2, ahead);
    }

    void score(const bf16* q, const bf16* keys, int64_t t, Upcoming& next) const {
        const auto run = [&](auto steps) {
            direct_scores<decltype(steps)::value>(layout_.n, scores_ + t, KEYS, q, keys, at_ + t, s_.dim, next);
        };
        with_steps(run);
    }

    void score_panel(const bf16* q, const bf16* keys, int64_t t, Upcoming& next) const {
        key_panel(keys_, keys, at_ + t, s_.dim, next);
        const auto run = [&](auto steps) {
            for (int64_t r = 0; r < layout_.n; r += SCORE_ROWS)
                panel_scores_of<decltype(steps)::value>(std::min<int64_t>(SCORE_ROWS, layout_.n - r), scores_ + r * KEYS + t, KEYS,
                                                        q + r * layout_.width, keys_, layout_.width / DIMS);
        };
        with_steps(run);
    }

    // The dimensions of most models have loops of known length; the others have one that asks.
    template <class Run>
    void with_steps(Run run) const {
        switch (s_.dim) {
            case 64: return run(std::integral_constant<int, 2>{});
            case 96: return run(std::integral_constant<int, 3>{});
            case 128: return run(std::integral_constant<int, 4>{});
            case 256: return run(std::integral_constant<int, 8>{});
            default: return run(std::integral_constant<int, 0>{});
        }
    }

    void add(float* part, const bf16* values, int64_t pairs, Upcoming& next) const {
        for (int64_t r = 0; r < layout_.n; r += DIRECT_ROWS) {
            const int64_t rows = std::min<int64_t>(DIRECT_ROWS, layout_.n - r);
            float* sums = part + r * layout_.width;
            const bf16* weights = weights_ + r * KEYS;
            int64_t d = 0;
            for (; d + 2 * DIMS <= layout_.width; d += 2 * DIMS)
                direct_values_of<2>(rows, next, sums, layout_.width, weights, KEYS, pairs, values, at_, d, s_.dim);
            if (d < layout_.width)
                direct_values_of<1>(rows, next, sums, layout_.width, weights, KEYS, pairs, values, at_, d, s_.dim);
        }
    }

    void add_panel(float* part, const bf16* values, int64_t pairs, Upcoming& next) const {
        value_panel(values_, values, at_, pairs, s_.dim, next);
        const int64_t width = layout_.width;
        for (int64_t r = 0; r < layout_.n; r += VALUE_ROWS) {
            const int64_t rows = std::min<int64_t>(VALUE_ROWS, layout_.n - r);
            float* sums = part + r * width;
            const bf16* weights = weights_ + r * KEYS;
            int64_t d = 0;
            for (; d + VALUE_VECTORS * W <= width; d += VALUE_VECTORS * W)
                panel_values_of<VALUE_VECTORS>(rows, sums + d, width, weights, KEYS, pairs, values_ + 2 * d, 2 * width);
            if (d < width) panel_values_of<2>(rows, sums + d, width, weights, KEYS, pairs, values_ + 2 * d, 2 * width);
        }
    }

    void finish(int64_t head, float* state) const {
        for (int64_t r = 0; r < layout_.n; r++) {
            const vf share = splat(1.0f / layout_.total(state)[r]);
            const float* sums = state + r * layout_.width;
            bf16* out = t_.out + ((g_.token + r / s_.shared()) * s_.heads + head * s_.shared() + r % s_.shared()) * s_.dim;
            for (int64_t d = 0; d < s_.dim; d += DIMS)
                store_dims(out + d, load(sums + d) * share, load(sums + d + W) * share, s_.dim - d);
        }
    }

    const Tensors<bf16>& t_;
    const Shape& s_;
    const Group& g_;
    const Layout layout_;
    int64_t at_[KEYS], next_[KEYS];
    float *scores_ = nullptr, *part_ = nullptr, *states_ = nullptr;
    bf16 *weights_ = nullptr, *keys_ = nullptr, *values_ = nullptr, *queries_ = nullptr;
};

}  // namespace

void attend_by_dots(const Tensors<bf16>& tensors, const Shape& shape, int64_t cores) { Plan<DotsWorker>(tensors, shape, cores).run(tensors); }

}  // namespace aril

#endif
