// A token's attention is computed in chunks of the context that begin at fixed positions, each with a softmax of its own,
// merged in their order. So a row's result doesn't depend on who shares its tile, its step or its chunk of a prompt.
// Source: the merge is that of FlashAttention, Dao et al. 2022, section 3.1.
#include "attention.h"

#include <cmath>

namespace hr {

namespace {

constexpr int TILE = 6;     // queries of one head of K and V that are computed together
constexpr int CHUNK = 256;  // tokens of context that are computed together, about
constexpr float MASKED = -INFINITY;
constexpr int MOST_TILES = 8;  // of a unit, which see K and V together while those are in the second cache
constexpr int MOST_UNITS = 8;  // one after the other, so that the next one's K and V can be fetched

HR_INLINE floats load_any(const float* p) { return load(p); }
HR_INLINE floats load_any(const uint16_t* p) { return load_f16(p); }

// One query head of one token.
struct Query {
    const float* q;
    int begin, end;  // the context it sees
    float* out;
};

struct Scratch {
    Buffer<float> scores_, parts_, sums_;
    float *scores, *part;
    int score_stride;
};

template <class T>
struct View {
    const T* head;  // of block 0
    size_t block_stride;
    const int32_t* table;
    int head_dim, block_size, width;
    size_t k_size;

    const T* k(int block) const { return head + block_stride * table[block]; }
    const T* v(int block) const { return k(block) + k_size; }
};

// Blocks that will be read next, to be fetched while those before are mixed: memory would be idle then.
template <class T>
struct Upcoming {
    const View<T>* kv;
    int block, end;

    // Fetches part `part` of so many of the next block's K and V, and goes on to the one after with the last part.
    HR_INLINE void fetch(int part, int parts) {
        if (block >= end) return;
        const uint8_t* from = reinterpret_cast<const uint8_t*>(kv->k(block));
        const size_t bytes = (kv->k_size + static_cast<size_t>(kv->head_dim) * kv->block_size) * sizeof(T);
        const size_t step = (bytes / parts + 63) / 64 * 64;
        for (size_t i = part * step; i < std::min((part + 1) * step, bytes); i += 64) prefetch(from + i);
        if (part == parts - 1) ++block;
    }
};

// acc += v * x for 1, 2 or 4 vectors. Written out: a loop in here would keep the loops around it from being unrolled.
template <int N>
HR_INLINE void add_product(floats (&acc)[N], const floats (&v)[N], floats x) {
    if constexpr (N == 1) {
        acc[0] = fmadd(v[0], x, acc[0]);
        hold(acc[0]);
    } else {
        acc[0] = fmadd(v[0], x, acc[0]);
        acc[1] = fmadd(v[1], x, acc[1]);
        hold(acc[0], acc[1]);
    }
    if constexpr (N == 4) {
        acc[2] = fmadd(v[2], x, acc[2]);
        acc[3] = fmadd(v[3], x, acc[3]);
        hold(acc[2], acc[3]);
    }
}

template <int N, class T>
HR_INLINE void load_vectors(const T* from, floats (&v)[N]) {
    v[0] = load_any(from);
    if constexpr (N > 1) v[1] = load_any(from + LANES);
    if constexpr (N == 4) v[2] = load_any(from + 2 * LANES), v[3] = load_any(from + 3 * LANES);
}

template <int N>
HR_INLINE void store_vectors(const floats (&v)[N], float* to) {
    store(to, v[0]);
    if constexpr (N > 1) store(to + LANES, v[1]);
    if constexpr (N == 4) store(to + 2 * LANES, v[2]), store(to + 3 * LANES, v[3]);
}

template <int N>
HR_INLINE void clear(floats (&v)[N]) {
    v[0] = zero();
    if constexpr (N > 1) v[1] = zero();
    if constexpr (N == 4) v[2] = v[3] = zero();
}

// Scores of N * LANES tokens of one block for R queries. `next` is what will be read after this block.
template <class T, int R, int N>
__attribute__((noinline)) void score_tokens(const T* k, int width, int head_dim, const Query* queries, const T* next,
                                            float* scores, int stride) {
    floats acc[R][N];
    const float* q[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) clear(acc[r]), q[r] = queries[r].q;
    for (int d = 0; d < head_dim; ++d, k += width) {
        floats keys[N];
        load_vectors(k, keys);
        prefetch(next + d * 2 * N * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) add_product(acc[r], keys, set1(q[r][d]));
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) store_vectors(acc[r], scores + r * stride);
}

// Adds weights times V of `count` tokens of one block to sums of N vectors. Rows of sums are `stride` apart.
template <class T, int R, int N>
__attribute__((noinline)) void mix_tokens(const T* values, int head_dim, int count, const float* const* weights, int offset,
                                          float* sums) {
    floats acc[R][N];
    const float* w[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) load_vectors(sums + r * head_dim, acc[r]), w[r] = weights[r] + offset;
    for (int i = 0; i < count; ++i, values += head_dim) {
        floats v[N];
        load_vectors(values, v);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) add_product(acc[r], v, set1(w[r][i]));
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) store_vectors(acc[r], sums + r * head_dim);
}

// Sums weights times V over the tokens [begin, end) of a chunk, in s.part.
template <class T, int R>
void mix_chunk(const View<T>& kv, int begin, int end, int chunk, Upcoming<T> upcoming, const Scratch& s) {
    constexpr int WIDE = R <= 3 ? 4 : 2;
    const float* weights[R];
    for (int r = 0; r < R; ++r) weights[r] = s.scores + r * s.score_stride;
    std::memset(s.part, 0, sizeof(float) * R * kv.head_dim);
    for (int position = begin; position < end;) {
        const int block = position / kv.block_size, first = block * kv.block_size;
        const int count = std::min(end, first + kv.block_size) - position;
        const T* values = kv.v(block) + static_cast<size_t>(position - first) * kv.head_dim;
        const int parts = kv.head_dim / (WIDE * LANES);
        int d = 0;
        for (; d + WIDE * LANES <= kv.head_dim; d += WIDE * LANES) {
            upcoming.fetch(d / (WIDE * LANES), parts);
            mix_tokens<T, R, WIDE>(values + d, kv.head_dim, count, weights, position - chunk, s.part + d);
        }
        for (; d < kv.head_dim; d += LANES) {
            mix_tokens<T, R, 1>(values + d, kv.head_dim, count, weights, position - chunk, s.part + d);
        }
        position += count;
    }
}

// Softmax of one query over a chunk.
struct Softmax {
    float highest = MASKED;
    float sum = 0.0f;
};

// Turns scores[first, end) into weights, 0 outside the query's context; both bounds are whole vectors.
Softmax weigh(float* scores, int first, int end, int begin_seen, int end_seen) {
    for (int i = first; i < std::min(begin_seen, end); ++i) scores[i] = MASKED;
    for (int i = std::max(first, end_seen); i < end; ++i) scores[i] = MASKED;
    floats peak = set1(MASKED);
    for (int i = first; i < end; i += LANES) peak = max_or_nan(peak, load(scores + i));
    Softmax softmax;
    softmax.highest = highest(peak);
    if (softmax.highest == MASKED) {
        std::memset(scores + first, 0, sizeof(float) * (end - first));
        return softmax;
    }
    floats total = zero();
    for (int i = first; i < end; i += LANES) {
        const floats weight = exp(sub(load(scores + i), set1(softmax.highest)));
        store(scores + i, weight);
        total = add(total, weight);
    }
    softmax.sum = sum(total);
    return softmax;
}

// Merges a chunk's part into what came before.
void merge(Softmax& all, const Softmax& chunk, float* total, const float* part, int head_dim) {
    if (chunk.highest == MASKED) return;
    if (all.highest == MASKED) {
        all = chunk;
        std::memcpy(total, part, sizeof(float) * head_dim);
        return;
    }
    const float peak = chunk.highest > all.highest ? chunk.highest : all.highest;
    float shrink[LANES];
    store(shrink, exp(sub(set1(all.highest), set1(peak))));
    const float of_total = shrink[0];
    store(shrink, exp(sub(set1(chunk.highest), set1(peak))));
    const float of_part = shrink[0];
    for (int d = 0; d < head_dim; d += LANES) {
        store(total + d, fmadd(load(part + d), set1(of_part), mul(load(total + d), set1(of_total))));
    }
    all.sum = all.sum * of_total + chunk.sum * of_part;
    all.highest = peak;
}

template <class T, int R>
void score_chunk(const View<T>& kv, const Query* queries, int first_block, int end_block, int chunk, const Scratch& s) {
    for (int block = first_block; block < end_block; ++block) {
        const T* k = kv.k(block);
        const T* next = block + 1 < end_block ? kv.k(block + 1) : k;
        float* scores = s.scores + static_cast<size_t>(block) * kv.block_size - chunk;
        int at = 0;
        for (; at + 2 * LANES <= kv.width; at += 2 * LANES) {
            score_tokens<T, R, 2>(k + at, kv.width, kv.head_dim, queries, next, scores + at, s.score_stride);
        }
        if (at < kv.width) {
            score_tokens<T, R, 1>(k + at, kv.width, kv.head_dim, queries, next, scores + at, s.score_stride);
        }
    }
}

// Queries that are computed together, and what they have seen so far.
struct Tile {
    Query queries[TILE];
    int size, begin, end;  // the context that any of them sees
    Softmax all[TILE];
    float* total;  // (size, head_dim)
};

template <class T, int R>
void attend_chunk(const View<T>& kv, Tile& tile, int chunk, int step, const Upcoming<T>& upcoming, const Scratch& s) {
    const int first = std::max(chunk, tile.begin), last = std::min(chunk + step, tile.end);
    score_chunk<T, R>(kv, tile.queries, first / kv.block_size, (last - 1) / kv.block_size + 1, chunk, s);
    const int first_lane = (first - chunk) / LANES * LANES, end_lane = (last - chunk + LANES - 1) / LANES * LANES;
    Softmax of_chunk[R];
    for (int r = 0; r < R; ++r) {
        const Query& query = tile.queries[r];
        of_chunk[r] = weigh(s.scores + r * s.score_stride, first_lane, end_lane, query.begin - chunk, query.end - chunk);
    }
    mix_chunk<T, R>(kv, first, last, chunk, upcoming, s);
    for (int r = 0; r < R; ++r) {
        merge(tile.all[r], of_chunk[r], tile.total + r * kv.head_dim, s.part + r * kv.head_dim, kv.head_dim);
    }
}

template <class T>
void attend_chunk(const View<T>& kv, Tile& tile, int chunk, int step, const Upcoming<T>& upcoming, const Scratch& s) {
    switch (tile.size) {
        case 1: return attend_chunk<T, 1>(kv, tile, chunk, step, upcoming, s);
        case 2: return attend_chunk<T, 2>(kv, tile, chunk, step, upcoming, s);
        case 3: return attend_chunk<T, 3>(kv, tile, chunk, step, upcoming, s);
        case 4: return attend_chunk<T, 4>(kv, tile, chunk, step, upcoming, s);
        case 5: return attend_chunk<T, 5>(kv, tile, chunk, step, upcoming, s);
        default: return attend_chunk<T, 6>(kv, tile, chunk, step, upcoming, s);
    }
}

void finish(const Tile& tile, int head_dim) {
    for (int r = 0; r < tile.size; ++r) {
        const floats inverse = set1(1.0f / tile.all[r].sum);
        const float* total = tile.total + r * head_dim;
        for (int d = 0; d < head_dim; d += LANES) store(tile.queries[r].out + d, mul(load(total + d), inverse));
    }
}

// A piece of work: tiles of one row that share a head of K and V.
struct Unit {
    int row, head, first_tile, end_tile;
    int queries, tiles;  // of the row at this head

    int first_query(int tile) const { return static_cast<int>(static_cast<int64_t>(queries) * tile / tiles); }
};

int queries_of(const AttentionInput& in, int row) {
    return (in.starts[row + 1] - in.starts[row]) * (in.num_query_heads / in.shape.num_heads);
}

int divided_up(int count, int by) { return (count + by - 1) / by; }

Unit unit_at(const AttentionInput& in, const int32_t* units, int index) {
    const int row = static_cast<int>(std::upper_bound(units, units + in.num_rows + 1, index) - units) - 1;
    const int queries = queries_of(in, row), tiles = divided_up(queries, TILE), parts = divided_up(tiles, in.tiles_per_unit);
    const int within = index - units[row], first = within % parts * in.tiles_per_unit;
    return {row, within / parts, first, std::min(first + in.tiles_per_unit, tiles), queries, tiles};
}

template <class T>
View<T> view_of(const AttentionInput& in, const Unit& unit) {
    const CacheShape& shape = in.shape;
    return {reinterpret_cast<const T*>(in.cache) + shape.head_size() * unit.head,
            shape.stride(),
            in.tables + static_cast<size_t>(unit.row) * in.table_stride,
            shape.head_dim,
            shape.block_size,
            shape.width(),
            shape.k_size()};
}

int first_seen(const AttentionInput& in, int token) {
    return in.window > 0 ? std::max(0, in.positions[token] + 1 - in.window) : 0;
}

Tile tile_at(const AttentionInput& in, const Unit& unit, int index, float* total, float* out) {
    const int head_dim = in.shape.head_dim, per_head = in.num_query_heads / in.shape.num_heads;
    const int begin = unit.first_query(index), end = unit.first_query(index + 1);
    Tile tile;
    tile.size = end - begin, tile.total = total;
    for (int i = begin; i < end; ++i) {
        const int token = in.starts[unit.row] + i / per_head, query_head = unit.head * per_head + i % per_head;
        tile.queries[i - begin] = {in.queries + static_cast<size_t>(token) * in.query_stride + query_head * head_dim,
                                   first_seen(in, token), in.positions[token] + 1,
                                   out + (static_cast<size_t>(token) * in.num_query_heads + query_head) * head_dim};
    }
    tile.begin = tile.queries[0].begin, tile.end = tile.queries[tile.size - 1].end;  // both rise with the position
    return tile;
}

// All tiles see a chunk before the next one, so that its K and V come from memory once.
// next: what this member does after this; null if that isn't known, or reads the same K and V.
template <class T>
void attend_unit(const AttentionInput& in, const Unit& unit, const Unit* next, float* out) {
    const CacheShape& shape = in.shape;
    const int count = unit.end_tile - unit.first_tile;
    thread_local Scratch s;
    s.score_stride = std::max(CHUNK, shape.block_size) + shape.width() + LANES;
    s.scores = s.scores_.need(static_cast<size_t>(TILE) * s.score_stride);
    s.part = s.parts_.need(static_cast<size_t>(TILE) * shape.head_dim);
    float* totals = s.sums_.need(static_cast<size_t>(MOST_TILES) * TILE * shape.head_dim);
    Tile tiles[MOST_TILES];
    for (int i = 0; i < count; ++i) {
        tiles[i] = tile_at(in, unit, unit.first_tile + i, totals + static_cast<size_t>(i) * TILE * shape.head_dim, out);
    }
    const View<T> kv = view_of<T>(in, unit), next_kv = view_of<T>(in, next != nullptr ? *next : unit);
    Upcoming<T> after{};
    if (next != nullptr) {
        const int token = in.starts[next->row], first = first_seen(in, token);
        const int last = std::min(in.positions[token], first + CHUNK);
        after = {&next_kv, first / shape.block_size, last / shape.block_size + 1};
    }
    const int step = std::max(1, CHUNK / shape.block_size) * shape.block_size, end = tiles[count - 1].end;
    for (int chunk = tiles[0].begin / step * step; chunk < end; chunk += step) {
        const int beyond = chunk + step, beyond_end = (std::min(beyond + step, end) - 1) / shape.block_size + 1;
        const Upcoming<T> upcoming = beyond < end ? Upcoming<T>{&kv, beyond / shape.block_size, beyond_end} : after;
        for (int i = 0; i < count; ++i) {
            if (tiles[i].end <= chunk || tiles[i].begin >= beyond) continue;
            attend_chunk<T>(kv, tiles[i], chunk, step, i == count - 1 ? upcoming : Upcoming<T>{}, s);
        }
    }
    for (int i = 0; i < count; ++i) finish(tiles[i], shape.head_dim);
}

}  // namespace

int choose_tiles_per_unit(const AttentionInput& in, int team_size) {
    int64_t tiles = 0;
    for (int row = 0; row < in.num_rows; ++row) tiles += divided_up(queries_of(in, row), TILE);
    const int64_t share = tiles * in.shape.num_heads / (Team::PIECES_PER_MEMBER * team_size);
    return static_cast<int>(std::clamp<int64_t>(share, 1, MOST_TILES));
}

void count_units(const AttentionInput& in, int32_t* units) {
    units[0] = 0;
    for (int row = 0; row < in.num_rows; ++row) {
        const int tiles = divided_up(queries_of(in, row), TILE);
        units[row + 1] = units[row] + in.shape.num_heads * divided_up(tiles, in.tiles_per_unit);
    }
}

void attend(Team::Member& me, const AttentionInput& in, const int32_t* units, float* out) {
    const int total = units[in.num_rows], piece = std::min(me.piece(total), MOST_UNITS);
    me.share(total, piece, [&](int begin, int end) {
        Unit unit = unit_at(in, units, begin);
        for (int index = begin; index < end; ++index) {
            const Unit next = index + 1 < end ? unit_at(in, units, index + 1) : unit;
            const bool is_other = next.row != unit.row || next.head != unit.head;
            if (in.shape.is_half) {
                attend_unit<uint16_t>(in, unit, is_other ? &next : nullptr, out);
            } else {
                attend_unit<float>(in, unit, is_other ? &next : nullptr, out);
            }
            unit = next;
        }
    });
}

}  // namespace hr
