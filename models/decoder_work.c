/* FLOPs and bytes of each block, for predictions (offload/predict/costs.h). They count the ops of
 * decoder_layer.c and decoder_head.c one by one. A change there needs a change here: tests/models/test_work.c
 * compares both.
 *
 * Bytes are those of arrays that have a row for each token. Weights, tables, ids and single numbers of a row
 * are not counted: they are small or stay in the caches. What products and attention move is not counted
 * either, because their rates were measured with it: operands and results, the gradient that a product adds
 * to, and attention's q, k, v, lse and delta. The exception is a residual that a product adds: the measured
 * products add none. */
#include "models/decoder.h"

/* Elements of the compute dtype per token that a layer's elementwise ops and norms read and write. Matrix
 * products and attention are counted as FLOPs instead. */
static double layer_elems(const struct ot_model *model, enum ot_work_part part, enum ot_keep_level level,
                          bool qkv_kept) {
    const struct ot_model_config *c = &model->config;
    double h = (double)c->hidden, ffn = (double)c->ffn, qkv = (double)model->qkv_elems;
    double qk = (double)(model->q_elems + model->kv_elems);
    double norm = 2 * h, glu = 3 * ffn, rope = 2 * (double)((c->n_heads + c->n_kv_heads) * c->rotary_dim);
    double project = norm + (c->qk_norm ? 2 * qk : 0) + rope; /* norm1; norms of q and k; rope */
    double bias = (c->mlp_bias ? h + 2 * ffn : 0) + (c->out_bias ? h : 0) + (c->qkv_bias ? qkv : 0);
    if (part == OT_WORK_FORWARD) /* 2 h: the products read x and mid, to add them */
        return project + norm + glu + 2 * h;
    if (part == OT_WORK_BACKWARD) /* both norms, the gated activation, rope, the norms of q and k, biases */
        return 4 * norm + 5 * ffn + rope + (c->qk_norm ? 3 * qk : 0) + bias;
    if (level >= OT_KEEP_PRODUCTS) /* norm1, norm2 and the gated activation */
        return level == OT_KEEP_ALL ? 0 : 2 * norm + glu;
    /* As forward without its last product, and norm1 for its weight's gradient. */
    return (qkv_kept ? 0 : project) + 2 * norm + glu + h;
}

/* FLOPs for a token. attention: those of one of attention's products. */
static void layer_flops(const struct ot_model *model, enum ot_work_part part, enum ot_keep_level level,
                        bool qkv_kept, double attention, struct ot_block_work *out) {
    double h = (double)model->config.hidden, down = h * (double)model->config.ffn;
    double qkv = h * (double)model->qkv_elems, o = h * (double)model->q_elems;
    switch (part) {
    case OT_WORK_FORWARD: /* q.k and p.v */
        out->product_flops = 2 * (qkv + o + 3 * down);
        out->attention_flops = 2 * attention;
        break;
    case OT_WORK_BACKWARD: /* the scores once more, and the gradients of p, v, q, k */
        out->product_flops = 4 * (qkv + o + 3 * down);
        out->attention_flops = 5 * attention;
        break;
    case OT_WORK_RECOMPUTE: /* everything before the last projection */
        out->product_flops = level < OT_KEEP_PRODUCTS ? 2 * ((qkv_kept ? 0 : qkv) + o + 2 * down) : 0;
        out->attention_flops = level < OT_KEEP_ATTENTION ? 2 * attention : 0;
        break;
    case OT_WORK_CLEAR: /* decoder.c */
        break;
    }
}

void ot_layer_work(const struct ot_model *model, int64_t layer, enum ot_work_part part,
                   enum ot_keep_level level, int64_t n_tokens, int64_t row_tokens,
                   struct ot_block_work *out) {
    double n = (double)n_tokens, window = (double)ot_model_layer_window(&model->config, layer);
    bool qkv_kept = level >= ot_layer_qkv_level(model, layer);
    /* One product of attention takes 2 FLOPs for each query, each key that it attends to, and each
     * element. */
    double attention = 2 * (double)model->q_elems * ot_model_mean_keys((double)row_tokens, window);
    layer_flops(model, part, level, qkv_kept, attention, out);
    out->product_flops *= n;
    out->attention_flops *= n;
    out->moved_bytes =
        n * (double)ot_dtype_bytes(model->chain.dtype) * layer_elems(model, part, level, qkv_kept);
}

/* Forward reads and writes one row a token. Backward reads one row and adds it to an fp32 row of the
 * table. */
void ot_embed_work(const struct ot_model *model, enum ot_work_part part, int64_t n_tokens,
                   struct ot_block_work *out) {
    double elems = (double)n_tokens * (double)model->config.hidden;
    double item = (double)ot_dtype_bytes(model->chain.dtype);
    *out = (struct ot_block_work){0};
    if (part == OT_WORK_FORWARD)
        out->moved_bytes = elems * 2 * item;
    else if (part == OT_WORK_BACKWARD)
        out->moved_bytes = elems * (item + 2 * sizeof(float));
}

/* The head's backward includes its forward. Cross-entropy reads the fp32 logits once for the loss, twice
 * where it also computes the gradient, and writes that in the compute dtype. */
void ot_head_work(const struct ot_model *model, enum ot_work_part part, int64_t n_tokens,
                  struct ot_block_work *out) {
    const struct ot_model_config *c = &model->config;
    double n = (double)n_tokens, h = (double)c->hidden, vocab = (double)c->vocab;
    double item = (double)ot_dtype_bytes(model->chain.dtype), norm = 2 * h * item;
    *out = (struct ot_block_work){0};
    if (part == OT_WORK_FORWARD) {
        out->product_flops = 2 * n * h * vocab;
        out->moved_bytes = n * (norm + vocab * sizeof(float));
    } else if (part == OT_WORK_BACKWARD) {
        out->product_flops = 6 * n * h * vocab;
        out->moved_bytes = n * (norm + 3 * h * item + vocab * (2 * sizeof(float) + item));
    }
}
