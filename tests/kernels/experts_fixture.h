/* Cases of the ops of mixtures of experts (kernels/ops_experts.h), for the cpu device and for two devices. */
#ifndef OT_TESTS_KERNELS_EXPERTS_FIXTURE_H
#define OT_TESTS_KERNELS_EXPERTS_FIXTURE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/random.h"
#include "tests/kernels/ops_fixture.h"
#include "tests/support/check.h"

/* The fixture collects int32 values by their bits, as if they were fp32. */
static inline int32_t experts_id(const struct ops_fixture *f, const char *name, int64_t i) {
    int32_t id;
    memcpy(&id, ops_result(f, name, NULL) + i, sizeof id);
    return id;
}

/* The ids of n tokens, all different in a token. Expert `unused` is not among them; -1: all may be. */
static inline int32_t *experts_ids(uint64_t seed, int64_t n, int64_t top, int64_t experts, int32_t unused) {
    int32_t *ids = malloc((size_t)(n * top + 1) * sizeof *ids);
    assert_non_null(ids);
    for (int64_t t = 0; t < n; t++)
        for (int64_t s = 0, draw = 0; s < top; draw++) {
            int32_t id = (int32_t)ot_random_below(seed, (uint64_t)t, (uint64_t)draw, (uint64_t)experts);
            bool taken = id == unused;
            for (int64_t i = 0; i < s; i++)
                taken |= ids[t * top + i] == id;
            if (!taken)
                ids[t * top + s++] = id;
        }
    return ids;
}

/* ---- router ---- */

struct router_case {
    int64_t n, experts, top, ld;
    bool over_all;
    const float *logits;   /* [n, ld] */
    const float *dweights; /* [n, top] */
};

/* Forward; backward into other memory, then over the logits. */
static inline void router_run(struct ops_fixture *f, const void *argument) {
    const struct router_case *c = argument;
    int64_t n = c->n * c->top, all = c->n * c->ld;
    void *logits = ops_upload(f, f->dtype, c->logits, all);
    struct ot_router_backward op = {.forward = {.dtype = f->dtype,
                                                .over_all = c->over_all,
                                                .n = c->n,
                                                .experts = c->experts,
                                                .top = c->top,
                                                .ld = c->ld,
                                                .logits = logits,
                                                .ids = ops_blank(f, (size_t)n * sizeof(int32_t)),
                                                .weights = ops_blank_values(f, OT_F32, n)},
                                    .dweights = ops_upload(f, OT_F32, c->dweights, n),
                                    .dlogits = ops_blank_values(f, f->dtype, all)};
    f->ops->router(f->lane, &op.forward);
    ops_collect(f, "ids", OT_F32, op.forward.ids, n);
    ops_collect(f, "weights", OT_F32, op.forward.weights, n);
    f->ops->router_backward(f->lane, &op);
    ops_collect(f, "dlogits", f->dtype, op.dlogits, all);
    op.dlogits = logits;
    f->ops->router_backward(f->lane, &op);
    ops_collect(f, "dlogits in place", f->dtype, logits, all);
}

/* ---- group ---- */

struct group_case {
    int64_t n, top, experts, multiple;
    const int32_t *ids;
};

static inline int64_t group_capacity(const struct group_case *c) {
    return ot_group_rows(c->n, c->top, c->experts, c->multiple);
}

/* Rows that are not -1 yet, which blank memory is. */
static inline int32_t *group_assignments(struct ops_fixture *f, int64_t capacity) {
    int32_t *junk = calloc((size_t)capacity + 1, sizeof *junk);
    assert_non_null(junk);
    int32_t *assignments = ops_upload_ids(f, junk, capacity);
    free(junk);
    return assignments;
}

/* Marks of earlier calls: every third expert. */
static inline int32_t *group_used(struct ops_fixture *f, int64_t experts) {
    int32_t used[OT_MOST_EXPERTS];
    for (int64_t e = 0; e < experts; e++)
        used[e] = e % 3 == 0;
    return ops_upload_ids(f, used, experts);
}

static inline struct ot_group group_make(struct ops_fixture *f, const struct group_case *c) {
    size_t n = (size_t)(c->n * c->top) * sizeof(int32_t), experts = (size_t)c->experts * sizeof(int32_t);
    struct ot_group op = {
        .n = c->n,
        .top = c->top,
        .experts = c->experts,
        .multiple = c->multiple,
        .ids = ops_upload_ids(f, c->ids, c->n * c->top),
        .offsets = ops_blank(f, experts + sizeof(int32_t)),
        .counts = ops_blank(f, experts),
        .rows = ops_blank(f, n),
        .assignments = group_assignments(f, group_capacity(c)),
        .used = group_used(f, c->experts),
        .scratch = ops_blank(f, ot_group_scratch_bytes(c->n, c->top, c->experts)),
    };
    f->ops->group(f->lane, &op);
    return op;
}

static inline void group_run(struct ops_fixture *f, const void *argument) {
    const struct group_case *c = argument;
    struct ot_group op = group_make(f, c);
    ops_collect(f, "offsets", OT_F32, op.offsets, c->experts + 1);
    ops_collect(f, "counts", OT_F32, op.counts, c->experts);
    ops_collect(f, "rows", OT_F32, op.rows, c->n * c->top);
    ops_collect(f, "assignments", OT_F32, op.assignments, group_capacity(c));
    ops_collect(f, "used", OT_F32, op.used, c->experts);
}

/* ---- gather and combine ---- */

struct packed_case {
    struct group_case group;
    int64_t cols, pad;   /* pad: NaNs behind each row */
    const float *x, *y;  /* [n, cols + pad] */
    const float *packed; /* [capacity, cols + pad] */
    const float *weights;
};

static inline float *packed_gaps(float *values, int64_t rows, int64_t cols, int64_t pad) {
    for (int64_t i = 0; i < rows * (cols + pad); i++)
        if (i % (cols + pad) >= cols)
            values[i] = NAN;
    return values;
}

static inline void packed_open(struct packed_case *c, const int64_t shape[6], int32_t unused) {
    *c = (struct packed_case){
        .group = {shape[0], shape[1], shape[2], shape[3], NULL}, .cols = shape[4], .pad = shape[5]};
    int64_t n = c->group.n, rows = group_capacity(&c->group), ld = c->cols + c->pad;
    c->group.ids = experts_ids(1, n, c->group.top, c->group.experts, unused);
    c->x = packed_gaps(ops_random(2, n * ld, 1), n, c->cols, c->pad);
    c->y = packed_gaps(ops_random(3, n * ld, 1), n, c->cols, c->pad);
    c->packed = packed_gaps(ops_random(4, rows * ld, 1), rows, c->cols, c->pad);
    c->weights = ops_random(5, n * c->group.top, 0.5f);
}

static inline void packed_close(struct packed_case *c) {
    free((void *)(uintptr_t)c->group.ids);
    free((void *)(uintptr_t)c->x);
    free((void *)(uintptr_t)c->y);
    free((void *)(uintptr_t)c->packed);
    free((void *)(uintptr_t)c->weights);
}

static inline void packed_run_forward(struct ops_fixture *f, const void *argument) {
    const struct packed_case *c = argument;
    struct ot_group group = group_make(f, &c->group);
    int64_t n = c->group.n, rows = group_capacity(&c->group), ld = c->cols + c->pad;
    struct ot_gather gather = {.dtype = f->dtype,
                               .rows = rows,
                               .cols = c->cols,
                               .top = c->group.top,
                               .ld_x = ld,
                               .ld_packed = ld,
                               .assignments = group.assignments,
                               .x = ops_upload(f, f->dtype, c->x, n * ld),
                               .packed = ops_blank_values(f, f->dtype, rows * ld)};
    f->ops->gather(f->lane, &gather);
    ops_collect(f, "gathered", f->dtype, gather.packed, rows * ld);
    struct ot_combine op = {.dtype = f->dtype,
                            .n = n,
                            .cols = c->cols,
                            .top = c->group.top,
                            .ld_packed = ld,
                            .ld_y = ld,
                            .rows = group.rows,
                            .packed = ops_upload(f, f->dtype, c->packed, rows * ld),
                            .y = ops_blank_values(f, f->dtype, n * ld)};
    f->ops->combine(f->lane, &op);
    ops_collect(f, "sum", f->dtype, op.y, n * ld);
    op.weights = ops_upload(f, OT_F32, c->weights, n * c->group.top);
    op.y = ops_upload(f, f->dtype, c->y, n * ld);
    op.addend = op.y;
    f->ops->combine(f->lane, &op);
    ops_collect(f, "combined", f->dtype, op.y, n * ld);
}

static inline void packed_run_backward(struct ops_fixture *f, const void *argument) {
    const struct packed_case *c = argument;
    struct ot_group group = group_make(f, &c->group);
    int64_t n = c->group.n, rows = group_capacity(&c->group), ld = c->cols + c->pad;
    void *packed = ops_upload(f, f->dtype, c->packed, rows * ld);
    struct ot_combine_backward op = {.dtype = f->dtype,
                                     .rows = rows,
                                     .cols = c->cols,
                                     .top = c->group.top,
                                     .ld_packed = ld,
                                     .ld_dy = ld,
                                     .assignments = group.assignments,
                                     .weights = ops_upload(f, OT_F32, c->weights, n * c->group.top),
                                     .dy = ops_upload(f, f->dtype, c->y, n * ld),
                                     .dpacked = ops_blank_values(f, f->dtype, rows * ld)};
    f->ops->combine_backward(f->lane, &op);
    ops_collect(f, "dpacked alone", f->dtype, op.dpacked, rows * ld);
    op.packed = packed;
    op.dpacked = packed;
    op.dweights = ops_blank_values(f, OT_F32, n * c->group.top);
    f->ops->combine_backward(f->lane, &op);
    ops_collect(f, "dpacked", f->dtype, op.dpacked, rows * ld);
    ops_collect(f, "dweights", OT_F32, op.dweights, n * c->group.top);
}

/* The gradient of an assignment's weight, and the bound of its error on a device: every term goes through at
 * most `cols` additions. */
static inline double packed_dot(const struct packed_case *c, int64_t row, int64_t token, double *bound) {
    int64_t ld = c->cols + c->pad;
    double sum = 0, size = 0;
    for (int64_t i = 0; i < c->cols; i++) {
        double term = (double)c->packed[row * ld + i] * c->y[token * ld + i];
        sum += term;
        size += fabs(term);
    }
    *bound = (double)(c->cols + 2) * 0x1p-24 * size;
    return sum;
}

#endif
