// Elements of a quantised row, four at a time, as files' blocks hold them.
// Source of the block layouts: ggml, ggml-common.h and ggml-quants.c.
#pragma once

#include "formats.h"

namespace hr::codes {

constexpr uint32_t NIBBLES = 0x0F0F0F0F, PAIRS = 0x03030303, BITS = 0x01010101;

HR_INLINE uint32_t word_at(const uint8_t* p) {
    uint32_t word;
    std::memcpy(&word, p, sizeof word);
    return word;
}

// The block that holds group `index` of a row, and the group's place in it.
template <Format F>
struct Block {
    static constexpr int GROUPS = layout(F).depth / GROUP;
    HR_INLINE Block(const uint8_t* row, int index)
        : bytes(row + static_cast<size_t>(index / GROUPS) * layout(F).block_bytes), group(index % GROUPS) {}
    const uint8_t* bytes;
    int group;
};

// The codes of elements 4 * quad to 4 * quad + 3 of a group, a byte each; those of Q8_0 are signed.
template <Format F>
HR_INLINE uint32_t quad(const Block<F>& block, int quad) {
    const uint8_t* p = block.bytes;
    if constexpr (F == Format::Q8_0) {
        return word_at(p + 2 + 4 * quad);
    } else if constexpr (F == Format::Q4_K) {
        return word_at(p + 16 + block.group / 2 * GROUP + 4 * quad) >> (block.group % 2 * 4) & NIBBLES;
    } else if constexpr (F == Format::Q6_K) {
        const int half = block.group / 4, quarter = block.group % 4;
        const uint32_t low = word_at(p + half * 64 + quarter % 2 * GROUP + 4 * quad) >> (quarter / 2 * 4) & NIBBLES;
        return low | (word_at(p + 128 + half * GROUP + 4 * quad) >> (2 * quarter) & PAIRS) << 4;
    } else {
        constexpr int START = F == Format::Q4_0 ? 2 : F == Format::Q4_1 ? 4 : 6;
        const uint32_t low = word_at(p + START + quad % 4 * 4) >> (quad / 4 * 4) & NIBBLES;
        if constexpr (F == Format::Q5_0) {
            const uint32_t fifth = word_at(p + 2) >> (4 * quad) & 15;  // spread to one bit per byte
            return low | (fifth * 0x00204081 & BITS) << 4;
        }
        return low;
    }
}

// A group's own factors of Q4_K, 6 bits each.
struct Factors {
    uint8_t scale, minimum;
};

HR_INLINE Factors factors_q4_k(const uint8_t* block, int group) {
    const uint8_t* p = block + 4;
    if (group < 4) return {static_cast<uint8_t>(p[group] & 63), static_cast<uint8_t>(p[group + 4] & 63)};
    return {static_cast<uint8_t>((p[group + 4] & 15) | p[group - 4] >> 6 << 4),
            static_cast<uint8_t>(p[group + 4] >> 4 | p[group] >> 6 << 4)};
}

// A group's own factors of Q6_K, signed, one for every 16 elements.
HR_INLINE const int8_t* factors_q6_k(const uint8_t* block, int group) {
    return reinterpret_cast<const int8_t*>(block + 192 + group * 2);
}

// Where a block has its scale and its minimum, both f16.
template <Format F>
constexpr int SCALE_PLACE = F == Format::Q6_K ? 208 : 0;
constexpr int MINIMUM_PLACE = 2;

}  // namespace hr::codes
