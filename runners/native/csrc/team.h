// A team of threads that computes one parallel region at a time, and how its members share work.
//
// The caller of run() is member 0; the others sleep between regions. All members walk through the same stages. A stage
// ends when its pieces are done, not when all members have come: one that the system gives no core delays nobody unless
// it holds a piece, and finds the stages that it missed empty. Waiting spins briefly and then sleeps in the kernel.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
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
        is_ended_ = true;
        region_.fetch_add(1, std::memory_order_release);
        region_.notify_all();
        for (std::thread& thread : threads_) thread.join();
    }
    int size() const { return size_; }

    // What one member knows of a region: which stage it is in.
    class Member {
      public:
        // Called by all members alike: they claim pieces of [0, total) until none is left, and call body(begin, end) for
        // each. Returns when all pieces are done, by whomever.
        template <class Body>
        void share(int total, int piece, Body&& body) {
            if (team_.size_ == 1) {
                if (total > 0) body(0, total);
                return;
            }
            Stage& stage = team_.stages_[stage_++];
            int done = 0;
            for (;;) {
                const int begin = stage.next.fetch_add(piece, std::memory_order_relaxed);
                if (begin >= total) break;
                const int end = std::min(begin + piece, total);
                body(begin, end);
                done += end - begin;
            }
            if (done > 0 && stage.done.fetch_add(done, std::memory_order_acq_rel) + done == total) {
                stage.done.notify_all();
            }
            for (int so_far; (so_far = stage.done.load(std::memory_order_acquire)) < total;) {
                wait_while(stage.done, so_far);
            }
        }

        // The same in pieces small enough to balance the load, and large enough to claim seldom.
        template <class Body>
        void share(int total, Body&& body) {
            share(total, std::max(1, total / (PIECES_PER_MEMBER * team_.size_)), body);
        }

        int team_size() const { return team_.size_; }

      private:
        friend class Team;
        explicit Member(Team& team) : team_(team) {}
        Team& team_;
        int stage_ = 0;
    };

    // Calls body(Member&) on every member that finds the time, member 0 for certain; returns when all stages are done and
    // nobody is inside. The body has at most `stages` stages, and must not throw.
    template <class Body>
    void run(int stages, Body&& body) {
        if (pin_ && !is_caller_pinned_) is_caller_pinned_ = pin_to_core(0);
        Member me(*this);
        if (size_ == 1) return body(me);
        open(stages);
        argument_ = &body;
        work_ = [](void* argument, Member& member) { (*static_cast<std::remove_reference_t<Body>*>(argument))(member); };
        gate_.store(OPEN, std::memory_order_release);
        region_.fetch_add(1, std::memory_order_release);
        region_.notify_all();
        body(me);
        close();
    }

  private:
    struct alignas(64) Stage {
        std::atomic<int> next{0};  // first piece that nobody has claimed
        std::atomic<int> done{0};
    };

    static constexpr int PIECES_PER_MEMBER = 8;
    static constexpr int SPINS = 2000;
    static constexpr uint32_t OPEN = 1u << 31;  // of gate_, whose lower bits count the members inside

    void open(int stages) {
        if (static_cast<int>(stages_.size()) < stages) stages_ = std::vector<Stage>(stages);
        for (int i = 0; i < stages; ++i) {
            stages_[i].next.store(0, std::memory_order_relaxed);
            stages_[i].done.store(0, std::memory_order_relaxed);
        }
    }

    // Lets nobody in any more, and waits for those inside.
    void close() {
        uint32_t state = gate_.fetch_and(~OPEN, std::memory_order_acq_rel) & ~OPEN;
        while (state != 0) {
            wait_while(gate_, state);
            state = gate_.load(std::memory_order_acquire);
        }
    }

    bool enter() {
        uint32_t state = gate_.load(std::memory_order_acquire);
        while (state & OPEN) {
            if (gate_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) return true;
        }
        return false;
    }

    void leave() {
        if (gate_.fetch_sub(1, std::memory_order_acq_rel) == 1) gate_.notify_all();
    }

    void serve(int member) {
        if (pin_) pin_to_core(member);
        for (uint32_t seen = 0;;) {
            wait_while(region_, seen);
            seen = region_.load(std::memory_order_acquire);
            if (is_ended_) return;
            if (!enter()) continue;
            Member me(*this);
            work_(argument_, me);
            leave();
        }
    }

    template <class T>
    static void wait_while(std::atomic<T>& value, T old) {
        for (int i = 0; i < SPINS; ++i) {
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
    std::vector<Stage> stages_;
    void* argument_ = nullptr;
    void (*work_)(void*, Member&) = nullptr;
    std::atomic<bool> is_ended_{false};
    alignas(64) std::atomic<uint32_t> region_{0};
    alignas(64) std::atomic<uint32_t> gate_{0};
};

}  // namespace hr
