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

// Panels of floats; `from` is at the first depth, a at the rows' inputs of that depth.
template <Format F, int R>
HR_INLINE void floats_tile(const uint8_t* from, const float* const* a, int depths, float* out) {
    floats acc[R][2];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        acc[r][0] = load(out + r * COLUMNS);
        acc[r][1] = load(out + r * COLUMNS + LANES);
    }
    for (int i = 0; i < depths; ++i) {
        floats w0, w1;
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
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        store(out + r * COLUMNS, acc[r][0]);
        store(out + r * COLUMNS + LANES, acc[r][1]);
    }
}

// Adds what a span of depths gave: the sums of products times the weights' and the inputs' scale.
HR_INLINE void add_scaled(bits sum0, bits sum1, const float* scale, float by, float* out) {
    const floats x = set1(by);
    store(out, fmadd(to_floats(sum0), mul(load(scale), x), load(out)));
    store(out + LANES, fmadd(to_floats(sum1), mul(load(scale + LANES), x), load(out + LANES)));
}

HR_INLINE void add_minimum(const float* minimum, float sum, float* out) {
    const floats x = set1(sum);
    store(out, fmadd(load(minimum), x, load(out)));
    store(out + LANES, fmadd(load(minimum + LANES), x, load(out + LANES)));
}

// 16-bit codes and inputs; row r's inputs, scales and sums are at a[r], scale[r], sum[r].
template <int R, int SPAN, bool HAS_MINIMUM>
HR_INLINE void tile16(const Expanded& w, const int16_t* const* a, const float* const* scale, const float* const* sum,
                      int depths, float* out) {
    const int16_t* codes = w.codes;
    for (int done = 0; done < depths; done += SPAN) {
        bits acc[R][2];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = zero_bits();
#pragma GCC unroll 2
        for (int i = 0; i < SPAN; i += 2, codes += 2 * COLUMNS) {
            const bits w0 = load_bits(codes), w1 = load_bits(codes + 16);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const bits x = broadcast32(a[r] + done + i);
                acc[r][0] = add32(acc[r][0], multiply_pairs16(w0, x));
                acc[r][1] = add32(acc[r][1], multiply_pairs16(w1, x));
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            add_scaled(acc[r][0], acc[r][1], w.scale + done / SPAN * COLUMNS, scale[r][done / GROUP], out + r * COLUMNS);
            if (HAS_MINIMUM) add_minimum(w.minimum + done / GROUP * COLUMNS, sum[r][done / GROUP], out + r * COLUMNS);
        }
    }
}

// 8-bit inputs and 4-bit codes: eight sums of two products, at most 2 * 15 * 128 each, fit in 16 bits.
template <int R>
HR_INLINE void tile8(const Expanded& w, const int8_t* const* a, const float* const* scale, const float* const* sum,
                     int depths, float* out) {
    const uint8_t* codes = w.bytes();
    const bits ones = set16(1);
    for (int done = 0; done < depths; done += GROUP) {
        bits acc[R][2];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = zero_bits();
#pragma GCC unroll 2
        for (int i = 0; i < GROUP; i += 4, codes += 4 * COLUMNS) {
            const bits w0 = load_bits(codes), w1 = load_bits(codes + 32);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const bits x = broadcast32(a[r] + done + i);
                acc[r][0] = add16(acc[r][0], multiply_pairs8(w0, x));
                acc[r][1] = add16(acc[r][1], multiply_pairs8(w1, x));
            }
        }
        const float* scales = w.scale + done / GROUP * COLUMNS;
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            add_scaled(multiply_pairs16(acc[r][0], ones), multiply_pairs16(acc[r][1], ones), scales,
                       scale[r][done / GROUP], out + r * COLUMNS);
            add_minimum(w.minimum + done / GROUP * COLUMNS, sum[r][done / GROUP], out + r * COLUMNS);
        }
    }
}

}  // namespace kernel

}  // namespace hr
