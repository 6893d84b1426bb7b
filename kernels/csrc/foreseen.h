// What the next call will read, brought into the cache by the products of this one: those keep the processor busy and leave memory
// idle, and afterwards the processor would wait for memory. (SmolLM2, 16 rows on 8 adapters of rank 16, both cores of Zen 3: the
// adapters add 10% to a step instead of 15 to 22.)
#pragma once

#include <vector>

#include "tile.h"

namespace aril {

class Foreseen {
public:
    struct Run {
        const char *at, *end;
    };

    void clear() {
        runs_.clear();
        bytes_ = 0;
    }

    // In the order in which it will be read.
    void add(const void* at, int64_t bytes) {
        const char* begin = static_cast<const char*>(at);
        const bool goes_on = !runs_.empty() && begin >= runs_.back().end && begin - runs_.back().end < LINE;
        if (!goes_on) runs_.push_back({begin, begin});
        runs_.back().end = begin + bytes;
        bytes_ += bytes;
    }

    int64_t bytes() const { return bytes_; }
    const std::vector<Run>& runs() const { return runs_; }

private:
    static constexpr int64_t LINE = 64;

    std::vector<Run> runs_;
    int64_t bytes_ = 0;
};

// What the calling thread foresees.
inline Foreseen& foreseen() {
    static thread_local Foreseen found;
    return found;
}

// Some bytes of it, which one thread brings over so many steps of its tiles.
class Bringer {
public:
    constexpr Bringer() = default;

    Bringer(const Foreseen& all, Range bytes, int64_t steps) : left_(bytes.end - bytes.begin), step_((left_ + steps - 1) / steps) {
        if (left_ <= 0) return;
        for (run_ = all.runs().data(); bytes.begin >= run_->end - run_->at; run_++) bytes.begin -= run_->end - run_->at;
        at_ = run_->at + bytes.begin;
    }

    // Its share of so many steps; from one run to the next it may bring a little that nobody asked for.
    Ahead take(int64_t steps) {
        if (left_ <= 0) return {nullptr, 0};
        if (at_ >= run_->end) at_ = (++run_)->at;
        const Ahead some{at_, step_};
        const int64_t bytes = std::min(steps * step_, run_->end - at_);
        at_ += bytes, left_ -= bytes;
        return some;
    }

private:
    const Foreseen::Run* run_ = nullptr;
    const char* at_ = nullptr;
    int64_t left_ = 0, step_ = 0;
};

inline thread_local Bringer bringer;  // of this thread in its task

}  // namespace aril
