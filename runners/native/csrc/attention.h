// Attention over a paged K/V cache.
#pragma once

#include "cache.h"
#include "memory.h"
#include "team.h"

namespace hr {

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
