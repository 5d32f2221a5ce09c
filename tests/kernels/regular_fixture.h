/* Cases of the regularisers' ops, for the cpu device and for two devices: NEFTune (kernels/ops.h) and the
 * balancing loss of experts (kernels/ops_experts.h). */
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

#endif
