// Causal attention of a ragged batch over the paged cache, with the softmax taken chunk by chunk (online softmax, Milakov and
// Gimelshein 2018). The query heads that share a key head are computed together, so every key and value is read and widened
// once for all of them; a task takes all key heads of a row if it can, for the cache holds them side by side.
//
// Chunks start at fixed positions and a hidden key adds an exact zero: a query's result has the same bits whether its token
// came in a prompt, in a piece of one, or alone.
#include <type_traits>
#include <utility>
#include <vector>

#include "amx.h"
#include "attention.h"
#include "tile.h"

namespace aril {
namespace {

constexpr int64_t KEYS = 64;        // positions of one chunk: scores, keys and values of a task stay in L1 and L2
constexpr int64_t QUERY_ROWS = 48;  // query vectors of one task, where it has a choice

int64_t width_of(const Shape& s) { return (s.dim + NR - 1) / NR * NR; }  // of an accumulator: whole panels

struct Task {
    int64_t row, head, heads;  // key heads: the first, and how many
    int64_t token, tokens;     // token: the first, counted over the batch
    int64_t position;          // of the first
};

struct State {  // of the queries that share one key head
    float *q, *sums, *highest, *total;
};

#if defined(__AVX__)
// Eight keys' next eight dimensions become eight rows of eight keys.
template <class T>
ARIL_INLINE void transpose8(float* out, const T* const* keys, int64_t d) {
    __m256 r[8], s[8];
    for (int i = 0; i < 8; i++) {
        float wide[8];
        copy(wide, keys[i] + d, 8);
        r[i] = _mm256_loadu_ps(wide);
    }
    for (int i = 0; i < 8; i += 2) {
        s[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = _mm256_shuffle_ps(s[i + j], s[i + j + 2], 0x44);
            r[i + 2 * j + 1] = _mm256_shuffle_ps(s[i + j], s[i + j + 2], 0xee);
        }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(out + i * NR, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(out + (i + 4) * NR, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}
#endif

// Keys as panels [ceil(count / NR)][dim][NR]: the right-hand side of q times K^T.
template <class T>
void key_panels(float* out, const T* const* keys, int64_t padded, int64_t dim) {
    for (int64_t first = 0; first < padded; first += 8) {
        float* column = out + first / NR * dim * NR + first % NR;
        int64_t d = 0;
#if defined(__AVX__)
        for (; d + 8 <= dim; d += 8) transpose8(column + d * NR, keys + first, d);
#endif
        for (; d < dim; d++)
            for (int i = 0; i < 8; i++) column[d * NR + i] = get(keys[first + i] + d);
    }
}

// Values as panels [width / NR][count][NR], the last one filled up with zeros.
template <class T>
void value_panels(float* out, const T* const* values, int64_t count, int64_t dim) {
    for (int64_t d = 0; d < dim; d += NR)
        for (int64_t t = 0; t < count; t++, out += NR) {
            const int64_t held = std::min<int64_t>(NR, dim - d);
            copy(out, values[t] + d, held);
            for (int64_t i = held; i < NR; i++) out[i] = 0;
        }
}

// Scores become weights relative to the highest score so far; returns what the earlier sums must be scaled with.
float soften(float* scores, int64_t padded, int64_t from, int64_t to, const Shape& s, float& highest, float& total) {
    const vf scale = splat(s.scale), cap = splat(s.softcap);
    vf top = splat(-INFINITY);
    for (int64_t t = 0; t < padded; t += W) {
        vf v = load(scores + t) * scale;
        if (s.softcap > 0) {
            const vf e = exp(v * 2.0f / cap);
            v = cap - cap * 2.0f / (e + 1.0f);  // cap * tanh(v / cap)
        }
        store(scores + t, v);
    }
    for (int64_t t = 0; t < std::min(from, padded); t++) scores[t] = -INFINITY;
    for (int64_t t = std::max<int64_t>(to, 0); t < padded; t++) scores[t] = -INFINITY;
    for (int64_t t = 0; t < padded; t += W) top = max(load(scores + t), top);
    float lanes[W], peak = highest;
    store(lanes, top);
    for (float lane : lanes) peak = std::max(peak, lane);
    if (peak == -INFINITY) {  // this query sees nothing up to here
        std::fill(scores, scores + padded, 0.0f);
        return 1.0f;
    }
    vf sums = {};
    for (int64_t t = 0; t < padded; t += W) {
        const vf weight = exp(load(scores + t) - peak);
        store(scores + t, weight);
        sums += weight;
    }
    const float kept = std::exp(highest - peak);
    highest = peak;
    total = total * kept + sum(sums);
    return kept;
}

template <class T>
class Worker {
public:
    Worker(const Tensors<T>& tensors, const Shape& shape) : t_(tensors), s_(shape) {}

    void run(const Task& task) {
        take_memory(task);
        for (int64_t head = 0; head < task.heads; head++) begin(task, head);
        const int64_t end = task.position + task.tokens;
        const int64_t seen = s_.window ? std::max<int64_t>(0, task.position - s_.window + 1) : 0;
        for (int64_t chunk = seen / KEYS * KEYS; chunk < end; chunk += KEYS) {
            bring(task, chunk, std::min(chunk + KEYS, end));
            for (int64_t head = 0; head < task.heads; head++) see(task, head, chunk, std::min(KEYS, end - chunk));
        }
        for (int64_t head = 0; head < task.heads; head++) finish(task, head);
    }

private:
    int64_t rows(const Task& task) const { return task.tokens * s_.shared(); }

    void take_memory(const Task& task) {
        static thread_local Scratch scratch;
        const int64_t n = rows(task), of_state = n * (s_.dim + width_of(s_) + 2);
        states_ = scratch.get(n * KEYS + KEYS * (s_.dim + width_of(s_)) + task.heads * of_state);
        scores_ = std::exchange(states_, states_ + n * KEYS);
        keys_ = std::exchange(states_, states_ + KEYS * s_.dim);
        values_ = std::exchange(states_, states_ + KEYS * width_of(s_));
    }

    State state(const Task& task, int64_t head) const {
        const int64_t n = rows(task);
        float* q = states_ + head * n * (s_.dim + width_of(s_) + 2);
        float *sums = q + n * s_.dim, *highest = sums + n * width_of(s_);
        return {q, sums, highest, highest + n};
    }

    void begin(const Task& task, int64_t head) {
        const State state = this->state(task, head);
        const int64_t size = s_.shared() * s_.dim;
        for (int64_t i = 0; i < task.tokens; i++)
            copy(state.q + i * size, t_.q + (task.token + i) * s_.q_stride + (task.head + head) * size, size);
        std::fill(state.sums, state.highest, 0.0f);
        std::fill(state.highest, state.total, -INFINITY);
        std::fill(state.total, state.total + rows(task), 0.0f);
    }

    void see(const Task& task, int64_t head, int64_t chunk, int64_t count) {
        const State state = this->state(task, head);
        const int64_t n = rows(task), width = width_of(s_), padded = (count + NR - 1) / NR * NR;
        gather(task, head, chunk, count, padded);
        for (int64_t t = 0; t < padded; t += NR)
            panel_product(n, scores_ + t, KEYS, state.q, s_.dim, keys_ + t * s_.dim, s_.dim, false);
        for (int64_t i = 0; i < n; i++) {
            const int64_t to = task.position + i / s_.shared() + 1 - chunk, from = s_.window ? to - s_.window : 0;
            const float kept = soften(scores_ + i * KEYS, padded, from, to, s_, state.highest[i], state.total[i]);
            float* sums = state.sums + i * width;
            for (int64_t d = 0; kept != 1.0f && d < width; d += W) store(sums + d, load(sums + d) * kept);
        }
        for (int64_t d = 0; d < width; d += NR)
            panel_product(n, state.sums + d, width, scores_, KEYS, values_ + d * count, count, true);
    }

    // Where the caches hold a position.
    int64_t place(const Task& task, int64_t position) const {
        const uint32_t size = uint32_t(s_.block_size), at = uint32_t(position);
        const int64_t slot = int64_t(t_.block_table[task.row * s_.max_blocks + at / size]) * size + at % size;
        return (slot * s_.kv_heads + task.head) * s_.dim;
    }

    // Blocks lie anywhere and heads apart, which the machine does not foresee: read all of a chunk in order, then use it.
    void bring(const Task& task, int64_t begin, int64_t end) const {
        for (int64_t position = begin; position < end; position++) {
            const int64_t at = place(task, position);
            for (int64_t d = 0; d < task.heads * s_.dim; d += int64_t(64 / sizeof(T))) {
                touch(t_.k_cache + at + d);
                touch(t_.v_cache + at + d);
            }
        }
    }

    void gather(const Task& task, int64_t head, int64_t chunk, int64_t count, int64_t padded) {
        const T *keys[KEYS], *values[KEYS];
        for (int64_t t = 0; t < padded; t++) {
            const int64_t position = chunk + std::min(t, count - 1);  // padding repeats the last: its scores are hidden
            const int64_t at = place(task, position) + head * s_.dim;
            keys[t] = t_.k_cache + at, values[t] = t_.v_cache + at;
        }
        key_panels(keys_, keys, padded, s_.dim);
        value_panels(values_, values, count, s_.dim);
    }

    void finish(const Task& task, int64_t head) {
        const State state = this->state(task, head);
        for (int64_t i = 0; i < rows(task); i++) {
            float* row = state.sums + i * width_of(s_);
            const float share = 1.0f / state.total[i];
            for (int64_t d = 0; d < width_of(s_); d += W) store(row + d, load(row + d) * share);
            const int64_t q_head = (task.head + head) * s_.shared() + i % s_.shared();
            copy(t_.out + ((task.token + i / s_.shared()) * s_.heads + q_head) * s_.dim, row, s_.dim);
        }
    }

    const Tensors<T>& t_;
    const Shape& s_;
    float *states_ = nullptr, *scores_ = nullptr, *keys_ = nullptr, *values_ = nullptr;
};

template <class T>
std::vector<Task> tasks_of(const Tensors<T>& t, const Shape& s, int64_t cores) {
    const int64_t most = std::max<int64_t>(1, QUERY_ROWS / s.shared()), total = t.query_start[s.rows];
    const int64_t heads = std::min(total, s.rows) >= 4 * cores ? s.kv_heads : 1;
    std::vector<Task> tasks;
    for (int64_t row = 0; row < s.rows; row++) {
        const int64_t begin = t.query_start[row], end = t.query_start[row + 1], seq_len = t.seq_lens[row];
        for (int64_t token = begin; token < end; token += most)
            for (int64_t head = 0; head < s.kv_heads; head += heads)
                tasks.push_back({row, head, heads, token, std::min(most, end - token), seq_len - end + token});
    }
    return tasks;
}

template <class T>
void attend(const Tensors<T>& tensors, const Shape& shape, int64_t cores) {
    const std::vector<Task> tasks = tasks_of(tensors, shape, cores);
    double work = 0;
    for (const Task& task : tasks)
        work += double(task.position + task.tokens) * task.tokens * task.heads * shape.shared() * shape.dim / W;
    share(worth(cores, work), int64_t(tasks.size()), [&](int64_t at) { Worker<T>(tensors, shape).run(tasks[at]); });
}

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
        attend(tensors, shape, cores);
    };
    dtype == BF16 ? run(bf16{}) : run(float{});
}

ARIL_TAPED(aril_attention)
