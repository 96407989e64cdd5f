// A team of threads that computes one parallel region at a time, and how its members share work.
//
// The caller of run() is member 0; the others sleep between regions. All members walk through the same stages. Of each,
// every member has a part, which it works through in order, so that it reads on in memory where it was; then it helps
// the others from the ends of theirs. A stage ends when its pieces are done, not when all members have come: one that
// the system gives no core delays nobody unless it holds a piece, and finds the stages that it missed empty. Waiting
// spins briefly and then sleeps in the kernel.
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

    static constexpr int PIECES_PER_MEMBER = 8;

    // What one member knows of a region: which stage it is in.
    class Member {
      public:
        // Called by all members alike: they take pieces of [0, total) until none is left, and call body(begin, end) for
        // each. Returns when all pieces are done, by whomever.
        template <class Body>
        void share(int total, int piece, Body&& body) {
            if (team_.size_ == 1) {
                if (total > 0) body(0, total);
                return;
            }
            const int stage = stage_++, size = team_.size_;
            int count = 0;
            for (int i = 0; i < size; ++i) {
                const int64_t owner = (index_ + i) % size;
                Part& part = team_.parts_[stage * size + owner];
                count += part.work_off(total * owner / size, total * (owner + 1) / size, piece, i == 0, body);
            }
            std::atomic<int>& done = team_.stages_[stage].done;
            if (count > 0 && done.fetch_add(count, std::memory_order_acq_rel) + count == total) done.notify_all();
            for (int so_far; (so_far = done.load(std::memory_order_acquire)) < total;) wait_while(done, so_far);
        }

        // The same in pieces small enough to balance the load, and large enough to claim seldom.
        template <class Body>
        void share(int total, Body&& body) {
            share(total, piece(total), body);
        }

        int piece(int total) const { return std::max(1, total / (PIECES_PER_MEMBER * team_.size_)); }

        int team_size() const { return team_.size_; }

      private:
        friend class Team;
        Member(Team& team, int index) : team_(team), index_(index) {}
        Team& team_;
        const int index_;
        int stage_ = 0;
    };

    // Calls body(Member&) on every member that finds the time, member 0 for certain; returns when all stages are done and
    // nobody is inside. The body has at most `stages` stages, and must not throw.
    template <class Body>
    void run(int stages, Body&& body) {
        if (pin_ && !is_caller_pinned_) is_caller_pinned_ = pin_to_core(0);
        Member me(*this, 0);
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
        std::atomic<int> done{0};
    };

    // One member's part of a stage: how much of it was taken from its beginning, by that member, and in the upper half how
    // much from its end, by others. Each may be more than there was.
    struct alignas(64) Part {
        std::atomic<uint64_t> taken{0};

        // Does pieces of [begin, end) until none is left; returns how much that was.
        template <class Body>
        int work_off(int64_t begin, int64_t end, int piece, bool is_own, Body&& body) {
            const uint64_t step = is_own ? piece : static_cast<uint64_t>(piece) << 32;
            int count = 0;
            for (;;) {
                const uint64_t before = taken.fetch_add(step, std::memory_order_relaxed);
                const int64_t front = before & 0xFFFFFFFF, back = before >> 32, left = end - begin - front - back;
                if (left <= 0) return count;
                const int64_t size = std::min<int64_t>(piece, left), at = is_own ? begin + front : end - back - size;
                body(static_cast<int>(at), static_cast<int>(at + size));
                count += static_cast<int>(size);
            }
        }
    };

    static constexpr int SPINS = 2000;
    static constexpr uint32_t OPEN = 1u << 31;  // of gate_, whose lower bits count the members inside

    void open(int stages) {
        if (static_cast<int>(stages_.size()) < stages) {
            stages_ = std::vector<Stage>(stages);
            parts_ = std::vector<Part>(stages * size_);
        }
        for (int i = 0; i < stages; ++i) stages_[i].done.store(0, std::memory_order_relaxed);
        for (int i = 0; i < stages * size_; ++i) parts_[i].taken.store(0, std::memory_order_relaxed);
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
            Member me(*this, member);
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
    std::vector<Part> parts_;  // by stage and member
    void* argument_ = nullptr;
    void (*work_)(void*, Member&) = nullptr;
    std::atomic<bool> is_ended_{false};
    alignas(64) std::atomic<uint32_t> region_{0};
    alignas(64) std::atomic<uint32_t> gate_{0};
};

}  // namespace hr
