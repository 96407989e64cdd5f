// "Likeliest" always means the highest logit, of equal ones the lowest id.
#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "memory.h"

namespace hr {

namespace {

constexpr float GREEDY_BELOW = 1e-5f;
constexpr int FIRST_NUCLEUS = 64;  // tokens that top-p tries first, and how many times more whenever they aren't enough
constexpr int GROWTH = 8;
constexpr int BLOCK = 64;  // weights that are added up before it is asked whether the random number lies among them
constexpr float MASKED = -INFINITY;

struct Scratch {
    Buffer<float> adjusted, weights;
    Buffer<int32_t> counts;  // of each id, all 0 between uses
    std::vector<int32_t> ids;
};

Scratch& scratch() {
    thread_local Scratch all;
    return all;
}

// A vector of [i, i + LANES), minus infinity from `count` on.
HR_INLINE floats load_some(const float* from, int i, int count) {
    if (i + LANES <= count) return load(from + i);
    float lane[LANES];
    for (int j = 0; j < LANES; ++j) lane[j] = i + j < count ? from[i + j] : MASKED;
    return load(lane);
}

// First place of the highest logit; a NaN counts as highest.
int best_of(const float* logits, int vocab) {
    floats peaks = set1(MASKED), poison = zero();
    for (int i = 0; i < vocab; i += LANES) {
        const floats v = load_some(logits, i, vocab);
        peaks = max_or_nan(v, peaks);  // a NaN in v gives way here, and shows in `poison`, as infinities do
        if (i + LANES <= vocab) poison = fmadd(v, zero(), poison);
    }
    const bool is_sound = sum(poison) == 0.0f && vocab % LANES == 0;
    for (int i = 0; i < vocab && !is_sound; ++i) {
        if (std::isnan(logits[i])) return i;
    }
    const float peak = highest(peaks);
    int i = 0;
    while (i + LANES <= vocab && !any_equal(load(logits + i), set1(peak))) i += LANES;
    while (i + 1 < vocab && logits[i] != peak) ++i;
    return i;
}

// Heap order: the least likely of those kept is on top.
struct Likelier {
    const float* logits;
    bool operator()(int32_t a, int32_t b) const {
        return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
    }
};

// Puts the `most` likeliest ids into `ids`, best first; none that is minus infinity.
void likeliest(const float* logits, int vocab, int most, std::vector<int32_t>& ids) {
    const Likelier likelier{logits};
    ids.clear();
    float limit = MASKED;  // of the least likely one kept, once there are enough
    for (int i = 0; i < vocab; i += LANES) {
        if (!any_above(load_some(logits, i, vocab), set1(limit))) continue;
        for (int j = i; j < std::min(i + LANES, vocab); ++j) {
            if (!(logits[j] > limit)) continue;
            if (static_cast<int>(ids.size()) == most) {
                std::pop_heap(ids.begin(), ids.end(), likelier);
                ids.back() = j;
            } else {
                ids.push_back(j);
            }
            std::push_heap(ids.begin(), ids.end(), likelier);
            if (static_cast<int>(ids.size()) == most) limit = logits[ids.front()];
        }
    }
    std::sort_heap(ids.begin(), ids.end(), likelier);
}

// Source: Salmon et al. 2011, section 3.3; see runners/philox.py.
double uniform(uint64_t seed, uint32_t position) {
    uint32_t counter[4] = {position, 0, 0, 0};
    uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
    for (int round = 0; round < 10; ++round) {
        const uint64_t first = static_cast<uint64_t>(counter[0]) * 0xD2511F53;
        const uint64_t second = static_cast<uint64_t>(counter[2]) * 0xCD9E8D57;
        const uint32_t next[4] = {static_cast<uint32_t>(second >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(second),
                                  static_cast<uint32_t>(first >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(first)};
        std::memcpy(counter, next, sizeof next);
        key[0] += 0x9E3779B9;
        key[1] += 0xBB67AE85;
    }
    return static_cast<double>((static_cast<uint64_t>(counter[0]) << 32 | counter[1]) >> 11) * 0x1p-53;
}

// Weights as shares of the likeliest one's: e^((logit - highest) / temperature), 0 below min_p.
void weigh(const float* logits, int count, float highest_logit, const hr_row_sampling& row, float* weights) {
    const floats peak = set1(highest_logit), temperature = set1(row.temperature), least = set1(row.min_p);
    for (int i = 0; i < count; i += LANES) {  // there is room for whole vectors of weights
        const floats weight = exp(div(sub(load_some(logits, i, count), peak), temperature));
        store(weights + i, zero_where_below(weight, least, weight));
    }
}

// First index at which the sum of weights exceeds this share of their whole.
int invert(const float* weights, int count, double number) {
    double total = 0;
    for (int i = 0; i < count; ++i) total += weights[i];
    const double wanted = number * total;
    double sum = 0;
    int last = 0;
    for (int i = 0; i < count; ++i) {
        sum += weights[i];
        if (sum > wanted) return i;
        if (weights[i] > 0) last = i;
    }
    return last;  // where rounding left none
}

// How many of these sorted weights it takes to reach so much.
int reach(const float* weights, int count, double wanted) {
    double sum = 0;
    for (int i = 0; i < count; ++i) {
        sum += weights[i];
        if (sum >= wanted) return i + 1;
    }
    return count;
}

double sum_of(const float* weights, int count) {
    double total = 0;
    for (int i = 0; i < count; i += BLOCK) {
        double block = 0;
        for (int j = i; j < std::min(i + BLOCK, count); ++j) block += weights[j];
        total += block;
    }
    return total;
}

// Keeps the first `kept` ids, in vocabulary order, and returns the one at the random number.
int choose_among(std::vector<int32_t>& ids, int kept, const float* weight_of, double number) {
    ids.resize(kept);
    std::sort(ids.begin(), ids.end());
    std::vector<float> weights(kept);
    for (int i = 0; i < kept; ++i) weights[i] = weight_of[ids[i]];
    return ids[invert(weights.data(), kept, number)];
}

int choose_top_k(const float* logits, int vocab, const hr_row_sampling& row, double number) {
    Scratch& s = scratch();
    likeliest(logits, vocab, row.top_k, s.ids);
    const int count = static_cast<int>(s.ids.size());
    std::vector<float> sorted(count + LANES), weights(count + LANES);
    for (int i = 0; i < count; ++i) sorted[i] = logits[s.ids[i]];
    weigh(sorted.data(), count, sorted[0], row, weights.data());
    double total = 0;
    for (int i = 0; i < count; ++i) total += weights[i];
    const int kept = row.top_p < 1 ? reach(weights.data(), count, row.top_p * total) : count;
    float* weight_of = s.weights.need(vocab);
    for (int i = 0; i < kept; ++i) weight_of[s.ids[i]] = weights[i];
    return choose_among(s.ids, kept, weight_of, number);
}

int choose_nucleus(const float* logits, int vocab, const float* weights, double top_p, double number) {
    Scratch& s = scratch();
    const double wanted = top_p * sum_of(weights, vocab);
    for (int64_t most = FIRST_NUCLEUS;; most *= GROWTH) {
        likeliest(logits, vocab, static_cast<int>(std::min<int64_t>(most, vocab)), s.ids);
        double sum = 0;
        int kept = 0;
        for (; kept < static_cast<int>(s.ids.size()) && sum < wanted; ++kept) sum += weights[s.ids[kept]];
        if (sum >= wanted || most >= vocab) return choose_among(s.ids, std::max(kept, 1), weights, number);
    }
}

int choose(const float* logits, int vocab, int best, const hr_row_sampling& row) {
    if (row.temperature < GREEDY_BELOW) return best;
    const double number = uniform(row.seed, static_cast<uint32_t>(row.num_ids));
    if (row.top_k > 0 && row.top_k < vocab) return choose_top_k(logits, vocab, row, number);
    float* weights = scratch().weights.need(vocab);
    weigh(logits, vocab, logits[best], row, weights);
    if (row.top_p < 1) return choose_nucleus(logits, vocab, weights, row.top_p, number);
    const double wanted = number * sum_of(weights, vocab);
    double sum = 0;
    for (int i = 0; i < vocab; i += BLOCK) {
        const int count = std::min(BLOCK, vocab - i);
        const double block = sum_of(weights + i, count);
        if (sum + block <= wanted) {
            sum += block;
            continue;
        }
        for (int j = i; j < i + count; ++j) {
            sum += weights[j];
            if (sum > wanted) return j;
        }
    }
    return best;  // where rounding left none
}

void mask(float* logits, const int64_t* ids, int64_t count) {
    for (int64_t i = 0; i < count; ++i) logits[ids[i]] = MASKED;
}

// Frequency and presence of what the output holds; repetition of what prompt and output hold. Each id once.
void penalise(float* logits, int vocab, const hr_row_sampling& row) {
    int32_t* counts = scratch().counts.need(vocab);
    if (row.repetition != 1.0f) {
        for (int i = 0; i < row.num_ids; ++i) {
            const int id = row.token_ids[i];
            if (counts[id]++ != 0) continue;
            logits[id] = logits[id] > 0 ? logits[id] / row.repetition : logits[id] * row.repetition;
        }
        for (int i = 0; i < row.num_ids; ++i) counts[row.token_ids[i]] = 0;
    }
    if (row.frequency == 0.0f && row.presence == 0.0f) return;
    for (int i = row.num_prompt; i < row.num_ids; ++i) ++counts[row.token_ids[i]];
    for (int i = row.num_prompt; i < row.num_ids; ++i) {
        const int id = row.token_ids[i];
        if (counts[id] == 0) continue;
        logits[id] -= row.frequency * static_cast<float>(counts[id]);
        logits[id] -= row.presence;
        counts[id] = 0;
    }
}

// Returns a changed copy of a row's logits.
const float* adjust(const float* logits, int vocab, const hr_row_sampling& row) {
    float* adjusted = scratch().adjusted.need(vocab);
    if (row.num_allowed < 0) {
        std::memcpy(adjusted, logits, sizeof(float) * vocab);
    } else {
        std::fill(adjusted, adjusted + vocab, MASKED);
        for (int64_t i = 0; i < row.num_allowed; ++i) adjusted[row.allowed[i]] = logits[row.allowed[i]];
    }
    mask(adjusted, row.masked, row.num_masked);
    if (row.num_ids - row.num_prompt < row.min_tokens) mask(adjusted, row.stops, row.num_stops);
    for (int64_t i = 0; i < row.num_bias; ++i) adjusted[row.bias_ids[i]] += row.bias[i];
    penalise(adjusted, vocab, row);
    return adjusted;
}

int32_t outcome_of(float highest_logit) {
    if (std::isnan(highest_logit)) return HR_NOT_A_NUMBER;
    if (!std::isinf(highest_logit)) return HR_SAMPLED;
    return highest_logit > 0 ? HR_INFINITE : HR_NOTHING;
}

void sample_row(const float* logits, int vocab, const hr_row_sampling& row, int32_t* token_id, int32_t* outcome) {
    int best = best_of(logits, vocab);
    *outcome = outcome_of(logits[best]);
    if (*outcome != HR_SAMPLED) return;
    if (row.has_changes) {
        logits = adjust(logits, vocab, row);
        best = best_of(logits, vocab);
        if (std::isinf(logits[best])) {
            *outcome = HR_NOTHING_LEFT;
            return;
        }
    }
    *token_id = choose(logits, vocab, best, row);
}

// One position of a Logprobs message; returns how many ids it has.
int32_t report_row(const float* logits, int vocab, int32_t token_id, int wanted, int32_t* rank, int32_t* ids,
                   float* values) {
    const float peak = logits[best_of(logits, vocab)];
    double total = 0;
    *rank = 1;
    for (int i = 0; i < vocab; i += LANES) {
        float weights[LANES];
        store(weights, exp(sub(load_some(logits, i, vocab), set1(peak))));
        for (int j = 0; j < std::min(LANES, vocab - i); ++j) {
            total += weights[j];
            *rank += logits[i + j] > logits[token_id];
        }
    }
    std::vector<int32_t>& best = scratch().ids;
    best.clear();
    if (wanted > 0) likeliest(logits, vocab, std::min(wanted, vocab), best);
    best.insert(best.begin(), token_id);
    const double log_total = std::log(total);
    for (size_t i = 0; i < best.size(); ++i) {
        ids[i] = best[i];
        values[i] = static_cast<float>(static_cast<double>(logits[best[i]]) - peak - log_total);
    }
    return static_cast<int32_t>(best.size());
}

// Calls body(index) for each row, on the team where there is more than one: waking it takes longer than one row.
template <class Body>
void for_rows(Team& team, int count, Body&& body) {
    if (count == 1) return body(0);
    team.run(1, [&](Team::Member& me) {
        me.share(count, 1, [&](int begin, int end) {
            for (int i = begin; i < end; ++i) body(i);
        });
    });
}

}  // namespace

void sample(Team& team, const float* logits, int vocab, const hr_row_sampling* sampling, const int32_t* rows, int count,
            int32_t* token_ids, int32_t* outcomes) {
    for_rows(team, count, [&](int i) {
        sample_row(logits + static_cast<size_t>(i) * vocab, vocab, sampling[rows[i]], token_ids + i, outcomes + i);
    });
}

void report(Team& team, const float* logits, int vocab, const int32_t* token_ids, const int32_t* wanted, int count,
            int most, int32_t* widths, int32_t* ranks, int32_t* ids, float* values) {
    for_rows(team, count, [&](int i) {
        const size_t at = static_cast<size_t>(i) * (1 + most);
        const float* row = logits + static_cast<size_t>(i) * vocab;
        widths[i] = wanted[i] < 0 ? 0 : report_row(row, vocab, token_ids[i], wanted[i], ranks + i, ids + at, values + at);
    });
}

}  // namespace hr
