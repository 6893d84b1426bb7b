// Causal attention of a ragged batch over the paged cache in float32. The query heads that share a key head are computed
// together, so every key and value is read and widened once for all of them.
//
// Chunks start at fixed positions, each is computed relative to its own highest score, and they are joined in order; a hidden
// key adds an exact zero. So a query's result has the same bits whether its token came in a prompt, in a piece of one, or
// alone, and however a long row was cut.
#include <type_traits>

#include "amx.h"
#include "attention_chunk.h"
#include "attention_panels.h"

namespace aril {
namespace {

// Scores as they are compared, in place.
void transform(float* scores, int64_t padded, const Shape& s) {
    const vf cap = splat(s.softcap);
    for (int64_t t = 0; t < padded; t += W) {
        vf v = load(scores + t) * s.scale;
        if (s.softcap > 0) v = cap - cap * 2.0f / (exp(v * 2.0f / cap) + 1.0f);  // cap * tanh(v / cap)
        store(scores + t, v);
    }
}

// Scores become weights relative to the highest, in place; `from` and `to` bound what the query sees. Those of float32 caches are
// made as torch makes them: where a format rounds what comes next, a last bit shows.
template <class T>
void soften(float* scores, int64_t padded, int64_t from, int64_t to, const Shape& s, float* highest, float* total) {
    const bool at_once = sizeof(T) < sizeof(float) && s.softcap <= 0 && s.scale > 0;
    if (!at_once) transform(scores, padded, s);
    for (int64_t t = 0; t < std::min(from, padded); t++) scores[t] = -INFINITY;
    for (int64_t t = std::max<int64_t>(to, 0); t < padded; t++) scores[t] = -INFINITY;
    vf tops = splat(NOTHING), sums = {};
    for (int64_t t = 0; t < padded; t += W) tops = max(load(scores + t), tops);
    float lanes[W], top = NOTHING;
    store(lanes, tops);
    for (float lane : lanes) top = std::max(top, lane);
    const float factor = at_once ? s.scale * LOG2E : LOG2E, peak = top > NOTHING ? top * factor : NOTHING;
    const vf less = splat(top > NOTHING ? -peak : 0.0f);
    for (int64_t t = 0; t < padded; t += W) {
        const vf v = load(scores + t), weight = sizeof(T) == sizeof(float) ? exp(v - top) : exp2(fused(v, splat(factor), less));
        store(scores + t, weight);
        sums += weight;
    }
    *highest = peak;
    *total = sum(sums);
}

template <class Number>
class FloatWorker {
public:
    using T = Number;
    static constexpr int64_t KEYS = 64;        // scores, keys and values of a task stay in L1 and L2
    static constexpr int64_t QUERY_ROWS = 48, APART_FROM = 8;
    static constexpr double WORTH = 6e3 * W;

    static int64_t size(int64_t tokens, const Shape& s) { return Layout::of(tokens, s).size(); }

    FloatWorker(const Tensors<T>& tensors, const Shape& shape, const Group& group)
        : t_(tensors), s_(shape), g_(group), layout_(Layout::of(group.tokens, shape)), walk_(tensors, shape, group, 1) {}

    void bring(const Task& task) { walk_.bring(task); }

    // `next`, if not null, is what this thread will most likely do after that.
    void run(const Task& task, const Task* next) {
        take_memory(task.heads);
        for (int64_t i = 0; i < task.heads; i++) begin(task.head + i, i);
        const int64_t pulses = KEYS + KEYS / 8 * (s_.dim * int64_t(sizeof(T)) / BYTES);
        walk_.run(task, next, pulses, [&](int64_t chunk, int64_t held, Range heads, Fetch<T>& ahead) {
            float* part = this->part(chunk, task.head + heads.begin);
            see(chunk, held, task.head + heads.begin, queries(heads.begin), part, ahead);
            if (!g_.parts) join(state(heads.begin), part, layout_);
        });
        for (int64_t i = 0; i < task.heads && !g_.parts; i++) finish(task.head + i, state(i));
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
        const int64_t n = layout_.n, panels = KEYS * (s_.dim + layout_.width);
        scores_ = scratch.get(n * KEYS + panels + layout_.size() * (heads + 1) + heads * n * s_.dim);
        keys_ = scores_ + n * KEYS;
        values_ = keys_ + KEYS * s_.dim;
        part_ = values_ + KEYS * layout_.width;
        states_ = part_ + layout_.size();
        queries_ = states_ + heads * layout_.size();
    }

    float* state(int64_t i) const { return states_ + i * layout_.size(); }

    float* queries(int64_t i) const { return queries_ + i * layout_.n * s_.dim; }

    float* part(int64_t chunk, int64_t head) const {
        return g_.parts ? g_.parts + ((chunk - g_.first) * s_.kv_heads + head) * layout_.size() : part_;
    }

    void begin(int64_t head, int64_t i) {
        empty(state(i), layout_);
        const int64_t size = s_.shared() * s_.dim;
        for (int64_t token = 0; token < g_.tokens; token++)
            copy(queries(i) + token * size, t_.q + (g_.token + token) * s_.q_stride + head * size, size);
    }

    void see(int64_t chunk, int64_t held, int64_t head, const float* q, float* part, Fetch<T>& ahead) {
        const int64_t n = layout_.n, padded = (held + NR - 1) / NR * NR;
        key_panels(keys_, t_.k_cache + head * s_.dim, walk_.at(), padded, s_.dim, ahead);
        score(q, padded, ahead);
        for (int64_t r = 0; r < n; r++) {
            const int64_t to = g_.position + r / s_.shared() + 1 - chunk * KEYS, from = s_.window ? to - s_.window : 0;
            soften<T>(scores_ + r * KEYS, padded, from, to, s_, layout_.highest(part) + r, layout_.total(part) + r);
        }
        add(part, t_.v_cache + head * s_.dim, held, ahead);
    }

    void score(const float* q, int64_t padded, Fetch<T>& ahead) {
        const int64_t n = layout_.n, dim = s_.dim;
        if (n > MR) {
            for (int64_t t = 0; t < padded; t += NR) panel_product(n, scores_ + t, KEYS, q, dim, keys_ + t * dim, dim, false);
            return;
        }
        const float* keys = keys_;
        few_rows(n, scores_, KEYS, q, dim, dim, padded, [=](int64_t i, int64_t t) ARIL_INLINE_LAMBDA {
            return load(keys + t / NR * NR * dim + i * NR + t % NR);
        }, ahead);
    }

    // Values meet a few weights as they lie.
    void add(float* part, const T* values, int64_t held, Fetch<T>& ahead) {
        const int64_t n = layout_.n, width = layout_.width;
        if (n > MR || width > s_.dim) {
            value_panels(values_, values, walk_.at(), held, s_.dim, ahead);
            for (int64_t d = 0; d < width; d += NR) panel_product(n, part + d, width, scores_, KEYS, values_ + d * held, held, false);
            return;
        }
        const int64_t* at = walk_.at();
        few_rows(n, part, width, scores_, KEYS, held, width, [&](int64_t i, int64_t d) ARIL_INLINE_LAMBDA {
            return load(values + at[i] + d);
        }, ahead);
    }

    void finish(int64_t head, float* state) const {
        for (int64_t r = 0; r < layout_.n; r++) {
            float* row = state + r * layout_.width;
            const float share = 1.0f / layout_.total(state)[r];
            for (int64_t d = 0; d < layout_.width; d += W) store(row + d, load(row + d) * share);
            const int64_t q_head = head * s_.shared() + r % s_.shared();
            copy(t_.out + ((g_.token + r / s_.shared()) * s_.heads + q_head) * s_.dim, row, s_.dim);
        }
    }

    const Tensors<T>& t_;
    const Shape& s_;
    const Group& g_;
    const Layout layout_;
    Walk<T, KEYS> walk_;
    float *scores_ = nullptr, *keys_ = nullptr, *values_ = nullptr, *part_ = nullptr, *states_ = nullptr, *queries_ = nullptr;
};

}  // namespace
}  // namespace aril

extern "C" void aril_attention(void* out, const void* q, const void* k_cache, const void* v_cache, const void* query_start,
                               const void* seq_lens, const void* block_table, int64_t rows, int64_t heads, int64_t kv_heads,
                               int64_t dim, int64_t block_size, int64_t max_blocks, int64_t q_stride, double scale,
                               double softcap, int64_t window, int64_t dtype, int64_t cores) {
    using namespace aril;
    const Shape shape{rows,     heads,         kv_heads,       dim,   block_size, max_blocks,
                      q_stride, float(scale), float(softcap), window};
    const auto run = [&](auto zero) {
        using T = decltype(zero);
        const Tensors<T> tensors{static_cast<T*>(out), static_cast<const T*>(q), static_cast<const T*>(k_cache),
                                 static_cast<const T*>(v_cache), static_cast<const int32_t*>(query_start),
                                 static_cast<const int32_t*>(seq_lens), static_cast<const int32_t*>(block_table)};
#if defined(ARIL_TILES)
        if constexpr (std::is_same_v<T, bf16>) return attend_by_tiles(tensors, shape, cores);
#elif defined(__AVX512BF16__)
        if constexpr (std::is_same_v<T, bf16>) return attend_by_dots(tensors, shape, cores);
#endif
        Plan<FloatWorker<T>>(tensors, shape, cores).run(tensors);
    };
    dtype == BF16 ? run(bf16{}) : run(float{});
}

ARIL_TAPED(aril_attention)
