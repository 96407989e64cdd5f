#include "cache.h"

namespace hr {

namespace {

template <class T>
void write_token(const CacheShape& shape, T* cache, int64_t slot, const float* k, const float* v, void (*put)(T*, const float*, int, int)) {
    const int64_t block = slot / shape.block_size, offset = slot % shape.block_size;
    T* head = cache + shape.stride() * block;
    for (int h = 0; h < shape.num_heads; ++h, head += shape.head_size(), k += shape.head_dim, v += shape.head_dim) {
        put(head + offset, k, shape.head_dim, shape.width());
        put(head + shape.k_size() + offset * shape.head_dim, v, shape.head_dim, 1);
    }
}

void put_floats(float* to, const float* from, int count, int stride) {
    for (int i = 0; i < count; ++i) to[static_cast<size_t>(i) * stride] = from[i];
}

void put_halves(uint16_t* to, const float* from, int count, int stride) {
    for (int i = 0; i < count; i += LANES) {
        uint16_t eight[LANES];
        store_f16(eight, load(from + i));
        for (int j = 0; j < LANES; ++j) to[static_cast<size_t>(i + j) * stride] = eight[j];
    }
}

}  // namespace

void write_cache(const CacheShape& shape, uint8_t* cache, int64_t slot, const float* k, const float* v) {
    if (shape.is_half) {
        write_token(shape, reinterpret_cast<uint16_t*>(cache), slot, k, v, put_halves);
    } else {
        write_token(shape, reinterpret_cast<float*>(cache), slot, k, v, put_floats);
    }
}

}  // namespace hr
