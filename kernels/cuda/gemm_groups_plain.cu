/* The plain product by groups: a block computes a tile of 16 x 16 elements, one per thread, like
 * gemm_plain.cu. Each element is one fp32 sum in the order of k (ROWS), or of the rows of the group (SUMS).
 */
#include "kernels/cuda/gemm_groups.cuh"
#include "kernels/cuda/gemm_groups.h"

namespace {

enum { TILE = 16, ROW = TILE + 1, THREADS = TILE * TILE };

/* Element [row, col] of a matrix whose rows and columns end at `rows` and `cols`; 0 outside of it. */
template <class T>
__device__ __forceinline__ float element(const T *matrix, int64_t ld, int row, int rows, int col, int cols) {
    return row < rows && col < cols ? ot_to_float(matrix[row * ld + col]) : 0.0f;
}

/* T: type of A, B and the bias; C: type of the result. */
template <class T, class C>
__global__ void groups_plain(struct ot_gemm_groups op) {
    float *a = ot_shared<float>(), *b = a + TILE * ROW;
    int x = (int)threadIdx.x % TILE, y = (int)threadIdx.x / TILE;
    struct ot_groups_tile at;
    if (!ot_groups_find<TILE, TILE>(op, (int)blockIdx.x, &at))
        return;
    bool sums = op.form == OT_GROUPS_SUMS;
    int first = sums ? at.begin : 0, last = sums ? at.end : (int)op.k, n = (int)op.n, m = (int)op.m;
    const T *from_a = static_cast<const T *>(op.a), *from_b = static_cast<const T *>(op.b);
    if (!sums)
        from_b += at.expert * op.stride;
    float sum = 0;
    for (int k = first; k < last; k += TILE) {
        a[y * ROW + x] = sums ? element(from_a, op.lda, k + x, last, at.row + y, m)
                              : element(from_a, op.lda, at.row + y, at.end, k + x, last);
        b[y * ROW + x] = op.trans_b ? element(from_b, op.ldb, at.col + x, n, k + y, last)
                                    : element(from_b, op.ldb, k + y, last, at.col + x, n);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE; i++)
            sum = fmaf(a[y * ROW + i], b[i * ROW + x], sum);
        __syncthreads();
    }
    int row = at.row + y, col = at.col + x;
    if (row >= (sums ? m : at.end) || col >= n)
        return;
    int64_t place = row * op.ldc + col + (sums ? at.expert * op.stride : 0);
    static_cast<C *>(op.c)[place] = ot_from_float<C>(ot_groups_finish<T, C>(op, at.expert, sum, col, place));
}

template <class T, class C>
cudaError_t launch_plain(const struct ot_gemm_groups *op, const struct ot_cuda_stream *on) {
    return ot_launch(groups_plain<T, C>, dim3((unsigned)ot_groups_tiles(*op, TILE, TILE)), dim3(THREADS),
                     2 * TILE * ROW * sizeof(float), on->stream, *op);
}

} // namespace

cudaError_t ot_gemm_groups_plain(const struct ot_gemm_groups *op, const struct ot_cuda_stream *on) {
    return ot_dispatch(op->dtype, [&](auto zero) {
        using T = decltype(zero);
        return op->c_dtype == OT_F32 ? launch_plain<T, float>(op, on) : launch_plain<T, T>(op, on);
    });
}
