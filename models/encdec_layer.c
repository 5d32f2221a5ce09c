/* Forward and backward of the layers of an encoder-decoder. encdec.h has the formulas. */
#include "models/encdec.h"
#include "src/base/minmax.h"

/* ---- the tokens of a call ---- */

/* Tokens of this call that are inputs. They come first. In generation all inputs are in the first call. */
static int64_t inputs_in(const struct ot_block_run *run) {
    int64_t n = run->batch.n_inputs - run->kv.n_past;
    return n < 0 ? 0 : ot_min(n, run->batch.n_tokens);
}

/* The encoder's layers work on inputs, the decoder's on targets. The encoder needs no cache: it sees all
 * inputs at once. */
static struct ot_layer_call make_call(const struct ot_model *model, int block,
                                      const struct ot_block_run *run) {
    bool decodes = ot_layer_has_cross(&model->layers[block - 1]);
    int64_t n = inputs_in(run), first = decodes ? n : 0;
    struct ot_layer_call call =
        ot_layer_call_make(model, block, run, first, decodes ? run->batch.n_tokens - n : n);
    call.cached = call.cached && decodes;
    return call;
}

/* y = x of the tokens that the layer does not work on. */
static void pass_others(const struct ot_layer_call *call) {
    const struct ot_block_run *run = call->run;
    int64_t h = call->config->hidden, first = call->first > 0 ? 0 : call->n;
    size_t bytes = (size_t)((run->batch.n_tokens - call->n) * h) * ot_dtype_bytes(run->dtype);
    if (bytes > 0)
        ot_lane_copy(run->lane, OT_COPY_D2D, ot_run_at(run, run->y, first * h),
                     ot_run_at(run, run->x, first * h), bytes);
}

/* ---- cross attention ---- */

/* The call of a decoder's layer, with the inputs as its tokens. */
static struct ot_layer_call inputs_call(const struct ot_layer_call *call) {
    struct ot_layer_call inputs = *call;
    inputs.first = 0;
    inputs.n = inputs_in(call->run);
    inputs.x = call->run->x;
    inputs.dxy = call->run->dxy;
    return inputs;
}

static const struct ot_norm_layout *encoder_norm(const struct ot_layer_call *call) {
    return &call->model->stacks.encoder_norm;
}

static struct ot_linear cross_map(const struct ot_layer_call *call, int64_t in, int64_t out,
                                  struct ot_place weight, const struct ot_lora_unit *lora,
                                  const struct ot_unit_memory *memory, bool want_grad) {
    const struct ot_place no_bias = {OT_ABSENT, 0};
    return ot_layer_linear(call, in, out, weight, no_bias, lora, memory, want_grad);
}

static struct ot_linear cross_q(const struct ot_layer_call *call, bool want_grad) {
    return cross_map(call, call->config->hidden, call->model->q_elems, call->at->cross_q,
                     &call->at->cross_q_lora, &call->memory.cross_q_lora, want_grad);
}

static struct ot_linear cross_kv(const struct ot_layer_call *inputs, bool want_grad) {
    return cross_map(inputs, inputs->config->hidden, 2 * inputs->model->q_elems, inputs->at->cross_kv,
                     &inputs->at->cross_kv_lora, &inputs->memory.cross_kv_lora, want_grad);
}

static struct ot_linear cross_o(const struct ot_layer_call *call, bool want_grad) {
    struct ot_linear o = cross_map(call, call->model->q_elems, call->config->hidden, call->at->cross_o,
                                   &call->at->cross_o_lora, &call->memory.cross_o_lora, want_grad);
    o.residual = ot_layer_drops(call, OT_DROP_CROSS_O) ? NULL : call->memory.mid;
    return o;
}

/* memory.normed = the encoder's output: its norm, and dropout. */
static void encoder_out(const struct ot_layer_call *inputs) {
    const struct ot_layer_memory *m = &inputs->memory;
    const struct ot_drop_rows rows = {OT_DROP_ENCODER_OUT, 0, 0, inputs->n, inputs->config->hidden};
    ot_layer_norm(inputs, encoder_norm(inputs), inputs->x, m->normed, m->stats1);
    ot_drop(inputs->model, inputs->run, &rows, m->normed, NULL, m->normed);
}

/* dxy of the inputs += the gradient of memory.narrow, that of the encoder's output. */
static void encoder_out_backward(const struct ot_layer_call *inputs) {
    const struct ot_layer_memory *m = &inputs->memory;
    const struct ot_drop_rows rows = {OT_DROP_ENCODER_OUT, 0, 0, inputs->n, inputs->config->hidden};
    ot_drop(inputs->model, inputs->run, &rows, m->narrow, NULL, m->narrow);
    ot_layer_norm_backward(inputs, encoder_norm(inputs), inputs->x, m->stats1, m->narrow, inputs->dxy,
                           inputs->dxy);
}

/* k and v of the inputs, from the encoder's output: memory.cross_kv, or in the cache. */
static void cross_keys(const struct ot_layer_call *call) {
    const struct ot_layer_call inputs = inputs_call(call);
    const struct ot_block_run *run = call->run;
    const struct ot_linear kv = cross_kv(&inputs, false);
    int64_t q = call->model->q_elems, at = run->kv.n_past * q;
    void *normed = call->memory.normed; /* [inputs, hidden] */
    if (inputs.n == 0)
        return;
    encoder_out(&inputs);
    if (!call->cached) {
        ot_linear_forward(run, &kv, normed, run->dtype,
                          call->memory.cross_kv); /* [inputs, 2, heads, head_dim] */
        return;
    }
    ot_layer_project_part(&inputs, kv, normed, 0, q, ot_run_at(run, run->kv.k, at));
    ot_layer_project_part(&inputs, kv, normed, q, q, ot_run_at(run, run->kv.v, at));
}

/* across = mid + cross(n2(mid), e(inputs)), as far as `have` does not keep it. */
static void cross_branch(const struct ot_layer_call *call, enum ot_keep_level have) {
    const struct ot_block_run *run = call->run;
    const struct ot_layer_memory *m = &call->memory;
    const struct ot_linear q = cross_q(call, false), o = cross_o(call, false);
    if (have < OT_KEEP_PRODUCTS) {
        ot_layer_norm(call, &call->at->cross_norm, m->mid, m->normed, m->stats1); /* [n, hidden] */
        ot_linear_forward(run, &q, m->normed, run->dtype, m->cross_q);            /* [n, heads, head_dim] */
    }
    if (have < OT_KEEP_ATTENTION)
        ot_encdec_attend_inputs(call);
    if (have < OT_KEEP_PRODUCTS)
        ot_linear_forward(run, &o, m->cross_attn, run->dtype, m->across); /* [n, hidden] */
    if (have < OT_KEEP_PRODUCTS)
        ot_layer_drop_add(call, OT_DROP_CROSS_O, m->mid, m->across);
}

/* Turns dxy from the gradient of across into that of mid, and adds this layer's part to the gradient of the
 * inputs. */
static void cross_backward(const struct ot_layer_call *call) {
    const struct ot_layer_call inputs = inputs_call(call);
    const struct ot_layer_memory *m = &call->memory;
    const struct ot_linear q = cross_q(call, true), kv = cross_kv(&inputs, true), o = cross_o(call, true);
    const void *dy = ot_layer_drop_backward(call, OT_DROP_CROSS_O, call->dxy, m->wide);
    ot_layer_linear_backward(call, &o, m->cross_attn, dy, m->narrow); /* [n, heads, head_dim] */
    const void *dkv = ot_encdec_attend_inputs_backward(call);         /* [inputs, 2 heads, head_dim] */
    ot_layer_norm(call, &call->at->cross_norm, m->mid, m->normed, m->stats1);
    ot_layer_linear_backward(call, &q, m->normed, m->wide, m->narrow); /* [n, hidden] */
    ot_layer_norm_backward(call, &call->at->cross_norm, m->mid, m->stats1, m->narrow, call->dxy, call->dxy);
    encoder_out(&inputs);
    ot_layer_linear_backward(&inputs, &kv, m->normed, dkv, m->narrow); /* [inputs, hidden] */
    encoder_out_backward(&inputs);
}

/* ---- the layer ---- */

/* The call for the MLP branch, which adds to what stands before it. */
static struct ot_layer_call mlp_call(const struct ot_layer_call *call) {
    struct ot_layer_call mlp = *call;
    if (ot_layer_has_cross(call->at))
        mlp.memory.mid = call->memory.across;
    return mlp;
}

/* Computes up to the input of the last projection, as far as `have` does not keep it. */
static void compute_inside(const struct ot_layer_call *call, const struct ot_layer_call *mlp,
                           enum ot_keep_level have) {
    ot_layer_attention_branch(call, have, true);
    if (ot_layer_has_cross(call->at))
        cross_branch(call, have);
    ot_layer_mlp_branch(mlp, have);
}

/* In generation the first calls may have only inputs, and later calls have only targets. */
static void forward(const struct ot_model *model, int block, const struct ot_block_run *run) {
    const struct ot_layer_call call = make_call(model, block, run), mlp = mlp_call(&call);
    pass_others(&call);
    if (ot_layer_has_cross(call.at))
        cross_keys(&call);
    if (call.n == 0)
        return;
    compute_inside(&call, &mlp, OT_KEEP_NONE);
    ot_layer_finish(&mlp);
}

/* dxy of tokens that the layer does not work on is the gradient of x already. */
static void backward(const struct ot_model *model, int block, const struct ot_block_run *run) {
    const struct ot_layer_call call = make_call(model, block, run), mlp = mlp_call(&call);
    bool has_cross = ot_layer_has_cross(call.at);
    if (has_cross && call.kept < OT_KEEP_PRODUCTS)
        cross_keys(&call);
    compute_inside(&call, &mlp, call.kept);
    ot_layer_recompute_down(&mlp, call.kept);
    ot_layer_mlp_backward(&mlp);
    if (has_cross)
        cross_backward(&call);
    ot_layer_attention_backward(&call);
}

/* ---- the kind ---- */

static size_t attention_bytes(const struct ot_model *model, int64_t n_tokens) {
    return ot_attend_spans_scratch_bytes(n_tokens, model->config.n_heads, model->config.position_buckets);
}

const struct ot_layer_kind OT_ENCDEC_LAYERS = {
    .block = {ot_layer_bytes, forward, backward, NULL, ot_encdec_work},
    .share = 0.5,
    .most_kept = OT_KEEP_PRODUCTS,
    .softmax_bytes = ot_attend_spans_softmax_bytes,
    .attention_bytes = attention_bytes,
    .attend = ot_encdec_attend,
    .attend_backward = ot_encdec_attend_backward,
    .flops_per_token = ot_encdec_flops_per_token,
};
