// How attention over a cache becomes tasks: rows cut into groups of queries, and those into key heads and chunks.
//
// A worker says how it likes its groups and computes them: of caches of `T`, `KEYS` positions of a chunk, `QUERY_ROWS` query
// vectors of a group where there is a choice, `APART_FROM` of them from which key heads go apart, `WORTH`: queries times keys
// times dimensions for which another thread is called, `size` floats of what is kept of a chunk; and `bring`, `run` and `join_parts`.
#pragma once

#include <utility>
#include <vector>

#include "attention.h"

namespace aril {
namespace {

constexpr int64_t TASKS_EACH = 4;  // for each thread at least, where rows can be cut

// Some queries of a row that are computed together.
struct Group {
    int64_t row, token, tokens, position;  // token, position: of the first
    int64_t first, last;                   // chunks that they see
    int64_t pieces;                        // of those chunks, for a task each
    float* parts;                          // of each chunk and key head, where there are several pieces; else null
    int64_t chunks() const { return last - first; }
    int64_t end() const { return position + tokens; }
};

struct Task {
    const Group* group;
    int64_t head, heads, first, last;  // key heads and chunks
};

// Where the caches hold the positions of a chunk of `keys`, and how many; past the end the last one is repeated, for what is
// hidden.
template <class T>
int64_t find(const Tensors<T>& t, const Shape& s, const Group& group, int64_t chunk, int64_t keys, int64_t* at) {
    const int64_t held = std::min(keys, group.end() - chunk * keys), step = s.kv_heads * s.dim;
    const int32_t* blocks = t.block_table + group.row * s.max_blocks;
    int64_t position = chunk * keys, i = 0;
    for (int64_t within = position % s.block_size; i < held; within = 0) {
        int64_t place = (blocks[(position + i) / s.block_size] * s.block_size + within) * step;
        for (const int64_t stop = std::min(held, i + s.block_size - within); i < stop; i++, place += step) at[i] = place;
    }
    std::fill(at + held, at + keys, at[held - 1]);
    return held;
}

// Tasks of all key heads read memory in the longest pieces; where that would leave a thread without work heads go apart, and
// then chunks.
template <class Worker>
class Plan {
    using T = typename Worker::T;

public:
    Plan(const Tensors<T>& t, const Shape& s, int64_t cores) : s_(s) {
        constexpr int64_t KEYS = Worker::KEYS;
        groups_.clear(), tasks_.clear();
        const int64_t most = std::max<int64_t>(1, Worker::QUERY_ROWS / s.shared());
        double work = 0;
        for (int64_t row = 0; row < s.rows; row++)
            for (int64_t token = t.query_start[row], end = t.query_start[row + 1]; token < end; token += most) {
                const int64_t tokens = std::min(most, end - token), position = t.seq_lens[row] - end + token;
                const int64_t seen = s.window ? std::max<int64_t>(0, position - s.window + 1) : 0;
                groups_.push_back({row, token, tokens, position, seen / KEYS, (position + tokens + KEYS - 1) / KEYS, 1, nullptr});
                work += cost(groups_.back());
            }
        threads_ = int(std::max(1.0, std::min(double(cores), work * double(KEYS * s.heads * s.dim) / Worker::WORTH)));
        const double fair = threads_ > 1 ? work / double(threads_ * TASKS_EACH) : INFINITY;
        for (Group& group : groups_) cut(group, fair);
        lend_memory();
    }

    void run(const Tensors<T>& t) const {
        const Task* tasks = tasks_.data();
        const int64_t count = int64_t(tasks_.size());
        share(threads_, count, [&](int64_t i) {
            Worker worker(t, s_, *tasks[i].group);
            if (begins_part(threads_, count, i)) worker.bring(tasks[i]);
            worker.run(tasks[i], i + 1 < count ? &tasks[i + 1] : nullptr);
        });
        for (const Group& group : groups_)
            if (group.parts) Worker(t, s_, group).join_parts();
    }

private:
    static double cost(const Group& group) { return double(group.tokens * group.chunks()); }

    void cut(Group& group, double fair) {
        const bool apart = cost(group) > fair || group.tokens * s_.shared() >= Worker::APART_FROM;
        const int64_t heads = apart ? 1 : s_.kv_heads;
        group.pieces = std::max<int64_t>(1, std::min(group.chunks(), int64_t(std::ceil(cost(group) / double(s_.kv_heads) / fair))));
        for (int64_t head = 0; head < s_.kv_heads; head += heads)
            for (int64_t i = 0; i < group.pieces; i++) {
                const Range chunks(group.chunks(), i, group.pieces);
                tasks_.push_back({&group, head, heads, group.first + chunks.begin, group.first + chunks.end});
            }
    }

    void lend_memory() {
        static thread_local Scratch scratch;
        const auto size = [&](const Group& group) {
            return group.pieces > 1 ? group.chunks() * s_.kv_heads * Worker::size(group.tokens, s_) : 0;
        };
        int64_t all = 0;
        for (const Group& group : groups_) all += size(group);
        float* memory = scratch.get(all);
        for (Group& group : groups_)
            if (group.pieces > 1) group.parts = std::exchange(memory, memory + size(group));
    }

    static thread_local std::vector<Group> groups_;  // kept from call to call for their memory alone
    static thread_local std::vector<Task> tasks_;
    const Shape& s_;
    int threads_;
};

template <class Worker>
thread_local std::vector<Group> Plan<Worker>::groups_;
template <class Worker>
thread_local std::vector<Task> Plan<Worker>::tasks_;

}  // namespace
}  // namespace aril
