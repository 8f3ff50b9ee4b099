// Heads of a prompt's tokens where attention wants them: queries normed and rotated in place, keys and values as f16 in the
// cache, at their positions. A block of threads a token, a warp a head at a time.
#include "heads.cuh"
#include "window.cuh"

static constexpr int MOST = 512;  // elements of a head

struct PlaceHeadsArguments {
    const Window* window;
    float* query;             // [T, heads * query_stride]
    const float *key, *value;  // [T, kv heads * dim] and [T, kv heads * value_dim]; null, or the same
    i64 heads, query_stride, kv_heads, dim, value_dim;
    const float *query_norm, *key_norm;  // [dim], or null
    i64 value_norm, pre_normed;          // values are normed without a weight; query and key are normed already
    double eps;
    const float* rope;  // [context, 2, rotary / 2], or null
    i64 rotary, adjacent;
    u16 *keys, *values;  // f16 [kv heads, context, dim] and [kv heads, context, value_dim]
    i64 context;
};

KERNEL(place_heads, 256, PlaceHeadsArguments) {
    SHARED float room[8][MOST];
    const int lane = lane_id(), warp = threadIdx.x / 32, t = blockIdx.x;
    await_previous_kernel();
    let_next_kernel_start();
    if (t >= a.window->rows) return;
    const i64 position = a.window->position + t;
    const float* angles = a.rope != nullptr ? a.rope + position * a.rotary : nullptr;
    const int dim = (int)a.dim, value_dim = (int)a.value_dim, writes = a.key != nullptr ? (int)a.kv_heads : 0;
    for (int item = warp; item < a.heads + 2 * writes; item += 8) {
        if (item < a.heads) {
            float* x = a.query + (t * a.heads + item) * a.query_stride;
            place(x, x, dim, a.pre_normed ? nullptr : a.query_norm, false, (float)a.eps, angles, (int)a.rotary, a.adjacent);
            continue;
        }
        float* y = room[warp];
        const int which = item - (int)a.heads, head = which % writes;
        if (which < writes) {
            place(a.key + (t * a.kv_heads + head) * dim, y, dim, a.pre_normed ? nullptr : a.key_norm, false, (float)a.eps, angles, (int)a.rotary, a.adjacent);
            for (int i = lane; i < dim; i += 32) a.keys[(head * a.context + position) * dim + i] = float_to_half(y[i]);
        } else {
            place(a.value + (t * a.kv_heads + head) * value_dim, y, value_dim, nullptr, a.value_norm, (float)a.eps, nullptr, 0, false);
            for (int i = lane; i < value_dim; i += 32) a.values[(head * a.context + position) * value_dim + i] = float_to_half(y[i]);
        }
        warp_barrier();
    }
}
