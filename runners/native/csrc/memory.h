// Memory the kernels work in: aligned, zeroed, without constructors. Throws std::bad_alloc.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace hr {

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
            const size_t bytes = (count * sizeof(T) + 64 + 63) / 64 * 64;
            std::free(data_);
            count_ = 0;
            data_ = static_cast<T*>(std::aligned_alloc(64, bytes));
            if (data_ == nullptr) throw std::bad_alloc();
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

// A large zeroed region; the system gives it memory page by page, as it is touched.
class Region {
  public:
    explicit Region(size_t bytes) : bytes_((bytes + 64 + ALIGN - 1) / ALIGN * ALIGN) {
#if defined(__linux__)
        void* mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (mapped == MAP_FAILED) throw std::bad_alloc();
        madvise(mapped, bytes_, MADV_HUGEPAGE);
        data_ = static_cast<uint8_t*>(mapped);
#else
        data_ = static_cast<uint8_t*>(std::calloc(1, bytes_));
        if (data_ == nullptr) throw std::bad_alloc();
#endif
    }
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;
    ~Region() {
#if defined(__linux__)
        munmap(data_, bytes_);
#else
        std::free(data_);
#endif
    }
    uint8_t* get() const { return data_; }

  private:
    static constexpr size_t ALIGN = 4096;
    size_t bytes_;
    uint8_t* data_;
};

}  // namespace hr
