/* The gradient of a bias: the sums of the columns of dy.
 *
 * Bytes moved per value: one element of dtype; partial sums add 8 bytes per column for each chunk of 64 rows
 * or more. One FLOP per value: bound by memory bandwidth.
 *
 * A block has a chunk of rows and 32 packs of columns, one pack for each lane. Its warps take the rows in
 * turn. Order of a column's sum: warp w adds rows w, w + 8, ... of the chunk; then the warps are added in
 * order; then ot_column_join adds the chunks.
 */
#include "kernels/cuda/rows.cuh"

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
