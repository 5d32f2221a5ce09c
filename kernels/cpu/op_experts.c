/* Mixtures of experts: router, grouping of assignments, gather, combine, products by groups. The arithmetic
 * of the router has the bits of kernels/cuda/router.cu. */
#include "kernels/cpu/op_parts.h"

/* ---- router ---- */

/* True if a stands before b in the order of the router: larger, or NaN. */
static inline bool router_above(float a, float b) {
    return a > b || (a != a && b == b);
}

/* Finds the `top` largest of n values. Later values stand behind equal ones. */
static void router_choose(const float *values, int64_t n, int64_t top, float *chosen, int32_t *ids) {
    int64_t count = 0;
    for (int64_t e = 0; e < n; e++) {
        if (count == top && !router_above(values[e], chosen[top - 1]))
            continue;
        int64_t place = count < top ? count++ : top - 1;
        for (; place > 0 && router_above(values[e], chosen[place - 1]); place--) {
            chosen[place] = chosen[place - 1];
            ids[place] = ids[place - 1];
        }
        chosen[place] = values[e];
        ids[place] = (int32_t)e;
    }
}

/* exp(x - largest) in the first `lanes` lanes, 0 in the others. */
static OT_INLINE ot_vf router_exp(ot_vf x, float largest, int64_t lanes) {
    return vec_select(vec_first(lanes), vec_exp(x - largest), vec_set(0.0f));
}

static OT_INLINE void router_token(enum ot_dtype dtype, const struct ot_router *op, int64_t token) {
    const void *logits = at(dtype, op->logits, token * op->ld);
    float values[OT_MOST_EXPERTS], chosen[OT_MOST_TOP] = {0};
    OT_FOR_LANES(i, lanes, op->experts,
                 { vec_store(OT_F32, values, i, lanes, vec_load(dtype, logits, i, lanes)); });
    router_choose(values, op->experts, op->top, chosen, op->ids + token * op->top);
    ot_vf terms = router_exp(vec_load(OT_F32, chosen, 0, OT_LANES), chosen[0], op->top), sums = terms;
    if (op->over_all) {
        sums = (ot_vf){0};
        OT_FOR_LANES(i, lanes, op->experts,
                     { sums += router_exp(vec_load(OT_F32, values, i, lanes), chosen[0], lanes); });
    }
    vec_store(OT_F32, op->weights, token * op->top, op->top, terms / vec_repeat(vec_sum(sums)));
}

static void router_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct ot_router *op = context;
    for (int64_t token = begin; token < end; token++)
        WITH_DTYPE(op->dtype, router_token, op, token);
}

static void run_router(struct ot_lane *lane, const void *args) {
    const struct ot_router *op = args;
    ot_pool_run(ot_cpu_lane_pool(lane), op->n, rows_per_chunk(op->experts), router_chunk, (void *)op);
}

static bool is_sound_router(const struct ot_router *op) {
    return op->top >= 1 && op->top <= op->experts && op->top <= OT_MOST_TOP && op->experts <= OT_MOST_EXPERTS;
}

static void cpu_router(struct ot_lane *lane, const struct ot_router *op) {
    assert(is_sound_router(op));
    ot_cpu_lane_push(lane, run_router, op, sizeof *op);
}

/* weights[0] is 1 / the sum, because the first chosen logit is the largest: exp of 0. */
static OT_INLINE void router_backward_token(enum ot_dtype dtype, const struct ot_router_backward *op,
                                            int64_t token) {
    const struct ot_router *forward = &op->forward;
    int64_t first = token * forward->top;
    const int32_t *ids = forward->ids + first;
    const void *logits = at(dtype, forward->logits, token * forward->ld);
    void *dlogits = at_mut(dtype, op->dlogits, token * forward->ld);
    ot_vf weights = vec_load(OT_F32, forward->weights, first, forward->top);
    ot_vf dweights = vec_load(OT_F32, op->dweights, first, forward->top);
    float d = vec_sum(weights * dweights), largest = ot_dtype_read(dtype, logits, ids[0]);
    ot_vf chosen = weights * (dweights - d);
    OT_FOR_LANES(i, lanes, forward->experts, {
        ot_vf other = {0};
        if (forward->over_all)
            other = -d * (vec_exp(vec_load(dtype, logits, i, lanes) - largest) * weights[0]);
        vec_store(dtype, dlogits, i, lanes, other);
    });
    for (int64_t s = 0; s < forward->top; s++)
        ot_dtype_write(dtype, dlogits, ids[s], chosen[s]);
}

static void router_backward_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct ot_router_backward *op = context;
    for (int64_t token = begin; token < end; token++)
        WITH_DTYPE(op->forward.dtype, router_backward_token, op, token);
}

static void run_router_backward(struct ot_lane *lane, const void *args) {
    const struct ot_router_backward *op = args;
    ot_pool_run(ot_cpu_lane_pool(lane), op->forward.n, rows_per_chunk(op->forward.experts),
                router_backward_chunk, (void *)op);
}

static void cpu_router_backward(struct ot_lane *lane, const struct ot_router_backward *op) {
    assert(is_sound_router(&op->forward));
    ot_cpu_lane_push(lane, run_router_backward, op, sizeof *op);
}

/* ---- group ---- */

/* Two passes over the assignments on the lane's thread: some nanoseconds for each. */
static void run_group(struct ot_lane *lane, const void *args) {
    (void)lane;
    const struct ot_group *op = args;
    int64_t n = op->n * op->top, capacity = ot_group_rows(op->n, op->top, op->experts, op->multiple);
    int32_t *next = op->scratch, row = 0;
    memset(op->counts, 0, (size_t)op->experts * sizeof *op->counts);
    for (int64_t a = 0; a < n; a++) {
        assert(op->ids[a] >= 0 && op->ids[a] < op->experts);
        op->counts[op->ids[a]]++;
    }
    for (int64_t e = 0; e < op->experts; e++) {
        op->offsets[e] = next[e] = row;
        if (op->used && op->counts[e] > 0)
            op->used[e] = 1;
        row += (int32_t)(ot_chunk_count(op->counts[e], op->multiple) * op->multiple);
    }
    op->offsets[op->experts] = row;
    for (int64_t r = 0; r < capacity; r++)
        op->assignments[r] = -1;
    for (int64_t a = 0; a < n; a++) {
        int32_t place = next[op->ids[a]]++;
        op->rows[a] = place;
        op->assignments[place] = (int32_t)a;
    }
}

static void cpu_group(struct ot_lane *lane, const struct ot_group *op) {
    assert(op->multiple >= 1 && op->experts <= OT_MOST_EXPERTS &&
           ot_group_rows(op->n, op->top, op->experts, op->multiple) <= INT32_MAX - OT_GROUP_CHUNK);
    ot_cpu_lane_push(lane, run_group, op, sizeof *op);
}

/* ---- gather ---- */

static void gather_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct ot_gather *op = context;
    size_t bytes = (size_t)op->cols * ot_dtype_bytes(op->dtype);
    for (int64_t row = begin; row < end; row++) {
        void *to = at_mut(op->dtype, op->packed, row * op->ld_packed);
        if (op->assignments[row] < 0)
            memset(to, 0, bytes);
        else
            memcpy(to, at(op->dtype, op->x, op->assignments[row] / op->top * op->ld_x), bytes);
    }
}

static void run_gather(struct ot_lane *lane, const void *args) {
    const struct ot_gather *op = args;
    ot_pool_run(ot_cpu_lane_pool(lane), op->rows, rows_per_chunk(op->cols), gather_chunk, (void *)op);
}

static void cpu_gather(struct ot_lane *lane, const struct ot_gather *op) {
    ot_cpu_lane_push(lane, run_gather, op, sizeof *op);
}

/* ---- combine ---- */

static OT_INLINE void combine_token(enum ot_dtype dtype, const struct ot_combine *op, int64_t token) {
    const int32_t *rows = op->rows + token * op->top;
    const float *weights = op->weights ? op->weights + token * op->top : NULL;
    const void *addend = op->addend ? at(dtype, op->addend, token * op->ld_y) : NULL;
    void *y = at_mut(dtype, op->y, token * op->ld_y);
    OT_FOR_LANES(i, lanes, op->cols, {
        ot_vf sum = {0};
        for (int64_t s = 0; s < op->top; s++) {
            ot_vf x = vec_load(dtype, op->packed, rows[s] * op->ld_packed + i, lanes);
            ot_vf term = weights ? weights[s] * x : x;
            sum = s == 0 ? term : sum + term;
        }
        if (addend)
            sum += vec_load(dtype, addend, i, lanes);
        vec_store(dtype, y, i, lanes, sum);
    });
}

static void combine_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct ot_combine *op = context;
    for (int64_t token = begin; token < end; token++)
        WITH_DTYPE(op->dtype, combine_token, op, token);
}

static void run_combine(struct ot_lane *lane, const void *args) {
    const struct ot_combine *op = args;
    ot_pool_run(ot_cpu_lane_pool(lane), op->n, rows_per_chunk(op->cols * op->top), combine_chunk, (void *)op);
}

static void cpu_combine(struct ot_lane *lane, const struct ot_combine *op) {
    ot_cpu_lane_push(lane, run_combine, op, sizeof *op);
}

/* The dot product has 16 partial sums, which vec_sum adds. */
static OT_INLINE void combine_backward_row(enum ot_dtype dtype, const struct ot_combine_backward *op,
                                           int64_t row) {
    int32_t a = op->assignments[row];
    void *dpacked = at_mut(dtype, op->dpacked, row * op->ld_packed);
    if (a < 0) {
        memset(dpacked, 0, (size_t)op->cols * ot_dtype_bytes(dtype));
        return;
    }
    const void *dy = at(dtype, op->dy, a / op->top * op->ld_dy);
    const void *packed = op->dweights ? at(dtype, op->packed, row * op->ld_packed) : NULL;
    float weight = op->weights[a];
    ot_vf dot = {0};
    OT_FOR_LANES(i, lanes, op->cols, {
        ot_vf d = vec_load(dtype, dy, i, lanes);
        if (packed)
            dot += d * vec_load(dtype, packed, i, lanes);
        vec_store(dtype, dpacked, i, lanes, weight * d);
    });
    if (packed)
        op->dweights[a] = vec_sum(dot);
}

static void combine_backward_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct ot_combine_backward *op = context;
    for (int64_t row = begin; row < end; row++)
        WITH_DTYPE(op->dtype, combine_backward_row, op, row);
}

static void run_combine_backward(struct ot_lane *lane, const void *args) {
    const struct ot_combine_backward *op = args;
    ot_pool_run(ot_cpu_lane_pool(lane), op->rows, rows_per_chunk(op->cols), combine_backward_chunk,
                (void *)op);
}

static void cpu_combine_backward(struct ot_lane *lane, const struct ot_combine_backward *op) {
    ot_cpu_lane_push(lane, run_combine_backward, op, sizeof *op);
}

/* ---- products by groups ---- */

/* The product of expert e, which has `count` rows from `begin` on. */
static struct ot_gemm groups_product(const struct ot_gemm_groups *op, int64_t e, int64_t begin,
                                     int64_t count) {
    bool sums = op->form == OT_GROUPS_SUMS;
    int64_t b = sums ? begin * op->ldb : e * op->stride, c = sums ? e * op->stride : begin * op->ldc;
    return (struct ot_gemm){.dtype = op->dtype,
                            .c_dtype = op->c_dtype,
                            .trans_a = sums,
                            .trans_b = op->trans_b,
                            .m = sums ? op->m : count,
                            .n = op->n,
                            .k = sums ? count : op->k,
                            .a = at(op->dtype, op->a, begin * op->lda),
                            .b = at(op->dtype, op->b, b),
                            .bias = op->bias ? at(op->dtype, op->bias, e * op->n) : NULL,
                            .addend = op->addend ? at(op->c_dtype, op->addend, c) : NULL,
                            .c = at_mut(op->c_dtype, op->c, c),
                            .lda = op->lda,
                            .ldb = op->ldb,
                            .ldc = op->ldc,
                            .scale = op->scale};
}

/* A sum of no rows: the addend, or zeros. */
static void groups_store_empty(const struct ot_gemm *op) {
    size_t bytes = (size_t)op->n * ot_dtype_bytes(op->c_dtype);
    for (int64_t row = 0; row < op->m && op->addend != op->c; row++) {
        void *c = at_mut(op->c_dtype, op->c, row * op->ldc);
        if (op->addend)
            memcpy(c, at(op->c_dtype, op->addend, row * op->ldc), bytes);
        else
            memset(c, 0, bytes);
    }
}

static void run_gemm_groups(struct ot_lane *lane, const void *args) {
    const struct ot_gemm_groups *op = args;
    assert(op->offsets[op->experts] <= op->rows);
    for (int64_t e = 0; e < op->experts; e++) {
        int64_t begin = op->offsets[e], count = op->offsets[e + 1] - begin;
        struct ot_gemm product = groups_product(op, e, begin, count);
        if (count > 0)
            run_gemm(lane, &product);
        else if (op->form == OT_GROUPS_SUMS)
            groups_store_empty(&product);
    }
}

static bool is_sound_gemm_groups(const struct ot_gemm_groups *op) {
    if (op->form == OT_GROUPS_SUMS)
        return op->m >= 1 && op->n >= 1 && !op->trans_b && !op->bias;
    return op->k >= 1 && op->n >= 1 && (op->scale == 0 || op->scale == 1 || !op->bias);
}

static void cpu_gemm_groups(struct ot_lane *lane, const struct ot_gemm_groups *op) {
    assert(is_sound_gemm_groups(op));
    ot_cpu_lane_push(lane, run_gemm_groups, op, sizeof *op);
}
