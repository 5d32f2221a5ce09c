/* Attention of the layers of an encoder-decoder, and the buckets of its position biases. */
#include <math.h>

#include "models/encdec.h"
#include "src/base/minmax.h"

/* ---- buckets ---- */

/* The bucket of a distance, from query to key, as T5 defines it: half of the buckets of a direction have one
 * distance each, the others grow by a factor, up to position_distance. The encoder has buckets for both
 * directions. The sums are in fp32, because transformers has them so, and a distance at the border of two
 * buckets must not change sides. */
static int64_t bucket_of(const struct ot_model_config *c, bool both, int64_t distance) {
    int64_t buckets = both ? c->position_buckets / 2 : c->position_buckets, exact = buckets / 2;
    int64_t base = both && distance > 0 ? buckets : 0;
    int64_t far = both ? (distance < 0 ? -distance : distance) : (distance < 0 ? -distance : 0);
    if (far < exact)
        return base + far;
    float ratio = logf((float)far / (float)exact) / (float)log((double)c->position_distance / (double)exact) *
                  (float)(buckets - exact);
    int64_t bucket = exact + (int64_t)ratio;
    return base + ot_min(bucket, buckets - 1);
}

/* Beyond this distance all distances have one bucket. */
static int64_t reach_of(const struct ot_model_config *c) {
    return c->position_distance;
}

static int64_t table_elems(const struct ot_model_config *c) {
    return 2 * reach_of(c) + 1;
}

/* The constants are the encoder's table, then the decoder's. */
size_t ot_encdec_constant_bytes(const struct ot_model_config *c) {
    return ot_model_has_pairs(c) ? (size_t)(2 * table_elems(c)) * sizeof(int32_t) : 0;
}

void ot_encdec_fill_constants(const struct ot_model_config *c, void *host_memory) {
    int32_t *tables = host_memory;
    int64_t n = table_elems(c);
    for (int64_t i = 0; ot_model_has_pairs(c) && i < n; i++) {
        tables[i] = (int32_t)bucket_of(c, true, i - reach_of(c));
        tables[n + i] = (int32_t)bucket_of(c, false, i - reach_of(c));
    }
}

/* ---- attention ---- */

/* The queries are the call's tokens. Keys are counted from the first token of the micro-batch on. */
static struct ot_attend_spans spans_op(const struct ot_layer_call *call, const struct ot_qkv *at,
                                       int64_t n_keys, const int32_t *key_first, const int32_t *key_end,
                                       enum ot_drop_site site) {
    const struct ot_model_config *c = call->config;
    return (struct ot_attend_spans){
        .dtype = call->run->dtype,
        .n = call->n,
        .n_keys = n_keys,
        .heads = c->n_heads,
        .head_dim = c->head_dim,
        .ldq = at->ldq,
        .ldk = at->ldk,
        .ldv = at->ldv,
        .ldo = call->model->q_elems,
        .scale = ot_model_attention_scale(c),
        .drop = ot_drop_weights(call->model, call->run, call->layer, site),
        .key_first = key_first + call->first, /* [n] */
        .key_end = key_end + call->first,     /* [n] */
        .q = at->q,                           /* [n, heads, head_dim] */
        .k = at->k,                           /* [n_keys, heads, head_dim] */
        .v = at->v,                           /* [n_keys, heads, head_dim] */
    };
}

static struct ot_place bias_of(const struct ot_layer_call *call) {
    const struct ot_stacks_layout *stacks = &call->model->stacks;
    return ot_layer_has_cross(call->at) ? stacks->decoder_bias : stacks->encoder_bias;
}

/* The last key is the last query's, as biases need it. */
static struct ot_attend_spans self_op(const struct ot_layer_call *call, const struct ot_qkv *at,
                                      int64_t n_keys) {
    const struct ot_model_config *c = call->config;
    const struct ot_batch_view *batch = &call->run->batch;
    const int32_t *tables = call->run->constants;
    struct ot_attend_spans op =
        spans_op(call, at, n_keys, batch->row_start, batch->key_end, OT_DROP_ATTENTION);
    op.bias = ot_run_weight(call->run, bias_of(call)); /* [position_buckets, heads] */
    op.buckets = c->position_buckets;
    op.reach = reach_of(c);
    op.bucket_of = tables + (ot_layer_has_cross(call->at) ? table_elems(c) : 0);
    op.out = call->memory.attn;                              /* [n, heads, head_dim] */
    op.softmax = call->cached ? NULL : call->memory.softmax; /* [heads, n, 2] */
    return op;
}

void ot_encdec_attend(const struct ot_layer_call *call, const struct ot_qkv *at, int64_t n_keys) {
    const struct ot_attend_spans op = self_op(call, at, n_keys);
    call->ops->attend_spans(call->run->lane, &op);
}

void ot_encdec_attend_backward(const struct ot_layer_call *call, const struct ot_qkv *at, int64_t n_keys,
                               const struct ot_qkv *grad) {
    const struct ot_attend_spans_backward op = {
        .forward = self_op(call, at, n_keys),
        .dout = call->memory.narrow,                    /* [n, heads, head_dim] */
        .dq = grad->q,                                  /* [n, heads, head_dim] */
        .dk = grad->k,                                  /* [n_keys, heads, head_dim] */
        .dv = grad->v,                                  /* [n_keys, heads, head_dim] */
        .dbias = ot_run_grad(call->run, bias_of(call)), /* [position_buckets, heads] */
        .scratch = call->memory.attention,
    };
    call->ops->attend_spans_backward(call->run->lane, &op);
}

/* ---- cross attention ---- */

static struct ot_attend_spans cross_op(const struct ot_layer_call *call) {
    const struct ot_block_run *run = call->run;
    const struct ot_layer_memory *memory = &call->memory;
    int64_t q = call->model->q_elems;
    /* cross_kv is [inputs, 2, heads, head_dim]; k and v of the cache are [inputs, heads, head_dim]. */
    const struct ot_qkv kept = {
        memory->cross_q, memory->cross_kv, ot_run_at(run, memory->cross_kv, q), q, 2 * q, 2 * q};
    const struct ot_qkv cached = {memory->cross_q, run->kv.k, run->kv.v, q, q, q};
    struct ot_attend_spans op =
        spans_op(call, call->cached ? &cached : &kept, run->batch.n_inputs, run->batch.input_first,
                 run->batch.input_end, OT_DROP_CROSS_ATTENTION);
    op.out = memory->cross_attn;                              /* [n, heads, head_dim] */
    op.softmax = call->cached ? NULL : memory->cross_softmax; /* [heads, n, 2] */
    return op;
}

void ot_encdec_attend_inputs(const struct ot_layer_call *call) {
    const struct ot_attend_spans op = cross_op(call);
    call->ops->attend_spans(call->run->lane, &op);
}

void *ot_encdec_attend_inputs_backward(const struct ot_layer_call *call) {
    const struct ot_block_run *run = call->run;
    int64_t q = call->model->q_elems;
    void *dkv = ot_run_at(run, call->memory.wide, run->batch.n_tokens * q);
    const struct ot_attend_spans_backward op = {
        .forward = cross_op(call),
        .dout = call->memory.narrow, /* [n, heads, head_dim] */
        .dq = call->memory.wide,     /* [n, heads, head_dim] */
        .dk = dkv,                   /* [inputs, 2, heads, head_dim]: dk, then dv */
        .dv = ot_run_at(run, dkv, q),
        .scratch = call->memory.attention,
    };
    call->ops->attend_spans_backward(run->lane, &op);
    return dkv;
}
