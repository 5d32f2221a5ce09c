/* RMSNorm (Zhang & Sennrich, 2019) and LayerNorm, and their backward. */
#include "kernels/cpu/op_parts.h"

/* Backward sums dweight and dbias over the rows of a chunk, then over chunks in order. The partial sums take
 * at most this many times the size of a row. There are still enough chunks for many threads. */
enum { NORM_CHUNKS = 32, NORM_MIN_ROWS = 16 };

static int64_t norm_offset(int64_t row, int64_t group, int64_t ld, int64_t cols) {
    return row / group * ld + row % group * cols;
}

/* Elements of weight, or of 1 + weight. Adding -0 changes no weight, nor the sign of a 0. */
static OT_INLINE ot_vf norm_weight(enum ot_dtype dtype, const void *weight, bool adds_one, int64_t first,
                                   int64_t count) {
    return vec_load(dtype, weight, first, count) + vec_set(adds_one ? 1.0f : -0.0f);
}

/* ---- forward ---- */

static OT_INLINE float norm_mean(enum ot_dtype dtype, const void *x, int64_t cols) {
    ot_vf sum = {0};
    OT_FOR_LANES(i, lanes, cols, { sum += vec_load(dtype, x, i, lanes); });
    return vec_sum(sum) / (float)cols;
}

/* 1 / sqrt(mean of (x - mean)^2 + eps). This is a pass of its own, because the mean of squares minus the
 * squared mean cancels.
 */
static OT_INLINE float norm_rstd(enum ot_dtype dtype, const void *x, int64_t cols, float mean, float eps) {
    ot_vf sum = {0};
    OT_FOR_LANES(i, lanes, cols, {
        ot_vf centred = vec_select(vec_first(lanes), vec_load(dtype, x, i, lanes) - mean, vec_set(0.0f));
        sum += centred * centred;
    });
    return 1.0f / sqrtf(vec_sum(sum) / (float)cols + eps);
}

static OT_INLINE void norm_row(enum ot_dtype dtype, const struct ot_norm *op, int64_t row) {
    const void *x = at(dtype, op->x, norm_offset(row, op->group, op->ldx, op->cols));
    float mean = op->kind == OT_NORM_LAYER ? norm_mean(dtype, x, op->cols) : 0.0f;
    float rstd = norm_rstd(dtype, x, op->cols, mean, op->eps);
    void *y = at_mut(dtype, op->y, norm_offset(row, op->group, op->ldy, op->cols));
    OT_FOR_LANES(i, lanes, op->cols, {
        ot_vf z = (vec_load(dtype, x, i, lanes) - mean) * rstd;
        ot_vf value = z * norm_weight(dtype, op->weight, op->adds_one, i, lanes);
        if (op->bias)
            value += vec_load(dtype, op->bias, i, lanes);
        vec_store(dtype, y, i, lanes, value);
    });
    if (op->mean)
        op->mean[row] = mean;
    op->rstd[row] = rstd;
}

static void norm_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct ot_norm *op = context;
    for (int64_t row = begin; row < end; row++)
        WITH_DTYPE(op->dtype, norm_row, op, row);
}

static void run_norm(struct ot_lane *lane, const void *args) {
    const struct ot_norm *op = args;
    ot_pool_run(ot_cpu_lane_pool(lane), op->rows, rows_per_chunk(op->cols), norm_chunk, (void *)op);
}

static void cpu_norm(struct ot_lane *lane, const struct ot_norm *op) {
    ot_cpu_lane_push(lane, run_norm, op, sizeof *op);
}

/* ---- backward ---- */

struct norm_backward_run {
    const struct ot_norm_backward *op;
    int64_t chunks;
    float *dweight, *dbias; /* [chunks, cols]; dbias is NULL if it is not wanted */
};

/* With g = dy * weight, or dy * (1 + weight), and z the normalised x:
 * dx = rstd * (g - mean(g) - z * mean(g * z)), mean(g) for LAYER only. */
static OT_INLINE void norm_backward_row(enum ot_dtype dtype, const struct ot_norm_backward *op, int64_t row,
                                        float *dweight, float *dbias) {
    int64_t offset = norm_offset(row, op->group, op->ldx, op->cols), cols = op->cols;
    const void *x = at(dtype, op->x, offset);
    const void *dy = at(dtype, op->dy, norm_offset(row, op->group, op->ldy, cols));
    const void *dx_add = op->dx_add ? at(dtype, op->dx_add, offset) : NULL;
    void *dx = at_mut(dtype, op->dx, offset);
    bool centred = op->kind == OT_NORM_LAYER;
    float mean = centred ? op->mean[row] : 0.0f, rstd = op->rstd[row];
    ot_vf sum_g = {0}, sum_gz = {0};
    OT_FOR_LANES(i, lanes, cols,
                 { /* missing lanes have dy = 0, so they add nothing */
                   ot_vf d = vec_load(dtype, dy, i, lanes), z = (vec_load(dtype, x, i, lanes) - mean) * rstd;
                   ot_vf g = d * norm_weight(dtype, op->weight, op->adds_one, i, lanes);
                   sum_g += g;
                   sum_gz += g * z;
                   vec_store(OT_F32, dweight, i, lanes, vec_load(OT_F32, dweight, i, lanes) + d * z);
                   if (dbias)
                       vec_store(OT_F32, dbias, i, lanes, vec_load(OT_F32, dbias, i, lanes) + d);
                 });
    float mean_g = centred ? vec_sum(sum_g) / (float)cols : 0.0f, mean_gz = vec_sum(sum_gz) / (float)cols;
    OT_FOR_LANES(i, lanes, cols, {
        ot_vf z = (vec_load(dtype, x, i, lanes) - mean) * rstd;
        ot_vf g = vec_load(dtype, dy, i, lanes) * norm_weight(dtype, op->weight, op->adds_one, i, lanes);
        ot_vf value = rstd * (g - mean_g - z * mean_gz);
        if (dx_add)
            value += vec_load(dtype, dx_add, i, lanes);
        vec_store(dtype, dx, i, lanes, value);
    });
}

static void norm_backward_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)worker;
    const struct norm_backward_run *run = context;
    int64_t cols = run->op->cols;
    float *dweight = run->dweight + chunk * cols, *dbias = run->dbias ? run->dbias + chunk * cols : NULL;
    memset(dweight, 0, (size_t)cols * sizeof *dweight);
    if (dbias)
        memset(dbias, 0, (size_t)cols * sizeof *dbias);
    for (int64_t row = begin; row < end; row++)
        WITH_DTYPE(run->op->dtype, norm_backward_row, run->op, row, dweight, dbias);
}

static void norm_add_partials(float *out, const float *partial, int64_t chunks, int64_t cols, int64_t begin,
                              int64_t end) {
    OT_FOR_LANES(i, lanes, end - begin, {
        ot_vf sum = {0};
        for (int64_t chunk = 0; chunk < chunks; chunk++)
            sum += vec_load(OT_F32, partial + chunk * cols + begin, i, lanes);
        vec_store(OT_F32, out + begin, i, lanes, vec_load(OT_F32, out + begin, i, lanes) + sum);
    });
}

static void norm_backward_join(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct norm_backward_run *run = context;
    if (run->op->dweight)
        norm_add_partials(run->op->dweight, run->dweight, run->chunks, run->op->cols, begin, end);
    if (run->dbias)
        norm_add_partials(run->op->dbias, run->dbias, run->chunks, run->op->cols, begin, end);
}

static void run_norm_backward(struct ot_lane *lane, const void *args) {
    const struct ot_norm_backward *op = args;
    int64_t rows = ot_max(NORM_MIN_ROWS, ot_chunk_count(op->rows, NORM_CHUNKS));
    int64_t chunks = ot_chunk_count(op->rows, rows), elements = chunks * op->cols;
    float *partial = ot_cpu_lane_scratch(lane, 2 * (size_t)elements * sizeof *partial);
    if (!partial)
        return;
    struct norm_backward_run run = {op, chunks, partial, op->dbias ? partial + elements : NULL};
    ot_pool_run(ot_cpu_lane_pool(lane), op->rows, rows, norm_backward_chunk, &run);
    ot_pool_run(ot_cpu_lane_pool(lane), op->cols, 1024, norm_backward_join, &run);
}

static void cpu_norm_backward(struct ot_lane *lane, const struct ot_norm_backward *op) {
    ot_cpu_lane_push(lane, run_norm_backward, op, sizeof *op);
}
