/* Cases of products by groups, and of a whole block of experts, forward and backward
 * (kernels/ops_experts.h). */
#ifndef OT_TESTS_KERNELS_EXPERTS_PRODUCTS_H
#define OT_TESTS_KERNELS_EXPERTS_PRODUCTS_H

#include <stdio.h>

#include "tests/kernels/experts_fixture.h"
#include "tests/support/golden.h"

/* ---- products by groups ---- */

enum { GROUPS_EXPERTS = 4, GROUPS_IDLE = 3 /* rows behind the last group */ };

struct groups_shape {
    int64_t inner, n, pad; /* inner: k (ROWS) or m (SUMS); pad: NaNs behind each row of A, B and C */
    int shift;
    int32_t counts[GROUPS_EXPERTS];
};

enum groups_variant { GROUPS_PRODUCT, GROUPS_BIAS, GROUPS_ADDEND, GROUPS_SCALED_IN_PLACE, GROUPS_VARIANTS };

struct groups_case {
    struct groups_shape at;
    enum ot_groups_form form;
    bool trans_b, wide; /* wide: C is fp32 in every dtype */
    enum groups_variant variant;
    int64_t rows, lda, ldb, ldc, stride, n_b, n_c;
    int32_t offsets[GROUPS_EXPERTS + 1];
    float *a, *b, *bias, *c;
};

static inline float *groups_matrix(uint64_t seed, int64_t rows, int64_t cols, int64_t pad, int64_t live) {
    float *x = packed_gaps(ops_random(seed, rows * (cols + pad), 1), rows, cols, pad);
    for (int64_t i = live * (cols + pad); i < rows * (cols + pad); i++)
        x[i] = NAN;
    return x;
}

/* kind: 0 to 2 for ROWS with B, ROWS with B^T, SUMS. */
static inline void groups_open(struct groups_case *c, const struct groups_shape *at, int kind) {
    *c = (struct groups_case){.at = *at, .form = kind == 2 ? OT_GROUPS_SUMS : OT_GROUPS_ROWS};
    int64_t pad = at->pad;
    bool sums = kind == 2;
    c->trans_b = kind == 1;
    for (int e = 0; e < GROUPS_EXPERTS; e++)
        c->offsets[e + 1] = c->offsets[e] + at->counts[e];
    int64_t live = c->offsets[GROUPS_EXPERTS];
    c->rows = live + GROUPS_IDLE;
    c->lda = at->inner + pad;
    c->ldb = (c->trans_b ? at->inner : at->n) + pad;
    c->ldc = at->n + pad;
    int64_t b_rows = sums ? c->rows : GROUPS_EXPERTS * (c->trans_b ? at->n : at->inner);
    int64_t c_rows = sums ? GROUPS_EXPERTS * at->inner : c->rows;
    c->stride = sums ? at->inner * c->ldc : b_rows / GROUPS_EXPERTS * c->ldb;
    c->n_b = b_rows * c->ldb;
    c->n_c = c_rows * c->ldc;
    c->a = groups_matrix(1, c->rows, at->inner, pad, live);
    c->b = groups_matrix(2, b_rows, c->ldb - pad, pad, sums ? live : b_rows);
    c->bias = ops_random(3, GROUPS_EXPERTS * at->n, 1);
    c->c = groups_matrix(4, c_rows, at->n, pad, sums ? c_rows : live);
}

static inline void groups_close(struct groups_case *c) {
    free(c->a);
    free(c->b);
    free(c->bias);
    free(c->c);
}

/* The variants that a form takes: a sum has no bias. */
static inline bool groups_takes(const struct groups_case *c) {
    return c->variant != GROUPS_BIAS || c->form == OT_GROUPS_ROWS;
}

static inline void groups_run(struct ops_fixture *f, const void *argument) {
    const struct groups_case *c = argument;
    enum ot_dtype c_dtype = c->wide ? OT_F32 : f->dtype;
    bool in_place = c->variant == GROUPS_SCALED_IN_PLACE, adds = in_place || c->variant == GROUPS_ADDEND;
    struct ot_gemm_groups op = {.dtype = f->dtype,
                                .c_dtype = c_dtype,
                                .form = c->form,
                                .trans_b = c->trans_b,
                                .experts = GROUPS_EXPERTS,
                                .rows = c->rows,
                                .m = c->at.inner,
                                .n = c->at.n,
                                .k = c->at.inner,
                                .offsets = ops_upload_ids(f, c->offsets, GROUPS_EXPERTS + 1),
                                .a = ops_upload(f, f->dtype, c->a, c->rows * c->lda),
                                .b = ops_upload(f, f->dtype, c->b, c->n_b),
                                .lda = c->lda,
                                .ldb = c->ldb,
                                .ldc = c->ldc,
                                .stride = c->stride,
                                .scale = in_place ? -0.75f : 0};
    if (c->variant == GROUPS_BIAS)
        op.bias = ops_upload(f, f->dtype, c->bias, GROUPS_EXPERTS * c->at.n);
    void *addend = adds ? ops_upload(f, c_dtype, c->c, c->n_c) : NULL;
    op.addend = addend;
    op.c = in_place ? addend : ops_blank_values(f, c_dtype, c->n_c);
    f->ops->gemm_groups(f->lane, &op);
    ops_collect(f, "c", c_dtype, op.c, c->n_c);
}

static inline double groups_term(const struct groups_case *c, int64_t expert, int64_t row, int64_t col,
                                 int64_t k) {
    if (c->form == OT_GROUPS_SUMS)
        return (double)c->a[k * c->lda + row] * c->b[k * c->ldb + col];
    int64_t b = expert * c->stride + (c->trans_b ? col * c->ldb + k : k * c->ldb + col);
    return (double)c->a[row * c->lda + k] * c->b[b];
}

/* An element of C; row: a packed row (ROWS) or a row of C_e (SUMS). *place: where it is in C. The error of a
 * device is below *bound: every term goes through as many additions as there are terms. */
static inline double groups_element(const struct groups_case *c, int64_t expert, int64_t row, int64_t col,
                                    int64_t *place, double *bound) {
    bool sums = c->form == OT_GROUPS_SUMS;
    int64_t first = sums ? c->offsets[expert] : 0, last = sums ? c->offsets[expert + 1] : c->at.inner;
    double sum = 0, size = 0;
    for (int64_t k = first; k < last; k++) {
        double term = groups_term(c, expert, row, col, k);
        sum += term;
        size += fabs(term);
    }
    *place = row * c->ldc + col + (sums ? expert * c->stride : 0);
    double more = c->variant == GROUPS_BIAS      ? c->bias[expert * c->at.n + col]
                  : c->variant != GROUPS_PRODUCT ? c->c[*place]
                                                 : 0;
    if (c->variant == GROUPS_SCALED_IN_PLACE)
        sum *= -0.75;
    *bound = (double)(last - first + 3) * 0x1p-24 * (size + fabs(more));
    return sum + more;
}

/* Calls `visit` for each element of C that the op writes. */
static inline void groups_visit(const struct groups_case *c,
                                void (*visit)(int64_t place, double want, double bound, void *context),
                                void *context) {
    bool sums = c->form == OT_GROUPS_SUMS;
    for (int64_t e = 0; e < GROUPS_EXPERTS; e++) {
        int64_t first = sums ? 0 : c->offsets[e], last = sums ? c->at.inner : c->offsets[e + 1], place;
        double bound;
        for (int64_t row = first; row < last; row++)
            for (int64_t col = 0; col < c->at.n; col++) {
                double want = groups_element(c, e, row, col, &place, &bound);
                visit(place, want, bound, context);
            }
    }
}

/* ---- a block ---- */

/* The arrays of tests/golden/ops.bin under experts.KIND, made by scripts/golden/ops.py. */
struct block_case {
    bool gpt_oss; /* weights are [in, out]; biases; a gated unit with limits */
    int64_t n, hidden, inter, experts, top;
    const float *logits, *x, *residual, *gate_up, *down, *gate_up_bias, *down_bias, *dy;
};

static inline const float *block_array(struct ot_golden *golden, const char *kind, const char *name) {
    char array[64];
    snprintf(array, sizeof array, "experts.%s.%s", kind, name);
    return golden_has(golden, array) ? golden_f32(golden, array, NULL) : NULL;
}

static inline struct block_case block_open(struct ot_golden *golden, const char *kind) {
    return (struct block_case){.gpt_oss = strcmp(kind, "gpt_oss") == 0,
                               .n = 13,
                               .hidden = 12,
                               .inter = 10,
                               .experts = 5,
                               .top = 2,
                               .logits = block_array(golden, kind, "logits"),
                               .x = block_array(golden, kind, "x"),
                               .residual = block_array(golden, kind, "residual"),
                               .gate_up = block_array(golden, kind, "gate_up"),
                               .down = block_array(golden, kind, "down"),
                               .gate_up_bias = block_array(golden, kind, "gate_up_bias"),
                               .down_bias = block_array(golden, kind, "down_bias"),
                               .dy = block_array(golden, kind, "dy")};
}

struct block {
    struct ops_fixture *f;
    const struct block_case *c;
    struct ot_group group;
    struct ot_router router;
    int64_t rows;
    void *packed, *gate_up, *down, *gate_up_bias, *down_bias, *both, *act, *out, *y, *ones;
};

static inline struct ot_gemm_groups block_product(const struct block *b, const void *a, const void *weight,
                                                  void *c, int64_t out, int64_t in) {
    bool turned = b->c->gpt_oss;
    return (struct ot_gemm_groups){.dtype = b->f->dtype,
                                   .c_dtype = b->f->dtype,
                                   .trans_b = !turned,
                                   .experts = b->c->experts,
                                   .rows = b->rows,
                                   .n = out,
                                   .k = in,
                                   .offsets = b->group.offsets,
                                   .a = a,
                                   .b = weight,
                                   .c = c,
                                   .lda = in,
                                   .ldb = turned ? out : in,
                                   .ldc = out,
                                   .stride = out * in};
}

/* y = x op(W) + bias */
static inline void block_linear(const struct block *b, const void *x, const void *weight, const void *bias,
                                void *y, int64_t out, int64_t in) {
    struct ot_gemm_groups op = block_product(b, x, weight, y, out, in);
    op.bias = bias;
    b->f->ops->gemm_groups(b->f->lane, &op);
}

static inline void block_collect_sums(const struct block *b, const char *name, const void *a, int64_t m,
                                      const void *x, int64_t n) {
    float *c = (float *)ops_blank_values(b->f, OT_F32, b->c->experts * m * n);
    struct ot_gemm_groups op = {.dtype = b->f->dtype,
                                .form = OT_GROUPS_SUMS,
                                .experts = b->c->experts,
                                .rows = b->rows,
                                .m = m,
                                .n = n,
                                .offsets = b->group.offsets,
                                .a = a,
                                .b = x,
                                .c = c,
                                .lda = m,
                                .ldb = n,
                                .ldc = n,
                                .stride = m * n};
    b->f->ops->gemm_groups(b->f->lane, &op);
    ops_collect(b->f, name, OT_F32, c, b->c->experts * m * n);
}

/* dx = dy op(W)^T; then the gradients of W and of its bias. */
static inline void *block_linear_backward(const struct block *b, const void *x, const void *weight,
                                          const void *dy, int64_t out, int64_t in,
                                          const char *const names[2]) {
    bool turned = b->c->gpt_oss;
    void *dx = ops_blank_values(b->f, b->f->dtype, b->rows * in);
    struct ot_gemm_groups op = block_product(b, dy, weight, dx, in, out);
    op.trans_b = turned;
    op.ldb = turned ? out : in;
    b->f->ops->gemm_groups(b->f->lane, &op);
    block_collect_sums(b, names[0], turned ? x : dy, turned ? in : out, turned ? dy : x, turned ? out : in);
    if (turned)
        block_collect_sums(b, names[1], b->ones, 1, dy, out);
    return dx;
}

static inline struct ot_glu block_glu(const struct block *b) {
    int64_t inter = b->c->inter;
    return (struct ot_glu){.dtype = b->f->dtype,
                           .act = OT_ACT_SILU,
                           .rows = b->rows,
                           .cols = inter,
                           .ld_in = 2 * inter,
                           .ld_out = inter,
                           .gate = b->both,
                           .up = (char *)b->both + (size_t)inter * ot_dtype_bytes(b->f->dtype),
                           .out = b->act,
                           .limit = b->c->gpt_oss ? 7 : 0,
                           .alpha = 1.702f};
}

static inline void block_route(struct block *b) {
    struct ops_fixture *f = b->f;
    const struct block_case *c = b->c;
    b->router = (struct ot_router){.dtype = f->dtype,
                                   .n = c->n,
                                   .experts = c->experts,
                                   .top = c->top,
                                   .ld = c->experts,
                                   .logits = ops_upload(f, f->dtype, c->logits, c->n * c->experts),
                                   .ids = ops_blank(f, (size_t)(c->n * c->top) * sizeof(int32_t)),
                                   .weights = ops_blank_values(f, OT_F32, c->n * c->top)};
    f->ops->router(f->lane, &b->router);
    b->group = (struct ot_group){.n = c->n,
                                 .top = c->top,
                                 .experts = c->experts,
                                 .multiple = 4,
                                 .ids = b->router.ids,
                                 .offsets = ops_blank(f, (size_t)(c->experts + 1) * sizeof(int32_t)),
                                 .counts = ops_blank(f, (size_t)c->experts * sizeof(int32_t)),
                                 .rows = ops_blank(f, (size_t)(c->n * c->top) * sizeof(int32_t))};
    b->rows = ot_group_rows(c->n, c->top, c->experts, b->group.multiple);
    b->group.assignments = group_assignments(f, b->rows);
    b->group.scratch = ops_blank(f, ot_group_scratch_bytes(c->n, c->top, c->experts));
    f->ops->group(f->lane, &b->group);
}

static inline void block_forward(struct block *b) {
    struct ops_fixture *f = b->f;
    const struct block_case *c = b->c;
    int64_t hidden = c->hidden, inter = c->inter;
    struct ot_gather gather = {.dtype = f->dtype,
                               .rows = b->rows,
                               .cols = hidden,
                               .top = c->top,
                               .ld_x = hidden,
                               .ld_packed = hidden,
                               .assignments = b->group.assignments,
                               .x = ops_upload(f, f->dtype, c->x, c->n * hidden),
                               .packed = b->packed};
    f->ops->gather(f->lane, &gather);
    block_linear(b, b->packed, b->gate_up, b->gate_up_bias, b->both, 2 * inter, hidden);
    struct ot_glu glu = block_glu(b);
    f->ops->glu(f->lane, &glu);
    block_linear(b, b->act, b->down, b->down_bias, b->out, hidden, inter);
    struct ot_combine combine = {.dtype = f->dtype,
                                 .n = c->n,
                                 .cols = hidden,
                                 .top = c->top,
                                 .ld_packed = hidden,
                                 .ld_y = hidden,
                                 .rows = b->group.rows,
                                 .weights = b->router.weights,
                                 .packed = b->out,
                                 .addend = ops_upload(f, f->dtype, c->residual, c->n * hidden),
                                 .y = b->y};
    f->ops->combine(f->lane, &combine);
    ops_collect(f, "y", f->dtype, b->y, c->n * hidden);
}

static inline void block_backward(struct block *b) {
    static const char *const down[2] = {"ddown", "ddown_bias"}, *const up[2] = {"dgate_up", "dgate_up_bias"};
    struct ops_fixture *f = b->f;
    const struct block_case *c = b->c;
    int64_t hidden = c->hidden, inter = c->inter;
    struct ot_combine_backward combine = {.dtype = f->dtype,
                                          .rows = b->rows,
                                          .cols = hidden,
                                          .top = c->top,
                                          .ld_packed = hidden,
                                          .ld_dy = hidden,
                                          .assignments = b->group.assignments,
                                          .weights = b->router.weights,
                                          .dy = ops_upload(f, f->dtype, c->dy, c->n * hidden),
                                          .packed = b->out,
                                          .dpacked = b->out,
                                          .dweights = ops_blank_values(f, OT_F32, c->n * c->top)};
    f->ops->combine_backward(f->lane, &combine);
    void *dact = block_linear_backward(b, b->act, b->down, b->out, hidden, inter, down);
    struct ot_glu_backward glu = {block_glu(b), dact, b->both, (void *)(uintptr_t)block_glu(b).up};
    f->ops->glu_backward(f->lane, &glu);
    void *dpacked = block_linear_backward(b, b->packed, b->gate_up, b->both, 2 * inter, hidden, up);
    struct ot_combine sum = {.dtype = f->dtype,
                             .n = c->n,
                             .cols = hidden,
                             .top = c->top,
                             .ld_packed = hidden,
                             .ld_y = hidden,
                             .rows = b->group.rows,
                             .packed = dpacked,
                             .y = b->y};
    f->ops->combine(f->lane, &sum);
    ops_collect(f, "dx", f->dtype, b->y, c->n * hidden);
    struct ot_router_backward router = {b->router, combine.dweights, NULL,
                                        ops_blank_values(f, f->dtype, c->n * c->experts)};
    f->ops->router_backward(f->lane, &router);
    ops_collect(f, "dlogits", f->dtype, router.dlogits, c->n * c->experts);
}

/* The way of a block that kernels/ops_experts.h describes, with padding. */
static inline void block_run(struct ops_fixture *f, const void *argument) {
    const struct block_case *c = argument;
    int64_t hidden = c->hidden, inter = c->inter, weights = c->experts * hidden * inter;
    struct block b = {.f = f, .c = c};
    block_route(&b);
    float *ones = malloc((size_t)b.rows * sizeof *ones);
    assert_non_null(ones);
    for (int64_t i = 0; i < b.rows; i++)
        ones[i] = 1;
    b.ones = ops_upload(f, f->dtype, ones, b.rows);
    free(ones);
    b.packed = ops_blank_values(f, f->dtype, b.rows * hidden);
    b.gate_up = ops_upload(f, f->dtype, c->gate_up, 2 * weights);
    b.down = ops_upload(f, f->dtype, c->down, weights);
    if (c->gpt_oss) {
        b.gate_up_bias = ops_upload(f, f->dtype, c->gate_up_bias, c->experts * 2 * inter);
        b.down_bias = ops_upload(f, f->dtype, c->down_bias, c->experts * hidden);
    }
    b.both = ops_blank_values(f, f->dtype, b.rows * 2 * inter);
    b.act = ops_blank_values(f, f->dtype, b.rows * inter);
    b.out = ops_blank_values(f, f->dtype, b.rows * hidden);
    b.y = ops_blank_values(f, f->dtype, c->n * hidden);
    block_forward(&b);
    block_backward(&b);
}

/* Compares the results of an fp32 run with PyTorch's: chains of sums of some 20 terms. */
static inline void block_check(struct ot_golden *golden, const char *kind, const struct ops_fixture *f) {
    static const char *const names[] = {"y",     "dx",         "dlogits",      "dgate_up",
                                        "ddown", "ddown_bias", "dgate_up_bias"};
    for (int i = 0; i < (strcmp(kind, "gpt_oss") == 0 ? 7 : 5); i++) {
        int64_t n;
        const float *got = ops_result(f, names[i], &n), *want = block_array(golden, kind, names[i]);
        assert_non_null(want);
        double error = relative_error(got, want, n);
        if (!(error < 2e-6))
            fail_msg("%s of %s differs from PyTorch's by %.3g", names[i], kind, error);
    }
}

#endif
