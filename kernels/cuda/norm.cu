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

/* ---- backward ---- */

/* The backward of RMSNorm and LayerNorm. With z = (x - mean) * rstd and g = dy * weight, or
 * dy * (1 + weight):
 *
 *     dx = rstd * (g - mean(g) - z * mean(g z)) (+ dx_add), mean(g) for LAYER only
 *     dweight += sum over rows of dy * z,  dbias += sum over rows of dy
 *
 * Bytes moved per value: x, dy, dx and maybe dx_add: 3 or 4 times the dtype. Partial sums add 8 bytes per
 * column for each chunk of 16 rows or more. Some 12 FLOPs per value: bound by memory bandwidth.
 *
 * A block has a chunk of rows; each row has a team of threads as in norm.cu. x and dy are read once and kept
 * in shared memory, together with each team's sums of columns. Threads touch only their own packs of all
 * these, so they wait for each other in the sums over a row only. A team works on up to ROWS rows at once: it
 * waits once for the sums of all, reads a weight and a sum of columns once for all, and has the loads of all
 * in flight. It takes fewer rows if else shared memory would have no room for two blocks; the number changes
 * no bit. If shared memory is too small for one row, rows are read again. (dx is written pack by pack after
 * that, so dx may be dy.) If shared memory is too small for the sums, they are kept in the scratch. Order of
 * sums: over a row as in norm.cu. Of a column: team k of a block adds rows k, k + teams, ... of the chunk;
 * the teams are added in order; ot_column_join adds the chunks.
 */

enum {
    RESERVED = 1024, /* CUDA's bytes in each block; a multiprocessor has the limit of a block plus this */
    ROWS = 4,
    ROOM = ROWS * OT_WARP,
    MIN_ROWS = 16,
    MAX_CHUNKS = 1024
};

/* The placement of a block's data. */
struct norm_backward_shape {
    int team;             /* in threads */
    int rows;             /* a team's rows at once */
    bool keep, sums_here; /* in shared memory: x and dy; sums of columns */
};

/* The chunks of one launch. */
struct norm_backward_round {
    int64_t first, chunk_rows;
    /* Partial sums [chunks of the round, packs * N]; dbias is NULL if it is not wanted. */
    float *dweight, *dbias;
};

template <class T>
struct norm_packs {
    ot_pack<T> x, dy;
};

template <class T>
struct norm_places { /* addresses of a thread's team */
    float *dweight, *dbias;
    T *x, *dy; /* NULL if they are not kept */
};

/* Shared memory: room for the sums; dweight and dbias [teams, packs * N]; x and dy [teams, rows, 2, packs *
 * N]. */
template <class T>
static __device__ __forceinline__ norm_places<T> norm_find_places(const struct norm_backward_shape &shape,
                                                                  const struct norm_backward_round &round,
                                                                  const struct ot_team &team, int width) {
    float *next = ot_shared<float>() + ROOM;
    norm_places<T> to = {round.dweight + (int64_t)blockIdx.x * width, NULL, NULL, NULL};
    if (round.dbias)
        to.dbias = round.dbias + (int64_t)blockIdx.x * width;
    if (shape.sums_here) {
        to.dweight = next + team.index * width;
        next += team.count * width;
        if (round.dbias) {
            to.dbias = next + team.index * width;
            next += team.count * width;
        }
    }
    if (shape.keep) {
        to.x = reinterpret_cast<T *>(next) + team.index * shape.rows * 2 * width;
        to.dy = to.x + width;
    }
    return to;
}

/* The rows of a team that it works on at once: the first one, and those `step` rows apart. */
struct norm_rows {
    int64_t first;
    int step, live;
    float mean[ROWS], rstd[ROWS];
    float g[ROWS], gz[ROWS]; /* per row: the sums of g and of g * z, then their means; g: LAYER only */
};

template <class T, bool ALIGNED>
static __device__ __forceinline__ norm_packs<T> norm_load(const struct ot_norm_backward &op, int64_t row,
                                                          int p) {
    int cols = (int)op.cols;
    const T *x = static_cast<const T *>(op.x) + ot_norm_offset(row, op.group, op.ldx, op.cols);
    const T *dy = static_cast<const T *>(op.dy) + ot_norm_offset(row, op.group, op.ldy, op.cols);
    return {ot_row_load<ALIGNED>(x, p, cols), ot_row_load<ALIGNED>(dy, p, cols)};
}

/* Adds pack p of all rows to the sums over columns and to each row's own sums. */
template <class T, bool ALIGNED>
static __device__ __forceinline__ void norm_add_packs(const struct ot_norm_backward &op,
                                                      const norm_places<T> &to, struct norm_rows *rows, int p,
                                                      int width) {
    constexpr int N = ot_pack<T>::N;
    ot_pack<T> weight = ot_norm_weight<ALIGNED, T>(op.weight, op.adds_one, p, (int)op.cols);
    ot_pack<T> dweight = ot_row_load_floats<true, T>(to.dweight, p, width), dbias = {};
    if (to.dbias)
        dbias = ot_row_load_floats<true, T>(to.dbias, p, width);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (r >= rows->live)
            break;
        norm_packs<T> in = norm_load<T, ALIGNED>(op, rows->first + r * rows->step, p);
        if (to.x) {
            ot_store(to.x + r * 2 * width + p * N, in.x);
            ot_store(to.dy + r * 2 * width + p * N, in.dy);
        }
#pragma unroll
        for (int i = 0; i < N; i++) { /* beyond the end dy is 0 and adds nothing */
            float z = (in.x.v[i] - rows->mean[r]) * rows->rstd[r], g = in.dy.v[i] * weight.v[i];
            rows->g[r] += g;
            rows->gz[r] += g * z;
            dweight.v[i] += in.dy.v[i] * z;
            dbias.v[i] += in.dy.v[i];
        }
    }
    ot_row_store_floats<true, T>(to.dweight, p, width, dweight);
    if (to.dbias)
        ot_row_store_floats<true, T>(to.dbias, p, width, dbias);
}

template <class T, bool ALIGNED>
static __device__ __forceinline__ void norm_write_pack(const struct ot_norm_backward &op,
                                                       const norm_packs<T> &in, int64_t offset, int p,
                                                       float mean, float rstd, float mean_g, float mean_gz) {
    int cols = (int)op.cols;
    ot_pack<T> weight = ot_norm_weight<ALIGNED, T>(op.weight, op.adds_one, p, cols), dx;
#pragma unroll
    for (int i = 0; i < ot_pack<T>::N; i++) {
        float z = (in.x.v[i] - mean) * rstd, g = in.dy.v[i] * weight.v[i];
        dx.v[i] = rstd * (g - mean_g - z * mean_gz);
    }
    if (op.dx_add) {
        ot_pack<T> add = ot_row_load<ALIGNED>(static_cast<const T *>(op.dx_add) + offset, p, cols);
#pragma unroll
        for (int i = 0; i < ot_pack<T>::N; i++)
            dx.v[i] += add.v[i];
    }
    ot_row_store<ALIGNED>(static_cast<T *>(op.dx) + offset, p, cols, dx);
}

/* Processes the live rows of a team. A team without any has packs = 0 and only takes part in the sums. */
template <class T, bool ALIGNED>
static __device__ __forceinline__ void
norm_backward_rows(const struct ot_norm_backward &op, const norm_places<T> &to, const struct ot_team &team,
                   struct norm_rows *rows, int packs, int width) {
    constexpr int N = ot_pack<T>::N;
    float *room = ot_shared<float>();
    bool layer = op.kind == OT_NORM_LAYER;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        int64_t row = rows->first + r * rows->step;
        rows->mean[r] = layer && r < rows->live ? op.mean[row] : 0.0f;
        rows->rstd[r] = r < rows->live ? op.rstd[row] : 0.0f;
        rows->g[r] = rows->gz[r] = 0;
    }
    for (int p = team.rank; p < packs; p += team.size)
        norm_add_packs<T, ALIGNED>(op, to, rows, p, width);
    ot_team_sums(team, rows->gz, room);
    if (layer)
        ot_team_sums(team, rows->g, room);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        int64_t row = rows->first + r * rows->step, offset = ot_norm_offset(row, op.group, op.ldx, op.cols);
        float mean_g = layer ? rows->g[r] / (float)op.cols : 0.0f, mean_gz = rows->gz[r] / (float)op.cols;
        for (int p = team.rank; p < packs && r < rows->live; p += team.size) {
            norm_packs<T> in;
            if (to.x)
                in = {ot_load(to.x + r * 2 * width + p * N), ot_load(to.dy + r * 2 * width + p * N)};
            else
                in = norm_load<T, ALIGNED>(op, row, p);
            norm_write_pack<T, ALIGNED>(op, in, offset, p, rows->mean[r], rows->rstd[r], mean_g, mean_gz);
        }
    }
}

/* Adds the sums of the block's teams, in order, to the block's partial sums. */
static __device__ __forceinline__ void norm_join_teams(const float *sums, int teams, int width,
                                                       float *partial) {
    for (int col = (int)threadIdx.x; col < width; col += (int)blockDim.x) {
        float sum = 0;
        for (int team = 0; team < teams; team++)
            sum += sums[team * width + col];
        partial[(int64_t)blockIdx.x * width + col] = sum;
    }
}

/* ptxas tends to limit registers so that a multiprocessor holds two blocks. On the architectures below that
 * would spill to local memory, so one block per multiprocessor must do. */
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ >= 1200)
#define NORM_BACKWARD_BOUNDS __launch_bounds__(OT_TEAM_LARGE_BLOCK, 1)
#else
#define NORM_BACKWARD_BOUNDS __launch_bounds__(OT_TEAM_LARGE_BLOCK)
#endif

template <class T, bool ALIGNED>
__global__ void NORM_BACKWARD_BOUNDS norm_backward_chunk(struct ot_norm_backward op,
                                                         struct norm_backward_shape shape,
                                                         struct norm_backward_round round) {
    constexpr int N = ot_pack<T>::N;
    struct ot_team team = ot_team_here(shape.team);
    int packs = ((int)op.cols + N - 1) / N, width = packs * N;
    norm_places<T> to = norm_find_places<T>(shape, round, team, width);
    for (int p = team.rank; p < packs; p += team.size) {
        ot_row_store_floats<true, T>(to.dweight, p, width, ot_pack<T>{});
        if (to.dbias)
            ot_row_store_floats<true, T>(to.dbias, p, width, ot_pack<T>{});
    }
    int64_t begin = (round.first + blockIdx.x) * round.chunk_rows;
    int64_t end = begin + round.chunk_rows < op.rows ? begin + round.chunk_rows : op.rows;
    /* All teams make the same number of rounds. */
    for (int64_t row = begin; row < end; row += shape.rows * team.count) {
        int64_t left = (end - row - team.index + team.count - 1) / team.count;
        int live = left < 0 ? 0 : left < shape.rows ? (int)left : shape.rows;
        struct norm_rows rows = {live > 0 ? row + team.index : begin, team.count, live};
        norm_backward_rows<T, ALIGNED>(op, to, team, &rows, live > 0 ? packs : 0, width);
    }
    if (!shape.sums_here)
        return;
    __syncthreads();
    const float *sums = ot_shared<float>() + ROOM;
    norm_join_teams(sums, team.count, width, round.dweight);
    if (round.dbias)
        norm_join_teams(sums + team.count * width, team.count, width, round.dbias);
}

static bool norm_backward_aligned(const struct ot_norm_backward *op) {
    size_t bytes = ot_dtype_bytes(op->dtype);
    int64_t inner = op->group > 1 ? op->cols : 0; /* rows also begin at multiples of cols */
    return ot_rows_aligned(op->x, op->ldx, bytes) && ot_rows_aligned(op->dx, inner, bytes) &&
           ot_rows_aligned(op->dx_add, 0, bytes) && ot_rows_aligned(op->dy, op->ldy, bytes) &&
           ot_rows_aligned(op->weight, 0, bytes);
}

/* The placement of a block's data on this card. *bytes: its shared memory. */
static struct norm_backward_shape norm_backward_shape(int64_t packs, int64_t sums_bytes,
                                                      struct ot_team_shape threads,
                                                      const struct ot_cuda_stream *on, int64_t *bytes) {
    int64_t teams = threads.block / threads.team, row_bytes = teams * 2 * packs * 16, room = on->shared_bytes;
    struct norm_backward_shape shape = {threads.team, ROWS};
    *bytes = ROOM * (int64_t)sizeof(float);
    shape.sums_here = *bytes + sums_bytes <= room;
    *bytes += shape.sums_here ? sums_bytes : 0;
    shape.keep = shape.sums_here && *bytes + row_bytes <= room;
    while (shape.keep && shape.rows > 1 && *bytes + shape.rows * row_bytes > (room - RESERVED) / 2)
        shape.rows /= 2;
    *bytes += shape.keep ? shape.rows * row_bytes : 0;
    return shape;
}

/* Processes all chunks, as many at a time as the scratch holds. After each round the partial sums are
 * added. */
template <class T>
static cudaError_t norm_backward_run(const struct ot_norm_backward *op, const struct ot_cuda_stream *on) {
    int64_t packs = ot_ceil_div(op->cols, ot_pack<T>::N), width = packs * ot_pack<T>::N;
    int arrays = op->dbias ? 2 : 1;
    struct ot_column_plan plan;
    OT_CUDA_TRY(ot_column_plan(op->rows, width, arrays, MIN_ROWS, MAX_CHUNKS, on, &plan));

    struct ot_team_shape threads = ot_team_shape(packs);
    int64_t sums_bytes = threads.block / threads.team * arrays * width * (int64_t)sizeof(float), bytes;
    struct norm_backward_shape shape = norm_backward_shape(packs, sums_bytes, threads, on, &bytes);

    auto kernel = norm_backward_aligned(op) ? norm_backward_chunk<T, true> : norm_backward_chunk<T, false>;
    float *dweight = static_cast<float *>(on->scratch),
          *dbias = op->dbias ? dweight + plan.round * width : NULL;
    for (int64_t first = 0; first < plan.chunks; first += plan.round) {
        int64_t chunks = plan.chunks - first < plan.round ? plan.chunks - first : plan.round;
        struct norm_backward_round round = {first, plan.chunk_rows, dweight, dbias};
        OT_CUDA_TRY(ot_launch(kernel, dim3((unsigned)chunks), dim3((unsigned)threads.block), (size_t)bytes,
                              on->stream, *op, shape, round));
        if (op->dweight)
            OT_CUDA_TRY(ot_column_join(dweight, width, chunks, plan.group, op->cols, op->dweight, on));
        if (dbias)
            OT_CUDA_TRY(ot_column_join(dbias, width, chunks, plan.group, op->cols, op->dbias, on));
    }
    return cudaSuccess;
}

cudaError_t ot_cuda_norm_backward(const struct ot_norm_backward *args, const struct ot_cuda_stream *on) {
    if (args->rows == 0)
        return cudaSuccess;
    if (args->rows > INT32_MAX)
        return cudaErrorInvalidValue;
    return ot_dispatch(args->dtype, [&](auto zero) { return norm_backward_run<decltype(zero)>(args, on); });
}
