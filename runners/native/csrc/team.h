// A team of threads that computes one parallel region at a time, and how its members share work.
//
// The caller of run() is member 0; the others sleep between regions. Waiting spins briefly and then sleeps in the
// kernel, so that a machine with other work to do gets its cores.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "simd.h"

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace hr {

class Team {
  public:
    // pin: bind each member to a core of its own, of those the process may use.
    Team(int size, bool pin) : size_(size), pin_(pin) {
        for (int member = 1; member < size; ++member) threads_.emplace_back([this, member] { serve(member); });
    }
    ~Team() {
        work_ = nullptr;
        start();
        for (std::thread& thread : threads_) thread.join();
    }
    int size() const { return size_; }

    // Calls body(member) on every member and returns when all are done. The body must not throw.
    template <class Body>
    void run(Body&& body) {
        if (pin_ && !is_caller_pinned_) is_caller_pinned_ = pin_to_core(0);
        argument_ = &body;
        work_ = [](void* argument, int member) { (*static_cast<std::remove_reference_t<Body>*>(argument))(member); };
        next_.store(0, std::memory_order_relaxed);
        start();
        work_(argument_, 0);
        barrier();
    }

    // Inside a region, called by all members alike: members claim pieces of [0, total) until none is left, and call
    // body(begin, end) for each. Returns when all pieces are done.
    template <class Body>
    void share(int total, int piece, Body&& body) {
        for (;;) {
            const int begin = next_.fetch_add(piece, std::memory_order_relaxed);
            if (begin >= total) break;
            body(begin, std::min(begin + piece, total));
        }
        barrier();
    }

    // The same in pieces small enough to balance the load, and large enough to claim seldom.
    template <class Body>
    void share(int total, Body&& body) {
        share(total, std::max(1, total / (PIECES_PER_MEMBER * size_)), body);
    }

    // Waits until all members have come here.
    void barrier() {
        if (size_ == 1) {
            next_.store(0, std::memory_order_relaxed);
            return;
        }
        const uint32_t turn = turn_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
            arrived_.store(0, std::memory_order_relaxed);
            next_.store(0, std::memory_order_relaxed);
            turn_.store(turn + 1, std::memory_order_release);
            turn_.notify_all();
        } else {
            wait_while(turn_, turn, SPINS_IN_REGION);
        }
    }

  private:
    static constexpr int PIECES_PER_MEMBER = 8;
    static constexpr int SPINS_IN_REGION = 2000;
    static constexpr int SPINS_BETWEEN_REGIONS = 2000;

    void start() {
        region_.fetch_add(1, std::memory_order_release);
        region_.notify_all();
    }

    void serve(int member) {
        if (pin_) pin_to_core(member);
        for (uint32_t region = 0;; ++region) {
            wait_while(region_, region, SPINS_BETWEEN_REGIONS);
            if (work_ == nullptr) return;
            work_(argument_, member);
            barrier();
        }
    }

    static void wait_while(std::atomic<uint32_t>& value, uint32_t old, int spins) {
        for (int i = 0; i < spins; ++i) {
            if (value.load(std::memory_order_acquire) != old) return;
            pause();
        }
        value.wait(old, std::memory_order_acquire);
    }

    static bool pin_to_core(int member) {
#if defined(__linux__)
        static const cpu_set_t allowed = [] {
            cpu_set_t set;
            CPU_ZERO(&set);
            sched_getaffinity(0, sizeof set, &set);
            return set;
        }();
        for (int core = 0, seen = 0; core < CPU_SETSIZE; ++core) {
            if (!CPU_ISSET(core, &allowed) || seen++ != member) continue;
            cpu_set_t mine;
            CPU_ZERO(&mine);
            CPU_SET(core, &mine);
            pthread_setaffinity_np(pthread_self(), sizeof mine, &mine);
            break;
        }
#endif
        return true;
    }

    const int size_;
    const bool pin_;
    bool is_caller_pinned_ = false;
    std::vector<std::thread> threads_;
    void* argument_ = nullptr;
    void (*work_)(void*, int) = nullptr;
    alignas(64) std::atomic<uint32_t> region_{0};
    alignas(64) std::atomic<uint32_t> turn_{0};
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<int> next_{0};
};

}  // namespace hr
