/* Attention of a layer: q, k and v from their projection, their norms and rope, attention, and its backward.
 * */
#include "models/layer.h"

struct ot_linear ot_layer_qkv(const struct ot_layer_call *call, bool want_grad) {
    const struct ot_layer_layout *at = call->at;
    return ot_layer_linear(call, call->config->hidden, call->model->qkv_elems, at->qkv, at->qkv_bias,
                           &at->qkv_lora, &call->memory.qkv_lora, want_grad);
}

/* Addresses and row strides of q, k and v, or of their gradients. */
struct qkv {
    void *q, *k, *v;
    int64_t ldq, ldk, ldv;
};

/* q, k and v in one [n, qkv] array. qk not NULL: q and k are in this [n, q + k] array instead. */
static struct qkv packed_qkv(const struct ot_layer_call *call, void *qkv, void *qk) {
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

/* ---- norms of q and k ---- */

/* q or k: its heads, which one norm covers together or each. */
struct normed_heads {
    int64_t groups, cols; /* norms in a row, and elements of each */
    struct ot_place weight;
    float *rstd;
};

static struct normed_heads normed_heads(const struct ot_layer_call *call, bool is_q) {
    const struct ot_model_config *c = call->config;
    int64_t heads = is_q ? c->n_heads : c->n_kv_heads;
    bool whole = c->qk_norm == OT_QK_NORM_WHOLE;
    return (struct normed_heads){
        .groups = whole ? 1 : heads,
        .cols = whole ? heads * c->head_dim : c->head_dim,
        .weight = is_q ? call->at->q_norm : call->at->k_norm,
        .rstd = is_q ? call->memory.rstd_q : call->memory.rstd_k,
    };
}

/* y may be x. */
static void head_norm(const struct ot_layer_call *call, bool is_q, const void *x, int64_t ldx, void *y,
                      int64_t ldy) {
    const struct normed_heads heads = normed_heads(call, is_q);
    const struct ot_norm op = {
        .dtype = call->run->dtype,
        .kind = OT_NORM_RMS,
        .adds_one = call->config->norm_adds_one,
        .rows = call->n * heads.groups,
        .cols = heads.cols,
        .group = heads.groups,
        .ldx = ldx,
        .ldy = ldy,
        .eps = call->config->norm_eps,
        .x = x,
        .weight = ot_run_weight(call->run, heads.weight),
        .y = y,
        .rstd = heads.rstd,
    };
    call->ops->norm(call->run->lane, &op);
}

static void head_norm_backward(const struct ot_layer_call *call, bool is_q, const void *x, const void *dy,
                               int64_t ldy, void *dx) {
    const struct normed_heads heads = normed_heads(call, is_q);
    const struct ot_norm_backward op = {
        .dtype = call->run->dtype,
        .kind = OT_NORM_RMS,
        .adds_one = call->config->norm_adds_one,
        .rows = call->n * heads.groups,
        .cols = heads.cols,
        .group = heads.groups,
        .ldx = call->model->qkv_elems,
        .ldy = ldy,
        .x = x,
        .dy = dy,
        .weight = ot_run_weight(call->run, heads.weight),
        .rstd = heads.rstd,
        .dx = dx,
        .dweight = ot_run_grad(call->run, heads.weight),
    };
    call->ops->norm_backward(call->run->lane, &op);
}

/* ---- rope ---- */

static void rotate(const struct ot_layer_call *call, enum ot_rope_use use, void *x, int64_t ld, int64_t heads,
                   bool inverse) {
    const struct ot_block_run *run = call->run;
    const struct ot_rope_table table = ot_rope_find(call->model, run->constants, call->layer, use);
    const struct ot_rope op = {
        .dtype = run->dtype,
        .n = call->n,
        .heads = heads,
        .head_dim = call->config->head_dim,
        .rotary_dim = call->config->rotary_dim,
        .ld = ld,
        .max_position = call->model->chain.max_position,
        .inverse = inverse,
        .interleaved = call->config->rope_interleaved,
        .position = run->batch.position,
        .cos_table = table.cosines,
        .sin_table = table.sines,
        .x = x,
    };
    call->ops->rope(run->lane, &op);
}

/* Rotates q and k, whose heads are adjacent if both are in one array. */
static void rope(const struct ot_layer_call *call, const struct qkv *at, bool inverse) {
    const struct ot_model_config *c = call->config;
    bool adjacent = at->ldq == at->ldk && at->k == ot_run_at(call->run, at->q, call->model->q_elems);
    if (!ot_model_layer_rotates(c, call->layer))
        return;
    if (adjacent && c->q_scale_beta == 0) {
        rotate(call, OT_ROPE_OF_K, at->q, at->ldq, c->n_heads + c->n_kv_heads, inverse);
        return;
    }
    rotate(call, OT_ROPE_OF_Q, at->q, at->ldq, c->n_heads, inverse);
    rotate(call, OT_ROPE_OF_K, at->k, at->ldk, c->n_kv_heads, inverse);
}

/* ---- attention ---- */

static struct ot_attention attention_op(const struct ot_layer_call *call, const struct qkv *at,
                                        int64_t n_keys) {
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
        .scale = ot_model_attention_scale(c),
        .softcap = c->attention_softcap,
        .row_start = call->run->batch.row_start,
        .slopes = ot_model_slopes(call->model, call->run->constants),
        .sinks = ot_run_weight(call->run, call->at->sinks),
        .q = at->q,
        .k = at->k,
        .v = at->v,
        .out = call->memory.attn,
        .lse = call->memory.lse,
    };
}

void ot_layer_finish_qkv(const struct ot_layer_call *call) {
    const struct ot_layer_memory *memory = &call->memory;
    const struct qkv raw = packed_qkv(call, memory->qkv, NULL),
                     at = packed_qkv(call, memory->qkv, memory->qk);
    if (call->config->qk_norm != OT_QK_NORM_NONE) {
        head_norm(call, true, raw.q, raw.ldq, at.q, at.ldq);
        head_norm(call, false, raw.k, raw.ldk, at.k, at.ldk);
    }
    rope(call, &at, false);
}

void ot_layer_attend(const struct ot_layer_call *call) {
    const struct qkv at = packed_qkv(call, call->memory.qkv, call->memory.qk);
    const struct ot_attention op = attention_op(call, &at, call->n);
    call->ops->attention(call->run->lane, &op);
}

/* Writes outputs [first, first + out) of the fused qkv projection to y: q, k or v. */
static void project_part(const struct ot_layer_call *call, const void *input, int64_t first, int64_t out,
                         void *y) {
    const struct ot_layer_layout *at = call->at;
    int64_t in = call->config->hidden;
    const struct ot_lora_unit lora = ot_lora_unit_part(&at->qkv_lora, first, out, in);
    const struct ot_linear proj =
        ot_layer_linear(call, in, out, ot_place_behind(at->qkv, first * in),
                        ot_place_behind(at->qkv_bias, first), &lora, &call->memory.qkv_lora, false);
    ot_linear_forward(call->run, &proj, input, call->run->dtype, y);
}

void ot_layer_attend_cached(const struct ot_layer_call *call, const void *input) {
    const struct ot_model *model = call->model;
    const struct ot_block_run *run = call->run;
    int64_t q_elems = model->q_elems, kv_elems = model->kv_elems, n_past = run->kv.n_past;
    const struct qkv new = {call->memory.qkv,
                            ot_run_at(run, run->kv.k, n_past * kv_elems),
                            ot_run_at(run, run->kv.v, n_past * kv_elems),
                            q_elems,
                            kv_elems,
                            kv_elems};
    const struct qkv all = {new.q, run->kv.k, run->kv.v, q_elems, kv_elems, kv_elems};
    project_part(call, input, 0, q_elems, new.q);
    project_part(call, input, q_elems, kv_elems, new.k);
    project_part(call, input, q_elems + kv_elems, kv_elems, new.v);
    if (call->config->qk_norm != OT_QK_NORM_NONE) {
        head_norm(call, true, new.q, q_elems, new.q, q_elems);
        head_norm(call, false, new.k, kv_elems, new.k, kv_elems);
    }
    rope(call, &new, false);
    const struct ot_attention op = attention_op(call, &all, n_past + call->n);
    call->ops->attention(run->lane, &op);
}

void ot_layer_attend_backward(const struct ot_layer_call *call) {
    const struct ot_layer_memory *memory = &call->memory;
    bool norms = call->config->qk_norm != OT_QK_NORM_NONE;
    const struct qkv at = packed_qkv(call, memory->qkv, memory->qk);
    const struct qkv grad = packed_qkv(call, memory->wide, norms ? memory->normed : NULL);
    const struct ot_attention_backward op = {
        .forward = attention_op(call, &at, call->n),
        .dout = memory->narrow,
        .dq = grad.q,
        .dk = grad.k,
        .dv = grad.v,
        .dsinks = ot_run_grad(call->run, call->at->sinks),
        .scratch = memory->attention,
    };
    call->ops->attention_backward(call->run->lane, &op);
    rope(call, &grad, true);
    if (!norms)
        return;
    const struct qkv raw = packed_qkv(call, memory->qkv, NULL),
                     raw_grad = packed_qkv(call, memory->wide, NULL);
    head_norm_backward(call, true, raw.q, grad.q, grad.ldq, raw_grad.q);
    head_norm_backward(call, false, raw.k, grad.k, grad.ldk, raw_grad.k);
}
