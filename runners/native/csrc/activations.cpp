#include "activations.h"

namespace hr {

namespace {

constexpr float TINY = 1e-30f;  // groups that stay below count as 0

struct Scaling {
    float scale;    // highest magnitude / most
    float inverse;  // 0 where all are 0
};

Scaling scaling_of(const float* values, float most) {
    floats peaks = magnitude(load(values));
#pragma GCC unroll 4
    for (int i = LANES; i < GROUP; i += LANES) peaks = max_or_nan(peaks, magnitude(load(values + i)));
    const float peak = highest(peaks);
    return {peak / most, peak > TINY ? most / peak : 0.0f};
}

void quantise_group16(const float* values, int16_t* numbers, float* scale, float* total) {
    const Scaling by = scaling_of(values, 32767.0f);
    bits words = zero_bits();
#pragma GCC unroll 4
    for (int i = 0; i < GROUP; i += LANES) {
        const bits rounded = to_words(mul(load(values + i), set1(by.inverse)));
        words = add32(words, rounded);
        store_words_as16_crossed(numbers + i, rounded);
    }
    *scale = by.scale;
    *total = by.scale * sum(to_floats(words));  // exact: 32 numbers of 16 bits
}

void quantise_group8(const float* values, int8_t* numbers, float* scale, float* total, int16_t* offsets) {
    const Scaling by = scaling_of(values, 127.0f);
    bits words[GROUP / LANES];
#pragma GCC unroll 4
    for (int i = 0; i < GROUP / LANES; ++i) words[i] = to_words(mul(load(values + i * LANES), set1(by.inverse)));
    const bits bytes = narrow_words(words[0], words[1], words[2], words[3]);
    store_bits(numbers, bytes);
    store_sums_of_bytes(offsets, bytes);
    *scale = by.scale;
    *total = by.scale * sum(to_floats(add32(add32(words[0], words[1]), add32(words[2], words[3]))));
}

// NaN if any value isn't finite, else 0.
float poison_of(const float* values, int k) {
    floats poison = zero();
    for (int i = 0; i < k; i += LANES) poison = fmadd(load(values + i), zero(), poison);
    return sum(poison);
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
        all.offsets8 = offsets8_.need(count / 8);
    }
    return all;
}

void quantise_row(const float* values, int row, int forms, const Activations& out) {
    const size_t first = static_cast<size_t>(row) * out.k, first_group = static_cast<size_t>(row) * (out.k / GROUP);
    for (int group = 0; group < out.k / GROUP; ++group) {
        const size_t at = first + static_cast<size_t>(group) * GROUP, place = first_group + group;
        const float* from = values + static_cast<size_t>(group) * GROUP;
        if (forms & AS_16_BIT) quantise_group16(from, out.numbers16 + at, out.scale16 + place, out.sum16 + place);
        if (forms & AS_8_BIT) {
            quantise_group8(from, out.numbers8 + at, out.scale8 + place, out.sum8 + place, out.offsets8 + at / 8);
        }
    }
    const float poison = poison_of(values, out.k);
    if (poison == 0.0f) return;
    for (size_t place = first_group; place < first_group + out.k / GROUP; ++place) {
        if (forms & AS_16_BIT) out.scale16[place] = poison;
        if (forms & AS_8_BIT) out.scale8[place] = poison;
    }
}

}  // namespace hr
