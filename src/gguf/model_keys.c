#include "src/gguf/model_keys.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* n_positions of all T5s. Their positions have no end, and llama.cpp limits nothing by it. */
enum { PAIR_CONTEXT = 512 };

struct putter {
    struct ot_gguf_keys *keys;
    const struct ot_model_config *c;
    const struct ot_gguf_architecture *row;
    char key[80];
};

/* "llama.block_count" */
static const char *key_of(struct putter *p, const char *name) {
    snprintf(p->key, sizeof p->key, "%s.%s", p->row->name, name);
    return p->key;
}

static void put_count(struct putter *p, const char *name, int64_t value) {
    ot_gguf_put_u32(p->keys, key_of(p, name), (uint32_t)value);
}

static void put_real(struct putter *p, const char *name, double value) {
    ot_gguf_put_f32(p->keys, key_of(p, name), (float)value);
}

/* 0 means that the config has no such number. */
static void put_if_set(struct putter *p, const char *name, double value) {
    if (value != 0)
        put_real(p, name, value);
}

static void put_general(struct ot_gguf_keys *keys, const struct ot_model_config *c, const char *type,
                        const char *name, const struct ot_gguf_mixture *mixture) {
    ot_gguf_put_text(keys, "general.architecture", ot_gguf_architecture(c->family)->name);
    ot_gguf_put_text(keys, "general.type", type);
    ot_gguf_put_text(keys, "general.name", name);
    ot_gguf_put_u32(keys, "general.file_type", mixture->file_type);
    ot_gguf_put_u32(keys, "general.quantization_version", 2);
}

static void put_pair_counts(struct putter *p) {
    const struct ot_model_config *c = p->c;
    put_count(p, "block_count", c->n_encoder_layers);
    put_count(p, "decoder_block_count", c->n_layers - c->n_encoder_layers);
    put_count(p, "decoder_start_token_id", OT_PAIR_START_ID);
    put_count(p, "attention.relative_buckets_count", c->position_buckets);
    put_count(p, "context_length", PAIR_CONTEXT);
}

static void put_counts(struct putter *p) {
    const struct ot_model_config *c = p->c;
    if (ot_model_has_pairs(c)) {
        put_pair_counts(p);
    } else {
        put_count(p, "block_count", c->n_layers);
        put_count(p, "context_length", c->max_position);
    }
    put_count(p, "embedding_length", c->hidden);
    put_count(p, "feed_forward_length", c->ffn);
    put_count(p, "vocab_size", c->vocab);
    put_count(p, "attention.head_count", c->n_heads);
    put_count(p, "attention.head_count_kv", c->n_kv_heads);
    put_count(p, "attention.key_length", c->head_dim);
    put_count(p, "attention.value_length", c->head_dim);
    put_real(p,
             c->norm == OT_NORM_LAYER ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
             (double)c->norm_eps);
}

/* llama.cpp takes the width of a mixtral's experts from feed_forward_length. */
static void put_experts(struct putter *p) {
    const struct ot_model_config *c = p->c;
    put_count(p, "expert_count", c->n_experts);
    put_count(p, "expert_used_count", c->top_experts);
    if (c->family != OT_FAMILY_MIXTRAL)
        put_count(p, "expert_feed_forward_length", c->expert_ffn);
}

/* Without the key, older versions of llama.cpp give a phi3 a window. */
static void put_window(struct putter *p) {
    const struct ot_model_config *c = p->c;
    bool usual = true;
    if (c->window > 0 || c->family == OT_FAMILY_PHI3)
        put_count(p, "attention.sliding_window", c->window);
    if (c->window == 0 || p->row->period == 0)
        return;
    for (int64_t l = 0; l < c->n_layers; l++)
        usual = usual && (ot_model_layer_window(c, l) > 0) == ((l + 1) % p->row->period != 0);
    if (usual)
        return;
    ot_gguf_put_array(p->keys, key_of(p, "attention.sliding_window_pattern"), OT_GGUF_KIND_BOOL, c->n_layers);
    for (int64_t l = 0; l < c->n_layers; l++)
        ot_gguf_put_bool_item(p->keys, ot_model_layer_window(c, l) > 0);
}

/* The multiplier of mistral3 divides the magnitude, so it can only make it smaller. */
static void put_yarn(struct putter *p) {
    const struct ot_rope_config *rope = &p->c->rope;
    double usual = ot_gguf_yarn_magnitude(rope->factor, 0), factor = rope->attention_factor / usual;
    if (p->row->betas) {
        put_real(p, "rope.scaling.yarn_beta_fast", rope->beta_fast);
        put_real(p, "rope.scaling.yarn_beta_slow", rope->beta_slow);
    }
    if (p->row->betas && factor < 1)
        put_real(p, "rope.scaling.yarn_log_multiplier", (1 / factor - 1) / (0.1 * log(rope->factor)));
    else if ((float)factor != 1)
        put_real(p, "rope.scaling.attn_factor", factor);
}

static void put_rope(struct putter *p) {
    static const char *const types[OT_ROPE_SCALINGS] = {
        [OT_ROPE_LINEAR] = "linear", [OT_ROPE_YARN] = "yarn", [OT_ROPE_LONGROPE] = "longrope"};
    const struct ot_model_config *c = p->c;
    const struct ot_rope_config *rope = &c->rope;
    if (c->positions != OT_POSITIONS_ROPE)
        return;
    put_count(p, "rope.dimension_count", c->rotary_dim);
    put_real(p, "rope.freq_base", rope->theta);
    if (c->family == OT_FAMILY_GEMMA3)
        put_real(p, "rope.freq_base_swa", c->local_rope_theta);
    if (types[rope->scaling])
        ot_gguf_put_text(p->keys, key_of(p, "rope.scaling.type"), types[rope->scaling]);
    if (rope->scaling == OT_ROPE_LINEAR || rope->scaling == OT_ROPE_YARN)
        put_real(p, "rope.scaling.factor", rope->factor);
    if (rope->scaling == OT_ROPE_YARN || rope->scaling == OT_ROPE_LONGROPE || c->q_scale_beta != 0)
        put_count(p, "rope.scaling.original_context_length", (int64_t)rope->original_max_position);
    if (rope->scaling == OT_ROPE_YARN)
        put_yarn(p);
    if (rope->scaling == OT_ROPE_LONGROPE)
        put_real(p, "rope.scaling.attn_factor", rope->attention_factor);
}

void ot_gguf_put_config(struct ot_gguf_keys *keys, const struct ot_model_config *c, const char *name,
                        const struct ot_gguf_mixture *mixture) {
    struct putter p = {.keys = keys, .c = c, .row = ot_gguf_architecture(c->family)};
    put_general(keys, c, "model", name, mixture);
    put_counts(&p);
    if (c->n_experts > 0)
        put_experts(&p);
    put_window(&p);
    put_rope(&p);
    put_if_set(&p, "attn_logit_softcapping", (double)c->attention_softcap);
    put_if_set(&p, "final_logit_softcapping", (double)c->logit_softcap);
    put_if_set(&p, "attention.temperature_scale", c->q_scale_beta);
    if (c->family != OT_FAMILY_GRANITE)
        return;
    put_if_set(&p, "embedding_scale", c->embed_scale);
    put_if_set(&p, "residual_scale", c->residual_scale);
    put_if_set(&p, "attention.scale", c->attention_scale);
    put_real(&p, "logit_scale", c->logit_divisor != 0 ? c->logit_divisor : 1);
}

void ot_gguf_put_adapter(struct ot_gguf_keys *keys, const struct ot_model_config *c, const char *name,
                         const struct ot_gguf_mixture *mixture, double alpha) {
    put_general(keys, c, "adapter", name, mixture);
    ot_gguf_put_text(keys, "adapter.type", "lora");
    ot_gguf_put_f32(keys, "adapter.lora.alpha", (float)alpha);
}

enum ot_dtype ot_gguf_dtype(const struct ot_gguf *file) {
    int64_t bytes[3] = {0}, quantised = 0;
    for (int64_t i = 0; i < ot_gguf_tensor_count(file); i++) {
        const struct ot_gguf_tensor *tensor = ot_gguf_tensor(file, i);
        int64_t *sum = tensor->type->id == OT_GGUF_F32    ? &bytes[OT_F32]
                       : tensor->type->id == OT_GGUF_F16  ? &bytes[OT_F16]
                       : tensor->type->id == OT_GGUF_BF16 ? &bytes[OT_BF16]
                                                          : &quantised;
        *sum += (int64_t)tensor->bytes;
    }
    if (bytes[OT_F32] > quantised && bytes[OT_F32] > bytes[OT_F16] && bytes[OT_F32] > bytes[OT_BF16])
        return OT_F32;
    return bytes[OT_F16] > quantised && bytes[OT_F16] > bytes[OT_BF16] ? OT_F16 : OT_BF16;
}
