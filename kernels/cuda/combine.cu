/* Rows of tokens to the packed rows of their experts, and back (kernels/ops_experts.h): gather, combine and
 * the backward of combine. All of them are bound by memory bandwidth.
 *
 * Bytes per two-byte element of a packed row: gather 2 to write, and 2 to read, most of them from the L2
 * cache, because a token has several rows. combine: 2, and (2 or 4) / top for y and the addend.
 * combine_backward: 6 (dy, packed, dpacked), of which dy hits the L2 cache too.
 *
 * gather and combine write each element once, by the thread that computes it; a token's rows are added in the
 * order of its slots. In combine_backward a team of threads has a packed row (rows.cuh). Order of its dot
 * product: a thread's values from the left, then the tree of ot_team_sum.
 */
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/rows.cuh"

enum { GATHER_BLOCK = 256 };

/* ---- gather ---- */

/* A block has `here` rows of `words` words. */
template <class WORD>
__global__ void gather_rows(struct ot_gather op, int block_rows, int words, int64_t ld_x, int64_t ld_packed) {
    const WORD *x = static_cast<const WORD *>(op.x);
    WORD *packed = static_cast<WORD *>(op.packed);
    int64_t first = (int64_t)blockIdx.x * block_rows;
    int here = op.rows - first < block_rows ? (int)(op.rows - first) : block_rows, top = (int)op.top;
    for (int i = (int)threadIdx.x; i < here * words; i += GATHER_BLOCK) {
        int64_t row = first + i / words;
        int32_t assignment = op.assignments[row];
        packed[row * ld_packed + i % words] =
            assignment < 0 ? WORD() : x[assignment / top * ld_x + i % words];
    }
}

template <class WORD>
static cudaError_t gather_words(const struct ot_gather *op, const struct ot_cuda_stream *on) {
    int64_t elems = (int64_t)(sizeof(WORD) / ot_dtype_bytes(op->dtype)), words = op->cols / elems;
    int rows = words < GATHER_BLOCK ? (int)(GATHER_BLOCK / words) : 1;
    return ot_launch(gather_rows<WORD>, dim3((unsigned)ot_ceil_div(op->rows, rows)), dim3(GATHER_BLOCK), 0,
                     on->stream, *op, rows, (int)words, op->ld_x / elems, op->ld_packed / elems);
}

cudaError_t ot_cuda_gather(const struct ot_gather *args, const struct ot_cuda_stream *on) {
    size_t bytes = ot_dtype_bytes(args->dtype);
    if (ot_rows_aligned(args->x, args->ld_x, bytes) &&
        ot_rows_aligned(args->packed, args->ld_packed, bytes) && args->cols * (int64_t)bytes % 16 == 0)
        return gather_words<uint4>(args, on);
    return bytes == 4 ? gather_words<uint32_t>(args, on) : gather_words<uint16_t>(args, on);
}

/* ---- combine ---- */

template <class T>
struct combine {
    static constexpr int N = ot_pack<T>::N;
    const T *packed, *addend;
    const int32_t *rows;
    const float *weights;
    T *y;
    int64_t ld_packed, ld_y;
    int top;

    template <int W>
    __device__ __forceinline__ void run(int64_t token, int64_t i) const {
        const int32_t *row = rows + token * top;
        const float *weight = weights ? weights + token * top : nullptr;
        ot_values<W> sum;
#pragma unroll 4
        for (int s = 0; s < top; s++) {
            ot_values<W> x = ot_read<W>(packed + row[s] * ld_packed + i);
            float w = weight ? weight[s] : 1.0f;
#pragma unroll
            for (int j = 0; j < W; j++)
                sum.v[j] = s == 0 ? w * x.v[j] : sum.v[j] + w * x.v[j];
        }
        if (addend) {
            ot_values<W> more = ot_read<W>(addend + token * ld_y + i);
#pragma unroll
            for (int j = 0; j < W; j++)
                sum.v[j] += more.v[j];
        }
        ot_write(y + token * ld_y + i, sum);
    }
};

/* 64 registers: four rows are in flight. */
template <class T>
constexpr int ot_map_blocks(const combine<T> *) {
    return 4;
}

cudaError_t ot_cuda_combine(const struct ot_combine *args, const struct ot_cuda_stream *on) {
    return ot_dispatch(args->dtype, [&](auto zero) {
        using T = decltype(zero);
        int64_t bytes = sizeof(T), ld = args->ld_y;
        int64_t head = ot_map_head({{args->packed, bytes, args->ld_packed},
                                    {args->addend ? args->addend : args->y, bytes, ld},
                                    {args->y, bytes, ld}},
                                   2 /* rows of any index are read */, args->cols);
        combine<T> op = {(const T *)args->packed,
                         (const T *)args->addend,
                         args->rows,
                         args->weights,
                         (T *)args->y,
                         args->ld_packed,
                         ld,
                         (int)args->top};
        return ot_map(op, args->n, args->cols, head, on);
    });
}

/* ---- the backward of combine ---- */

template <class T, bool ALIGNED>
__global__ void combine_gradients(struct ot_combine_backward op, int team_size) {
    constexpr int N = ot_pack<T>::N;
    struct ot_team team = ot_team_here(team_size);
    int64_t row = (int64_t)blockIdx.x * team.count + team.index;
    bool live = row < op.rows;
    int assignment = live ? op.assignments[row] : -1, token = assignment < 0 ? 0 : assignment / (int)op.top;
    int cols = (int)op.cols, end = live ? (cols + N - 1) / N : 0;
    float weight = assignment < 0 ? 0.0f : op.weights[assignment], dot = 0;
    const T *dy = static_cast<const T *>(op.dy) + token * op.ld_dy;
    const T *packed = static_cast<const T *>(op.packed) + row * op.ld_packed;
    T *dpacked = static_cast<T *>(op.dpacked) + row * op.ld_packed;
    for (int p = team.rank; p < end; p += team.size) {
        ot_pack<T> d = {}, x = {};
        if (assignment >= 0) {
            d = ot_row_load<ALIGNED>(dy, p, cols);
            if (op.dweights)
                x = ot_row_load<ALIGNED>(packed, p, cols);
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            dot += d.v[i] * x.v[i];
            d.v[i] = weight * d.v[i];
        }
        ot_row_store<ALIGNED>(dpacked, p, cols, d);
    }
    if (!op.dweights)
        return;
    dot = ot_team_sum(team, dot, ot_shared<float>());
    if (team.rank == 0 && assignment >= 0)
        op.dweights[assignment] = dot;
}

cudaError_t ot_cuda_combine_backward(const struct ot_combine_backward *args,
                                     const struct ot_cuda_stream *on) {
    if (args->rows > INT32_MAX || args->cols > INT32_MAX - OT_WARP)
        return cudaErrorInvalidValue;
    return ot_dispatch(args->dtype, [&](auto zero) {
        using T = decltype(zero);
        struct ot_team_shape shape = ot_team_shape(ot_ceil_div(args->cols, ot_pack<T>::N));
        bool aligned =
            ot_rows_aligned(args->dy, args->ld_dy, sizeof(T)) &&
            ot_rows_aligned(args->dpacked, args->ld_packed, sizeof(T)) &&
            ot_rows_aligned(args->dweights ? args->packed : args->dpacked, args->ld_packed, sizeof(T));
        auto kernel = aligned ? combine_gradients<T, true> : combine_gradients<T, false>;
        return ot_launch(kernel, dim3((unsigned)ot_ceil_div(args->rows, shape.block / shape.team)),
                         dim3((unsigned)shape.block), OT_WARP * sizeof(float), on->stream, *args, shape.team);
    });
}
