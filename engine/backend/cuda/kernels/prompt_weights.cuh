// The weights of a tile of a prompt's product in shared memory: planes as they lie in the device's (formats.cuh), row by row
// with room between, and scales read apart once by the thread that owns the row.
#pragma once
#include "formats.cuh"

static constexpr int ROWS = 128;  // of a tile, one a thread

// Where a superblock of 256 columns of ROWS rows lies. A thread brings the main plane and 16-byte second planes with
// asynchronous copies; `Scaling` brings the rest through its registers.
template <class F> struct WeightTile {
    static constexpr bool NARROW = F::STEP < 256;
    static constexpr int STEPS = 256 / F::STEP, GROUPS = 256 / F::GROUP;
    static constexpr bool HAS_SCALES = !NARROW && F::SCALES != ONLY_HALF;
    // bytes of a row: multiples of 16, and 4 more words than a power of two, or 12 words, so that eight rows meet in no bank
    static constexpr int MAIN_ROW = 4 * F::MAIN + 16, SECOND_ROW = F::SECOND ? 4 * F::SECOND + 16 : 0;
    static constexpr int SCALES_ROW = HAS_SCALES ? GROUPS : 0, MINIMUMS_ROW = F::MINIMUMS ? 48 : 0;
    static constexpr int SECOND_AT = ROWS * MAIN_ROW, SCALES_AT = SECOND_AT + ROWS * SECOND_ROW;
    static constexpr int MINIMUMS_AT = SCALES_AT + ROWS * SCALES_ROW;  // sixteen f16 a row, one for each sum of 16
    static constexpr int D_AT = MINIMUMS_AT + ROWS * MINIMUMS_ROW;     // f32 [STEPS, ROWS]
    static constexpr int M_AT = D_AT + 4 * ROWS * STEPS;
    static constexpr int BYTES = M_AT + (F::MINIMUMS || F::WEIGHTED ? 4 * ROWS * STEPS : 0);

    // the planes of `rows` rows from `first` on, from chunk c on; other rows of the tile keep what they had
    DEVICE void copy(u8* tile, const Matrix<F>& m, i64 first, int rows, int c) {
        const int left = (int)m.chunks - c;
        copy_plane<F::MAIN, MAIN_ROW>(tile, m.main, m.chunks, first, rows, c, left < 4 ? left : 4);
        if (F::SECOND == 16) copy_plane<F::SECOND, SECOND_ROW>(tile + SECOND_AT, m.second, m.chunks, first, rows, c, left < 4 ? left : 4);
    }
    template <int UNIT, int ROW> DEVICE void copy_plane(u8* tile, const u8* plane, i64 chunks, i64 first, int rows, int c, int count) {
        constexpr int PIECES = UNIT / 4 > 0 ? UNIT / 4 : 1, AT_ONCE = ROWS / PIECES;  // pieces of 16 bytes in a row, rows
        const int piece = threadIdx.x % PIECES, row = threadIdx.x / PIECES, chunk = piece / (UNIT / 16), part = piece % (UNIT / 16);
        const u8* source = plane + (first + row) * chunks * UNIT + (part * chunks + c + chunk) * 16;
        const i64 step = AT_ONCE * chunks * UNIT;
        const bool inside = chunk < count;
#pragma unroll
        for (int i = 0; i < PIECES; ++i, source += step)
            if (inside && i * AT_ONCE + row < rows) copy16_async(tile + (i * AT_ONCE + row) * ROW + 16 * piece, source);
    }
};

// What one thread brings of its row: scales, floats, and second planes of 8 bytes a chunk, whose rows may start anywhere.
template <class F> struct Scaling {
    typedef WeightTile<F> Tile;
    Chunk<F> chunks[4];  // without their main planes, which nobody reads and the compiler leaves out

    DEVICE Scaling load(const Matrix<F>& m, i64 row, int c) {
        Scaling s;
#pragma unroll
        for (int q = 0; q < 4; ++q) {
            s.chunks[q] = Chunk<F>::load(m, row, c + q);
            if (!Tile::NARROW) s.chunks[q].quarter = q;
            if (F::SCALES == PACKED_K)
#pragma unroll
                for (int i = 0; i < 4; ++i) s.chunks[q].scales[i] = s.chunks[0].scales[i];
            if (!Tile::NARROW) s.chunks[q].floats = s.chunks[0].floats;
        }
        return s;
    }

    // the same bytes into the second cache, so that a later `load` does not wait for long
    DEVICE void prefetch(const Matrix<F>& m, i64 row, int c) {
        if (F::SCALE_BYTES) prefetch_l2(m.scales + (Tile::NARROW ? row * m.units + c * (64 / F::SCALE_UNIT) : row * m.blocks + c / 4) * F::SCALE_BYTES);
        if (F::FLOAT_BYTES) prefetch_l2(m.floats + (row * m.blocks + c / 4) * F::FLOAT_BYTES);
        if (F::SECOND == 8) prefetch_l2(m.second + (row * m.chunks + c) * 8);
    }

    // of sums 2 i and 2 i + 1 of 16 elements, as f16
    DEVICE u32 two_minimums(const Scaling& s, int i) {
        constexpr int GROUPS = 64 / F::GROUP;  // of a chunk
        const int first = 2 * i * 16 / F::GROUP, second = (2 * i + 1) * 16 / F::GROUP;
        const u32 low = float_to_half((float)Chunk<F>::minimum(s.chunks[first / GROUPS], first % GROUPS));
        const u32 high = float_to_half((float)Chunk<F>::minimum(s.chunks[second / GROUPS], second % GROUPS));
        return low | high << 16;
    }

    DEVICE void store(const Scaling& s, u8* tile, int row) {
        constexpr int GROUPS = 64 / F::GROUP;  // of a chunk
        if (F::SECOND == 8)
#pragma unroll
            for (int q = 0; q < 4; ++q) {
                u32* second = (u32*)(tile + Tile::SECOND_AT + row * Tile::SECOND_ROW + 8 * q);
                second[0] = s.chunks[q].second[0], second[1] = s.chunks[q].second[F::SECOND == 8 ? 1 : 0];
            }
        if (Tile::HAS_SCALES) {
            u32 words[4] = {0, 0, 0, 0};
#pragma unroll
            for (int g = 0; g < 4 * GROUPS; ++g) words[g / 4] |= ((u32)Chunk<F>::scale(s.chunks[g / GROUPS], g % GROUPS) & 255u) << (8 * (g % 4));
#pragma unroll
            for (int i = 0; i < GROUPS; ++i) ((u32*)(tile + Tile::SCALES_AT + row * Tile::SCALES_ROW))[i] = words[i];
        }
        if (F::MINIMUMS)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                *(Word4*)(tile + Tile::MINIMUMS_AT + row * Tile::MINIMUMS_ROW + 16 * half) =
                    Word4{two_minimums(s, 4 * half), two_minimums(s, 4 * half + 1), two_minimums(s, 4 * half + 2), two_minimums(s, 4 * half + 3)};
        float *d = (float*)(tile + Tile::D_AT), *m = (float*)(tile + Tile::M_AT);
        if (!Tile::NARROW) {
            d[row] = Chunk<F>::d(s.chunks[0], 0);
            if (F::MINIMUMS) m[row] = Chunk<F>::m(s.chunks[0], 0);
        } else {
            constexpr int STEPS = 64 / (F::STEP < 64 ? F::STEP : 64);  // of a chunk
#pragma unroll
            for (int k = 0; k < 4 * STEPS; ++k) {
                d[ROWS * k + row] = Chunk<F>::d(s.chunks[k / STEPS], k % STEPS);
                if (F::WEIGHTED) m[ROWS * k + row] = Chunk<F>::m(s.chunks[k / STEPS], k % STEPS);
            }
        }
    }
};

// The codes of one chunk of a row that lane t of four multiplies: signed bytes, without the offset.
template <class F> struct Words {
    static constexpr int N = F::BITS == 8 ? 4 : F::BITS >= 4 ? 2 : 1;
    u32 main[N], second;

    DEVICE Words load(const u8* tile, int row, int q, int t) {
        typedef WeightTile<F> Tile;
        Words w;
        const u32* main = (const u32*)(tile + row * Tile::MAIN_ROW + q * F::MAIN);
#pragma unroll
        for (int i = 0; i < N; ++i) w.main[i] = main[4 * i + t];
        w.second = 0;
        const u32* second = (const u32*)(tile + Tile::SECOND_AT + row * Tile::SECOND_ROW + q * F::SECOND);
        if (F::SECOND == 16) w.second = second[t];
        if (F::SECOND == 8) w.second = second[t % 2];
        return w;
    }

    // of elements 32 * half + 16 * part + 4 * t …
    DEVICE u32 codes(const Words& w, int half, int part, int t) {
        u32 v;
        if (F::BITS == 8) v = w.main[(2 * half + part) % N];
        else if (F::BITS >= 4) v = (w.main[part % N] >> (4 * half)) & 0x0F0F0F0Fu;
        else v = (w.main[0] >> (4 * half + 2 * part)) & 0x03030303u;
        if (F::BITS == 6) v |= ((w.second >> (4 * half + 2 * part)) & 0x03030303u) << 4;
        if (F::BITS == 5) v |= ((w.second >> (4 * half + 2 * part + t / 2)) & 0x01010101u) << 4;
        if (F::BITS == 3) v |= ((w.second >> (4 * half + 2 * part + t / 2)) & 0x01010101u) << 2;
        if (F::VALUES == NONLINEAR) return Chunk<F>::look_up(v, 0xBFAD9881u, 0xF6EADDCFu, 0x26190D01u, 0x71594535u);
        if (F::VALUES == E2M1) return Chunk<F>::look_up(v, 0x03020100u, 0x0C080604u, 0xFDFEFF00u, 0xF4F8FAFCu);
        if (F::OFFSET) v = ((v | 0x80808080u) - F::OFFSET * 0x01010101u) ^ 0x80808080u;
        return v;
    }
};
