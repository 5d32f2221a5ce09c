/* Reads and writes the keys of config.json that rows of families.c cannot describe, by family. */
#include "models/family_keys.h"

#include <math.h>

#include "src/base/error.h"
#include "src/base/json.h"

int ot_config_read_gpt2(const struct ot_config_reader *r) {
    r->config->n_kv_heads = r->config->n_heads;
    OT_TRY(ot_config_need_flag(r, "scale_attn_weights", true));
    OT_TRY(ot_config_need_flag(r, "scale_attn_by_inverse_layer_idx", false));
    return ot_config_need_flag(r, "add_cross_attention", false);
}

int ot_config_read_bloom(const struct ot_config_reader *r) {
    r->config->fused_groups = r->config->n_kv_heads = r->config->n_heads;
    return ot_config_need_flag(r, "apply_residual_connection_post_layernorm", false);
}

/* transformers computes ALiBi in bf16 here, so it rounds the biases of far keys; this program does not.
 *
 * A saved falcon-7b has num_kv_heads 71 and multi_query true: multi_query wins, with one head of k and v. */
int ot_config_read_falcon(const struct ot_config_reader *r) {
    struct ot_model_config *c = r->config;
    bool is_new = false, multi_query = true, parallel = true, alibi = false, bias = false;
    bool odd_residual = false;
    int64_t n_norms = 2;
    OT_TRY(ot_config_bool_or_null(r, "new_decoder_architecture", &is_new));
    OT_TRY(ot_config_bool_or_null(r, "multi_query", &multi_query));
    OT_TRY(ot_config_bool_or_null(r, "parallel_attn", &parallel));
    OT_TRY(ot_config_bool_or_null(r, "alibi", &alibi));
    OT_TRY(ot_config_bool_or_null(r, "bias", &bias));
    OT_TRY(ot_json_need_int(r->root, r->where, "num_ln_in_parallel_attn", false, 1, 2, &n_norms));
    OT_TRY(ot_config_bool_or_null(r, "apply_residual_connection_post_layernorm", &odd_residual));
    if (odd_residual)
        return ot_fail(OT_E_INPUT,
                       "%s: apply_residual_connection_post_layernorm is true; only false is supported",
                       r->where);
    if (!is_new && !multi_query && c->n_kv_heads != c->n_heads)
        return ot_fail(
            OT_E_INPUT,
            "%s: num_kv_heads is %lld; without new_decoder_architecture and multi_query it must be "
            "num_attention_heads, %lld",
            r->where, (long long)c->n_kv_heads, (long long)c->n_heads);
    if (!is_new)
        c->n_kv_heads = multi_query ? 1 : c->n_heads;
    c->fused_groups = c->n_kv_heads;
    c->residual = is_new     ? (n_norms == 2 ? OT_PARALLEL_TWO : OT_PARALLEL)
                  : parallel ? OT_PARALLEL
                             : OT_SEQUENTIAL;
    c->qkv_bias = c->out_bias = c->mlp_bias = bias;
    if (alibi) {
        c->positions = OT_POSITIONS_ALIBI;
        c->rotary_dim = 0;
    }
    /* transformers drops attention's weights with ALiBi alone, and the sum of parallel branches at once. */
    c->o_drop = parallel || is_new ? c->mlp_drop : c->attention_drop;
    c->attention_drop = alibi ? c->attention_drop : 0;
    return 0;
}

void ot_config_write_falcon(const struct ot_model_config *c, struct ot_json_writer *w) {
    bool two = c->residual == OT_PARALLEL_TWO, grouped = c->n_kv_heads != 1 && c->n_kv_heads != c->n_heads;
    ot_json_put_bool(w, "new_decoder_architecture", two || grouped);
    ot_json_put_int(w, "num_ln_in_parallel_attn", two ? 2 : 1);
    ot_json_put_bool(w, "multi_query", c->n_kv_heads == 1);
    ot_json_put_int(w, "num_kv_heads", c->n_kv_heads);
    ot_json_put_bool(w, "parallel_attn", c->residual != OT_SEQUENTIAL);
    ot_json_put_bool(w, "alibi", c->positions == OT_POSITIONS_ALIBI);
    ot_json_put_bool(w, "bias", c->qkv_bias);
    ot_json_put_int(w, "ffn_hidden_size", c->ffn);
}

/* CodeGen was trained on 4 shards, CodeGen 2 on 8. The config.json of CodeGen 2 has head_dim 128 or 256,
 * that of CodeGen none: this is how CTranslate2 tells them apart. */
int ot_config_read_codegen(const struct ot_config_reader *r) {
    struct ot_model_config *c = r->config;
    int64_t head_dim = 0;
    OT_TRY(ot_config_int(r, "head_dim", 1, 1 << 20, &head_dim));
    c->fused_groups = head_dim == 128 || head_dim == 256 ? 8 : 4;
    c->n_kv_heads = c->n_heads;
    c->rotary_dim = 64;
    return ot_config_int(r, "rotary_dim", 2, c->head_dim, &c->rotary_dim);
}

void ot_config_write_codegen(const struct ot_model_config *c, struct ot_json_writer *w) {
    ot_json_put_int(w, "rotary_dim", c->rotary_dim);
    ot_json_put_int(w, "n_inner", c->ffn);
    if (c->fused_groups == 8)
        ot_json_put_int(w, "head_dim", c->head_dim);
}

void ot_config_write_gpt2(const struct ot_model_config *c, struct ot_json_writer *w) {
    ot_json_put_int(w, "n_inner", c->ffn);
}

/* null: no cap. */
static int read_cap(const struct ot_config_reader *r, const char *key, double *cap) {
    if (ot_json_has(r->root, key))
        *cap = 0;
    return ot_json_need_real(r->root, r->where, key, false, 1e-3, 1e9, cap);
}

int ot_config_read_gemma(const struct ot_config_reader *r) {
    struct ot_model_config *c = r->config;
    bool both_ways = false;
    double scalar = (double)c->head_dim, cap = c->attention_softcap, logit_cap = c->logit_softcap;
    c->embed_scale = sqrt((double)c->hidden);
    if (c->act == OT_ACT_GELU_ERF && c->family == OT_FAMILY_GEMMA) /* "gelu" of old files means the other */
        c->act = OT_ACT_GELU_TANH;
    OT_TRY(ot_config_bool_or_null(r, "use_bidirectional_attention", &both_ways));
    if (both_ways)
        return ot_fail(OT_E_INPUT, "%s: use_bidirectional_attention is true; only false is supported",
                       r->where);
    if (c->family == OT_FAMILY_GEMMA)
        return 0;
    scalar = 256;
    OT_TRY(ot_config_real(r, "query_pre_attn_scalar", 1e-3, 1e9, &scalar));
    OT_TRY(read_cap(r, "attn_logit_softcapping", &cap));
    OT_TRY(read_cap(r, "final_logit_softcapping", &logit_cap));
    c->attention_scale = 1 / sqrt(scalar);
    c->attention_softcap = (float)cap;
    c->logit_softcap = (float)logit_cap;
    return 0;
}

static void put_cap(struct ot_json_writer *w, const char *key, float cap) {
    if (cap != 0)
        ot_json_put_real(w, key, (double)cap);
    else
        ot_json_put_null(w, key);
}

void ot_config_write_gemma(const struct ot_model_config *c, struct ot_json_writer *w) {
    if (c->family == OT_FAMILY_GEMMA)
        return;
    ot_json_put_real(w, "query_pre_attn_scalar", round(1 / (c->attention_scale * c->attention_scale)));
    put_cap(w, "attn_logit_softcapping", c->attention_softcap);
    put_cap(w, "final_logit_softcapping", c->logit_softcap);
}

/* no_rope_layers: 0 for a layer without rope. Absent: each no_rope_layer_interval-th layer has none. */
int ot_config_read_smollm3(const struct ot_config_reader *r) {
    struct ot_model_config *c = r->config;
    const struct ot_json *list = ot_json_get(r->root, "no_rope_layers");
    int64_t interval = 4;
    OT_TRY(ot_config_int(r, "no_rope_layer_interval", 1, OT_MODEL_MAX_LAYERS, &interval));
    if (list && (int64_t)ot_json_length(list) < c->n_layers)
        return ot_fail(OT_E_INPUT, "%s: no_rope_layers must be a list of num_hidden_layers (%lld) entries",
                       r->where, (long long)c->n_layers);
    for (int64_t l = 0; l < c->n_layers; l++) {
        int64_t rotates = list ? ot_json_int(ot_json_at(list, (size_t)l), -1) : (l + 1) % interval != 0;
        if (rotates != 0 && rotates != 1)
            return ot_fail(OT_E_INPUT, "%s: no_rope_layers[%lld] must be 0 or 1", r->where, (long long)l);
        if (!rotates)
            ot_layer_set_add(&c->no_rope, l);
    }
    if (c->window > 0 && !ot_json_get(r->root, "layer_types"))
        ot_config_set_window_layers(c, &c->no_rope);
    return 0;
}

void ot_config_write_smollm3(const struct ot_model_config *c, struct ot_json_writer *w) {
    ot_json_begin_array(w, "no_rope_layers");
    for (int64_t l = 0; l < c->n_layers; l++)
        ot_json_put_int(w, NULL, ot_layer_set_has(&c->no_rope, l) ? 0 : 1);
    ot_json_end_array(w);
}

int ot_config_read_ministral3(const struct ot_config_reader *r) {
    const struct ot_json *rope = ot_json_get(r->root, "rope_parameters");
    if (!rope)
        return ot_fail(OT_E_INPUT,
                       "%s: the key 'rope_parameters' is missing; models of type ministral3 need it",
                       r->where);
    OT_TRY(ot_json_need_real(rope, r->where, "llama_4_scaling_beta", true, 0, 100, &r->config->q_scale_beta));
    /* A scaling has read it, or has its default. */
    return ot_json_need_real(rope, r->where, "original_max_position_embeddings",
                             r->config->rope.original_max_position == 0, 1, 1e12,
                             &r->config->rope.original_max_position);
}

/* A multiplier. 1 is read as absent: nothing is multiplied then. */
static int read_multiplier(const struct ot_config_reader *r, const char *key, double *out) {
    OT_TRY(ot_config_real(r, key, 1e-6, 1e6, out));
    if (*out == 1)
        *out = 0;
    return 0;
}

int ot_config_read_granite(const struct ot_config_reader *r) {
    struct ot_model_config *c = r->config;
    c->attention_scale = 1;
    OT_TRY(read_multiplier(r, "embedding_multiplier", &c->embed_scale));
    OT_TRY(read_multiplier(r, "residual_multiplier", &c->residual_scale));
    OT_TRY(ot_config_real(r, "attention_multiplier", 1e-6, 1e6, &c->attention_scale));
    return read_multiplier(r, "logits_scaling", &c->logit_divisor);
}

void ot_config_write_granite(const struct ot_model_config *c, struct ot_json_writer *w) {
    ot_json_put_real(w, "embedding_multiplier", c->embed_scale != 0 ? c->embed_scale : 1);
    ot_json_put_real(w, "residual_multiplier", c->residual_scale != 0 ? c->residual_scale : 1);
    ot_json_put_real(w, "attention_multiplier", c->attention_scale);
    ot_json_put_real(w, "logits_scaling", c->logit_divisor != 0 ? c->logit_divisor : 1);
}
