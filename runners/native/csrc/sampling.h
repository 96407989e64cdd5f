// Chooses the next token of each row from its logits: what runners/sampler.py does, in its order and with its roundings.
#pragma once

#include <cstdint>

#include "team.h"

extern "C" {

// How one row is sampled. Pointers may be null where their count is 0.
struct hr_row_sampling {
    float temperature;  // below GREEDY_BELOW: greedy
    float min_p;        // 0: off
    double top_p;       // 1: off
    int32_t top_k;      // 0: off
    int32_t has_changes;  // whether any of what follows `seed` applies
    uint64_t seed;
    const int32_t* token_ids;  // (num_ids,) prompt and output so far
    int32_t num_ids, num_prompt;
    const int64_t* allowed;  // (num_allowed,); num_allowed -1: all
    int64_t num_allowed;
    const int64_t* masked;  // (num_masked,) bad words of one token, and those completed by this one
    int64_t num_masked;
    const int64_t* stops;  // (num_stops,) masked before min_tokens of output
    int64_t num_stops;
    const int64_t* bias_ids;  // (num_bias,)
    const float* bias;
    int64_t num_bias;
    int32_t min_tokens;
    float repetition, presence, frequency;
};

// Outcomes of a row.
enum hr_outcome : int32_t { HR_NOT_SAMPLED = -1, HR_SAMPLED, HR_NOT_A_NUMBER, HR_INFINITE, HR_NOTHING, HR_NOTHING_LEFT };

}  // extern "C"

namespace hr {

// rows: (count,) into `sampling`; logits (count, vocab). token_ids, outcomes: (count,).
void sample(Team& team, const float* logits, int vocab, const hr_row_sampling* sampling, const int32_t* rows, int count,
            int32_t* token_ids, int32_t* outcomes);

// What a Logprobs message says of one position each. token_ids (count,): what is reported. wanted: (count,) alternatives,
// negative: none of it. ids, values: (count, 1 + most), the reported token first; widths, ranks: (count,).
void report(Team& team, const float* logits, int vocab, const int32_t* token_ids, const int32_t* wanted, int count,
            int most, int32_t* widths, int32_t* ranks, int32_t* ids, float* values);

}  // namespace hr
