/* A transformer layer with the norms before attention and before the MLP (pre-norm):
 *
 *     mid = x + attention(norm1(x)),   y = mid + mlp(norm2(mid))
 *
 * The product that ends the right side of such a sum also adds the left side, in fp32, and rounds once. For a
 * token and element of `hidden` in bf16, mid and norm2 then move 8 bytes (with the sum in the norm: 10), and
 * y moves 4 (with a sum of its own: 8).
 *
 * Backward reads what forward made on the way. What it keeps of that is a level (offload/block.h). Each level
 * adds to the previous one; the bytes are those of a token and layer of Llama 7B in bf16:
 *
 *     attention  attention's output, and per head the softmax's log-sum-exp (lse) in fp32     8 KiB
 *     products   q, k, v; mid; gate and up; with q and k norms also their outputs and rstd   83 KiB
 *                (with adapters of rank r on all maps, ax: 14 r bytes more)
 *     all        the outputs of both norms with their rstd, the MLP's inner activation      121 KiB
 *
 * At `products`, one elementwise pass computes each of the rest again, in scratch, which all layers share.
 *
 * Which pieces are worth their bytes: a product that reads h elements saves 2 h FLOPs with each element of
 * its result. That holds alike for q, k, v, for mid and for gate and up. Attention saves 4 FLOPs with each
 * element of its output for each key that a query sees. A FLOP of attention takes about twice as long as
 * one of a product, so an element of attention's output saves more time than an element of q, k, v if a
 * query sees more than h / 4 keys. Then level `attention` keeps attention's output alone, and backward
 * computes q, k, v again. With fewer keys (short sequences, windows, wide models) it also keeps q, k, v,
 * which raises what each of its bytes saves, and backward computes only the output projection and the MLP
 * again.
 *
 * Scratch has three large areas, each used for several purposes in turn; see struct memory. */
#include <math.h>

#include "models/decoder.h"
#include "models/linear.h"

struct memory {
    /* Inner activations, in `saved` from their level on, else in `work`. Without q and k norms, attention
     * reads q, k and v from qkv. With them, attention reads q and k from qk and v from qkv; qkv then holds
     * the input of the norms. */
    void *attn, *qkv, *qk, *mid, *gate_up;
    float *lse, *rstd_q, *rstd_k;
    /* Inner activations, in `saved` at level `all`, else in scratch: normed1 and normed2 in normed, inner
     * (the MLP's) in wide, rstd1 and rstd2 in one array. */
    void *normed1, *normed2, *inner;
    float *rstd1, *rstd2;
    /* ax of the adapters (lora.h), in `saved` from the level on that keeps their products' results. */
    void *qkv_ax, *o_ax, *gate_up_ax, *down_ax;
    /* Scratch. wide: the gradient of inner, then the gradient of qkv. normed: the gradient of qk. narrow: the
     * gradient of a norm's output or of attention's output. */
    void *wide, *normed, *narrow;
    void *dax, *dropped; /* of one unit at a time */
    float *attention;
};

/* One call of forward or backward, with the addresses of its buffers. */
struct call {
    const struct ot_model *model;
    const struct ot_model_config *config;
    const struct ot_block_run *run;
    const struct ot_ops *ops;
    int64_t layer, n;
    struct memory memory;
};

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

enum ot_keep_level ot_layer_qkv_level(const struct ot_model *model, int64_t layer) {
    double window = (double)ot_model_layer_window(&model->config, layer);
    double keys = ot_model_mean_keys((double)model->chain.max_position, window);
    return keys > (double)model->config.hidden / 4 ? OT_KEEP_PRODUCTS : OT_KEEP_ATTENTION;
}

/* The two buffers of inner activations. */
struct inside {
    enum ot_keep_level kept;
    struct ot_pieces saved, work;
};

static void *take_inside(struct inside *inside, enum ot_keep_level level, size_t bytes) {
    return ot_pieces_take(level <= inside->kept ? &inside->saved : &inside->work, bytes);
}

/* Takes the pieces in the order of their levels, so that those of a level are a prefix of `saved`. */
static void inside_memory(const struct ot_model *model, int64_t layer, int64_t n_tokens,
                          struct inside *inside, struct memory *memory) {
    const struct ot_model_config *c = &model->config;
    const struct ot_layer_layout *at = &model->layers[layer];
    enum ot_keep_level qkv = ot_layer_qkv_level(model, layer);
    size_t n = (size_t)n_tokens, item = ot_dtype_bytes(model->chain.dtype);
    memory->attn = take_inside(inside, OT_KEEP_ATTENTION, n * (size_t)model->q_elems * item);
    memory->lse = take_inside(inside, OT_KEEP_ATTENTION, n * (size_t)c->n_heads * sizeof(float));
    memory->qkv = take_inside(inside, qkv, n * (size_t)model->qkv_elems * item);
    memory->qkv_ax = take_inside(inside, qkv, n * (size_t)at->qkv_lora.rank * item);
    if (c->qk_norm) {
        memory->qk = take_inside(inside, qkv, n * (size_t)(model->q_elems + model->kv_elems) * item);
        memory->rstd_q = take_inside(inside, qkv, n * (size_t)c->n_heads * sizeof(float));
        memory->rstd_k = take_inside(inside, qkv, n * (size_t)c->n_kv_heads * sizeof(float));
    }
    memory->mid = take_inside(inside, OT_KEEP_PRODUCTS, n * (size_t)c->hidden * item);
    memory->gate_up = take_inside(inside, OT_KEEP_PRODUCTS, n * 2 * (size_t)c->ffn * item);
    memory->o_ax = take_inside(inside, OT_KEEP_PRODUCTS, n * (size_t)at->o_lora.rank * item);
    memory->gate_up_ax = take_inside(inside, OT_KEEP_PRODUCTS, n * (size_t)at->gate_up_lora.rank * item);
    memory->down_ax = take_inside(inside, OT_KEEP_PRODUCTS, n * (size_t)at->down_lora.rank * item);
    if (inside->kept < OT_KEEP_ALL)
        return;
    memory->normed1 = take_inside(inside, OT_KEEP_ALL, n * (size_t)c->hidden * item);
    memory->normed2 = take_inside(inside, OT_KEEP_ALL, n * (size_t)c->hidden * item);
    memory->inner = take_inside(inside, OT_KEEP_ALL, n * (size_t)c->ffn * item);
    memory->rstd1 = take_inside(inside, OT_KEEP_ALL, n * sizeof(float));
    memory->rstd2 = take_inside(inside, OT_KEEP_ALL, n * sizeof(float));
}

/* kept: the level of the call. Scratch has the same size at every level. */
static size_t scratch_memory(const struct ot_model *model, int64_t layer, int64_t n_tokens, void *scratch,
                             enum ot_keep_level kept, struct memory *memory) {
    const struct ot_model_config *c = &model->config;
    const struct ot_layer_layout *at = &model->layers[layer];
    /* All units have one dropout, and need memory for one x. */
    int64_t widest = larger(larger(c->hidden, c->ffn), model->q_elems);
    int64_t rank =
        larger(larger(at->qkv_lora.rank, at->o_lora.rank), larger(at->gate_up_lora.rank, at->down_lora.rank));
    size_t n = (size_t)n_tokens, item = ot_dtype_bytes(model->chain.dtype);
    int64_t normed = larger(c->hidden, c->qk_norm ? model->q_elems + model->kv_elems : 0);
    struct ot_pieces pieces = {.base = scratch};
    memory->wide = ot_pieces_take(&pieces, n * (size_t)larger(c->ffn, model->qkv_elems) * item);
    memory->normed = ot_pieces_take(&pieces, n * (size_t)normed * item);
    memory->narrow = ot_pieces_take(&pieces, n * (size_t)larger(c->hidden, model->q_elems) * item);
    memory->dax = ot_pieces_take(&pieces, n * (size_t)rank * item);
    memory->dropped =
        ot_pieces_take(&pieces, at->qkv_lora.drop > 0 && rank > 0 ? n * (size_t)widest * item : 0);
    float *rstd = ot_pieces_take(&pieces, n * sizeof(float));
    memory->attention = ot_pieces_take(&pieces, ot_attention_backward_scratch_bytes(n_tokens, c->n_heads));
    if (kept < OT_KEEP_ALL) {
        memory->normed1 = memory->normed2 = memory->normed;
        memory->inner = memory->wide;
        memory->rstd1 = memory->rstd2 = rstd;
    }
    return pieces.bytes;
}

size_t ot_layer_saved_bytes(const struct ot_model *model, int64_t layer, enum ot_keep_level level,
                            int64_t n_tokens) {
    struct memory memory;
    struct inside inside = {.kept = level};
    inside_memory(model, layer, n_tokens, &inside, &memory);
    return inside.saved.bytes;
}

size_t ot_layer_work_bytes(const struct ot_model *model, int64_t layer, enum ot_keep_level level,
                           int64_t n_tokens) {
    struct memory memory;
    struct inside inside = {.kept = level};
    inside_memory(model, layer, n_tokens, &inside, &memory);
    return inside.work.bytes;
}

size_t ot_layer_scratch_bytes(const struct ot_model *model, int64_t layer, int64_t n_tokens) {
    struct memory memory;
    return scratch_memory(model, layer, n_tokens, NULL, OT_KEEP_NONE, &memory);
}

static struct call make_call(const struct ot_model *model, int64_t layer, const struct ot_block_run *run) {
    struct inside inside = {run->saved_level, {.base = run->saved}, {.base = run->work}};
    struct call call = {
        .model = model,
        .config = &model->config,
        .run = run,
        .ops = ot_run_ops(run),
        .layer = layer,
        .n = run->batch.n_tokens,
    };
    inside_memory(model, layer, call.n, &inside, &call.memory);
    scratch_memory(model, layer, call.n, run->scratch, run->saved_level, &call.memory);
    return call;
}

/* ---- the layer's linear maps and norms ---- */

static const struct ot_layer_layout *layout_of(const struct call *call) {
    return &call->model->layers[call->layer];
}

static struct ot_linear linear(const struct call *call, int64_t in, int64_t out, struct ot_place weight,
                               struct ot_place bias, bool want_grad) {
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
        .dax = call->memory.dax,
        .dropped = call->memory.dropped,
    };
}

static struct ot_linear qkv_proj(const struct call *call, bool want_grad) {
    const struct ot_layer_layout *at = layout_of(call);
    struct ot_linear qkv =
        linear(call, call->config->hidden, call->model->qkv_elems, at->qkv, at->qkv_bias, want_grad);
    qkv.lora = &at->qkv_lora;
    qkv.ax = call->memory.qkv_ax;
    return qkv;
}

/* Its forward adds the residual: mid = x + o(attn). */
static struct ot_linear o_proj(const struct call *call, bool want_grad) {
    const struct ot_layer_layout *at = layout_of(call);
    struct ot_linear o =
        linear(call, call->model->q_elems, call->config->hidden, at->o, at->o_bias, want_grad);
    o.residual = call->run->x;
    o.lora = &at->o_lora;
    o.ax = call->memory.o_ax;
    return o;
}

static struct ot_linear gate_up_proj(const struct call *call, bool want_grad) {
    const struct ot_layer_layout *at = layout_of(call);
    struct ot_linear gate_up =
        linear(call, call->config->hidden, 2 * call->config->ffn, at->gate_up, at->gate_up_bias, want_grad);
    gate_up.lora = &at->gate_up_lora;
    gate_up.ax = call->memory.gate_up_ax;
    return gate_up;
}

/* Its forward adds the residual: y = mid + down(inner). */
static struct ot_linear down_proj(const struct call *call, bool want_grad) {
    const struct ot_layer_layout *at = layout_of(call);
    struct ot_linear down =
        linear(call, call->config->ffn, call->config->hidden, at->down, at->down_bias, want_grad);
    down.residual = call->memory.mid;
    down.lora = &at->down_lora;
    down.ax = call->memory.down_ax;
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
    const struct memory *memory = &call->memory;
    norm(call, call->run->x, layout_of(call)->norm1, memory->normed1, memory->rstd1);
}

/* memory.normed2 = norm2(memory.mid). */
static void norm2(const struct call *call) {
    const struct memory *memory = &call->memory;
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

/* q, k and v from memory.normed1. */
static void project_qkv(const struct call *call) {
    const struct ot_model_config *c = call->config;
    const struct memory *memory = &call->memory;
    const struct ot_linear proj = qkv_proj(call, false);
    const struct qkv raw = packed_qkv(call, memory->qkv, NULL),
                     at = packed_qkv(call, memory->qkv, memory->qk);
    ot_linear_forward(call->run, &proj, memory->normed1, call->run->dtype, memory->qkv);
    if (c->qk_norm) {
        const struct ot_layer_layout *layout = layout_of(call);
        head_norm(call, raw.q, raw.ldq, at.q, at.ldq, c->n_heads, layout->q_norm, memory->rstd_q);
        head_norm(call, raw.k, raw.ldk, at.k, at.ldk, c->n_kv_heads, layout->k_norm, memory->rstd_k);
    }
    rope(call, at.q, at.ldq, c->n_heads + c->n_kv_heads, false); /* q's and k's heads are adjacent */
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
    struct ot_linear proj = linear(call, in, out, ot_place_behind(at->qkv, first * in),
                                   ot_place_behind(at->qkv_bias, first), false);
    proj.lora = &lora;
    proj.ax = call->memory.qkv_ax;
    ot_linear_forward(call->run, &proj, call->memory.normed1, call->run->dtype, y);
}

/* As project_qkv and attend, with a key-value cache: writes the new k and v into the cache behind those of
 * earlier tokens. */
static void attention_decode(const struct call *call) {
    const struct ot_model *model = call->model;
    const struct ot_model_config *c = call->config;
    const struct ot_block_run *run = call->run;
    const struct memory *memory = &call->memory;
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
    const struct memory *memory = &call->memory;
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
    const struct memory *memory = &call->memory;
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

/* The layer's inner activations, up to the input of the last projection. `have`: those that this level
 * keeps are there and are not computed again. On return normed2, inner and rstd2 are valid; normed1 and
 * rstd1 only if the level of the call keeps them. */
static void compute_inside(const struct call *call, enum ot_keep_level have) {
    const struct ot_block_run *run = call->run;
    const struct memory *memory = &call->memory;
    const struct ot_linear o = o_proj(call, false), gate_up = gate_up_proj(call, false);
    if (have >= OT_KEEP_PRODUCTS) {
        norm2(call);
        glu(call);
        return;
    }
    if (have < ot_layer_qkv_level(call->model, call->layer)) {
        norm1(call);
        if (run->pass == OT_PASS_DECODE)
            attention_decode(call);
        else
            project_qkv(call);
    }
    if (have < OT_KEEP_ATTENTION && run->pass != OT_PASS_DECODE)
        attend(call);
    ot_linear_forward(run, &o, memory->attn, run->dtype, memory->mid);
    norm2(call);
    ot_linear_forward(run, &gate_up, memory->normed2, run->dtype, memory->gate_up);
    glu(call);
}

void ot_layer_forward(const struct ot_model *model, int64_t layer, const struct ot_block_run *run) {
    const struct call call = make_call(model, layer, run);
    const struct ot_linear down = down_proj(&call, false);
    compute_inside(&call, OT_KEEP_NONE);
    ot_linear_forward(run, &down, call.memory.inner, run->dtype, run->y);
}

/* run->dxy is the gradient of y on entry and the gradient of mid on return. Overwrites gate and up with their
 * gradients. */
static void mlp_backward(const struct call *call) {
    const struct ot_block_run *run = call->run;
    const struct memory *memory = &call->memory;
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
    const struct memory *memory = &call.memory;
    const struct ot_linear o = o_proj(&call, true), qkv = qkv_proj(&call, true),
                           down = down_proj(&call, false);
    if (run->saved_level < OT_KEEP_ALL)
        compute_inside(&call, run->saved_level);
    if (run->saved_level < OT_KEEP_PRODUCTS)
        ot_linear_forward_ax(run, &down, memory->inner);
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
