// From files' rows to panels.
#include "codes.h"
#include "expand.h"
#include "matrix.h"

namespace hr {

namespace {

// The rows of a file that become the columns of one panel.
struct Rows {
    const uint8_t* row[COLUMNS];
    int count;
};

HR_INLINE void put(uint8_t* to, int index, uint32_t word) { std::memcpy(to + 4 * index, &word, sizeof word); }

// Copies one f16 of each column's block.
uint8_t* pack_halves(const Rows& rows, size_t offset, uint8_t* out) {
    std::memset(out, 0, HALF_BYTES);
    for (int column = 0; column < rows.count; ++column) std::memcpy(out + 2 * column, rows.row[column] + offset, 2);
    return out + HALF_BYTES;
}

template <Format F>
uint8_t* pack_minimums(const Rows& rows, int k, uint8_t* out) {
    for (int block = 0; block < k / layout(F).depth; ++block) {
        const size_t start = static_cast<size_t>(block) * layout(F).block_bytes;
        out = pack_halves(rows, start + codes::MINIMUM_PLACE, out);
        for (int group = 0; F == Format::Q4_K && group < SUPER / GROUP; ++group, out += COLUMNS) {
            std::memset(out, 0, COLUMNS);
            for (int i = 0; i < rows.count; ++i) out[i] = codes::factors_q4_k(rows.row[i] + start, group).minimum;
        }
    }
    return out;
}

template <Format F>
void pack_factors(const Rows& rows, int index, uint8_t* out) {
    for (int column = 0; column < rows.count; ++column) {
        const codes::Block<F> block(rows.row[column], index);
        if constexpr (F == Format::Q4_K) {
            out[column] = codes::factors_q4_k(block.bytes, block.group).scale;
        } else {
            const int8_t* factors = codes::factors_q6_k(block.bytes, block.group);
            out[column] = static_cast<uint8_t>(factors[0]);
            out[column + COLUMNS] = static_cast<uint8_t>(factors[1]);
        }
    }
}

// Puts one quad of all columns into a group's codes and upper bits, as formats.h draws them.
template <Format F>
HR_INLINE void pack_quad(const uint32_t* words, int quad, uint8_t* group) {
    using Traits = expand::Traits<F>;
    uint8_t* to = group + Traits::CODES_PLACE;
    if constexpr (F == Format::Q8_0) {
        to += quad * 64;
        for (int column = 0; column < COLUMNS; ++column) {
            const uint32_t word = words[column];
            const uint16_t even = static_cast<uint16_t>((word & 0xFF) | (word >> 8 & 0xFF00));
            const uint16_t odd = static_cast<uint16_t>((word >> 8 & 0xFF) | (word >> 16 & 0xFF00));
            std::memcpy(to + 2 * column, &even, sizeof even);
            std::memcpy(to + 32 + 2 * column, &odd, sizeof odd);
        }
        return;
    }
    for (int column = 0; column < 8; ++column) {
        const uint32_t low = words[column] & codes::NIBBLES, high = words[column + 8] & codes::NIBBLES;
        put(to + quad * 32, column, low | high << 4);
    }
    if constexpr (Traits::UPPER_BITS > 0) {
        constexpr int WIDTH = Traits::UPPER_BITS, QUADS_PER_VECTOR = 4 / WIDTH;
        uint8_t* upper = group + Traits::UPPER_PLACE + quad / QUADS_PER_VECTOR * 32;
        const int shift = 2 * (quad % QUADS_PER_VECTOR) * WIDTH;
        for (int column = 0; column < 8; ++column) {
            const uint32_t low = words[column] >> 4 & codes::PAIRS, high = words[column + 8] >> 4 & codes::PAIRS;
            put(upper, column, codes::word_at(upper + 4 * column) | low << shift | high << (shift + WIDTH));
        }
    }
}

template <Format F>
void pack_panel(const Rows& rows, int k, uint8_t* panel) {
    using Traits = expand::Traits<F>;
    if constexpr (layout(F).minimum_bytes > 0) panel = pack_minimums<F>(rows, k, panel);
    for (int index = 0; index < k / GROUP; ++index) {
        if (index % Traits::BLOCK_GROUPS == 0) {
            const size_t start = static_cast<size_t>(index / Traits::BLOCK_GROUPS) * layout(F).block_bytes;
            pack_halves(rows, start + codes::SCALE_PLACE<F>, panel);
            if constexpr (Traits::BLOCK_GROUPS > 1) panel += HALF_BYTES;
        }
        if constexpr (Traits::BLOCK_GROUPS > 1) pack_factors<F>(rows, index, panel);
        for (int quad = 0; quad < QUADS; ++quad) {
            uint32_t words[COLUMNS] = {};
            for (int i = 0; i < rows.count; ++i) words[i] = codes::quad(codes::Block<F>(rows.row[i], index), quad);
            pack_quad<F>(words, quad, panel);
        }
        panel += Traits::GROUP_BYTES;
    }
}

void pack_quantised(Format format, const Rows& rows, int k, uint8_t* panel) {
    switch (format) {
        case Format::Q8_0: return pack_panel<Format::Q8_0>(rows, k, panel);
        case Format::Q4_0: return pack_panel<Format::Q4_0>(rows, k, panel);
        case Format::Q4_1: return pack_panel<Format::Q4_1>(rows, k, panel);
        case Format::Q5_0: return pack_panel<Format::Q5_0>(rows, k, panel);
        case Format::Q4_K: return pack_panel<Format::Q4_K>(rows, k, panel);
        default: return pack_panel<Format::Q6_K>(rows, k, panel);
    }
}

uint16_t upper_half(float value) {
    uint32_t word;
    std::memcpy(&word, &value, sizeof word);
    const bool is_nan = (word & 0x7FFFFFFF) > 0x7F800000;
    return static_cast<uint16_t>(is_nan ? word >> 16 | 64 : (word + 0x7FFF + (word >> 16 & 1)) >> 16);
}

void store_as(Format format, const float* values, uint8_t* out) {
    if (format == Format::F32) {
        std::memcpy(out, values, COLUMNS * sizeof(float));
    } else if (format == Format::F16) {
        uint16_t* halves = reinterpret_cast<uint16_t*>(out);
        store_f16(halves, load(values));
        store_f16(halves + LANES, load(values + LANES));
    } else {
        uint16_t halves[COLUMNS];
        for (int i = 0; i < COLUMNS; ++i) halves[i] = upper_half(values[i]);
        std::memcpy(out, halves, sizeof halves);
    }
}

void pack_floats(Format source, Format format, const Rows& rows, int k, uint8_t* panel) {
    thread_local Buffer<float> buffer;
    float* values = buffer.need(static_cast<size_t>(k) * COLUMNS);
    std::memset(values, 0, sizeof(float) * k * COLUMNS);
    for (int i = 0; i < rows.count; ++i) read_row(source, rows.row[i], k, values + static_cast<size_t>(i) * k);
    for (int depth = 0; depth < k; ++depth, panel += layout(format).panel_bytes) {
        float across[COLUMNS];
        for (int i = 0; i < COLUMNS; ++i) across[i] = values[static_cast<size_t>(i) * k + depth];
        store_as(format, across, panel);
    }
}

}  // namespace

void Matrix::pack(Team& team, Format source, const uint8_t* rows, const int32_t* order) {
    const size_t stride = row_bytes(source, k);
    team.run(1, [&](Team::Member& me) {
        me.share(num_panels, [&](int begin, int end) {
            for (int index = begin; index < end; ++index) {
                Rows columns;
                const int first = index * COLUMNS;
                columns.count = std::min(COLUMNS, n - first);
                for (int i = 0; i < columns.count; ++i) {
                    columns.row[i] = rows + stride * (order ? order[first + i] : first + i);
                }
                uint8_t* out = region.get() + bytes_per_panel * index;
                if (is_quantised(format)) {
                    pack_quantised(format, columns, k, out);
                } else {
                    pack_floats(source, format, columns, k, out);
                }
            }
        });
    });
}

}  // namespace hr
