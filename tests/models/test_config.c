/* Configurations, families and presets: parameter counts, refusals, FLOPs. */
#include <math.h>
#include <string.h>

#include "models/model.h"
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
        {"qwen3-8b", 8190735360},
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

static bool in_last_layer(const void *context, const struct ot_tensor *tensor) {
    (void)context;
    return strncmp(tensor->name, "model.layers.31.", 16) == 0;
}

static double flops_of(const struct ot_model_config *config, const struct ot_model_parts *parts,
                       double row_tokens) {
    struct ot_model *model;
    check_ok(ot_model_open_parts(config, OT_F32, 16, parts, &model));
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
    const struct ot_model_parts last = {.trains = in_last_layer};
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_presets_have_exact_counts),
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_bad_configs_are_refused),
        cmocka_unit_test(test_flops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
