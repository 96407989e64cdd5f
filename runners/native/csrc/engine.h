// Runs a model: one step is one parallel region over all its layers.
#pragma once

#include <memory>
#include <vector>

#include "attention.h"
#include "model.h"

namespace hr {

class Engine {
  public:
    // Copies the structs; what they point to must stay. Throws std::invalid_argument, std::bad_alloc.
    Engine(Team& team, const hr_model& model, const hr_layer* layers);

    // Computes a step: K and V of all its tokens, hidden states (kept until the next step), and the logits asked for.
    // Throws std::invalid_argument before anything is changed.
    void step(const hr_batch& batch);

    int vocab() const { return model_.vocab; }

    // Computes logits of tokens of the last step. out: (count, vocab).
    void logits(const int32_t* tokens, int count, float* out);

  private:
    void check_model() const;
    void check_batch(const hr_batch& batch) const;
    void prepare(const hr_batch& batch);
    // The following run on all members of a region alike.
    void embed(Team::Member& me, const hr_batch& batch);
    void run_layer(Team::Member& me, const hr_batch& batch, int index);
    void attention(Team::Member& me, const hr_batch& batch, const hr_layer& layer, int index);
    void feed_forward(Team::Member& me, const hr_layer& layer);
    void finish(Team::Member& me);
    void head(Team::Member& me, const int32_t* tokens, int count, float* out);
    // The following handle one token.
    void normalise(int token, const float* weight, int forms, const Activations& to);
    void add_delta(int token, const float* post_norm);
    void place_keys(const hr_batch& batch, const hr_layer& layer, int index, int token);

    int query_width() const { return model_.num_heads * model_.head_dim; }
    int kv_width() const { return model_.num_kv_heads * model_.head_dim; }
    int qkv_width() const { return query_width() + 2 * kv_width(); }

    Team& team_;
    const hr_model model_;
    const std::vector<hr_layer> layers_;
    const Mode mode_;
    std::vector<CacheShape> shapes_;                // per KV group
    std::vector<std::unique_ptr<Region>> regions_;  // per KV group
    std::vector<uint8_t*> caches_;                  // per layer: its part of block 0

    int num_tokens_ = 0;  // of the last step
    Buffer<float> x_;       // (T, hidden) residual stream
    Buffer<float> delta_;   // (T, hidden) what a layer's halves add to it
    Buffer<float> normed_;  // (T, hidden)
    Buffer<float> qkv_;     // (T, qkv_width)
    Buffer<float> mixed_;   // (T, query_width) attention's output
    Buffer<float> inner_;   // (T, inner)
    Buffer<float> cosines_, sines_;  // (num_rotaries, T, head_dim / 2)
    Buffer<int32_t> units_;
    ActivationBuffers numbers_;
    // Set by prepare() for the step's size: members of a region only read them.
    int tiles_per_unit_ = 1;
    Buffer<float> head_in_;  // (num_logits, hidden)
};

}  // namespace hr
