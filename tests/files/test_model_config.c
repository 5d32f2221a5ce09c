/* config.json: the keys of each family and their meaning, what is refused with an error that names the key,
 * and that reading a written file gives the same config. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/json.h"
#include "tests/files/fixture.h"

static int parse(const char *text, struct ot_config_file *file) {
    struct ot_json *root;
    OT_TRY(ot_json_parse(text, strlen(text), "config.json", &root));
    int rc = ot_model_config_parse(root, "config.json", file);
    ot_json_free(root);
    return rc;
}

/* Parses the config of the tiny llama with more keys. The last of two equal keys counts. */
static int parse_with(const char *more, struct ot_config_file *file) {
    return parse(tiny_config_text(false, more), file);
}

static void check_same_config(const struct ot_model_config *a, const struct ot_model_config *b) {
    const int64_t counts[][2] = {
        {a->family, b->family},
        {a->n_layers, b->n_layers},
        {a->hidden, b->hidden},
        {a->ffn, b->ffn},
        {a->n_heads, b->n_heads},
        {a->n_kv_heads, b->n_kv_heads},
        {a->head_dim, b->head_dim},
        {a->vocab, b->vocab},
        {a->max_position, b->max_position},
        {a->window, b->window},
        {a->window_first_layer, b->window_first_layer},
        {a->norm, b->norm},
        {a->act, b->act},
        {a->rope.scaling, b->rope.scaling},
        {a->rotary_dim, b->rotary_dim},
        {a->qkv_bias, b->qkv_bias},
        {a->out_bias, b->out_bias},
        {a->mlp_bias, b->mlp_bias},
        {a->qk_norm, b->qk_norm},
        {a->tied, b->tied},
    };
    const double numbers[][2] = {
        {a->norm_eps, b->norm_eps},
        {a->rope.theta, b->rope.theta},
        {a->rope.factor, b->rope.factor},
        {a->rope.low_freq_factor, b->rope.low_freq_factor},
        {a->rope.high_freq_factor, b->rope.high_freq_factor},
        {a->rope.original_max_position, b->rope.original_max_position},
        {a->init_std, b->init_std},
    };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        assert_int_equal(counts[i][0], counts[i][1]);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        assert_true(numbers[i][0] == numbers[i][1]);
}

static void test_reads_a_llama(void **state) {
    (void)state;
    struct ot_config_file file;
    struct ot_model_config want = tiny_config(false);
    check_ok(parse_with(", \"bos_token_id\": 1, \"eos_token_id\": 2, \"torch_dtype\": \"float16\"", &file));
    check_same_config(&file.config, &want);
    assert_true(file.has_dtype);
    assert_int_equal(file.dtype, OT_F16);
    assert_int_equal(file.ids.bos, 1);
    assert_int_equal(file.ids.n_eos, 1);
    assert_int_equal(file.ids.eos[0], 2);
}

static void test_absent_and_older_keys(void **state) {
    (void)state;
    struct ot_config_file file;
    check_ok(
        parse("{\"architectures\": [\"LlamaForCausalLM\"], \"n_embd\": 32, \"n_inner\": 40, \"n_layer\": 3, "
              "\"n_head\": 4, \"vocab_size\": 50, \"n_positions\": 128}",
              &file));
    assert_int_equal(file.config.family, OT_FAMILY_LLAMA);
    assert_int_equal(file.config.n_kv_heads, 4);
    assert_int_equal(file.config.head_dim, 8);
    assert_int_equal(file.config.rotary_dim, 8);
    assert_true(file.config.norm_eps == 1e-6f);
    assert_true(file.config.rope.theta == 1e4);
    assert_true(file.config.init_std == 0.02);
    assert_false(file.config.tied);
    assert_false(file.has_dtype);
    assert_int_equal(file.ids.bos, -1);
    assert_int_equal(file.ids.n_eos, 0);
    check_ok(parse_with(
        ", \"num_key_value_heads\": null, \"head_dim\": null, \"dtype\": \"bfloat16\", \"eos_token_id\": "
        "[5, 6, 7], \"bos_token_id\": null, \"rope_scaling\": null",
        &file));
    assert_int_equal(file.config.n_kv_heads, 4);
    assert_int_equal(file.dtype, OT_BF16);
    assert_int_equal(file.ids.n_eos, 3);
    assert_int_equal(file.ids.eos[2], 7);
    assert_int_equal(file.ids.bos, -1);
}

static void test_biases_by_family(void **state) {
    (void)state;
    struct ot_config_file file;
    check_ok(parse_with(", \"attention_bias\": true, \"mlp_bias\": true", &file));
    assert_true(file.config.qkv_bias && file.config.out_bias && file.config.mlp_bias);
    check_ok(
        parse_with(", \"architectures\": null, \"model_type\": \"qwen2\", \"attention_bias\": true", &file));
    assert_true(file.config.qkv_bias && !file.config.out_bias);
    check_ok(parse_with(", \"architectures\": null, \"model_type\": \"mistral\", \"attention_bias\": true",
                        &file));
    assert_false(file.config.qkv_bias || file.config.out_bias);
    check_ok(parse_with(", \"architectures\": null, \"model_type\": \"qwen3\"", &file));
    assert_true(file.config.qk_norm && !file.config.qkv_bias);
    assert_int_equal(file.config.head_dim, 128); /* head_dim is not hidden / heads here */
}

static void test_windows(void **state) {
    (void)state;
    static const struct {
        const char *more;
        int64_t window, first;
    } cases[] = {
        {"\"model_type\": \"llama\", \"architectures\": null, \"sliding_window\": 8", 0, 0},
        {"\"model_type\": \"mistral\"", 4096, 0},
        {"\"model_type\": \"mistral\", \"sliding_window\": null", 0, 0},
        {"\"model_type\": \"mistral\", \"sliding_window\": 8", 8, 0},
        {"\"model_type\": \"qwen2\", \"sliding_window\": 8", 0, 0},
        {"\"model_type\": \"qwen2\", \"sliding_window\": 8, \"use_sliding_window\": true", 0,
         0}, /* from layer 28 on */
        {"\"model_type\": \"qwen2\", \"sliding_window\": 8, \"use_sliding_window\": true, "
         "\"max_window_layers\": 1",
         8, 1},
        {"\"model_type\": \"qwen2\", \"sliding_window\": 8, \"use_sliding_window\": true, "
         "\"max_window_layers\": 0",
         8, 0},
        {"\"model_type\": \"qwen3\", \"sliding_window\": 8, \"use_sliding_window\": true, \"layer_types\": "
         "[\"full_attention\", \"sliding_attention\"]",
         8, 1},
        {"\"model_type\": \"qwen3\", \"layer_types\": [\"full_attention\", \"full_attention\"]", 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ot_config_file file;
        char more[512];
        snprintf(more, sizeof more, ", \"architectures\": null, %s", cases[i].more);
        check_ok(parse_with(more, &file));
        assert_int_equal(file.config.window, cases[i].window);
        assert_int_equal(file.config.window_first_layer, cases[i].first);
    }
}

/* Layers with full attention and layers with a window in any order, read and written again. */
static void test_alternating_layers(void **state) {
    (void)state;
    static const char *const types[] = {"sliding_attention", "full_attention"};
    for (int pattern = 0; pattern < 16; pattern++) { /* bit l: layer l has a window */
        struct ot_config_file file, again;
        char more[512], *text;
        snprintf(more, sizeof more,
                 ", \"architectures\": null, \"model_type\": \"qwen3\", \"num_hidden_layers\": 4, "
                 "\"sliding_window\": 8, "
                 "\"use_sliding_window\": true, \"layer_types\": [\"%s\", \"%s\", \"%s\", \"%s\"]",
                 types[!(pattern & 1)], types[!(pattern & 2)], types[!(pattern & 4)], types[!(pattern & 8)]);
        check_ok(parse_with(more, &file));
        for (int l = 0; l < 4; l++)
            assert_int_equal(ot_model_layer_window(&file.config, l), pattern >> l & 1 ? 8 : 0);
        bool border = pattern == 0 || pattern == 8 || pattern == 12 || pattern == 14 || pattern == 15;
        assert_int_equal(file.config.window_by_layer, !border);
        check_ok(ot_model_config_write(&file, &text, NULL));
        check_ok(parse(text, &again));
        for (int l = 0; l < 4; l++)
            assert_int_equal(ot_model_layer_window(&again.config, l), pattern >> l & 1 ? 8 : 0);
        free(text);
    }
}

static void test_rope_of_both_ages(void **state) {
    (void)state;
    struct ot_config_file file;
    check_ok(parse_with(
        ", \"rope_theta\": 500000.0, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, "
        "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 32}",
        &file));
    struct ot_model_config old = file.config;
    assert_int_equal(old.rope.scaling, OT_ROPE_LLAMA3);
    assert_true(old.rope.theta == 5e5 && old.rope.factor == 8 && old.rope.low_freq_factor == 1);
    assert_true(old.rope.high_freq_factor == 4 && old.rope.original_max_position == 32);
    check_ok(parse_with(
        ", \"rope_parameters\": {\"rope_theta\": 500000.0, \"rope_type\": \"llama3\", \"factor\": 8.0, "
        "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 32}",
        &file));
    check_same_config(&file.config, &old);
    check_ok(parse_with(", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}", &file));
    assert_int_equal(file.config.rope.scaling, OT_ROPE_LINEAR);
    assert_true(file.config.rope.factor == 2);
    check_ok(parse_with(", \"rope_parameters\": {\"rope_theta\": 7000, \"rope_type\": \"default\", "
                        "\"partial_rotary_factor\": 0.5}",
                        &file));
    assert_int_equal(file.config.rope.scaling, OT_ROPE_PLAIN);
    assert_true(file.config.rope.theta == 7000);
    assert_int_equal(file.config.rotary_dim, file.config.head_dim); /* ignored, as transformers ignores it */
    check_ok(parse_with(", \"partial_rotary_factor\": 0.3", &file));
    assert_int_equal(file.config.rotary_dim, file.config.head_dim);
}

/* The text part of a model of text and images; what it leaves out is the family's. */
static void test_reads_a_text_part(void **state) {
    (void)state;
    static const char text[] =
        "{\"model_type\": \"gemma3\", \"architectures\": [\"Gemma3ForConditionalGeneration\"], "
        "\"eos_token_id\": [1, 106], \"text_config\": {\"model_type\": \"gemma3_text\", "
        "\"hidden_size\": 2560, "
        "\"intermediate_size\": 10240, \"num_hidden_layers\": 34, \"sliding_window\": 1024, "
        "\"rope_scaling\": {\"factor\": 8.0, \"rope_type\": \"linear\"}, \"bos_token_id\": 2}, "
        "\"vision_config\": {\"hidden_size\": 1152}}";
    struct ot_config_file file;
    struct ot_json *root;
    check_ok(ot_json_parse(text, strlen(text), "config.json", &root));
    check_ok(ot_model_config_parse(root, "config.json", &file));
    assert_int_equal(ot_model_param_count(&file.config),
                     3880263168); /* gemma-3-4b without its vision tower */
    assert_int_equal(file.config.rope.scaling, OT_ROPE_LINEAR);
    assert_true(file.config.local_rope_theta == 1e4 && file.config.rope.theta == 1e6);
    assert_int_equal(ot_model_layer_window(&file.config, 4), 1024);
    assert_int_equal(ot_model_layer_window(&file.config, 5), 0);
    assert_true(file.ids.bos == 2 && file.ids.n_eos == 2 && file.ids.eos[1] == 106);
    ot_json_free(root);
}

static void test_refuses_by_name(void **state) {
    (void)state;
    static const struct {
        const char *more, *words;
    } cases[] = {
        {"\"model_type\": \"rwkv\"", "model_type 'rwkv' is not supported; known model types: llama"},
        {"\"model_type\": null, \"architectures\": [\"FooForCausalLM\"]", "architecture 'FooForCausalLM'"},
        {"\"model_type\": null, \"architectures\": null", "the key 'model_type' is missing"},
        {"\"model_type\": 5", "'model_type' must be a string"},
        {"\"architectures\": [\"LlamaForSequenceClassification\"]", "must be a LlamaForCausalLM"},
        {"\"rope_scaling\": {\"type\": \"mrope\", \"factor\": 2}", "rope_scaling of type 'mrope'"},
        {"\"rope_scaling\": {\"rope_type\": \"dynamic\"}", "rope_scaling: the key 'factor' is missing"},
        {"\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 0.5}", "'factor' is 0.5"},
        {"\"rope_parameters\": {\"rope_type\": \"longrope\"}", "short_factor must be a list of"},
        {"\"rope_scaling\": {\"factor\": 2}", "'rope_type' is missing"},
        {"\"rope_scaling\": {\"type\": \"linear\"}", "rope_scaling: the key 'factor' is missing"},
        {"\"rope_scaling\": {\"type\": \"linear\", \"factor\": 0.5}", "'factor' is 0.5"},
        {"\"rope_scaling\": {\"type\": \"llama3\", \"factor\": 2}", "'low_freq_factor' is missing"},
        {"\"rope_scaling\": {\"type\": \"llama3\", \"factor\": 2, \"low_freq_factor\": 4, "
         "\"high_freq_factor\": 4, "
         "\"original_max_position_embeddings\": 8}",
         "high_freq_factor"},
        {"\"rope_scaling\": \"linear\"", "rope_scaling"},
        {"\"rope_theta\": \"big\"", "'rope_theta' must be"},
        {"\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\"}}", "for each layer type"},
        {"\"partial_rotary_factor\": 0.5, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}",
         "partial_rotary_factor 0.5 with a scaled rope"},
        {"\"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 2, \"partial_rotary_factor\": 0.25}",
         "partial_rotary_factor 0.25 with a scaled rope"},
        {"\"attention_dropout\": 2", "'attention_dropout'"},
        {"\"quantization_config\": {\"quant_method\": \"awq\"}", "quant_method 'awq' cannot be read"},
        {"\"hidden_act\": \"mish\"", "hidden_act 'mish' is not supported"},
        {"\"torch_dtype\": \"float64\"", "torch_dtype 'float64' is not supported"},
        {"\"hidden_size\": null", "key 'hidden_size' is null"},
        {"\"vocab_size\": null", "key 'vocab_size' is null"},
        {"\"num_hidden_layers\": 0", "'num_hidden_layers' is 0"},
        {"\"num_hidden_layers\": -1", "'num_hidden_layers' is -1"},
        {"\"num_hidden_layers\": 2.5", "'num_hidden_layers' must be an integer"},
        {"\"num_hidden_layers\": 99999999999", "'num_hidden_layers' is 99999999999"},
        {"\"hidden_size\": 2147483647, \"num_attention_heads\": 1, \"num_key_value_heads\": 1",
         "hidden_size"},
        {"\"num_attention_heads\": 5", "not a multiple of num_attention_heads 5"},
        {"\"num_key_value_heads\": 3", "num_key_value_heads"},
        {"\"rms_norm_eps\": -1", "'rms_norm_eps'"},
        {"\"eos_token_id\": 24", "eos_token_id must be a token id from 0 to 23"},
        {"\"eos_token_id\": [1, \"2\"]", "eos_token_id must be a token id"},
        {"\"eos_token_id\": [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "lists 17 ids"},
        {"\"bos_token_id\": -1", "bos_token_id must be"},
        {"\"tie_word_embeddings\": 1", "'tie_word_embeddings' must be"},
        {"\"architectures\": null, \"model_type\": \"qwen3\", \"layer_types\": [\"full_attention\"]",
         "layer_types must be"},
        {"\"architectures\": null, \"model_type\": \"qwen3\", \"layer_types\": [\"full_attention\", "
         "\"chunked\"]",
         "layer_types[1] 'chunked'"},
        {"\"architectures\": null, \"model_type\": \"mistral\", \"sliding_window\": 4, "
         "\"layer_types\": [\"sliding_attention\", \"full_attention\"]",
         "a model of type 'mistral' has a sliding window in every layer"},
        {"\"architectures\": null, \"model_type\": \"qwen3\", \"layer_types\": [\"full_attention\", "
         "\"sliding_attention\"]",
         "the sliding window is off"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ot_config_file file;
        char more[512];
        snprintf(more, sizeof more, ", %s", cases[i].more);
        check_fails(parse_with(more, &file), OT_E_INPUT, cases[i].words);
        check_fails(parse_with(more, &file), OT_E_INPUT, "config.json");
    }
    struct ot_config_file file;
    check_fails(parse("[]", &file), OT_E_INPUT, "holds an array, not a JSON object");
}

/* The program reads the config that it writes, for every preset. */
static void test_writes_what_it_reads(void **state) {
    (void)state;
    const struct ot_preset *preset;
    for (int i = 0; (preset = ot_preset_at(i)) != NULL; i++) {
        struct ot_config_file want = {.config = preset->config, .has_dtype = true, .dtype = OT_BF16}, got;
        want.ids = (struct ot_token_ids){.bos = 1, .n_eos = 1 + i % 2, .eos = {2, i % 2 ? 3 : 0}};
        char *text;
        check_ok(ot_model_config_write(&want, &text, NULL));
        check_ok(parse(text, &got));
        assert_int_equal(ot_model_param_count(&got.config), preset->n_params);
        check_same_config(&got.config, &want.config);
        assert_int_equal(got.ids.bos, 1);
        assert_int_equal(got.ids.n_eos, want.ids.n_eos);
        assert_memory_equal(got.ids.eos, want.ids.eos, sizeof got.ids.eos);
        assert_int_equal(got.dtype, OT_BF16);
        free(text);
    }
}

static void test_writes_windows_scaling_and_short_floats(void **state) {
    (void)state;
    struct ot_config_file want = {.config = ot_preset_find("qwen2.5-7b")->config,
                                  .has_dtype = true,
                                  .ids = {.bos = -1}},
                          got;
    char *text;
    want.config.window = 100;
    want.config.window_first_layer = 5;
    want.config.rope.scaling = OT_ROPE_LINEAR;
    want.config.rope.factor = 2.5;
    check_ok(ot_model_config_write(&want, &text, NULL));
    assert_non_null(strstr(text, "\"rms_norm_eps\": 1e-06"));
    check_ok(parse(text, &got));
    check_same_config(&got.config, &want.config);
    free(text);
}

static void test_rewrite_changes_what_must_and_keeps_the_rest(void **state) {
    (void)state;
    const char *base = "{\"a\": {\"b\": [1, 2.5, null]}, \"torch_dtype\": \"float32\", \"eos_token_id\": 2, "
                       "\"initializer_range\": 0.041666666666666664, \"z\": true}";
    struct ot_token_ids none = {.bos = -1}, same = {.bos = -1, .n_eos = 1, .eos = {2}},
                        other = {.bos = 4, .n_eos = 2, .eos = {2, 3}};
    struct ot_json *root, *again;
    char *text;
    check_ok(ot_json_parse(base, strlen(base), "base", &root));
    struct ot_config_changes changes = {.dtype = OT_F32, .ids = &none};
    check_ok(ot_model_config_rewrite(root, &changes, &text, NULL));
    assert_null(text);
    changes.ids = &same;
    check_ok(ot_model_config_rewrite(root, &changes, &text, NULL));
    assert_null(text);
    check_ok(ot_generation_config_rewrite(root, &none, &text, NULL));
    assert_null(text);
    changes = (struct ot_config_changes){.dtype = OT_BF16, .ids = &other};
    check_ok(ot_model_config_rewrite(root, &changes, &text, NULL));
    assert_non_null(strstr(text, "0.041666666666666664"));
    assert_null(strstr(text, "float32"));
    check_ok(ot_json_parse(text, strlen(text), "new", &again));
    free(text);
    assert_string_equal(ot_json_string(ot_json_get(again, "torch_dtype"), NULL), "bfloat16");
    assert_int_equal(ot_json_int(ot_json_at(ot_json_get(again, "eos_token_id"), 1), -1), 3);
    assert_int_equal(ot_json_int(ot_json_get(again, "bos_token_id"), -1), 4);
    assert_int_equal(ot_json_length(ot_json_get(ot_json_get(again, "a"), "b")), 3);
    assert_true(ot_json_bool(ot_json_get(again, "z"), false));
    ot_json_free(again);
    ot_json_free(root);
}

/* A new rope replaces the old one whole, whichever of these keys the file had. Two keys of one name have no
 * meaning. */
static void test_rewrite_replaces_the_rope(void **state) {
    (void)state;
    const char *base = "{\"rope_parameters\": \"old\", \"rope_scaling\": \"old\", \"rope_theta\": \"old\", "
                       "\"rope_local_base_freq\": \"old\", \"partial_rotary_factor\": \"old\", "
                       "\"max_position_embeddings\": \"old\", \"n_positions\": \"old\", "
                       "\"original_max_position_embeddings\": \"old\", \"z\": true}";
    const struct ot_model_config *c = &ot_preset_find("llama-3.1-8b")->config;
    const struct ot_token_ids none = {.bos = -1};
    const struct ot_config_changes changes = {.dtype = OT_F32, .ids = &none, .rope = c};
    struct ot_json *root, *again;
    char *text;
    check_ok(ot_json_parse(base, strlen(base), "base", &root));
    check_ok(ot_model_config_rewrite(root, &changes, &text, NULL));
    assert_null(strstr(text, "old"));
    check_ok(ot_json_parse(text, strlen(text), "new", &again));
    assert_int_equal(ot_json_int(ot_json_get(again, "max_position_embeddings"), -1), c->max_position);
    assert_true(ot_json_real(ot_json_get(again, "rope_theta"), 0) == c->rope.theta);
    assert_true(ot_json_bool(ot_json_get(again, "z"), false));
    ot_json_free(again);
    ot_json_free(root);
    free(text);
}

/* What is written from a config is read as the same config, also at the edges. */
static void test_edges_of_families(void **state) {
    (void)state;
#define SIZES                                                                                                \
    "\"vocab_size\": 44, \"hidden_size\": 24, \"num_hidden_layers\": 2, \"num_attention_heads\": 3, "        \
    "\"intermediate_size\": 36, \"max_position_embeddings\": 64, "
    static const char *const accepted[] = {
        /* A factor of 1e-7. */
        "{" SIZES "\"model_type\": \"phi3\", \"original_max_position_embeddings\": 640000000, "
        "\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 1, 1, 1], "
        "\"long_factor\": [2, 2, 2, 2]}}",
        /* A multiplier of 1 multiplies nothing, so biases are no trouble. */
        "{" SIZES "\"model_type\": \"granite\", \"residual_multiplier\": 1.0, \"attention_bias\": true}",
        /* Keys that transformers ignores. */
        "{" SIZES "\"model_type\": \"falcon\", \"head_dim\": 7}",
        "{" SIZES "\"model_type\": \"gpt2\", \"head_dim\": 6, \"num_key_value_heads\": 1}",
        "{" SIZES
        "\"model_type\": \"ministral3\", \"head_dim\": 8, \"num_key_value_heads\": 3, \"rope_parameters\": {"
        "\"original_max_position_embeddings\": 64, \"llama_4_scaling_beta\": 0}}"};
    for (size_t i = 0; i < sizeof accepted / sizeof *accepted; i++) {
        struct ot_config_file file, again;
        char *text;
        size_t bytes;
        check_ok(parse(accepted[i], &file));
        assert_true(file.config.head_dim == 8 && file.config.n_kv_heads <= 3);
        check_ok(ot_model_config_write(&file, &text, &bytes));
        check_ok(parse(text, &again));
        check_same_config(&file.config, &again.config);
        free(text);
    }
    static const char *const refused[][2] = {
        {"{" SIZES "\"model_type\": \"codegen\"}", "has 4 groups, but num_attention_heads is 3"},
        {"{" SIZES "\"model_type\": \"falcon\", \"new_decoder_architecture\": true, \"num_kv_heads\": 2}",
         "not a multiple of num_key_value_heads, 2"},
        {"{" SIZES "\"model_type\": \"llama\", \"rope_scaling\": {\"type\": \"yarn\", "
         "\"factor\": null, \"original_max_position_embeddings\": 65}}",
         "factor is null, and original_max_position_embeddings, 65, is above max_position_embeddings, 64"},
        {"{" SIZES "\"model_type\": \"phi3\", \"original_max_position_embeddings\": 1, \"rope_scaling\": {"
         "\"type\": \"longrope\", \"short_factor\": [1, 1, 1, 1], \"long_factor\": [2, 2, 2, 2]}}",
         "attention_factor is inf"},
        {"{" SIZES "\"model_type\": \"ministral3\"}", "'rope_parameters' is missing"}};
#undef SIZES
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct ot_config_file file;
        check_fails(parse(refused[i][0], &file), OT_E_INPUT, refused[i][1]);
    }
}

/* Configs of well-known models. Supported families parse to their published sizes; the others are refused
 * with an error that names the family. */
static void test_published_configs(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int64_t n_params; /* 0: the config is refused */
        const char *words;
    } models[] = {
        {"llama2_7b", 6738415616, NULL},
        {"llama2_13b", 13015864320, NULL},
        {"llama2_70b", 68976648192, NULL},
        {"llama3_1_8b", 8030261248, NULL},
        {"llama3_2_1b", 1235814400, NULL},
        {"tinyllama_1b_chat_v1.0", 1100048384, NULL},
        {"smollm2_135m", 134515008, NULL},
        {"mistral_7b", 7241732096, NULL},
        {"mistral_7b_v03", 7248023552, NULL},
        {"qwen2_0_5b", 494032768, NULL},
        {"qwen2_7b", 7615616512, NULL},
        {"qwen2.5_3b", 3085938688, NULL},
        {"qwen3_0.6b", 596049920, NULL},
        {"qwen3_1.7b", 1720574976, NULL},
        {"bloom-7b1", 7069016064, NULL},
        {"falcon-7b", 6921720704, NULL},
        {"gpt2", 124439808, NULL},
        {"codegen2-1B-executorch", 0, "'model_type' is missing"},
    };
    if (!shared_path("configs")) {
        print_message("SKIP: real configs are absent\n");
        skip();
    }
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char relative[128];
        struct ot_json *root;
        struct ot_config_file file;
        snprintf(relative, sizeof relative, "configs/%s.json", models[i].name);
        const char *path = shared_path(relative);
        assert_non_null(path);
        check_ok(ot_json_read_file(path, OT_CONFIG_MAX_BYTES, &root));
        int rc = ot_model_config_parse(root, path, &file);
        ot_json_free(root);
        if (models[i].n_params == 0) {
            check_fails(rc, OT_E_INPUT, models[i].words);
            continue;
        }
        if (rc < 0)
            fail_msg("%s", ot_error_text());
        assert_int_equal(ot_model_param_count(&file.config), models[i].n_params);
        if (strcmp(models[i].name, "llama3_1_8b") == 0) {
            assert_int_equal(file.ids.n_eos, 3);
            assert_int_equal(file.ids.eos[2], 128009);
            assert_int_equal(file.config.rope.scaling, OT_ROPE_LLAMA3);
        }
        if (strcmp(models[i].name, "mistral_7b") == 0)
            assert_int_equal(file.config.window, 4096);
        if (strcmp(models[i].name, "mistral_7b_v03") == 0)
            assert_int_equal(file.config.window, 0);
    }
}

/* transformers looks for the start token of an encoder-decoder in generation_config.json alone. */
static void test_pairs_have_a_start_token(void **state) {
    (void)state;
    const struct ot_token_ids ids = {.bos = -1, .n_eos = 1, .eos = {1}};
    for (int pairs = 0; pairs < 2; pairs++) {
        char *text;
        size_t bytes;
        struct ot_json *root;
        check_ok(ot_generation_config_write(&ids, pairs, &text, &bytes));
        check_ok(ot_json_parse(text, bytes, "generation_config.json", &root));
        assert_int_equal(ot_json_int(ot_json_get(root, "decoder_start_token_id"), -1), pairs ? 0 : -1);
        assert_int_equal(ot_json_int(ot_json_get(root, "pad_token_id"), -1), pairs ? 0 : -1);
        assert_int_equal(ot_json_int(ot_json_get(root, "eos_token_id"), -1), 1);
        ot_json_free(root);
        free(text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pairs_have_a_start_token),
        cmocka_unit_test(test_reads_a_llama),
        cmocka_unit_test(test_absent_and_older_keys),
        cmocka_unit_test(test_biases_by_family),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_alternating_layers),
        cmocka_unit_test(test_rope_of_both_ages),
        cmocka_unit_test(test_reads_a_text_part),
        cmocka_unit_test(test_refuses_by_name),
        cmocka_unit_test(test_writes_what_it_reads),
        cmocka_unit_test(test_writes_windows_scaling_and_short_floats),
        cmocka_unit_test(test_rewrite_changes_what_must_and_keeps_the_rest),
        cmocka_unit_test(test_rewrite_replaces_the_rope),
        cmocka_unit_test(test_edges_of_families),
        cmocka_unit_test(test_published_configs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
