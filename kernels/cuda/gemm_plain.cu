/* A block computes a tile of 16 x 16 elements, one per thread. It walks along k in steps of 16. The tiles of
 * the two operands go to shared memory, so each element is read from global memory once and used 16 times. In
 * shared memory a row of a tile is one element longer than the tile, so that the elements of a column are in
 * different banks.
 */
#include "kernels/cuda/gemm_plain.h"

#include "kernels/cuda/kernel.cuh"

inline namespace gemm_plain_cu {

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

} // namespace gemm_plain_cu

cudaError_t ot_cuda_gemm_plain(const struct ot_gemm *op, const struct ot_cuda_stream *on) {
    return ot_dispatch(op->dtype, [&](auto zero) {
        using T = decltype(zero);
        return op->c_dtype == OT_F32 ? launch_plain<T, float>(op, on) : launch_plain<T, T>(op, on);
    });
}

/* ---- tuning ---- */

/* The kernels of tuning. They are limited by memory bandwidth and run beside products that take far longer,
 * so one element at a time per thread is fast enough. The 32 threads of a warp still read and write whole
 * sectors. */

inline namespace gemm_plain_cu {

enum { TUNE_THREADS = 256, BLOCKS_PER_SM = 32 };

/* The mixing function of splitmix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
 * Generators"). The bits of neighbouring elements are unrelated. So if two algorithms add random operands in
 * different orders, their additions round differently. */
__device__ __forceinline__ uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

template <class T>
__global__ void fill_kernel(T *to, int64_t n, uint64_t seed) {
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        int32_t word = (int32_t)(mix(seed << 48 ^ (uint64_t)i) >> 40) - (1 << 23);
        to[i] = ot_from_float<T>((float)word * (1.0f / (1 << 23)));
    }
}

__global__ void compare_kernel(const uint16_t *a, const uint16_t *b, int64_t n, uint32_t *differ) {
    uint32_t mine = 0;
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride)
        mine |= a[i] != b[i];
    if (mine)
        atomicAdd(differ, mine);
}

dim3 grid_of(int64_t n, const struct ot_cuda_stream *on) {
    int64_t blocks = ot_ceil_div(n, TUNE_THREADS), most = (int64_t)on->sm_count * BLOCKS_PER_SM;
    return dim3((unsigned)(blocks < most ? blocks : most));
}

} // namespace gemm_plain_cu

cudaError_t ot_cuda_gemm_fill(enum ot_dtype dtype, void *to, int64_t n, uint32_t seed,
                              const struct ot_cuda_stream *on) {
    return ot_dispatch(dtype, [&](auto zero) {
        using T = decltype(zero);
        return ot_launch(fill_kernel<T>, grid_of(n, on), dim3(TUNE_THREADS), 0, on->stream,
                         static_cast<T *>(to), n, (uint64_t)seed);
    });
}

cudaError_t ot_cuda_gemm_compare(const void *a, const void *b, int64_t n, uint32_t *differ,
                                 const struct ot_cuda_stream *on) {
    return ot_launch(compare_kernel, grid_of(n, on), dim3(TUNE_THREADS), 0, on->stream,
                     static_cast<const uint16_t *>(a), static_cast<const uint16_t *>(b), n, differ);
}
