/* --train and --freeze: which tensors each pattern selects, and what is refused. */
#include <string.h>

#include "models/selection.h"
#include "offload/block.h"
#include "tests/support/check.h"

enum { LAYERS = 6 };

static struct ot_model_config small(bool tied, bool biases) {
    struct ot_model_config c = ot_preset_find("tiny-test")->config;
    c.n_layers = LAYERS;
    c.tied = tied;
    c.qkv_bias = biases;
    return c;
}

/* Counts the trained tensors whose name contains `part`. */
static int trained(const struct ot_model *model, const char *part) {
    int n = 0;
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++)
        n += ot_model_tensor(model, i)->trained && strstr(ot_model_tensor(model, i)->name, part);
    return n;
}

static void test_patterns(void **state) {
    (void)state;
    enum { OF_LAYER = 7 + 2 + 3 }; /* matrices, norms, biases */
    static const struct {
        const char *train, *freeze;
        int all, embed, head, norms, biases, layer2;
    } cases[] = {
        {NULL, NULL, 3 + LAYERS * OF_LAYER, 1, 1, 1 + 2 * LAYERS, 3 * LAYERS, OF_LAYER},
        {"embeddings", NULL, 1, 1, 0, 0, 0, 0},
        {"head", NULL, 1, 0, 1, 0, 0, 0},
        {"norms", NULL, 1 + 2 * LAYERS, 0, 0, 1 + 2 * LAYERS, 0, 2},
        {"biases", NULL, 3 * LAYERS, 0, 0, 0, 3 * LAYERS, 3},
        {"layers", NULL, LAYERS * OF_LAYER, 0, 0, 2 * LAYERS, 3 * LAYERS, OF_LAYER},
        {"layers:2", NULL, OF_LAYER, 0, 0, 2, 3, OF_LAYER},
        {"layers:1-2", NULL, 2 * OF_LAYER, 0, 0, 4, 6, OF_LAYER},
        {"first:3", NULL, 3 * OF_LAYER, 0, 0, 6, 9, OF_LAYER},
        {"last:3", NULL, 3 * OF_LAYER, 0, 0, 6, 9, 0},
        {"last:99", NULL, LAYERS * OF_LAYER, 0, 0, 2 * LAYERS, 3 * LAYERS, OF_LAYER},
        {"*.q_proj.*", NULL, 2 * LAYERS, 0, 0, 0, LAYERS, 2},
        {"head,last:1,norms", NULL, 1 + OF_LAYER + 1 + 2 * (LAYERS - 1), 0, 1, 1 + 2 * LAYERS, 3, 2},
        {NULL, "embeddings", 2 + LAYERS * OF_LAYER, 0, 1, 1 + 2 * LAYERS, 3 * LAYERS, OF_LAYER},
        {"last:4", "biases,norms", 4 * 7, 0, 0, 0, 0, 7},
    };
    const struct ot_model_config config = small(false, true);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct ot_selection selection = {.train = cases[i].train, .freeze = cases[i].freeze};
        struct ot_model *model;
        int64_t n, n_trained = 0;
        check_ok(ot_model_open_selected(&config, OT_F32, 16, &selection, &model));
        assert_int_equal(trained(model, ""), cases[i].all);
        assert_int_equal(trained(model, "embed"), cases[i].embed);
        assert_int_equal(trained(model, "lm_head"), cases[i].head);
        assert_int_equal(trained(model, "norm"), cases[i].norms);
        assert_int_equal(trained(model, "bias"), cases[i].biases);
        assert_int_equal(trained(model, "layers.2."), cases[i].layer2);
        for (int64_t t = 0; t < ot_model_tensor_count(model); t++) {
            const struct ot_tensor *tensor = ot_model_tensor(model, t);
            n_trained += tensor->trained ? tensor->rows * tensor->cols : 0;
        }
        assert_int_equal(ot_model_trained_count(model), n_trained);
        check_ok(ot_selection_count(&config, &selection, &n));
        assert_int_equal(n, n_trained);
        assert_int_equal(ot_model_has_frozen(model), i > 0);
        ot_model_close(model);
    }
}

static void refused(bool tied, const char *train, const char *freeze, const char *message) {
    const struct ot_model_config config = small(tied, false);
    const struct ot_selection selection = {.train = train, .freeze = freeze};
    struct ot_model *model;
    check_fails(ot_model_open_selected(&config, OT_F32, 16, &selection, &model), OT_E_USAGE, message);
    assert_null(model);
}

static void test_refusals(void **state) {
    (void)state;
    refused(false, "nothing", NULL, "'nothing' matches no tensor of this model of 6 layers");
    refused(false, "head,", NULL, "'' matches no tensor");
    refused(false, "layers:6", NULL, "'layers:6'");
    refused(false, "layers:5-6", NULL, "'layers:5-6'");
    refused(false, "layers:3-2", NULL, "'layers:3-2'");
    refused(false, "layers:-1", NULL, "'layers:-1'");
    refused(false, "layers:-5-2", NULL, "'layers:-5-2'");
    refused(false, "layers:9223372036854775807", NULL, "'layers:9223372036854775807'");
    refused(false, "last:0", NULL, "'last:0'");
    refused(false, "last:-9223372036854775808", NULL, "'last:-9223372036854775808'");
    refused(false, "first:-1", NULL, "'first:-1'");
    refused(false, "last:2x", NULL, "'last:2x'");
    refused(false, "last:99999999999999999999999999999999999", NULL, "matches no tensor");
    refused(false, NULL, "biases", "'biases'"); /* the model has none */
    refused(true, "head", NULL, "its head is tied to the embeddings");
    refused(false, NULL, "embeddings,layers,head,norms", "there is nothing to train");
    refused(false, "head", "*", "there is nothing to train");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
