/* The second half of every sum over rows: adds the chunks' partial sums of each column (rows.cuh).
 *
 * It reads 4 bytes and adds once for each chunk and column. The partial sums were just written, so most of
 * them are still in the L2 cache. Order: the chunks of a group in order, then the groups, in order, to the
 * output. A block has 32 columns. Its warp w sums the groups w, w + 16, ..., so that 16 groups are read at
 * once.
 */
#include "kernels/cuda/rows.cuh"

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
