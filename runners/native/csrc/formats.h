// How weights are stored: GGUF's blocks (and plain arrays) as files hold them, and the panels the kernels read.
//
// A panel is COLUMNS output columns of a matrix over its whole depth k, the depth outermost, so that a kernel streams it
// from front to back. Quantised panels hold the file's own numbers in another order:
//
//   format   for every GROUP of 32 depths (K formats: behind a head for every 256 depths)
//   Q8_0     scale f16[16], codes s8[512]
//   Q4_0     scale f16[16], codes u4[512]
//   Q4_1     scale f16[16], codes u4[512]
//   Q5_0     scale f16[16], fifth bits[512], codes u4[512]
//   Q4_K     head: scale f16[16]; group: scale u8[16], codes u4[512]
//   Q6_K     head: scale f16[16]; group: scale s8[2][16], upper bits u2[512], codes u4[512]
//
// Before all groups come the minimums, where a format has some; they are a matrix of their own that meets the sums of
// the inputs' groups. Q4_1: f16[16] for every group. Q4_K: for every 256 depths f16[16], then u8[16] for every group.
//
// The codes of four depths ("a quad") of all columns lie together, 64 of them: code (depth d, column c) of a quad has the
// place c * 4 + d. A byte of u4 codes holds place p of columns 0 to 7 in its low half and of columns 8 to 15 in its high
// half. Q8_0 has its own order, ready for widening: place (d % 2) * 32 + c * 2 + d / 2.
// Source of the block layouts: ggml, ggml-common.h and ggml-quants.c.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd.h"

namespace hr {

enum class Format : int32_t { F32 = 0, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q4_K, Q6_K };
constexpr int NUM_FORMATS = 9;

constexpr int COLUMNS = 16;
constexpr int GROUP = 32;
constexpr int SUPER = 256;
constexpr int QUADS = GROUP / 4;
constexpr int HALF_BYTES = COLUMNS * 2;         // one f16 per column
constexpr int NIBBLE_BYTES = GROUP * COLUMNS / 2;
constexpr int Q5_BITS_BYTES = GROUP * COLUMNS / 8;
constexpr int Q6_BITS_BYTES = GROUP * COLUMNS / 4;
constexpr int Q4K_GROUP_BYTES = COLUMNS + NIBBLE_BYTES;
constexpr int Q6K_GROUP_BYTES = 2 * COLUMNS + Q6_BITS_BYTES + NIBBLE_BYTES;
constexpr int Q4K_SUPER_BYTES = HALF_BYTES + SUPER / GROUP * Q4K_GROUP_BYTES;
constexpr int Q6K_SUPER_BYTES = HALF_BYTES + SUPER / GROUP * Q6K_GROUP_BYTES;
constexpr int Q4K_MINIMUM_BYTES = HALF_BYTES + SUPER / GROUP * COLUMNS;

struct Layout {
    int depth;        // elements of one block of a file's row
    int block_bytes;  // of such a block
    int panel_bytes;  // of one block's depth in a panel
    int minimum_bytes;  // of one block's depth before the groups
};

constexpr Layout LAYOUTS[NUM_FORMATS] = {
    {1, 4, COLUMNS * 4, 0},
    {1, 2, COLUMNS * 2, 0},
    {1, 2, COLUMNS * 2, 0},
    {GROUP, 34, HALF_BYTES + GROUP * COLUMNS, 0},
    {GROUP, 18, HALF_BYTES + NIBBLE_BYTES, 0},
    {GROUP, 20, HALF_BYTES + NIBBLE_BYTES, HALF_BYTES},
    {GROUP, 22, HALF_BYTES + Q5_BITS_BYTES + NIBBLE_BYTES, 0},
    {SUPER, 144, Q4K_SUPER_BYTES, Q4K_MINIMUM_BYTES},
    {SUPER, 210, Q6K_SUPER_BYTES, 0},
};

constexpr const Layout& layout(Format format) { return LAYOUTS[static_cast<int>(format)]; }

inline bool is_quantised(Format format) { return static_cast<int>(format) >= static_cast<int>(Format::Q8_0); }
inline size_t row_bytes(Format format, int k) {
    return static_cast<size_t>(k / layout(format).depth) * layout(format).block_bytes;
}
// Where the groups of a panel begin.
inline size_t minimum_bytes(Format format, int k) {
    return static_cast<size_t>(k / layout(format).depth) * layout(format).minimum_bytes;
}
inline size_t panel_bytes(Format format, int k) {
    return static_cast<size_t>(k / layout(format).depth) * (layout(format).panel_bytes + layout(format).minimum_bytes);
}

inline float half_at(const uint8_t* p) {
    uint16_t eight[LANES] = {};
    std::memcpy(eight, p, sizeof(uint16_t));
    float value[LANES];
    store(value, load_f16(eight));
    return value[0];
}

// Writes k elements of a file's row as floats.
void read_row(Format format, const uint8_t* row, int k, float* out);

}  // namespace hr
