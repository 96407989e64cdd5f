#include "rows.h"

#include <algorithm>
#include <stdexcept>

namespace hr {

void PersistentBatch::advance(const int32_t* rows, const int32_t* asked, int count, float* logits, int32_t* token_ids,
                              int32_t* outcomes) {
    clear();
    std::fill_n(outcomes, count, HR_NOT_SAMPLED);
    int longest = 0;
    for (int i = 0; i < count; ++i) {
        const int row = rows[i];
        if (row < 0 || row >= all_.max_rows) throw std::invalid_argument("a row is out of range");
        const int begin = all_.num_computed[row], end = std::min(begin + asked[i], all_.num_ids[row]);
        if (begin >= end) continue;
        take(row, begin, end);
        longest = std::max(longest, end);
        if (end < all_.num_ids[row]) continue;
        if (end >= all_.token_stride) throw std::invalid_argument("a row has no room for another token");
        logit_tokens_.push_back(static_cast<int32_t>(token_ids_.size()) - 1);
        sampling_.push_back(row);
        places_.push_back(i);
    }
    if (rows_.empty()) return;
    const int width = (longest - 1) / all_.block_size + 1;
    take_tables(width);
    engine_.step(batch(logits, width));
    for (size_t i = 0; i < rows_.size(); ++i) all_.num_computed[rows_[i]] += starts_[i + 1] - starts_[i];
    append(logits, token_ids, outcomes);
}

void PersistentBatch::append(const float* logits, int32_t* token_ids, int32_t* outcomes) {
    const int count = static_cast<int>(sampling_.size());
    if (count == 0) return;
    sampled_.resize(count);
    outcomes_.resize(count);
    for (const int row : sampling_) {
        all_.sampling[row].num_ids = all_.num_ids[row];
        all_.sampling[row].num_prompt = all_.num_prompt[row];
    }
    sample(team_, logits, engine_.vocab(), all_.sampling, sampling_.data(), count, sampled_.data(), outcomes_.data());
    for (int i = 0; i < count; ++i) {
        const int row = sampling_[i];
        outcomes[places_[i]] = outcomes_[i];
        if (outcomes_[i] != HR_SAMPLED) continue;
        token_ids[places_[i]] = sampled_[i];
        all_.token_ids[static_cast<size_t>(row) * all_.token_stride + all_.num_ids[row]++] = sampled_[i];
    }
}

void PersistentBatch::clear() {
    for (auto* column : {&rows_, &token_ids_, &positions_, &logit_tokens_, &sampling_, &places_}) column->clear();
    starts_.assign(1, 0);
    slots_.resize(all_.num_groups);
    tables_.resize(all_.num_groups);
    for (auto& slots : slots_) slots.clear();
    for (auto& tables : tables_) tables.clear();
    slots_of_.clear();
    tables_of_.clear();
}

void PersistentBatch::take(int row, int begin, int end) {
    const int32_t* ids = all_.token_ids + static_cast<size_t>(row) * all_.token_stride;
    rows_.push_back(row);
    token_ids_.insert(token_ids_.end(), ids + begin, ids + end);
    starts_.push_back(static_cast<int32_t>(token_ids_.size()));
    for (int position = begin; position < end; ++position) positions_.push_back(position);
    for (int group = 0; group < all_.num_groups; ++group) {
        const int32_t* blocks = table(group, row);
        for (int position = begin; position < end; ++position) {
            const int64_t block = blocks[position / all_.block_size];
            slots_[group].push_back(block * all_.block_size + position % all_.block_size);
        }
    }
}

void PersistentBatch::take_tables(int width) {
    for (int group = 0; group < all_.num_groups; ++group) {
        for (const int row : rows_) {
            const int32_t* blocks = table(group, row);
            tables_[group].insert(tables_[group].end(), blocks, blocks + width);
        }
        slots_of_.push_back(slots_[group].data());
        tables_of_.push_back(tables_[group].data());
    }
}

hr_batch PersistentBatch::batch(float* logits, int width) {
    hr_batch made{};
    made.num_tokens = static_cast<int32_t>(token_ids_.size());
    made.num_rows = static_cast<int32_t>(rows_.size());
    made.num_logits = static_cast<int32_t>(logit_tokens_.size());
    made.token_ids = token_ids_.data();
    made.positions = positions_.data();
    made.starts = starts_.data();
    made.slots = slots_of_.data();
    made.tables = tables_of_.data();
    made.table_width = width;
    made.logit_tokens = logit_tokens_.data();
    made.logits = logits;
    return made;
}

}  // namespace hr
