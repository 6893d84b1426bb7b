// One pool of threads for all kernels. Work is cut into tasks, and whoever is free takes one that is left: a thread that another
// program keeps from its core is not waited for unless it holds a task, and one that comes late finds nothing left to do.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace aril {

// Calls work(job) on the caller's thread and on up to `threads` - 1 others; returns when all that began have ended.
void run_together(int threads, void (*work)(void* job), void* job);

// Which thread of the pool this is, always the same; 0 for one that calls.
int thread_number();

constexpr int64_t MOST_PARTS = 64;

// Into how many tasks so many things fall: of at most `most`, and where there are enough as many for each thread, at least `each`.
inline int64_t tasks_of(int64_t things, int64_t most, int64_t threads, int64_t each) {
    const int64_t for_each = std::max((things + most * threads - 1) / (most * threads), each);
    return std::min(things, for_each * threads);
}

// Whether nobody was before it: share() begins a part at i.
inline bool begins_part(int64_t threads, int64_t count, int64_t i) {
    const int64_t parts = std::min({threads, count, MOST_PARTS}), part = (i * parts + count - 1) / count;
    return count * part / parts == i;
}

// run(i) for each i < count on up to `threads` threads. Each has a part of its own, the same in each call, so that what it wrote
// is still in its cache when it reads on, and takes from the others' when that is done; of each part in rising order.
template <class Run>
void share(int64_t threads, int64_t count, Run run) {
    if (threads <= 1 || count <= 1) {
        for (int64_t i = 0; i < count; i++) run(i);
        return;
    }
    struct alignas(64) Part {
        std::atomic<int64_t> next;
        int64_t end;
    };
    struct Job {
        Run& run;
        const int64_t num_parts;
        Part parts[MOST_PARTS];
    } job{run, std::min({threads, count, MOST_PARTS}), {}};
    for (int64_t i = 0; i < job.num_parts; i++) {
        job.parts[i].next.store(count * i / job.num_parts, std::memory_order_relaxed);
        job.parts[i].end = count * (i + 1) / job.num_parts;
    }
    const auto work = [](void* shared) {
        Job& job = *static_cast<Job*>(shared);
        for (int64_t i = 0, mine = thread_number(); i < job.num_parts; i++) {
            Part& part = job.parts[(mine + i) % job.num_parts];
            for (int64_t at; (at = part.next.fetch_add(1, std::memory_order_relaxed)) < part.end;) job.run(at);
        }
    };
    run_together(int(threads < count ? threads : count), work, &job);
}

}  // namespace aril
