// Attention over a paged K/V cache, and the cache itself.
//
// A block of one head holds K as [head_dim][width] and V as [block_size][head_dim], side by side; `width` is the block
// size rounded up to whole vectors. With K that way round, scores of a block's tokens are vectors: nothing is ever
// added across lanes. Numbers are floats or f16. The blocks of all layers of a KV group lie side by side, so that few
// tokens use few pages.
#pragma once

#include <cstdint>

#include "memory.h"
#include "team.h"

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

// What one layer's attention of a step reads.
struct AttentionInput {
    CacheShape shape;
    const uint8_t* cache;      // this layer's part of block 0
    const float* queries;      // rows of `query_stride` floats, num_query_heads * head_dim of them used, scaled
    int query_stride;
    int num_query_heads;
    int window;                // tokens a query sees, itself included; 0: all
    const int32_t* starts;     // (rows + 1,) where each row's tokens begin
    const int32_t* positions;  // of each token
    const int32_t* tables;     // (rows, table_stride)
    int table_stride;
    int num_rows;
    int tiles_per_unit;
};

// Called by all members of a region alike. out: (tokens, num_query_heads * head_dim). units: (num_rows + 1,) that all
// members share, from count_units.
void attend(Team::Member& me, const AttentionInput& in, const int32_t* units, float* out);

// How many tiles of queries a piece of work has, for so many threads. Reads the shape, heads and rows only.
int choose_tiles_per_unit(const AttentionInput& in, int team_size);

// Counts the pieces of work of each row, added up: units[r] come before row r. Reads tiles_per_unit too.
void count_units(const AttentionInput& in, int32_t* units);

}  // namespace hr
