/* Element-wise ops: the loop that every op without neighbours uses.
 *
 * An op is a struct with
 *
 *     static constexpr int N;                            elements of a pack: 16 bytes of its narrowest array
 *     template <int W> void run(int64_t row, int64_t i)  elements [i, i + W) of a row; W is N or 1
 *
 * Packs begin at 16-byte borders of the arrays: `head` elements into each row, the same for all arrays and
 * all rows (ot_map_head). The elements before and behind the packs go one at a time. If no such place exists
 * (an array begins at an odd element relative to another), the whole row goes one element at a time. Both
 * ways do the same arithmetic on the same elements, so the bits do not depend on alignment.
 *
 * Threads walk along rows in x and over rows in y, so nothing is divided by the length of a row. A contiguous
 * array is one row.
 */
#ifndef OT_KERNELS_CUDA_MAP_CUH
#define OT_KERNELS_CUDA_MAP_CUH

#include "kernels/cuda/kernel.cuh"

enum {
    OT_MAP_THREADS = 256,
    /* Blocks per multiprocessor at most; with more elements the threads loop. Eight blocks fill a
     * multiprocessor. Several rounds of eight level out differences between multiprocessors. */
    OT_MAP_BLOCKS_PER_SM = 64,
    OT_MAP_MAX_GRID_Y = 65535,
};

/* W values of type T as fp32: 16-byte accesses, or one plain access if W is 1. */
template <int W>
struct ot_values {
    float v[W];
};

template <int W, class T>
__device__ __forceinline__ ot_values<W> ot_read(const T *from) {
    ot_values<W> x;
    if constexpr (W == 1) {
        x.v[0] = ot_to_float(*from);
    } else {
        constexpr int N = ot_pack<T>::N;
        static_assert(W % N == 0, "whole packs");
#pragma unroll
        for (int part = 0; part < W / N; part++) {
            ot_pack<T> pack = ot_load(from + part * N);
#pragma unroll
            for (int i = 0; i < N; i++)
                x.v[part * N + i] = pack.v[i];
        }
    }
    return x;
}

template <int W, class T>
__device__ __forceinline__ void ot_write(T *to, const ot_values<W> &x) {
    if constexpr (W == 1) {
        *to = ot_from_float<T>(x.v[0]);
    } else {
        constexpr int N = ot_pack<T>::N;
        static_assert(W % N == 0, "whole packs");
#pragma unroll
        for (int part = 0; part < W / N; part++) {
            ot_pack<T> pack;
#pragma unroll
            for (int i = 0; i < N; i++)
                pack.v[i] = x.v[part * N + i];
            ot_store_global(to + part * N, pack);
        }
    }
}

/* Each thread calls it first, on its own copy of the op. False: nothing to do. Ops may overload it. */
template <class Op>
__device__ __forceinline__ bool ot_map_prepare(Op &) {
    return true;
}

/* Blocks of an op that a multiprocessor must have registers for. 0: the compiler chooses. An op that needs
 * another number has its own function for its type. */
template <class Op>
constexpr int ot_map_blocks(const Op *) {
    return 0;
}

template <class Op>
__global__ void __launch_bounds__(OT_MAP_THREADS, ot_map_blocks(static_cast<const Op *>(nullptr)))
    ot_map_kernel(Op op, int64_t rows, int64_t cols, int64_t head) {
    constexpr int N = Op::N;
    int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, stride = (int64_t)gridDim.x * blockDim.x;
    int64_t body_end = cols - (cols - head) % N;
    int64_t singles = cols - (body_end - head);
    if (!ot_map_prepare(op))
        return;
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
#pragma unroll 1
        for (int64_t i = head + first * N; i < body_end; i += stride * N)
            op.template run<N>(row, i);
#pragma unroll 1
        for (int64_t i = first; i < singles; i += stride)
            op.template run<1>(row, i < head ? i : i - head + body_end);
    }
}

/* One array of an op: its start, the bytes of an element, and the elements from row to row. */
struct ot_map_array {
    const void *begin;
    int64_t bytes, ld;
};

/* The number of elements before the first place where packs of n elements can begin in all arrays of an op;
 * cols if no such place exists. Packs consist of sixteen-byte accesses, so 16 bytes is the alignment of each
 * array. */
template <int COUNT>
int64_t ot_map_head(const struct ot_map_array (&arrays)[COUNT], int64_t rows, int64_t cols) {
    for (int64_t head = 0; head < 8 && head < cols; head++) {
        bool aligned = true;
        for (int a = 0; a < COUNT; a++) {
            const struct ot_map_array *x = &arrays[a];
            aligned &= ((int64_t)(uintptr_t)x->begin + head * x->bytes) % 16 == 0;
            aligned &= rows == 1 || x->ld * x->bytes % 16 == 0;
        }
        if (aligned)
            return head;
    }
    return cols;
}

template <class Op>
cudaError_t ot_map(const Op &op, int64_t rows, int64_t cols, int64_t head, const struct ot_cuda_stream *on) {
    if (rows <= 0 || cols <= 0)
        return cudaSuccess;
    int64_t most = (int64_t)on->sm_count * OT_MAP_BLOCKS_PER_SM;
    int64_t body = (cols - head) / Op::N, singles = cols - body * Op::N;
    int64_t across = ot_ceil_div(body > singles ? body : singles, OT_MAP_THREADS);
    across = across < most ? across : most;
    int64_t down = ot_ceil_div(most, across);
    down = down < rows ? down : rows;
    down = down < OT_MAP_MAX_GRID_Y ? down : OT_MAP_MAX_GRID_Y;
    return ot_launch(ot_map_kernel<Op>, dim3((unsigned)across, (unsigned)down), dim3(OT_MAP_THREADS), 0,
                     on->stream, op, rows, cols, head);
}

#endif
