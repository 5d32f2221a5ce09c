/* Attention with ordinary arithmetic, forward and backward, for everything that the tensor-core kernels do
 * not take (attention.h), mainly fp32. It takes any dtype, any head size up to 256, any alignment.
 * attention_plain.cuh explains the tiles.
 *
 * The backward is two passes, as on the cpu device. One owns queries and sums dq. The other owns keys and
 * sums dk and dv over the queries and, in order, over the heads that share the keys. Each sum has one owner
 * and one order. p and ds stay in fp32.
 */
#include <float.h>
#include <math.h>

#include "kernels/cuda/attention_plain.cuh"
#include "kernels/cuda/attention_tiles.cuh"
#include "kernels/cuda/scalar.cuh"

/* ---- forward ---- */

/* The score of a dot product, for a key that the query sees. *derivative: d score / d (scale * dot). */
__device__ __forceinline__ float plain_score(const struct ot_attention &op, float dot, float slope, int query,
                                             int key, float *derivative) {
    float score = op.scale * dot;
    *derivative = 1.0f;
    if (op.softcap > 0.0f) {
        *derivative = vec_tanh_slope(op.scale / op.softcap * dot, &score);
        score *= op.softcap;
    }
    return op.slopes ? score - slope * (float)(query + (int)(op.n_keys - op.n) - key) : score;
}

/* The factor of a pair's weight by dropout: 0, or that of kept weights; 1 without dropout. */
__device__ __forceinline__ float plain_factor(const struct ot_attention &op, int head, int query, int key) {
    return weight_factor(op.drop, (head * op.n + query) * op.n_keys + key);
}

/* Turns the scores of one tile (-infinity if not visible) into weights, and rescales totals and sums to the
 * new maxima of the rows. */
template <class S>
__device__ __forceinline__ void plain_softmax(float (&s)[S::M][S::M], float (&top)[S::M],
                                              float (&total)[S::M], float (&sum)[S::M][S::E]) {
#pragma unroll
    for (int a = 0; a < S::M; a++) {
        float largest = top[a], added = 0.0f;
#pragma unroll
        for (int b = 0; b < S::M; b++)
            largest = fmaxf(largest, s[a][b]);
        largest = plain_row_max(largest);
        float shrink = expf(top[a] - largest);
#pragma unroll
        for (int b = 0; b < S::M; b++) {
            s[a][b] = expf(s[a][b] - largest);
            added += s[a][b];
        }
        total[a] = fmaf(total[a], shrink, plain_row_sum(added));
        top[a] = largest;
#pragma unroll
        for (int e = 0; e < S::E; e++)
            sum[a][e] *= shrink;
    }
}

template <class T, class S>
__global__ void __launch_bounds__(PLAIN_THREADS, PLAIN_BLOCKS) plain_forward(const struct ot_attention op) {
    if (ot_trap_unless_75(S::ONLY_75))
        return;
    int blocks = (int)((op.n + S::ROWS - 1) / S::ROWS), heads = (int)op.heads, dim = (int)op.head_dim;
    int head = (int)blockIdx.x % heads, begin = (blocks - 1 - (int)blockIdx.x / heads) * S::ROWS;
    int kv_head = head / (heads / (int)op.kv_heads), end = min(begin + S::ROWS, (int)op.n);
    int row = (int)threadIdx.x / 8, column = (int)threadIdx.x % 8;
    float *q = ot_shared<float>(), *k = q + S::TILE, *v = k + S::TILE, *weights = v + S::TILE;
    float slope = op.slopes ? op.slopes[head] : 0.0f;
    float top[S::M], total[S::M], sum[S::M][S::E];
    plain_zero<S>(sum);
    /* A sink is a key without a value, which every row has seen. A NaN stays. */
    float sink = op.sinks ? ot_to_float(static_cast<const T *>(op.sinks)[head]) : -FLT_MAX;
#pragma unroll
    for (int a = 0; a < S::M; a++) {
        top[a] = sink < -FLT_MAX ? -FLT_MAX : sink;
        total[a] = op.sinks ? 1.0f : 0.0f;
    }
    plain_copy<S>(q, static_cast<const T *>(op.q) + head * dim, op.ldq, begin, end, dim);
    int end_key = ot_attention_keys(op, end - 1).last + 1;
    for (int key = ot_attention_keys(op, begin).first; key < end_key; key += S::ROWS) {
        __syncthreads();
        plain_copy<S>(k, static_cast<const T *>(op.k) + kv_head * dim, op.ldk, key, end_key, dim);
        plain_copy<S>(v, static_cast<const T *>(op.v) + kv_head * dim, op.ldv, key, end_key, dim);
        __syncthreads();
        float s[S::M][S::M];
        plain_dots<S>(s, q, k, dim);
#pragma unroll
        for (int a = 0; a < S::M; a++) {
            int query = begin + row + 8 * a;
            ot_attention_span seen = ot_attention_keys(op, query);
#pragma unroll
            for (int b = 0; b < S::M; b++) {
                int j = key + column + 8 * b;
                float derivative;
                s[a][b] = j < seen.first || j > seen.last
                              ? -INFINITY
                              : plain_score(op, s[a][b], slope, query, j, &derivative);
            }
        }
        plain_softmax<S>(s, top, total, sum);
        if (op.drop.share > 0)
#pragma unroll
            for (int a = 0; a < S::M; a++)
#pragma unroll
                for (int b = 0; b < S::M; b++)
                    s[a][b] *= plain_factor(op, head, begin + row + 8 * a, key + column + 8 * b);
        plain_share<S>(weights, s);
        plain_weigh<S>(sum, weights, v);
    }
#pragma unroll
    for (int a = 0; a < S::M; a++) {
        int query = begin + row + 8 * a;
        if (query >= end)
            continue;
        plain_store<S>(static_cast<T *>(op.out) + head * dim, op.ldo, query, dim, sum, a, 1.0f / total[a]);
        if (op.lse && column == 0)
            op.lse[head * op.n + query] = top[a] + logf(total[a]);
    }
}

/* ---- backward ---- */

/* Turns the dot products q.k and dout.v of one pair into its weight and the gradient of its score; 0 if not
 * visible. */
__device__ __forceinline__ void plain_slope(const struct ot_attention_backward &op, int head, float slope,
                                            int query, int key, float &p, float &ds) {
    const struct ot_attention &f = op.forward;
    ot_attention_span seen = ot_attention_keys(f, query);
    if (key < seen.first || key > seen.last) {
        p = ds = 0.0f;
        return;
    }
    float derivative;
    float factor = plain_factor(f, head, query, key);
    p = expf(plain_score(f, p, slope, query, key, &derivative) - f.lse[head * f.n + query]);
    ds = p * (factor * ds - op.scratch[head * f.n + query]) * f.scale * derivative;
    p *= factor;
}

template <class T, class S>
__global__ void __launch_bounds__(PLAIN_THREADS, PLAIN_BLOCKS)
    plain_backward_queries(const struct ot_attention_backward op) {
    if (ot_trap_unless_75(S::ONLY_75))
        return;
    const struct ot_attention &f = op.forward;
    int blocks = (int)((f.n + S::ROWS - 1) / S::ROWS), heads = (int)f.heads, dim = (int)f.head_dim;
    int head = (int)blockIdx.x % heads, begin = (blocks - 1 - (int)blockIdx.x / heads) * S::ROWS;
    int kv_head = head / (heads / (int)f.kv_heads), end = min(begin + S::ROWS, (int)f.n);
    int row = (int)threadIdx.x / 8, column = (int)threadIdx.x % 8;
    float *q = ot_shared<float>(), *dout = q + S::TILE, *k = dout + S::TILE, *v = k + S::TILE;
    float *weights = v + S::TILE, slope = f.slopes ? f.slopes[head] : 0.0f;
    float sum[S::M][S::E];
    plain_zero<S>(sum);
    plain_copy<S>(q, static_cast<const T *>(f.q) + head * dim, f.ldq, begin, end, dim);
    plain_copy<S>(dout, static_cast<const T *>(op.dout) + head * dim, f.ldo, begin, end, dim);
    int end_key = end + ot_attention_past(f);
    for (int key = ot_attention_keys(f, begin).first; key < end_key; key += S::ROWS) {
        __syncthreads();
        plain_copy<S>(k, static_cast<const T *>(f.k) + kv_head * dim, f.ldk, key, end_key, dim);
        plain_copy<S>(v, static_cast<const T *>(f.v) + kv_head * dim, f.ldv, key, end_key, dim);
        __syncthreads();
        float p[S::M][S::M], ds[S::M][S::M];
        plain_dots<S>(p, q, k, dim);
        plain_dots<S>(ds, dout, v, dim);
#pragma unroll
        for (int a = 0; a < S::M; a++)
#pragma unroll
            for (int b = 0; b < S::M; b++)
                plain_slope(op, head, slope, begin + row + 8 * a, key + column + 8 * b, p[a][b], ds[a][b]);
        plain_share<S>(weights, ds);
        plain_weigh<S>(sum, weights, k);
    }
#pragma unroll
    for (int a = 0; a < S::M; a++)
        if (begin + row + 8 * a < end)
            plain_store<S>(static_cast<T *>(op.dq) + head * dim, f.ldq, begin + row + 8 * a, dim, sum, a,
                           1.0f);
}

template <class T, class S>
__global__ void __launch_bounds__(PLAIN_THREADS, PLAIN_BLOCKS)
    plain_backward_keys(const struct ot_attention_backward op) {
    if (ot_trap_unless_75(S::ONLY_75))
        return;
    const struct ot_attention &f = op.forward;
    int kv_heads = (int)f.kv_heads, group = (int)f.heads / kv_heads, dim = (int)f.head_dim;
    int kv_head = (int)blockIdx.x % kv_heads, begin = (int)blockIdx.x / kv_heads * S::ROWS;
    int end = min(begin + S::ROWS, (int)f.n_keys);
    int first_query = ot_attention_first_query(f, begin), end_query = ot_attention_end_query(f, begin, end);
    if (first_query == end_query)
        return; /* no query sees these keys: they lie before a section of a row */
    int row = (int)threadIdx.x / 8, column = (int)threadIdx.x % 8;
    float *k = ot_shared<float>(), *v = k + S::TILE, *q = v + S::TILE, *dout = q + S::TILE;
    float *weights = dout + S::TILE, *slopes = weights + S::WEIGHTS;
    float dk[S::M][S::E], dv[S::M][S::E];
    plain_zero<S>(dk);
    plain_zero<S>(dv);
    plain_copy<S>(k, static_cast<const T *>(f.k) + kv_head * dim, f.ldk, begin, end, dim);
    plain_copy<S>(v, static_cast<const T *>(f.v) + kv_head * dim, f.ldv, begin, end, dim);
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++) {
        float slope = f.slopes ? f.slopes[head] : 0.0f;
        for (int query = first_query; query < end_query; query += S::ROWS) {
            __syncthreads();
            plain_copy<S>(q, static_cast<const T *>(f.q) + head * dim, f.ldq, query, end_query, dim);
            plain_copy<S>(dout, static_cast<const T *>(op.dout) + head * dim, f.ldo, query, end_query, dim);
            __syncthreads();
            float p[S::M][S::M], ds[S::M][S::M];
            plain_dots<S>(p, k, q, dim);
            plain_dots<S>(ds, v, dout, dim);
#pragma unroll
            for (int a = 0; a < S::M; a++)
#pragma unroll
                for (int b = 0; b < S::M; b++)
                    plain_slope(op, head, slope, query + column + 8 * b, begin + row + 8 * a, p[a][b],
                                ds[a][b]);
            plain_share<S>(weights, p);
            plain_share<S>(slopes, ds);
            plain_weigh<S>(dv, weights, dout);
            plain_weigh<S>(dk, slopes, q);
        }
    }
#pragma unroll
    for (int a = 0; a < S::M; a++) {
        int key = begin + row + 8 * a, token = key - ot_attention_past(f);
        if (key >= end)
            continue;
        if (op.dk_sums) {
            plain_add_stored<S>(dk, a, op.dk_sums + kv_head * dim, kv_heads * dim, key, dim, token < 0);
            plain_add_stored<S>(dv, a, op.dv_sums + kv_head * dim, kv_heads * dim, key, dim, token < 0);
        }
        if (token < 0)
            continue;
        plain_store<S>(static_cast<T *>(op.dk) + kv_head * dim, op.lddk, token, dim, dk, a, 1.0f);
        plain_store<S>(static_cast<T *>(op.dv) + kv_head * dim, op.lddv, token, dim, dv, a, 1.0f);
    }
}

/* ---- launch ---- */

/* Four tiles and two arrays of weights take 75 KB at most, or 34 KB on GPUs that allow a block less. */
template <class F>
static cudaError_t plain_dispatch(const struct ot_attention *op, const struct ot_cuda_stream *on, F f) {
    if (op->head_dim > PLAIN_MAX_DIM || op->n_keys >= 1 << 30) /* key indices are int32 */
        return cudaErrorInvalidValue;
    bool small = on->shared_bytes < 75 * 1024;
    return ot_dispatch(op->dtype, [&](auto zero) {
        if (op->head_dim <= 64)
            return small ? f(zero, plain_shape<64, 2, true>()) : f(zero, plain_shape<64, 4>());
        if (op->head_dim <= 128)
            return small ? f(zero, plain_shape<128, 2, true>()) : f(zero, plain_shape<128, 4>());
        return small ? f(zero, plain_shape<256, 1, true>()) : f(zero, plain_shape<256, 2>());
    });
}

cudaError_t ot_attention_forward_plain(const struct ot_attention *op, const struct ot_cuda_stream *on) {
    return plain_dispatch(op, on, [&](auto zero, auto shape) {
        using T = decltype(zero);
        using S = decltype(shape);
        unsigned grid = (unsigned)(ot_ceil_div(op->n, S::ROWS) * op->heads);
        return ot_launch(plain_forward<T, S>, dim3(grid), dim3(PLAIN_THREADS),
                         (3 * S::TILE + S::WEIGHTS) * sizeof(float), on->stream, *op);
    });
}

cudaError_t ot_attention_backward_plain(const struct ot_attention_backward *op,
                                        const struct ot_cuda_stream *on) {
    const struct ot_attention *f = &op->forward;
    return plain_dispatch(f, on, [&](auto zero, auto shape) {
        using T = decltype(zero);
        using S = decltype(shape);
        int64_t blocks = ot_ceil_div(f->n, S::ROWS), key_blocks = ot_ceil_div(f->n_keys, S::ROWS);
        size_t bytes = (4 * S::TILE + 2 * S::WEIGHTS) * sizeof(float);
        OT_CUDA_TRY(ot_launch(plain_backward_queries<T, S>, dim3((unsigned)(blocks * f->heads)),
                              dim3(PLAIN_THREADS), bytes, on->stream, *op));
        return ot_launch(plain_backward_keys<T, S>, dim3((unsigned)(key_blocks * f->kv_heads)),
                         dim3(PLAIN_THREADS), bytes, on->stream, *op);
    });
}
