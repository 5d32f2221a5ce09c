/* The keys of the families with mixtures of experts: Mixtral, gpt-oss, Qwen3-MoE. */
#include "models/family_keys.h"

#include "src/base/error.h"
#include "src/base/json.h"

/* A router without noise is exact, and transformers has none if config.json does not ask for it. */
static int read_experts(const struct ot_config_reader *r) {
    struct ot_model_config *c = r->config;
    const char *count = ot_json_has(r->root, "num_local_experts") ? "num_local_experts" : "num_experts";
    OT_TRY(ot_config_bool(r, "output_router_logits", &c->asks_balance));
    OT_TRY(ot_config_real(r, "router_aux_loss_coef", 0, 1e3, &c->router_aux));
    OT_TRY(ot_config_int(r, count, 1, OT_MOST_EXPERTS, &c->n_experts));
    return ot_config_int(r, "num_experts_per_tok", 1, OT_MOST_TOP, &c->top_experts);
}

static void write_experts(const struct ot_model_config *c, struct ot_json_writer *w, const char *count) {
    ot_json_put_int(w, count, c->n_experts);
    ot_json_put_int(w, "num_experts_per_tok", c->top_experts);
    ot_json_put_real(w, "router_aux_loss_coef", c->router_aux);
}

int ot_config_read_mixtral(const struct ot_config_reader *r) {
    double noise = 0;
    OT_TRY(ot_config_real(r, "router_jitter_noise", 0, 1, &noise));
    if (noise != 0)
        return ot_fail(OT_E_INPUT, "%s: router_jitter_noise is %g; only 0 is supported", r->where, noise);
    r->config->expert_ffn = r->config->ffn;
    return read_experts(r);
}

void ot_config_write_mixtral(const struct ot_model_config *c, struct ot_json_writer *w) {
    write_experts(c, w, "num_local_experts");
}

int ot_config_read_gpt_oss(const struct ot_config_reader *r) {
    struct ot_model_config *c = r->config;
    double limit = 7, alpha = 1.702;
    bool bias = true;
    OT_TRY(ot_config_bool(r, "attention_bias", &bias));
    OT_TRY(ot_config_real(r, "swiglu_limit", 1e-3, 1e6, &limit));
    OT_TRY(ot_config_real(r, "swiglu_alpha", 1e-3, 1e6, &alpha));
    if (!ot_json_get(r->root, "rope_parameters") && !ot_json_get(r->root, "rope_scaling"))
        return ot_fail(OT_E_INPUT,
                       "%s: the key 'rope_parameters' (or 'rope_scaling') is missing; models of type gpt_oss "
                       "need it",
                       r->where);
    c->qkv_bias = c->out_bias = bias;
    c->glu_limit = (float)limit;
    c->glu_alpha = (float)alpha;
    c->expert_ffn = c->ffn;
    return read_experts(r);
}

void ot_config_write_gpt_oss(const struct ot_model_config *c, struct ot_json_writer *w) {
    write_experts(c, w, "num_local_experts");
    ot_json_put_real(w, "swiglu_limit", (double)c->glu_limit);
    ot_json_put_real(w, "swiglu_alpha", (double)c->glu_alpha);
}

/* Layers without experts: those of mlp_only_layers, and all but each decoder_sparse_step-th. */
int ot_config_read_qwen3_moe(const struct ot_config_reader *r) {
    struct ot_model_config *c = r->config;
    const struct ot_json *list = ot_json_get(r->root, "mlp_only_layers");
    int64_t step = 1;
    bool divides = false;
    OT_TRY(ot_config_int(r, "decoder_sparse_step", 1, INT32_MAX, &step));
    OT_TRY(ot_config_int(r, "moe_intermediate_size", 1, INT32_MAX, &c->expert_ffn));
    OT_TRY(ot_config_bool(r, "norm_topk_prob", &divides));
    c->router_over_all = !divides;
    for (int64_t l = 0; l < c->n_layers; l++)
        if ((l + 1) % step != 0)
            ot_layer_set_add(&c->dense_layers, l);
    for (size_t i = 0; list && i < ot_json_length(list); i++) {
        int64_t layer = ot_json_int(ot_json_at(list, i), -1);
        if (layer < 0 || layer >= c->n_layers)
            return ot_fail(OT_E_INPUT, "%s: mlp_only_layers[%zu] must be the number of a layer", r->where, i);
        ot_layer_set_add(&c->dense_layers, layer);
    }
    return read_experts(r);
}

void ot_config_write_qwen3_moe(const struct ot_model_config *c, struct ot_json_writer *w) {
    write_experts(c, w, "num_experts");
    ot_json_put_int(w, "moe_intermediate_size", c->expert_ffn);
    ot_json_put_bool(w, "norm_topk_prob", !c->router_over_all);
    ot_json_put_int(w, "decoder_sparse_step", 1);
    ot_json_begin_array(w, "mlp_only_layers");
    for (int64_t l = 0; l < c->n_layers; l++)
        if (ot_layer_set_has(&c->dense_layers, l))
            ot_json_put_int(w, NULL, l);
    ot_json_end_array(w);
}
