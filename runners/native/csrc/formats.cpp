// Files' rows, element by element: for embeddings, and for panels of floats.
#include "codes.h"

namespace hr {

namespace {

template <Format F>
void read_group(const uint8_t* row, int index, float* out) {
    const codes::Block<F> block(row, index);
    const float scale = half_at(block.bytes + codes::SCALE_PLACE<F>);
    const float minimum =
        F == Format::Q4_1 || F == Format::Q4_K ? half_at(block.bytes + codes::MINIMUM_PLACE) : 0.0f;
    for (int quad = 0; quad < QUADS; ++quad, out += 4) {
        uint8_t code[4];
        const uint32_t word = codes::quad(block, quad);
        std::memcpy(code, &word, sizeof code);
        for (int i = 0; i < 4; ++i) {
            if constexpr (F == Format::Q8_0) {
                out[i] = scale * static_cast<int8_t>(code[i]);
            } else if constexpr (F == Format::Q4_0) {
                out[i] = scale * (code[i] - 8);
            } else if constexpr (F == Format::Q4_1) {
                out[i] = scale * code[i] + minimum;
            } else if constexpr (F == Format::Q5_0) {
                out[i] = scale * (code[i] - 16);
            } else if constexpr (F == Format::Q4_K) {
                const codes::Factors factors = codes::factors_q4_k(block.bytes, block.group);
                out[i] = scale * factors.scale * code[i] - minimum * factors.minimum;
            } else {
                out[i] = scale * codes::factors_q6_k(block.bytes, block.group)[quad / 4] * (code[i] - 32);
            }
        }
    }
}

template <Format F>
void read_groups(const uint8_t* row, int k, float* out) {
    for (int index = 0; index < k / GROUP; ++index) read_group<F>(row, index, out + static_cast<size_t>(index) * GROUP);
}

void read_halves(const uint8_t* row, int k, float* out) {
    int i = 0;
    for (; i + LANES <= k; i += LANES) store(out + i, load_f16(reinterpret_cast<const uint16_t*>(row) + i));
    for (; i < k; ++i) out[i] = half_at(row + 2 * static_cast<size_t>(i));
}

void read_upper_halves(const uint8_t* row, int k, float* out) {
    for (int i = 0; i < k; ++i) {
        uint16_t upper;
        std::memcpy(&upper, row + 2 * static_cast<size_t>(i), sizeof upper);
        const uint32_t word = static_cast<uint32_t>(upper) << 16;
        std::memcpy(out + i, &word, sizeof word);
    }
}

}  // namespace

void read_row(Format format, const uint8_t* row, int k, float* out) {
    switch (format) {
        case Format::F32: std::memcpy(out, row, static_cast<size_t>(k) * sizeof(float)); break;
        case Format::F16: read_halves(row, k, out); break;
        case Format::BF16: read_upper_halves(row, k, out); break;
        case Format::Q8_0: read_groups<Format::Q8_0>(row, k, out); break;
        case Format::Q4_0: read_groups<Format::Q4_0>(row, k, out); break;
        case Format::Q4_1: read_groups<Format::Q4_1>(row, k, out); break;
        case Format::Q5_0: read_groups<Format::Q5_0>(row, k, out); break;
        case Format::Q4_K: read_groups<Format::Q4_K>(row, k, out); break;
        case Format::Q6_K: read_groups<Format::Q6_K>(row, k, out); break;
    }
}

}  // namespace hr
