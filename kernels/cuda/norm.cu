/* RMSNorm (Zhang & Sennrich, 2019) and LayerNorm (Ba et al., 2016).
 *
 * Bytes moved per value: x and y, 2 times the dtype. The weights stay in the caches. Some 4 FLOPs per value:
 * bound by memory bandwidth.
 *
 * A team of threads has a row (rows.cuh). For short rows the team is a part of a warp, so that a warp works
 * on several heads; for long rows it is a block. The row is read once and kept in shared memory. Each thread
 * touches only its own packs, so threads wait for each other in the sums only. A row that does not fit is
 * read again from global memory. LAYER computes the mean first and then the mean of (x - mean)^2, because the
 * mean of squares minus the squared mean cancels. Order of sums: a thread's values from the left, then the
 * tree of ot_team_sum.
 */
#include "kernels/cuda/rows.cuh"

/* In shared memory: room for the sums; behind it, if rows are kept, one row for each team. */
enum { NORM_ROOM_BYTES = OT_WARP * (int)sizeof(float) };

/* Adds a pack of x, or of (x - mean)^2, to the sum of the row. Values beyond the row's end add nothing. */
template <class T>
static __device__ __forceinline__ float norm_add(float sum, const ot_pack<T> &x, int left) {
#pragma unroll
    for (int i = 0; i < ot_pack<T>::N; i++)
        sum += i < left ? x.v[i] : 0.0f;
    return sum;
}
template <class T>
static __device__ __forceinline__ float norm_add_squares(float sum, const ot_pack<T> &x, float mean,
                                                         int left) {
#pragma unroll
    for (int i = 0; i < ot_pack<T>::N; i++) {
        float centred = x.v[i] - mean;
        sum += i < left ? centred * centred : 0.0f;
    }
    return sum;
}

template <class T, bool ALIGNED>
__global__ void norm_rows(struct ot_norm op, int team_size, bool keep) {
    constexpr int N = ot_pack<T>::N;
    float *room = ot_shared<float>();
    struct ot_team team = ot_team_here(team_size);
    int64_t row = (int64_t)blockIdx.x * team.count + team.index;
    bool live = row < op.rows, layer = op.kind == OT_NORM_LAYER;
    int cols = (int)op.cols, packs = (cols + N - 1) / N;
    int end = live ? packs : 0; /* a team without a row has no packs but takes part in the sums */

    T *kept = reinterpret_cast<T *>(room + OT_WARP) + (int64_t)team.index * packs * N;
    const T *source =
        static_cast<const T *>(op.x) + ot_norm_offset(live ? row : 0, op.group, op.ldx, op.cols);
    float sum = 0;
    for (int p = team.rank; p < end; p += team.size) {
        ot_pack<T> x = ot_row_load<ALIGNED>(source, p, cols);
        if (keep)
            ot_store(kept + p * N, x);
        sum = layer ? norm_add(sum, x, cols - p * N) : norm_add_squares(sum, x, 0.0f, cols - p * N);
    }
    sum = ot_team_sum(team, sum, room);
    float mean = 0;
    if (layer) {
        mean = sum / (float)cols;
        sum = 0;
        for (int p = team.rank; p < end; p += team.size) {
            ot_pack<T> x = keep ? ot_load(kept + p * N) : ot_row_load<ALIGNED>(source, p, cols);
            sum = norm_add_squares(sum, x, mean, cols - p * N);
        }
        sum = ot_team_sum(team, sum, room);
    }
    float rstd = 1.0f / sqrtf(sum / (float)cols + op.eps);

    T *y = static_cast<T *>(op.y) + ot_norm_offset(live ? row : 0, op.group, op.ldy, op.cols);
    for (int p = team.rank; p < end; p += team.size) {
        ot_pack<T> x = keep ? ot_load(kept + p * N) : ot_row_load<ALIGNED>(source, p, cols);
        ot_pack<T> weight = ot_norm_weight<ALIGNED, T>(op.weight, op.adds_one, p, cols);
#pragma unroll
        for (int i = 0; i < N; i++)
            x.v[i] = (x.v[i] - mean) * rstd * weight.v[i];
        if (op.bias) {
            ot_pack<T> bias = ot_row_load<ALIGNED>(static_cast<const T *>(op.bias), p, cols);
#pragma unroll
            for (int i = 0; i < N; i++)
                x.v[i] += bias.v[i];
        }
        ot_row_store<ALIGNED>(y, p, cols, x);
    }
    if (live && team.rank == 0) {
        if (op.mean)
            op.mean[row] = mean;
        op.rstd[row] = rstd;
    }
}

static bool norm_aligned(const struct ot_norm *op) {
    size_t bytes = ot_dtype_bytes(op->dtype);
    int64_t inner = op->group > 1 ? op->cols : 0; /* rows also begin at multiples of cols */
    return ot_rows_aligned(op->x, op->ldx, bytes) && ot_rows_aligned(op->x, inner, bytes) &&
           ot_rows_aligned(op->y, op->ldy, bytes) && ot_rows_aligned(op->weight, 0, bytes) &&
           ot_rows_aligned(op->bias, 0, bytes);
}

cudaError_t ot_cuda_norm(const struct ot_norm *args, const struct ot_cuda_stream *on) {
    if (args->rows == 0)
        return cudaSuccess;
    if (args->rows > INT32_MAX || args->cols > INT32_MAX - OT_WARP)
        return cudaErrorInvalidValue;
    return ot_dispatch(args->dtype, [&](auto zero) {
        using T = decltype(zero);
        int64_t packs = ot_ceil_div(args->cols, ot_pack<T>::N);
        struct ot_team_shape shape = ot_team_shape(packs);
        int teams = shape.block / shape.team;
        int64_t bytes = NORM_ROOM_BYTES + teams * packs * 16;
        bool keep = bytes <= on->shared_bytes;
        auto kernel = norm_aligned(args) ? norm_rows<T, true> : norm_rows<T, false>;
        return ot_launch(kernel, dim3((unsigned)ot_ceil_div(args->rows, teams)), dim3((unsigned)shape.block),
                         (size_t)(keep ? bytes : (int64_t)NORM_ROOM_BYTES), on->stream, *args, shape.team,
                         keep);
    });
}
