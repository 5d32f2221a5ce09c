/* DoRA: the factors of rows, their use and its gradient (kernels/ops.h).
 *
 * Bytes: the factors read each weight once; a weight takes two FLOPs. The rank^2 FLOPs of a row of B read
 * gram, which stays in the caches. The use moves two to four arrays of the activation's size,
 * backward two or three. All are bound by memory bandwidth.
 *
 * Factors: a team of threads has a row (rows.cuh). Order of sums: a thread's values from the left, then the
 * tree of ot_team_sums. Backward sums columns as reduce.cu does: a block has a chunk of rows and 32
 * packs of columns, one for each lane; warp w adds rows w, w + 8, ... of the chunk; then the warps in order;
 * then ot_column_join adds the chunks.
 */
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/rows.cuh"

inline namespace dora_cu {

/* ---- factors ---- */

/* The thread's part of |V|^2 - |W|^2 of a row, divided by the scale. */
template <class T>
__device__ __forceinline__ float dora_growth(const struct ot_dora_factors &op, const struct ot_team &team,
                                             int64_t row) {
    const T *b = static_cast<const T *>(op.b) + row * op.rank;
    const float *cross = op.cross + row * op.rank;
    float sum = 0;
    for (int64_t j = team.rank; j < op.rank; j += team.size) {
        float gram = 0;
        for (int64_t k = 0; k < op.rank; k++)
            gram += ot_to_float(b[k]) * op.gram[k * op.rank + j];
        sum += ot_to_float(b[j]) * (2.0f * cross[j] + op.scale * gram);
    }
    return sum;
}

template <class T, bool ALIGNED>
__global__ void dora_factors_rows(struct ot_dora_factors op, int team_size) {
    constexpr int N = ot_pack<T>::N;
    struct ot_team team = ot_team_here(team_size);
    int64_t row = (int64_t)blockIdx.x * team.count + team.index;
    bool live = row < op.rows; /* a team without a row takes part in the sums */
    int packs = live ? ((int)op.cols + N - 1) / N : 0;
    const T *weight = static_cast<const T *>(op.weight) + (live ? row : 0) * op.cols;
    float sums[2] = {0, 0};
    for (int p = team.rank; p < packs; p += team.size) {
        ot_pack<T> x = ot_row_load<ALIGNED>(weight, p, (int)op.cols);
#pragma unroll
        for (int i = 0; i < N; i++) /* beyond the row's end x is 0 */
            sums[0] += x.v[i] * x.v[i];
    }
    if (live)
        sums[1] = dora_growth<T>(op, team, row);
    ot_team_sums(team, sums, ot_shared<float>());
    if (!live || team.rank != 0)
        return;
    float after = sums[0] + op.scale * sums[1];
    float change = ot_to_float(static_cast<const T *>(op.change)[row]);
    op.inverse[row] = after <= 0 ? 0.0f : 1.0f / sqrtf(after);
    op.factor[row] = after <= 0 ? 0.0f : (sqrtf(sums[0]) + change) / sqrtf(after);
}

/* ---- their use ---- */

template <class T>
struct dora {
    static constexpr int N = ot_pack<T>::N;
    const T *u, *less, *bias, *addend;
    const float *factor;
    T *y;
    int64_t ld;

    template <int W>
    __device__ __forceinline__ void run(int64_t row, int64_t i) const {
        ot_values<W> sum = ot_read<W>(u + row * ld + i);
        if (factor) {
            ot_values<W> by = ot_read<W>(factor + i);
#pragma unroll
            for (int j = 0; j < W; j++)
                sum.v[j] *= by.v[j];
        }
        if (less) {
            ot_values<W> by = ot_read<W>(less + row * ld + i);
#pragma unroll
            for (int j = 0; j < W; j++)
                sum.v[j] -= by.v[j];
        }
        if (bias)
            add(sum, ot_read<W>(bias + i));
        if (addend)
            add(sum, ot_read<W>(addend + row * ld + i));
        ot_write(y + row * ld + i, sum);
    }

    template <int W>
    __device__ __forceinline__ static void add(ot_values<W> &sum, const ot_values<W> &x) {
#pragma unroll
        for (int j = 0; j < W; j++)
            sum.v[j] += x.v[j];
    }
};

/* ---- backward ---- */

/* MOST_COLS: at once, so that partial sums fit the smallest scratch. A head has more columns. */
enum { WARPS = 8, MIN_ROWS = 64, MAX_CHUNKS = 256, MOST_COLS = 65536 };

/* A pack of T's size from a row of U, which is T or float. */
template <bool ALIGNED, class T, class U>
__device__ __forceinline__ ot_pack<T> dora_load(const U *row, int p, int n) {
    if constexpr (sizeof(T) == sizeof(U))
        return ot_row_load<ALIGNED>(row, p, n);
    else
        return ot_row_load_floats<ALIGNED, T>(row, p, n);
}

/* Writes du of a pack; adds dy u to its sums. */
template <class T, class U, bool ALIGNED>
__device__ __forceinline__ void dora_backward_pack(const struct ot_dora_backward &op, int64_t row, int p,
                                                   ot_pack<T> *sum) {
    constexpr int N = ot_pack<T>::N;
    int cols = (int)op.cols;
    ot_pack<T> dy = ot_row_load<ALIGNED>(static_cast<const T *>(op.dy) + row * op.ld_dy, p, cols);
    if (op.dchange) {
        ot_pack<T> u = dora_load<ALIGNED, T>(static_cast<const U *>(op.u) + row * op.ld, p, cols);
#pragma unroll
        for (int i = 0; i < N; i++)
            sum->v[i] += dy.v[i] * u.v[i];
    }
    if (op.factor) {
        ot_pack<T> factor = ot_row_load_floats<ALIGNED, T>(op.factor, p, cols);
#pragma unroll
        for (int i = 0; i < N; i++)
            dy.v[i] *= factor.v[i];
    }
    if (op.du)
        ot_row_store<ALIGNED>(static_cast<T *>(op.du) + row * op.ld, p, cols, dy);
}

template <class T, class U, bool ALIGNED>
__global__ void dora_backward_chunk(struct ot_dora_backward op, int64_t first_chunk, int64_t chunk_rows,
                                    float *partial, int width) {
    constexpr int N = ot_pack<T>::N;
    float *sums = ot_shared<float>(); /* [WARPS][N][OT_WARP] */
    int lane = (int)threadIdx.x % OT_WARP, warp = (int)threadIdx.x / OT_WARP;
    int p = (int)blockIdx.x * OT_WARP + lane;
    int64_t begin = (first_chunk + blockIdx.y) * chunk_rows;
    int64_t end = begin + chunk_rows < op.rows ? begin + chunk_rows : op.rows;
    ot_pack<T> sum = {};
#pragma unroll 2
    for (int64_t row = begin + warp; row < end; row += WARPS)
        dora_backward_pack<T, U, ALIGNED>(op, row, p, &sum);
    if (!op.dchange)
        return;
#pragma unroll
    for (int i = 0; i < N; i++)
        sums[(warp * N + i) * OT_WARP + lane] = sum.v[i];
    __syncthreads();
    for (int i = warp; i < N; i += WARPS) { /* value i of every pack */
        int col = p * N + i;
        float total = 0;
        for (int w = 0; w < WARPS; w++)
            total += sums[(w * N + i) * OT_WARP + lane];
        if (col < width)
            partial[(int64_t)blockIdx.y * width + col] = col < op.cols ? total * op.inverse[col] : 0.0f;
    }
}

template <class T, class U>
cudaError_t backward_run(const struct ot_dora_backward *op, const struct ot_cuda_stream *on) {
    int64_t packs = ot_ceil_div(op->cols, ot_pack<T>::N), width = packs * ot_pack<T>::N;
    struct ot_column_plan plan;
    OT_CUDA_TRY(ot_column_plan(op->rows, width, 1, MIN_ROWS, MAX_CHUNKS, on, &plan));
    bool aligned = ot_rows_aligned(op->dy, op->ld_dy, sizeof(T)) &&
                   ot_rows_aligned(op->u, op->ld, sizeof(U)) && ot_rows_aligned(op->du, op->ld, sizeof(T)) &&
                   ot_rows_aligned(op->factor, 0, sizeof(float));
    auto kernel = aligned ? dora_backward_chunk<T, U, true> : dora_backward_chunk<T, U, false>;
    float *partial = static_cast<float *>(on->scratch);
    for (int64_t first = 0; first < plan.chunks; first += plan.round) {
        int64_t chunks = plan.chunks - first < plan.round ? plan.chunks - first : plan.round;
        OT_CUDA_TRY(ot_launch(kernel, dim3((unsigned)ot_ceil_div(packs, OT_WARP), (unsigned)chunks),
                              dim3(WARPS * OT_WARP), WARPS * ot_pack<T>::N * OT_WARP * sizeof(float),
                              on->stream, *op, first, plan.chunk_rows, partial, (int)width));
        if (op->dchange)
            OT_CUDA_TRY(ot_column_join(partial, width, chunks, plan.group, op->cols, op->dchange, on));
    }
    return cudaSuccess;
}

/* In spans of columns. */
template <class T, class U>
cudaError_t backward_spans(const struct ot_dora_backward *op, const struct ot_cuda_stream *on) {
    for (int64_t first = 0; first < op->cols; first += MOST_COLS) {
        struct ot_dora_backward span = *op;
        span.cols = op->cols - first < MOST_COLS ? op->cols - first : MOST_COLS;
        span.dy = static_cast<const T *>(op->dy) + first;
        span.du = op->du ? static_cast<T *>(op->du) + first : NULL;
        span.factor = op->factor ? op->factor + first : NULL;
        if (op->dchange) {
            span.u = static_cast<const U *>(op->u) + first;
            span.inverse = op->inverse + first;
            span.dchange = op->dchange + first;
        }
        OT_CUDA_TRY((backward_run<T, U>(&span, on)));
    }
    return cudaSuccess;
}

} // namespace dora_cu

cudaError_t ot_cuda_dora_factors(const struct ot_dora_factors *args, const struct ot_cuda_stream *on) {
    if (args->rows > INT32_MAX || args->cols > INT32_MAX - OT_WARP)
        return cudaErrorInvalidValue;
    return ot_dispatch(args->dtype, [&](auto zero) {
        using T = decltype(zero);
        struct ot_team_shape shape = ot_team_shape(ot_ceil_div(args->cols, ot_pack<T>::N));
        int teams = shape.block / shape.team;
        auto kernel = ot_rows_aligned(args->weight, args->cols, sizeof(T)) ? dora_factors_rows<T, true>
                                                                           : dora_factors_rows<T, false>;
        return ot_launch(kernel, dim3((unsigned)ot_ceil_div(args->rows, teams)), dim3((unsigned)shape.block),
                         2 * OT_WARP * sizeof(float), on->stream, *args, shape.team);
    });
}

cudaError_t ot_cuda_dora(const struct ot_dora *args, const struct ot_cuda_stream *on) {
    return ot_dispatch(args->dtype, [&](auto zero) {
        using T = decltype(zero);
        int64_t bytes = sizeof(T), ld = args->ld;
        int64_t head = ot_map_head({{args->u, bytes, ld},
                                    {args->less, args->less ? bytes : 0, ld},
                                    {args->addend, args->addend ? bytes : 0, ld},
                                    {args->y, bytes, ld},
                                    {args->bias, args->bias ? bytes : 0, 0},
                                    {args->factor, args->factor ? 4 : 0, 0}},
                                   args->rows, args->cols);
        dora<T> op = {(const T *)args->u,
                      (const T *)args->less,
                      (const T *)args->bias,
                      (const T *)args->addend,
                      args->factor,
                      (T *)args->y,
                      ld};
        return ot_map(op, args->rows, args->cols, head, on);
    });
}

cudaError_t ot_cuda_dora_backward(const struct ot_dora_backward *args, const struct ot_cuda_stream *on) {
    return ot_dispatch(args->dtype, [&](auto zero) {
        using T = decltype(zero);
        return args->u_dtype == args->dtype ? backward_spans<T, T>(args, on)
                                            : backward_spans<T, float>(args, on);
    });
}
