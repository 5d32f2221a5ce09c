/* The MLP branch: from mid to y, and back. layer_experts.c computes experts in the MLP's place. */
#include "models/layer.h"

/* ---- maps and norms ---- */

static struct ot_linear gate_up_proj(const struct ot_layer_call *call, bool want_grad) {
    const struct ot_layer_layout *at = call->at;
    return ot_layer_linear(call, call->config->hidden, call->model->inner_elems, at->gate_up,
                           at->gate_up_bias, &at->gate_up_lora, &call->memory.gate_up_lora, want_grad);
}

/* Without a norm behind it, its forward adds the residual: y = mid + down(inner). */
static struct ot_linear down_proj(const struct ot_layer_call *call, bool want_grad) {
    const struct ot_layer_layout *at = call->at;
    struct ot_linear down =
        ot_layer_linear(call, call->config->ffn, call->config->hidden, at->down, at->down_bias,
                        &at->down_lora, &call->memory.down_lora, want_grad);
    down.residual = ot_layer_has_after(call) || ot_layer_drops(call, OT_DROP_MLP) ? NULL : call->memory.mid;
    down.scale = (float)call->config->residual_scale;
    return down;
}

/* Makes the input of gate and up. If one norm serves both branches, q, k and v have the same input: it is
 * valid, unless another chunk overwrote it in scratch. */
static void norm2(const struct ot_layer_call *call) {
    const struct ot_layer_memory *memory = &call->memory;
    const void *input = ot_layer_is_parallel(call) ? call->x : memory->mid;
    bool is_valid = call->config->residual == OT_PARALLEL && (call->alone || call->kept >= OT_KEEP_ALL);
    if (ot_layer_has_before(call) && !is_valid)
        ot_layer_norm(call, &call->at->norm2, input, memory->normed2, memory->stats2);
}

/* ---- the activation ---- */

static struct ot_glu glu_op(const struct ot_layer_call *call) {
    const struct ot_layer_memory *memory = &call->memory;
    return (struct ot_glu){.dtype = call->run->dtype,
                           .act = call->config->act,
                           .rows = call->inner_rows,
                           .cols = call->ffn,
                           .ld_in = 2 * call->ffn,
                           .ld_out = call->ffn,
                           .gate = memory->gate_up, /* [inner_rows, 2, ffn]: gate, then up */
                           .up = ot_run_at(call->run, memory->gate_up, call->ffn),
                           .out = memory->inner, /* [inner_rows, ffn] */
                           .limit = call->has_experts ? call->config->glu_limit : 0,
                           .alpha = call->config->glu_alpha};
}

/* Dropout of inner, or of its gradient, in place. */
static void drop_inner(const struct ot_layer_call *call, void *x) {
    const struct ot_drop_rows rows = {OT_DROP_INNER, call->layer, call->first, call->n, call->config->ffn};
    ot_drop(call->model, call->run, &rows, x, NULL, x);
}

/* inner from gate and up. */
static void activate(const struct ot_layer_call *call) {
    const struct ot_glu glu = glu_op(call);
    const struct ot_activate plain = {.dtype = call->run->dtype,
                                      .act = call->config->act,
                                      .n = call->n * call->config->ffn,
                                      .x = call->memory.gate_up, /* [n, ffn] */
                                      .y = call->memory.inner};  /* [n, ffn] */
    if (call->config->plain_mlp)
        call->ops->activate(call->run->lane, &plain);
    else
        call->ops->glu(call->run->lane, &glu);
    drop_inner(call, call->memory.inner);
}

/* Turns the gradient of inner (memory.wide) into the gradient of gate and up; returns its address. */
static void *activate_backward(const struct ot_layer_call *call) {
    const struct ot_layer_memory *memory = &call->memory;
    const struct ot_activate_backward plain = {.dtype = call->run->dtype,
                                               .act = call->config->act,
                                               .n = call->n * call->config->ffn,
                                               .x = memory->gate_up, /* [n, ffn], and so dy and dx */
                                               .dy = memory->wide,
                                               .dx = memory->wide};
    const struct ot_glu_backward glu = {.forward = glu_op(call),
                                        .dout = memory->wide,     /* [inner_rows, ffn] */
                                        .dgate = memory->gate_up, /* [inner_rows, 2, ffn] */
                                        .dup = ot_run_at(call->run, memory->gate_up, call->ffn)};
    drop_inner(call, memory->wide);
    if (call->config->plain_mlp)
        call->ops->activate_backward(call->run->lane, &plain);
    else
        call->ops->glu_backward(call->run->lane, &glu);
    return call->config->plain_mlp ? memory->wide : memory->gate_up;
}

/* ---- forward ---- */

/* memory.gate_up of experts. */
static void compute_experts(const struct ot_layer_call *call) {
    ot_layer_route(call);
    ot_layer_gather(call);
    ot_layer_experts_gate_up(call);
}

void ot_layer_mlp_branch(const struct ot_layer_call *call, enum ot_keep_level have) {
    const struct ot_block_run *run = call->run;
    const struct ot_linear gate_up = gate_up_proj(call, false);
    norm2(call);
    if (call->until == OT_INPUT_GATE_UP)
        return;
    if (have >= OT_KEEP_PRODUCTS && call->has_experts)
        ot_layer_gather(call);
    else if (have >= OT_KEEP_PRODUCTS)
        ot_layer_from_u(call, &gate_up, call->memory.gate_up);
    else if (call->has_experts)
        compute_experts(call);
    else
        ot_linear_forward(run, &gate_up, ot_layer_gate_up_input(call), run->dtype, call->memory.gate_up);
    activate(call);
}

void ot_layer_finish(const struct ot_layer_call *call) {
    const struct ot_block_run *run = call->run;
    const struct ot_layer_memory *memory = &call->memory;
    const struct ot_linear down = down_proj(call, false);
    if (call->has_experts) {
        ot_layer_experts_down(call);
        ot_layer_combine(call, call->y);
        return;
    }
    if (!ot_layer_has_after(call)) {
        ot_linear_forward(run, &down, memory->inner, run->dtype, call->y);
        ot_layer_drop_add(call, OT_DROP_MLP, memory->mid, call->y);
        return;
    }
    ot_linear_forward(run, &down, memory->inner, run->dtype, memory->down_out); /* [n, hidden] */
    ot_layer_norm(call, &call->at->post2, memory->down_out, call->y, memory->post2);
    ot_layer_add(call, call->y, memory->mid, call->y);
}

/* ---- backward ---- */

void ot_layer_recompute_down(const struct ot_layer_call *call, enum ot_keep_level have) {
    const struct ot_block_run *run = call->run;
    const struct ot_layer_memory *memory = &call->memory;
    const struct ot_linear down = down_proj(call, false);
    if (call->has_experts) {
        if (have < OT_KEEP_PRODUCTS)
            ot_layer_experts_down(call);
        return;
    }
    if (!ot_layer_has_after(call)) {
        if (have < OT_KEEP_PRODUCTS)
            ot_linear_forward_inside(run, &down, memory->inner, run->dtype);
        return;
    }
    if (have < OT_KEEP_PRODUCTS) {
        ot_linear_forward(run, &down, memory->inner, run->dtype, memory->down_out);
        ot_layer_norm(call, &call->at->post2, memory->down_out, memory->narrow, memory->post2);
    } else {
        ot_layer_from_u(call, &down, memory->down_out);
    }
}

/* memory.narrow = the gradient of the experts' input. dxy is the gradient of y. */
static void experts_backward(const struct ot_layer_call *call) {
    ot_layer_experts_down_backward(call, call->dxy);
    activate_backward(call);
    ot_layer_experts_gate_up_backward(call, call->memory.narrow);
}

void ot_layer_mlp_backward(const struct ot_layer_call *call) {
    const struct ot_layer_memory *memory = &call->memory;
    const struct ot_linear down = down_proj(call, true), gate_up = gate_up_proj(call, true);
    const void *dy = call->dxy;
    void *dinput = ot_layer_is_parallel(call) ? memory->beside : memory->narrow;
    if (call->has_experts) {
        experts_backward(call);
    } else {
        if (ot_layer_has_after(call)) {
            ot_layer_norm_backward(call, &call->at->post2, memory->down_out, memory->post2, dy, NULL,
                                   memory->narrow);
            dy = memory->narrow;
        }
        dy = ot_layer_drop_backward(call, OT_DROP_MLP, dy, memory->narrow);
        ot_layer_linear_backward(call, &down, memory->inner, dy, memory->wide); /* [n, ffn] */
        const void *inner = activate_backward(call);                            /* the gradient of gate_up */
        ot_layer_linear_backward(call, &gate_up, ot_layer_gate_up_input(call), inner,
                                 dinput); /* [n, hidden] */
    }
    if (ot_layer_is_parallel(call))
        return;
    if (ot_layer_has_before(call))
        ot_layer_norm_backward(call, &call->at->norm2, memory->mid, memory->stats2, dinput, call->dxy,
                               call->dxy);
    else
        ot_layer_add(call, call->dxy, dinput, call->dxy);
}
