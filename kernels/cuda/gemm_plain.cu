/* A block computes a tile of 16 x 16 elements, one per thread. It walks along k in steps of 16. The tiles of
 * the two operands go to shared memory, so each element is read from global memory once and used 16 times. In
 * shared memory a row of a tile is one element longer than the tile, so that the elements of a column are in
 * different banks.
 */
#include "kernels/cuda/gemm_plain.h"

#include "kernels/cuda/kernel.cuh"

namespace {

enum { TILE = 16, ROW = TILE + 1, THREADS = TILE * TILE };

/* Element [row, col] of a matrix of rows x cols, which is stored transposed if `trans` is set; 0 outside of
 * it. */
template <class T>
__device__ __forceinline__ float gemm_element(const T *matrix, bool trans, int64_t ld, int64_t rows,
                                              int64_t cols, int64_t row, int64_t col) {
    if (row >= rows || col >= cols)
        return 0;
    return ot_to_float(trans ? matrix[col * ld + row] : matrix[row * ld + col]);
}

/* T: type of A, B and the bias; C: type of the result. */
template <class T, class C>
__global__ void gemm_plain(struct ot_gemm op) {
    float *a = ot_shared<float>(), *b = a + TILE * ROW;
    int x = (int)threadIdx.x % TILE, y = (int)threadIdx.x / TILE;
    int64_t row = (int64_t)blockIdx.x * TILE + y, col = (int64_t)blockIdx.y * TILE + x;
    float sum = 0;
    for (int64_t k = 0; k < op.k; k += TILE) {
        a[y * ROW + x] =
            gemm_element(static_cast<const T *>(op.a), op.trans_a, op.lda, op.m, op.k, row, k + x);
        b[y * ROW + x] =
            gemm_element(static_cast<const T *>(op.b), op.trans_b, op.ldb, op.k, op.n, k + y, col);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE; i++)
            sum = fmaf(a[y * ROW + i], b[i * ROW + x], sum);
        __syncthreads();
    }
    if (row >= op.m || col >= op.n)
        return;
    int64_t place = row * op.ldc + col;
    if (op.scale != 0)
        sum *= op.scale;
    if (op.addend)
        sum += ot_to_float(static_cast<const C *>(op.addend)[place]);
    if (op.bias)
        sum += ot_to_float(static_cast<const T *>(op.bias)[col]);
    static_cast<C *>(op.c)[place] = ot_from_float<C>(sum);
}

template <class T, class C>
cudaError_t launch_plain(const struct ot_gemm *op, const struct ot_cuda_stream *on) {
    dim3 grid((unsigned)ot_ceil_div(op->m, TILE), (unsigned)ot_ceil_div(op->n, TILE));
    return ot_launch(gemm_plain<T, C>, grid, dim3(THREADS), 2 * TILE * ROW * sizeof(float), on->stream, *op);
}

} // namespace

cudaError_t ot_cuda_gemm_plain(const struct ot_gemm *op, const struct ot_cuda_stream *on) {
    return ot_dispatch(op->dtype, [&](auto zero) {
        using T = decltype(zero);
        return op->c_dtype == OT_F32 ? launch_plain<T, float>(op, on) : launch_plain<T, T>(op, on);
    });
}
