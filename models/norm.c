#include "models/norm.h"

void ot_model_norm(const struct ot_model *model, const struct ot_block_run *run,
                   const struct ot_norm_layout *at, int64_t rows, const void *x, void *y,
                   struct ot_norm_memory memory) {
    const struct ot_model_config *c = &model->config;
    const struct ot_norm op = {
        .dtype = run->dtype,
        .kind = c->norm,
        .adds_one = c->norm_adds_one,
        .rows = rows,
        .cols = c->hidden,
        .group = 1,
        .ldx = c->hidden,
        .ldy = c->hidden,
        .eps = c->norm_eps,
        .x = x,                                   /* [rows, hidden] */
        .weight = ot_run_weight(run, at->weight), /* [hidden] */
        .bias = ot_run_weight(run, at->bias),
        .y = y, /* [rows, hidden] */
        .mean = memory.mean,
        .rstd = memory.rstd, /* [rows] */
    };
    ot_run_ops(run)->norm(run->lane, &op);
}

void ot_model_norm_backward(const struct ot_model *model, const struct ot_block_run *run,
                            const struct ot_norm_layout *at, int64_t rows, const void *x,
                            struct ot_norm_memory memory, const void *dy, const void *addend, void *dx) {
    const struct ot_model_config *c = &model->config;
    const struct ot_norm_backward op = {
        .dtype = run->dtype,
        .kind = c->norm,
        .adds_one = c->norm_adds_one,
        .rows = rows,
        .cols = c->hidden,
        .group = 1,
        .ldx = c->hidden,
        .ldy = c->hidden,
        .x = x,
        .dy = dy, /* [rows, hidden], as x, dx_add and dx */
        .weight = ot_run_weight(run, at->weight),
        .dx_add = addend,
        .mean = memory.mean,
        .rstd = memory.rstd, /* [rows] */
        .dx = dx,
        .dweight = ot_run_grad(run, at->weight), /* [hidden] */
        .dbias = ot_run_grad(run, at->bias),
    };
    ot_run_ops(run)->norm_backward(run->lane, &op);
}
