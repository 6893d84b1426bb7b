// One pool of threads for all kernels. Work is cut into tasks, and whoever is free takes the next one: a thread that another
// program keeps from its core is not waited for unless it holds a task, and one that comes late finds nothing left to do.
#pragma once

#include <atomic>
#include <cstdint>

namespace aril {

// Calls work(job) on the caller's thread and on up to `threads` - 1 others; returns when all that began have ended.
void run_together(int threads, void (*work)(void* job), void* job);

// run(i) for each i < count, in rising order but for what runs at the same time, on up to `threads` threads.
template <class Run>
void share(int64_t threads, int64_t count, Run run) {
    if (threads <= 1 || count <= 1) {
        for (int64_t i = 0; i < count; i++) run(i);
        return;
    }
    struct Job {
        Run& run;
        const int64_t count;
        alignas(64) std::atomic<int64_t> next{0};
    } job{run, count};
    const auto work = [](void* shared) {
        Job& job = *static_cast<Job*>(shared);
        for (int64_t i; (i = job.next.fetch_add(1, std::memory_order_relaxed)) < job.count;) job.run(i);
    };
    run_together(int(threads < count ? threads : count), work, &job);
}

}  // namespace aril
