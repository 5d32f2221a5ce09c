/* Names of tensors, and mixtures of types. */
#include <stdio.h>
#include <string.h>

#include "src/gguf/names.h"
#include "tests/gguf/families.h"
#include "tests/support/check.h"

/* ---- names ---- */

static void check_tensor(const struct ot_model_config *config, const struct ot_tensor *tensor,
                         const char *form) {
    char name[OT_GGUF_NAME_BYTES], back[OT_MODEL_NAME_BYTES];
    struct ot_gguf_place place;
    if (!ot_gguf_name_of(config, tensor, name))
        fail_msg("%s: %s has no name", form, tensor->name);
    if (!ot_gguf_find_place(config, name, &place))
        fail_msg("%s: %s is no tensor", form, name);
    ot_gguf_name_back(config, &place, tensor->expert, back);
    assert_string_equal(back, tensor->name);
    assert_int_equal(place.module, tensor->module);
    assert_int_equal(place.layer, tensor->layer);
    assert_false(place.is_up);
    if (!ot_gguf_is_pair(tensor->module))
        return;
    ot_gguf_name_up(name);
    assert_true(ot_gguf_find_place(config, name, &place) && place.is_up);
    assert_int_equal(place.module, tensor->module);
    assert_int_equal(place.layer, tensor->layer);
    ot_gguf_name_back(config, &place, 0, back);
    assert_string_equal(back, tensor->name);
}

/* Every tensor of every form has a name that leads back to it. */
static void test_every_tensor_has_a_name(void **state) {
    struct ot_model_config config;
    const char *form;
    (void)state;
    for (int i = 0; family_form(i, &form, &config); i++) {
        struct ot_model *model;
        check_ok(ot_model_open(&config, OT_F32, 8, &model));
        for (int64_t t = 0; t < ot_model_tensor_count(model); t++)
            check_tensor(&config, ot_model_tensor(model, t), form);
        ot_model_close(model);
    }
}

static const struct ot_tensor *find_tensor(const struct ot_model *model, const char *name) {
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++)
        if (strcmp(ot_model_tensor(model, i)->name, name) == 0)
            return ot_model_tensor(model, i);
    fail_msg("no tensor %s", name);
    return NULL;
}

/* One tensor of each name in llama.cpp's tensor_mapping.py. */
static void test_names_are_those_of_llama_cpp(void **state) {
    static const struct {
        const char *form, *tensor, *name;
    } cases[] = {
        {"llama", "model.embed_tokens.weight", "token_embd.weight"},
        {"llama", "lm_head.weight", "output.weight"},
        {"llama", "model.norm.weight", "output_norm.weight"},
        {"llama_bias", "model.layers.11.self_attn.q_proj.bias", "blk.11.attn_q.bias"},
        {"llama", "model.layers.10.self_attn.v_proj.weight", "blk.10.attn_v.weight"},
        {"llama", "model.layers.0.post_attention_layernorm.weight", "blk.0.ffn_norm.weight"},
        {"qwen3", "model.layers.1.self_attn.q_norm.weight", "blk.1.attn_q_norm.weight"},
        {"gpt2", "transformer.wpe.weight", "position_embd.weight"},
        {"gpt2", "transformer.h.1.attn.c_attn.bias", "blk.1.attn_qkv.bias"},
        {"gpt2", "transformer.h.1.attn.c_proj.weight", "blk.1.attn_output.weight"},
        {"gpt2", "transformer.h.1.mlp.c_proj.weight", "blk.1.ffn_down.weight"},
        {"gpt2", "transformer.h.1.ln_2.bias", "blk.1.ffn_norm.bias"},
        {"bloom", "transformer.word_embeddings_layernorm.bias", "token_embd_norm.bias"},
        {"bloom", "transformer.h.2.mlp.dense_h_to_4h.weight", "blk.2.ffn_up.weight"},
        {"falcon", "transformer.h.2.input_layernorm.weight", "blk.2.attn_norm.weight"},
        {"falcon_two", "transformer.h.2.ln_attn.weight", "blk.2.attn_norm_2.weight"},
        {"falcon_two", "transformer.h.2.ln_mlp.weight", "blk.2.attn_norm.weight"},
        {"phi3", "model.layers.3.mlp.gate_up_proj.weight", "blk.3.ffn_up.weight"},
        {"phi3", "model.layers.3.self_attn.qkv_proj.weight", "blk.3.attn_qkv.weight"},
        {"gemma2", "model.layers.3.post_attention_layernorm.weight", "blk.3.post_attention_norm.weight"},
        {"gemma2", "model.layers.3.pre_feedforward_layernorm.weight", "blk.3.ffn_norm.weight"},
        {"mixtral", "model.layers.3.block_sparse_moe.gate.weight", "blk.3.ffn_gate_inp.weight"},
        {"mixtral", "model.layers.3.block_sparse_moe.experts.7.w1.weight", "blk.3.ffn_gate_exps.weight"},
        {"mixtral", "model.layers.3.block_sparse_moe.experts.7.w2.weight", "blk.3.ffn_down_exps.weight"},
        {"mixtral", "model.layers.3.block_sparse_moe.experts.0.w3.weight", "blk.3.ffn_up_exps.weight"},
        {"mixtral", "model.layers.3.post_attention_layernorm.weight", "blk.3.ffn_norm.weight"},
        {"qwen3_moe", "model.layers.3.mlp.gate.weight", "blk.3.ffn_gate_inp.weight"},
        {"qwen3_moe", "model.layers.3.mlp.experts.2.up_proj.weight", "blk.3.ffn_up_exps.weight"},
        {"gpt_oss", "model.layers.3.mlp.router.bias", "blk.3.ffn_gate_inp.bias"},
        {"gpt_oss", "model.layers.3.mlp.experts.gate_up_proj", "blk.3.ffn_gate_exps.weight"},
        {"gpt_oss", "model.layers.3.mlp.experts.gate_up_proj_bias", "blk.3.ffn_gate_exps.bias"},
        {"gpt_oss", "model.layers.3.mlp.experts.down_proj_bias", "blk.3.ffn_down_exps.bias"},
        {"gpt_oss", "model.layers.3.self_attn.sinks", "blk.3.attn_sinks.weight"},
        {"gpt_oss", "model.layers.3.post_attention_layernorm.weight", "blk.3.post_attention_norm.weight"},
        {"olmo2", "model.layers.3.post_feedforward_layernorm.weight", "blk.3.post_ffw_norm.weight"},
        {"t5", "shared.weight", "token_embd.weight"},
        {"t5", "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
         "enc.blk.0.attn_rel_b.weight"},
        {"t5", "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
         "dec.blk.0.attn_rel_b.weight"},
        {"t5", "encoder.block.10.layer.0.SelfAttention.o.weight", "enc.blk.10.attn_o.weight"},
        {"t5", "decoder.block.0.layer.0.SelfAttention.q.weight", "dec.blk.0.attn_q.weight"},
        {"t5", "decoder.block.9.layer.1.EncDecAttention.o.weight", "dec.blk.9.cross_attn_o.weight"},
        {"t5", "decoder.block.9.layer.1.layer_norm.weight", "dec.blk.9.cross_attn_norm.weight"},
        {"t5", "decoder.block.9.layer.2.DenseReluDense.wi.weight", "dec.blk.9.ffn_up.weight"},
        {"t5_gated", "encoder.block.3.layer.1.DenseReluDense.wi_0.weight", "enc.blk.3.ffn_gate.weight"},
        {"t5_gated", "encoder.block.3.layer.1.DenseReluDense.wo.weight", "enc.blk.3.ffn_down.weight"},
        {"t5", "encoder.final_layer_norm.weight", "enc.output_norm.weight"},
        {"t5", "decoder.final_layer_norm.weight", "dec.output_norm.weight"},
        {"t5_gated", "lm_head.weight", "output.weight"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ot_model_config config = family_named(cases[i].form);
        char name[OT_GGUF_NAME_BYTES];
        struct ot_model *model;
        check_ok(ot_model_open(&config, OT_F32, 8, &model));
        assert_true(ot_gguf_name_of(&config, find_tensor(model, cases[i].tensor), name));
        assert_string_equal(name, cases[i].name);
        ot_model_close(model);
    }
}

static void test_other_names_are_unknown(void **state) {
    static const char *const unknown[] = {"blk.1.attn_q",
                                          "blk.x.attn_q.weight",
                                          "blk.-1.attn_q.weight",
                                          "blk.01.attn_q.weight",
                                          "blk.1.attn.weight",
                                          "blk..attn_q.weight",
                                          "blk.1.attn_q.gain",
                                          "rope_freqs.weight",
                                          "blk.12345.attn_q.bias",
                                          "blk. 1.attn_q.weight",
                                          "attn_q.weight",
                                          "blk.1.output.weight",
                                          "blk.1.attn_qkv.weight",
                                          "blk.1.attn_norm_2.bias",
                                          "position_embd.weight",
                                          "",
                                          "blk.1.weight",
                                          "blk.weight",
                                          ".weight"};
    struct ot_model_config config = family_named("llama");
    struct ot_gguf_place place;
    (void)state;
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        if (ot_gguf_find_place(&config, unknown[i], &place))
            fail_msg("'%s' is known", unknown[i]);
}

/* Layers that a stack of a T5 has not, what only the other stack has, and names of decoders. */
static void test_other_names_of_a_t5_are_unknown(void **state) {
    static const char *const unknown[] = {"enc.blk.11.attn_q.weight",
                                          "dec.blk.10.attn_q.weight",
                                          "enc.blk.9999.attn_q.weight",
                                          "enc.blk.0.cross_attn_q.weight",
                                          "enc.blk.1.attn_rel_b.weight",
                                          "dec.blk.0.cross_attn_rel_b.weight",
                                          "blk.0.attn_q.weight",
                                          "enc.attn_q.weight",
                                          "enc.blk.0.attn_output.weight",
                                          "enc.blk.0.output.weight",
                                          "dec.blk.00.attn_rel_b.weight",
                                          "attn_rel_b.weight",
                                          "output_norm.weight",
                                          "enc.blk.",
                                          "dec.blk.0"};
    struct ot_model_config config = family_named("t5");
    struct ot_gguf_place place;
    (void)state;
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        if (ot_gguf_find_place(&config, unknown[i], &place))
            fail_msg("'%s' is known", unknown[i]);
}

/* llama.cpp's converter permutes q and k of its LlamaModel and its subclasses, and adds 1 to the norms of
 * Gemma 1 to 3. */
static void test_rows_that_move_and_norms_that_grow(void **state) {
    struct ot_model_config config;
    const char *form;
    (void)state;
    for (int i = 0; family_form(i, &form, &config); i++) {
        bool gemma = strncmp(form, "gemma", 5) == 0;
        bool moves = strncmp(form, "llama", 5) == 0 || strncmp(form, "mini", 4) == 0 ||
                     strcmp(form, "mistral") == 0 || strncmp(form, "mixtral", 7) == 0 ||
                     strcmp(form, "smollm3") == 0 || strcmp(form, "granite") == 0;
        assert_int_equal(ot_gguf_head_rows(&config, OT_MODULE_Q), moves ? config.head_dim : 0);
        assert_int_equal(ot_gguf_head_rows(&config, OT_MODULE_K), moves ? config.head_dim : 0);
        assert_int_equal(ot_gguf_head_rows(&config, OT_MODULE_V), 0);
        assert_int_equal(ot_gguf_head_rows(&config, OT_MODULE_QKV), 0);
        assert_true(ot_gguf_addend(&config, OT_MODULE_Q_NORM) == (gemma ? 1 : 0));
        assert_true(ot_gguf_addend(&config, OT_MODULE_NORM) == (gemma ? 1 : 0));
        assert_true(ot_gguf_addend(&config, OT_MODULE_EMBEDDING) == 0);
    }
}

/* ---- mixtures ---- */

static const char *type_of(const char *mixture, const struct ot_model_config *config, enum ot_module module,
                           int64_t layer, int64_t cols) {
    const struct ot_tensor tensor = {
        .rows = 4, .cols = cols, .dims = ot_module_is_norm(module) ? 1 : 2, .module = module, .layer = layer};
    for (int i = 0; ot_gguf_mixture_at(i); i++)
        if (strcmp(ot_gguf_mixture_at(i)->name, mixture) == 0)
            return ot_gguf_type_of(ot_gguf_mixture_at(i), config, &tensor)->name;
    fail_msg("no mixture %s", mixture);
    return NULL;
}

/* Of 32 layers, llama.cpp's Q4_K_M has Q6_K in layers 0-3, 28-31, and 6, 9, 12, ... of those between. */
static void test_mixtures_are_those_of_llama_cpp(void **state) {
    struct ot_model_config config = family_named("llama");
    (void)state;
    config.n_layers = 32;
    for (int layer = 0; layer < 32; layer++) {
        const char *finer = layer < 4 || layer >= 28 || (layer - 4) % 3 == 2 ? "Q6_K" : "Q4_K";
        assert_string_equal(type_of("q4_k_m", &config, OT_MODULE_DOWN, layer, 512), finer);
        assert_string_equal(type_of("q4_k_m", &config, OT_MODULE_V, layer, 512), finer);
        assert_string_equal(type_of("q4_k_m", &config, OT_MODULE_QKV, layer, 512), finer);
        assert_string_equal(type_of("q4_k_m", &config, OT_MODULE_UP, layer, 512), "Q4_K");
        assert_string_equal(type_of("q4_k_m", &config, OT_MODULE_GATE_UP, layer, 512), "Q4_K");
    }
    assert_string_equal(type_of("q4_k_m", &config, OT_MODULE_HEAD, -1, 512), "Q6_K");
    assert_string_equal(type_of("q4_k_m", &config, OT_MODULE_EMBEDDING, -1, 512), "Q4_K");
    config.tied = true;
    assert_string_equal(type_of("q4_k_m", &config, OT_MODULE_EMBEDDING, -1, 512), "Q6_K");
    assert_string_equal(type_of("q4_0", &config, OT_MODULE_EMBEDDING, -1, 512), "Q6_K");
    assert_string_equal(type_of("q8_0", &config, OT_MODULE_EMBEDDING, -1, 512), "Q8_0");
    assert_string_equal(type_of("q8_0", &config, OT_MODULE_NORM, -1, 512), "F32");
    assert_string_equal(type_of("q8_0", &config, OT_MODULE_POSITIONS, -1, 512), "F32");
    assert_string_equal(type_of("f16", &config, OT_MODULE_DECODER_BIAS, -1, 32), "F32");
    assert_string_equal(type_of("q4_k_m", &config, OT_MODULE_CROSS_V, 0, 512), "Q6_K");
    /* rows that are not whole blocks */
    assert_string_equal(type_of("q4_k_m", &config, OT_MODULE_UP, 0, 96), "Q5_0");
    assert_string_equal(type_of("q4_k_m", &config, OT_MODULE_DOWN, 0, 96), "Q8_0");
    assert_string_equal(type_of("q6_k", &config, OT_MODULE_UP, 0, 96), "Q8_0");
    assert_string_equal(type_of("q4_k_m", &config, OT_MODULE_UP, 0, 100), "F16");
    assert_string_equal(type_of("q4_0", &config, OT_MODULE_UP, 0, 100), "F16");
    assert_string_equal(type_of("bf16", &config, OT_MODULE_UP, 0, 100), "BF16");
}

/* llama.cpp has Q5_K for attn_output of 8 experts, which this program has not. */
static void test_mixtures_of_experts_are_those_of_llama_cpp(void **state) {
    struct ot_model_config eight = family_named("mixtral"), four = family_named("qwen3_moe");
    (void)state;
    for (int layer = 0; layer < 12; layer++) {
        const char *finer = layer < 1 || layer >= 10 || (layer - 1) % 3 == 2 ? "Q6_K" : "Q4_K";
        assert_string_equal(type_of("q4_k_m", &eight, OT_MODULE_EXPERT_DOWN, layer, 512), finer);
        assert_string_equal(type_of("q4_k_m", &four, OT_MODULE_EXPERT_DOWN, layer, 512), finer);
        assert_string_equal(type_of("q4_k_m", &four, OT_MODULE_EXPERTS_DOWN, layer, 512), finer);
        assert_string_equal(type_of("q4_k_m", &four, OT_MODULE_V, layer, 512), finer);
        assert_string_equal(type_of("q4_k_m", &eight, OT_MODULE_V, layer, 512), "Q8_0");
        assert_string_equal(type_of("q4_k_m", &eight, OT_MODULE_EXPERT_UP, layer, 512), "Q4_K");
    }
    assert_string_equal(type_of("q4_k_m", &eight, OT_MODULE_K, 5, 512), "Q8_0");
    assert_string_equal(type_of("q4_k_m", &eight, OT_MODULE_Q, 5, 512), "Q4_K");
    assert_string_equal(type_of("q4_k_m", &eight, OT_MODULE_O, 5, 512), "Q6_K");
    assert_string_equal(type_of("q4_k_m", &four, OT_MODULE_O, 5, 512), "Q4_K");
    assert_string_equal(type_of("q4_0", &eight, OT_MODULE_V, 5, 512), "Q8_0");
    assert_string_equal(type_of("q4_0", &eight, OT_MODULE_O, 5, 512), "Q4_0");
    assert_string_equal(type_of("bf16", &eight, OT_MODULE_V, 5, 512), "BF16");
    assert_string_equal(type_of("q4_0", &eight, OT_MODULE_ROUTER, 5, 512), "F32");
    assert_string_equal(type_of("bf16", &four, OT_MODULE_ROUTER, 5, 512), "F32");
}

static void test_the_output_of_a_quantised_falcon_has_8_bits(void **state) {
    struct ot_model_config tied = family_named("falcon"), untied = family_named("falcon_one");
    (void)state;
    assert_string_equal(type_of("q4_k_m", &tied, OT_MODULE_EMBEDDING, -1, 512), "Q8_0");
    assert_string_equal(type_of("q6_k", &untied, OT_MODULE_HEAD, -1, 512), "Q8_0");
    assert_string_equal(type_of("q6_k", &untied, OT_MODULE_EMBEDDING, -1, 512), "Q6_K");
    assert_string_equal(type_of("f16", &tied, OT_MODULE_EMBEDDING, -1, 512), "F16");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_tensor_has_a_name),
        cmocka_unit_test(test_names_are_those_of_llama_cpp),
        cmocka_unit_test(test_other_names_are_unknown),
        cmocka_unit_test(test_other_names_of_a_t5_are_unknown),
        cmocka_unit_test(test_rows_that_move_and_norms_that_grow),
        cmocka_unit_test(test_mixtures_are_those_of_llama_cpp),
        cmocka_unit_test(test_mixtures_of_experts_are_those_of_llama_cpp),
        cmocka_unit_test(test_the_output_of_a_quantised_falcon_has_8_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
