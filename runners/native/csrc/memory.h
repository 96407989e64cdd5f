// Memory the kernels work in: aligned, zeroed, without constructors. Throws std::bad_alloc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace hr {

// Pages of 4 KB cost a walk through the page tables each, which takes as long as reading them.
constexpr size_t HUGE_PAGE = 2u << 20;

inline void ask_for_huge_pages([[maybe_unused]] void* from, [[maybe_unused]] size_t bytes) {
#if defined(__linux__)
    madvise(from, bytes, MADV_HUGEPAGE);
#endif
}

// Grows as needed and never shrinks; growing loses what it held.
template <class T>
class Buffer {
  public:
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { std::free(data_); }

    // Returns room for so many elements, plus a vector's width beyond them.
    T* need(size_t count) {
        if (count > count_) {
            const size_t wanted = count * sizeof(T) + 64, unit = wanted < HUGE_PAGE ? 64 : HUGE_PAGE;
            const size_t bytes = (wanted + unit - 1) / unit * unit;
            std::free(data_);
            count_ = 0;
            data_ = static_cast<T*>(std::aligned_alloc(unit, bytes));
            if (data_ == nullptr) throw std::bad_alloc();
            if (unit == HUGE_PAGE) ask_for_huge_pages(data_, bytes);
            std::memset(data_, 0, bytes);
            count_ = count;
        }
        return data_;
    }
    T* get() const { return data_; }

  private:
    T* data_ = nullptr;
    size_t count_ = 0;
};

// Zeroed memory from the system, which gives it page by page, as it is touched.
class Mapping {
  public:
    explicit Mapping(size_t bytes) : bytes_(bytes + HUGE_PAGE) {
#if defined(__linux__)
        void* mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (mapped == MAP_FAILED) throw std::bad_alloc();
        ask_for_huge_pages(mapped, bytes_);
#else
        void* mapped = std::calloc(1, bytes_);
        if (mapped == nullptr) throw std::bad_alloc();
#endif
        data_ = static_cast<uint8_t*>(mapped);
    }
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    ~Mapping() {
#if defined(__linux__)
        munmap(data_, bytes_);
#else
        std::free(data_);
#endif
    }
    // Where the first huge page begins: the bytes asked for are there from here on.
    uint8_t* get() const { return data_ + (HUGE_PAGE - reinterpret_cast<uintptr_t>(data_) % HUGE_PAGE) % HUGE_PAGE; }

  private:
    size_t bytes_;
    uint8_t* data_;
};

// A zeroed region. Small ones share mappings, so that they share huge pages; a mapping lives as long as one of its regions.
class Region {
  public:
    explicit Region(size_t bytes) {
        bytes = (bytes + 64 + ALIGN - 1) / ALIGN * ALIGN;
        if (bytes >= SHARED_BYTES) {
            mapping_ = std::make_shared<Mapping>(bytes);
            data_ = mapping_->get();
            return;
        }
        static std::mutex lock;
        static std::weak_ptr<Mapping> latest;
        static size_t used = 0;
        const std::lock_guard held(lock);
        mapping_ = latest.lock();
        if (mapping_ == nullptr || used + bytes > SHARED_BYTES) {
            mapping_ = std::make_shared<Mapping>(SHARED_BYTES);
            latest = mapping_, used = 0;
        }
        data_ = mapping_->get() + used;
        used += bytes;
    }
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;
    uint8_t* get() const { return data_; }

  private:
    static constexpr size_t ALIGN = 4096;
    static constexpr size_t SHARED_BYTES = 16 * HUGE_PAGE;
    std::shared_ptr<Mapping> mapping_;
    uint8_t* data_;
};

}  // namespace hr
