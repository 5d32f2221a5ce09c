/* Cases of the regularisers' ops, for the cpu device and for two devices: NEFTune (kernels/ops.h), the
 * balancing loss of experts (kernels/ops_experts.h), and dropout of attention's weights
 * (kernels/ops_drop.h). */
#ifndef OT_TESTS_KERNELS_REGULAR_FIXTURE_H
#define OT_TESTS_KERNELS_REGULAR_FIXTURE_H

#include <stdlib.h>
#include <string.h>

#include "tests/kernels/ops_fixture.h"
#include "tests/support/check.h"

struct neftune_case {
    int64_t n, cols;
    float alpha;
    struct ot_state_noise noise;
    const int32_t *row_start;
    const float *x;
};

static inline void neftune_run(struct ops_fixture *f, const void *argument) {
    const struct neftune_case *c = argument;
    const struct ot_neftune op = {.dtype = f->dtype,
                                  .n = c->n,
                                  .cols = c->cols,
                                  .alpha = c->alpha,
                                  .noise = c->noise,
                                  .row_start = ops_upload_ids(f, c->row_start, c->n),
                                  .x = ops_upload(f, f->dtype, c->x, c->n * c->cols)};
    f->ops->neftune(f->lane, &op);
    ops_collect(f, "noisy", f->dtype, op.x, c->n * c->cols);
}

/* ---- the balancing loss ---- */

enum { BALANCE_LAYERS = 2 };

struct balance_case {
    int64_t n, experts, top, ld;
    bool over_all;
    float coefficient, grad_scale;
    const int32_t *targets; /* [n] */
    const float *logits;    /* [BALANCE_LAYERS, n, ld] */
    const float *dweights;  /* [n, top] */
};

/* All layers forward, the loss, all layers backward; the gradients overwrite the logits. */
static inline void balance_run(struct ops_fixture *f, const void *argument) {
    static const char *const names[BALANCE_LAYERS] = {"first", "second"};
    const struct balance_case *c = argument;
    struct ot_router routers[BALANCE_LAYERS];
    int64_t all = c->n * c->ld;
    int32_t *counts = ops_blank(f, (size_t)c->experts * sizeof *counts);
    float *sums = ops_blank_values(f, OT_F32, c->experts), *slopes = ops_blank_values(f, OT_F32, c->experts);
    ot_lane_fill(f->lane, counts, 0, (size_t)c->experts * sizeof *counts);
    ot_lane_fill(f->lane, sums, 0, (size_t)c->experts * sizeof *sums);
    for (int l = 0; l < BALANCE_LAYERS; l++) {
        routers[l] = (struct ot_router){.dtype = f->dtype,
                                        .over_all = c->over_all,
                                        .n = c->n,
                                        .experts = c->experts,
                                        .top = c->top,
                                        .ld = c->ld,
                                        .logits = ops_upload(f, f->dtype, c->logits + l * all, all),
                                        .ids = ops_blank(f, (size_t)(c->n * c->top) * sizeof(int32_t)),
                                        .weights = ops_blank_values(f, OT_F32, c->n * c->top)};
        const struct ot_load load = {routers[l], counts, sums,
                                     ops_blank(f, (size_t)c->experts * sizeof *counts),
                                     ops_blank_values(f, OT_F32, c->experts)};
        f->ops->router(f->lane, &routers[l]);
        f->ops->load(f->lane, &load);
        counts = load.counts_out;
        sums = load.sums_out;
    }
    float *loss = ops_blank_values(f, OT_F32, c->n), scale = 2;
    ot_lane_fill(f->lane, loss, 0, (size_t)c->n * sizeof *loss);
    const struct ot_balance balance = {.n = c->n,
                                       .experts = c->experts,
                                       .rows = BALANCE_LAYERS * c->n,
                                       .targets = ops_upload_ids(f, c->targets, c->n),
                                       .counts = counts,
                                       .sums = sums,
                                       .coefficient = c->coefficient,
                                       .grad_scale = c->grad_scale,
                                       .loss_scale = ops_upload(f, OT_F32, &scale, 1),
                                       .loss = loss,
                                       .slopes = slopes};
    f->ops->balance(f->lane, &balance);
    ops_collect(f, "counts", OT_F32, counts, c->experts);
    ops_collect(f, "sums", OT_F32, sums, c->experts);
    ops_collect(f, "loss", OT_F32, loss, c->n);
    ops_collect(f, "slopes", OT_F32, slopes, c->experts);
    for (int l = 0; l < BALANCE_LAYERS; l++) {
        const struct ot_router_backward back = {routers[l], ops_upload(f, OT_F32, c->dweights, c->n * c->top),
                                                slopes, (void *)(uintptr_t)routers[l].logits};
        f->ops->router_backward(f->lane, &back);
        ops_collect(f, names[l], f->dtype, back.dlogits, all);
    }
}

/* ---- dropout of attention's weights ---- */

enum { DROP_Q, DROP_K, DROP_V, DROP_DOUT, DROP_INPUTS };

/* Rows of `row` tokens. spans: each query sees its row, else the keys of its row up to its own. */
struct drop_case {
    bool spans;
    int64_t n, heads, kv_heads, dim, row;
    float softcap; /* not with spans */
    struct ot_weight_drop drop;
    float *in[DROP_INPUTS]; /* [n, heads or kv_heads, dim] */
};

static inline int64_t drop_width(const struct drop_case *c, int input) {
    return (input == DROP_K || input == DROP_V ? c->kv_heads : c->heads) * c->dim;
}

static inline void drop_open(struct drop_case *c) {
    for (int i = 0; i < DROP_INPUTS; i++)
        c->in[i] = ops_random(40 + (uint64_t)i, c->n * drop_width(c, i), 1);
}

static inline void drop_close(struct drop_case *c) {
    for (int i = 0; i < DROP_INPUTS; i++)
        free(c->in[i]);
}

static inline void drop_collect(struct ops_fixture *f, const struct drop_case *c, const void *out,
                                void *const d[3]) {
    static const char *const names[] = {"dq", "dk", "dv"};
    ops_collect(f, "out", f->dtype, out, c->n * drop_width(c, DROP_Q));
    for (int i = 0; i < 3; i++)
        ops_collect(f, names[i], f->dtype, d[i], c->n * drop_width(c, i));
}

static inline void drop_run_spans(struct ops_fixture *f, const struct drop_case *c,
                                  void *const in[DROP_INPUTS], void *const d[3], const int32_t *first,
                                  const int32_t *end) {
    int64_t q = drop_width(c, DROP_Q);
    const struct ot_attend_spans op = {.dtype = f->dtype,
                                       .n = c->n,
                                       .n_keys = c->n,
                                       .heads = c->heads,
                                       .head_dim = c->dim,
                                       .ldq = q,
                                       .ldk = q,
                                       .ldv = q,
                                       .ldo = q,
                                       .scale = 0.25f,
                                       .key_first = first,
                                       .key_end = end,
                                       .drop = c->drop,
                                       .q = in[DROP_Q],
                                       .k = in[DROP_K],
                                       .v = in[DROP_V],
                                       .out = ops_blank_values(f, f->dtype, c->n * q),
                                       .softmax =
                                           ops_blank(f, ot_attend_spans_softmax_bytes(c->n, c->heads))};
    const struct ot_attend_spans_backward back = {
        .forward = op,
        .dout = in[DROP_DOUT],
        .dq = d[0],
        .dk = d[1],
        .dv = d[2],
        .scratch = ops_blank(f, ot_attend_spans_scratch_bytes(c->n, c->heads, 0))};
    f->ops->attend_spans(f->lane, &op);
    f->ops->attend_spans_backward(f->lane, &back);
    drop_collect(f, c, op.out, d);
}

static inline void drop_run(struct ops_fixture *f, const void *argument) {
    const struct drop_case *c = argument;
    int64_t q = drop_width(c, DROP_Q), k = drop_width(c, DROP_K);
    void *in[DROP_INPUTS], *d[3];
    int32_t begin[256], end[256];
    assert_true(c->n <= 256);
    for (int64_t i = 0; i < c->n; i++) {
        begin[i] = (int32_t)(i / c->row * c->row);
        end[i] = (int32_t)(begin[i] + c->row < c->n ? begin[i] + c->row : c->n);
    }
    for (int i = 0; i < DROP_INPUTS; i++)
        in[i] = ops_upload(f, f->dtype, c->in[i], c->n * drop_width(c, i));
    for (int i = 0; i < 3; i++)
        d[i] = ops_blank_values(f, f->dtype, c->n * drop_width(c, i));
    const int32_t *first = ops_upload_ids(f, begin, c->n), *last = ops_upload_ids(f, end, c->n);
    if (c->spans) {
        drop_run_spans(f, c, in, d, first, last);
        return;
    }
    const struct ot_attention op = {.dtype = f->dtype,
                                    .n = c->n,
                                    .n_keys = c->n,
                                    .heads = c->heads,
                                    .kv_heads = c->kv_heads,
                                    .head_dim = c->dim,
                                    .ldq = q,
                                    .ldk = k,
                                    .ldv = k,
                                    .ldo = q,
                                    .scale = 0.25f,
                                    .softcap = c->softcap,
                                    .row_start = first,
                                    .drop = c->drop,
                                    .q = in[DROP_Q],
                                    .k = in[DROP_K],
                                    .v = in[DROP_V],
                                    .out = ops_blank_values(f, f->dtype, c->n * q),
                                    .lse = ops_blank(f, (size_t)(c->heads * c->n) * sizeof(float))};
    const struct ot_attention_backward back = {
        .forward = op,
        .dout = in[DROP_DOUT],
        .dq = d[0],
        .dk = d[1],
        .dv = d[2],
        .lddk = k,
        .lddv = k,
        .scratch = ops_blank(f, ot_attention_backward_scratch_bytes(c->n, c->heads))};
    f->ops->attention(f->lane, &op);
    f->ops->attention_backward(f->lane, &back);
    drop_collect(f, c, op.out, d);
}

#endif
