#include "src/gguf/model_keys.h"

#include <stdio.h>
#include <string.h>

#include "src/base/error.h"

int ot_gguf_check_config(const struct ot_model_config *c, const char *where) {
    if (!ot_gguf_architecture(c->family))
        return ot_fail(OT_E_INPUT,
                       "%s: models of type %s cannot be written as GGUF; known: llama, mistral, qwen2, qwen3",
                       where, ot_family_row(c->family)->model_type);
    if (c->rope.scaling > OT_ROPE_LLAMA3)
        return ot_fail(OT_E_INPUT,
                       "%s: rope_scaling of this type cannot be written as GGUF; known: linear, llama3",
                       where);
    if (c->act != OT_ACT_SILU)
        return ot_fail(OT_E_INPUT,
                       "%s: llama.cpp computes models of this family with the activation silu alone, but the "
                       "config has another hidden_act",
                       where);
    if (c->window > 0 && c->family != OT_FAMILY_MISTRAL)
        return ot_fail(OT_E_INPUT,
                       "%s: llama.cpp has no sliding window for models of type %s, but the config has one of "
                       "%lld tokens",
                       where, ot_family_row(c->family)->model_type, (long long)c->window);
    if (c->out_bias && !ot_gguf_has_permuted_heads(c->family))
        return ot_fail(OT_E_INPUT,
                       "%s: llama.cpp has no bias of o_proj for models of type %s, but the config says "
                       "attention_bias true",
                       where, ot_family_row(c->family)->model_type);
    return 0;
}

/* "llama.block_count" */
static const char *key_of(const struct ot_model_config *c, const char *name, char key[80]) {
    snprintf(key, 80, "%s.%s", ot_gguf_architecture(c->family), name);
    return key;
}

static void put_rope(struct ot_gguf_keys *keys, const struct ot_model_config *c) {
    char key[80];
    ot_gguf_put_u32(keys, key_of(c, "rope.dimension_count", key), (uint32_t)c->rotary_dim);
    ot_gguf_put_f32(keys, key_of(c, "rope.freq_base", key), (float)c->rope.theta);
    if (c->rope.scaling != OT_ROPE_LINEAR)
        return;
    ot_gguf_put_text(keys, key_of(c, "rope.scaling.type", key), "linear");
    ot_gguf_put_f32(keys, key_of(c, "rope.scaling.factor", key), (float)c->rope.factor);
}

void ot_gguf_put_config(struct ot_gguf_keys *keys, const struct ot_model_config *c, const char *name,
                        const struct ot_gguf_mixture *mixture) {
    const struct {
        const char *name;
        int64_t value;
    } counts[] = {
        {"block_count", c->n_layers},
        {"context_length", c->max_position},
        {"embedding_length", c->hidden},
        {"feed_forward_length", c->ffn},
        {"vocab_size", c->vocab},
        {"attention.head_count", c->n_heads},
        {"attention.head_count_kv", c->n_kv_heads},
        {"attention.key_length", c->head_dim},
        {"attention.value_length", c->head_dim},
    };
    char key[80];
    ot_gguf_put_text(keys, "general.architecture", ot_gguf_architecture(c->family));
    ot_gguf_put_text(keys, "general.type", "model");
    ot_gguf_put_text(keys, "general.name", name);
    ot_gguf_put_u32(keys, "general.file_type", mixture->file_type);
    ot_gguf_put_u32(keys, "general.quantization_version", 2);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        ot_gguf_put_u32(keys, key_of(c, counts[i].name, key), (uint32_t)counts[i].value);
    ot_gguf_put_f32(keys, key_of(c, "attention.layer_norm_rms_epsilon", key), c->norm_eps);
    if (c->window > 0)
        ot_gguf_put_u32(keys, key_of(c, "attention.sliding_window", key), (uint32_t)c->window);
    put_rope(keys, c);
}

void ot_gguf_put_adapter(struct ot_gguf_keys *keys, const struct ot_model_config *c, const char *name,
                         const struct ot_gguf_mixture *mixture, double alpha) {
    ot_gguf_put_text(keys, "general.architecture", ot_gguf_architecture(c->family));
    ot_gguf_put_text(keys, "general.type", "adapter");
    ot_gguf_put_text(keys, "general.name", name);
    ot_gguf_put_u32(keys, "general.file_type", mixture->file_type);
    ot_gguf_put_u32(keys, "general.quantization_version", 2);
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
