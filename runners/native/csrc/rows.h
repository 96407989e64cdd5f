// The persistent batch: a step of some of its rows from their ids to their new tokens, in one call. What
// runners/batch.py and runners/drafts.py do in Python, for rows without drafts.
#pragma once

#include <vector>

#include "engine.h"
#include "sampling.h"

extern "C" {

// Columns of all rows: WorkerState's arrays, and how each row is sampled.
struct hr_rows {
    int32_t max_rows, num_groups, block_size;
    int32_t token_stride, table_stride;
    int32_t* token_ids;  // (max_rows, token_stride)
    int32_t* num_ids;
    const int32_t* num_prompt;
    int32_t* num_computed;
    const int32_t* tables;  // (num_groups, max_rows, table_stride)
    hr_row_sampling* sampling;
};

}  // extern "C"

namespace hr {

class PersistentBatch {
  public:
    // Copies the struct; what it points to must stay.
    PersistentBatch(Team& team, Engine& engine, const hr_rows& columns) : team_(team), engine_(engine), all_(columns) {}

    // Computes up to asked[i] tokens of rows[i], samples the rows that are at their end, and appends their tokens.
    // logits: room for (count, vocab). token_ids, outcomes: (count,), HR_NOT_SAMPLED for a row that isn't at its end.
    // Throws std::invalid_argument, std::bad_alloc.
    void advance(const int32_t* rows, const int32_t* asked, int count, float* logits, int32_t* token_ids, int32_t* outcomes);

  private:
    void clear();
    void take(int row, int begin, int end);
    void take_tables(int width);
    hr_batch batch(float* logits, int width);
    void append(const float* logits, int32_t* token_ids, int32_t* outcomes);
    const int32_t* table(int group, int row) const {
        return all_.tables + (static_cast<size_t>(group) * all_.max_rows + row) * all_.table_stride;
    }

    Team& team_;
    Engine& engine_;
    const hr_rows all_;
    // The step's flat batch.
    std::vector<int32_t> rows_, token_ids_, positions_, starts_, logit_tokens_;
    std::vector<std::vector<int64_t>> slots_;   // per group
    std::vector<std::vector<int32_t>> tables_;  // per group
    std::vector<const int64_t*> slots_of_;
    std::vector<const int32_t*> tables_of_;
    // Its rows that sample: which they are, where advance() was given them, and what came of it.
    std::vector<int32_t> sampling_, places_, sampled_, outcomes_;
};

}  // namespace hr
