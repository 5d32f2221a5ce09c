/* DoRA's factors, their use and its gradient. Rows of weights and of activations are independent of each
 * other; sums over rows are split by columns, as in op_sums.c. */
#include "kernels/cpu/op_parts.h"

/* ---- factors ---- */

/* |V|^2 - |W|^2 of a row, divided by the scale. */
static OT_INLINE float dora_growth(enum ot_dtype dtype, const struct ot_dora_factors *op, int64_t row) {
    const void *b = at(dtype, op->b, row * op->rank);
    const float *cross = op->cross + row * op->rank;
    ot_vf sum = {0}, two = vec_set(2), scale = vec_set(op->scale);
    OT_FOR_LANES(j, lanes, op->rank, {
        ot_vf gram = {0};
        for (int64_t k = 0; k < op->rank; k++) {
            float of_k = vec_load(dtype, b, k, 1)[0];
            gram += vec_repeat(of_k) * vec_load(OT_F32, op->gram + k * op->rank, j, lanes);
        }
        sum += vec_load(dtype, b, j, lanes) * (two * vec_load(OT_F32, cross, j, lanes) + scale * gram);
    });
    return vec_sum(sum);
}

static OT_INLINE void dora_factors_rows(enum ot_dtype dtype, const struct ot_dora_factors *op, int64_t begin,
                                        int64_t end) {
    for (int64_t row = begin; row < end; row++) {
        const void *weight = at(dtype, op->weight, row * op->cols);
        ot_vf squares = {0};
        OT_FOR_LANES(i, lanes, op->cols, {
            ot_vf x = vec_load(dtype, weight, i, lanes);
            squares += x * x;
        });
        float before = vec_sum(squares), after = before + op->scale * dora_growth(dtype, op, row);
        float change = vec_load(dtype, op->change, row, 1)[0];
        op->inverse[row] = after <= 0 ? 0 : 1 / sqrtf(after);
        op->factor[row] = after <= 0 ? 0 : (sqrtf(before) + change) / sqrtf(after);
    }
}

static void dora_factors_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct ot_dora_factors *op = context;
    WITH_DTYPE(op->dtype, dora_factors_rows, op, begin, end);
}

static void run_dora_factors(struct ot_lane *lane, const void *args) {
    const struct ot_dora_factors *op = args;
    ot_pool_run(ot_cpu_lane_pool(lane), op->rows, rows_per_chunk(op->cols + op->rank * op->rank),
                dora_factors_chunk, (void *)op);
}

static void cpu_dora_factors(struct ot_lane *lane, const struct ot_dora_factors *op) {
    ot_cpu_lane_push(lane, run_dora_factors, op, sizeof *op);
}

/* ---- their use ---- */

static OT_INLINE void dora_rows(enum ot_dtype dtype, const struct ot_dora *op, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) {
        const void *u = at(dtype, op->u, row * op->ld);
        const void *less = op->less ? at(dtype, op->less, row * op->ld) : NULL;
        const void *addend = op->addend ? at(dtype, op->addend, row * op->ld) : NULL;
        void *y = at_mut(dtype, op->y, row * op->ld);
        OT_FOR_LANES(i, lanes, op->cols, {
            ot_vf sum = vec_load(dtype, u, i, lanes);
            if (op->factor)
                sum *= vec_load(OT_F32, op->factor, i, lanes);
            if (less)
                sum -= vec_load(dtype, less, i, lanes);
            if (op->bias)
                sum += vec_load(dtype, op->bias, i, lanes);
            if (addend)
                sum += vec_load(dtype, addend, i, lanes);
            vec_store(dtype, y, i, lanes, sum);
        });
    }
}

static void dora_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct ot_dora *op = context;
    WITH_DTYPE(op->dtype, dora_rows, op, begin, end);
}

static void run_dora(struct ot_lane *lane, const void *args) {
    const struct ot_dora *op = args;
    ot_pool_run(ot_cpu_lane_pool(lane), op->rows, rows_per_chunk(op->cols), dora_chunk, (void *)op);
}

static void cpu_dora(struct ot_lane *lane, const struct ot_dora *op) {
    ot_cpu_lane_push(lane, run_dora, op, sizeof *op);
}

/* ---- backward ---- */

static OT_INLINE void dora_backward_row(enum ot_dtype dtype, enum ot_dtype u_dtype,
                                        const struct ot_dora_backward *op, int64_t row, int64_t begin,
                                        int64_t end, ot_vf *sums) {
    const void *dy = at(dtype, op->dy, row * op->ld_dy + begin);
    const void *u = op->dchange ? at(u_dtype, op->u, row * op->ld + begin) : NULL;
    void *du = op->du ? at_mut(dtype, op->du, row * op->ld + begin) : NULL;
    OT_FOR_LANES(i, lanes, end - begin, {
        ot_vf x = vec_load(dtype, dy, i, lanes);
        if (u)
            sums[i / OT_LANES] += x * vec_load(u_dtype, u, i, lanes);
        if (op->factor)
            x *= vec_load(OT_F32, op->factor + begin, i, lanes);
        if (du)
            vec_store(dtype, du, i, lanes, x);
    });
}

/* Columns [begin, end), at most STRIP_COLS. */
static OT_INLINE void dora_backward_strip(enum ot_dtype dtype, enum ot_dtype u_dtype,
                                          const struct ot_dora_backward *op, int64_t begin, int64_t end) {
    for (int64_t block = 0; block < op->rows; block += BLOCK_ROWS) {
        ot_vf sums[STRIP_COLS / OT_LANES] = {0};
        int64_t last = ot_min(op->rows, block + BLOCK_ROWS);
        for (int64_t row = block; row < last; row++)
            dora_backward_row(dtype, u_dtype, op, row, begin, end, sums);
        if (!op->dchange)
            continue;
        float *dchange = op->dchange + begin;
        OT_FOR_LANES(i, lanes, end - begin, {
            ot_vf sum = sums[i / OT_LANES] * vec_load(OT_F32, op->inverse + begin, i, lanes);
            vec_store(OT_F32, dchange, i, lanes, vec_load(OT_F32, dchange, i, lanes) + sum);
        });
    }
}

static OT_INLINE void dora_backward_typed(enum ot_dtype dtype, const struct ot_dora_backward *op,
                                          int64_t begin, int64_t end) {
    if (op->u_dtype == dtype)
        dora_backward_strip(dtype, dtype, op, begin, end);
    else
        dora_backward_strip(dtype, OT_F32, op, begin, end);
}

static void dora_backward_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct ot_dora_backward *op = context;
    WITH_DTYPE(op->dtype, dora_backward_typed, op, begin, end);
}

static void run_dora_backward(struct ot_lane *lane, const void *args) {
    const struct ot_dora_backward *op = args;
    ot_pool_run(ot_cpu_lane_pool(lane), op->cols, STRIP_COLS, dora_backward_chunk, (void *)op);
}

static void cpu_dora_backward(struct ot_lane *lane, const struct ot_dora_backward *op) {
    assert(op->u_dtype == op->dtype || op->u_dtype == OT_F32);
    ot_cpu_lane_push(lane, run_dora_backward, op, sizeof *op);
}
