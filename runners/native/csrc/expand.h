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

    uint8_t* bytes() { return reinterpret_cast<uint8_t*>(codes); }
    const uint8_t* bytes() const { return reinterpret_cast<const uint8_t*>(codes); }
};

namespace expand {

HR_INLINE void halves(const uint8_t* from, float* to) {
    const uint16_t* p = reinterpret_cast<const uint16_t*>(from);
    store(to, load_f16(p));
    store(to + LANES, load_f16(p + LANES));
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

// One quad whose upper bits (WIDTH of each code) lie at bit SHIFT of the bytes of `upper`.
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

template <int WIDTH, int SHIFT>
HR_INLINE void wide_quad8(bits v, bits upper, uint8_t* to) {
    const bits low = set16(0x0F0F), mask = set16(WIDTH == 1 ? 0x1010 : 0x3030);
    store_bits(to, or_bits(and_bits(v, low), and_bits(shift16<4 - SHIFT>(upper), mask)));
    store_bits(to + 32, or_bits(and_bits(shift_right16<4>(v), low), and_bits(shift16<4 - SHIFT - WIDTH>(upper), mask)));
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

template <int WIDTH>
HR_INLINE void wide8(const uint8_t* upper, const uint8_t* from, uint8_t* to) {
    if constexpr (WIDTH == 1) {
        for (int half = 0; half < 2; ++half, upper += 32, from += 128, to += 256) {
            const bits u = load_bits(upper);
            wide_quad8<1, 0>(load_bits(from), u, to);
            wide_quad8<1, 2>(load_bits(from + 32), u, to + 64);
            wide_quad8<1, 4>(load_bits(from + 64), u, to + 128);
            wide_quad8<1, 6>(load_bits(from + 96), u, to + 192);
        }
    } else {
        for (int quarter = 0; quarter < 4; ++quarter, upper += 32, from += 64, to += 128) {
            const bits u = load_bits(upper);
            wide_quad8<2, 0>(load_bits(from), u, to);
            wide_quad8<2, 4>(load_bits(from + 32), u, to + 64);
        }
    }
}

HR_INLINE void signed16(const uint8_t* from, int16_t* to) {
    const int8_t* p = reinterpret_cast<const int8_t*>(from);
#pragma GCC unroll 4
    for (int i = 0; i < GROUP * COLUMNS; i += 16) store_bits(to + i, widen_s8(p + i));
}

HR_INLINE void scales_q4_k(const uint8_t* head, const uint8_t* group, float* scale) {
    const uint16_t* p = reinterpret_cast<const uint16_t*>(head);
#pragma GCC unroll 2
    for (int i = 0; i < COLUMNS; i += LANES) store(scale + i, mul(load_f16(p + i), load_u8(group + i)));
}

HR_INLINE void scales_q6_k(const uint8_t* head, const uint8_t* group, float* scale) {
    const uint16_t* p = reinterpret_cast<const uint16_t*>(head);
#pragma GCC unroll 4
    for (int i = 0; i < 2 * COLUMNS; i += LANES) {
        store(scale + i, mul(load_f16(p + i % COLUMNS), load_s8(reinterpret_cast<const int8_t*>(group) + i)));
    }
}

// What the products need to know of a format: depths of one scale, and the code that means 0 (the 16-bit expansion
// subtracts it, the 8-bit kernel allows for it).
template <Format F>
struct Traits {
    static constexpr int SPAN = F == Format::Q6_K ? 16 : GROUP;
    static constexpr int ZERO = F == Format::Q4_0 ? 8 : F == Format::Q5_0 ? 16 : F == Format::Q6_K ? 32 : 0;
};

// Where group `index` of a panel is; `groups`: where its groups begin. head: of the K formats.
template <Format F>
struct Place {
    HR_INLINE Place(const uint8_t* groups, int index) {
        constexpr int PER_BLOCK = layout(F).depth / GROUP;
        head = groups + static_cast<size_t>(index / PER_BLOCK) * layout(F).panel_bytes;
        group = head;
        if constexpr (PER_BLOCK > 1) {
            constexpr int BYTES = F == Format::Q4_K ? Q4K_GROUP_BYTES : Q6K_GROUP_BYTES;
            group = head + HALF_BYTES + index % PER_BLOCK * BYTES;
        }
    }
    const uint8_t *head, *group;
};

template <Format F>
HR_INLINE void scales(const Place<F>& place, float* scale) {
    if constexpr (F == Format::Q4_K) {
        scales_q4_k(place.head, place.group, scale);
    } else if constexpr (F == Format::Q6_K) {
        scales_q6_k(place.head, place.group, scale);
    } else {
        halves(place.group, scale);
    }
}

// Expands `depths` of a panel from depth `first` on (both multiples of GROUP) to 16-bit codes.
template <Format F>
HR_INLINE void to16(const uint8_t* groups, int first, int depths, Expanded& out) {
    constexpr int ZERO = Traits<F>::ZERO;
    for (int done = 0; done < depths; done += GROUP) {
        const Place<F> place(groups, (first + done) / GROUP);
        scales<F>(place, out.scale + done / Traits<F>::SPAN * COLUMNS);
        int16_t* codes = out.codes + done * COLUMNS;
        if constexpr (F == Format::Q8_0) {
            signed16(place.group + HALF_BYTES, codes);
        } else if constexpr (F == Format::Q4_K) {
            nibbles16<ZERO>(place.group + COLUMNS, codes);
        } else if constexpr (F == Format::Q5_0) {
            wide16<1, ZERO>(place.group + HALF_BYTES, place.group + HALF_BYTES + Q5_BITS_BYTES, codes);
        } else if constexpr (F == Format::Q6_K) {
            wide16<2, ZERO>(place.group + 2 * COLUMNS, place.group + 2 * COLUMNS + Q6_BITS_BYTES, codes);
        } else {
            nibbles16<ZERO>(place.group + HALF_BYTES, codes);
        }
    }
}

// The same to 8-bit codes, which stay unsigned.
template <Format F>
HR_INLINE void to8(const uint8_t* groups, int first, int depths, Expanded& out) {
    for (int done = 0; done < depths; done += GROUP) {
        const Place<F> place(groups, (first + done) / GROUP);
        scales<F>(place, out.scale + done / Traits<F>::SPAN * COLUMNS);
        uint8_t* codes = out.bytes() + done * COLUMNS;
        if constexpr (F == Format::Q4_K) {
            nibbles8(place.group + COLUMNS, codes);
        } else if constexpr (F == Format::Q5_0) {
            wide8<1>(place.group + HALF_BYTES, place.group + HALF_BYTES + Q5_BITS_BYTES, codes);
        } else if constexpr (F == Format::Q6_K) {
            wide8<2>(place.group + 2 * COLUMNS, place.group + 2 * COLUMNS + Q6_BITS_BYTES, codes);
        } else {
            static_assert(F == Format::Q4_0 || F == Format::Q4_1);
            nibbles8(place.group + HALF_BYTES, codes);
        }
    }
}

// The minimums of one block of Q4_K, eight groups, as what is added: their negative.
HR_INLINE void minimums_q4_k(const uint8_t* from, float* to) {
    const uint16_t* p = reinterpret_cast<const uint16_t*>(from);
    const floats low = mul(load_f16(p), set1(-1.0f)), high = mul(load_f16(p + LANES), set1(-1.0f));
    from += HALF_BYTES;
    for (int group = 0; group < SUPER / GROUP; ++group, from += COLUMNS, to += COLUMNS) {
        store(to, mul(low, load_u8(from)));
        store(to + LANES, mul(high, load_u8(from + LANES)));
    }
}

}  // namespace expand

}  // namespace hr
