/* A transformer layer with the norms before attention and before the MLP (pre-norm):
 *
 *     mid = x + attention(norm1(x)),   y = mid + mlp(norm2(mid))
 *
 * The product that ends the right side of such a sum also adds the left side, in fp32, and rounds once. For a
 * token and element of `hidden` in bf16, mid and norm2 then move 8 bytes (with the sum in the norm: 10), and
 * y moves 4 (with a sum of its own: 8).
 *
 * layer_memory.h says what forward keeps for backward. */
#include <math.h>

#include "models/inputs.h"
#include "models/layer_memory.h"
#include "models/linear.h"

/* One call of forward or backward, with the addresses of its buffers. */
struct call {
    const struct ot_model *model;
    const struct ot_model_config *config;
    const struct ot_block_run *run;
    const struct ot_ops *ops;
    int64_t layer, n;
    struct ot_layer_memory memory;
    enum ot_layer_input until; /* OT_LAYER_INPUTS: forward computes the whole layer */
};

static struct call make_call(const struct ot_model *model, int64_t layer, const struct ot_block_run *run) {
    struct call call = {
        .model = model,
        .config = &model->config,
        .run = run,
        .ops = ot_run_ops(run),
        .layer = layer,
        .n = run->batch.n_tokens,
        .until = OT_LAYER_INPUTS,
    };
    ot_layer_memory_find(model, layer, run, &call.memory);
    return call;
}

/* ---- the layer's linear maps and norms ---- */

static const struct ot_layer_layout *layout_of(const struct call *call) {
    return &call->model->layers[call->layer];
}

static struct ot_linear linear(const struct call *call, int64_t in, int64_t out, struct ot_place weight,
                               struct ot_place bias, const struct ot_lora_unit *lora,
                               const struct ot_unit_memory *memory, bool want_grad) {
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

static struct ot_linear qkv_proj(const struct call *call, bool want_grad) {
    const struct ot_layer_layout *at = layout_of(call);
    return linear(call, call->config->hidden, call->model->qkv_elems, at->qkv, at->qkv_bias, &at->qkv_lora,
                  &call->memory.qkv_lora, want_grad);
}

/* Its forward adds the residual: mid = x + o(attn). */
static struct ot_linear o_proj(const struct call *call, bool want_grad) {
    const struct ot_layer_layout *at = layout_of(call);
    struct ot_linear o = linear(call, call->model->q_elems, call->config->hidden, at->o, at->o_bias,
                                &at->o_lora, &call->memory.o_lora, want_grad);
    o.residual = call->run->x;
    return o;
}

static struct ot_linear gate_up_proj(const struct call *call, bool want_grad) {
    const struct ot_layer_layout *at = layout_of(call);
    return linear(call, call->config->hidden, 2 * call->config->ffn, at->gate_up, at->gate_up_bias,
                  &at->gate_up_lora, &call->memory.gate_up_lora, want_grad);
}

/* Its forward adds the residual: y = mid + down(inner). */
static struct ot_linear down_proj(const struct call *call, bool want_grad) {
    const struct ot_layer_layout *at = layout_of(call);
    struct ot_linear down = linear(call, call->config->ffn, call->config->hidden, at->down, at->down_bias,
                                   &at->down_lora, &call->memory.down_lora, want_grad);
    down.residual = call->memory.mid;
    return down;
}

static void norm(const struct call *call, const void *x, struct ot_place weight, void *y, float *rstd) {
    const struct ot_norm op = {
        .dtype = call->run->dtype,
        .kind = call->config->norm,
        .rows = call->n,
        .cols = call->config->hidden,
        .group = 1,
        .ldx = call->config->hidden,
        .ldy = call->config->hidden,
        .eps = call->config->norm_eps,
        .x = x,
        .weight = ot_run_weight(call->run, weight),
        .y = y,
        .rstd = rstd,
    };
    call->ops->norm(call->run->lane, &op);
}

/* memory.normed1 = norm1(x). */
static void norm1(const struct call *call) {
    const struct ot_layer_memory *memory = &call->memory;
    norm(call, call->run->x, layout_of(call)->norm1, memory->normed1, memory->rstd1);
}

/* memory.normed2 = norm2(memory.mid). */
static void norm2(const struct call *call) {
    const struct ot_layer_memory *memory = &call->memory;
    norm(call, memory->mid, layout_of(call)->norm2, memory->normed2, memory->rstd2);
}

/* run->dxy holds the gradient of the residual path. Adds the gradient of x through norm(x), computed from
 * memory.narrow. */
static void norm_backward(const struct call *call, const void *x, struct ot_place weight, const float *rstd) {
    const struct ot_norm_backward op = {
        .dtype = call->run->dtype,
        .kind = call->config->norm,
        .rows = call->n,
        .cols = call->config->hidden,
        .group = 1,
        .ldx = call->config->hidden,
        .ldy = call->config->hidden,
        .x = x,
        .dy = call->memory.narrow,
        .weight = ot_run_weight(call->run, weight),
        .dx_add = call->run->dxy,
        .rstd = rstd,
        .dx = call->run->dxy,
        .dweight = ot_run_grad(call->run, weight),
    };
    call->ops->norm_backward(call->run->lane, &op);
}

/* ---- attention ---- */

/* Addresses and row strides of q, k and v, or of their gradients. */
struct qkv {
    void *q, *k, *v;
    int64_t ldq, ldk, ldv;
};

/* q, k and v in one [n, qkv] array. qk not NULL: q and k are in this [n, q + k] array instead. */
static struct qkv packed_qkv(const struct call *call, void *qkv, void *qk) {
    const struct ot_model *model = call->model;
    const struct ot_block_run *run = call->run;
    int64_t ld = model->qkv_elems, ld_qk = qk ? model->q_elems + model->kv_elems : ld;
    return (struct qkv){
        .q = qk ? qk : qkv,
        .k = ot_run_at(run, qk ? qk : qkv, model->q_elems),
        .v = ot_run_at(run, qkv, model->q_elems + model->kv_elems),
        .ldq = ld_qk,
        .ldk = ld_qk,
        .ldv = ld,
    };
}

/* Norm of each head of q or k. y may be x. */
static void head_norm(const struct call *call, const void *x, int64_t ldx, void *y, int64_t ldy,
                      int64_t heads, struct ot_place weight, float *rstd) {
    const struct ot_norm op = {
        .dtype = call->run->dtype,
        .kind = OT_NORM_RMS,
        .rows = call->n * heads,
        .cols = call->config->head_dim,
        .group = heads,
        .ldx = ldx,
        .ldy = ldy,
        .eps = call->config->norm_eps,
        .x = x,
        .weight = ot_run_weight(call->run, weight),
        .y = y,
        .rstd = rstd,
    };
    call->ops->norm(call->run->lane, &op);
}

static void head_norm_backward(const struct call *call, const void *x, const void *dy, int64_t ldy, void *dx,
                               int64_t heads, struct ot_place weight, const float *rstd) {
    const struct ot_norm_backward op = {
        .dtype = call->run->dtype,
        .kind = OT_NORM_RMS,
        .rows = call->n * heads,
        .cols = call->config->head_dim,
        .group = heads,
        .ldx = call->model->qkv_elems,
        .ldy = ldy,
        .x = x,
        .dy = dy,
        .weight = ot_run_weight(call->run, weight),
        .rstd = rstd,
        .dx = dx,
        .dweight = ot_run_grad(call->run, weight),
    };
    call->ops->norm_backward(call->run->lane, &op);
}

static void rope(const struct call *call, void *x, int64_t ld, int64_t heads, bool inverse) {
    const struct ot_block_run *run = call->run;
    const struct ot_rope op = {
        .dtype = run->dtype,
        .n = call->n,
        .heads = heads,
        .head_dim = call->config->head_dim,
        .rotary_dim = call->config->rotary_dim,
        .ld = ld,
        .max_position = call->model->chain.max_position,
        .inverse = inverse,
        .position = run->batch.position,
        .cos_table = run->constants,
        .sin_table = (const float *)((const char *)run->constants + ot_rope_table_bytes(call->model)),
        .x = x,
    };
    call->ops->rope(run->lane, &op);
}

static struct ot_attention attention_op(const struct call *call, const struct qkv *at, int64_t n_keys) {
    const struct ot_model_config *c = call->config;
    return (struct ot_attention){
        .dtype = call->run->dtype,
        .n = call->n,
        .n_keys = n_keys,
        .heads = c->n_heads,
        .kv_heads = c->n_kv_heads,
        .head_dim = c->head_dim,
        .window = ot_model_layer_window(c, call->layer),
        .ldq = at->ldq,
        .ldk = at->ldk,
        .ldv = at->ldv,
        .ldo = call->model->q_elems,
        .scale = (float)(1 / sqrt((double)c->head_dim)),
        .row_start = call->run->batch.row_start,
        .q = at->q,
        .k = at->k,
        .v = at->v,
        .out = call->memory.attn,
        .lse = call->memory.lse,
    };
}

/* q, k and v: norms and rope of the projection's output. */
static void finish_qkv(const struct call *call) {
    const struct ot_model_config *c = call->config;
    const struct ot_layer_memory *memory = &call->memory;
    const struct qkv raw = packed_qkv(call, memory->qkv, NULL),
                     at = packed_qkv(call, memory->qkv, memory->qk);
    if (c->qk_norm) {
        const struct ot_layer_layout *layout = layout_of(call);
        head_norm(call, raw.q, raw.ldq, at.q, at.ldq, c->n_heads, layout->q_norm, memory->rstd_q);
        head_norm(call, raw.k, raw.ldk, at.k, at.ldk, c->n_kv_heads, layout->k_norm, memory->rstd_k);
    }
    rope(call, at.q, at.ldq, c->n_heads + c->n_kv_heads, false); /* q's and k's heads are adjacent */
}

/* q, k and v from memory.normed1. */
static void project_qkv(const struct call *call) {
    const struct ot_linear proj = qkv_proj(call, false);
    ot_linear_forward(call->run, &proj, call->memory.normed1, call->run->dtype, call->memory.qkv);
    finish_qkv(call);
}

/* memory.attn from q, k and v. */
static void attend(const struct call *call) {
    const struct qkv at = packed_qkv(call, call->memory.qkv, call->memory.qk);
    const struct ot_attention op = attention_op(call, &at, call->n);
    call->ops->attention(call->run->lane, &op);
}

/* Writes outputs [first, first + out) of the fused qkv projection to y: those of q, k or v. */
static void project_part(const struct call *call, int64_t first, int64_t out, void *y) {
    const struct ot_layer_layout *at = layout_of(call);
    int64_t in = call->config->hidden;
    const struct ot_lora_unit lora = ot_lora_unit_part(&at->qkv_lora, first, in);
    const struct ot_linear proj =
        linear(call, in, out, ot_place_behind(at->qkv, first * in), ot_place_behind(at->qkv_bias, first),
               &lora, &call->memory.qkv_lora, false);
    ot_linear_forward(call->run, &proj, call->memory.normed1, call->run->dtype, y);
}

/* As project_qkv and attend, with a key-value cache: writes the new k and v into the cache behind those of
 * earlier tokens. */
static void attention_decode(const struct call *call) {
    const struct ot_model *model = call->model;
    const struct ot_model_config *c = call->config;
    const struct ot_block_run *run = call->run;
    const struct ot_layer_memory *memory = &call->memory;
    int64_t q_elems = model->q_elems, kv_elems = model->kv_elems, n_past = run->kv.n_past;
    void *new_k = ot_run_at(run, run->kv.k, n_past * kv_elems);
    void *new_v = ot_run_at(run, run->kv.v, n_past * kv_elems);
    struct qkv at = {memory->qkv, run->kv.k, run->kv.v, q_elems, kv_elems, kv_elems};
    project_part(call, 0, q_elems, at.q);
    project_part(call, q_elems, kv_elems, new_k);
    project_part(call, q_elems + kv_elems, kv_elems, new_v);
    if (c->qk_norm) {
        head_norm(call, at.q, q_elems, at.q, q_elems, c->n_heads, layout_of(call)->q_norm, memory->rstd_q);
        head_norm(call, new_k, kv_elems, new_k, kv_elems, c->n_kv_heads, layout_of(call)->k_norm,
                  memory->rstd_k);
    }
    rope(call, at.q, q_elems, c->n_heads, false);
    rope(call, new_k, kv_elems, c->n_kv_heads, false);
    const struct ot_attention op = attention_op(call, &at, n_past + call->n);
    call->ops->attention(run->lane, &op);
}

/* memory.wide = gradient of the projection's output, from memory.narrow, the gradient of memory.attn. */
static void attention_backward(const struct call *call) {
    const struct ot_model_config *c = call->config;
    const struct ot_layer_memory *memory = &call->memory;
    const struct qkv at = packed_qkv(call, memory->qkv, memory->qk);
    const struct qkv grad = packed_qkv(call, memory->wide, c->qk_norm ? memory->normed : NULL);
    const struct ot_attention_backward op = {
        .forward = attention_op(call, &at, call->n),
        .dout = memory->narrow,
        .dq = grad.q,
        .dk = grad.k,
        .dv = grad.v,
        .scratch = memory->attention,
    };
    call->ops->attention_backward(call->run->lane, &op);
    rope(call, grad.q, grad.ldq, c->n_heads + c->n_kv_heads, true);
    if (c->qk_norm) {
        const struct ot_layer_layout *layout = layout_of(call);
        const struct qkv raw = packed_qkv(call, memory->qkv, NULL),
                         raw_grad = packed_qkv(call, memory->wide, NULL);
        head_norm_backward(call, raw.q, grad.q, grad.ldq, raw_grad.q, c->n_heads, layout->q_norm,
                           memory->rstd_q);
        head_norm_backward(call, raw.k, grad.k, grad.ldk, raw_grad.k, c->n_kv_heads, layout->k_norm,
                           memory->rstd_k);
    }
}

/* ---- the layer ---- */

static struct ot_glu glu_op(const struct call *call) {
    const struct ot_layer_memory *memory = &call->memory;
    return (struct ot_glu){
        .dtype = call->run->dtype,
        .act = call->config->act,
        .rows = call->n,
        .cols = call->config->ffn,
        .ld_in = 2 * call->config->ffn,
        .ld_out = call->config->ffn,
        .gate = memory->gate_up,
        .up = ot_run_at(call->run, memory->gate_up, call->config->ffn),
        .out = memory->inner,
    };
}

static void glu(const struct call *call) {
    const struct ot_glu op = glu_op(call);
    call->ops->glu(call->run->lane, &op);
}

/* The result y of a unit that makes it of u. u and the factors are there. */
static void forward_from_u(const struct call *call, const struct ot_linear *unit, void *y) {
    if (ot_lora_from_u(unit->lora))
        ot_linear_forward_from_u(call->run, unit, call->run->dtype, y);
}

/* The layer's inner activations, up to the input of the last projection. `have`: those that this level
 * keeps are there and are not computed again. On return normed2, inner and rstd2 are valid; normed1 and
 * rstd1 only if the level of the call keeps them. */
static void compute_inside(const struct call *call, enum ot_keep_level have) {
    const struct ot_block_run *run = call->run;
    const struct ot_layer_memory *memory = &call->memory;
    const struct ot_linear qkv = qkv_proj(call, false), o = o_proj(call, false),
                           gate_up = gate_up_proj(call, false);
    if (have < ot_layer_qkv_level(call->model, call->layer)) {
        norm1(call);
        if (call->until == OT_INPUT_QKV)
            return;
        if (run->pass == OT_PASS_DECODE)
            attention_decode(call);
        else
            project_qkv(call);
    } else if (ot_lora_from_u(qkv.lora)) {
        forward_from_u(call, &qkv, memory->qkv);
        finish_qkv(call);
    }
    if (have >= OT_KEEP_PRODUCTS) {
        forward_from_u(call, &o, memory->mid);
        norm2(call);
        forward_from_u(call, &gate_up, memory->gate_up);
        glu(call);
        return;
    }
    if (have < OT_KEEP_ATTENTION && run->pass != OT_PASS_DECODE)
        attend(call);
    if (call->until == OT_INPUT_O)
        return;
    ot_linear_forward(run, &o, memory->attn, run->dtype, memory->mid);
    norm2(call);
    if (call->until == OT_INPUT_GATE_UP)
        return;
    ot_linear_forward(run, &gate_up, memory->normed2, run->dtype, memory->gate_up);
    glu(call);
}

void ot_layer_forward(const struct ot_model *model, int64_t layer, const struct ot_block_run *run) {
    const struct call call = make_call(model, layer, run);
    const struct ot_linear down = down_proj(&call, false);
    compute_inside(&call, OT_KEEP_NONE);
    ot_linear_forward(run, &down, call.memory.inner, run->dtype, run->y);
}

const void *ot_model_layer_input(const struct ot_model *model, int block, enum ot_layer_input input,
                                 const struct ot_block_run *run) {
    struct call call = make_call(model, block - 1, run);
    const struct ot_layer_memory *memory = &call.memory;
    const void *const inputs[OT_LAYER_INPUTS] = {memory->normed1, memory->attn, memory->normed2,
                                                 memory->inner};
    call.until = input;
    compute_inside(&call, OT_KEEP_NONE);
    return inputs[input];
}

/* run->dxy is the gradient of y on entry and the gradient of mid on return. Overwrites gate and up with their
 * gradients. */
static void mlp_backward(const struct call *call) {
    const struct ot_block_run *run = call->run;
    const struct ot_layer_memory *memory = &call->memory;
    const struct ot_linear down = down_proj(call, true), gate_up = gate_up_proj(call, true);
    ot_linear_backward_params(run, &down, memory->inner, run->dxy, down.out);
    ot_linear_backward_input(run, &down, run->dxy, down.out, memory->wide);
    struct ot_glu_backward glu_backward = {
        .forward = glu_op(call), .dout = memory->wide, .dgate = memory->gate_up};
    glu_backward.dup = ot_run_at(run, memory->gate_up, call->config->ffn);
    call->ops->glu_backward(run->lane, &glu_backward);
    ot_linear_backward_params(run, &gate_up, memory->normed2, memory->gate_up, gate_up.out);
    ot_linear_backward_input(run, &gate_up, memory->gate_up, gate_up.out, memory->narrow);
    norm_backward(call, memory->mid, layout_of(call)->norm2, memory->rstd2);
}

void ot_layer_backward(const struct ot_model *model, int64_t layer, const struct ot_block_run *run) {
    const struct call call = make_call(model, layer, run);
    const struct ot_layer_memory *memory = &call.memory;
    const struct ot_linear o = o_proj(&call, true), qkv = qkv_proj(&call, true),
                           down = down_proj(&call, false);
    if (run->saved_level < OT_KEEP_ALL)
        compute_inside(&call, run->saved_level);
    if (run->saved_level < OT_KEEP_PRODUCTS)
        ot_linear_forward_inside(run, &down, memory->inner, run->dtype);
    mlp_backward(&call);
    ot_linear_backward_params(run, &o, memory->attn, run->dxy, o.out);
    ot_linear_backward_input(run, &o, run->dxy, o.out, memory->narrow);
    attention_backward(&call);
    if (run->saved_level < OT_KEEP_ALL)
        norm1(&call);
    ot_linear_backward_params(run, &qkv, memory->normed1, memory->wide, qkv.out);
    ot_linear_backward_input(run, &qkv, memory->wide, qkv.out, memory->narrow);
    norm_backward(&call, run->x, layout_of(&call)->norm1, memory->rstd1);
}
