// What a model and a step are made of, as the C interface takes them. Mirrored in library.py, field by field.
#pragma once

#include "gemm.h"

extern "C" {

// A file's table of token embeddings, read row by row where it lies.
struct hr_embedding {
    const uint8_t* rows;
    int32_t format;
    float scale;  // what each row is multiplied by
};

// One kind of rotary positions.
struct hr_rotary {
    const float* frequencies;  // (head_dim / 2,) radians per position
    float scale;               // of cosines and sines
};

// Sizes and constants.
struct hr_model {
    int32_t num_layers, hidden, num_heads, num_kv_heads, head_dim, inner, vocab;
    int32_t gate;  // of hr::Gate
    int32_t mode;  // of hr::Mode
    float norm_eps;
    float query_scale;  // what dot products of queries and keys are multiplied by
    int32_t block_size;
    int32_t is_half_cache;
    int32_t num_groups, num_rotaries;
    const int32_t* num_blocks;  // (num_groups,) of the cache, the null block counted
    const hr_rotary* rotaries;  // (num_rotaries,)
    hr_embedding embedding;
    const float* norm;  // (hidden,)
    const hr::Matrix* head;
};

// One layer. Biases, q/k norms and post norms may be null.
struct hr_layer {
    const hr::Matrix *q, *k, *v, *o, *gate, *up, *down;
    const float *q_bias, *k_bias, *v_bias, *o_bias;
    const float *attention_norm, *feed_norm;            // (hidden,) of the inputs
    const float *post_attention_norm, *post_feed_norm;  // (hidden,) of the outputs
    const float *q_norm, *k_norm;                       // (head_dim,)
    int32_t window;                                     // 0: none
    int32_t group, rotary;
};

// One step on a flat token list: T tokens of R rows, row by row.
struct hr_batch {
    int32_t num_tokens, num_rows, num_logits;
    const int32_t* token_ids;      // (T,)
    const int32_t* positions;      // (T,)
    const int32_t* starts;         // (R + 1,)
    const int64_t* const* slots;   // per group (T,): block * block_size + offset
    const int32_t* const* tables;  // per group (R, table_width): block ids
    int32_t table_width;
    const int32_t* logit_tokens;  // (num_logits,) which tokens need logits
    float* logits;                // (num_logits, vocab)
};

}  // extern "C"
