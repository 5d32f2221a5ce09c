/* Configurations, families and presets: parameter counts, refusals, FLOPs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/model.h"
#include "src/base/json.h"
#include "tests/support/check.h"

/* The parameter counts of the published model cards. A preset must state the count, and its sizes must give
 * it. */
static void test_presets_have_exact_counts(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int64_t n_params;
    } cards[] = {
        {"llama-7b", 6738415616},     {"llama-13b", 13015864320},     {"llama-2-7b", 6738415616},
        {"llama-2-13b", 13015864320}, {"llama-3-8b", 8030261248},     {"llama-3.1-8b", 8030261248},
        {"llama-3.2-1b", 1235814400}, {"tinyllama-1.1b", 1100048384}, {"mistral-7b", 7241732096},
        {"qwen2.5-0.5b", 494032768},  {"qwen2.5-7b", 7615616512},     {"qwen3-0.6b", 596049920},
        {"qwen3-8b", 8190735360},     {"qwen3-32b", 32762123264},
    };
    for (size_t i = 0; i < sizeof cards / sizeof cards[0]; i++) {
        const struct ot_preset *preset = ot_preset_find(cards[i].name);
        assert_non_null(preset);
        assert_int_equal(preset->n_params, cards[i].n_params);
    }
    int n = 0;
    for (const struct ot_preset *preset; (preset = ot_preset_at(n)); n++) {
        check_ok(ot_model_config_check(&preset->config, preset->name));
        assert_int_equal(ot_model_param_count(&preset->config), preset->n_params);
        assert_ptr_equal(ot_preset_find(preset->name), preset);
    }
    assert_true(n >= 15);
    assert_null(ot_preset_at(-1));
    assert_null(ot_preset_find("llama-8b"));
    assert_non_null(ot_preset_find("tiny-sql"));
    assert_non_null(ot_preset_find("tiny-test"));
}

static const char *name_of(const struct ot_preset *preset) {
    return preset ? preset->name : "none";
}

/* What people type for a model: its hub id, another case, no hyphens. */
static void presets_are_found_by_their_other_spellings(void **state) {
    (void)state;
    static const char *const cases[][3] = {
        /* the name; the preset that is this model; the one of its shape */
        {"meta-llama/Meta-Llama-3-8B", "llama-3-8b", "llama-3-8b"},
        {"qwen/qwen3-8b", "qwen3-8b", "qwen3-8b"},
        {"Llama-3.1-8B", "llama-3.1-8b", "llama-3.1-8b"},
        {"Meta-Llama-3-8B", "llama-3-8b", "llama-3-8b"},
        {"llama13b", "llama-13b", "llama-13b"},
        {"LLAMA_2_13B", "llama-2-13b", "llama-2-13b"},
        {"unsloth/Llama-3.1-8B", "none", "llama-3.1-8b"}, /* other weights, perhaps */
        {"meta-llama/Llama-3.1-8B-Instruct", "none", "llama-3.1-8b"},
        {"Llama-2-7b-chat-hf", "none", "llama-2-7b"},
        {"google/gemma-2-9b-it", "none", "gemma-2-9b"},
        {"phi-3-mini-4k", "phi-3-mini-4k", "phi-3-mini-4k"},
        {"llama-3-80b", "none", "none"},
        {"Qwen/Qwen3-4B", "none", "none"},
        {"instruct", "none", "none"},
        {"", "none", "none"},
        {"/", "none", "none"},
        {"-._", "none", "none"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_string_equal(name_of(ot_preset_spelled(cases[i][0])), cases[i][1]);
        assert_string_equal(name_of(ot_preset_shaped(cases[i][0])), cases[i][2]);
    }
    for (int i = 0; ot_preset_at(i); i++) { /* no preset has another spelling of another preset */
        const struct ot_preset *preset = ot_preset_at(i);
        assert_ptr_equal(ot_preset_spelled(preset->name), preset);
        if (preset->hub_id)
            assert_ptr_equal(ot_preset_spelled(preset->hub_id), preset);
    }
    char longest[400];
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_null(ot_preset_shaped(longest));
}

/* The keys of a config as this program writes them. The caller frees the text. */
static char *text_of(const struct ot_model_config *config) {
    struct ot_json_writer writer = {.indent = -1};
    char *text;
    ot_json_begin_object(&writer, NULL);
    ot_model_config_put(config, &writer);
    ot_json_end_object(&writer);
    check_ok(ot_json_writer_take(&writer, &text, NULL));
    return text;
}

static void check_equal(const char *name, const struct ot_model_config *a, const struct ot_model_config *b) {
    char *one = text_of(a), *other = text_of(b);
    if (strcmp(one, other) != 0)
        fail_msg("%s differs:\n%s\n%s", name, one, other);
    free(one);
    free(other);
}

/* What no key says, because the family has it. */
static void check_facts(const char *name, const struct ot_model_config *a, const struct ot_model_config *b) {
    const int64_t facts[][2] = {
        {a->family, b->family},
        {a->norm, b->norm},
        {a->norm_adds_one, b->norm_adds_one},
        {a->norm_place, b->norm_place},
        {a->residual, b->residual},
        {a->embed_norm, b->embed_norm},
        {a->positions, b->positions},
        {a->rotary_dim, b->rotary_dim},
        {a->rope_interleaved, b->rope_interleaved},
        {a->qk_norm, b->qk_norm},
        {a->alibi_scaled, b->alibi_scaled},
        {a->act, b->act},
        {a->plain_mlp, b->plain_mlp},
        {a->qkv_bias, b->qkv_bias},
        {a->out_bias, b->out_bias},
        {a->mlp_bias, b->mlp_bias},
        {a->head_bias, b->head_bias},
        {a->fused_groups, b->fused_groups},
        {a->fused_v_first, b->fused_v_first},
        {a->window_first_layer, b->window_first_layer},
        {a->window_by_layer, b->window_by_layer},
        {a->n_experts, b->n_experts},
        {a->top_experts, b->top_experts},
        {a->expert_ffn, b->expert_ffn},
        {a->router_over_all, b->router_over_all},
    };
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++)
        if (facts[i][0] != facts[i][1])
            fail_msg("%s: fact %zu is %lld, wanted %lld", name, i, (long long)facts[i][0],
                     (long long)facts[i][1]);
    assert_true(fabs(a->embed_scale - b->embed_scale) < 1e-9);
    assert_true(a->residual_scale == b->residual_scale && a->logit_divisor == b->logit_divisor);
    assert_true(a->attention_scale == b->attention_scale && a->q_scale_beta == b->q_scale_beta);
    assert_true(a->attention_softcap == b->attention_softcap && a->logit_softcap == b->logit_softcap);
    assert_memory_equal(&a->window_layers, &b->window_layers, sizeof a->window_layers);
    assert_memory_equal(&a->no_rope, &b->no_rope, sizeof a->no_rope);
    assert_memory_equal(&a->dense_layers, &b->dense_layers, sizeof a->dense_layers);
}

/* Reads what was written: the same again. */
static void check_round_trip(const char *name, const struct ot_model_config *config) {
    struct ot_model_config again;
    struct ot_json *root;
    char *text = text_of(config);
    check_ok(ot_json_parse(text, strlen(text), name, &root));
    check_ok(ot_model_config_read(root, name, &again));
    check_equal(name, config, &again);
    check_facts(name, config, &again);
    ot_json_free(root);
    free(text);
}

/* Models in full size, as transformers describes and counts them: scripts/golden/configs.py. */
static void test_known_models(void **state) {
    (void)state;
    struct ot_json *root, *model;
    void *cursor = NULL;
    const char *name;
    int n = 0, n_presets = 0;
    check_ok(ot_json_read_file(OT_TEST_GOLDEN "/configs.json", 1 << 20, &root));
    for (; ot_json_next(root, &cursor, &name, &model); n++) {
        const struct ot_preset *preset = ot_preset_find(name);
        int64_t want = ot_json_int(ot_json_get(model, "n_params"), -1);
        struct ot_model_config config;
        struct ot_model *open;
        check_ok(ot_model_config_read(ot_json_get(model, "config"), name, &config));
        if (ot_model_param_count(&config) != want)
            fail_msg("%s has %lld parameters, wanted %lld", name, (long long)ot_model_param_count(&config),
                     (long long)want);
        check_ok(ot_model_open(&config, OT_BF16, 16, &open));
        ot_model_close(open);
        check_round_trip(name, &config);
        if (preset) {
            check_equal(name, &preset->config, &config);
            check_facts(name, &preset->config, &config);
        }
        n_presets += preset != NULL;
    }
    ot_json_free(root);
    assert_true(n >= 32 && n_presets >= 28);
}

static void test_families(void **state) {
    (void)state;
    for (int f = 0; f < OT_FAMILY_COUNT; f++) {
        const struct ot_family_row *row = ot_family_row((enum ot_family)f);
        assert_int_equal(row->family, f);
        assert_ptr_equal(ot_family_find(row->model_type), row);
        assert_non_null(strstr(ot_family_known_types(), row->model_type));
    }
    assert_null(ot_family_find("rwkv"));
    assert_null(ot_family_find(""));
    assert_true(ot_family_find("qwen2")->base.qkv_bias);
    assert_true(ot_family_find("qwen3")->base.qk_norm);
    assert_int_equal(ot_family_find("mistral")->base.window, 4096);
}

static void test_bad_configs_are_refused(void **state) {
    (void)state;
    const struct ot_model_config good = ot_preset_find("llama-3.1-8b")->config;
    check_ok(ot_model_config_check(&good, "ok"));
#define REFUSED(field, bad, words)                                                                           \
    do {                                                                                                     \
        struct ot_model_config c = good;                                                                     \
        c.field = (bad);                                                                                     \
        check_fails(ot_model_config_check(&c, "dir/config.json"), OT_E_INPUT, words);                        \
        check_fails(ot_model_config_check(&c, "dir/config.json"), OT_E_INPUT, "dir/config.json: ");          \
    } while (0)
    REFUSED(n_layers, 0, "num_hidden_layers is 0");
    REFUSED(n_layers, (int64_t)1 << 40, "num_hidden_layers");
    REFUSED(hidden, -4096, "hidden_size is -4096");
    REFUSED(hidden, INT64_MAX, "hidden_size");
    REFUSED(ffn, 0, "intermediate_size");
    REFUSED(n_heads, 33, "multiple of num_key_value_heads");
    REFUSED(n_heads, (int64_t)1 << 20, "num_attention_heads x head_dim");
    REFUSED(n_kv_heads, 0, "num_key_value_heads");
    REFUSED(head_dim, INT64_MIN, "head_dim");
    REFUSED(vocab, (int64_t)1 << 31, "vocab_size");
    REFUSED(max_position, 0, "max_position_embeddings");
    REFUSED(window, -1, "sliding_window");
    REFUSED(window_first_layer, -1, "max_window_layers");
    REFUSED(rotary_dim, 3, "3 of each head's 128");
    REFUSED(rotary_dim, 130, "head_dim");
    REFUSED(rope.theta, 0, "rope_theta");
    REFUSED(rope.theta, NAN, "rope_theta");
    REFUSED(rope.factor, -1, "rope_scaling.factor");
    REFUSED(rope.low_freq_factor, 0, "low_freq_factor");
    REFUSED(rope.high_freq_factor, 1, "high_freq_factor is 1, must be above");
    REFUSED(rope.original_max_position, INFINITY, "original_max_position_embeddings");
    REFUSED(norm_eps, 0, "rms_norm_eps");
    REFUSED(init_std, -1, "initializer_range");
    REFUSED(attention_softcap, -1, "a softcap");
    REFUSED(logit_softcap, NAN, "a softcap");
    REFUSED(fused_groups, 2, "no fused matrix");
#undef REFUSED
    struct ot_model_config huge = good; /* each size is accepted alone, but not all together */
    huge.n_layers = 1024;
    huge.hidden = huge.ffn = (int64_t)1 << 24;
    check_fails(ot_model_config_check(&huge, "x"), OT_E_INPUT, "parameters");
    struct ot_model *model;
    check_fails(ot_model_open(&huge, OT_F32, 64, &model), OT_E_INPUT, "parameters");
    assert_null(model);
    check_fails(ot_model_open(&good, OT_F32, 0, &model), OT_E_INPUT, "sequence length is 0 tokens");
}

/* A config.json of a type with experts, without its braces, that is refused with these words. */
static void check_refused(const char *keys, const char *words) {
    struct ot_model_config config;
    struct ot_json *root;
    char text[512];
    int n = snprintf(text, sizeof text,
                     "{%s, \"vocab_size\": 44, \"hidden_size\": 24, \"intermediate_size\": 36, "
                     "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
                     "\"max_position_embeddings\": 64}",
                     keys);
    check_ok(ot_json_parse(text, (size_t)n, "c", &root));
    if (words)
        check_fails(ot_model_config_read(root, "c", &config), OT_E_INPUT, words);
    else
        check_ok(ot_model_config_read(root, "c", &config));
    ot_json_free(root);
}

static void test_bad_experts_are_refused(void **state) {
    (void)state;
#define MIXTRAL "\"model_type\": \"mixtral\""
#define QWEN    "\"model_type\": \"qwen3_moe\""
    static const char *const cases[][2] = {
        {MIXTRAL, NULL},
        {MIXTRAL ", \"router_jitter_noise\": 0.0, \"output_router_logits\": false", NULL},
        {MIXTRAL ", \"output_router_logits\": true, \"router_aux_loss_coef\": 0.01", NULL},
        {MIXTRAL ", \"router_aux_loss_coef\": -1", "'router_aux_loss_coef'"},
        {MIXTRAL ", \"num_local_experts\": 0", "num_local_experts"},
        {MIXTRAL ", \"num_local_experts\": -8", "num_local_experts"},
        {MIXTRAL ", \"num_local_experts\": 1000000000000", "num_local_experts"},
        {MIXTRAL ", \"num_local_experts\": \"8\"", "num_local_experts"},
        {MIXTRAL ", \"num_local_experts\": 4, \"num_experts_per_tok\": 5", "num_experts_per_tok is 5"},
        {MIXTRAL ", \"num_experts_per_tok\": 0", "num_experts_per_tok"},
        {MIXTRAL ", \"router_jitter_noise\": 0.1", "router_jitter_noise is 0.1; only 0 is supported"},
        {QWEN, NULL},
        {QWEN ", \"mlp_only_layers\": [1]", NULL},
        {QWEN ", \"mlp_only_layers\": [0, 2]", "mlp_only_layers[1] must be the number of a layer"},
        {QWEN ", \"mlp_only_layers\": [-1]", "mlp_only_layers[0] must be the number of a layer"},
        {QWEN ", \"mlp_only_layers\": [\"0\"]", "mlp_only_layers[0] must be the number of a layer"},
        {QWEN ", \"num_experts\": 0", "num_experts"},
        {QWEN ", \"num_experts\": 4, \"num_experts_per_tok\": 8", "num_experts_per_tok is 8"},
        {QWEN ", \"moe_intermediate_size\": 0", "moe_intermediate_size"},
        {QWEN ", \"moe_intermediate_size\": 2000000000", "moe_intermediate_size"},
        {QWEN ", \"decoder_sparse_step\": 0", "decoder_sparse_step"},
    };
#undef MIXTRAL
#undef QWEN
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_refused(cases[i][0], cases[i][1]);
    struct ot_model_config c = ot_preset_find("llama-3.1-8b")->config;
    c.n_experts = 8;
    c.top_experts = 2;
    c.expert_ffn = 64;
    check_fails(ot_model_config_check(&c, "c"), OT_E_INPUT, "experts need a family that has them");
}

static bool in_last_layer(const void *context, const struct ot_tensor *tensor) {
    (void)context;
    return strncmp(tensor->name, "model.layers.31.", 16) == 0;
}

static struct ot_lora_rank four_of_the_head(const void *context, const char *module) {
    (void)context;
    return (struct ot_lora_rank){strcmp(module, "lm_head") == 0 ? 4 : 0, 4};
}

static struct ot_lora_rank eight_of_the_head(const void *context, const char *module) {
    struct ot_lora_rank rank = four_of_the_head(context, module);
    return (struct ot_lora_rank){2 * rank.rank, rank.alpha};
}

static double flops_of(const struct ot_model_config *config, const struct ot_model_setup *parts,
                       double row_tokens) {
    struct ot_model *model;
    check_ok(ot_model_open_setup(config, OT_F32, 16, parts, &model));
    double flops = ot_model_flops_per_token(model, row_tokens);
    ot_model_close(model);
    return flops;
}

/* Llama-7B at 2048 tokens: 6 x (N - embedding) + 12 x layers x 4096 x 1024.5. */
static void test_flops(void **state) {
    (void)state;
    const struct ot_model_config *llama = &ot_preset_find("llama-7b")->config;
    double n = 6738415616.0 - 32000.0 * 4096, attention = 12.0 * 32 * 4096 * 1024.5;
    assert_true(fabs(flops_of(llama, NULL, 2048) / (6 * n + attention) - 1) < 1e-12);

    /* If the last layer alone is trained, all other blocks run forward alone, but the head, whose input has a
     * gradient. */
    const struct ot_model_setup last = {.trains = in_last_layer};
    double layer = 4 * 4096.0 * 4096 + 3 * 4096.0 * 11008 + 2 * 4096, head = 32000 * 4096.0 + 4096;
    double want = 2 * (n - layer - head) + 4 * head + 6 * layer + attention / 32 * (1 + 31.0 / 3);
    assert_true(fabs(flops_of(llama, &last, 2048) / want - 1) < 1e-12);

    /* A tied projection counts, because it multiplies. */
    const struct ot_model_config *tied = &ot_preset_find("llama-3.2-1b")->config;
    double without_attention = flops_of(tied, NULL, 1) - 12.0 * 16 * 2048;
    assert_true(fabs(without_attention / (6 * 1235814400.0) - 1) < 1e-12);

    /* A window of 4 over a row of 6: 1 + 2 + 3 + 4 + 4 + 4 keys. In the second of two layers only. */
    struct ot_model_config windowed = ot_preset_find("tiny-test")->config;
    double base = flops_of(&windowed, NULL, 6);
    windowed.window = 4;
    windowed.window_first_layer = 1;
    double saved = base - flops_of(&windowed, NULL, 6);
    assert_true(fabs(saved - 12.0 * 64 * (21.0 / 6 - 18.0 / 6)) < 1e-6);
}

/* An adapter of the head costs 6 FLOPs a parameter. Half of the tokens of a pair are the decoder's. */
static void test_flops_of_an_adapter(void **state) {
    (void)state;
    static const struct {
        const char *preset;
        double share;
    } cases[] = {{"llama-3.1-8b", 1}, {"flan-t5-base", 0.5}};
    const struct ot_lora four = {.choose = four_of_the_head}, eight = {.choose = eight_of_the_head};
    const struct ot_model_setup less = {.lora = &four}, more = {.lora = &eight};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct ot_model_config *c = &ot_preset_find(cases[i].preset)->config;
        double added = flops_of(c, &more, 64) - flops_of(c, &less, 64);
        assert_true(fabs(added / (cases[i].share * 6 * 4 * (double)(c->vocab + c->hidden)) - 1) < 1e-6);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_presets_have_exact_counts),
        cmocka_unit_test(presets_are_found_by_their_other_spellings),
        cmocka_unit_test(test_known_models),
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_bad_configs_are_refused),
        cmocka_unit_test(test_bad_experts_are_refused),
        cmocka_unit_test(test_flops),
        cmocka_unit_test(test_flops_of_an_adapter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
