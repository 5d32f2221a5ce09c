/* What each block has to compute and move, for predictions (offload/predict/costs.h): the counterpart of
 * the calls in decoder_layer.c and decoder_head.c, op by op. */
#include "models/decoder.h"

/* Elements of the compute dtype that the layer's passes read and write, per token; products and attention
 * are counted as FLOPs. */
static double layer_elems(const struct ot_model *model, enum ot_work_part part) {
    const struct ot_model_config *c = &model->config;
    double h = (double)c->hidden, ffn = (double)c->ffn, qkv = (double)model->qkv_elems;
    double qk = (double)(model->q_elems + model->kv_elems);
    double norm = 2 * h, glu = 3 * ffn;
    /* norm1, norms of q and k, rope, norm2 with the residual */
    double inside = norm + (c->qk_norm ? 2 * qk : 0) + 2 * qk + 2 * norm;
    double bias = (c->mlp_bias ? h + 2 * ffn : 0) + (c->out_bias ? h : 0) + (c->qkv_bias ? qkv : 0);
    switch (part) {
    case OT_WORK_FORWARD:
        return inside + glu + 3 * h; /* and the second residual */
    case OT_WORK_BACKWARD:
        /* Both norms again and backward, the MLP's inside again and backward, rope and norms of q and k
         * backward, sums for biases. */
        return 2 * (norm + 2 * norm) + glu + 5 * ffn + 2 * qk + (c->qk_norm ? 3 * qk : 0) + bias;
    default: /* all of the inside, of which backward had norm2 and the MLP's to do anyway */
        return inside - norm;
    }
}

void ot_layer_work(const struct ot_model *model, int64_t layer, enum ot_work_part part, int64_t n_tokens,
                   int64_t row_tokens, struct ot_block_work *out) {
    const struct ot_model_config *c = &model->config;
    double n = (double)n_tokens, h = (double)c->hidden, q = (double)model->q_elems;
    double window = (double)ot_model_layer_window(c, layer);
    double down = h * (double)c->ffn, matrices = h * (double)model->qkv_elems + q * h + 3 * down;
    /* One product of attention: 2 operations for each query, key that it sees, and element. */
    double attention = 2 * n * q * ot_model_mean_keys((double)row_tokens, window);
    double item = (double)ot_dtype_bytes(model->chain.dtype);
    *out = (struct ot_block_work){.moved_bytes = n * item * layer_elems(model, part)};
    switch (part) {
    case OT_WORK_FORWARD: /* q.k and p.v */
        out->product_flops = 2 * n * matrices;
        out->attention_flops = 2 * attention;
        break;
    case OT_WORK_BACKWARD: /* the scores again, and the gradients of p, v, q, k */
        out->product_flops = 4 * n * matrices;
        out->attention_flops = 5 * attention;
        break;
    case OT_WORK_RECOMPUTE: /* everything before the last projection */
        out->product_flops = 2 * n * (matrices - down);
        out->attention_flops = 2 * attention;
        break;
    }
}

/* Forward reads and writes a row for each token; backward reads one, and adds to an fp32 row of the table. */
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

/* Backward contains its forward. Cross-entropy reads the fp32 logits, with a gradient twice, and writes that
 * over them. */
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
