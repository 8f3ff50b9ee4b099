// Attention of a window: norm and rotation of queries and keys, the new cells into the cache, and attention split over the
// cells. Block (split, kv head, token); of a token's blocks the one that ends last puts the parts together.
//
// A token's own window is not in the cache yet: blocks that need its cells make them from the projections, rounded as the
// cache rounds, and the blocks of the last token write them.
#include "heads.cuh"
#include "window.cuh"

#ifndef DIM
#define DIM 128     // of a key head
#define VALUE_DIM 128
#endif
#ifndef HEADS_A_KEY
#define HEADS_A_KEY 8
#endif

#ifndef STAGES
#define STAGES 2  // tiles of keys and values in shared memory
#endif

static constexpr int TILE = 64;     // cells of a tile
static constexpr int LENGTHS = 32;  // the cells of a split are a multiple of
static constexpr int WINDOW_MAX = 8, THREADS = 320, WARPS = THREADS / 32;  // a warp for each of eight query heads, for a key and for a value
static constexpr int GROUP = HEADS_A_KEY, MOST_SPLITS = 128;
#define LEAST (-1e30f)  // a score that no cell has: nothing seen yet

struct AttentionArguments {
    const Window* window;
    const float *query, *key, *value;  // [T, heads * query_stride], [T, kv heads * DIM], [T, kv heads * VALUE_DIM]; key and
    i64 query_stride;                  // value may be null (the layer reads another's cache) or the same; floats of a head
    const float *query_norm, *key_norm;  // [DIM], or null
    i64 value_norm, pre_normed;          // values are normed without a weight; query and key are normed already
    double eps, scale;
    const float* rope;  // [context, 2, rotary / 2], or null
    i64 rotary, adjacent, gate;  // a gate of VALUE_DIM stands behind each query head
    u16 *keys, *values;          // the cache, f16 [kv heads, context, DIM] and [kv heads, context, VALUE_DIM]
    i64 kv_heads, context, sliding;  // sliding: cells that a token sees, 0: all
    const float* sinks;              // [heads], or null
    const i32* cells;                // [T, cells_stride]: their number, then cells in ascending order; or null
    i64 cells_stride;
    float *parts, *part_sums;        // [T, kv heads, splits, GROUP, VALUE_DIM] and [.., GROUP, 2]: greatest score and sum
    u32* arrived;                    // [T, kv heads]
    float* out;                      // [T, heads * VALUE_DIM]
};

KERNEL(attention, THREADS, AttentionArguments) {
    const int lane = lane_id(), warp = warp_id(), splits = gridDim.x;
    const int split = blockIdx.x, head = blockIdx.y, t = blockIdx.z;
    SHARED float query[GROUP * DIM];
    SHARED u16 new_keys[WINDOW_MAX * DIM], new_values[WINDOW_MAX * VALUE_DIM];
    SHARED float scores[GROUP * TILE];
    SHARED float tops[GROUP], sums[GROUP], factors[GROUP];
    constexpr int WORK = WARPS * (DIM > VALUE_DIM ? DIM : VALUE_DIM);
    SHARED float mixed[GROUP * VALUE_DIM > WORK ? GROUP * VALUE_DIM : WORK], weights[GROUP * MOST_SPLITS];
    float* work = mixed;  // for the heads, before anything is mixed
    SHARED u32 place_in_line;
    // The window block and the cells of earlier windows were written before this graph was launched, so they can be read, and
    // the first tile's keys and values be on their way, before the previous kernel has ended. (A list of cells cannot.)
    const int rows = (int)a.window->rows;
    const i64 before = a.window->position, position = before + t;
    if (a.cells != nullptr) await_previous_kernel();
    const i32* cells = a.cells != nullptr ? a.cells + t * a.cells_stride : nullptr;
    const i64 seen = cells != nullptr ? cells[0] : position + 1;
    const i64 hidden = cells == nullptr && a.sliding > 0 && seen > a.sliding ? seen - a.sliding : 0;
    i64 length = (seen - hidden + splits - 1) / splits;
    length = (length + LENGTHS - 1) / LENGTHS * LENGTHS;
    const int active = t < rows ? (int)((seen - hidden + length - 1) / length) : 0;
    const bool writes = t == rows - 1 && a.key != nullptr && split == 0;
    const i64 first = hidden + split * length, last = first + length < seen ? first + length : seen;
    const i64 known = a.key != nullptr ? before : seen;  // cells from here on are not in the cache yet

    constexpr int PAIRS = VALUE_DIM / 2, SLICES = 256 / PAIRS < 1 ? 1 : 256 / PAIRS;
    const int slice = threadIdx.x / PAIRS, pair = threadIdx.x % PAIRS;
    DYNAMIC_SHARED(memory);
    u16* tiles = (u16*)memory;  // [STAGES][TILE * DIM, then TILE * VALUE_DIM]
    constexpr int STAGE = TILE * (DIM + VALUE_DIM);
    const u16 *all_keys = a.keys + head * a.context * DIM, *all_values = a.values + head * a.context * VALUE_DIM;
    // what the cache has of a tile, on its way
    auto fetch = [&](i64 tile) {
        if (tile < last) {
            u16* stage = tiles + (tile - first) / TILE % STAGES * STAGE;
            const int count = (int)(last - tile < TILE ? last - tile : TILE);
            for (int i = threadIdx.x; i < count * (DIM / 8); i += THREADS) {
                const i64 cell = cells != nullptr ? cells[1 + tile + i / (DIM / 8)] : tile + i / (DIM / 8);
                if (cell < known) copy16_async(stage + 8 * i, all_keys + cell * DIM + i % (DIM / 8) * 8);
            }
            for (int i = threadIdx.x; i < count * (VALUE_DIM / 8); i += THREADS) {
                const i64 cell = cells != nullptr ? cells[1 + tile + i / (VALUE_DIM / 8)] : tile + i / (VALUE_DIM / 8);
                if (cell < known) copy16_async(stage + TILE * DIM + 8 * i, all_values + cell * VALUE_DIM + i % (VALUE_DIM / 8) * 8);
            }
        }
        copy_async_commit();
    };
    if (split < active) fetch(first);
    if (a.cells == nullptr) await_previous_kernel();
    let_next_kernel_start();
    if (split >= active) return;

    // Query heads, and the window's own cells where this block reads or writes some: the tail of what a token sees lies in
    // the last split. A head a warp.
    const bool needs_new = a.key != nullptr && (split == active - 1 || cells != nullptr || before < last || writes);
    const bool in_registers = Head<DIM>::fits((int)a.rotary, a.adjacent);
    for (int i = warp; i < GROUP + (needs_new ? 2 * rows : 0); i += WARPS) {
        const int cell = (i - GROUP) / 2;
        const bool is_query = i < GROUP, is_key = !is_query && (i - GROUP) % 2 == 0;
        float* y = work + warp * (DIM > VALUE_DIM ? DIM : VALUE_DIM);
        if (!is_query && !is_key) {
            place(a.value + (cell * a.kv_heads + head) * VALUE_DIM, y, VALUE_DIM, nullptr, a.value_norm, (float)a.eps, nullptr, 0, false);
            for (int k = lane; k < VALUE_DIM; k += 32) {
                new_values[cell * VALUE_DIM + k] = float_to_half(y[k]);
                if (writes) a.values[(head * a.context + before + cell) * VALUE_DIM + k] = float_to_half(y[k]);
            }
            warp_barrier();
            continue;
        }
        const float* from = is_query ? a.query + (t * a.kv_heads * GROUP + head * GROUP + i) * a.query_stride : a.key + (cell * a.kv_heads + head) * DIM;
        const float* norm = a.pre_normed ? nullptr : is_query ? a.query_norm : a.key_norm;
        const float* angles = a.rope != nullptr ? a.rope + (is_query ? position : before + cell) * a.rotary : nullptr;
        if (in_registers) {
            Head<DIM> x = Head<DIM>::load(from), weight = x, turns = x;
            if (norm != nullptr) weight = Head<DIM>::load(norm);
            if (angles != nullptr)
#pragma unroll
                for (int k = 0; k < Head<DIM>::N; ++k) turns.v[k] = 32 * k < a.rotary ? angles[lane + 32 * k] : 0.0f;
            if (norm != nullptr) Head<DIM>::norm(x, weight, true, (float)a.eps);
            if (angles != nullptr) Head<DIM>::turn(x, turns, (int)a.rotary);
#pragma unroll
            for (int k = 0; k < Head<DIM>::N; ++k) y[lane + 32 * k] = x.v[k];
        } else {
            place(from, y, DIM, norm, false, (float)a.eps, angles, (int)a.rotary, a.adjacent);
        }
        for (int k = lane; k < DIM; k += 32) {
            if (is_query) {
                query[i * DIM + k] = mul(y[k], (float)a.scale);
                continue;
            }
            new_keys[cell * DIM + k] = float_to_half(y[k]);
            if (writes) a.keys[(head * a.context + before + cell) * DIM + k] = float_to_half(y[k]);
        }
        warp_barrier();
    }
    for (int h = threadIdx.x; h < GROUP; h += blockDim.x) tops[h] = LEAST, sums[h] = 0.0f;
    block_barrier();

    // a thread sums up one pair of value columns of all heads, over the cells of its slice
    float mix[GROUP][2];
#pragma unroll
    for (int h = 0; h < GROUP; ++h) mix[h][0] = mix[h][1] = 0.0f;

    for (i64 tile = first; tile < last; tile += TILE) {
        const int count = (int)(last - tile < TILE ? last - tile : TILE);
        u16 *keys = tiles + (tile - first) / TILE % STAGES * STAGE, *values = keys + TILE * DIM;
        if (STAGES > 1) {
            fetch(tile + TILE);
            copy_async_wait<1>();
        } else {
            if (tile > first) fetch(tile);
            copy_async_wait<0>();
        }
        if (last > known || cells != nullptr) {  // the window's own cells, which the cache does not have yet
            block_barrier();
            for (int c = warp; c < count; c += WARPS) {
                const i64 cell = cells != nullptr ? cells[1 + tile + c] : tile + c;
                if (cell < known) continue;
                for (int k = lane; k < DIM; k += 32) keys[c * DIM + k] = new_keys[(cell - before) * DIM + k];
                for (int k = lane; k < VALUE_DIM; k += 32) values[c * VALUE_DIM + k] = new_values[(cell - before) * VALUE_DIM + k];
            }
        }
        block_barrier();
        // scores [cell][head]: eight lanes a cell, four cells a warp at once
        const int part = lane % 8;
#pragma unroll 1
        for (int c = 4 * warp + lane / 8; c - lane / 8 < count; c += 4 * WARPS) {
            float dots[GROUP];
#pragma unroll
            for (int h = 0; h < GROUP; ++h) dots[h] = 0.0f;
            if (c < count)
#pragma unroll
                for (int i = 8 * part; i < DIM; i += 64) {
                    const Word4 word = *(const Word4*)(keys + c * DIM + i);
                    const u32 words[4] = {word.x, word.y, word.z, word.w};
                    float v[8];
#pragma unroll
                    for (int e = 0; e < 8; ++e) v[e] = half_to_float((u16)(words[e / 2] >> (16 * (e % 2))));
#pragma unroll
                    for (int h = 0; h < GROUP; ++h) {
                        alignas(16) float q[8];
                        *(Word4*)q = *(const Word4*)(query + h * DIM + i);
                        *(Word4*)(q + 4) = *(const Word4*)(query + h * DIM + i + 4);
#pragma unroll
                        for (int e = 0; e < 8; ++e) dots[h] = fmaf(q[e], v[e], dots[h]);
                    }
                }
#pragma unroll
            for (int h = 0; h < GROUP; ++h) {
                float v = dots[h];
                v += shuffle_xor(v, 1), v += shuffle_xor(v, 2), v += shuffle_xor(v, 4);
                if (part == h % 8 && c < count) scores[c * GROUP + h] = v;
            }
        }
        block_barrier();
        for (int h = warp; h < GROUP; h += WARPS) {
            float top = LEAST;
            for (int c = lane; c < count; c += 32) top = fmaxf(top, scores[c * GROUP + h]);
            top = fmaxf(warp_max(top), tops[h]);
            float sum = 0.0f;
            for (int c = lane; c < count; c += 32) {
                const float e = expf(scores[c * GROUP + h] - top);
                scores[c * GROUP + h] = e;
                sum += e;
            }
            sum = warp_sum(sum);
            const float factor = expf(tops[h] - top);
            warp_barrier();
            if (lane == 0) factors[h] = factor, sums[h] = sums[h] * factor + sum, tops[h] = top;
        }
        block_barrier();
        if (slice < SLICES) {
#pragma unroll
            for (int h = 0; h < GROUP; ++h) mix[h][0] *= factors[h], mix[h][1] *= factors[h];
#pragma unroll 4
            for (int c = slice; c < count; c += SLICES) {
                const u32 two = *(const u32*)(values + c * VALUE_DIM + 2 * pair);
                const float low = half_to_float((u16)two), high = half_to_float((u16)(two >> 16));
                alignas(16) float e[GROUP];
                if (GROUP % 4 == 0) {
#pragma unroll
                    for (int h = 0; h < GROUP; h += 4) *(Word4*)(e + h) = *(const Word4*)(scores + c * GROUP + h);
                } else {
#pragma unroll
                    for (int h = 0; h < GROUP; ++h) e[h] = scores[c * GROUP + h];
                }
#pragma unroll
                for (int h = 0; h < GROUP; ++h) mix[h][0] = fmaf(e[h], low, mix[h][0]), mix[h][1] = fmaf(e[h], high, mix[h][1]);
            }
        }
        block_barrier();
    }

    const i64 group = t * a.kv_heads + head;
    float* parts = a.parts + (group * splits + split) * GROUP * VALUE_DIM;
    for (int k = 0; k < SLICES; ++k) {  // slice by slice, in order
        if (slice == k)
#pragma unroll
            for (int h = 0; h < GROUP; ++h) {
                float* sum = mixed + h * VALUE_DIM + 2 * pair;
                sum[0] = k == 0 ? mix[h][0] : sum[0] + mix[h][0];
                sum[1] = k == 0 ? mix[h][1] : sum[1] + mix[h][1];
            }
        block_barrier();
    }
    if (active > 1) {
        for (int i = threadIdx.x; i < GROUP * VALUE_DIM; i += blockDim.x) parts[i] = mixed[i];
        for (int h = threadIdx.x; h < GROUP; h += blockDim.x) {
            float* pair_of_sums = a.part_sums + ((group * splits + split) * GROUP + h) * 2;
            pair_of_sums[0] = tops[h], pair_of_sums[1] = sums[h];
        }
        fence();
        block_barrier();
        if (threadIdx.x == 0) place_in_line = atomic_add(a.arrived + group, 1u);
        block_barrier();
        if (place_in_line != (u32)active - 1) return;
        fence();
        if (threadIdx.x == 0) a.arrived[group] = 0;
    }
    // what every part counts: its share of the sum, in `weights`
    for (int h = warp; h < GROUP; h += WARPS) {
        const float* found = a.part_sums + (group * splits * GROUP + h) * 2;
        const float sink = a.sinks != nullptr ? a.sinks[head * GROUP + h] : LEAST;
        float top = sink;
        for (int s = lane; s < active; s += 32) top = fmaxf(top, active > 1 ? found[s * GROUP * 2] : tops[h]);
        top = warp_max(top);
        float sum = 0.0f;
        for (int s = lane; s < active; s += 32) {
            const float factor = expf((active > 1 ? found[s * GROUP * 2] : tops[h]) - top);
            weights[h * MOST_SPLITS + s] = factor;
            sum += factor * (active > 1 ? found[s * GROUP * 2 + 1] : sums[h]);
        }
        sum = warp_sum(sum);
        if (a.sinks != nullptr) sum += expf(sink - top);
        for (int s = lane; s < active; s += 32) weights[h * MOST_SPLITS + s] /= sum;
    }
    block_barrier();
    for (int i = 4 * threadIdx.x; i < GROUP * VALUE_DIM; i += 4 * blockDim.x) {
        const int h = i / VALUE_DIM, column = i % VALUE_DIM;
        float y[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (active == 1) {
#pragma unroll
            for (int k = 0; k < 4; ++k) y[k] = mul(mixed[i + k], weights[h * MOST_SPLITS]);
        } else {
            const float* from = a.parts + group * splits * GROUP * VALUE_DIM + i;
#pragma unroll 16
            for (int s = 0; s < active; ++s) {
                alignas(16) float v[4];
                *(Word4*)v = *(const Word4*)(from + s * (GROUP * VALUE_DIM));
                const float weight = weights[h * MOST_SPLITS + s];
#pragma unroll
                for (int k = 0; k < 4; ++k) y[k] = fmaf(v[k], weight, y[k]);
            }
        }
        const i64 which = t * a.kv_heads * GROUP + head * GROUP + h;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            if (a.gate) y[k] = mul(y[k], sigmoid(a.query[which * a.query_stride + DIM + column + k]));
            a.out[which * VALUE_DIM + column + k] = y[k];
        }
    }
}
