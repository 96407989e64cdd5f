#include "activations.h"

namespace hr {

namespace {

struct Scaling {
    float scale;    // highest magnitude / most
    float inverse;  // 0 where all are 0
};

constexpr float TINY = 1e-30f;  // groups that stay below count as 0

// The scale is NaN where a value isn't finite, so that the row's outputs show it.
Scaling scaling_of(const float* values, float most) {
    floats magnitudes = zero(), poison = zero();
    for (int i = 0; i < GROUP; i += LANES) {
        const floats v = load(values + i);
        magnitudes = max_or_nan(magnitudes, magnitude(v));
        poison = fmadd(v, zero(), poison);
    }
    const float peak = highest(magnitudes);
    return {peak / most + sum(poison), peak > TINY ? most / peak : 0.0f};
}

float sum_of_words(bits words) {
    int32_t lane[LANES];
    store_bits(lane, words);
    uint32_t total = 0;  // wraps where a group isn't finite
    for (int i = 0; i < LANES; ++i) total += static_cast<uint32_t>(lane[i]);
    return static_cast<float>(static_cast<int32_t>(total));
}

void quantise_group16(const float* values, int16_t* numbers, float* scale, float* sum) {
    const Scaling by = scaling_of(values, 32767.0f);
    bits total = zero_bits();
    for (int i = 0; i < GROUP; i += LANES) {
        const bits words = to_words(mul(load(values + i), set1(by.inverse)));
        total = add32(total, words);
        store_words_as16_crossed(numbers + i, words);
    }
    *scale = by.scale;
    *sum = by.scale * sum_of_words(total);
}

void quantise_group8(const float* values, int8_t* numbers, float* scale, float* sum) {
    const Scaling by = scaling_of(values, 127.0f);
    bits total = zero_bits();
    for (int i = 0; i < GROUP; i += LANES) {
        const bits words = to_words(mul(load(values + i), set1(by.inverse)));
        total = add32(total, words);
        store_words_as8(numbers + i, words);
    }
    *scale = by.scale;
    *sum = by.scale * sum_of_words(total);
}

}  // namespace

Activations ActivationBuffers::need(int rows, int k, int forms, const float* floats) {
    const size_t count = static_cast<size_t>(rows) * k, groups = static_cast<size_t>(rows) * (k / GROUP);
    Activations all;
    all.k = k;
    all.floats = floats;
    if (forms & AS_16_BIT) {
        all.numbers16 = numbers16_.need(count);
        all.scale16 = scale16_.need(groups);
        all.sum16 = sum16_.need(groups);
    }
    if (forms & AS_8_BIT) {
        all.numbers8 = numbers8_.need(count);
        all.scale8 = scale8_.need(groups);
        all.sum8 = sum8_.need(groups);
    }
    return all;
}

void quantise_row(const float* values, int row, int forms, const Activations& out) {
    const size_t first = static_cast<size_t>(row) * out.k, first_group = static_cast<size_t>(row) * (out.k / GROUP);
    for (int group = 0; group < out.k / GROUP; ++group) {
        const size_t at = first + static_cast<size_t>(group) * GROUP, place = first_group + group;
        const float* from = values + static_cast<size_t>(group) * GROUP;
        if (forms & AS_16_BIT) quantise_group16(from, out.numbers16 + at, out.scale16 + place, out.sum16 + place);
        if (forms & AS_8_BIT) quantise_group8(from, out.numbers8 + at, out.scale8 + place, out.sum8 + place);
    }
}

}  // namespace hr
