/* Frequencies of every scaling of rope against transformers (scripts/golden/rope.py). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "models/model.h"
#include "models/rope.h"
#include "src/base/json.h"
#include "tests/support/check.h"

static void check_case(const char *name, const struct ot_json *golden) {
    const struct ot_json *frequencies = ot_json_get(golden, "frequencies");
    int64_t length = ot_json_int(ot_json_get(golden, "length"), 0);
    double factor = ot_json_real(ot_json_get(golden, "factor"), 0);
    struct ot_model_config config;
    check_ok(ot_model_config_read(ot_json_get(golden, "config"), name, &config));
    assert_int_equal(config.rotary_dim, 2 * (int64_t)ot_json_length(frequencies));
    for (int64_t j = 0; j < config.rotary_dim / 2; j++) {
        double want = ot_json_real(ot_json_at(frequencies, (size_t)j), -1);
        double got = ot_rope_frequency(&config, length, false, j);
        if (!(fabs(got - want) <= 1e-6 * want)) /* transformers computes in fp32 */
            fail_msg("%s: frequency %lld is %.9g, wanted %.9g", name, (long long)j, got, want);
    }
    bool has_factor = config.rope.scaling == OT_ROPE_YARN || config.rope.scaling == OT_ROPE_LONGROPE;
    assert_true(fabs((has_factor ? config.rope.attention_factor : 1) - factor) < 1e-12);
}

static void test_frequencies(void **state) {
    (void)state;
    struct ot_json *root, *golden;
    void *cursor = NULL;
    const char *name;
    bool seen[OT_ROPE_SCALINGS] = {false};
    check_ok(ot_json_read_file(OT_TEST_GOLDEN "/rope.json", 1 << 20, &root));
    while (ot_json_next(root, &cursor, &name, &golden)) {
        struct ot_model_config config;
        check_case(name, golden);
        check_ok(ot_model_config_read(ot_json_get(golden, "config"), name, &config));
        seen[config.rope.scaling] = true;
    }
    for (int i = OT_ROPE_PLAIN + 1; i < OT_ROPE_SCALINGS; i++)
        assert_true(seen[i]);
    ot_json_free(root);
}

/* Layers with a window turn by a theta of their own. */
static void test_local_frequencies(void **state) {
    (void)state;
    const struct ot_model_config *config = &ot_preset_find("gemma-3-1b")->config;
    for (int64_t j = 0; j < config->rotary_dim / 2; j++) {
        double share = 2.0 * (double)j / 256;
        assert_true(fabs(ot_rope_frequency(config, 64, true, j) * pow(1e4, share) - 1) < 1e-12);
        assert_true(fabs(ot_rope_frequency(config, 64, false, j) * pow(1e6, share) - 1) < 1e-12);
    }
}

/* A scaling that a person chooses reads back from the config that is written, and stretches the context. */
static void test_chosen_scalings(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t longest, max_position;
    } cases[] = {{"yarn:4", 8192, 8192}, {"linear:2", 4096, 4096}, {"dynamic:2.5", 5120, 2048}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct ot_model_config config = ot_preset_find("llama-7b")->config, again;
        struct ot_json_writer writer = {.indent = -1};
        struct ot_json *root;
        char *text;
        size_t bytes;
        check_ok(ot_model_config_scale_rope(&config, cases[i].text));
        assert_int_equal(config.max_position, cases[i].max_position);
        assert_int_equal(ot_model_longest_row(&config), cases[i].longest);
        ot_json_begin_object(&writer, NULL);
        ot_model_config_put(&config, &writer);
        ot_json_end_object(&writer);
        check_ok(ot_json_writer_take(&writer, &text, &bytes));
        check_ok(ot_json_parse(text, bytes, "written", &root));
        check_ok(ot_model_config_read(root, "written", &again));
        assert_true(ot_model_config_same_rope(&config, &again));
        for (int64_t j = 0; j < config.rotary_dim / 2; j++) {
            double want = ot_rope_frequency(&config, 5000, false, j);
            assert_true(fabs(ot_rope_frequency(&again, 5000, false, j) - want) <= 1e-8 * want);
        }
        ot_json_free(root);
        free(text);
    }
}

static void test_wrong_scalings(void **state) {
    (void)state;
    static const char *const texts[] = {"yarn",       "yarn:",     "yarn:x", "yarn:1", "yarn:1e9",
                                        "longrope:4", "linear:4x", ":4",     "",       "yarn:nan"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct ot_model_config config = ot_preset_find("llama-7b")->config;
        check_fails(ot_model_config_scale_rope(&config, texts[i]), OT_E_USAGE, texts[i]);
    }
    struct ot_model_config scaled = ot_preset_find("llama-3.1-8b")->config,
                           none = ot_preset_find("gpt2")->config;
    check_fails(ot_model_config_scale_rope(&scaled, "linear:2"), OT_E_USAGE,
                "of type llama3 can be replaced by yarn:N or llama3:N, not by linear");
    check_fails(ot_model_config_scale_rope(&scaled, "dynamic:2"), OT_E_USAGE, "not by dynamic");
    scaled.rope.scaling = OT_ROPE_LONGROPE;
    check_fails(ot_model_config_scale_rope(&scaled, "yarn:2"), OT_E_USAGE,
                "of type longrope can be replaced by none, not by yarn");
    check_fails(ot_model_config_scale_rope(&none, "yarn:2"), OT_E_USAGE, "no rotary positions");
    none = ot_preset_find("llama-7b")->config;
    check_fails(ot_model_config_scale_rope(&none, "llama3:2"), OT_E_USAGE,
                "the config has none; give yarn:N, linear:N or");
}

/* A scaling in place of the config's own counts from the positions before that. */
static void test_replaced_scalings(void **state) {
    (void)state;
    struct ot_model_config config = ot_preset_find("llama-3.1-8b")->config;
    const struct ot_rope_config own = config.rope;
    check_ok(ot_model_config_scale_rope(&config, "llama3:2"));
    assert_int_equal(config.max_position, 262144);
    assert_true(config.rope.factor == 16 && config.rope.original_max_position == 8192);
    assert_true(config.rope.low_freq_factor == own.low_freq_factor);
    check_ok(ot_model_config_scale_rope(&config, "yarn:4"));
    assert_int_equal(config.max_position, 1048576);
    assert_int_equal(config.rope.scaling, OT_ROPE_YARN);
    assert_true(config.rope.factor == 128 && config.rope.original_max_position == 8192);
    assert_true(config.rope.attention_factor == 0.1 * log(128) + 1);
    assert_true(config.rope.beta_fast == 32 && config.rope.beta_slow == 1);
    config.rope.beta_fast = 16;
    check_ok(ot_model_config_scale_rope(&config, "yarn:2"));
    assert_int_equal(config.max_position, 2097152);
    assert_true(config.rope.factor == 256 && config.rope.original_max_position == 8192);
    assert_true(fabs(config.rope.attention_factor - (0.1 * log(256) + 1)) < 1e-12);
    assert_true(config.rope.beta_fast == 16);

    config = ot_preset_find("llama-7b")->config;
    check_ok(ot_model_config_scale_rope(&config, "linear:4"));
    check_ok(ot_model_config_scale_rope(&config, "linear:2"));
    assert_true(config.max_position == 16384 && config.rope.factor == 8);
    check_fails(ot_model_config_scale_rope(&config, "yarn:2"), OT_E_USAGE,
                "of type linear can be replaced by linear:N, not by yarn");
    check_fails(ot_model_config_scale_rope(&config, "linear:2e4"), OT_E_USAGE, "at most 10000");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frequencies),       cmocka_unit_test(test_local_frequencies),
        cmocka_unit_test(test_chosen_scalings),   cmocka_unit_test(test_wrong_scalings),
        cmocka_unit_test(test_replaced_scalings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
