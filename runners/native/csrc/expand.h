// From a panel's quantised groups to what the kernels multiply: plain codes, and scales as floats. Runs once for all
// rows of a block, into memory that stays in the first cache.
//
// 16-bit codes: pairs of depths of all columns, [pair][COLUMNS][2], in the order of Activations::numbers16.
// 8-bit codes: quads of depths of all columns, [quad][COLUMNS][4].
#pragma once

#include "formats.h"

namespace hr {

// Depths that are expanded at once.
constexpr int MAX_EXPANDED = 512;

struct Expanded {
    alignas(64) int16_t codes[MAX_EXPANDED * COLUMNS];  // or 8-bit codes, in the first half
    alignas(64) float scale[MAX_EXPANDED / 16 * COLUMNS];
    alignas(64) float minimum[MAX_EXPANDED / GROUP * COLUMNS];  // value = scale * code + minimum

    uint8_t* bytes() { return reinterpret_cast<uint8_t*>(codes); }
    const uint8_t* bytes() const { return reinterpret_cast<const uint8_t*>(codes); }
};

namespace expand {

HR_INLINE void halves(const uint8_t* from, float* to) {
    const uint16_t* p = reinterpret_cast<const uint16_t*>(from);
    store(to, load_f16(p));
    store(to + LANES, load_f16(p + LANES));
}

HR_INLINE void scaled(const float* scale, float by, float* to) {
    store(to, mul(load(scale), set1(by)));
    store(to + LANES, mul(load(scale + LANES), set1(by)));
}

// One group of u4 codes to 16 bits. ZERO: the code that means 0.
template <int ZERO>
HR_INLINE void nibbles16(const uint8_t* from, int16_t* to) {
    const bits low = set16(15), zero_point = set16(ZERO);
    for (int quad = 0; quad < QUADS; ++quad, from += 32, to += 64) {
        const bits v = load_bits(from);
        const bits all[4] = {and_bits(v, low), and_bits(shift_right16<4>(v), low), and_bits(shift_right16<8>(v), low),
                             shift_right16<12>(v)};
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) store_bits(to + 16 * i, ZERO ? sub16(all[i], zero_point) : all[i]);
    }
}

HR_INLINE void nibbles8(const uint8_t* from, uint8_t* to) {
    const bits low = set16(0x0F0F);
    for (int quad = 0; quad < QUADS; ++quad, from += 32, to += 64) {
        const bits v = load_bits(from);
        store_bits(to, and_bits(v, low));
        store_bits(to + 32, and_bits(shift_right16<4>(v), low));
    }
}

template <int N>
HR_INLINE bits shift16(bits v) {
    if constexpr (N >= 0) {
        return shift_left16<N>(v);
    } else {
        return shift_right16<-N>(v);
    }
}

// The four 16-bit vectors of one quad whose upper bits (WIDTH of each code) lie at bit SHIFT of the bytes of `upper`.
template <int WIDTH, int SHIFT, int ZERO>
HR_INLINE void wide_quad16(bits v, bits upper, int16_t* to) {
    const bits low = set16(15), mask = set16(WIDTH == 1 ? 0x10 : 0x30), zero_point = set16(ZERO);
    const bits all[4] = {
        or_bits(and_bits(v, low), and_bits(shift16<4 - SHIFT>(upper), mask)),
        or_bits(and_bits(shift_right16<4>(v), low), and_bits(shift16<4 - SHIFT - WIDTH>(upper), mask)),
        or_bits(and_bits(shift_right16<8>(v), low), and_bits(shift16<4 - SHIFT - 8>(upper), mask)),
        or_bits(shift_right16<12>(v), and_bits(shift16<4 - SHIFT - WIDTH - 8>(upper), mask)),
    };
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) store_bits(to + 16 * i, sub16(all[i], zero_point));
}

// One group of u5 (WIDTH 1) or u6 (WIDTH 2) codes.
template <int WIDTH, int ZERO>
HR_INLINE void wide16(const uint8_t* upper, const uint8_t* from, int16_t* to) {
    if constexpr (WIDTH == 1) {
        for (int half = 0; half < 2; ++half, upper += 32, from += 128, to += 256) {
            const bits u = load_bits(upper);
            wide_quad16<1, 0, ZERO>(load_bits(from), u, to);
            wide_quad16<1, 2, ZERO>(load_bits(from + 32), u, to + 64);
            wide_quad16<1, 4, ZERO>(load_bits(from + 64), u, to + 128);
            wide_quad16<1, 6, ZERO>(load_bits(from + 96), u, to + 192);
        }
    } else {
        for (int quarter = 0; quarter < 4; ++quarter, upper += 32, from += 64, to += 128) {
            const bits u = load_bits(upper);
            wide_quad16<2, 0, ZERO>(load_bits(from), u, to);
            wide_quad16<2, 4, ZERO>(load_bits(from + 32), u, to + 64);
        }
    }
}

HR_INLINE void signed16(const uint8_t* from, int16_t* to) {
    const int8_t* p = reinterpret_cast<const int8_t*>(from);
#pragma GCC unroll 4
    for (int i = 0; i < GROUP * COLUMNS; i += 16) store_bits(to + i, widen_s8(p + i));
}

// Scales of the groups of Q4_K.
HR_INLINE void scales_q4_k(const uint8_t* head, const uint8_t* group, float* scale, float* minimum) {
    const uint16_t* p = reinterpret_cast<const uint16_t*>(head);
#pragma GCC unroll 2
    for (int i = 0; i < COLUMNS; i += LANES) {
        store(scale + i, mul(load_f16(p + i), load_u8(group + i)));
        store(minimum + i, mul(mul(load_f16(p + COLUMNS + i), load_u8(group + COLUMNS + i)), set1(-1.0f)));
    }
}

HR_INLINE void scales_q6_k(const uint8_t* head, const uint8_t* group, float* scale) {
    const uint16_t* p = reinterpret_cast<const uint16_t*>(head);
#pragma GCC unroll 4
    for (int i = 0; i < 2 * COLUMNS; i += LANES) {
        store(scale + i, mul(load_f16(p + i % COLUMNS), load_s8(reinterpret_cast<const int8_t*>(group) + i)));
    }
}

// What expanding needs to know of a format: SPAN depths per sixteen-column scale, and whether there are minimums.
template <Format F>
struct Traits {
    static constexpr int SPAN = F == Format::Q6_K ? 16 : GROUP;
    static constexpr bool HAS_MINIMUM = F == Format::Q4_1 || F == Format::Q4_K;
};

// Expands `depths` of a panel from depth `first` on (both multiples of GROUP) to 16-bit codes.
template <Format F>
HR_INLINE void to16(const uint8_t* panel, int first, int depths, Expanded& out) {
    constexpr int DEPTH = LAYOUTS[static_cast<int>(F)].depth, BYTES = LAYOUTS[static_cast<int>(F)].panel_bytes;
    for (int done = 0; done < depths; done += GROUP) {
        const int index = (first + done) / GROUP;
        const uint8_t* block = panel + static_cast<size_t>(index / (DEPTH / GROUP)) * BYTES;
        int16_t* codes = out.codes + done * COLUMNS;
        float* scale = out.scale + done / Traits<F>::SPAN * COLUMNS;
        float* minimum = out.minimum + done / GROUP * COLUMNS;
        if constexpr (F == Format::Q8_0) {
            halves(block, scale);
            signed16(block + HALF_BYTES, codes);
        } else if constexpr (F == Format::Q4_0) {
            halves(block, scale);
            nibbles16<8>(block + HALF_BYTES, codes);
        } else if constexpr (F == Format::Q4_1) {
            halves(block, scale);
            halves(block + HALF_BYTES, minimum);
            nibbles16<0>(block + 2 * HALF_BYTES, codes);
        } else if constexpr (F == Format::Q5_0) {
            halves(block, scale);
            wide16<1, 16>(block + HALF_BYTES, block + HALF_BYTES + Q5_BITS_BYTES, codes);
        } else if constexpr (F == Format::Q4_K) {
            const uint8_t* group = block + 2 * HALF_BYTES + index % (SUPER / GROUP) * Q4K_GROUP_BYTES;
            scales_q4_k(block, group, scale, minimum);
            nibbles16<0>(group + 2 * COLUMNS, codes);
        } else {
            const uint8_t* group = block + HALF_BYTES + index % (SUPER / GROUP) * Q6K_GROUP_BYTES;
            scales_q6_k(block, group, scale);
            wide16<2, 32>(group + 2 * COLUMNS, group + 2 * COLUMNS + Q6_BITS_BYTES, codes);
        }
    }
}

// The same to 8-bit codes, for the formats of four bits; there is always a minimum.
template <Format F>
HR_INLINE void to8(const uint8_t* panel, int first, int depths, Expanded& out) {
    constexpr int DEPTH = LAYOUTS[static_cast<int>(F)].depth, BYTES = LAYOUTS[static_cast<int>(F)].panel_bytes;
    for (int done = 0; done < depths; done += GROUP) {
        const int index = (first + done) / GROUP;
        const uint8_t* block = panel + static_cast<size_t>(index / (DEPTH / GROUP)) * BYTES;
        uint8_t* codes = out.bytes() + done * COLUMNS;
        float* scale = out.scale + done / GROUP * COLUMNS;
        float* minimum = out.minimum + done / GROUP * COLUMNS;
        if constexpr (F == Format::Q4_0) {
            halves(block, scale);
            scaled(scale, -8.0f, minimum);
            nibbles8(block + HALF_BYTES, codes);
        } else if constexpr (F == Format::Q4_1) {
            halves(block, scale);
            halves(block + HALF_BYTES, minimum);
            nibbles8(block + 2 * HALF_BYTES, codes);
        } else {
            static_assert(F == Format::Q4_K);
            const uint8_t* group = block + 2 * HALF_BYTES + index % (SUPER / GROUP) * Q4K_GROUP_BYTES;
            scales_q4_k(block, group, scale, minimum);
            nibbles8(group + 2 * COLUMNS, codes);
        }
    }
}

}  // namespace expand

}  // namespace hr
