// Attention of a prompt's tokens over the cache, their own cells included: tiles of cells, scores and mixtures on tensor
// cores, the softmax along the way in f32.
//
// A block of threads takes neighbouring tokens with all query heads of one key head, 16 rows a warp, so that keys and values
// are read once for all of them. Elements of a head are multiplied in an order of our own, the same on both sides: a lane
// loads 16 bytes at a time from shared memory, whose 16-byte pieces are shuffled so that no two meet in a bank.
#include "platform.cuh"
#include "window.cuh"

#ifndef DIM
#define DIM 128  // of a key head
#define VALUE_DIM 128
#endif
#ifndef HEADS_A_KEY
#define HEADS_A_KEY 8
#endif

#ifndef WARPS
#define WARPS 8   // of 16 rows each
#define CELLS 64  // of a tile
#endif

static constexpr int GROUP = HEADS_A_KEY, THREADS = 32 * WARPS, ROWS = 16 * WARPS;
static constexpr int TOKENS = ROWS / GROUP;                     // of a block
static constexpr int STEPS = (DIM + 31) / 32;                   // of 32 elements of a key
static constexpr int VALUES = VALUE_DIM > 256 ? VALUE_DIM / 2 : VALUE_DIM;  // columns of the values that a block takes
static constexpr int PARTS = (VALUES + 63) / 64;
static constexpr bool HELD = STEPS <= 4;  // queries stay in registers
static constexpr int KEY_PIECES = 4 * STEPS, VALUE_PIECES = 8 * PARTS;  // of 16 bytes, in a cell's row
static constexpr int VALUES_AT = CELLS * KEY_PIECES * 16, STAGE_BYTES = VALUES_AT + CELLS * VALUE_PIECES * 16;
static constexpr int QUERY_BYTES = HELD ? 0 : ROWS * KEY_PIECES * 16;
#define MINUS_INFINITY bits_to_float(0xFF800000u)
static constexpr float LOWEST = -1e30f, LOG2_E = 1.44269504088896340736f;

struct PromptAttentionArguments {
    const Window* window;
    const float* query;  // [T, kv heads * GROUP * query_stride]: placed, and a gate of VALUE_DIM behind DIM if there is one
    i64 query_stride;
    const u16 *keys, *values;  // f16 [kv heads, context, DIM] and [kv heads, context, VALUE_DIM]
    i64 kv_heads, context, sliding;  // sliding: cells that a token sees, its own included; 0: all
    double scale;
    const float* sinks;  // [heads], or null
    i64 gate;
    float* out;  // [T, heads * VALUE_DIM]
};

DEVICE int key_piece(int cell, int piece) { return (cell * KEY_PIECES + (STEPS % 2 == 0 ? piece ^ ((cell & 1) << 2) : piece)) * 16; }
DEVICE int value_piece(int cell, int piece) { return VALUES_AT + (cell * VALUE_PIECES + (piece ^ (2 * ((cell >> 1) & 3)))) * 16; }
DEVICE u32 two_halves(float low, float high) { return (u32)float_to_half(low) | (u32)float_to_half(high) << 16; }

// cells first … of a tile into shared memory; past the last one that last one again, whose weight will be 0
DEVICE void copy_cells(u8* stage, const u16* keys, const u16* values, i64 first, i64 last) {
    constexpr int KEYS = DIM / 8, OF_VALUES = VALUES / 8;  // pieces in memory
#pragma unroll
    for (int i = 0; i < (CELLS * KEYS + THREADS - 1) / THREADS; ++i) {
        const int item = i * THREADS + (int)threadIdx.x, cell = item / KEYS, piece = item % KEYS;
        const i64 from = first + cell < last ? first + cell : last;
        if (cell < CELLS) copy16_async(stage + key_piece(cell, piece), keys + from * DIM + 8 * piece);
    }
#pragma unroll
    for (int i = 0; i < (CELLS * OF_VALUES + THREADS - 1) / THREADS; ++i) {
        const int item = i * THREADS + (int)threadIdx.x, cell = item / OF_VALUES, piece = item % OF_VALUES;
        const i64 from = first + cell < last ? first + cell : last;
        if (cell < CELLS) copy16_async(stage + value_piece(cell, piece), values + from * VALUE_DIM + 8 * piece);
    }
}

// what of a stage no copy writes is zero
DEVICE void clear_padding(u8* stage) {
    for (int item = threadIdx.x; item < CELLS * KEY_PIECES; item += THREADS)
        if (item % KEY_PIECES >= DIM / 8) *(Word4*)(stage + key_piece(item / KEY_PIECES, item % KEY_PIECES)) = Word4{0, 0, 0, 0};
    for (int item = threadIdx.x; item < CELLS * VALUE_PIECES; item += THREADS)
        if (item % VALUE_PIECES >= VALUES / 8) *(Word4*)(stage + value_piece(item / VALUE_PIECES, item % VALUE_PIECES)) = Word4{0, 0, 0, 0};
}

// eight elements of a query as f16, from element `at` on
DEVICE Word4 eight_halves(const float* x, int at) {
    Word4 w = {0, 0, 0, 0};
    if (x != nullptr && at < DIM) {
        x += at;
        w.x = two_halves(x[0], x[1]), w.y = two_halves(x[2], x[3]), w.z = two_halves(x[4], x[5]), w.w = two_halves(x[6], x[7]);
    }
    return w;
}

// scores of 16 rows with a tile of cells
DEVICE void score(float (&s)[CELLS / 8][4], const Word4 (&held)[HELD ? STEPS : 1][2], const u8* queries, const u8* stage, int g, int t) {
#pragma unroll
    for (int n = 0; n < CELLS / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) s[n][i] = 0.0f;
#pragma unroll
    for (int j = 0; j < STEPS; ++j) {
        const Word4 low = HELD ? held[HELD ? j : 0][0] : *(const Word4*)(queries + (2 * j) * 512), high = HELD ? held[HELD ? j : 0][1] : *(const Word4*)(queries + (2 * j + 1) * 512);
        const u32 first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
        for (int n = 0; n < CELLS / 8; ++n) {
            const Word4 k = *(const Word4*)(stage + key_piece(8 * n + g, 4 * j + t));
            const u32 b0[2] = {k.x, k.y}, b1[2] = {k.z, k.w};
            mma_f16(s[n], first, b0);
            mma_f16(s[n], second, b1);
        }
    }
}

DEVICE u32 word_of(const Word4& w, int i) { return i == 0 ? w.x : i == 1 ? w.y : i == 2 ? w.z : w.w; }

// mix += weights * values; column 8 g + i of 64 is what fragment i has as its column g
DEVICE void mix_values(float (&mix)[PARTS][8][4], const float (&s)[CELLS / 8][4], const u8* stage, int g, int t) {
#pragma unroll
    for (int c = 0; c < CELLS / 16; ++c) {
        const u32 a[4] = {two_halves(s[2 * c][0], s[2 * c][1]), two_halves(s[2 * c][2], s[2 * c][3]),
                          two_halves(s[2 * c + 1][0], s[2 * c + 1][1]), two_halves(s[2 * c + 1][2], s[2 * c + 1][3])};
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            Word4 v[4];  // of cells 2 t, 2 t + 1, 2 t + 8, 2 t + 9
#pragma unroll
            for (int k = 0; k < 4; ++k) v[k] = *(const Word4*)(stage + value_piece(16 * c + 2 * t + k % 2 + 8 * (k / 2), 8 * part + g));
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const u32 which = i % 2 ? 0x7632u : 0x5410u;
                const u32 b[2] = {permute_bytes(word_of(v[0], i / 2), word_of(v[1], i / 2), which),
                                  permute_bytes(word_of(v[2], i / 2), word_of(v[3], i / 2), which)};
                mma_f16(mix[part][i], a, b);
            }
        }
    }
}

KERNEL(prompt_attention, 32 * WARPS, PromptAttentionArguments) {
    DYNAMIC_SHARED(memory);
    const int lane = lane_id(), warp = threadIdx.x / 32, g = lane / 4, t = lane % 4, head = blockIdx.y;
    await_previous_kernel();
    let_next_kernel_start();
    const int rows = (int)a.window->rows, first_token = ((int)gridDim.x - 1 - (int)blockIdx.x) * TOKENS;  // the longest first
    if (first_token >= rows) return;
    const i64 before = a.window->position;
    const int last_token = first_token + TOKENS < rows ? first_token + TOKENS - 1 : rows - 1;
    const i64 last = before + last_token;  // cell
    i64 first = a.sliding > 0 ? before + first_token + 1 - a.sliding : 0;
    first = first < 0 ? 0 : first / CELLS * CELLS;
    const u16* keys = a.keys + head * a.context * DIM;
    const u16* values = a.values + head * a.context * VALUE_DIM + blockIdx.z * VALUES;
    u8 *stages = memory + QUERY_BYTES, *queries = memory + warp * 16 * KEY_PIECES * 16 + 16 * lane;

    clear_padding(stages);
    clear_padding(stages + STAGE_BYTES);
    copy_cells(stages, keys, values, first, last);
    copy_async_commit();

    // rows g and g + 8 of the warp
    const float* query[2];
    i64 position[2], row_head[2];
    Word4 held[HELD ? STEPS : 1][2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int row = 16 * warp + 8 * r + g, token = first_token + row / GROUP;
        const bool used = row < TOKENS * GROUP && token < rows;
        position[r] = before + token;
        row_head[r] = (i64)token * a.kv_heads * GROUP + head * GROUP + row % GROUP;
        query[r] = used ? a.query + row_head[r] * a.query_stride : nullptr;
#pragma unroll
        for (int j = 0; j < STEPS; ++j) {
            const Word4 w = eight_halves(query[r], 32 * j + 8 * t);
            if (HELD) held[HELD ? j : 0][r] = w;
            else *(Word4*)(queries + (2 * j + r) * 512) = w;
        }
    }

    float mix[PARTS][8][4], top[2] = {LOWEST, LOWEST}, sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
#pragma unroll
        for (int i = 0; i < 8; ++i)
#pragma unroll
            for (int k = 0; k < 4; ++k) mix[part][i][k] = 0.0f;
    const float scale = mul((float)a.scale, LOG2_E);  // scores stay as they are until they are exponents
    int stage = 0;
    for (i64 tile = first; tile <= last; tile += CELLS, stage ^= 1) {
        copy_async_wait<0>();
        block_barrier();
        if (tile + CELLS <= last) {
            copy_cells(stages + (stage ^ 1) * STAGE_BYTES, keys, values, tile + CELLS, last);
            copy_async_commit();
        }
        const u8* now = stages + stage * STAGE_BYTES;
        float s[CELLS / 8][4];
        score(s, held, queries, now, g, t);
        const bool whole = tile + CELLS <= before + first_token + 1 && (a.sliding == 0 || tile > last - a.sliding);
        if (!whole)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const i64 over = position[r] - tile, under = a.sliding > 0 && a.sliding <= over ? over - a.sliding : -1;
                const int most = (int)over - 2 * t, least = (int)under - 2 * t;  // what stands between them is seen
#pragma unroll
                for (int n = 0; n < CELLS / 8; ++n)
#pragma unroll
                    for (int i = 0; i < 2; ++i)
                        if (8 * n + i > most || 8 * n + i <= least) s[n][2 * r + i] = MINUS_INFINITY;
            }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float highest = top[r];
#pragma unroll
            for (int n = 0; n < CELLS / 8; ++n)
#pragma unroll
                for (int i = 0; i < 2; ++i) highest = fmaxf(highest, s[n][2 * r + i]);
            highest = fmaxf(highest, shuffle_xor(highest, 1));
            highest = fmaxf(highest, shuffle_xor(highest, 2));
            const float shrink = exp2f(mul(top[r] - highest, scale)), less = mul(highest, -scale);
            top[r] = highest;
            float part_sum = 0.0f;
#pragma unroll
            for (int n = 0; n < CELLS / 8; ++n)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    s[n][2 * r + i] = exp2f(fmaf(s[n][2 * r + i], scale, less));
                    part_sum += s[n][2 * r + i];
                }
            sum[r] = fmaf(sum[r], shrink, part_sum);
#pragma unroll
            for (int part = 0; part < PARTS; ++part)
#pragma unroll
                for (int i = 0; i < 8; ++i) mix[part][i][2 * r] *= shrink, mix[part][i][2 * r + 1] *= shrink;
        }
        mix_values(mix, s, now, g, t);
    }

#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float total = sum[r], factor = 1.0f;
        total += shuffle_xor(total, 1);
        total += shuffle_xor(total, 2);
        if (query[r] == nullptr) continue;
        if (a.sinks != nullptr) {  // one more score, without a value
            const float sink = mul(a.sinks[head * GROUP + (16 * warp + 8 * r + g) % GROUP], LOG2_E), own = mul(top[r], scale);
            const float highest = fmaxf(own, sink);
            factor = exp2f(own - highest);
            total = fmaf(total, factor, exp2f(sink - highest));
        }
        float* out = a.out + row_head[r] * VALUE_DIM + blockIdx.z * VALUES;
        const float* gate = query[r] + DIM + blockIdx.z * VALUES;
#pragma unroll
        for (int part = 0; part < PARTS; ++part)
#pragma unroll
            for (int k = 0; k < 2; ++k)
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    const int column = 64 * part + 8 * (2 * t + k) + i;
                    if (column >= VALUES) continue;
                    float y = divide(mul(mix[part][i][2 * r + k], factor), total);
                    if (a.gate) y = mul(y, sigmoid(gate[column]));
                    out[column] = y;
                }
    }
}
