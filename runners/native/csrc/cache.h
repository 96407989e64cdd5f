// The paged K/V cache.
//
// A block of one head holds K as [head_dim][width] and V as [block_size][head_dim], side by side; `width` is the block
// size rounded up to whole vectors. With K that way round, scores of a block's tokens are vectors: nothing is ever
// added across lanes. Numbers are floats or f16. The blocks of all layers of a KV group lie side by side, so that few
// tokens use few pages.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd.h"

namespace hr {

struct CacheShape {
    int num_heads;  // of K and V
    int head_dim;   // a multiple of LANES
    int block_size;
    bool is_half;
    int num_layers;  // of the KV group

    int width() const { return (block_size + LANES - 1) / LANES * LANES; }
    size_t k_size() const { return static_cast<size_t>(head_dim) * width(); }
    size_t head_size() const { return k_size() + static_cast<size_t>(head_dim) * block_size; }
    size_t layer_size() const { return head_size() * num_heads; }  // of a layer's block
    size_t stride() const { return layer_size() * num_layers; }    // from a layer's block to its next
    size_t element_bytes() const { return is_half ? sizeof(uint16_t) : sizeof(float); }
};

// Writes the K and V of one token of the layer that `cache` is about; k and v: (num_heads, head_dim).
void write_cache(const CacheShape& shape, uint8_t* cache, int64_t slot, const float* k, const float* v);

}  // namespace hr
