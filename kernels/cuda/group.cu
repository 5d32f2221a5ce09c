/* Sorts the assignments of tokens to experts (kernels/ops_experts.h): a counting sort in three kernels, whose
 * result is the only one that the contract allows.
 *
 * 1. group_count: a block counts the experts of a chunk of assignments, with integer additions in shared
 *    memory, whose order changes nothing. It also marks all rows as empty.
 * 2. group_offsets: one block. Thread e adds up the chunks' counts of expert e, and leaves in their place the
 *    number before each chunk. The sums, padded, are scanned over the experts.
 * 3. group_place: a block compares each assignment of a chunk with the assignments before it in the chunk.
 *    The number of equal experts among them completes its row.
 *
 * Bytes: 12 for each assignment, and 12 for each chunk and expert. 65536 assignments to 128 experts make 64
 * chunks, whose counts the second kernel reads in 8 rounds of 8 loads. The comparisons of a chunk take some
 * 10^4 clocks of a multiprocessor. So the op takes some 15 us, and grows slowly. Not measured.
 */
#include "kernels/cuda/kernel.cuh"

enum { CHUNK = OT_GROUP_CHUNK, CHUNK_THREADS = CHUNK / 4, SCAN_THREADS = OT_MOST_EXPERTS };

__global__ void group_count(struct ot_group op, int n, int capacity) {
    int *counts = ot_shared<int>();
    int thread = (int)threadIdx.x, experts = (int)op.experts, first = (int)blockIdx.x * CHUNK;
    for (int e = thread; e < experts; e += CHUNK_THREADS)
        counts[e] = 0;
    __syncthreads();
    for (int a = first + thread; a < first + CHUNK && a < n; a += CHUNK_THREADS)
        atomicAdd(&counts[op.ids[a]], 1);
    __syncthreads();
    for (int e = thread; e < experts; e += CHUNK_THREADS)
        op.scratch[(int64_t)blockIdx.x * experts + e] = counts[e];
    for (int64_t r = (int64_t)blockIdx.x * CHUNK_THREADS + thread; r < capacity;
         r += (int64_t)gridDim.x * CHUNK_THREADS)
        op.assignments[r] = -1;
}

/* The sum of x over this thread and the threads before it. room: OT_WARP values. */
static __device__ __forceinline__ int block_scan(int x, int *room) {
    int lane = (int)threadIdx.x % OT_WARP, warp = (int)threadIdx.x / OT_WARP;
#pragma unroll
    for (int offset = 1; offset < OT_WARP; offset *= 2) {
        int before = __shfl_up_sync(0xffffffffu, x, offset);
        x += lane >= offset ? before : 0;
    }
    if (lane == OT_WARP - 1)
        room[warp] = x;
    __syncthreads();
    for (int w = 0; w < warp; w++)
        x += room[w];
    return x;
}

__global__ void __launch_bounds__(SCAN_THREADS) group_offsets(struct ot_group op, int chunks) {
    int expert = (int)threadIdx.x, experts = (int)op.experts, multiple = (int)op.multiple;
    int count = 0;
    if (expert < experts) {
#pragma unroll 8
        for (int c = 0; c < chunks; c++) {
            int32_t *place = op.scratch + (int64_t)c * experts + expert;
            int here = *place;
            *place = count;
            count += here;
        }
        op.counts[expert] = count;
        if (op.used && count > 0)
            op.used[expert] = 1;
    }
    int padded = (count + multiple - 1) / multiple * multiple, end = block_scan(padded, ot_shared<int>());
    if (expert < experts)
        op.offsets[expert + 1] = end;
    if (expert == 0)
        op.offsets[0] = 0;
}

__global__ void __launch_bounds__(CHUNK_THREADS) group_place(struct ot_group op, int n) {
    int *ids = ot_shared<int>();
    int thread = (int)threadIdx.x, first = (int)blockIdx.x * CHUNK;
    for (int i = thread; i < CHUNK; i += CHUNK_THREADS)
        ids[i] = first + i < n ? op.ids[first + i] : -1;
    __syncthreads();
    const int4 *fours = reinterpret_cast<const int4 *>(ids);
    int own[4], before[4] = {0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < 4; j++)
        own[j] = ids[4 * thread + j];
#pragma unroll 4
    for (int i = 0; i < thread; i++) {
        int4 four = fours[i];
#pragma unroll
        for (int j = 0; j < 4; j++)
            before[j] += (four.x == own[j]) + (four.y == own[j]) + (four.z == own[j]) + (four.w == own[j]);
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
        for (int i = 0; i < j; i++)
            before[j] += own[i] == own[j];
        int a = first + 4 * thread + j;
        if (a >= n)
            continue;
        int row = op.offsets[own[j]] + op.scratch[(int64_t)blockIdx.x * op.experts + own[j]] + before[j];
        op.rows[a] = row;
        op.assignments[row] = a;
    }
}

/* One chunk at least: without assignments, the offsets and counts are zeros. */
cudaError_t ot_cuda_group(const struct ot_group *args, const struct ot_cuda_stream *on) {
    int n = (int)(args->n * args->top), chunks = (int)ot_ceil_div(n, CHUNK);
    int capacity = (int)ot_group_rows(args->n, args->top, args->experts, args->multiple);
    unsigned threads = (unsigned)ot_ceil_div(args->experts, OT_WARP) * OT_WARP;
    if (chunks > 0)
        OT_CUDA_TRY(ot_launch(group_count, dim3((unsigned)chunks), dim3(CHUNK_THREADS),
                              (size_t)args->experts * sizeof(int), on->stream, *args, n, capacity));
    OT_CUDA_TRY(
        ot_launch(group_offsets, dim3(1), dim3(threads), OT_WARP * sizeof(int), on->stream, *args, chunks));
    if (chunks == 0)
        return cudaSuccess;
    return ot_launch(group_place, dim3((unsigned)chunks), dim3(CHUNK_THREADS), CHUNK * sizeof(int),
                     on->stream, *args, n);
}
