// From files' rows to panels.
#include "matrix.h"

namespace hr {

namespace {

constexpr int QUAD_CODES = COLUMNS * 4;

// Codes of one group of all columns, by quad and place.
using Group = uint8_t[QUADS][QUAD_CODES];

void pack_nibbles(const Group& codes, uint8_t* out) {
    for (int quad = 0; quad < QUADS; ++quad) {
        for (int i = 0; i < 32; ++i) {
            *out++ = static_cast<uint8_t>((codes[quad][i] & 15) | (codes[quad][i + 32] & 15) << 4);
        }
    }
}

// Gathers what lies above the low four bits of each code, `width` bits of it, as the expansion takes it apart:
// 32 bytes serve 4 / width quads; byte i holds place i of each quad's two halves.
void pack_upper_bits(const Group& codes, int width, uint8_t* out) {
    const int quads = 4 / width;
    std::memset(out, 0, static_cast<size_t>(QUADS / quads) * 32);
    for (int quad = 0; quad < QUADS; ++quad) {
        for (int i = 0; i < QUAD_CODES; ++i) {
            const int shift = (2 * (quad % quads) + i / 32) * width;
            out[quad / quads * 32 + i % 32] |= static_cast<uint8_t>(codes[quad][i] >> 4 << shift);
        }
    }
}

void pack_signed(const Group& codes, uint8_t* out) {
    for (int quad = 0; quad < QUADS; ++quad, out += QUAD_CODES) {
        for (int i = 0; i < QUAD_CODES; ++i) {
            const int column = i / 4, depth = i % 4;
            out[depth % 2 * 32 + column * 2 + depth / 2] = codes[quad][i];
        }
    }
}

// Copies one f16 of each column's block.
uint8_t* pack_halves(const uint8_t* const* rows, int count, size_t offset, uint8_t* out) {
    std::memset(out, 0, HALF_BYTES);
    for (int column = 0; column < count; ++column) std::memcpy(out + 2 * column, rows[column] + offset, 2);
    return out + HALF_BYTES;
}

uint8_t* pack_head(Format format, const uint8_t* const* rows, int count, int block, uint8_t* out) {
    const size_t start = static_cast<size_t>(block) * layout(format).block_bytes;
    return pack_halves(rows, count, format == Format::Q6_K ? start + 208 : start, out);
}

uint8_t* pack_minimums(Format format, const uint8_t* const* rows, int count, int k, uint8_t* out) {
    if (layout(format).minimum_bytes == 0) return out;
    const int groups = layout(format).depth / GROUP;
    for (int block = 0; block < k / layout(format).depth; ++block) {
        out = pack_halves(rows, count, static_cast<size_t>(block) * layout(format).block_bytes + 2, out);
        for (int group = 0; format == Format::Q4_K && group < groups; ++group, out += COLUMNS) {
            std::memset(out, 0, COLUMNS);
            for (int i = 0; i < count; ++i) out[i] = read_codes(format, rows[i], block * groups + group).minimum;
        }
    }
    return out;
}

uint8_t* pack_group(Format format, const uint8_t* const* rows, int count, int index, uint8_t* out) {
    Group places = {};
    Codes codes[COLUMNS] = {};
    for (int column = 0; column < count; ++column) {
        codes[column] = read_codes(format, rows[column], index);
        for (int i = 0; i < GROUP; ++i) places[i / 4][column * 4 + i % 4] = codes[column].code[i];
    }
    if (format == Format::Q8_0) {
        pack_signed(places, out);
        return out + GROUP * COLUMNS;
    }
    for (int column = 0; column < COLUMNS; ++column) {
        if (format == Format::Q4_K) {
            out[column] = codes[column].scale;
        } else if (format == Format::Q6_K) {
            out[column] = codes[column].scales[0];
            out[column + COLUMNS] = codes[column].scales[1];
        }
    }
    if (format == Format::Q4_K) {
        out += COLUMNS;
    } else if (format == Format::Q5_0) {
        pack_upper_bits(places, 1, out);
        out += Q5_BITS_BYTES;
    } else if (format == Format::Q6_K) {
        pack_upper_bits(places, 2, out + 2 * COLUMNS);
        out += 2 * COLUMNS + Q6_BITS_BYTES;
    }
    pack_nibbles(places, out);
    return out + NIBBLE_BYTES;
}

void pack_quantised(Format format, const uint8_t* const* rows, int count, int k, uint8_t* panel) {
    const int groups = layout(format).depth / GROUP;
    panel = pack_minimums(format, rows, count, k, panel);
    for (int index = 0; index < k / GROUP; ++index) {
        if (index % groups == 0) panel = pack_head(format, rows, count, index / groups, panel);
        panel = pack_group(format, rows, count, index, panel);
    }
}

void store_as(Format format, const float* values, uint8_t* out) {
    if (format == Format::F32) {
        std::memcpy(out, values, COLUMNS * sizeof(float));
    } else if (format == Format::F16) {
        uint16_t* halves = reinterpret_cast<uint16_t*>(out);
        store_f16(halves, load(values));
        store_f16(halves + LANES, load(values + LANES));
    } else {
        for (int i = 0; i < COLUMNS; ++i) {
            uint32_t word;
            std::memcpy(&word, values + i, sizeof word);
            const bool is_nan = (word & 0x7FFFFFFF) > 0x7F800000;
            const uint16_t upper = static_cast<uint16_t>(is_nan ? word >> 16 | 64 : (word + 0x7FFF + (word >> 16 & 1)) >> 16);
            std::memcpy(out + 2 * i, &upper, sizeof upper);
        }
    }
}

}  // namespace

void Matrix::pack_floats(Format source, const uint8_t* const* rows, int count, uint8_t* panel) const {
    thread_local Buffer<float> buffer;
    float* values = buffer.need(static_cast<size_t>(k) * count);
    for (int column = 0; column < count; ++column) {
        read_row(source, rows[column], k, values + static_cast<size_t>(column) * k);
    }
    for (int depth = 0; depth < k; ++depth, panel += layout(format).panel_bytes) {
        float across[COLUMNS] = {};
        for (int column = 0; column < count; ++column) across[column] = values[static_cast<size_t>(column) * k + depth];
        store_as(format, across, panel);
    }
}

void Matrix::pack(Team& team, Format source, const uint8_t* rows, const int32_t* order) {
    const size_t stride = row_bytes(source, k);
    team.run([&](int) {
        team.share(num_panels, [&](int begin, int end) {
            for (int index = begin; index < end; ++index) {
                const int first = index * COLUMNS, count = std::min(COLUMNS, n - first);
                const uint8_t* column_rows[COLUMNS];
                for (int i = 0; i < count; ++i) column_rows[i] = rows + stride * (order ? order[first + i] : first + i);
                uint8_t* out = region.get() + bytes_per_panel * index;
                if (is_quantised(format)) {
                    pack_quantised(format, column_rows, count, k, out);
                } else {
                    pack_floats(source, column_rows, count, out);
                }
            }
        });
    });
}

}  // namespace hr
