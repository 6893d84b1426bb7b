// The pool behind share(): threads that spin for a moment after a job, because the next one is often microseconds away, then
// offer their core to others, and sleep when nothing comes.
#include "pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <mutex>

namespace aril {
namespace {

constexpr int SPINS = 2000;  // looks for a job before the core is offered: about 40 us
constexpr int YIELDS = 20;   // offers before sleep

// The job in one word: its number, whether it may still be joined, how many may, and how many have and are at it.
constexpr uint64_t JOINED = 1, ROOM = 1 << 16, OPEN = uint64_t(1) << 31, NUMBER = uint64_t(1) << 32;
constexpr uint64_t ALL_JOINED = ROOM - 1, ALL_ROOM = OPEN - ROOM;

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

thread_local int number_of_this = 0;

class Pool {
public:
    void run(int threads, void (*work)(void*), void* job) {
        const std::unique_lock<std::mutex> mine(busy_, std::try_to_lock);
        if (!mine || threads <= 1) return work(job);  // its threads are at another caller's job
        while (started_ < threads - 1) start();
        work_ = work, job_ = job;
        word_.store((number_ += NUMBER) | OPEN | uint64_t(threads - 1) * ROOM, std::memory_order_seq_cst);
        call_.fetch_add(1, std::memory_order_seq_cst);
        if (asleep_.load(std::memory_order_seq_cst) > 0) syscall(SYS_futex, &call_, FUTEX_WAKE_PRIVATE, threads - 1, 0, 0, 0);
        work(job);
        word_.fetch_and(~OPEN, std::memory_order_acq_rel);
        for (int looks = 0; word_.load(std::memory_order_acquire) & ALL_JOINED; looks++) looks < SPINS ? relax() : void(sched_yield());
    }

private:
    void start() {
        pthread_t thread;
        const auto body = [](void* pool) -> void* {
            number_of_this = ++static_cast<Pool*>(pool)->numbered_;
            static_cast<Pool*>(pool)->serve();
            return nullptr;
        };
        if (pthread_create(&thread, nullptr, body, this) == 0) pthread_detach(thread);
        started_++;  // also where the system gives no more threads: those that there are do the work
    }

    [[noreturn]] void serve() {
        for (uint64_t last = 0;;) {
            const uint32_t call = call_.load(std::memory_order_seq_cst);
            const uint64_t number = joined(last);
            if (number == last) wait(call);
            if (number == last) continue;
            last = number;
            work_(job_);
            word_.fetch_sub(JOINED, std::memory_order_acq_rel);
        }
    }

    // The number of the job that was joined, or `last` where there is none but that.
    uint64_t joined(uint64_t last) {
        uint64_t word = word_.load(std::memory_order_acquire);
        while ((word & OPEN) && (word & ALL_ROOM) && word / NUMBER != last)
            if (word_.compare_exchange_weak(word, word - ROOM + JOINED, std::memory_order_acq_rel)) return word / NUMBER;
        return last;
    }

    void wait(uint32_t call) {
        for (int looks = 0; looks < SPINS + YIELDS; looks++) {
            if (call_.load(std::memory_order_acquire) != call) return;
            looks < SPINS ? relax() : void(sched_yield());
        }
        asleep_.fetch_add(1, std::memory_order_seq_cst);
        syscall(SYS_futex, &call_, FUTEX_WAIT_PRIVATE, call, 0, 0, 0);
        asleep_.fetch_sub(1, std::memory_order_seq_cst);
    }

    std::mutex busy_;
    int started_ = 0;
    std::atomic<int> numbered_{0};
    uint64_t number_ = 0;
    void (*work_)(void*) = nullptr;
    void* job_ = nullptr;
    alignas(64) std::atomic<uint64_t> word_{0};
    alignas(64) std::atomic<uint32_t> call_{0};
    std::atomic<int> asleep_{0};
};

// Never destroyed, for its threads outlive main; a forked child has none of them and begins anew.
Pool* pool = nullptr;
std::once_flag made;

Pool& the_pool() {
    std::call_once(made, [] {
        pool = new Pool;
        pthread_atfork(nullptr, nullptr, [] { pool = new Pool; });
    });
    return *pool;
}

}  // namespace

int thread_number() { return number_of_this; }

void run_together(int threads, void (*work)(void*), void* job) { the_pool().run(threads, work, job); }

}  // namespace aril
