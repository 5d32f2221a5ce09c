/* Attention with ordinary arithmetic, forward and backward, for everything that the tensor-core kernels do
 * not take (attention.h), mainly fp32. It takes any dtype, any head size up to 256, any alignment.
 *
 * A block has 64 threads, seen as 8 x 8. It owns ROWS = 8 M rows (queries, or keys when it sums the gradients
 * of keys) and walks over tiles of as many rows of the other side. All tiles are in shared memory as fp32.
 * Rows are padded to an odd length, so that equal columns of consecutive rows are in different banks, and
 * filled with zeros beyond the head and beyond the last token. Thread (r, c) computes the M x M scores of
 * rows r + 8 a with columns c + 8 b. It passes its weights through shared memory to the 8 threads of its row,
 * which are of one warp. It sums columns c + 8 e of its rows' results in registers. The scores take M^2
 * multiply-adds for 2 M loads, the results M E for M + E.
 *
 * The backward is two passes, as on the cpu device. One owns queries and sums dq. The other owns keys and
 * sums dk and dv over the queries and, in order, over the heads that share the keys. Each sum has one owner
 * and one order. p and ds stay in fp32.
 */
#include <float.h>
#include <math.h>

#include "kernels/cuda/attention_tiles.cuh"
#include "kernels/cuda/scalar.cuh"

/* BLOCKS: the least number of blocks on a multiprocessor; it allows a thread 255 registers. */
enum { PLAIN_THREADS = 64, PLAIN_BLOCKS = 4, PLAIN_MAX_DIM = 256 };

template <int MAX_DIM, int ROWS_PER_THREAD>
struct plain_shape {
    static constexpr int M = ROWS_PER_THREAD, ROWS = 8 * M, DIM = MAX_DIM, E = DIM / 8;
    static constexpr int LD = DIM + 1, WEIGHT_LD = ROWS + 1;
    static constexpr int TILE = ROWS * LD, WEIGHTS = ROWS * WEIGHT_LD; /* in floats */
};

/* ---- tiles ---- */

/* Copies rows [first, first + ROWS) of one head into a tile. Elements beyond `end` or the head become 0. Does
 * not end with a barrier. */
template <class S, class T>
__device__ __forceinline__ void plain_copy(float *tile, const T *from, int64_t ld, int first, int end,
                                           int dim) {
    for (int row = (int)threadIdx.x / OT_WARP; row < S::ROWS; row += PLAIN_THREADS / OT_WARP)
        for (int d = (int)threadIdx.x % OT_WARP; d < S::DIM; d += OT_WARP)
            tile[row * S::LD + d] =
                first + row < end && d < dim ? ot_to_float(from[(first + row) * ld + d]) : 0.0f;
}

/* s[a][b] = dot of row r + 8 a of x and row c + 8 b of y. */
template <class S>
__device__ __forceinline__ void plain_dots(float (&s)[S::M][S::M], const float *x, const float *y, int dim) {
    x += (int)threadIdx.x / 8 * S::LD;
    y += (int)threadIdx.x % 8 * S::LD;
#pragma unroll
    for (int a = 0; a < S::M; a++)
#pragma unroll
        for (int b = 0; b < S::M; b++)
            s[a][b] = 0.0f;
#pragma unroll 4
    for (int d = 0; d < dim; d++) {
        float left[S::M], right[S::M];
#pragma unroll
        for (int a = 0; a < S::M; a++) {
            left[a] = x[a * 8 * S::LD + d];
            right[a] = y[a * 8 * S::LD + d];
        }
#pragma unroll
        for (int a = 0; a < S::M; a++)
#pragma unroll
            for (int b = 0; b < S::M; b++)
                s[a][b] = fmaf(left[a], right[b], s[a][b]);
    }
}

/* Stores a thread's weights where all threads of its rows can read them. These threads are of one warp. */
template <class S>
__device__ __forceinline__ void plain_share(float *weights, const float (&p)[S::M][S::M]) {
    int at = (int)threadIdx.x / 8 * S::WEIGHT_LD + (int)threadIdx.x % 8;
    __syncwarp();
#pragma unroll
    for (int a = 0; a < S::M; a++)
#pragma unroll
        for (int b = 0; b < S::M; b++)
            weights[at + 8 * a * S::WEIGHT_LD + 8 * b] = p[a][b];
    __syncwarp();
}

/* sum[a][e] (columns c + 8 e of row r + 8 a) += the weights of the row times the rows of z. */
template <class S>
__device__ __forceinline__ void plain_weigh(float (&sum)[S::M][S::E], const float *weights, const float *z) {
    weights += (int)threadIdx.x / 8 * S::WEIGHT_LD;
    z += (int)threadIdx.x % 8;
    for (int j = 0; j < S::ROWS; j++) {
        float p[S::M];
#pragma unroll
        for (int a = 0; a < S::M; a++)
            p[a] = weights[8 * a * S::WEIGHT_LD + j];
#pragma unroll
        for (int e = 0; e < S::E; e++) {
            float value = z[j * S::LD + 8 * e];
#pragma unroll
            for (int a = 0; a < S::M; a++)
                sum[a][e] = fmaf(p[a], value, sum[a][e]);
        }
    }
}

template <class S>
__device__ __forceinline__ void plain_zero(float (&sum)[S::M][S::E]) {
#pragma unroll
    for (int a = 0; a < S::M; a++)
#pragma unroll
        for (int e = 0; e < S::E; e++)
            sum[a][e] = 0.0f;
}

/* Stores row r + 8 a of the sum, times a factor, to row `token` of `to`. */
template <class S, class T>
__device__ __forceinline__ void plain_store(T *to, int64_t ld, int token, int dim,
                                            const float (&sum)[S::M][S::E], int a, float factor) {
    to += token * ld;
#pragma unroll
    for (int e = 0; e < S::E; e++) {
        int d = (int)threadIdx.x % 8 + 8 * e;
        if (d < dim)
            to[d] = ot_from_float<T>(sum[a][e] * factor);
    }
}

/* The maximum over the 8 threads of a row. */
__device__ __forceinline__ float plain_row_max(float x) {
#pragma unroll
    for (int offset = 4; offset > 0; offset /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}
__device__ __forceinline__ float plain_row_sum(float x) {
#pragma unroll
    for (int offset = 4; offset > 0; offset /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}

/* ---- forward ---- */

/* The score of a dot product, for a key that the query sees. *derivative: of the score by scale * dot. */
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
    p = expf(plain_score(f, p, slope, query, key, &derivative) - f.lse[head * f.n + query]);
    ds = p * (ds - op.scratch[head * f.n + query]) * f.scale * derivative;
}

template <class T, class S>
__global__ void __launch_bounds__(PLAIN_THREADS, PLAIN_BLOCKS)
    plain_backward_queries(const struct ot_attention_backward op) {
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
    for (int key = ot_attention_keys(f, begin).first; key < end; key += S::ROWS) {
        __syncthreads();
        plain_copy<S>(k, static_cast<const T *>(f.k) + kv_head * dim, f.ldk, key, end, dim);
        plain_copy<S>(v, static_cast<const T *>(f.v) + kv_head * dim, f.ldv, key, end, dim);
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
    const struct ot_attention &f = op.forward;
    int kv_heads = (int)f.kv_heads, group = (int)f.heads / kv_heads, dim = (int)f.head_dim;
    int kv_head = (int)blockIdx.x % kv_heads, begin = (int)blockIdx.x / kv_heads * S::ROWS;
    int end = min(begin + S::ROWS, (int)f.n), end_query = ot_attention_end_query(f, begin, end);
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
        for (int query = begin; query < end_query; query += S::ROWS) {
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
    for (int a = 0; a < S::M; a++)
        if (begin + row + 8 * a < end) {
            int key = begin + row + 8 * a;
            plain_store<S>(static_cast<T *>(op.dk) + kv_head * dim, f.ldk, key, dim, dk, a, 1.0f);
            plain_store<S>(static_cast<T *>(op.dv) + kv_head * dim, f.ldv, key, dim, dv, a, 1.0f);
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
            return small ? f(zero, plain_shape<64, 2>()) : f(zero, plain_shape<64, 4>());
        if (op->head_dim <= 128)
            return small ? f(zero, plain_shape<128, 2>()) : f(zero, plain_shape<128, 4>());
        return small ? f(zero, plain_shape<256, 1>()) : f(zero, plain_shape<256, 2>());
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
        int64_t blocks = ot_ceil_div(f->n, S::ROWS);
        size_t bytes = (4 * S::TILE + 2 * S::WEIGHTS) * sizeof(float);
        OT_CUDA_TRY(ot_launch(plain_backward_queries<T, S>, dim3((unsigned)(blocks * f->heads)),
                              dim3(PLAIN_THREADS), bytes, on->stream, *op));
        return ot_launch(plain_backward_keys<T, S>, dim3((unsigned)(blocks * f->kv_heads)),
                         dim3(PLAIN_THREADS), bytes, on->stream, *op);
    });
}
