/* Frequencies of every scaling of rope against transformers (scripts/golden/rope.py). */
#include <math.h>
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frequencies),
        cmocka_unit_test(test_local_frequencies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
