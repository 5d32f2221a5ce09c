/* A transformer layer. config.h has the forms of a layer:
 *
 *     before       mid = x + attention(n1(x)),       y = mid + mlp(n2(mid))
 *     after        mid = x + p1(attention(x)),       y = mid + p2(mlp(mid))
 *     around       mid = x + p1(attention(n1(x))),   y = mid + p2(mlp(n2(mid)))
 *     parallel     y = (x + attention(n1(x))) + mlp(n2(x))
 *
 * Without norms behind attention and MLP, the product that ends the right side of a sum also adds the left
 * side, in fp32, and rounds once. For a token and element of `hidden` in bf16, mid and norm2 then move 8
 * bytes (with the sum in the norm: 10), and y moves 4 (with a sum of its own: 8).
 *
 * layer_memory.h says what forward keeps for backward. */
#include "models/layer.h"

static struct ot_layer_call make_call(const struct ot_model *model, int64_t layer,
                                      const struct ot_block_run *run) {
    struct ot_layer_call call = {
        .model = model,
        .config = &model->config,
        .at = &model->layers[layer],
        .run = run,
        .ops = ot_run_ops(run),
        .layer = layer,
        .n = run->batch.n_tokens,
        .until = OT_LAYER_INPUTS,
    };
    call.has_experts = ot_model_layer_has_experts(call.config, layer);
    call.inner_rows = call.n * (call.has_experts ? call.config->top_experts : 1);
    call.ffn = call.has_experts ? call.config->expert_ffn : call.config->ffn;
    ot_layer_memory_find(model, layer, run, &call.memory);
    return call;
}

static bool is_parallel(const struct ot_layer_call *call) {
    return call->config->residual != OT_SEQUENTIAL;
}

static bool has_before(const struct ot_layer_call *call) {
    return ot_model_has_norms_before(call->config);
}

static bool has_after(const struct ot_layer_call *call) {
    return ot_model_has_norms_after(call->config);
}

/* ---- linear maps ---- */

struct ot_linear ot_layer_linear(const struct ot_layer_call *call, int64_t in, int64_t out,
                                 struct ot_place weight, struct ot_place bias,
                                 const struct ot_lora_unit *lora, const struct ot_unit_memory *memory,
                                 bool want_grad) {
    const struct ot_block_run *run = call->run;
    return (struct ot_linear){
        .rows = call->n,
        .in = in,
        .out = out,
        .weight = ot_run_weight(run, weight),
        .bias = ot_run_weight(run, bias),
        .dweight = want_grad ? ot_run_grad(run, weight) : NULL,
        .dbias = want_grad ? ot_run_grad(run, bias) : NULL,
        .adds = !run->first,
        .lora = lora,
        .ax = memory->ax,
        .dax = call->memory.dax,
        .dropped = call->memory.dropped,
        .u = memory->u,
        .factors = memory->factors,
        .products = call->memory.products,
    };
}

/* Without a norm behind it, its forward adds the residual: mid = x + o(attn). */
static struct ot_linear o_proj(const struct ot_layer_call *call, bool want_grad) {
    const struct ot_layer_layout *at = call->at;
    struct ot_linear o = ot_layer_linear(call, call->model->q_elems, call->config->hidden, at->o, at->o_bias,
                                         &at->o_lora, &call->memory.o_lora, want_grad);
    o.residual = has_after(call) ? NULL : call->run->x;
    o.scale = (float)call->config->residual_scale;
    return o;
}

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
    down.residual = has_after(call) ? NULL : call->memory.mid;
    down.scale = (float)call->config->residual_scale;
    return down;
}

/* ---- norms ---- */

static void norm(const struct ot_layer_call *call, const struct ot_norm_layout *at, const void *x, void *y,
                 struct ot_norm_memory memory) {
    const struct ot_norm op = {
        .dtype = call->run->dtype,
        .kind = call->config->norm,
        .adds_one = call->config->norm_adds_one,
        .rows = call->n,
        .cols = call->config->hidden,
        .group = 1,
        .ldx = call->config->hidden,
        .ldy = call->config->hidden,
        .eps = call->config->norm_eps,
        .x = x,
        .weight = ot_run_weight(call->run, at->weight),
        .bias = ot_run_weight(call->run, at->bias),
        .y = y,
        .mean = memory.mean,
        .rstd = memory.rstd,
    };
    call->ops->norm(call->run->lane, &op);
}

/* dx = the gradient of x through the norm (+ addend). */
static void norm_backward(const struct ot_layer_call *call, const struct ot_norm_layout *at, const void *x,
                          struct ot_norm_memory memory, const void *dy, const void *addend, void *dx) {
    const struct ot_norm_backward op = {
        .dtype = call->run->dtype,
        .kind = call->config->norm,
        .adds_one = call->config->norm_adds_one,
        .rows = call->n,
        .cols = call->config->hidden,
        .group = 1,
        .ldx = call->config->hidden,
        .ldy = call->config->hidden,
        .x = x,
        .dy = dy,
        .weight = ot_run_weight(call->run, at->weight),
        .dx_add = addend,
        .mean = memory.mean,
        .rstd = memory.rstd,
        .dx = dx,
        .dweight = ot_run_grad(call->run, at->weight),
        .dbias = ot_run_grad(call->run, at->bias),
    };
    call->ops->norm_backward(call->run->lane, &op);
}

/* out = a + b. */
static void add(const struct ot_layer_call *call, const void *a, const void *b, void *out) {
    const struct ot_add op = {
        .dtype = call->run->dtype, .n = call->n * call->config->hidden, .a = a, .b = b, .out = out};
    call->ops->add(call->run->lane, &op);
}

/* The input of n2. */
static const void *norm2_input(const struct ot_layer_call *call) {
    return is_parallel(call) ? call->run->x : call->memory.mid;
}

/* Makes the input of q, k and v. */
static void norm1(const struct ot_layer_call *call) {
    const struct ot_layer_memory *memory = &call->memory;
    if (has_before(call))
        norm(call, &call->at->norm1, call->run->x, memory->normed1, memory->stats1);
}

static const void *qkv_input(const struct ot_layer_call *call) {
    return has_before(call) ? call->memory.normed1 : call->run->x;
}

/* Makes the input of gate and up. If one norm serves both sides, q, k and v have the same input. */
static void norm2(const struct ot_layer_call *call) {
    const struct ot_layer_memory *memory = &call->memory;
    if (has_before(call) && call->config->residual != OT_PARALLEL)
        norm(call, &call->at->norm2, norm2_input(call), memory->normed2, memory->stats2);
}

static const void *gate_up_input(const struct ot_layer_call *call) {
    return has_before(call) ? call->memory.normed2 : call->memory.mid;
}

/* ---- forward ---- */

/* inner from gate and up. */
static void activate(const struct ot_layer_call *call) {
    const struct ot_layer_memory *memory = &call->memory;
    const struct ot_model_config *c = call->config;
    if (c->plain_mlp) {
        const struct ot_activate op = {.dtype = call->run->dtype,
                                       .act = c->act,
                                       .n = call->n * c->ffn,
                                       .x = memory->gate_up,
                                       .y = memory->inner};
        call->ops->activate(call->run->lane, &op);
        return;
    }
    const struct ot_glu op = {.dtype = call->run->dtype,
                              .act = c->act,
                              .rows = call->inner_rows,
                              .cols = call->ffn,
                              .ld_in = 2 * call->ffn,
                              .ld_out = call->ffn,
                              .gate = memory->gate_up,
                              .up = ot_run_at(call->run, memory->gate_up, call->ffn),
                              .out = memory->inner,
                              .limit = call->has_experts ? c->glu_limit : 0,
                              .alpha = c->glu_alpha};
    call->ops->glu(call->run->lane, &op);
}

/* Computes the result y of a unit from u and the factors, which are valid. */
static void forward_from_u(const struct ot_layer_call *call, const struct ot_linear *unit, void *y) {
    if (ot_lora_from_u(unit->lora))
        ot_linear_forward_from_u(call->run, unit, call->run->dtype, y);
}

/* mid from the result of o, if a norm is behind it. */
static void finish_mid(const struct ot_layer_call *call) {
    const struct ot_layer_memory *memory = &call->memory;
    if (!has_after(call))
        return;
    norm(call, &call->at->post1, memory->o_out, memory->mid, memory->post1);
    add(call, memory->mid, call->run->x, memory->mid);
}

/* The output of the product o. */
static void *o_result(const struct ot_layer_call *call) {
    return has_after(call) ? call->memory.o_out : call->memory.mid;
}

/* q, k and v, and attention's input norm, as far as this level does not keep them. False: `until` is
 * reached. */
static bool compute_qkv(const struct ot_layer_call *call, enum ot_keep_level have) {
    const struct ot_block_run *run = call->run;
    const struct ot_linear qkv = ot_layer_qkv(call, false);
    if (have >= ot_layer_qkv_level(call->model, call->layer)) {
        if (call->config->residual == OT_PARALLEL)
            norm1(call);
        if (ot_lora_from_u(qkv.lora)) {
            forward_from_u(call, &qkv, call->memory.qkv);
            ot_layer_finish_qkv(call);
        }
        return true;
    }
    norm1(call);
    if (call->until == OT_INPUT_QKV)
        return false;
    if (run->pass == OT_PASS_DECODE) {
        ot_layer_attend_cached(call, qkv_input(call));
        return true;
    }
    ot_linear_forward(run, &qkv, qkv_input(call), run->dtype, call->memory.qkv);
    ot_layer_finish_qkv(call);
    return true;
}

/* memory.gate_up of experts. */
static void compute_experts(const struct ot_layer_call *call) {
    ot_layer_route(call);
    ot_layer_gather(call);
    ot_layer_experts_gate_up(call);
}

/* Computes the layer's inner activations, up to the input of the last projection. `have`: activations that
 * this level keeps are valid and are not computed again. On return the inputs of gate_up and of down are
 * valid, and the input of q, k and v only if the level of the call keeps it. wants_mid: with parallel sides,
 * computes mid, which only forward reads. */
static void compute_inside(const struct ot_layer_call *call, enum ot_keep_level have, bool wants_mid) {
    const struct ot_block_run *run = call->run;
    const struct ot_layer_memory *memory = &call->memory;
    const struct ot_linear o = o_proj(call, false), gate_up = gate_up_proj(call, false);
    bool needs_mid = wants_mid || !is_parallel(call);
    if (!compute_qkv(call, have))
        return;
    if (have >= OT_KEEP_PRODUCTS) {
        if (needs_mid) {
            forward_from_u(call, &o, o_result(call));
            finish_mid(call);
        }
        norm2(call);
        if (call->has_experts)
            ot_layer_gather(call);
        else
            forward_from_u(call, &gate_up, memory->gate_up);
        activate(call);
        return;
    }
    if (have < OT_KEEP_ATTENTION && run->pass != OT_PASS_DECODE)
        ot_layer_attend(call);
    if (call->until == OT_INPUT_O)
        return;
    if (needs_mid) {
        ot_linear_forward(run, &o, memory->attn, run->dtype, o_result(call));
        finish_mid(call);
    } else {
        ot_linear_forward_inside(run, &o, memory->attn, run->dtype);
    }
    norm2(call);
    if (call->until == OT_INPUT_GATE_UP)
        return;
    if (call->has_experts)
        compute_experts(call);
    else
        ot_linear_forward(run, &gate_up, gate_up_input(call), run->dtype, memory->gate_up);
    activate(call);
}

/* Runs the forward of a layer with experts, or one half of it (offload/block.h). The first half leaves mid,
 * in `saved` if the level keeps it, else in y. The second half routes again, which costs less than keeping
 * the choice. */
static void forward_mixture(struct ot_layer_call *call) {
    const struct ot_block_run *run = call->run;
    enum ot_keep_level keeps_mid = ot_lora_from_u(&call->at->o_lora) ? OT_KEEP_ALL : OT_KEEP_PRODUCTS;
    if (run->half != OT_HALF_BOTH && run->saved_level < keeps_mid)
        call->memory.mid = run->y;
    call->until = OT_INPUT_GATE_UP;
    if (run->half == OT_HALF_REST)
        norm2(call);
    else
        compute_inside(call, OT_KEEP_NONE, true);
    if (run->half == OT_HALF_CHOOSE) {
        ot_layer_route(call);
        return;
    }
    compute_experts(call);
    activate(call);
    ot_layer_experts_down(call);
    ot_layer_combine(call, run->y);
}

void ot_layer_forward(const struct ot_model *model, int64_t layer, const struct ot_block_run *run) {
    struct ot_layer_call call = make_call(model, layer, run);
    struct ot_layer_memory *memory = &call.memory;
    if (call.has_experts) {
        forward_mixture(&call);
        return;
    }
    /* DoRA with dropout writes y before it reads the residual. */
    if (is_parallel(&call))
        memory->mid = ot_lora_doubles(&call.at->down_lora) ? memory->beside : run->y;
    const struct ot_linear down = down_proj(&call, false);
    compute_inside(&call, OT_KEEP_NONE, true);
    if (!has_after(&call)) {
        ot_linear_forward(run, &down, memory->inner, run->dtype, run->y);
        return;
    }
    ot_linear_forward(run, &down, memory->inner, run->dtype, memory->down_out);
    norm(&call, &call.at->post2, memory->down_out, run->y, memory->post2);
    add(&call, run->y, memory->mid, run->y);
}

struct ot_layer_rows ot_model_layer_input(const struct ot_model *model, int block, enum ot_layer_input input,
                                          const struct ot_block_run *run) {
    struct ot_layer_call call = make_call(model, block - 1, run);
    const struct ot_layer_memory *memory = &call.memory;
    bool of_experts = ot_model_input_is_of_experts(model, block, input);
    call.until = input;
    compute_inside(&call, OT_KEEP_NONE, false);
    if (of_experts && input == OT_INPUT_GATE_UP) {
        ot_layer_route(&call);
        ot_layer_gather(&call);
    }
    const void *const inputs[OT_LAYER_INPUTS] = {[OT_INPUT_QKV] = qkv_input(&call),
                                                 [OT_INPUT_O] = memory->attn,
                                                 [OT_INPUT_GATE_UP] =
                                                     of_experts ? memory->packed : gate_up_input(&call),
                                                 [OT_INPUT_DOWN] = memory->inner};
    return (struct ot_layer_rows){.x = inputs[input],
                                  .offsets = of_experts ? memory->offsets : NULL,
                                  .assignments = of_experts ? memory->assignments : NULL};
}

/* ---- backward ---- */

/* Computes the buffers of the last projection that this level does not keep: those that backward reads, and
 * the result if a norm follows. */
static void compute_down(const struct ot_layer_call *call, enum ot_keep_level have) {
    const struct ot_block_run *run = call->run;
    const struct ot_layer_memory *memory = &call->memory;
    const struct ot_linear down = down_proj(call, false);
    if (call->has_experts) {
        if (have < OT_KEEP_PRODUCTS)
            ot_layer_experts_down(call);
        return;
    }
    if (!has_after(call)) {
        if (have < OT_KEEP_PRODUCTS)
            ot_linear_forward_inside(run, &down, memory->inner, run->dtype);
        return;
    }
    if (have < OT_KEEP_PRODUCTS) {
        ot_linear_forward(run, &down, memory->inner, run->dtype, memory->down_out);
        norm(call, &call->at->post2, memory->down_out, memory->narrow, memory->post2);
    } else {
        forward_from_u(call, &down, memory->down_out);
    }
}

/* Turns the gradient of inner (memory.wide) into the gradient of gate and up; returns its address. */
static void *activate_backward(const struct ot_layer_call *call) {
    const struct ot_layer_memory *memory = &call->memory;
    const struct ot_model_config *c = call->config;
    if (c->plain_mlp) {
        const struct ot_activate_backward op = {.dtype = call->run->dtype,
                                                .act = c->act,
                                                .n = call->n * c->ffn,
                                                .x = memory->gate_up,
                                                .dy = memory->wide,
                                                .dx = memory->wide};
        call->ops->activate_backward(call->run->lane, &op);
        return memory->wide;
    }
    void *up = ot_run_at(call->run, memory->gate_up, call->ffn);
    const struct ot_glu_backward op = {.forward = {.dtype = call->run->dtype,
                                                   .act = c->act,
                                                   .rows = call->inner_rows,
                                                   .cols = call->ffn,
                                                   .ld_in = 2 * call->ffn,
                                                   .ld_out = call->ffn,
                                                   .gate = memory->gate_up,
                                                   .up = up,
                                                   .limit = call->has_experts ? c->glu_limit : 0,
                                                   .alpha = c->glu_alpha},
                                       .dout = memory->wide,
                                       .dgate = memory->gate_up,
                                       .dup = up};
    call->ops->glu_backward(call->run->lane, &op);
    return memory->gate_up;
}

/* memory.narrow = the gradient of the experts' input. run->dxy is the gradient of y. */
static void experts_backward(const struct ot_layer_call *call) {
    ot_layer_experts_down_backward(call, call->run->dxy);
    activate_backward(call);
    ot_layer_experts_gate_up_backward(call, call->memory.narrow);
}

/* run->dxy is the gradient of y. Sequential: turns it into the gradient of mid. Parallel: leaves it, and
 * writes the gradient of the MLP's input to memory.beside. */
static void mlp_backward(const struct ot_layer_call *call) {
    const struct ot_block_run *run = call->run;
    const struct ot_layer_memory *memory = &call->memory;
    const struct ot_linear down = down_proj(call, true), gate_up = gate_up_proj(call, true);
    const void *dy = run->dxy;
    if (call->has_experts) {
        experts_backward(call);
        norm_backward(call, &call->at->norm2, memory->mid, memory->stats2, memory->narrow, run->dxy,
                      run->dxy);
        return;
    }
    if (has_after(call)) {
        norm_backward(call, &call->at->post2, memory->down_out, memory->post2, dy, NULL, memory->narrow);
        dy = memory->narrow;
    }
    ot_linear_backward_params(run, &down, memory->inner, dy, down.out);
    ot_linear_backward_input(run, &down, dy, down.out, memory->wide);
    const void *inner = activate_backward(call);
    void *dinput = is_parallel(call) ? memory->beside : memory->narrow;
    ot_linear_backward_params(run, &gate_up, gate_up_input(call), inner, gate_up.out);
    ot_linear_backward_input(run, &gate_up, inner, gate_up.out, dinput);
    if (is_parallel(call))
        return;
    if (has_before(call))
        norm_backward(call, &call->at->norm2, memory->mid, memory->stats2, dinput, run->dxy, run->dxy);
    else
        add(call, run->dxy, dinput, run->dxy);
}

/* memory.narrow = the gradient of attention's input. run->dxy: of mid, or with parallel sides of y. */
static void attention_side_backward(const struct ot_layer_call *call) {
    const struct ot_block_run *run = call->run;
    const struct ot_layer_memory *memory = &call->memory;
    const struct ot_linear o = o_proj(call, true), qkv = ot_layer_qkv(call, true);
    const void *dy = run->dxy;
    if (has_after(call)) {
        norm_backward(call, &call->at->post1, memory->o_out, memory->post1, dy, NULL, memory->normed);
        dy = memory->normed;
    }
    ot_linear_backward_params(run, &o, memory->attn, dy, o.out);
    ot_linear_backward_input(run, &o, dy, o.out, memory->narrow);
    ot_layer_attend_backward(call);
    if (run->saved_level < OT_KEEP_ALL && !ot_layer_keeps_normed(call->config))
        norm1(call);
    ot_linear_backward_params(run, &qkv, qkv_input(call), memory->wide, qkv.out);
    ot_linear_backward_input(run, &qkv, memory->wide, qkv.out, memory->narrow);
}

void ot_layer_backward(const struct ot_model *model, int64_t layer, const struct ot_block_run *run) {
    const struct ot_layer_call call = make_call(model, layer, run);
    const struct ot_layer_memory *memory = &call.memory;
    if (run->saved_level < OT_KEEP_ALL) {
        compute_inside(&call, run->saved_level, false);
        compute_down(&call, run->saved_level);
    }
    mlp_backward(&call);
    attention_side_backward(&call);
    if (model->config.residual == OT_PARALLEL)
        add(&call, memory->narrow, memory->beside, memory->narrow);
    else if (is_parallel(&call))
        norm_backward(&call, &call.at->norm2, run->x, memory->stats2, memory->beside, run->dxy, run->dxy);
    if (has_before(&call))
        norm_backward(&call, &call.at->norm1, run->x, memory->stats1, memory->narrow, run->dxy, run->dxy);
    else
        add(&call, run->dxy, memory->narrow, run->dxy);
}
