/* Rotary embedding (Su et al., "RoFormer", 2021), in place, of pairs (j, j + half) or of neighbours.
 *
 * Bytes moved per rotated value: 2 times the dtype. The rows of the tables are read once per head, from the
 * caches after the first read. 3 FLOPs per value: bound by memory bandwidth. There are no sums: each pair is
 * rotated by itself,
 *
 *     (a, b) -> (a c - b s, b c + a s),
 *
 * with the arithmetic of the cpu device, so the bits are the same on both.
 *
 * A thread has one pack of first halves and the matching pack of second halves, or two packs of neighbours
 * one after the other; or one pair if packs do not begin at 16-byte borders: the same piece of every token
 * that it visits. So it finds its head and its place in the head once (two divisions), and goes from token
 * to token by additions. A block has as many tokens at a time as its threads have room for, or a part of a
 * token's pieces (blockIdx.y), and ROPE_TOKENS times that.
 */
#include "kernels/cuda/rows.cuh"

enum { ROPE_BLOCK = 256, ROPE_TOKENS = 4 };

/* Rotates N pairs. They lie in two packs: the first elements in `a` and the second ones in `b`, or, if they
 * are neighbours, the first N / 2 pairs in `a` and the others in `b`. */
template <class T, bool NEIGHBOURS>
static __device__ __forceinline__ void rope_packs(ot_pack<T> &a, ot_pack<T> &b, const ot_pack<T> &cosines,
                                                  const ot_pack<T> &sines, float direction) {
    constexpr int N = ot_pack<T>::N;
#pragma unroll
    for (int i = 0; i < N; i++) {
        ot_pack<T> &pack = i < N / 2 ? a : b;
        float &first = NEIGHBOURS ? pack.v[2 * i % N] : a.v[i];
        float &second = NEIGHBOURS ? pack.v[2 * i % N + 1] : b.v[i];
        float x = first, y = second, sine = direction * sines.v[i];
        first = x * cosines.v[i] - y * sine;
        second = y * cosines.v[i] + x * sine;
    }
}

/* Rotates a pack of pairs, or one pair. x points to the first element; the second pack, or the second
 * element of the pair, is `apart` elements behind it. cosines and sines point to the pairs' factors. */
template <class T, bool PACKED, bool NEIGHBOURS>
static __device__ __forceinline__ void rope_pairs(T *x, int apart, const float *cosines, const float *sines,
                                                  float direction) {
    if constexpr (PACKED) {
        ot_pack<T> a = ot_load(x), b = ot_load(x + apart);
        ot_pack<T> c = ot_row_load_floats<true, T>(cosines, 0, ot_pack<T>::N);
        ot_pack<T> s = ot_row_load_floats<true, T>(sines, 0, ot_pack<T>::N);
        rope_packs<T, NEIGHBOURS>(a, b, c, s, direction);
        ot_store(x, a);
        ot_store(x + apart, b);
    } else {
        float a = ot_to_float(x[0]), b = ot_to_float(x[apart]), c = cosines[0], s = direction * sines[0];
        x[0] = ot_from_float<T>(a * c - b * s);
        x[apart] = ot_from_float<T>(b * c + a * s);
    }
}

/* Each token has `heads` times half / WIDTH pieces of work; a block has `tokens` tokens at a time. */
template <class T, bool PACKED, bool NEIGHBOURS>
__global__ void rope_tokens(struct ot_rope op, int tokens) {
    constexpr int WIDTH = PACKED ? ot_pack<T>::N : 1;
    unsigned half = (unsigned)op.rotary_dim / 2, per_head = half / WIDTH;
    unsigned per_token = (unsigned)op.heads * per_head;
    unsigned slot = tokens > 1 ? threadIdx.x / per_token : 0;
    unsigned piece = blockIdx.y * ROPE_BLOCK + threadIdx.x - slot * per_token;
    if (piece >= per_token || slot >= (unsigned)tokens)
        return;
    unsigned head = piece / per_head, j = (piece - head * per_head) * WIDTH; /* pairs [j, j + WIDTH) */
    int apart = NEIGHBOURS ? WIDTH : (int)half;
    int64_t first = (int64_t)blockIdx.x * tokens * ROPE_TOKENS + slot;
    T *x = static_cast<T *>(op.x) + first * op.ld + head * op.head_dim + (NEIGHBOURS ? 2 * j : j);
    float direction = op.inverse ? -1.0f : 1.0f;
#pragma unroll
    for (int i = 0; i < ROPE_TOKENS; i++, x += tokens * op.ld) {
        int64_t token = first + i * tokens;
        if (token >= op.n)
            return;
        int64_t row = (int64_t)op.position[token] * half + j;
        rope_pairs<T, PACKED, NEIGHBOURS>(x, apart, op.cos_table + row, op.sin_table + row, direction);
    }
}

template <class T>
static bool rope_packed(const struct ot_rope *op) {
    int64_t half = op->rotary_dim / 2;
    return half % ot_pack<T>::N == 0 && ot_rows_aligned(op->x, op->ld, sizeof(T)) &&
           ot_rows_aligned(NULL, op->head_dim, sizeof(T)) &&
           ot_rows_aligned(op->cos_table, half, sizeof(float)) &&
           ot_rows_aligned(op->sin_table, half, sizeof(float));
}

cudaError_t ot_cuda_rope(const struct ot_rope *args, const struct ot_cuda_stream *on) {
    if (args->n == 0 || args->rotary_dim < 2)
        return cudaSuccess;
    return ot_dispatch(args->dtype, [&](auto zero) {
        using T = decltype(zero);
        bool packed = rope_packed<T>(args);
        int64_t per_token = args->heads * (args->rotary_dim / 2) / (packed ? ot_pack<T>::N : 1);
        int tokens = per_token < ROPE_BLOCK ? (int)(ROPE_BLOCK / per_token) : 1;
        dim3 grid((unsigned)ot_ceil_div(args->n, tokens * ROPE_TOKENS),
                  (unsigned)ot_ceil_div(per_token, ROPE_BLOCK));
        auto halves = packed ? rope_tokens<T, true, false> : rope_tokens<T, false, false>;
        auto neighbours = packed ? rope_tokens<T, true, true> : rope_tokens<T, false, true>;
        return ot_launch(args->interleaved ? neighbours : halves, grid, dim3(ROPE_BLOCK), 0, on->stream,
                         *args, tokens);
    });
}
