// How a task of attention walks through the chunks that its queries see, and brings into the cache what comes next.
#pragma once

#include "attention_plan.h"

namespace aril {
namespace {

// What will be read next, brought into L2 meanwhile: keys and then values of some heads that lie side by side, in the order of
// memory, a few positions with each pulse.
template <class T>
class Fetch {
public:
    static constexpr int64_t LINE = 64 / sizeof(T);  // numbers

    Fetch() = default;
    // `size` numbers at keys + at[t] and at values + at[t] for each of `count` positions, in about so many pulses.
    Fetch(const T* keys, const T* values, const int64_t* at, int64_t count, int64_t size, int64_t pulses)
        : numbers_(keys), values_(values), at_(at), count_(count), size_(size), each_((2 * count + pulses - 1) / pulses) {}

    ARIL_INLINE void pulse() {
        if (t_ == count_) return;
        for (int64_t i = 0; i < each_ && t_ < count_; i++) step();
    }

private:
    ARIL_INLINE void step() {
        for (int64_t d = 0; d < size_; d += LINE) prefetch(numbers_ + at_[t_] + d);
        if (++t_ == count_ && values_) numbers_ = values_, values_ = nullptr, t_ = 0;
    }

    const T *numbers_ = nullptr, *values_ = nullptr;
    const int64_t* at_ = nullptr;
    int64_t count_ = 0, size_ = 0, each_ = 0, t_ = 0;
};

// Chunks of KEYS positions, and in each the heads of a task, `together` at a time.
template <class T, int64_t KEYS>
class Walk {
public:
    Walk(const Tensors<T>& tensors, const Shape& shape, const Group& group, int64_t together)
        : t_(tensors), s_(shape), g_(group), together_(together) {}

    // The first keys and values of a task that nobody has fetched.
    void bring(const Task& task) {
        const int64_t held = look(g_, task.first, at_);
        for (const T* cache : {t_.k_cache, t_.v_cache})
            for (int64_t t = 0; t < held; t++)
                for (int64_t d = 0; d < s_.dim; d += Fetch<T>::LINE) touch(cache + at_[t] + task.head * s_.dim + d);
    }

    // see(chunk, positions held, heads counted from the task's first, what to fetch meanwhile) for each. `pulses` is how often
    // that is done for a head and chunk, 0: never; `next`, if not null, is what this thread will most likely do after that.
    template <class See>
    void run(const Task& task, const Task* next, int64_t pulses, const See& see) {
        int64_t held = look(g_, task.first, at_);
        for (int64_t chunk = task.first; chunk < task.last; chunk++) {
            const bool more = chunk + 1 < task.last;
            const int64_t held_next = more ? look(g_, chunk + 1, next_) : next ? look(*next->group, next->first, next_) : 0;
            for (int64_t i = 0; i < task.heads; i += together_) {
                const Range heads(i, std::min(task.heads, i + together_));
                const bool same = heads.end < task.heads;
                const int64_t first = same ? task.head + heads.end : more || !next ? task.head : next->head;
                const int64_t left = same ? task.heads - heads.end : more || !next ? task.heads : next->heads;
                const int64_t count = std::min(together_, left);
                Fetch<T> ahead(t_.k_cache + first * s_.dim, t_.v_cache + first * s_.dim, same ? at_ : next_,
                            pulses == 0 ? 0 : same ? held : held_next, count * s_.dim, std::max<int64_t>(1, pulses));
                see(chunk, held, heads, ahead);
            }
            std::copy(next_, next_ + KEYS, at_);
            held = held_next;
        }
    }

    const int64_t* at() const { return at_; }  // where the caches hold the chunk that is seen

private:
    int64_t look(const Group& group, int64_t chunk, int64_t* at) const { return find(t_, s_, group, chunk, KEYS, at); }

    const Tensors<T>& t_;
    const Shape& s_;
    const Group& g_;
    const int64_t together_;
    int64_t at_[KEYS], next_[KEYS];
};

}  // namespace
}  // namespace aril
