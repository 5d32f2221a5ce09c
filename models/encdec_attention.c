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

static void add_bias(const struct ot_encdec_call *call, struct ot_attend_spans *op) {
    const struct ot_model_config *c = &call->model->config;
    const struct ot_stacks_layout *stacks = &call->model->stacks;
    const int32_t *tables = call->run->constants;
    op->bias = ot_run_weight(call->run, call->is_decoder ? stacks->decoder_bias : stacks->encoder_bias);
    op->buckets = c->position_buckets;
    op->reach = reach_of(c);
    op->bucket_of = tables + (call->is_decoder ? table_elems(c) : 0);
}

/* Sets the fields that all ops share: the queries are the call's own tokens. */
static struct ot_attend_spans make_op(const struct ot_encdec_call *call, enum ot_encdec_side side) {
    const struct ot_model_config *c = &call->model->config;
    const struct ot_batch_view *batch = &call->run->batch;
    int64_t first = call->own.first, q_elems = call->model->q_elems;
    bool cross = side == OT_SIDE_CROSS;
    struct ot_attend_spans op = {
        .dtype = call->run->dtype,
        .n = call->own.n,
        .heads = c->n_heads,
        .head_dim = c->head_dim,
        .ldo = q_elems,
        .scale = ot_model_attention_scale(c),
        .key_first = (cross ? batch->input_first : batch->row_start) + first,
        .key_end = (cross ? batch->input_end : batch->key_end) + first,
        .out = ot_encdec_row(call, cross ? call->memory.cross_attn : call->memory.attn, first, q_elems),
        .softmax = cross ? call->memory.cross_softmax : call->memory.softmax,
    };
    if (!cross)
        add_bias(call, &op);
    return op;
}

/* Keys are counted from the first token of the micro-batch on. The encoder and cross attention have the
 * inputs as keys. The last key is then the last query's, as biases need it. */
static struct ot_attend_spans train_op(const struct ot_encdec_call *call, enum ot_encdec_side side) {
    const struct ot_encdec_memory *memory = &call->memory;
    int64_t q_elems = call->model->q_elems, first = call->own.first;
    struct ot_attend_spans op = make_op(call, side);
    if (side == OT_SIDE_CROSS) {
        op.n_keys = call->inputs.n;
        op.ldq = q_elems;
        op.ldk = op.ldv = 2 * q_elems;
        op.q = ot_encdec_row(call, memory->cross_q, first, q_elems);
        op.k = memory->cross_kv;
        op.v = ot_run_at(call->run, memory->cross_kv, q_elems);
        return op;
    }
    op.n_keys = call->own.first + call->own.n;
    op.ldq = op.ldk = op.ldv = 3 * q_elems;
    op.q = ot_encdec_row(call, memory->qkv, first, op.ldq);
    op.k = ot_run_at(call->run, memory->qkv, q_elems);
    op.v = ot_run_at(call->run, memory->qkv, 2 * q_elems);
    return op;
}

void ot_encdec_attend(const struct ot_encdec_call *call, enum ot_encdec_side side) {
    const struct ot_attend_spans op = train_op(call, side);
    call->ops->attend_spans(call->run->lane, &op);
}

void ot_encdec_attend_cached(const struct ot_encdec_call *call, enum ot_encdec_side side) {
    const struct ot_block_run *run = call->run;
    const struct ot_encdec_memory *memory = &call->memory;
    int64_t q_elems = call->model->q_elems;
    struct ot_attend_spans op = make_op(call, side);
    op.n_keys = side == OT_SIDE_CROSS ? run->batch.n_inputs : run->kv.n_past + run->batch.n_tokens;
    op.ldq = op.ldk = op.ldv = q_elems;
    op.q =
        ot_encdec_row(call, side == OT_SIDE_CROSS ? memory->cross_q : memory->qkv, call->own.first, q_elems);
    op.k = run->kv.k;
    op.v = run->kv.v;
    op.softmax = NULL;
    call->ops->attend_spans(run->lane, &op);
}

void *ot_encdec_dkv(const struct ot_encdec_call *call) {
    return ot_encdec_row(call, call->memory.wide, call->run->batch.n_tokens, call->model->q_elems);
}

void ot_encdec_attend_backward(const struct ot_encdec_call *call, enum ot_encdec_side side) {
    const struct ot_stacks_layout *stacks = &call->model->stacks;
    const struct ot_encdec_memory *memory = &call->memory;
    int64_t q_elems = call->model->q_elems, first = call->own.first;
    bool cross = side == OT_SIDE_CROSS;
    void *keys = cross ? ot_encdec_dkv(call) : ot_run_at(call->run, memory->wide, q_elems);
    struct ot_attend_spans_backward op = {
        .forward = train_op(call, side),
        .dout = ot_encdec_row(call, memory->narrow, first, q_elems),
        .dk = keys,
        .dv = ot_run_at(call->run, keys, q_elems),
        .scratch = memory->attention,
    };
    op.dq = ot_encdec_row(call, memory->wide, first, op.forward.ldq);
    if (!cross)
        op.dbias = ot_run_grad(call->run, call->is_decoder ? stacks->decoder_bias : stacks->encoder_bias);
    call->ops->attend_spans_backward(call->run->lane, &op);
}
