// From a panel's quantised groups to what the kernels multiply: plain codes, and scales as floats. With many rows this
// happens once for all of them, into memory that stays in the first cache; with one or two, in registers on the way.
//
// 16-bit codes: pairs of depths of all columns, [pair][COLUMNS][2], in the order of Activations::numbers16.
// 8-bit codes: quads of depths of all columns, [quad][COLUMNS][4].
#pragma once

#include <type_traits>
#include <utility>

#include "formats.h"

namespace hr {

// Depths that are expanded at once: with the inputs of a tile's rows, they fit in the first cache.
constexpr int MAX_EXPANDED = 320;

struct Expanded {
    alignas(64) int16_t codes[MAX_EXPANDED * COLUMNS];  // or 8-bit codes, in the first half
    alignas(64) float scale[MAX_EXPANDED / 16 * COLUMNS];

    uint8_t* bytes() { return reinterpret_cast<uint8_t*>(codes); }
    const uint8_t* bytes() const { return reinterpret_cast<const uint8_t*>(codes); }
};

namespace expand {

// What the products need to know of a format: depths of one scale; the code that means 0 (16-bit codes have it
// subtracted, the 8-bit kernel allows for it); bits of a code above the lower four; where its codes begin in a group.
template <Format F>
struct Traits {
    static constexpr int SPAN = F == Format::Q6_K ? 16 : GROUP;
    static constexpr int ZERO = F == Format::Q4_0 ? 8 : F == Format::Q5_0 ? 16 : F == Format::Q6_K ? 32 : 0;
    static constexpr int UPPER_BITS = F == Format::Q5_0 ? 1 : F == Format::Q6_K ? 2 : 0;
    static constexpr int UPPER_PLACE = F == Format::Q6_K ? 2 * COLUMNS : HALF_BYTES;
    static constexpr int CODES_PLACE = F == Format::Q4_K   ? COLUMNS
                                       : F == Format::Q5_0 ? HALF_BYTES + Q5_BITS_BYTES
                                       : F == Format::Q6_K ? 2 * COLUMNS + Q6_BITS_BYTES
                                                           : HALF_BYTES;
    static constexpr int BLOCK_GROUPS = layout(F).depth / GROUP;
    static constexpr int GROUP_BYTES = F == Format::Q4_K   ? Q4K_GROUP_BYTES
                                       : F == Format::Q6_K ? Q6K_GROUP_BYTES
                                                           : layout(F).panel_bytes;
};

// Where group `index` of a panel is; `groups`: where its groups begin. head: of the K formats.
template <Format F>
struct Place {
    HR_INLINE Place(const uint8_t* groups, int index)
        : head(groups + static_cast<size_t>(index / Traits<F>::BLOCK_GROUPS) * layout(F).panel_bytes), group(head) {
        if constexpr (Traits<F>::BLOCK_GROUPS > 1) {
            group = head + HALF_BYTES + index % Traits<F>::BLOCK_GROUPS * Traits<F>::GROUP_BYTES;
        }
    }
    const uint8_t* codes(int quad) const {
        constexpr int QUAD_BYTES = F == Format::Q8_0 ? 64 : 32;
        return group + Traits<F>::CODES_PLACE + quad * QUAD_BYTES;
    }
    const uint8_t *head, *group;
};

// The scales of a group: COLUMNS floats for every span.
template <Format F>
HR_INLINE void scales(const Place<F>& place, float* to) {
    const uint16_t* p = reinterpret_cast<const uint16_t*>(place.head);
    const floats low = load_f16(p), high = load_f16(p + LANES);
    if constexpr (F == Format::Q4_K) {
        store(to, mul(low, load_u8(place.group)));
        store(to + LANES, mul(high, load_u8(place.group + LANES)));
    } else if constexpr (F == Format::Q6_K) {
        const int8_t* factor = reinterpret_cast<const int8_t*>(place.group);
        store(to, mul(low, load_s8(factor)));
        store(to + LANES, mul(high, load_s8(factor + LANES)));
        store(to + COLUMNS, mul(low, load_s8(factor + COLUMNS)));
        store(to + COLUMNS + LANES, mul(high, load_s8(factor + COLUMNS + LANES)));
    } else {
        store(to, low);
        store(to + LANES, high);
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

// The upper bits of a quad's codes, at their place above the lower four: of depths 0 and 2 (AT 0) or 1 and 3 (AT 8) of
// the lower or upper eight columns, in 16-bit lanes.
template <Format F, int QUAD, int UPPER_COLUMNS, int AT>
HR_INLINE bits upper_bits(const Place<F>& place, bits mask) {
    constexpr int WIDTH = Traits<F>::UPPER_BITS, QUADS_PER_VECTOR = 4 / WIDTH;
    constexpr int SHIFT = (2 * (QUAD % QUADS_PER_VECTOR) + UPPER_COLUMNS) * WIDTH + AT;
    const bits packed = load_bits(place.group + Traits<F>::UPPER_PLACE + QUAD / QUADS_PER_VECTOR * 32);
    return and_bits(shift16<4 - SHIFT>(packed), mask);
}

// One quad to 16 bits: depths 0 and 2 of columns 0 to 7, of columns 8 to 15, then depths 1 and 3 of the same.
template <Format F, int QUAD>
HR_INLINE void quad16(const Place<F>& place, bits (&to)[4]) {
    if constexpr (F == Format::Q8_0) {
        const int8_t* p = reinterpret_cast<const int8_t*>(place.codes(QUAD));
        to[0] = widen_s8(p), to[1] = widen_s8(p + 16), to[2] = widen_s8(p + 32), to[3] = widen_s8(p + 48);
        return;
    }
    const bits low = set16(15), v = load_bits(place.codes(QUAD));
    to[0] = and_bits(v, low);
    to[1] = and_bits(shift_right16<4>(v), low);
    to[2] = and_bits(shift_right16<8>(v), low);
    to[3] = shift_right16<12>(v);
    if constexpr (Traits<F>::UPPER_BITS > 0) {
        const bits mask = set16(Traits<F>::UPPER_BITS == 1 ? 0x10 : 0x30);
        to[0] = or_bits(to[0], upper_bits<F, QUAD, 0, 0>(place, mask));
        to[1] = or_bits(to[1], upper_bits<F, QUAD, 1, 0>(place, mask));
        to[2] = or_bits(to[2], upper_bits<F, QUAD, 0, 8>(place, mask));
        to[3] = or_bits(to[3], upper_bits<F, QUAD, 1, 8>(place, mask));
    }
    if constexpr (Traits<F>::ZERO > 0) {
        const bits zero_point = set16(Traits<F>::ZERO);
        to[0] = sub16(to[0], zero_point), to[1] = sub16(to[1], zero_point);
        to[2] = sub16(to[2], zero_point), to[3] = sub16(to[3], zero_point);
    }
}

// One quad to 8 bits, unsigned: columns 0 to 7, columns 8 to 15.
template <Format F, int QUAD>
HR_INLINE void quad8(const Place<F>& place, bits (&to)[2]) {
    static_assert(F != Format::Q8_0);
    const bits low = set16(0x0F0F), v = load_bits(place.codes(QUAD));
    to[0] = and_bits(v, low);
    to[1] = and_bits(shift_right16<4>(v), low);
    if constexpr (Traits<F>::UPPER_BITS > 0) {
        const bits mask = set16(Traits<F>::UPPER_BITS == 1 ? 0x1010 : 0x3030);
        to[0] = or_bits(to[0], upper_bits<F, QUAD, 0, 0>(place, mask));
        to[1] = or_bits(to[1], upper_bits<F, QUAD, 1, 0>(place, mask));
    }
}

// Calls run(integral_constant) for 0 to N - 1.
template <int N, class Run>
HR_INLINE void repeat(Run&& run) {
    [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
        (run(std::integral_constant<int, I>{}), ...);
    }(std::make_integer_sequence<int, N>{});
}

// Expands `depths` of a panel from depth `first` on (both multiples of GROUP) to 16-bit codes.
template <Format F>
HR_INLINE void to16(const uint8_t* groups, int first, int depths, Expanded& out) {
    for (int done = 0; done < depths; done += GROUP) {
        const Place<F> place(groups, (first + done) / GROUP);
        scales<F>(place, out.scale + done / Traits<F>::SPAN * COLUMNS);
        int16_t* codes = out.codes + done * COLUMNS;
        repeat<QUADS>([&](auto quad) __attribute__((always_inline)) {
            bits v[4];
            quad16<F, quad>(place, v);
            store_bits(codes + quad * 64, v[0]), store_bits(codes + quad * 64 + 16, v[1]);
            store_bits(codes + quad * 64 + 32, v[2]), store_bits(codes + quad * 64 + 48, v[3]);
        });
    }
}

// The same to 8-bit codes, which stay unsigned.
template <Format F>
HR_INLINE void to8(const uint8_t* groups, int first, int depths, Expanded& out) {
    for (int done = 0; done < depths; done += GROUP) {
        const Place<F> place(groups, (first + done) / GROUP);
        scales<F>(place, out.scale + done / Traits<F>::SPAN * COLUMNS);
        uint8_t* codes = out.bytes() + done * COLUMNS;
        repeat<QUADS>([&](auto quad) __attribute__((always_inline)) {
            bits v[2];
            quad8<F, quad>(place, v);
            store_bits(codes + quad * 64, v[0]), store_bits(codes + quad * 64 + 32, v[1]);
        });
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
