// The innermost loops: a tile of rows times one panel, added to `out` (rows, COLUMNS).
//
// Each output is one chain of additions in the order of the depths, whatever the number of rows, so that a row's result
// doesn't depend on its neighbours. Accumulators stay in registers only where loops over them are unrolled.
#pragma once

#include "activations.h"
#include "expand.h"

namespace hr {

// Rows of a tile: 2 accumulators each, beside two vectors of weights and one of inputs, fill 16 registers.
constexpr int TILE = 6;

namespace kernel {

constexpr int PREFETCH_BYTES = 1024;

HR_INLINE void prefetch_ahead(const uint8_t* from, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) prefetch(from + PREFETCH_BYTES + i);
}

// Panels of floats; `from` is at the first depth, a at the rows' inputs of that depth. With each depth, one line of what
// will be read next is fetched: `ahead`, and so on in steps of `ahead_step` bytes.
template <Format F, int R>
HR_INLINE void floats_tile(const uint8_t* from, const float* const* a, int depths, const uint8_t* ahead, size_t ahead_step,
                           float* out) {
    floats acc[R][2];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        acc[r][0] = load(out + r * COLUMNS);
        acc[r][1] = load(out + r * COLUMNS + LANES);
    }
#pragma GCC unroll 4
    for (int i = 0; i < depths; ++i) {
        floats w0, w1;
        prefetch(ahead + i * ahead_step);
        if constexpr (F == Format::F32) {
            const float* w = reinterpret_cast<const float*>(from) + static_cast<size_t>(i) * COLUMNS;
            w0 = load(w), w1 = load(w + LANES);
        } else {
            const uint16_t* w = reinterpret_cast<const uint16_t*>(from) + static_cast<size_t>(i) * COLUMNS;
            w0 = F == Format::F16 ? load_f16(w) : load_bf16(w);
            w1 = F == Format::F16 ? load_f16(w + LANES) : load_bf16(w + LANES);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const floats x = set1(a[r][i]);
            acc[r][0] = fmadd(w0, x, acc[r][0]);
            acc[r][1] = fmadd(w1, x, acc[r][1]);
            hold(acc[r][0], acc[r][1]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        store(out + r * COLUMNS, acc[r][0]);
        store(out + r * COLUMNS + LANES, acc[r][1]);
    }
}

// Adds what a span of depths gave: the sums of products times the weights' and the inputs' scale.
HR_INLINE void add_scaled(bits sum0, bits sum1, const float* scale, floats by, floats* out) {
    out[0] = fmadd(to_floats(sum0), mul(load(scale), by), out[0]);
    out[1] = fmadd(to_floats(sum1), mul(load(scale + LANES), by), out[1]);
}

template <int R>
HR_INLINE void load_tile(const float* from, floats (*to)[2]) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) to[r][0] = load(from + r * COLUMNS), to[r][1] = load(from + r * COLUMNS + LANES);
}

template <int R>
HR_INLINE void store_tile(const floats (*from)[2], float* to) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) store(to + r * COLUMNS, from[r][0]), store(to + r * COLUMNS + LANES, from[r][1]);
}

// One pair of depths of 16-bit codes, for all rows; x: the rows' inputs of these depths.
template <int R>
HR_INLINE void add_pair(bits (&acc)[R][2], bits w0, bits w1, const int16_t* const* a, int depth) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        const bits x = broadcast32(a[r] + depth);
        acc[r][0] = add32(acc[r][0], multiply_pairs16(w0, x));
        acc[r][1] = add32(acc[r][1], multiply_pairs16(w1, x));
        hold(acc[r][0], acc[r][1]);
    }
}

// One quad of depths of 8-bit codes.
template <int R>
HR_INLINE void add_quad(bits (&acc)[R][2], bits w0, bits w1, const int8_t* const* a, int depth) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        const bits x = broadcast32(a[r] + depth);
        acc[r][0] = add16(acc[r][0], multiply_pairs8(w0, x));
        acc[r][1] = add16(acc[r][1], multiply_pairs8(w1, x));
        hold(acc[r][0], acc[r][1]);
    }
}

// Ends a span of 16-bit inputs.
template <int R>
HR_INLINE void finish16(const bits (&acc)[R][2], const float* scales, const float* const* scale, int group,
                        floats (*total)[2]) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) add_scaled(acc[r][0], acc[r][1], scales, set1(scale[r][group]), total[r]);
}

// Ends a span of 8-bit inputs.
template <int R>
HR_INLINE void finish8(const bits (&acc)[R][2], const float* scales, const float* const* scale, int group,
                       floats (*total)[2]) {
    const bits ones = set16(1);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        const bits sum0 = multiply_pairs16(acc[r][0], ones), sum1 = multiply_pairs16(acc[r][1], ones);
        add_scaled(sum0, sum1, scales, set1(scale[r][group]), total[r]);
    }
}

template <int R>
HR_INLINE void start16(bits (&acc)[R][2]) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = zero_bits();
}

// What the 16-bit sums of 8-bit inputs start with, so that ZERO times the inputs is taken off in the end. offsets: sums
// of the inputs of 16 depths, in pairs as multiply_pairs8 adds them up.
template <int R, int SPAN, int ZERO>
HR_INLINE void start8(bits (&acc)[R][2], const int16_t* const* offsets, int depth) {
    if constexpr (ZERO == 0) return start16(acc);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        bits sums = broadcast32(offsets[r] + depth / 8);
        if constexpr (SPAN == GROUP) sums = add16(sums, broadcast32(offsets[r] + depth / 8 + 2));
        acc[r][0] = acc[r][1] = sub16(zero_bits(), shift_left16<ZERO == 8 ? 3 : ZERO == 16 ? 4 : 5>(sums));
    }
}

// Expanded 16-bit codes; row r's inputs and scales are at a[r], scale[r].
template <int R, int SPAN>
HR_INLINE void tile16(const Expanded& w, const int16_t* const* a, const float* const* scale, int depths, float* out) {
    const int16_t* codes = w.codes;
    const float* scales = w.scale;
    floats total[R][2];
    load_tile<R>(out, total);
    for (int done = 0; done < depths; done += SPAN, scales += COLUMNS) {
        bits acc[R][2];
        start16(acc);
#pragma GCC unroll 16
        for (int i = 0; i < SPAN; i += 2, codes += 2 * COLUMNS) {
            add_pair(acc, load_bits(codes), load_bits(codes + 16), a, done + i);
        }
        finish16(acc, scales, scale, done / GROUP, total);
    }
    store_tile<R>(total, out);
}

// Expanded 8-bit codes. Products of two never saturate (2 * 63 * 128); sums may wrap on the way, but a span's end result
// fits in 16 bits: 16 * 15 * 127 of codes from 0 on, else at most 16 * 16 * 127 or 8 * 32 * 127 around it.
template <int R, int SPAN, int ZERO>
HR_INLINE void tile8(const Expanded& w, const int8_t* const* a, const float* const* scale, const int16_t* const* offsets,
                     int depths, float* out) {
    const uint8_t* codes = w.bytes();
    const float* scales = w.scale;
    floats total[R][2];
    load_tile<R>(out, total);
    for (int done = 0; done < depths; done += SPAN, scales += COLUMNS) {
        bits acc[R][2];
        start8<R, SPAN, ZERO>(acc, offsets, done);
#pragma GCC unroll 8
        for (int i = 0; i < SPAN; i += 4, codes += 4 * COLUMNS) {
            add_quad(acc, load_bits(codes), load_bits(codes + 32), a, done + i);
        }
        finish8(acc, scales, scale, done / GROUP, total);
    }
    store_tile<R>(total, out);
}

// The same sums for one or two rows, straight from a panel's groups: there, expanding to memory costs more than it
// saves, and short steps let the processor read ahead.
template <Format F, int R>
void direct16(const uint8_t* groups, const int16_t* const* a, const float* const* scale, int num_groups,
                        float* out) {
    constexpr int SPAN = expand::Traits<F>::SPAN;
    floats total[R][2];
    load_tile<R>(out, total);
    for (int group = 0; group < num_groups; ++group) {
        const expand::Place<F> place(groups, group);
        prefetch_ahead(place.group, expand::Traits<F>::GROUP_BYTES);
        float scales[GROUP / SPAN * COLUMNS];
        expand::scales<F>(place, scales);
        bits acc[R][2];
        expand::repeat<QUADS>([&](auto quad) __attribute__((always_inline)) {
            constexpr int DONE = quad * 4;
            if constexpr (DONE % SPAN == 0) start16(acc);
            bits w[4];
            expand::quad16<F, quad>(place, w);
            add_pair(acc, w[0], w[1], a, group * GROUP + DONE);
            add_pair(acc, w[2], w[3], a, group * GROUP + DONE + 2);
            if constexpr ((DONE + 4) % SPAN == 0) finish16(acc, scales + DONE / SPAN * COLUMNS, scale, group, total);
        });
    }
    store_tile<R>(total, out);
}

template <Format F, int R>
void direct8(const uint8_t* groups, const int8_t* const* a, const float* const* scale,
                       const int16_t* const* offsets, int num_groups, float* out) {
    constexpr int SPAN = expand::Traits<F>::SPAN, ZERO = expand::Traits<F>::ZERO;
    floats total[R][2];
    load_tile<R>(out, total);
    for (int group = 0; group < num_groups; ++group) {
        const expand::Place<F> place(groups, group);
        prefetch_ahead(place.group, expand::Traits<F>::GROUP_BYTES);
        float scales[GROUP / SPAN * COLUMNS];
        expand::scales<F>(place, scales);
        bits acc[R][2];
        expand::repeat<QUADS>([&](auto quad) __attribute__((always_inline)) {
            constexpr int DONE = quad * 4;
            if constexpr (DONE % SPAN == 0) start8<R, SPAN, ZERO>(acc, offsets, group * GROUP + DONE);
            bits w[2];
            expand::quad8<F, quad>(place, w);
            add_quad(acc, w[0], w[1], a, group * GROUP + DONE);
            if constexpr ((DONE + 4) % SPAN == 0) finish8(acc, scales + DONE / SPAN * COLUMNS, scale, group, total);
        });
    }
    store_tile<R>(total, out);
}

}  // namespace kernel

}  // namespace hr
