// Files' rows, element by element: for packing and for embeddings.
#include "formats.h"

namespace hr {

namespace {

void read_nibbles(const uint8_t* packed, uint8_t* code) {
    for (int i = 0; i < GROUP / 2; ++i) {
        code[i] = packed[i] & 15;
        code[i + GROUP / 2] = packed[i] >> 4;
    }
}

void read_q5_0(const uint8_t* block, Codes& codes) {
    read_nibbles(block + 6, codes.code);
    uint32_t fifth;
    std::memcpy(&fifth, block + 2, sizeof fifth);
    for (int i = 0; i < GROUP; ++i) codes.code[i] |= (fifth >> i & 1) << 4;
}

void read_q4_k(const uint8_t* block, int group, Codes& codes) {
    const uint8_t* packed = block + 4;
    if (group < 4) {
        codes.scale = packed[group] & 63;
        codes.minimum = packed[group + 4] & 63;
    } else {
        codes.scale = (packed[group + 4] & 15) | packed[group - 4] >> 6 << 4;
        codes.minimum = packed[group + 4] >> 4 | packed[group] >> 6 << 4;
    }
    const uint8_t* nibbles = block + 16 + group / 2 * GROUP;
    for (int i = 0; i < GROUP; ++i) codes.code[i] = group % 2 ? nibbles[i] >> 4 : nibbles[i] & 15;
}

void read_q6_k(const uint8_t* block, int group, Codes& codes) {
    const int half = group / 4, quarter = group % 4;
    const uint8_t* low = block + half * 64 + quarter % 2 * GROUP;
    const uint8_t* high = block + 128 + half * GROUP;
    for (int i = 0; i < GROUP; ++i) {
        const int nibble = quarter / 2 ? low[i] >> 4 : low[i] & 15;
        codes.code[i] = static_cast<uint8_t>(nibble | (high[i] >> 2 * quarter & 3) << 4);
    }
    std::memcpy(codes.scales, block + 192 + group * 2, 2);
}

void read_group(Format format, const uint8_t* row, int index, float* out) {
    const Layout& shape = layout(format);
    const int groups = shape.depth / GROUP;
    const uint8_t* block = row + static_cast<size_t>(index / groups) * shape.block_bytes;
    const Codes codes = read_codes(format, row, index);
    const float scale = half_at(format == Format::Q6_K ? block + 208 : block);
    const float minimum = format == Format::Q4_1 || format == Format::Q4_K ? half_at(block + 2) : 0.0f;
    for (int i = 0; i < GROUP; ++i) {
        const int code = codes.code[i];
        switch (format) {
            case Format::Q8_0: out[i] = scale * static_cast<int8_t>(codes.code[i]); break;
            case Format::Q4_0: out[i] = scale * (code - 8); break;
            case Format::Q4_1: out[i] = scale * code + minimum; break;
            case Format::Q5_0: out[i] = scale * (code - 16); break;
            case Format::Q4_K: out[i] = scale * codes.scale * code - minimum * codes.minimum; break;
            default: out[i] = scale * static_cast<int8_t>(codes.scales[i / 16]) * (code - 32); break;
        }
    }
}

}  // namespace

Codes read_codes(Format format, const uint8_t* row, int index) {
    const Layout& shape = layout(format);
    const int groups = shape.depth / GROUP;
    const uint8_t* block = row + static_cast<size_t>(index / groups) * shape.block_bytes;
    Codes codes{};
    switch (format) {
        case Format::Q8_0: std::memcpy(codes.code, block + 2, GROUP); break;
        case Format::Q4_0: read_nibbles(block + 2, codes.code); break;
        case Format::Q4_1: read_nibbles(block + 4, codes.code); break;
        case Format::Q5_0: read_q5_0(block, codes); break;
        case Format::Q4_K: read_q4_k(block, index % groups, codes); break;
        case Format::Q6_K: read_q6_k(block, index % groups, codes); break;
        default: break;
    }
    return codes;
}

void read_row(Format format, const uint8_t* row, int k, float* out) {
    const uint16_t* halves = reinterpret_cast<const uint16_t*>(row);
    int i = 0;
    switch (format) {
        case Format::F32:
            std::memcpy(out, row, static_cast<size_t>(k) * sizeof(float));
            break;
        case Format::F16:
            for (; i + LANES <= k; i += LANES) store(out + i, load_f16(halves + i));
            for (; i < k; ++i) out[i] = half_at(row + 2 * static_cast<size_t>(i));
            break;
        case Format::BF16:
            for (; i < k; ++i) {
                uint16_t upper;
                std::memcpy(&upper, row + 2 * static_cast<size_t>(i), sizeof upper);
                const uint32_t word = static_cast<uint32_t>(upper) << 16;
                std::memcpy(out + i, &word, sizeof word);
            }
            break;
        default:
            for (; i < k / GROUP; ++i) read_group(format, row, i, out + static_cast<size_t>(i) * GROUP);
    }
}

}  // namespace hr
