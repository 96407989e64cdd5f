#include "gemm.h"

#include <array>

#include "elementwise.h"
#include "kernels.h"

namespace hr {

namespace {

// Rows that share one expansion of a panel; their inputs stay in the second cache, their outputs in the first.
constexpr int ROW_BLOCK = 96;
// Rows of a tile of 8-bit inputs, whose products are short: with more of them, sums of groups leave the registers.
constexpr int TILE8 = 4;
// Depths taken at once, so that weights stay in the first cache too.
constexpr int PIECE = MAX_EXPANDED;
// With so many rows, quantised panels are multiplied without being expanded to memory.
constexpr int DIRECT_ROWS = 3;
// With as few rows, depths of 16-bit numbers taken at once: what is fetched ahead is used while it is still near.
constexpr int SHORT_PIECE = 64;

using Tile = float[ROW_BLOCK * COLUMNS];

// Where the inputs of a tile's rows are, from the first depth of a piece on.
template <class Number>
struct Inputs {
    const Number* numbers[TILE];
    const float* scale[TILE];
    const int16_t* offsets[TILE];
};

// Compiled once for each number of rows; not inlined, since formats share them.
template <Format F, int R>
__attribute__((noinline)) void floats_tile(const uint8_t* from, const Inputs<float>& in, int depths, const uint8_t* ahead,
                                           size_t ahead_step, float* out) {
    kernel::floats_tile<F, R>(from, in.numbers, depths, ahead, ahead_step, out);
}
template <int SPAN, int R>
__attribute__((noinline)) void tile16(const Expanded& w, const Inputs<int16_t>& in, int depths, float* out) {
    kernel::tile16<R, SPAN>(w, in.numbers, in.scale, depths, out);
}
template <int SPAN, int ZERO, int R>
__attribute__((noinline)) void tile8(const Expanded& w, const Inputs<int8_t>& in, int depths, float* out) {
    kernel::tile8<R, SPAN, ZERO>(w, in.numbers, in.scale, in.offsets, depths, out);
}

template <Format F>
constexpr auto FLOATS_TILES = std::array{floats_tile<F, 1>, floats_tile<F, 2>, floats_tile<F, 3>,
                                         floats_tile<F, 4>, floats_tile<F, 5>, floats_tile<F, 6>};
template <int SPAN>
constexpr auto TILES16 = std::array{tile16<SPAN, 1>, tile16<SPAN, 2>, tile16<SPAN, 3>,
                                    tile16<SPAN, 4>, tile16<SPAN, 5>, tile16<SPAN, 6>};
template <int SPAN, int ZERO>
constexpr auto TILES8 = std::array{tile8<SPAN, ZERO, 1>, tile8<SPAN, ZERO, 2>, tile8<SPAN, ZERO, 3>, tile8<SPAN, ZERO, 4>};

template <Format F>
constexpr auto DIRECT16 = std::array{kernel::direct16<F, 1>, kernel::direct16<F, 2>, kernel::direct16<F, 3>};
template <Format F>
constexpr auto DIRECT8 = std::array{kernel::direct8<F, 1>, kernel::direct8<F, 2>, kernel::direct8<F, 3>};

// Splits rows into tiles of nearly equal size, MOST rows at most, and calls run(first row, number of rows, which tile of
// how many) for each.
template <int MOST, class Run>
HR_INLINE void for_tiles(int rows, Run&& run) {
    const int tiles = (rows + MOST - 1) / MOST;
    for (int i = 0; i < tiles; ++i) {
        const int begin = rows * i / tiles;
        run(begin, rows * (i + 1) / tiles - begin, i, tiles);
    }
}

// Bytes of a whole piece of a panel.
template <Format F>
constexpr size_t PIECE_BYTES = static_cast<size_t>(PIECE) * layout(F).panel_bytes / layout(F).depth;

// Fetches one part of so many of the piece that begins at `from`.
template <Format F>
HR_INLINE void fetch_part(const uint8_t* from, int part, int parts) {
    const size_t step = (PIECE_BYTES<F> / parts + 63) / 64 * 64;
    for (size_t i = part * step; i < (part + 1) * step; i += 64) prefetch(from + i);
}

// Adds floats (rows of `stride`) from `depth` on times `depths` of a panel of floats.
template <Format F>
void add_floats(const uint8_t* from, const float* in, int stride, int row, int rows, int depth, int depths, float* out) {
    const uint8_t* next = from + static_cast<size_t>(depths) * layout(F).panel_bytes;
    for_tiles<TILE>(rows, [&](int first, int size, int index, int count) {
        Inputs<float> tile;
        for (int r = 0; r < size; ++r) tile.numbers[r] = in + static_cast<size_t>(row + first + r) * stride + depth;
        const size_t step = layout(F).panel_bytes / count;
        FLOATS_TILES<F>[size - 1](from, tile, depths, next + index * depths * step, step, out + first * COLUMNS);
    });
}

template <Format F>
void panel_of_floats(const uint8_t* panel, const Activations& in, int row, int rows, float* out) {
    const int piece = F != Format::F32 && rows <= DIRECT_ROWS ? SHORT_PIECE : PIECE;
    for (int depth = 0; depth < in.k; depth += piece) {
        const int depths = std::min(piece, in.k - depth);
        const uint8_t* from = panel + static_cast<size_t>(depth) * layout(F).panel_bytes;
        add_floats<F>(from, in.floats, in.k, row, rows, depth, depths, out);
    }
}

// Adds the minimums of a quantised panel times the sums of the inputs' groups.
template <Format F>
void add_minimums(const uint8_t* panel, const float* sums, int k, int row, int rows, float* out) {
    const int groups = k / GROUP;
    if constexpr (F == Format::Q4_1) {
        add_floats<Format::F16>(panel, sums, groups, row, rows, 0, groups, out);
    } else if constexpr (F == Format::Q4_K) {
        alignas(64) float minimums[SUPER / GROUP * COLUMNS];
        for (int group = 0; group < groups; group += SUPER / GROUP, panel += Q4K_MINIMUM_BYTES) {
            expand::minimums_q4_k(panel, minimums);
            const uint8_t* from = reinterpret_cast<const uint8_t*>(minimums);
            add_floats<Format::F32>(from, sums, groups, row, rows, group, SUPER / GROUP, out);
        }
    }
}

// Where the inputs of rows [row, row + size) are, from `depth` on.
Inputs<int16_t> inputs16(const Activations& in, size_t row, int size, int depth) {
    Inputs<int16_t> tile;
    for (int r = 0; r < size; ++r) {
        tile.numbers[r] = in.numbers16 + (row + r) * in.k + depth;
        tile.scale[r] = in.scale16 + ((row + r) * in.k + depth) / GROUP;
    }
    return tile;
}

Inputs<int8_t> inputs8(const Activations& in, size_t row, int size, int depth) {
    Inputs<int8_t> tile;
    for (int r = 0; r < size; ++r) {
        tile.numbers[r] = in.numbers8 + (row + r) * in.k + depth;
        tile.scale[r] = in.scale8 + ((row + r) * in.k + depth) / GROUP;
        tile.offsets[r] = in.offsets8 + ((row + r) * in.k + depth) / 8;
    }
    return tile;
}

template <Format F>
void panel_of_16(const uint8_t* panel, const Activations& in, int row, int rows, float* out) {
    const uint8_t* groups = panel + minimum_bytes(F, in.k);
    add_minimums<F>(panel, in.sum16, in.k, row, rows, out);
    if (rows <= DIRECT_ROWS) {
        const Inputs<int16_t> tile = inputs16(in, row, rows, 0);
        return DIRECT16<F>[rows - 1](groups, tile.numbers, tile.scale, in.k / GROUP, out);
    }
    Expanded w;
    for (int depth = 0; depth < in.k; depth += PIECE) {
        const int depths = std::min(PIECE, in.k - depth);
        expand::to16<F>(groups, depth, depths, w);
        const uint8_t* next = groups + static_cast<size_t>(depth + depths) * layout(F).panel_bytes / layout(F).depth;
        for_tiles<TILE>(rows, [&](int first, int size, int index, int count) {
            fetch_part<F>(next, index, count);
            const Inputs<int16_t> tile = inputs16(in, row + first, size, depth);
            TILES16<expand::Traits<F>::SPAN>[size - 1](w, tile, depths, out + first * COLUMNS);
        });
    }
}

template <Format F>
void panel_of_8(const uint8_t* panel, const Activations& in, int row, int rows, float* out) {
    using Traits = expand::Traits<F>;
    const uint8_t* groups = panel + minimum_bytes(F, in.k);
    add_minimums<F>(panel, in.sum8, in.k, row, rows, out);
    if (rows <= DIRECT_ROWS) {
        const Inputs<int8_t> tile = inputs8(in, row, rows, 0);
        return DIRECT8<F>[rows - 1](groups, tile.numbers, tile.scale, tile.offsets, in.k / GROUP, out);
    }
    Expanded w;
    for (int depth = 0; depth < in.k; depth += PIECE) {
        const int depths = std::min(PIECE, in.k - depth);
        expand::to8<F>(groups, depth, depths, w);
        const uint8_t* next = groups + static_cast<size_t>(depth + depths) * layout(F).panel_bytes / layout(F).depth;
        for_tiles<TILE8>(rows, [&](int first, int size, int index, int count) {
            fetch_part<F>(next, index, count);
            const Inputs<int8_t> tile = inputs8(in, row + first, size, depth);
            TILES8<Traits::SPAN, Traits::ZERO>[size - 1](w, tile, depths, out + first * COLUMNS);
        });
    }
}

// Adds rows [row, row + rows) times one panel to out (rows, COLUMNS).
using PanelProduct = void (*)(const uint8_t* panel, const Activations& in, int row, int rows, float* out);

PanelProduct panel_product(Format format, Mode mode) {
    const bool is_fast = mode == Mode::FAST;
    switch (format) {
        case Format::F32: return panel_of_floats<Format::F32>;
        case Format::F16: return panel_of_floats<Format::F16>;
        case Format::BF16: return panel_of_floats<Format::BF16>;
        case Format::Q8_0: return panel_of_16<Format::Q8_0>;
        case Format::Q4_0: return is_fast ? panel_of_8<Format::Q4_0> : panel_of_16<Format::Q4_0>;
        case Format::Q4_1: return is_fast ? panel_of_8<Format::Q4_1> : panel_of_16<Format::Q4_1>;
        case Format::Q5_0: return is_fast ? panel_of_8<Format::Q5_0> : panel_of_16<Format::Q5_0>;
        case Format::Q4_K: return is_fast ? panel_of_8<Format::Q4_K> : panel_of_16<Format::Q4_K>;
        default: return is_fast ? panel_of_8<Format::Q6_K> : panel_of_16<Format::Q6_K>;
    }
}

void start_tile(const Product& product, int first_column, int rows, float* tile) {
    if (product.bias == nullptr) {
        std::memset(tile, 0, sizeof(float) * static_cast<size_t>(rows) * COLUMNS);
        return;
    }
    const int count = std::min(COLUMNS, product.matrix->n - first_column);
    for (int r = 0; r < rows; ++r) {
        for (int i = 0; i < COLUMNS; ++i) tile[r * COLUMNS + i] = i < count ? product.bias[first_column + i] : 0.0f;
    }
}

void write_tile(const float* tile, int rows, int count, float* out, int stride) {
    for (int r = 0; r < rows; ++r) {
        float* to = out + static_cast<size_t>(r) * stride;
        const float* from = tile + r * COLUMNS;
        if (count == COLUMNS) {
            store(to, load(from));
            store(to + LANES, load(from + LANES));
        } else {
            std::memcpy(to, from, sizeof(float) * count);
        }
    }
}

// One panel times one block of rows: how a product's work is shared out. All panels of a block come before the next
// block, so that its inputs stay in the second cache.
struct Cut {
    Cut(int panels, int rows) : panels(panels), rows(rows), blocks((rows + ROW_BLOCK - 1) / ROW_BLOCK) {}
    int total() const { return blocks * panels; }
    int panel(int index) const { return index % panels; }
    int first_row(int index) const { return static_cast<int>(static_cast<int64_t>(rows) * (index / panels) / blocks); }
    int num_rows(int index) const { return first_row(index + panels) - first_row(index); }

    const int panels, rows, blocks;
};

void multiply_panel(const Product& product, PanelProduct run, int index, const Activations& in, int row, int rows, float* out,
                    int stride) {
    const Matrix& matrix = *product.matrix;
    const int column = index * COLUMNS, count = std::min(COLUMNS, matrix.n - column);
    alignas(64) Tile tile;
    start_tile(product, column, rows, tile);
    run(matrix.panel(index), in, row, rows, tile);
    write_tile(tile, rows, count, out + static_cast<size_t>(row) * stride + product.column + column, stride);
}

}  // namespace

int forms_of(const Matrix& matrix, Mode mode) {
    switch (matrix.format) {
        case Format::F32:
        case Format::F16:
        case Format::BF16: return AS_FLOATS;
        case Format::Q8_0: return AS_16_BIT;  // products of its codes and 8-bit inputs would saturate
        default: return mode == Mode::FAST ? AS_8_BIT : AS_16_BIT;
    }
}

void multiply(Team::Member& me, Mode mode, const Product* products, int count, const Activations& inputs, int rows, float* out,
              int stride) {
    int panels = 0;
    for (int i = 0; i < count; ++i) panels += products[i].matrix->num_panels;
    const Cut cut(panels, rows);
    me.share(cut.total(), [&](int begin, int end) {
        for (int index = begin; index < end; ++index) {
            const Product* product = products;
            int within = cut.panel(index);
            for (; within >= product->matrix->num_panels; ++product) within -= product->matrix->num_panels;
            multiply_panel(*product, panel_product(product->matrix->format, mode), within, inputs, cut.first_row(index),
                           cut.num_rows(index), out, stride);
        }
    });
}

void multiply_gated(Team::Member& me, Mode mode, Gate gate, const Matrix& gates, const Matrix& ups, const Activations& inputs,
                    int rows, float* out) {
    const PanelProduct run_gate = panel_product(gates.format, mode), run_up = panel_product(ups.format, mode);
    const Cut cut(gates.num_panels, rows);
    me.share(cut.total(), [&](int begin, int end) {
        alignas(64) Tile gate_tile, up_tile;
        for (int index = begin; index < end; ++index) {
            const int panel = cut.panel(index), row = cut.first_row(index), size = cut.num_rows(index);
            const int column = panel * COLUMNS, count = std::min(COLUMNS, gates.n - column);
            std::memset(gate_tile, 0, sizeof(float) * size * COLUMNS);
            std::memset(up_tile, 0, sizeof(float) * size * COLUMNS);
            run_gate(gates.panel(panel), inputs, row, size, gate_tile);
            run_up(ups.panel(panel), inputs, row, size, up_tile);
            apply_gate(gate, gate_tile, up_tile, size * COLUMNS);
            write_tile(gate_tile, size, count, out + static_cast<size_t>(row) * gates.n + column, gates.n);
        }
    });
}

}  // namespace hr
