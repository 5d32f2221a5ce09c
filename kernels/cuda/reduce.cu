/* The sum, or the sum of squares, of an fp32 array, in double; on the way it may round the array to another
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

namespace {

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

} // namespace

cudaError_t ot_cuda_reduce(const struct ot_reduce *args, const struct ot_cuda_stream *on) {
    return ot_dispatch(args->rounded ? args->rounded_dtype : OT_F32,
                       [&](auto zero) { return reduce<decltype(zero)>(args, on); });
}
