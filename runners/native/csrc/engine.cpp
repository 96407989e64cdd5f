#include "engine.h"

#include <stdexcept>
#include <string>

#include "elementwise.h"

namespace hr {

namespace {

constexpr int STAGES_PER_LAYER = 10, STAGES_AROUND = 4;  // at most: each share() is a stage
constexpr int TOKENS_PER_PIECE = 8;  // of stages that write K, which tokens of a block share lines of

void require(bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(what);
}

bool fits(const Matrix* matrix, int n, int k) { return matrix != nullptr && matrix->n == n && matrix->k == k; }

}  // namespace

Engine::Engine(Team& team, const hr_model& model, const hr_layer* layers)
    : team_(team),
      model_(model),
      layers_(layers, layers + model.num_layers),
      mode_(static_cast<Mode>(model.mode)),
      shapes_(model.num_groups, {model.num_kv_heads, model.head_dim, model.block_size, model.is_half_cache != 0, 0}) {
    check_model();
    for (const hr_layer& layer : layers_) ++shapes_[layer.group].num_layers;
    for (int group = 0; group < model_.num_groups; ++group) {
        const CacheShape& shape = shapes_[group];
        regions_.push_back(std::make_unique<Region>(shape.stride() * shape.element_bytes() * model_.num_blocks[group]));
    }
    std::vector<size_t> taken(model.num_groups, 0);
    for (const hr_layer& layer : layers_) {
        const CacheShape& shape = shapes_[layer.group];
        caches_.push_back(regions_[layer.group]->get() + taken[layer.group]);
        taken[layer.group] += shape.layer_size() * shape.element_bytes();
    }
}

void Engine::check_model() const {
    const hr_model& m = model_;
    require(m.num_heads > 0 && m.num_kv_heads > 0 && m.num_heads % m.num_kv_heads == 0, "heads don't divide");
    require(m.head_dim > 0 && m.head_dim % LANES == 0, "head_dim isn't a multiple of 8");
    require(m.block_size > 0, "block_size isn't positive");
    require(fits(m.head, m.vocab, m.hidden), "the head has another shape");
    for (const hr_layer& layer : layers_) {
        require(fits(layer.q, query_width(), m.hidden) && fits(layer.k, kv_width(), m.hidden), "q or k has another shape");
        require(fits(layer.v, kv_width(), m.hidden) && fits(layer.o, m.hidden, query_width()), "v or o has another shape");
        require(fits(layer.gate, m.inner, m.hidden) && fits(layer.up, m.inner, m.hidden), "gate or up has another shape");
        require(fits(layer.down, m.hidden, m.inner), "down has another shape");
        require(layer.group >= 0 && layer.group < m.num_groups, "group out of range");
        require(layer.rotary >= 0 && layer.rotary < m.num_rotaries, "rotary out of range");
    }
}

void Engine::check_batch(const hr_batch& b) const {
    require(b.num_tokens > 0 && b.num_rows > 0 && b.num_logits >= 0, "the step is empty");
    require(b.starts[0] == 0 && b.starts[b.num_rows] == b.num_tokens, "starts don't cover the tokens");
    for (int row = 0; row < b.num_rows; ++row) {
        require(b.starts[row] < b.starts[row + 1], "a row has no tokens");
        for (int token = b.starts[row]; token < b.starts[row + 1]; ++token) {
            require(b.positions[token] >= 0 && b.positions[token] < static_cast<int64_t>(b.table_width) * model_.block_size,
                    "a position lies beyond its block table");
        }
    }
    for (int token = 0; token < b.num_tokens; ++token) {
        require(b.token_ids[token] >= 0 && b.token_ids[token] < model_.vocab, "a token id is out of the vocabulary");
    }
    for (int group = 0; group < model_.num_groups; ++group) {
        const int64_t blocks = model_.num_blocks[group], slots = blocks * model_.block_size;
        for (int token = 0; token < b.num_tokens; ++token) {
            require(b.slots[group][token] >= model_.block_size && b.slots[group][token] < slots, "a token has no block");
        }
        for (int i = 0; i < b.num_rows * b.table_width; ++i) {
            require(b.tables[group][i] >= 0 && b.tables[group][i] < blocks, "a block id is out of range");
        }
    }
    for (int i = 0; i < b.num_logits; ++i) {
        require(b.logit_tokens[i] >= 0 && b.logit_tokens[i] < b.num_tokens, "a token for logits is out of range");
    }
}

void Engine::prepare(const hr_batch& b) {
    const size_t tokens = b.num_tokens;
    x_.need(tokens * model_.hidden);
    delta_.need(tokens * model_.hidden);
    normed_.need(tokens * model_.hidden);
    qkv_.need(tokens * qkv_width());
    mixed_.need(tokens * query_width());
    inner_.need(tokens * model_.inner);
    cosines_.need(tokens * model_.num_rotaries * (model_.head_dim / 2));
    sines_.need(tokens * model_.num_rotaries * (model_.head_dim / 2));
    head_in_.need(static_cast<size_t>(b.num_logits) * model_.hidden);
    numbers_.need(b.num_tokens, std::max({model_.hidden, query_width(), model_.inner}), AS_16_BIT | AS_8_BIT, nullptr);
    AttentionInput in{};
    in.shape = shapes_[0], in.num_query_heads = model_.num_heads, in.starts = b.starts, in.num_rows = b.num_rows;
    in.tiles_per_unit = tiles_per_unit_ = choose_tiles_per_unit(in, team_.size());
    count_units(in, units_.need(b.num_rows + 1));
}

void Engine::step(const hr_batch& batch) {
    check_batch(batch);
    prepare(batch);
    num_tokens_ = batch.num_tokens;
    const int stages = STAGES_AROUND + STAGES_PER_LAYER * model_.num_layers;
    team_.run(stages, [&](Team::Member& me) {
        embed(me, batch);
        for (int i = 0; i < model_.num_layers; ++i) run_layer(me, batch, i);
        finish(me);
        if (batch.num_logits > 0) head(me, batch.logit_tokens, batch.num_logits, batch.logits);
    });
}

void Engine::logits(const int32_t* tokens, int count, float* out) {
    for (int i = 0; i < count; ++i) require(tokens[i] >= 0 && tokens[i] < num_tokens_, "a token for logits is out of range");
    head_in_.need(static_cast<size_t>(count) * model_.hidden);
    numbers_.need(count, model_.hidden, AS_16_BIT | AS_8_BIT, nullptr);
    team_.run(STAGES_AROUND, [&](Team::Member& me) { head(me, tokens, count, out); });
}

void Engine::embed(Team::Member& me, const hr_batch& batch) {
    const int half = model_.head_dim / 2;
    const Format format = static_cast<Format>(model_.embedding.format);
    const size_t stride = row_bytes(format, model_.hidden);
    me.share(batch.num_tokens, [&](int begin, int end) {
        for (int token = begin; token < end; ++token) {
            float* x = x_.get() + static_cast<size_t>(token) * model_.hidden;
            read_row(format, model_.embedding.rows + stride * batch.token_ids[token], model_.hidden, x);
            if (model_.embedding.scale != 1.0f) {
                for (int i = 0; i < model_.hidden; ++i) x[i] *= model_.embedding.scale;
            }
            for (int kind = 0; kind < model_.num_rotaries; ++kind) {
                const size_t at = (static_cast<size_t>(kind) * num_tokens_ + token) * half;
                rotary_angles(batch.positions[token], model_.rotaries[kind].frequencies, half, model_.rotaries[kind].scale,
                              cosines_.get() + at, sines_.get() + at);
            }
        }
    });
}

void Engine::run_layer(Team::Member& me, const hr_batch& batch, int index) {
    const hr_layer& layer = layers_[index];
    attention(me, batch, layer, index);
    feed_forward(me, layer);
}

void Engine::attention(Team::Member& me, const hr_batch& batch, const hr_layer& layer, int index) {
    const int in_forms = forms_of(*layer.q, mode_) | forms_of(*layer.k, mode_) | forms_of(*layer.v, mode_);
    const Activations in = numbers_.need(0, model_.hidden, in_forms, normed_.get());
    me.share(num_tokens_, [&](int begin, int end) {
        for (int token = begin; token < end; ++token) {
            if (index > 0) add_delta(token, layers_[index - 1].post_feed_norm);
            normalise(token, layer.attention_norm, in_forms, in);
        }
    });
    const Product products[3] = {{layer.q, layer.q_bias, 0},
                                 {layer.k, layer.k_bias, query_width()},
                                 {layer.v, layer.v_bias, query_width() + kv_width()}};
    multiply(me, mode_, products, 3, in, num_tokens_, qkv_.get(), qkv_width());
    me.share(num_tokens_, std::min(TOKENS_PER_PIECE, (num_tokens_ - 1) / me.team_size() + 1), [&](int begin, int end) {
        for (int token = begin; token < end; ++token) place_keys(batch, layer, index, token);
    });
    const AttentionInput attention{shapes_[layer.group],
                                   caches_[index],
                                   qkv_.get(),
                                   qkv_width(),
                                   model_.num_heads,
                                   layer.window,
                                   batch.starts,
                                   batch.positions,
                                   batch.tables[layer.group],
                                   batch.table_width,
                                   batch.num_rows,
                                   tiles_per_unit_};
    attend(me, attention, units_.get(), mixed_.get());
    const int out_forms = forms_of(*layer.o, mode_);
    const Activations mixed = numbers_.need(0, query_width(), out_forms, mixed_.get());
    if (out_forms != AS_FLOATS) {
        me.share(num_tokens_, [&](int begin, int end) {
            for (int token = begin; token < end; ++token) {
                quantise_row(mixed_.get() + static_cast<size_t>(token) * query_width(), token, out_forms, mixed);
            }
        });
    }
    const Product product{layer.o, layer.o_bias, 0};
    multiply(me, mode_, &product, 1, mixed, num_tokens_, delta_.get(), model_.hidden);
}

void Engine::feed_forward(Team::Member& me, const hr_layer& layer) {
    const int in_forms = forms_of(*layer.gate, mode_) | forms_of(*layer.up, mode_);
    const Activations in = numbers_.need(0, model_.hidden, in_forms, normed_.get());
    me.share(num_tokens_, [&](int begin, int end) {
        for (int token = begin; token < end; ++token) {
            add_delta(token, layer.post_attention_norm);
            normalise(token, layer.feed_norm, in_forms, in);
        }
    });
    multiply_gated(me, mode_, static_cast<Gate>(model_.gate), *layer.gate, *layer.up, in, num_tokens_, inner_.get());
    const int down_forms = forms_of(*layer.down, mode_);
    const Activations inner = numbers_.need(0, model_.inner, down_forms, inner_.get());
    if (down_forms != AS_FLOATS) {
        me.share(num_tokens_, [&](int begin, int end) {
            for (int token = begin; token < end; ++token) {
                quantise_row(inner_.get() + static_cast<size_t>(token) * model_.inner, token, down_forms, inner);
            }
        });
    }
    const Product product{layer.down, nullptr, 0};
    multiply(me, mode_, &product, 1, inner, num_tokens_, delta_.get(), model_.hidden);
}

void Engine::finish(Team::Member& me) {
    me.share(num_tokens_, [&](int begin, int end) {
        for (int token = begin; token < end; ++token) add_delta(token, layers_.back().post_feed_norm);
    });
}

void Engine::head(Team::Member& me, const int32_t* tokens, int count, float* out) {
    const int forms = forms_of(*model_.head, mode_);
    const Activations in = numbers_.need(0, model_.hidden, forms, head_in_.get());
    me.share(count, [&](int begin, int end) {
        for (int i = begin; i < end; ++i) {
            const float* x = x_.get() + static_cast<size_t>(tokens[i]) * model_.hidden;
            float* normed = head_in_.get() + static_cast<size_t>(i) * model_.hidden;
            rms_norm(x, model_.norm, model_.hidden, model_.norm_eps, normed);
            if (forms != AS_FLOATS) quantise_row(normed, i, forms, in);
        }
    });
    const Product product{model_.head, nullptr, 0};
    multiply(me, mode_, &product, 1, in, count, out, model_.vocab);
}

void Engine::normalise(int token, const float* weight, int forms, const Activations& to) {
    const size_t at = static_cast<size_t>(token) * model_.hidden;
    rms_norm(x_.get() + at, weight, model_.hidden, model_.norm_eps, normed_.get() + at);
    if (forms != AS_FLOATS) quantise_row(normed_.get() + at, token, forms, to);
}

void Engine::add_delta(int token, const float* post_norm) {
    float* x = x_.get() + static_cast<size_t>(token) * model_.hidden;
    float* delta = delta_.get() + static_cast<size_t>(token) * model_.hidden;
    if (post_norm != nullptr) rms_norm(delta, post_norm, model_.hidden, model_.norm_eps, delta);
    add_to(x, delta, model_.hidden);
}

void Engine::place_keys(const hr_batch& batch, const hr_layer& layer, int index, int token) {
    const int dim = model_.head_dim, half = dim / 2;
    const size_t at = (static_cast<size_t>(layer.rotary) * num_tokens_ + token) * half;
    const float *cosines = cosines_.get() + at, *sines = sines_.get() + at;
    float* q = qkv_.get() + static_cast<size_t>(token) * qkv_width();
    float *k = q + query_width(), *v = k + kv_width();
    for (int h = 0; h < model_.num_heads; ++h) {
        float* head = q + h * dim;
        if (layer.q_norm != nullptr) rms_norm(head, layer.q_norm, dim, model_.norm_eps, head);
        rotate(head, cosines, sines, half);
        for (int i = 0; i < dim; ++i) head[i] *= model_.query_scale;
    }
    for (int h = 0; h < model_.num_kv_heads; ++h) {
        float* head = k + h * dim;
        if (layer.k_norm != nullptr) rms_norm(head, layer.k_norm, dim, model_.norm_eps, head);
        rotate(head, cosines, sines, half);
    }
    write_cache(shapes_[layer.group], caches_[index], batch.slots[layer.group][token], k, v);
}

}  // namespace hr
