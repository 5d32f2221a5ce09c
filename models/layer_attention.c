/* The attention branch: from x to mid, and back. */
#include "models/layer.h"

#include "src/base/minmax.h"

/* ---- the projection ---- */

/* The projection to q, k and v. */
static struct ot_linear qkv_proj(const struct ot_layer_call *call, bool want_grad) {
    const struct ot_layer_layout *at = call->at;
    return ot_layer_linear(call, call->config->hidden, call->model->qkv_elems, at->qkv, at->qkv_bias,
                           &at->qkv_lora, &call->memory.qkv_lora, want_grad);
}

/* The call's rows of the micro-batch's q, k and v [tokens, heads + 2 kv_heads, head_dim]. */
static void *qkv_rows(const struct ot_layer_call *call, void *qkv) {
    return ot_run_at(call->run, qkv, call->first * call->model->qkv_elems);
}

/* q of the call's tokens, and k and v from the first token of the micro-batch on, in one [tokens, qkv] array.
 * qk not NULL: q and k are in this [tokens, q + k] array instead. */
static struct ot_qkv packed_qkv(const struct ot_layer_call *call, void *qkv, void *qk) {
    const struct ot_model *model = call->model;
    const struct ot_block_run *run = call->run;
    int64_t ld = model->qkv_elems, ld_qk = qk ? model->q_elems + model->kv_elems : ld;
    void *q = qk ? qk : qkv;
    return (struct ot_qkv){
        .q = ot_run_at(run, q, call->first * ld_qk),
        .k = ot_run_at(run, q, model->q_elems),
        .v = ot_run_at(run, qkv, model->q_elems + model->kv_elems),
        .ldq = ld_qk,
        .ldk = ld_qk,
        .ldv = ld,
    };
}

/* The same, with k and v of the call's tokens too. */
static struct ot_qkv own_qkv(const struct ot_layer_call *call, void *qkv, void *qk) {
    struct ot_qkv at = packed_qkv(call, qkv, qk);
    at.k = ot_run_at(call->run, at.k, call->first * at.ldk);
    at.v = ot_run_at(call->run, at.v, call->first * at.ldv);
    return at;
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
        .x = x,                                           /* [n, groups, cols] */
        .weight = ot_run_weight(call->run, heads.weight), /* [cols] */
        .y = y,                                           /* [n, groups, cols] */
        .rstd = heads.rstd,                               /* [n, groups] */
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
        .dy = dy, /* [n, groups, cols], as x and dx */
        .weight = ot_run_weight(call->run, heads.weight),
        .rstd = heads.rstd, /* [n, groups] */
        .dx = dx,
        .dweight = ot_run_grad(call->run, heads.weight), /* [cols] */
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
        .position = run->batch.position + call->first,
        .cos_table = table.cosines, /* [max_position, rotary_dim / 2] */
        .sin_table = table.sines,
        .x = x, /* [n, heads, head_dim] */
    };
    call->ops->rope(run->lane, &op);
}

/* Rotates q and k, whose heads are adjacent if both are in one array. */
static void rope(const struct ot_layer_call *call, const struct ot_qkv *at, bool inverse) {
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

/* The heads of a call of attention: all, or those of a group of keys (offload/block.h). */
struct heads {
    int64_t first, n;       /* of q and of attention's output */
    int64_t first_kv, n_kv; /* of k and v */
};

static struct heads heads_of(const struct ot_layer_call *call) {
    const struct ot_run_row *row = &call->run->row;
    int64_t groups = ot_max(row->n_groups, 1);
    int64_t n = call->config->n_heads / groups, n_kv = call->config->n_kv_heads / groups;
    return (struct heads){row->group * n, n, row->group * n_kv, n_kv};
}

/* The elements before the group's heads in a token's q, and in its k and v. */
static int64_t q_before(const struct ot_layer_call *call) {
    return heads_of(call).first * call->config->head_dim;
}
static int64_t kv_before(const struct ot_layer_call *call) {
    return heads_of(call).first_kv * call->config->head_dim;
}

/* q, k and v of the call's heads, or their gradients, in arrays of all heads. */
static struct ot_qkv of_heads(const struct ot_layer_call *call, struct ot_qkv at) {
    at.q = ot_run_at(call->run, at.q, q_before(call));
    at.k = ot_run_at(call->run, at.k, kv_before(call));
    at.v = ot_run_at(call->run, at.v, kv_before(call));
    return at;
}

/* The same with k and v of the sequence up to the call's section, if it is one. */
static struct ot_qkv with_keys(const struct ot_layer_call *call, struct ot_qkv at) {
    const struct ot_run_row *row = &call->run->row;
    int64_t kv = heads_of(call).n_kv * call->config->head_dim;
    at = of_heads(call, at);
    return row->k ? (struct ot_qkv){at.q, row->k, row->v, at.ldq, kv, kv} : at;
}

static int64_t keys_of(const struct ot_layer_call *call) {
    return call->run->row.first + call->first + call->n;
}

static void copy_keys(const struct ot_layer_call *call, void *to, const void *from, int64_t ld, int64_t kv) {
    size_t item = ot_dtype_bytes(call->run->dtype), row_bytes = (size_t)kv * item;
    ot_lane_copy_rows(call->run->lane, &(struct ot_copy_rows){.dst = to,
                                                              .src = from,
                                                              .dst_stride = row_bytes,
                                                              .src_stride = (size_t)ld * item,
                                                              .row_bytes = row_bytes,
                                                              .rows = (size_t)call->n});
}

void ot_layer_hand_on_keys(const struct ot_layer_call *all) {
    const struct ot_run_row *row = &all->run->row;
    const struct ot_qkv at = of_heads(all, packed_qkv(all, all->memory.qkv, all->memory.qk));
    int64_t kv = heads_of(all).n_kv * all->config->head_dim, first = row->first * kv;
    if (!row->k)
        return;
    copy_keys(all, ot_run_at(all->run, row->k, first), at.k, at.ldk, kv);
    copy_keys(all, ot_run_at(all->run, row->v, first), at.v, at.ldv, kv);
}

static struct ot_attention attention_op(const struct ot_layer_call *call, const struct ot_qkv *at,
                                        int64_t n_keys) {
    const struct ot_model_config *c = call->config;
    const struct heads heads = heads_of(call);
    const float *slopes = ot_model_slopes(call->model, call->run->constants);
    const void *sinks = ot_run_weight(call->run, call->at->sinks);
    float *softmax = call->memory.softmax;
    return (struct ot_attention){
        .dtype = call->run->dtype,
        .n = call->n,
        .n_keys = n_keys,
        .heads = heads.n,
        .kv_heads = heads.n_kv,
        .head_dim = c->head_dim,
        .window = ot_model_layer_window(c, call->layer),
        .ldq = at->ldq,
        .ldk = at->ldk,
        .ldv = at->ldv,
        .ldo = call->model->q_elems,
        .scale = ot_model_attention_scale(c),
        .softcap = c->attention_softcap,
        .row_start = call->run->batch.row_start + call->first,
        .slopes = slopes ? slopes + heads.first : NULL,
        .sinks = sinks ? ot_run_at(call->run, sinks, heads.first) : NULL,
        .drop = ot_drop_weights(call->model, call->run, call->layer, OT_DROP_ATTENTION),
        .q = at->q,                                                     /* [n, heads, head_dim] */
        .k = at->k,                                                     /* [n_keys, kv_heads, head_dim] */
        .v = at->v,                                                     /* [n_keys, kv_heads, head_dim] */
        .out = ot_run_at(call->run, call->memory.attn, q_before(call)), /* [n, heads, head_dim] */
        .lse = softmax ? softmax + heads.first * call->n : NULL,        /* [heads, n] */
    };
}

void ot_decoder_attend(const struct ot_layer_call *call, const struct ot_qkv *at, int64_t n_keys) {
    const struct ot_attention op = attention_op(call, at, n_keys);
    call->ops->attention(call->run->lane, &op);
}

void ot_decoder_attend_backward(const struct ot_layer_call *call, const struct ot_qkv *at, int64_t n_keys,
                                const struct ot_qkv *grad) {
    float *dsinks = ot_run_grad(call->run, call->at->sinks);
    const struct ot_attention_backward op = {
        .forward = attention_op(call, at, n_keys),
        .dout = ot_run_at(call->run, call->memory.narrow, q_before(call)), /* [n, heads, head_dim] */
        .dq = grad->q,                                                     /* [n, heads, head_dim] */
        .dk = grad->k, /* [n, kv_heads, head_dim], as dv */
        .dv = grad->v,
        .lddk = grad->ldk,
        .lddv = grad->ldv,
        .dk_sums = call->run->row.dk,
        .dv_sums = call->run->row.dv,
        .dsinks = dsinks ? dsinks + heads_of(call).first : NULL,
        .scratch = call->memory.attention,
    };
    call->ops->attention_backward(call->run->lane, &op);
}

/* ---- from the projection to attention's output, and back ---- */

/* q, k and v that attention reads, from memory.qkv: norms of q and k, and rope. */
static void finish_qkv(const struct ot_layer_call *call) {
    const struct ot_layer_memory *memory = &call->memory;
    const struct ot_qkv raw = own_qkv(call, memory->qkv, NULL), at = own_qkv(call, memory->qkv, memory->qk);
    if (call->config->qk_norm != OT_QK_NORM_NONE) {
        head_norm(call, true, raw.q, raw.ldq, at.q, at.ldq);
        head_norm(call, false, raw.k, raw.ldk, at.k, at.ldk);
    }
    rope(call, &at, false);
}

void ot_layer_attend(const struct ot_layer_call *all, enum ot_keep_level have) {
    const struct ot_qkv at = with_keys(all, packed_qkv(all, all->memory.qkv, all->memory.qk));
    if (have < OT_KEEP_ATTENTION && !all->cached)
        all->model->layer_kind->attend(all, &at, keys_of(all));
}

/* q, k and v of new tokens, from `input` [n, hidden]. */
static void project_new(const struct ot_layer_call *call, const void *input, const struct ot_qkv *new) {
    const struct ot_linear qkv = qkv_proj(call, false);
    int64_t q = call->model->q_elems, kv = call->model->kv_elems;
    ot_layer_project_part(call, qkv, input, 0, q, new->q);
    ot_layer_project_part(call, qkv, input, q, kv, new->k);
    ot_layer_project_part(call, qkv, input, q + kv, kv, new->v);
    if (call->config->qk_norm != OT_QK_NORM_NONE) {
        head_norm(call, true, new->q, q, new->q, q);
        head_norm(call, false, new->k, kv, new->k, kv);
    }
    rope(call, new, false);
}

/* memory.attn from `input`, whose tokens continue texts of their own: each text has its own call of
 * attention, with the shape that it has alone. */
static void attend_texts(const struct ot_layer_call *call, const void *input) {
    const struct ot_block_run *run = call->run;
    int64_t q = call->model->q_elems, kv = call->model->kv_elems;
    size_t row_bytes = (size_t)kv * ot_dtype_bytes(run->dtype);
    void *k = ot_run_at(run, call->memory.qkv, call->n * q), *v = ot_run_at(run, k, call->n * kv);
    const struct ot_qkv new = {call->memory.qkv, k, v, q, kv, kv};
    project_new(call, input, &new);
    for (int64_t i = 0; i < call->n; i++) {
        const struct ot_kv_text *text = &run->kv.texts[call->first + i];
        const struct ot_qkv all = {ot_run_at(run, new.q, i * q),
                                   ot_run_at(run, run->kv.k, text->first * kv),
                                   ot_run_at(run, run->kv.v, text->first * kv),
                                   q,
                                   kv,
                                   kv};
        struct ot_block_run one = *run;
        struct ot_layer_call part = *call;
        one.batch.row_start += i;
        part.run = &one;
        part.n = 1;
        part.memory.attn = ot_run_at(run, call->memory.attn, i * q);
        ot_lane_copy(run->lane, OT_COPY_D2D, ot_run_at(run, all.k, text->n_past * kv),
                     ot_run_at(run, k, i * kv), row_bytes);
        ot_lane_copy(run->lane, OT_COPY_D2D, ot_run_at(run, all.v, text->n_past * kv),
                     ot_run_at(run, v, i * kv), row_bytes);
        call->model->layer_kind->attend(&part, &all, text->n_past + 1);
    }
}

/* memory.attn from `input` [n, hidden], with a key-value cache: writes the new k and v into the cache behind
 * those of earlier tokens. */
static void attend_cached(const struct ot_layer_call *call, const void *input) {
    const struct ot_block_run *run = call->run;
    int64_t q = call->model->q_elems, kv = call->model->kv_elems, n_past = run->kv.n_past + call->first;
    const struct ot_qkv new = {call->memory.qkv,
                               ot_run_at(run, run->kv.k, n_past * kv),
                               ot_run_at(run, run->kv.v, n_past * kv),
                               q,
                               kv,
                               kv};
    const struct ot_qkv all = {new.q, run->kv.k, run->kv.v, q, kv, kv};
    project_new(call, input, &new);
    call->model->layer_kind->attend(call, &all, n_past + call->n);
}

/* The gradients of q, k and v that attention reads, of all heads. */
static struct ot_qkv qkv_grads(const struct ot_layer_call *call) {
    bool norms = call->config->qk_norm != OT_QK_NORM_NONE;
    return packed_qkv(call, call->memory.wide, norms ? call->memory.normed : NULL);
}

void ot_layer_heads_backward(const struct ot_layer_call *call) {
    const struct ot_layer_memory *memory = &call->memory;
    const struct ot_qkv at = with_keys(call, packed_qkv(call, memory->qkv, memory->qk));
    const struct ot_qkv grad = of_heads(call, qkv_grads(call));
    call->model->layer_kind->attend_backward(call, &at, keys_of(call), &grad);
}

void ot_layer_qk_backward(const struct ot_layer_call *call) {
    const struct ot_layer_memory *memory = &call->memory;
    bool norms = call->config->qk_norm != OT_QK_NORM_NONE;
    const struct ot_qkv grad = qkv_grads(call);
    rope(call, &grad, true);
    if (norms) {
        const struct ot_qkv raw = packed_qkv(call, memory->qkv, NULL),
                            raw_grad = packed_qkv(call, memory->wide, NULL);
        head_norm_backward(call, true, raw.q, grad.q, grad.ldq, raw_grad.q);
        head_norm_backward(call, false, raw.k, grad.k, grad.ldk, raw_grad.k);
    }
}

void ot_layer_attend_backward(const struct ot_layer_call *call) {
    ot_layer_heads_backward(call);
    ot_layer_qk_backward(call);
}

/* ---- the branch: forward ---- */

/* Without a norm behind it, its forward adds the residual: mid = x + o(attn). */
static struct ot_linear o_proj(const struct ot_layer_call *call, bool want_grad) {
    const struct ot_layer_layout *at = call->at;
    struct ot_linear o = ot_layer_linear(call, call->model->q_elems, call->config->hidden, at->o, at->o_bias,
                                         &at->o_lora, &call->memory.o_lora, want_grad);
    o.residual = ot_layer_has_after(call) || ot_layer_drops(call, OT_DROP_O) ? NULL : call->x;
    o.scale = (float)call->config->residual_scale;
    return o;
}

/* Makes the input of q, k and v. */
static void norm1(const struct ot_layer_call *call) {
    const struct ot_layer_memory *memory = &call->memory;
    if (ot_layer_has_before(call))
        ot_layer_norm(call, &call->at->norm1, call->x, memory->normed1, memory->stats1);
}

/* The output of the product o. */
static void *o_result(const struct ot_layer_call *call) {
    return ot_layer_has_after(call) ? call->memory.o_out : call->memory.mid;
}

/* mid from the result of o, if a norm or dropout is behind it. is_new: this call has computed that result. */
static void finish_mid(const struct ot_layer_call *call, bool is_new) {
    const struct ot_layer_memory *memory = &call->memory;
    if (!ot_layer_has_after(call)) {
        if (is_new)
            ot_layer_drop_add(call, OT_DROP_O, call->x, memory->mid);
        return;
    }
    ot_layer_norm(call, &call->at->post1, memory->o_out, memory->mid, memory->post1);
    ot_layer_add(call, memory->mid, call->x, memory->mid);
}

/* q, k and v, and attention's input norm, as far as this level does not keep them. */
bool ot_layer_compute_qkv(const struct ot_layer_call *call, enum ot_keep_level have) {
    const struct ot_linear qkv = qkv_proj(call, false);
    void *rows = qkv_rows(call, call->memory.qkv);
    if (have >= ot_layer_qkv_level(call->model, call->layer)) {
        if (call->config->residual == OT_PARALLEL && call->alone)
            norm1(call);
        if (ot_layer_makes_from_u(call->model, qkv.lora)) {
            ot_layer_from_u(call, &qkv, rows);
            finish_qkv(call);
        }
        return true;
    }
    norm1(call);
    if (call->until == OT_INPUT_QKV)
        return false;
    if (call->cached) {
        (call->run->kv.texts ? attend_texts : attend_cached)(call, ot_layer_qkv_input(call));
        return true;
    }
    ot_linear_forward(call->run, &qkv, ot_layer_qkv_input(call), call->run->dtype, rows);
    finish_qkv(call);
    return true;
}

void ot_layer_finish_attention(const struct ot_layer_call *call, enum ot_keep_level have, bool wants_mid) {
    const struct ot_block_run *run = call->run;
    const struct ot_linear o = o_proj(call, false);
    bool needs_mid = wants_mid || !ot_layer_is_parallel(call);
    if (have >= OT_KEEP_PRODUCTS && needs_mid)
        ot_layer_from_u(call, &o, o_result(call));
    else if (have < OT_KEEP_PRODUCTS && needs_mid)
        ot_linear_forward(run, &o, call->memory.attn, run->dtype, o_result(call));
    else if (have < OT_KEEP_PRODUCTS)
        ot_linear_forward_inside(run, &o, call->memory.attn, run->dtype);
    if (needs_mid)
        finish_mid(call, have < OT_KEEP_PRODUCTS || ot_layer_makes_from_u(call->model, o.lora));
}

bool ot_layer_attention_branch(const struct ot_layer_call *call, enum ot_keep_level have, bool wants_mid) {
    if (!ot_layer_compute_qkv(call, have))
        return false;
    ot_layer_attend(call, have);
    if (call->until == OT_INPUT_O)
        return false;
    ot_layer_finish_attention(call, have, wants_mid);
    return true;
}

/* ---- the branch: backward ---- */

/* dxy: of mid, or with parallel branches of y. */
void ot_layer_o_backward(const struct ot_layer_call *call) {
    const struct ot_layer_memory *memory = &call->memory;
    const struct ot_linear o = o_proj(call, true);
    const void *dy = call->dxy;
    if (ot_layer_has_after(call)) {
        ot_layer_norm_backward(call, &call->at->post1, memory->o_out, memory->post1, dy, NULL,
                               memory->normed);
        dy = memory->normed;
    }
    dy = ot_layer_drop_backward(call, OT_DROP_O, dy, memory->wide);
    ot_layer_linear_backward(call, &o, memory->attn, dy, memory->narrow); /* [n, heads, head_dim] */
}

void ot_layer_qkv_backward(const struct ot_layer_call *call) {
    const struct ot_layer_memory *memory = &call->memory;
    const struct ot_linear qkv = qkv_proj(call, true);
    const void *dqkv = qkv_rows(call, memory->wide); /* [n, heads + 2 kv_heads, head_dim] */
    if (call->kept < OT_KEEP_ALL && !(call->alone && ot_layer_keeps_normed(call->config)))
        norm1(call);
    ot_layer_linear_backward(call, &qkv, ot_layer_qkv_input(call), dqkv, memory->narrow);
    if (call->config->residual == OT_PARALLEL)
        ot_layer_add(call, memory->narrow, memory->beside, memory->narrow);
    else if (ot_layer_is_parallel(call))
        ot_layer_norm_backward(call, &call->at->norm2, call->x, memory->stats2, memory->beside, call->dxy,
                               call->dxy);
    if (ot_layer_has_before(call))
        ot_layer_norm_backward(call, &call->at->norm1, call->x, memory->stats1, memory->narrow, call->dxy,
                               call->dxy);
    else
        ot_layer_add(call, call->dxy, memory->narrow, call->dxy);
}

void ot_layer_attention_backward(const struct ot_layer_call *call) {
    ot_layer_o_backward(call);
    ot_layer_attend_backward(call);
    ot_layer_qkv_backward(call);
}
