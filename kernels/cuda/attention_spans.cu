/* Attention over spans of keys, forward and backward (kernels/ops_spans.h, which fixes the order of every
 * sum), with ordinary arithmetic on the tiles of attention_plain.cuh. So it has the bits of the cpu device.
 * The kernels on tensor cores (attention_spans.cuh) replace it for two-byte types and heads of 64 and 128
 * elements, unless the guard distrusts them. At the end stand the launchers of both.
 *
 * A block of the forward pass owns OT_SPAN_TILE queries of one head. It cuts them into runs: consecutive
 * queries whose spans begin at the same key. A run visits the tiles of its keys, from its first key on; the
 * other queries of the block wait. Packed rows make one run for each row in the block, mostly one or two.
 *
 * ONE VISITED TILE. k and v come one after the other into the same shared memory: k for the scores, then v.
 * Backward loads the first of its two tiles again for the sums: k, v, k, or q, dout, q. Both mostly lie in
 * the L2 cache. A third load of 32 x 64 values takes a thread 32 accesses, beside 1536 multiply-adds of the
 * three products. In return three tiles, not four, lie beside each other: heads of 128 elements take 59 KB
 * in all, which every card has, and more blocks of heads of 64 elements fit.
 *
 * The backward is two passes, as on the cpu device (kernels/cpu/op_spans.inc). Queries own dq, and
 * their block's part of dbias; a third kernel adds the parts. Keys own dk and dv.
 */
#include <math.h>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_plain.cuh"
#include "kernels/cuda/scalar.cuh"

template <int DIM>
using spans_shape = plain_shape<DIM, OT_SPAN_TILE / 8>;

/* The diagonals of a tile. Diagonal t holds column - row = t - (OT_SPAN_TILE - 1), for rows of queries. */
enum { SPANS_DIAGONALS = 2 * OT_SPAN_TILE - 1 };
static_assert((int)SPANS_DIAGONALS <= (int)PLAIN_THREADS, "each diagonal has a thread");

/* ---- runs ---- */

/* Queries [begin, end) whose spans begin at `first`; the longest ends before `last`. */
struct spans_run {
    int begin, end, first, last;
};

/* The run that begins with query `begin` of a block that ends before query `end`. */
__device__ __forceinline__ spans_run spans_run_at(const struct ot_attend_spans &op, int begin, int end) {
    spans_run run = {begin, begin, op.key_first[begin], op.key_first[begin]};
    while (run.end < end && op.key_first[run.end] == run.first)
        run.last = max(run.last, op.key_end[run.end++]);
    return run;
}

/* ---- the bias ---- */

/* The bucket of diagonal t of a tile, whose first query and first key are given. */
__device__ __forceinline__ int spans_bucket(const struct ot_attend_spans &op, int query, int key, int t) {
    int distance = key - (query + (int)(op.n_keys - op.n)) + t - (OT_SPAN_TILE - 1), reach = (int)op.reach;
    return op.bucket_of[max(-reach, min(reach, distance)) + reach];
}

/* near[t] = the bias of diagonal t. */
template <class T>
__device__ __forceinline__ void spans_find_bias(const struct ot_attend_spans &op, float *near, int head,
                                                int query, int key) {
    int t = (int)threadIdx.x;
    if (op.bias && t < SPANS_DIAGONALS)
        near[t] = ot_to_float(
            static_cast<const T *>(op.bias)[spans_bucket(op, query, key, t) * (int)op.heads + head]);
}

__device__ __forceinline__ float spans_score(const struct ot_attend_spans &op, float dot, const float *near,
                                             int diagonal) {
    return op.bias ? fmaf(op.scale, dot, near[diagonal]) : op.scale * dot;
}

/* The factor of a pair's weight by dropout: 0, or that of kept weights; 1 without dropout. */
__device__ __forceinline__ float spans_factor(const struct ot_attend_spans &op, int head, int query,
                                              int key) {
    return weight_factor(op.drop, (head * op.n + query) * op.n_keys + key);
}

/* ---- sums ---- */

/* total[a] += the weights of row r + 8 a, in order. */
template <class S>
__device__ __forceinline__ void spans_add_weights(float (&total)[S::M], const float *weights) {
    weights += (int)threadIdx.x / 8 * S::WEIGHT_LD;
    for (int j = 0; j < S::ROWS; j++)
#pragma unroll
        for (int a = 0; a < S::M; a++)
            total[a] += weights[8 * a * S::WEIGHT_LD + j];
}

/* ---- forward ---- */

/* Turns dot products of the run's queries with keys [key, key + 32) into exp(score - new maximum); 0 where a
 * query does not see a key. Rescales totals and sums to the new maxima. query: this thread's first row. */
template <class S>
__device__ __forceinline__ void
spans_softmax(const struct ot_attend_spans &op, const spans_run &run, const float *near, int query, int key,
              float (&s)[S::M][S::M], float (&top)[S::M], float (&total)[S::M], float (&sum)[S::M][S::E]) {
    int row = (int)threadIdx.x / 8, column = (int)threadIdx.x % 8;
#pragma unroll
    for (int a = 0; a < S::M; a++) {
        bool runs = query + 8 * a >= run.begin && query + 8 * a < run.end;
        int seen = runs ? op.key_end[query + 8 * a] - key : 0;
        float largest = top[a];
#pragma unroll
        for (int b = 0; b < S::M; b++) {
            int j = column + 8 * b;
            s[a][b] = spans_score(op, s[a][b], near, j - row - 8 * a + OT_SPAN_TILE - 1);
            largest = j < seen && s[a][b] > largest ? s[a][b] : largest;
        }
        largest = plain_row_max(largest);
        float shrink = largest > top[a] ? vec_exp(top[a] - largest) : 1.0f;
#pragma unroll
        for (int b = 0; b < S::M; b++)
            s[a][b] = column + 8 * b < seen ? vec_exp(s[a][b] - largest) : 0.0f;
        top[a] = largest;
        total[a] *= shrink;
#pragma unroll
        for (int e = 0; e < S::E; e++)
            sum[a][e] *= shrink;
    }
}

/* Stores out, and the numbers of the softmax. */
template <class T, class S>
__device__ __forceinline__ void spans_finish(const struct ot_attend_spans &op, int head, int query, int end,
                                             const float (&top)[S::M], const float (&total)[S::M],
                                             const float (&sum)[S::M][S::E]) {
    int dim = (int)op.head_dim;
#pragma unroll
    for (int a = 0; a < S::M; a++) {
        if (query + 8 * a >= end)
            continue;
        bool empty = total[a] == 0.0f;
        float inverse = empty ? 0.0f : 1.0f / total[a];
        plain_store<S>(static_cast<T *>(op.out) + head * dim, op.ldo, query + 8 * a, dim, sum, a, inverse);
        if (op.softmax && threadIdx.x % 8 == 0) {
            float *softmax = op.softmax + 2 * (head * op.n + query + 8 * a);
            softmax[0] = empty ? 0.0f : top[a] + 0.0f; /* a maximum of -0 becomes 0 */
            softmax[1] = inverse;
        }
    }
}

template <class T, class S>
__global__ void __launch_bounds__(PLAIN_THREADS, PLAIN_BLOCKS)
    spans_forward(const struct ot_attend_spans op) {
    int heads = (int)op.heads, dim = (int)op.head_dim, head = (int)blockIdx.x % heads;
    int begin = (int)blockIdx.x / heads * S::ROWS, end = min(begin + S::ROWS, (int)op.n);
    int query = begin + (int)threadIdx.x / 8;
    float *q = ot_shared<float>(), *visited = q + S::TILE, *weights = visited + S::TILE,
          *near = weights + S::WEIGHTS;
    float top[S::M], total[S::M], sum[S::M][S::E];
    plain_zero<S>(sum);
#pragma unroll
    for (int a = 0; a < S::M; a++) {
        top[a] = -INFINITY;
        total[a] = 0.0f;
    }
    plain_copy<S>(q, static_cast<const T *>(op.q) + head * dim, op.ldq, begin, end, dim);
    for (spans_run run = {begin, begin, 0, 0}; run.end < end;) {
        run = spans_run_at(op, run.end, end);
        for (int key = run.first; key < run.last; key += S::ROWS) {
            __syncthreads();
            plain_copy<S>(visited, static_cast<const T *>(op.k) + head * dim, op.ldk, key, run.last, dim);
            spans_find_bias<T>(op, near, head, begin, key);
            __syncthreads();
            float s[S::M][S::M];
            plain_dots<S>(s, q, visited, dim);
            spans_softmax<S>(op, run, near, query, key, s, top, total, sum);
            plain_share<S>(weights, s);
            __syncthreads();
            plain_copy<S>(visited, static_cast<const T *>(op.v) + head * dim, op.ldv, key, run.last, dim);
            __syncthreads();
            spans_add_weights<S>(total, weights);
            if (op.drop.share > 0) {
#pragma unroll
                for (int a = 0; a < S::M; a++)
#pragma unroll
                    for (int b = 0; b < S::M; b++)
                        s[a][b] *= spans_factor(op, head, query + 8 * a, key + (int)threadIdx.x % 8 + 8 * b);
                plain_share<S>(weights, s);
            }
            plain_weigh<S, true>(sum, weights, visited);
        }
    }
    spans_finish<T, S>(op, head, query, end, top, total, sum);
}

/* ---- backward: one pair ---- */

/* Turns the dot products q.k and dout.v of one pair into its weight and the gradient of its score; 0 if the
 * query does not see the key. */
__device__ __forceinline__ void spans_pair(const struct ot_attend_spans_backward &op, int head,
                                           const float *near, int diagonal, int query, int key, float &p,
                                           float &ds) {
    const struct ot_attend_spans &f = op.forward;
    if (query >= f.n || key < f.key_first[query] || key >= f.key_end[query]) {
        p = ds = 0.0f;
        return;
    }
    int64_t own = head * f.n + query;
    p = vec_exp(spans_score(f, p, near, diagonal) - f.softmax[2 * own]) * f.softmax[2 * own + 1];
    float factor = spans_factor(f, head, query, key);
    ds = p * (factor * ds - op.scratch[own]);
    p *= factor;
}

/* ---- backward: queries ---- */

/* The part of dbias that a block of queries sums for one head: [buckets]. */
__device__ __forceinline__ float *spans_part(const struct ot_attend_spans_backward &op, int64_t block,
                                             int head) {
    const struct ot_attend_spans &f = op.forward;
    return op.scratch + f.n * f.heads + (block * f.heads + head) * f.buckets;
}

/* Adds the tile's ds to the block's part of dbias. Thread t sums diagonal t: its accesses and those of its
 * neighbours are in different banks. Then each bucket has a thread. All threads must call, after a barrier
 * behind the weights. */
template <class S>
__device__ __forceinline__ void spans_add_bias(const struct ot_attend_spans &op, const float *weights,
                                               float *part, float *sums, int *buckets, int query, int key) {
    int t = (int)threadIdx.x;
    if (t < SPANS_DIAGONALS) {
        float sum = 0.0f;
        for (int row = max(0, S::ROWS - 1 - t); row < min(S::ROWS, SPANS_DIAGONALS - t); row++)
            sum += weights[row * S::WEIGHT_LD + row + t - (S::ROWS - 1)];
        sums[t] = sum;
        buckets[t] = spans_bucket(op, query, key, t);
    }
    __syncthreads();
    for (int bucket = t; bucket < op.buckets; bucket += PLAIN_THREADS)
        for (int i = 0; i < SPANS_DIAGONALS; i++)
            if (buckets[i] == bucket)
                part[bucket] += sums[i];
}

/* Loads q, dout, and out into the visited tile; writes dot(out, dout) to the scratch. */
template <class T, class S>
__device__ __forceinline__ void spans_open(const struct ot_attend_spans_backward &op, int head, int begin,
                                           int end, float *q, float *dout, float *visited) {
    const struct ot_attend_spans &f = op.forward;
    int dim = (int)f.head_dim, row = (int)threadIdx.x;
    plain_copy<S>(q, static_cast<const T *>(f.q) + head * dim, f.ldq, begin, end, dim);
    plain_copy<S>(dout, static_cast<const T *>(op.dout) + head * dim, f.ldo, begin, end, dim);
    plain_copy<S>(visited, static_cast<const T *>(f.out) + head * dim, f.ldo, begin, end, dim);
    __syncthreads();
    if (row < end - begin) {
        float sum = 0.0f;
        for (int d = 0; d < dim; d++)
            sum = fmaf(dout[row * S::LD + d], visited[row * S::LD + d], sum);
        op.scratch[head * f.n + begin + row] = sum;
    }
}

/* Shared memory of the queries' kernel behind its tiles and weights. */
struct spans_rest {
    float near[PLAIN_THREADS], sums[PLAIN_THREADS], part[OT_SPAN_MOST_BUCKETS];
    int buckets[PLAIN_THREADS];
};

template <class T, class S>
__global__ void __launch_bounds__(PLAIN_THREADS, PLAIN_BLOCKS)
    spans_backward_queries(const struct ot_attend_spans_backward op) {
    const struct ot_attend_spans &f = op.forward;
    int heads = (int)f.heads, dim = (int)f.head_dim, head = (int)blockIdx.x % heads;
    int begin = (int)blockIdx.x / heads * S::ROWS, end = min(begin + S::ROWS, (int)f.n);
    int row = (int)threadIdx.x / 8, column = (int)threadIdx.x % 8;
    float *q = ot_shared<float>(), *dout = q + S::TILE, *visited = dout + S::TILE,
          *weights = visited + S::TILE;
    spans_rest *rest = reinterpret_cast<spans_rest *>(weights + S::WEIGHTS);
    float sum[S::M][S::E];
    plain_zero<S>(sum);
    for (int bucket = (int)threadIdx.x; op.dbias && bucket < f.buckets; bucket += PLAIN_THREADS)
        rest->part[bucket] = 0.0f;
    spans_open<T, S>(op, head, begin, end, q, dout, visited);
    for (spans_run run = {begin, begin, 0, 0}; run.end < end;) {
        run = spans_run_at(f, run.end, end);
        for (int key = run.first; key < run.last; key += S::ROWS) {
            const T *k = static_cast<const T *>(f.k) + head * dim,
                    *v = static_cast<const T *>(f.v) + head * dim;
            float p[S::M][S::M], ds[S::M][S::M];
            __syncthreads();
            plain_copy<S>(visited, k, f.ldk, key, run.last, dim);
            spans_find_bias<T>(f, rest->near, head, begin, key);
            __syncthreads();
            plain_dots<S>(p, q, visited, dim);
            __syncthreads();
            plain_copy<S>(visited, v, f.ldv, key, run.last, dim);
            __syncthreads();
            plain_dots<S>(ds, dout, visited, dim);
#pragma unroll
            for (int a = 0; a < S::M; a++)
#pragma unroll
                for (int b = 0; b < S::M; b++) {
                    int i = begin + row + 8 * a, diagonal = column + 8 * b - row - 8 * a + S::ROWS - 1;
                    bool waits = i < run.begin || i >= run.end; /* then it sees nothing, like a query n */
                    spans_pair(op, head, rest->near, diagonal, waits ? (int)f.n : i, key + column + 8 * b,
                               p[a][b], ds[a][b]);
                }
            plain_share<S>(weights, ds);
            __syncthreads();
            plain_copy<S>(visited, k, f.ldk, key, run.last, dim);
            __syncthreads();
            plain_weigh<S, true>(sum, weights, visited);
            if (op.dbias)
                spans_add_bias<S>(f, weights, rest->part, rest->sums, rest->buckets, begin, key);
        }
    }
    for (int bucket = (int)threadIdx.x; op.dbias && bucket < f.buckets; bucket += PLAIN_THREADS)
        spans_part(op, begin / S::ROWS, head)[bucket] = rest->part[bucket];
#pragma unroll
    for (int a = 0; a < S::M; a++)
        if (begin + row + 8 * a < end)
            plain_store<S>(static_cast<T *>(op.dq) + head * dim, f.ldq, begin + row + 8 * a, dim, sum, a,
                           f.scale);
}

/* dbias += the parts of the blocks, in order. A thread has one head and one bucket. */
static __global__ void spans_join_bias(const struct ot_attend_spans_backward op, int64_t blocks) {
    const struct ot_attend_spans &f = op.forward;
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= f.heads * f.buckets)
        return;
    float sum = 0.0f;
    for (int64_t block = 0; block < blocks; block++)
        sum += spans_part(op, block, 0)[i];
    op.dbias[i % f.buckets * f.heads + i / f.buckets] += sum;
}

/* ---- backward: keys ---- */

/* True if one of the queries [query, query + 32) sees one of the keys [begin, end). All threads get the same
 * answer, because each warp looks at the same queries. */
__device__ __forceinline__ bool spans_meet(const struct ot_attend_spans &op, int query, int begin, int end) {
    int i = query + (int)threadIdx.x % OT_WARP;
    bool sees = i < op.n && max(op.key_first[i], begin) < min(op.key_end[i], end);
    return __any_sync(0xffffffffu, sees);
}

template <class T, class S>
__global__ void __launch_bounds__(PLAIN_THREADS, PLAIN_BLOCKS)
    spans_backward_keys(const struct ot_attend_spans_backward op) {
    const struct ot_attend_spans &f = op.forward;
    int heads = (int)f.heads, dim = (int)f.head_dim, head = (int)blockIdx.x % heads;
    int begin = (int)blockIdx.x / heads * S::ROWS, end = min(begin + S::ROWS, (int)f.n_keys);
    int row = (int)threadIdx.x / 8, column = (int)threadIdx.x % 8, n = (int)f.n;
    float *k = ot_shared<float>(), *v = k + S::TILE, *visited = v + S::TILE, *weights = visited + S::TILE,
          *slopes = weights + S::WEIGHTS, *near = slopes + S::WEIGHTS;
    float dk[S::M][S::E], dv[S::M][S::E];
    plain_zero<S>(dk);
    plain_zero<S>(dv);
    plain_copy<S>(k, static_cast<const T *>(f.k) + head * dim, f.ldk, begin, end, dim);
    plain_copy<S>(v, static_cast<const T *>(f.v) + head * dim, f.ldv, begin, end, dim);
    for (int query = 0; query < n; query += S::ROWS) {
        if (!spans_meet(f, query, begin, end))
            continue;
        const T *q = static_cast<const T *>(f.q) + head * dim,
                *dout = static_cast<const T *>(op.dout) + head * dim;
        float p[S::M][S::M], ds[S::M][S::M];
        __syncthreads();
        plain_copy<S>(visited, q, f.ldq, query, n, dim);
        spans_find_bias<T>(f, near, head, query, begin);
        __syncthreads();
        plain_dots<S>(p, k, visited, dim);
        __syncthreads();
        plain_copy<S>(visited, dout, f.ldo, query, n, dim);
        __syncthreads();
        plain_dots<S>(ds, v, visited, dim);
#pragma unroll
        for (int a = 0; a < S::M; a++)
#pragma unroll
            for (int b = 0; b < S::M; b++)
                spans_pair(op, head, near, row + 8 * a - column - 8 * b + S::ROWS - 1, query + column + 8 * b,
                           begin + row + 8 * a, p[a][b], ds[a][b]);
        plain_share<S>(weights, p);
        plain_share<S>(slopes, ds);
        plain_weigh<S, true>(dv, weights, visited);
        __syncthreads();
        plain_copy<S>(visited, q, f.ldq, query, n, dim);
        __syncthreads();
        plain_weigh<S, true>(dk, slopes, visited);
    }
#pragma unroll
    for (int a = 0; a < S::M; a++)
        if (begin + row + 8 * a < end) {
            int key = begin + row + 8 * a;
            plain_store<S>(static_cast<T *>(op.dk) + head * dim, f.ldk, key, dim, dk, a, f.scale);
            plain_store<S>(static_cast<T *>(op.dv) + head * dim, f.ldv, key, dim, dv, a, 1.0f);
        }
}

/* ---- launch ---- */

/* Calls f with a value of the storage type and a shape. */
template <class F>
static cudaError_t spans_dispatch(const struct ot_attend_spans *op, F f) {
    if (op->head_dim > OT_SPAN_MOST_DIM || op->n >= 1 << 30 || op->n_keys >= 1 << 30)
        return cudaErrorInvalidValue; /* indices are int32 */
    return ot_dispatch(op->dtype, [&](auto zero) {
        return op->head_dim <= 64 ? f(zero, spans_shape<64>()) : f(zero, spans_shape<128>());
    });
}

extern "C" cudaError_t ot_cuda_attend_spans(const struct ot_attend_spans *args,
                                            const struct ot_cuda_stream *on) {
    if (!on->plain && args->drop.share == 0 && ot_attend_spans_is_tiled(args, on))
        return ot_attend_spans_tiled(args, on);
    return spans_dispatch(args, [&](auto zero, auto shape) {
        using T = decltype(zero);
        using S = decltype(shape);
        dim3 grid((unsigned)(ot_ceil_div(args->n, S::ROWS) * args->heads));
        return ot_launch(spans_forward<T, S>, grid, dim3(PLAIN_THREADS),
                         (2 * S::TILE + S::WEIGHTS + PLAIN_THREADS) * sizeof(float), on->stream, *args);
    });
}

cudaError_t ot_attend_spans_join_bias(const struct ot_attend_spans_backward *op, int queries,
                                      const struct ot_cuda_stream *on) {
    const struct ot_attend_spans *f = &op->forward;
    dim3 grid((unsigned)ot_ceil_div(f->heads * f->buckets, PLAIN_THREADS));
    return ot_launch(spans_join_bias, grid, dim3(PLAIN_THREADS), 0, on->stream, *op,
                     ot_ceil_div(f->n, queries));
}

/* The gradients of the queries and of the bias. */
template <class T, class S>
static cudaError_t launch_queries(const struct ot_attend_spans_backward *args,
                                  const struct ot_cuda_stream *on) {
    const struct ot_attend_spans *f = &args->forward;
    dim3 grid((unsigned)(ot_ceil_div(f->n, S::ROWS) * f->heads));
    OT_CUDA_TRY(ot_launch(spans_backward_queries<T, S>, grid, dim3(PLAIN_THREADS),
                          (3 * S::TILE + S::WEIGHTS) * sizeof(float) + sizeof(spans_rest), on->stream,
                          *args));
    return args->dbias ? ot_attend_spans_join_bias(args, S::ROWS, on) : cudaSuccess;
}

extern "C" cudaError_t ot_cuda_attend_spans_backward(const struct ot_attend_spans_backward *args,
                                                     const struct ot_cuda_stream *on) {
    const struct ot_attend_spans *f = &args->forward;
    if (!on->plain && args->forward.drop.share == 0 && ot_attend_spans_backward_is_tiled(args, on))
        return ot_attend_spans_backward_tiled(args, on);
    return spans_dispatch(f, [&](auto zero, auto shape) {
        using T = decltype(zero);
        using S = decltype(shape);
        if (f->n > 0)
            OT_CUDA_TRY((launch_queries<T, S>(args, on)));
        if (f->n_keys == 0)
            return cudaSuccess;
        dim3 grid((unsigned)(ot_ceil_div(f->n_keys, S::ROWS) * f->heads));
        return ot_launch(spans_backward_keys<T, S>, grid, dim3(PLAIN_THREADS),
                         (3 * S::TILE + 2 * S::WEIGHTS + PLAIN_THREADS) * sizeof(float), on->stream, *args);
    });
}
