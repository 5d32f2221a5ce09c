/* Forward and backward of the layers of an encoder-decoder. encdec.h has the formulas. */
#include "models/encdec.h"
#include "src/base/minmax.h"

static struct ot_encdec_call make_call(const struct ot_model *model, int64_t layer,
                                       const struct ot_block_run *run) {
    struct ot_encdec_call call = {
        .model = model,
        .at = &model->layers[layer],
        .run = run,
        .ops = ot_run_ops(run),
        .layer = layer,
        .is_decoder = layer >= model->config.n_encoder_layers,
    };
    /* In generation all inputs are in the first call. */
    int64_t n = run->batch.n_tokens, n_inputs = run->batch.n_inputs - run->kv.n_past;
    n_inputs = n_inputs < 0 ? 0 : ot_min(n_inputs, n);
    const struct ot_token_range targets = {n_inputs, n - n_inputs};
    call.inputs = (struct ot_token_range){0, n_inputs};
    call.own = call.is_decoder ? targets : call.inputs;
    call.others = call.is_decoder ? call.inputs : targets;
    ot_encdec_memory_find(model, layer, run, &call.memory);
    return call;
}

/* ---- maps ---- */

/* A linear map of some tokens. want_grad: backward computes the gradient of its weight. */
static struct ot_linear linear(const struct ot_encdec_call *call, struct ot_token_range tokens,
                               enum ot_encdec_map which, bool want_grad) {
    const struct ot_encdec_map_layout map = ot_encdec_map_find(call->model, call->layer, which);
    const struct ot_unit_memory *lora = &call->memory.lora[which];
    return (struct ot_linear){
        .rows = tokens.n,
        .in = map.in,
        .out = map.out,
        .weight = ot_run_weight(call->run, map.weight),
        .dweight = want_grad ? ot_run_grad(call->run, map.weight) : NULL,
        .adds = !call->run->first,
        .lora = map.lora,
        .ax = ot_encdec_row(call, lora->ax, tokens.first, map.lora->rank),
        .dax = call->memory.dax,
        .dropped = call->memory.dropped,
        .first_row = tokens.first,
        .u = ot_encdec_row(call, lora->u, tokens.first, map.out),
        .factors = lora->factors,
        .products = call->memory.products,
    };
}

/* y = W x, or residual + W x, for the tokens; all arrays have a row for each token. residual: NULL, or [n,
 * out]. */
static void multiply(const struct ot_encdec_call *call, struct ot_token_range tokens,
                     enum ot_encdec_map which, const void *x, const void *residual, void *y) {
    struct ot_linear map = linear(call, tokens, which, false);
    map.residual = residual ? ot_encdec_row(call, residual, tokens.first, map.out) : NULL;
    ot_linear_forward(call->run, &map, ot_encdec_row(call, x, tokens.first, map.in), call->run->dtype,
                      ot_encdec_row(call, y, tokens.first, map.out));
}

/* Outputs [first, first + q_elems) of a map, of memory.normed. y: [tokens.n, q_elems], without gaps. */
static void multiply_part(const struct ot_encdec_call *call, struct ot_token_range tokens,
                          enum ot_encdec_map which, int64_t first, void *y) {
    struct ot_linear map = linear(call, tokens, which, false);
    int64_t out = call->model->q_elems;
    const struct ot_lora_unit lora = ot_lora_unit_part(map.lora, first, out, map.in);
    map.out = out;
    map.weight = ot_run_at(call->run, map.weight, first * map.in);
    map.lora = &lora;
    ot_linear_forward(call->run, &map, ot_encdec_row(call, call->memory.normed, tokens.first, map.in),
                      call->run->dtype, y);
}

/* The gradients of the weight and of adapters, and dx = the gradient of x. dy: [n, out]. */
static void multiply_backward(const struct ot_encdec_call *call, struct ot_token_range tokens,
                              enum ot_encdec_map which, const void *x, const void *dy, void *dx) {
    const struct ot_linear map = linear(call, tokens, which, true);
    const void *rows = ot_encdec_row(call, dy, tokens.first, map.out);
    ot_linear_backward_params(call->run, &map, ot_encdec_row(call, x, tokens.first, map.in), rows, map.out);
    ot_linear_backward_input(call->run, &map, rows, map.out, ot_encdec_row(call, dx, tokens.first, map.in));
}

/* ---- norms ---- */

/* memory.normed = the norm of x, for the tokens. */
static void norm(const struct ot_encdec_call *call, struct ot_token_range tokens, struct ot_place weight,
                 const void *x) {
    const struct ot_model_config *c = &call->model->config;
    const struct ot_norm op = {
        .dtype = call->run->dtype,
        .kind = OT_NORM_RMS,
        .rows = tokens.n,
        .cols = c->hidden,
        .group = 1,
        .ldx = c->hidden,
        .ldy = c->hidden,
        .eps = c->norm_eps,
        .x = ot_encdec_row(call, x, tokens.first, c->hidden),
        .weight = ot_run_weight(call->run, weight),
        .y = ot_encdec_row(call, call->memory.normed, tokens.first, c->hidden),
        .rstd = call->memory.rstd + tokens.first,
    };
    call->ops->norm(call->run->lane, &op);
}

/* Adds to run->dxy the gradient of x through the norm, from memory.narrow, the gradient of its output. After
 * `norm` of the same. */
static void norm_backward(const struct ot_encdec_call *call, struct ot_token_range tokens,
                          struct ot_place weight, const void *x) {
    const struct ot_model_config *c = &call->model->config;
    void *dx = ot_encdec_row(call, call->run->dxy, tokens.first, c->hidden);
    const struct ot_norm_backward op = {
        .dtype = call->run->dtype,
        .kind = OT_NORM_RMS,
        .rows = tokens.n,
        .cols = c->hidden,
        .group = 1,
        .ldx = c->hidden,
        .ldy = c->hidden,
        .x = ot_encdec_row(call, x, tokens.first, c->hidden),
        .dy = ot_encdec_row(call, call->memory.narrow, tokens.first, c->hidden),
        .weight = ot_run_weight(call->run, weight),
        .dx_add = dx,
        .rstd = call->memory.rstd + tokens.first,
        .dx = dx,
        .dweight = ot_run_grad(call->run, weight),
    };
    call->ops->norm_backward(call->run->lane, &op);
}

/* ---- the MLP's activation ---- */

static struct ot_glu glu_op(const struct ot_encdec_call *call) {
    const struct ot_model_config *c = &call->model->config;
    void *gate = ot_encdec_row(call, call->memory.gate_up, call->own.first, 2 * c->ffn);
    return (struct ot_glu){.dtype = call->run->dtype,
                           .act = c->act,
                           .rows = call->own.n,
                           .cols = c->ffn,
                           .ld_in = 2 * c->ffn,
                           .ld_out = c->ffn,
                           .gate = gate,
                           .up = ot_run_at(call->run, gate, c->ffn),
                           .out = ot_encdec_row(call, call->memory.wide, call->own.first, c->ffn)};
}

/* memory.wide from gate and up. */
static void activate(const struct ot_encdec_call *call) {
    const struct ot_model_config *c = &call->model->config;
    if (!c->plain_mlp) {
        const struct ot_glu op = glu_op(call);
        call->ops->glu(call->run->lane, &op);
        return;
    }
    const struct ot_activate op = {.dtype = call->run->dtype,
                                   .act = c->act,
                                   .n = call->own.n * c->ffn,
                                   .x = ot_encdec_row(call, call->memory.gate_up, call->own.first, c->ffn),
                                   .y = ot_encdec_row(call, call->memory.wide, call->own.first, c->ffn)};
    call->ops->activate(call->run->lane, &op);
}

/* memory.gate_up becomes the gradient of gate and up. memory.wide is the gradient of the activation. */
static void activate_backward(const struct ot_encdec_call *call) {
    const struct ot_model_config *c = &call->model->config;
    if (!c->plain_mlp) {
        const struct ot_glu forward = glu_op(call);
        const struct ot_glu_backward op = {.forward = forward,
                                           .dout = forward.out,
                                           .dgate = (void *)forward.gate,
                                           .dup = (void *)forward.up};
        call->ops->glu_backward(call->run->lane, &op);
        return;
    }
    void *x = ot_encdec_row(call, call->memory.gate_up, call->own.first, c->ffn);
    const struct ot_activate_backward op = {
        .dtype = call->run->dtype,
        .act = c->act,
        .n = call->own.n * c->ffn,
        .x = x,
        .dy = ot_encdec_row(call, call->memory.wide, call->own.first, c->ffn),
        .dx = x};
    call->ops->activate_backward(call->run->lane, &op);
}

/* ---- forward ---- */

/* Each function below computes the results that the level does not keep. `have`: its results are valid.
 */

static void own_side(const struct ot_encdec_call *call, enum ot_keep_level have) {
    const struct ot_encdec_memory *m = &call->memory;
    if (have < OT_KEEP_PRODUCTS) {
        norm(call, call->own, call->at->norm1.weight, call->run->x);
        multiply(call, call->own, OT_ENCDEC_QKV, m->normed, NULL, m->qkv);
    }
    if (have < OT_KEEP_ATTENTION)
        ot_encdec_attend(call, OT_SIDE_OWN);
    if (have < OT_KEEP_PRODUCTS)
        multiply(call, call->own, OT_ENCDEC_O, m->attn, call->run->x, m->mid);
}

/* memory.normed of the inputs = the encoder's output. */
static void encoder_norm(const struct ot_encdec_call *call) {
    norm(call, call->inputs, call->model->stacks.encoder_norm.weight, call->run->x);
}

static void cross_side(const struct ot_encdec_call *call, enum ot_keep_level have) {
    const struct ot_encdec_memory *m = &call->memory;
    if (!call->is_decoder)
        return;
    if (have < OT_KEEP_PRODUCTS) {
        norm(call, call->own, call->at->cross_norm.weight, m->mid);
        encoder_norm(call);
        multiply(call, call->own, OT_ENCDEC_CROSS_Q, m->normed, NULL, m->cross_q);
        multiply(call, call->inputs, OT_ENCDEC_CROSS_KV, m->normed, NULL, m->cross_kv);
    }
    if (have < OT_KEEP_ATTENTION)
        ot_encdec_attend(call, OT_SIDE_CROSS);
    if (have < OT_KEEP_PRODUCTS)
        multiply(call, call->own, OT_ENCDEC_CROSS_O, m->cross_attn, m->mid, m->across);
}

/* The residual input of the MLP. */
static const void *mlp_base(const struct ot_encdec_call *call) {
    return call->is_decoder ? call->memory.across : call->memory.mid;
}

/* Computes up to the input of the last projection. memory.normed and wide then belong to the MLP. */
static void mlp_side(const struct ot_encdec_call *call, enum ot_keep_level have) {
    const struct ot_encdec_memory *m = &call->memory;
    norm(call, call->own, call->at->norm2.weight, mlp_base(call));
    if (have < OT_KEEP_PRODUCTS)
        multiply(call, call->own, OT_ENCDEC_GATE_UP, m->normed, NULL, m->gate_up);
    activate(call);
}

/* The end of forward: y of the layer's own tokens. */
static void finish(const struct ot_encdec_call *call) {
    multiply(call, call->own, OT_ENCDEC_DOWN, call->memory.wide, mlp_base(call), call->run->y);
}

/* y = x of the tokens that are not the layer's. */
static void pass_others(const struct ot_encdec_call *call) {
    int64_t h = call->model->config.hidden, first = call->others.first;
    size_t bytes = (size_t)(call->others.n * h) * ot_dtype_bytes(call->run->dtype);
    if (bytes > 0)
        ot_lane_copy(call->run->lane, OT_COPY_D2D, ot_encdec_row(call, call->run->y, first, h),
                     ot_encdec_row(call, call->run->x, first, h), bytes);
}

/* ---- forward with a cache ---- */

/* Computes k and v of some tokens from memory.normed, into the cache. first: the first output of k in the
 * map; the outputs of v follow those of k. */
static void cache_keys(const struct ot_encdec_call *call, struct ot_token_range tokens,
                       enum ot_encdec_map which, int64_t first) {
    const struct ot_block_run *run = call->run;
    int64_t q = call->model->q_elems, at = run->kv.n_past + tokens.first;
    multiply_part(call, tokens, which, first, ot_encdec_row(call, run->kv.k, at, q));
    multiply_part(call, tokens, which, first + q, ot_encdec_row(call, run->kv.v, at, q));
}

static void own_side_cached(const struct ot_encdec_call *call) {
    const struct ot_encdec_memory *m = &call->memory;
    int64_t q = call->model->q_elems;
    norm(call, call->own, call->at->norm1.weight, call->run->x);
    multiply_part(call, call->own, OT_ENCDEC_QKV, 0, ot_encdec_row(call, m->qkv, call->own.first, q));
    cache_keys(call, call->own, OT_ENCDEC_QKV, q);
    ot_encdec_attend_cached(call, OT_SIDE_OWN);
    multiply(call, call->own, OT_ENCDEC_O, m->attn, call->run->x, m->mid);
}

static void cross_side_cached(const struct ot_encdec_call *call) {
    const struct ot_encdec_memory *m = &call->memory;
    norm(call, call->own, call->at->cross_norm.weight, m->mid);
    multiply(call, call->own, OT_ENCDEC_CROSS_Q, m->normed, NULL, m->cross_q);
    ot_encdec_attend_cached(call, OT_SIDE_CROSS);
    multiply(call, call->own, OT_ENCDEC_CROSS_O, m->cross_attn, m->mid, m->across);
}

/* A decoder's layer. The first calls may have only inputs, and later calls have only targets. */
static void decode(const struct ot_encdec_call *call) {
    if (call->inputs.n > 0) {
        encoder_norm(call);
        cache_keys(call, call->inputs, OT_ENCDEC_CROSS_KV, 0);
    }
    if (call->own.n == 0)
        return;
    own_side_cached(call);
    cross_side_cached(call);
    mlp_side(call, OT_KEEP_NONE);
    finish(call);
}

void ot_encdec_forward(const struct ot_model *model, int64_t layer, const struct ot_block_run *run) {
    const struct ot_encdec_call call = make_call(model, layer, run);
    pass_others(&call);
    if (run->pass == OT_PASS_DECODE && call.is_decoder) {
        decode(&call);
        return;
    }
    if (call.own.n == 0)
        return;
    own_side(&call, OT_KEEP_NONE);
    cross_side(&call, OT_KEEP_NONE);
    mlp_side(&call, OT_KEEP_NONE);
    finish(&call);
}

/* ---- backward ---- */

/* Computes the buffers of the last map that backward reads, except the map's input. */
static void down_inside(const struct ot_encdec_call *call, enum ot_keep_level have) {
    const struct ot_linear down = linear(call, call->own, OT_ENCDEC_DOWN, false);
    if (have < OT_KEEP_PRODUCTS)
        ot_linear_forward_inside(call->run, &down,
                                 ot_encdec_row(call, call->memory.wide, call->own.first, down.in),
                                 call->run->dtype);
}

/* Turns run->dxy, the gradient of y, into the gradient of the MLP's base, for the layer's own tokens. */
static void mlp_backward(const struct ot_encdec_call *call) {
    const struct ot_encdec_memory *m = &call->memory;
    multiply_backward(call, call->own, OT_ENCDEC_DOWN, m->wide, call->run->dxy, m->wide);
    activate_backward(call);
    multiply_backward(call, call->own, OT_ENCDEC_GATE_UP, m->normed, m->gate_up, m->narrow);
    norm_backward(call, call->own, call->at->norm2.weight, mlp_base(call));
}

/* Turns the own tokens' run->dxy into the gradient of mid, and adds this layer's part to the inputs'
 * run->dxy. */
static void cross_backward(const struct ot_encdec_call *call) {
    const struct ot_encdec_memory *m = &call->memory;
    multiply_backward(call, call->own, OT_ENCDEC_CROSS_O, m->cross_attn, call->run->dxy, m->narrow);
    ot_encdec_attend_backward(call, OT_SIDE_CROSS);
    norm(call, call->own, call->at->cross_norm.weight, m->mid);
    multiply_backward(call, call->own, OT_ENCDEC_CROSS_Q, m->normed, m->wide, m->narrow);
    norm_backward(call, call->own, call->at->cross_norm.weight, m->mid);
    encoder_norm(call);
    multiply_backward(call, call->inputs, OT_ENCDEC_CROSS_KV, m->normed, ot_encdec_dkv(call), m->narrow);
    norm_backward(call, call->inputs, call->model->stacks.encoder_norm.weight, call->run->x);
}

/* run->dxy of the own tokens becomes the gradient of x. */
static void own_backward(const struct ot_encdec_call *call) {
    const struct ot_encdec_memory *m = &call->memory;
    multiply_backward(call, call->own, OT_ENCDEC_O, m->attn, call->run->dxy, m->narrow);
    ot_encdec_attend_backward(call, OT_SIDE_OWN);
    norm(call, call->own, call->at->norm1.weight, call->run->x);
    multiply_backward(call, call->own, OT_ENCDEC_QKV, m->normed, m->wide, m->narrow);
    norm_backward(call, call->own, call->at->norm1.weight, call->run->x);
}

/* run->dxy of tokens that are not the layer's is the gradient of x already. */
void ot_encdec_backward(const struct ot_model *model, int64_t layer, const struct ot_block_run *run) {
    const struct ot_encdec_call call = make_call(model, layer, run);
    own_side(&call, run->saved_level);
    cross_side(&call, run->saved_level);
    mlp_side(&call, run->saved_level);
    down_inside(&call, run->saved_level);
    mlp_backward(&call);
    if (call.is_decoder)
        cross_backward(&call);
    own_backward(&call);
}
