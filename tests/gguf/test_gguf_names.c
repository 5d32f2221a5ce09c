/* Names of tensors, mixtures of types, and the config: from a model to a file and back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/json.h"
#include "src/files/model_config.h"
#include "src/gguf/model_keys.h"
#include "tests/gguf/fixture.h"

static struct ot_model_config make_config(enum ot_family family, int64_t layers, int64_t hidden) {
    const struct ot_family_row *row = ot_family_row(family);
    return (struct ot_model_config){.family = family,
                                    .n_layers = layers,
                                    .hidden = hidden,
                                    .ffn = 2 * hidden,
                                    .n_heads = 4,
                                    .n_kv_heads = 2,
                                    .head_dim = hidden / 4,
                                    .vocab = 64,
                                    .max_position = 128,
                                    .window = family == OT_FAMILY_MISTRAL ? 32 : 0,
                                    .norm_eps = 1e-5f,
                                    .act = OT_ACT_SILU,
                                    .rope.theta = 1e4,
                                    .rotary_dim = hidden / 4,
                                    .qkv_bias = row->base.qkv_bias,
                                    .qk_norm = row->base.qk_norm,
                                    .tied = family == OT_FAMILY_QWEN3,
                                    .init_std = 0.02};
}

/* Every tensor of every family, biases included, has a name of its own that leads back. */
static void test_every_tensor_has_a_name(void **state) {
    (void)state;
    for (int family = 0; ot_gguf_architecture((enum ot_family)family); family++) {
        struct ot_model_config config = make_config((enum ot_family)family, 12, 32);
        struct ot_model *model;
        config.qkv_bias = config.out_bias = config.mlp_bias = true;
        check_ok(ot_model_open(&config, OT_F32, 8, &model));
        for (int64_t i = 0; i < ot_model_tensor_count(model); i++) {
            const struct ot_tensor *tensor = ot_model_tensor(model, i);
            char name[OT_GGUF_NAME_BYTES], back[96];
            assert_true(ot_gguf_name_of(tensor->name, name));
            assert_true(ot_gguf_name_back(name, back));
            assert_string_equal(back, tensor->name);
            bool turns = strstr(tensor->name, "q_proj") || strstr(tensor->name, "k_proj");
            bool permutes = family == OT_FAMILY_LLAMA || family == OT_FAMILY_MISTRAL;
            assert_int_equal(ot_gguf_head_rows(&config, tensor->name), turns && permutes ? 8 : 0);
        }
        ot_model_close(model);
    }
    char name[OT_GGUF_NAME_BYTES], back[96];
    assert_true(ot_gguf_name_of("model.layers.10.self_attn.q_norm.weight", name));
    assert_string_equal(name, "blk.10.attn_q_norm.weight");
    static const char *const unknown[] = {
        "blk.1.attn_q",          "blk.x.attn_q.weight", "blk.-1.attn_q.weight",
        "blk.01.attn_q.weight",  "blk.1.attn.weight",   "blk..attn_q.weight",
        "blk.1.attn_q.gain",     "rope_freqs.weight",   "",
        "blk.12345.attn_q.bias", "blk. 1.attn_q.weight"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        assert_false(ot_gguf_name_back(unknown[i], back));
}

static const char *type_of(const char *mixture, const struct ot_model_config *config, const char *name,
                           int64_t cols) {
    struct ot_tensor tensor = {.rows = 4, .cols = cols, .dims = strstr(name, "norm") ? 1 : 2};
    strcpy(tensor.name, name);
    for (int i = 0; ot_gguf_mixture_at(i); i++)
        if (strcmp(ot_gguf_mixture_at(i)->name, mixture) == 0)
            return ot_gguf_type_of(ot_gguf_mixture_at(i), config, &tensor)->name;
    fail_msg("no mixture %s", mixture);
    return NULL;
}

/* Of 32 layers, llama.cpp's Q4_K_M has Q6_K in layers 0-3, 28-31, and 6, 9, 12, ... of those between. */
static void test_mixtures_are_those_of_llama_cpp(void **state) {
    struct ot_model_config config = make_config(OT_FAMILY_LLAMA, 32, 512);
    (void)state;
    for (int layer = 0; layer < 32; layer++) {
        char name[64];
        bool finer = layer < 4 || layer >= 28 || (layer - 4) % 3 == 2;
        snprintf(name, sizeof name, "model.layers.%d.mlp.down_proj.weight", layer);
        assert_string_equal(type_of("q4_k_m", &config, name, 512), finer ? "Q6_K" : "Q4_K");
        snprintf(name, sizeof name, "model.layers.%d.self_attn.v_proj.weight", layer);
        assert_string_equal(type_of("q4_k_m", &config, name, 512), finer ? "Q6_K" : "Q4_K");
        snprintf(name, sizeof name, "model.layers.%d.mlp.up_proj.weight", layer);
        assert_string_equal(type_of("q4_k_m", &config, name, 512), "Q4_K");
    }
    assert_string_equal(type_of("q4_k_m", &config, "lm_head.weight", 512), "Q6_K");
    assert_string_equal(type_of("q4_k_m", &config, "model.embed_tokens.weight", 512), "Q4_K");
    config.tied = true;
    assert_string_equal(type_of("q4_k_m", &config, "model.embed_tokens.weight", 512), "Q6_K");
    assert_string_equal(type_of("q4_0", &config, "model.embed_tokens.weight", 512), "Q6_K");
    assert_string_equal(type_of("q8_0", &config, "model.embed_tokens.weight", 512), "Q8_0");
    assert_string_equal(type_of("q8_0", &config, "model.norm.weight", 512), "F32");
    /* rows that are not whole blocks */
    assert_string_equal(type_of("q4_k_m", &config, "model.layers.0.mlp.up_proj.weight", 96), "Q8_0");
    assert_string_equal(type_of("q4_k_m", &config, "model.layers.0.mlp.up_proj.weight", 100), "F16");
    assert_string_equal(type_of("q4_0", &config, "model.layers.0.mlp.up_proj.weight", 100), "F16");
    assert_string_equal(type_of("bf16", &config, "model.layers.0.mlp.up_proj.weight", 100), "BF16");
}

/* ---- the config ---- */

/* Writes a file of the config with all tensors, of no particular values, and makes the config of it. */
static int read_back(const struct ot_model_config *config, struct ot_config_file *out) {
    char *folder = make_folder(), *text = NULL;
    struct ot_gguf_keys keys = {0};
    struct ot_gguf_entry entries[64] = {0};
    struct ot_gguf_writer *writer;
    struct ot_model *model;
    struct sink sink = {0};
    struct ot_gguf *file;
    int64_t n = 0;
    size_t bytes;
    check_ok(ot_model_open(config, OT_F32, 8, &model));
    if (config->rope.scaling == OT_ROPE_LLAMA3)
        entries[n++] = (struct ot_gguf_entry){.name = OT_GGUF_ROPE_FREQS,
                                              .type = ot_gguf_type(OT_GGUF_F32),
                                              .dims = 1,
                                              .rows = 1,
                                              .cols = config->rotary_dim / 2};
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++, n++) {
        const struct ot_tensor *tensor = ot_model_tensor(model, i);
        entries[n] = (struct ot_gguf_entry){.type = ot_gguf_type(OT_GGUF_F32),
                                            .dims = tensor->dims,
                                            .rows = tensor->rows,
                                            .cols = tensor->cols};
        assert_true(n < 64 && ot_gguf_name_of(tensor->name, entries[n].name));
    }
    check_ok(ot_gguf_check_config(config, "config"));
    ot_gguf_put_config(&keys, config, "tiny", ot_gguf_mixture_at(0));
    check_ok(ot_gguf_writer_open(&keys, entries, n, NULL, sink_put, &sink, &writer));
    for (int64_t i = 0; i < n; i++)
        for (int64_t v = 0; v < entries[i].rows * entries[i].cols; v++) {
            float value =
                i == 0 && config->rope.scaling == OT_ROPE_LLAMA3 ? ot_gguf_rope_factor(config, v) : 0;
            check_ok(ot_gguf_writer_put(writer, &value, 1));
        }
    check_ok(ot_gguf_writer_finish(writer));
    write_file(folder, "m.gguf", sink.bytes, sink.n);
    check_ok(ot_gguf_open(file_in(folder, "m.gguf"), &file));
    int rc = ot_gguf_make_config(file, 1, 2, &text, &bytes);
    if (rc == 0) {
        struct ot_json *root;
        check_ok(ot_json_parse(text, bytes, "made", &root));
        check_ok(ot_model_config_parse(root, "made", out));
        ot_json_free(root);
    }
    free(text);
    ot_gguf_close(file);
    ot_gguf_writer_close(writer);
    ot_gguf_keys_free(&keys);
    ot_model_close(model);
    free(sink.bytes);
    remove_folder(folder);
    return rc;
}

static void check_same(const struct ot_model_config *config) {
    struct ot_config_file got;
    check_ok(read_back(config, &got));
    assert_memory_equal(&got.config, config, sizeof *config);
    assert_int_equal(got.ids.bos, 1);
    assert_int_equal(got.ids.eos[0], 2);
}

static void test_configs_come_back(void **state) {
    (void)state;
    for (int family = 0; ot_gguf_architecture((enum ot_family)family); family++) {
        struct ot_model_config config = make_config((enum ot_family)family, 2, 32);
        check_same(&config);
        config.tied = !config.tied;
        config.rope.theta = 1e6;
        check_same(&config);
        config.rope.scaling = OT_ROPE_LINEAR;
        config.rope.factor = 4;
        check_same(&config);
    }
    struct ot_model_config config = make_config(OT_FAMILY_LLAMA, 2, 32);
    config.qkv_bias = config.out_bias = config.mlp_bias = true;
    check_same(&config);
    config = make_config(OT_FAMILY_QWEN3, 2, 32);
    config.head_dim = config.rotary_dim = 16;
    check_same(&config);
}

/* The scaling of Llama 3.1 (factor 8) and 3.2 (factor 32), and of a model whose longest wavelength is
 * blended. */
static void test_llama3_scaling_comes_back(void **state) {
    static const struct {
        double theta, factor, original;
        int64_t head_dim;
    } cases[] = {{5e5, 8, 8192, 128}, {5e5, 32, 8192, 64}, {1e4, 8, 64, 8}, {1e4, 4, 16384, 8}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ot_model_config config = make_config(OT_FAMILY_LLAMA, 1, 32);
        config.rope.theta = cases[i].theta;
        config.head_dim = config.rotary_dim = cases[i].head_dim;
        config.rope.scaling = OT_ROPE_LLAMA3;
        config.rope.factor = cases[i].factor;
        config.rope.low_freq_factor = 1;
        config.rope.high_freq_factor = 4;
        config.rope.original_max_position = cases[i].original;
        check_same(&config);
    }
    struct ot_model_config config = make_config(OT_FAMILY_LLAMA, 1, 32);
    struct ot_config_file got;
    config.rope.scaling = OT_ROPE_LLAMA3;
    config.rope.factor = 8;
    config.rope.low_freq_factor = 1;
    config.rope.high_freq_factor = 3.5;
    config.rope.original_max_position = 1000;
    check_fails(read_back(&config, &got), OT_E_INPUT, "are not those of Llama 3's RoPE scaling");
}

static void test_refuses_what_llama_cpp_computes_otherwise(void **state) {
    struct ot_model_config config = make_config(OT_FAMILY_LLAMA, 1, 32);
    (void)state;
    config.act = OT_ACT_RELU;
    check_fails(ot_gguf_check_config(&config, "m"), OT_E_INPUT,
                "m: llama.cpp computes models of this family");
    config = make_config(OT_FAMILY_QWEN2, 1, 32);
    config.window = 16;
    check_fails(ot_gguf_check_config(&config, "m"), OT_E_INPUT, "no sliding window for models of type qwen2");
    config = make_config(OT_FAMILY_QWEN3, 1, 32);
    config.qkv_bias = config.out_bias = true;
    check_fails(ot_gguf_check_config(&config, "m"), OT_E_INPUT, "no bias of o_proj for models of type qwen3");
}

/* ---- wrong keys ---- */

/* n_factors: values of rope_freqs.weight; 0: there is no such tensor. */
static void refuse_config(const char *folder, const struct ot_gguf_keys *keys, int64_t n_factors,
                          const char *words) {
    const struct ot_gguf_type *type = ot_gguf_type(OT_GGUF_F32);
    struct ot_gguf_entry entries[] = {
        {.name = "token_embd.weight", .type = type, .dims = 2, .rows = 4, .cols = 32},
        {.name = OT_GGUF_ROPE_FREQS, .type = type, .dims = 1, .rows = 1, .cols = n_factors}};
    struct ot_gguf_writer *writer;
    struct sink sink = {0};
    struct ot_gguf *file;
    float zeros[128 + 8] = {0};
    char *text = NULL;
    size_t bytes;
    check_ok(ot_gguf_writer_open(keys, entries, n_factors ? 2 : 1, NULL, sink_put, &sink, &writer));
    check_ok(ot_gguf_writer_put(writer, zeros, 128 + n_factors));
    check_ok(ot_gguf_writer_finish(writer));
    write_file(folder, "m.gguf", sink.bytes, sink.n);
    check_ok(ot_gguf_open(file_in(folder, "m.gguf"), &file));
    check_fails(ot_gguf_make_config(file, -1, -1, &text, &bytes), OT_E_INPUT, words);
    assert_null(text);
    ot_gguf_close(file);
    ot_gguf_writer_close(writer);
    free(sink.bytes);
}

static void test_refuses_wrong_model_keys(void **state) {
    static const struct {
        const char *architecture, *key, *text;
        uint32_t number;
        int64_t n_factors;
        const char *words;
    } cases[] = {
        {"gemma3", "a", "b", 0, 0,
         "general.architecture 'gemma3' is not supported; known: llama, qwen2, qwen3"},
        {"llama", "llama.expert_count", NULL, 8, 0, "a mixture of 8 experts"},
        {"llama", "llama.block_count", "two", 0, 0, "llama.block_count is a string, not a whole number"},
        {"llama", "llama.rope.scaling.type", "yarn", 0, 0, "llama.rope.scaling.type 'yarn' is not supported"},
        {"llama", "llama.rope.dimension_count", NULL, 4, 0, "RoPE rotates 4 of each head's 8 elements"},
        {"llama", "llama.attention.key_length", NULL, 16, 4, "one for each pair of a head's 16 elements"},
        {"llama", "llama.attention.key_length", NULL, 8, 4, "are not those of Llama 3's RoPE scaling"},
        {"qwen3", "a", "b", 0, 0, "the key qwen3.attention.layer_norm_rms_epsilon is missing"},
    };
    char *folder = make_folder(), key[64];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static const char *const counts[] = {"block_count",          "context_length",
                                             "embedding_length",     "feed_forward_length",
                                             "attention.head_count", "attention.key_length"};
        struct ot_gguf_keys keys = {0};
        ot_gguf_put_text(&keys, "general.architecture", cases[i].architecture);
        for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
            snprintf(key, sizeof key, "%s.%s", cases[i].architecture, counts[k]);
            if (strcmp(key, cases[i].key) != 0)
                ot_gguf_put_u32(&keys, key, 8);
        }
        if (strcmp(cases[i].architecture, "llama") == 0)
            ot_gguf_put_f32(&keys, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
        if (cases[i].text)
            ot_gguf_put_text(&keys, cases[i].key, cases[i].text);
        else
            ot_gguf_put_u32(&keys, cases[i].key, cases[i].number);
        refuse_config(folder, &keys, cases[i].n_factors, cases[i].words);
        ot_gguf_keys_free(&keys);
    }
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_tensor_has_a_name),
        cmocka_unit_test(test_mixtures_are_those_of_llama_cpp),
        cmocka_unit_test(test_configs_come_back),
        cmocka_unit_test(test_llama3_scaling_comes_back),
        cmocka_unit_test(test_refuses_what_llama_cpp_computes_otherwise),
        cmocka_unit_test(test_refuses_wrong_model_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
