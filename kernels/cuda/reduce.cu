/* Sums: of fp32 arrays, gradients of biases, and partial sums of rows.
 *
 * The sum, or the sum of squares, of an fp32 array is in double; on the way it may round the array to another
 * type. It has the bits of the cpu device's op, because gradient clipping must not depend on where the
 * gradients were summed.
 *
 * That fixes the order (kernels/cpu/op_sums.inc). An array is cut into chunks of 65536 elements. In a chunk
 * sixteen sums run side by side: sum l adds the elements l, l + 16, l + 32, ... Then sums l and l + 8 are
 * added, then these eight in order, and then the chunks in order.
 *
 * So a thread computes one of a chunk's sixteen sums, and a warp computes two chunks. The 4096 dependent
 * additions of a thread take some 20 us, whatever else the GPU does. A gradient of 10^8 elements (1526
 * chunks, 24416 threads) hides that time behind its own loads: each thread has UNROLL loads in flight. The
 * square of an fp32 number is exact in double, so one fma gives the same bits as the product and the sum of
 * the cpu device.
 *
 * Bytes: 4 per element, and those of the rounded element. Sixteen threads store sixteen neighbours: whole
 * sectors.
 */
#include "kernels/cuda/kernel.cuh"
#include "kernels/cuda/rows.cuh"

inline namespace reduce_cu {

enum {
    CHUNK = OT_REDUCE_CHUNK,
    SUMS = 16,
    THREADS = 128, /* eight chunks; such small blocks spread over all multiprocessors */
    UNROLL = 16,
    FINISH_THREADS = 256,
    FINISH_TILE = 1024,
};

template <bool SQUARES>
__device__ __forceinline__ double add_to(double sum, float x) {
    double wide = x;
    return SQUARES ? fma(wide, wide, sum) : sum + wide;
}

/* Adds the elements 0, 16, 32, ... below n of x, in order, and rounds them. rounded may be NULL. */
template <bool SQUARES, class T>
__device__ __forceinline__ double sum_strided(const float *x, int64_t n, T *rounded) {
    double sum = 0;
    int64_t i = 0;
    for (; i + (UNROLL - 1) * SUMS < n; i += UNROLL * SUMS) {
        float next[UNROLL];
#pragma unroll
        for (int j = 0; j < UNROLL; j++)
            next[j] = x[i + j * SUMS];
#pragma unroll
        for (int j = 0; j < UNROLL; j++)
            sum = add_to<SQUARES>(sum, next[j]);
        if (rounded)
#pragma unroll
            for (int j = 0; j < UNROLL; j++)
                rounded[i + j * SUMS] = ot_from_float<T>(next[j]);
    }
#pragma unroll 1
    for (; i < n; i += SUMS) {
        sum = add_to<SQUARES>(sum, x[i]);
        if (rounded)
            rounded[i] = ot_from_float<T>(x[i]);
    }
    return sum;
}

/* partial[c] = the sum of chunk c. */
template <bool SQUARES, class T>
__global__ void __launch_bounds__(THREADS)
    reduce_chunks(const float *x, int64_t n, int64_t chunks, double *partial, T *rounded) {
    int64_t chunk = (int64_t)blockIdx.x * (THREADS / SUMS) + threadIdx.x / SUMS;
    int lane = (int)threadIdx.x % SUMS, first = (int)threadIdx.x % OT_WARP / SUMS * SUMS;
    double sum = 0;
    if (chunk < chunks) {
        int64_t begin = chunk * CHUNK + lane, end = (chunk + 1) * CHUNK < n ? (chunk + 1) * CHUNK : n;
        sum = sum_strided<SQUARES>(x + begin, end - begin, rounded ? rounded + begin : nullptr);
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, SUMS / 2);
    double total = 0;
#pragma unroll
    for (int i = 0; i < SUMS / 2; i++)
        total += __shfl_sync(0xffffffffu, sum, first + i);
    if (lane == 0 && chunk < chunks)
        partial[chunk] = total;
}

/* *out = (*out or 0) plus the partial sums, one after the other. It is one block: one thread adds, and all
 * threads load. */
__global__ void __launch_bounds__(FINISH_THREADS)
    reduce_finish(const double *partial, int64_t chunks, bool accumulate, double *out) {
    double *tile = ot_shared<double>();
    double total = accumulate ? *out : 0;
    for (int64_t begin = 0; begin < chunks; begin += FINISH_TILE) {
        int count = (int)(chunks - begin < FINISH_TILE ? chunks - begin : FINISH_TILE);
        for (int i = (int)threadIdx.x; i < count; i += FINISH_THREADS)
            tile[i] = partial[begin + i];
        __syncthreads();
        if (threadIdx.x == 0)
#pragma unroll 8
            for (int i = 0; i < count; i++)
                total += tile[i];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        *out = total;
}

/* T: the type of the rounded elements. */
template <class T>
cudaError_t reduce(const struct ot_reduce *args, const struct ot_cuda_stream *on) {
    double *partial = (double *)on->scratch;
    int64_t chunks = ot_ceil_div(args->n, CHUNK), room = (int64_t)(on->scratch_bytes / sizeof *partial);
    bool accumulate = args->accumulate;
    T *rounded = static_cast<T *>(args->rounded);
    /* As many chunks at a time as the scratch has room for. The loop also runs once for no chunks, because it
     * may have to write a zero. */
    for (int64_t done = 0; done < chunks || done == 0; done += room) {
        int64_t now = chunks - done < room ? chunks - done : room;
        const float *x = args->x + done * CHUNK;
        int64_t n = args->n - done * CHUNK;
        if (now > 0)
            OT_CUDA_TRY(ot_launch(args->squares ? reduce_chunks<true, T> : reduce_chunks<false, T>,
                                  dim3((unsigned)ot_ceil_div(now, THREADS / SUMS)), dim3(THREADS), 0,
                                  on->stream, x, n, now, partial,
                                  rounded ? rounded + done * CHUNK : rounded));
        OT_CUDA_TRY(ot_launch(reduce_finish, dim3(1), dim3(FINISH_THREADS), FINISH_TILE * sizeof(double),
                              on->stream, partial, now, accumulate, args->out));
        accumulate = true;
    }
    return cudaSuccess;
}

} // namespace reduce_cu

cudaError_t ot_cuda_reduce(const struct ot_reduce *args, const struct ot_cuda_stream *on) {
    return ot_dispatch(args->rounded ? args->rounded_dtype : OT_F32,
                       [&](auto zero) { return reduce<decltype(zero)>(args, on); });
}

/* ---- gradients of biases ---- */

/* The gradient of a bias: the sums of the columns of dy.
 *
 * Bytes moved per value: one element of dtype; partial sums add 8 bytes per column for each chunk of 64 rows
 * or more. One FLOP per value: bound by memory bandwidth.
 *
 * A block has a chunk of rows and 32 packs of columns, one pack for each lane. Its warps take the rows in
 * turn. Order of a column's sum: warp w adds rows w, w + 8, ... of the chunk; then the warps are added in
 * order; then ot_column_join adds the chunks.
 */

enum { BIAS_WARPS = 8, BIAS_MIN_ROWS = 64, BIAS_MAX_CHUNKS = 256 };

template <class T, bool ALIGNED>
__global__ void bias_chunk(struct ot_bias_backward op, int64_t first_chunk, int64_t chunk_rows,
                           float *partial, int width) {
    constexpr int N = ot_pack<T>::N;
    float *sums = ot_shared<float>(); /* [BIAS_WARPS][N][OT_WARP] */
    int lane = (int)threadIdx.x % OT_WARP, warp = (int)threadIdx.x / OT_WARP;
    int p = (int)blockIdx.x * OT_WARP + lane;
    int64_t begin = (first_chunk + blockIdx.y) * chunk_rows;
    int64_t end = begin + chunk_rows < op.rows ? begin + chunk_rows : op.rows;
    ot_pack<T> sum = {};
#pragma unroll 4
    for (int64_t row = begin + warp; row < end; row += BIAS_WARPS) {
        ot_pack<T> dy = ot_row_load<ALIGNED>(static_cast<const T *>(op.dy) + row * op.ld, p, (int)op.cols);
#pragma unroll
        for (int i = 0; i < N; i++)
            sum.v[i] += dy.v[i];
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        sums[(warp * N + i) * OT_WARP + lane] = sum.v[i];
    __syncthreads();
    for (int i = warp; i < N; i += BIAS_WARPS) { /* value i of every pack */
        float total = 0;
        for (int w = 0; w < BIAS_WARPS; w++)
            total += sums[(w * N + i) * OT_WARP + lane];
        if (p * N + i < width)
            partial[(int64_t)blockIdx.y * width + p * N + i] = total;
    }
}

template <class T>
static cudaError_t bias_run(const struct ot_bias_backward *op, const struct ot_cuda_stream *on) {
    int64_t packs = ot_ceil_div(op->cols, ot_pack<T>::N), width = packs * ot_pack<T>::N;
    struct ot_column_plan plan;
    OT_CUDA_TRY(ot_column_plan(op->rows, width, 1, BIAS_MIN_ROWS, BIAS_MAX_CHUNKS, on, &plan));
    auto kernel = ot_rows_aligned(op->dy, op->ld, sizeof(T)) ? bias_chunk<T, true> : bias_chunk<T, false>;
    float *partial = static_cast<float *>(on->scratch);
    for (int64_t first = 0; first < plan.chunks; first += plan.round) {
        int64_t chunks = plan.chunks - first < plan.round ? plan.chunks - first : plan.round;
        OT_CUDA_TRY(ot_launch(kernel, dim3((unsigned)ot_ceil_div(packs, OT_WARP), (unsigned)chunks),
                              dim3(BIAS_WARPS * OT_WARP),
                              BIAS_WARPS * ot_pack<T>::N * OT_WARP * sizeof(float), on->stream, *op, first,
                              plan.chunk_rows, partial, (int)width));
        OT_CUDA_TRY(ot_column_join(partial, width, chunks, plan.group, op->cols, op->dbias, on));
    }
    return cudaSuccess;
}

cudaError_t ot_cuda_bias_backward(const struct ot_bias_backward *args, const struct ot_cuda_stream *on) {
    if (args->rows == 0 || args->cols == 0)
        return cudaSuccess;
    return ot_dispatch(args->dtype, [&](auto zero) { return bias_run<decltype(zero)>(args, on); });
}

/* ---- joining partial sums ---- */

/* The second half of every sum over rows: adds the chunks' partial sums of each column (rows.cuh).
 *
 * It reads 4 bytes and adds once for each chunk and column. The partial sums were just written, so most of
 * them are still in the L2 cache. Order: the chunks of a group in order, then the groups, in order, to the
 * output. A block has 32 columns. Its warp w sums the groups w, w + 16, ..., so that 16 groups are read at
 * once.
 */

enum { JOIN_WARPS = 16, JOIN_GROUP = 32 };

__global__ void column_join(const float *partial, int64_t ld, int64_t chunks, int group, int64_t cols,
                            float *out) {
    float *sums = ot_shared<float>(); /* [JOIN_WARPS][OT_WARP] */
    int lane = (int)threadIdx.x % OT_WARP, warp = (int)threadIdx.x / OT_WARP;
    int64_t col = (int64_t)blockIdx.x * OT_WARP + lane;
    bool live = col < cols;
    float total = live && warp == 0 ? out[col] : 0.0f;
    for (int64_t first = 0; first < chunks; first += JOIN_WARPS * group) {
        int64_t begin = first + (int64_t)warp * group;
        int64_t end = begin + group < chunks ? begin + group : chunks;
        float sum = 0;
        if (live)
#pragma unroll 8
            for (int64_t chunk = begin; chunk < end; chunk++)
                sum += partial[chunk * ld + col];
        sums[warp * OT_WARP + lane] = sum;
        __syncthreads();
        if (warp == 0)
            for (int w = 0; w < JOIN_WARPS && first + (int64_t)w * group < chunks; w++)
                total += sums[w * OT_WARP + lane];
        __syncthreads();
    }
    if (live && warp == 0)
        out[col] = total;
}

cudaError_t ot_column_plan(int64_t rows, int64_t cols, int arrays, int64_t min_rows, int64_t max_chunks,
                           const struct ot_cuda_stream *on, struct ot_column_plan *out) {
    int64_t chunk_bytes = cols * arrays * (int64_t)sizeof(float);
    int64_t smallest = OT_CUDA_MIN_SCRATCH_BYTES / chunk_bytes; /* chunks that fit the smallest scratch */
    if (smallest < 1)
        return cudaErrorInvalidValue;
    int64_t wanted = ot_ceil_div(rows, max_chunks);
    out->chunk_rows = wanted > min_rows ? wanted : min_rows;
    out->chunks = ot_ceil_div(rows, out->chunk_rows);
    out->group = smallest < JOIN_GROUP ? (int)smallest : JOIN_GROUP;
    out->round = (int64_t)on->scratch_bytes / chunk_bytes / out->group * out->group;
    out->round = out->round < out->chunks ? out->round : out->chunks;
    return cudaSuccess;
}

cudaError_t ot_column_join(const float *partial, int64_t ld, int64_t chunks, int group, int64_t cols,
                           float *out, const struct ot_cuda_stream *on) {
    return ot_launch(column_join, dim3((unsigned)ot_ceil_div(cols, OT_WARP)), dim3(JOIN_WARPS * OT_WARP),
                     JOIN_WARPS * OT_WARP * sizeof(float), on->stream, partial, ld, chunks, group, cols, out);
}
