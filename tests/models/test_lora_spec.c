/* The text of --lora: which adapter each module gets, and what is refused. */
#include <stdio.h>
#include <string.h>

#include "models/lora_spec.h"
#include "models/selection.h"
#include "tests/support/check.h"

static struct ot_lora_rank adapter_of(const char *text, const char *module) {
    struct ot_lora_spec spec;
    struct ot_lora_rank rank;
    check_ok(ot_lora_spec_read(text, &spec));
    check_ok(ot_lora_find(&spec.lora, module, &rank));
    return rank;
}

static void test_modules(void **state) {
    (void)state;
    static const struct {
        const char *text, *module;
        int rank;
        double alpha;
    } cases[] = {
        {"", "model.layers.3.self_attn.q_proj", 16, 32},
        {"", "model.layers.0.mlp.down_proj", 16, 32},
        {"", "lm_head", 0, 0},
        {"r=8", "model.layers.3.self_attn.q_proj", 8, 16},
        {"r=8,alpha=3.5", "model.layers.3.self_attn.q_proj", 8, 3.5},
        {"rank=8", "model.layers.3.self_attn.q_proj", 8, 16},
        {"targets=q_proj,v_proj", "model.layers.3.self_attn.v_proj", 16, 32},
        {"targets=q_proj,v_proj", "model.layers.3.self_attn.k_proj", 0, 0},
        {"targets=q_proj,v_proj,r=4,rslora", "model.layers.3.self_attn.q_proj", 4, 8},
        {"targets=q_proj,rslora,v_proj", "model.layers.3.self_attn.v_proj", 16, 32},
        {"targets=proj", "model.layers.3.self_attn.q_proj", 0, 0},
        {"targets=self_attn.q_proj", "model.layers.3.self_attn.q_proj", 16, 32},
        {"targets=layers.3.self_attn.q_proj", "model.layers.13.self_attn.q_proj", 0, 0},
        {"targets=model.layers.3.self_attn.q_proj", "model.layers.3.self_attn.q_proj", 16, 32},
        {"targets=all-linear,lm_head", "lm_head", 16, 32},
        {"targets=all-linear,lm_head", "model.layers.3.mlp.up_proj", 16, 32},
        {"", "model.embed_tokens", 0, 0},
        {"targets=embed_tokens", "model.embed_tokens", 16, 32},
        {"r:down_proj=64", "model.layers.3.mlp.down_proj", 64, 128},
        {"r:down_proj=64,alpha=7", "model.layers.3.mlp.down_proj", 64, 7},
        {"r:down_proj=64,alpha=7,alpha:mlp.down_proj=9", "model.layers.3.mlp.down_proj", 64, 9},
        {"r:layers.3.mlp.down_proj=2,r:down_proj=64", "model.layers.3.mlp.down_proj", 2, 4},
        {"r:layers.3.mlp.down_proj=2,r:down_proj=64", "model.layers.4.mlp.down_proj", 64, 128},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ot_lora_rank rank = adapter_of(cases[i].text, cases[i].module);
        if (rank.rank != cases[i].rank || rank.alpha != cases[i].alpha)
            fail_msg("'%s' gives %s rank %d, alpha %g", cases[i].text, cases[i].module, (int)rank.rank,
                     rank.alpha);
    }
}

static void test_scales_and_dropout(void **state) {
    (void)state;
    struct ot_lora_spec spec;
    check_ok(ot_lora_spec_read("r=4,alpha=8,dropout=0.25", &spec));
    assert_float_equal(spec.lora.dropout, 0.25f, 0);
    assert_float_equal(ot_lora_scale(&spec.lora, (struct ot_lora_rank){4, 8}), 2.0f, 0);
    assert_false(spec.lora.dora);
    assert_true(spec.lora.lr_ratio == 0);
    check_ok(ot_lora_spec_read("lr-ratio=16,dropout=0.5", &spec));
    assert_true(spec.lora.lr_ratio == 16);
    check_ok(ot_lora_spec_read("dora,r=4,alpha=8,rslora,dropout=0.5", &spec));
    assert_true(spec.lora.dora);
    assert_float_equal(ot_lora_scale(&spec.lora, (struct ot_lora_rank){4, 8}), 4.0f, 0);
}

static void test_refused_texts(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"r=0", "'r=0': a rank is a whole number"},
        {"r=1.5", "a rank is a whole number"},
        {"r=99999999", "a rank is a whole number"},
        {"r=", "'r=': a rank"},
        {"r=-4", "a rank"},
        {"r=nan", "a rank"},
        {"alpha=0", "alpha is a number above 0"},
        {"alpha=1e30", "alpha is a number above 0"},
        {"dropout=1", "dropout is a number from 0 to less than 1"},
        {"lr-ratio=0", "lr-ratio is a number from 0.0001 to 10000"},
        {"lr-ratio=1e9", "lr-ratio is a number"},
        {"lr-ratio", "'lr-ratio': the parts are r=16"},
        {"targets=", "give all-linear, or names"},
        {"q_proj", "'q_proj': the parts are"},
        {"rslora=1", "the settings are r, alpha"},
        {"rnak=3", "'rnak=3': the settings are"},
        {"r:=3", "the settings are"},
        {"r:q_proj=x", "a rank is a whole number"},
        {"16", "the parts are"},
    };
    struct ot_lora_spec spec;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_fails(ot_lora_spec_read(cases[i][0], &spec), OT_E_USAGE, cases[i][1]);
}

static void test_refused_names(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"dora,targets=c_attn", "'c_attn' is the name of no module that can have an adapter"},
        {"targets=q_proj,layers.2.self_attn.q_proj", "'layers.2.self_attn.q_proj' is the name of no module"},
        {"targets=q_proj,r:v_proj=3", "'v_proj' is the name of no module with an adapter"},
        {"alpha:lm_head=3", "'lm_head' is the name of no module with an adapter"},
    };
    const struct ot_model_config config = ot_preset_find("tiny-test")->config; /* 2 layers */
    struct ot_model *model;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct ot_selection selection = {.lora = cases[i][0]};
        check_fails(ot_model_open_selected(&config, OT_F32, 16, &selection, &model), OT_E_USAGE, cases[i][1]);
    }
}

/* Layers of both stacks, which differ; the head; no embedding. */
static void test_modules_of_an_encoder_decoder(void **state) {
    (void)state;
    static const struct {
        int64_t index;
        const char *module;
    } cases[] = {{0, "encoder.block.0.layer.0.SelfAttention.q"},
                 {5, "encoder.block.0.layer.1.DenseReluDense.wo"},
                 {35, "encoder.block.5.layer.1.DenseReluDense.wo"},
                 {36, "decoder.block.0.layer.0.SelfAttention.q"},
                 {40, "decoder.block.0.layer.1.EncDecAttention.q"},
                 {95, "decoder.block.5.layer.2.DenseReluDense.wo"},
                 {96, "lm_head"}};
    const struct ot_model_config *config = &ot_preset_find("t5-small")->config;
    const struct ot_selection wrong = {.lora = "targets=q,shared"};
    char module[OT_LORA_MODULE_BYTES];
    struct ot_model *model;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_true(ot_lora_module_at(config, cases[i].index, module));
        assert_string_equal(module, cases[i].module);
    }
    assert_false(ot_lora_module_at(config, 97, module));
    check_fails(ot_model_open_selected(config, OT_F32, 16, &wrong, &model), OT_E_USAGE,
                "this model has q, k, v, o, wi and wo in 12 layers and lm_head");
}

/* Both families of experts; the second of two layers of qwen3_moe has an MLP. */
static struct ot_model_config config_with_experts(enum ot_family family) {
    struct ot_model_config c = ot_preset_find("tiny-test")->config;
    c.family = family;
    c.n_experts = 12;
    c.top_experts = 2;
    c.expert_ffn = 16;
    if (family == OT_FAMILY_QWEN3_MOE)
        c.dense_layers.bits[0] = 2;
    return c;
}

/* Those of single experts, of the router, of an MLP, and names that do not say that they mean experts. */
static void test_names_of_experts(void **state) {
    (void)state;
    static const struct {
        enum ot_family family;
        const char *name;
    } cases[] = {
        {OT_FAMILY_MIXTRAL, "w1"},
        {OT_FAMILY_MIXTRAL, "experts.3.w2"},
        {OT_FAMILY_MIXTRAL, "block_sparse_moe.gate"},
        {OT_FAMILY_MIXTRAL, "mlp.experts"},
        {OT_FAMILY_MIXTRAL, "gate_up_proj"},
        {OT_FAMILY_QWEN3_MOE, "down_proj"},
        {OT_FAMILY_GPT_OSS, "mlp.router"},
        {OT_FAMILY_GPT_OSS, "block_sparse_moe.experts.down_proj"},
        {OT_FAMILY_QWEN3_MOE, "layers.1.mlp.experts.down_proj"}, /* of a dense layer */
        {OT_FAMILY_QWEN3_MOE, "gate"},
        {OT_FAMILY_QWEN3_MOE, "up_proj"},
        {OT_FAMILY_QWEN3_MOE, "mlp.experts.11.down_proj"},
        {OT_FAMILY_QWEN3_MOE, "layers.1.mlp.gate_proj"}, /* of a dense layer */
    };
    struct ot_model *model;
    char text[64];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct ot_model_config config = config_with_experts(cases[i].family);
        const struct ot_selection selection = {.lora = text};
        snprintf(text, sizeof text, "targets=q_proj,%s", cases[i].name);
        check_fails(ot_model_open_selected(&config, OT_F32, 16, &selection, &model), OT_E_USAGE,
                    "names the MLP, experts or the router of a model with experts");
        check_fails(ot_model_open_selected(&config, OT_F32, 16, &selection, &model), OT_E_USAGE,
                    "this model has q_proj, k_proj, v_proj and o_proj in 2 layers, lm_head and embed_tokens, "
                    "and for experts experts.gate_up_proj and experts.down_proj");
    }
    const struct ot_model_config config = config_with_experts(OT_FAMILY_QWEN3_MOE);
    const struct ot_selection unknown = {.lora = "targets=c_attn"},
                              router = {.lora = "r=2", .train = "*.mlp.gate.*"},
                              expert = {.lora = "r=2", .train = "*.experts.3.*"}, all = {.lora = "r=2"};
    check_fails(ot_model_open_selected(&config, OT_F32, 16, &unknown, &model), OT_E_USAGE,
                "'c_attn' is the name of no module");
    check_fails(ot_model_open_selected(&config, OT_F32, 16, &router, &model), OT_E_USAGE,
                "model.layers.0.mlp.gate.weight is trained beside adapters");
    check_fails(ot_model_open_selected(&config, OT_F32, 16, &expert, &model), OT_E_USAGE,
                "model.layers.0.mlp.experts.3.gate_proj.weight is trained beside adapters");
    check_ok(ot_model_open_selected(&config, OT_F32, 16, &all, &model));
    int adapters = 0;
    for (int64_t t = 0; t < ot_model_tensor_count(model); t++)
        adapters += ot_lora_has_tensor(ot_model_tensor(model, t)->name);
    assert_int_equal(adapters, 2 * 4 * 2); /* layers, maps of attention, A and B */
    ot_model_close(model);
}

/* The rank of a layer's experts; 0: they have no adapter. */
static int64_t rank_of_experts(const struct ot_model *model, int64_t layer, const char *end) {
    char name[OT_MODEL_NAME_BYTES];
    snprintf(name, sizeof name, "base_model.model.model.layers.%d.mlp.experts.%s", (int)layer, end);
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++)
        if (strcmp(ot_model_tensor(model, i)->name, name) == 0)
            return ot_model_tensor(model, i)->rows / 12;
    return 0;
}

static void test_adapters_of_experts(void **state) {
    (void)state;
    static const struct {
        enum ot_family family;
        const char *text;
        int64_t inner[2], outer[2]; /* of base_layer, and of the module around it; in both layers */
        int adapters;
    } cases[] = {
        {OT_FAMILY_MIXTRAL, "r=2,targets=experts.gate_up_proj,experts.down_proj", {2, 2}, {2, 2}, 8},
        {OT_FAMILY_GPT_OSS, "r=2,targets=mlp.experts.gate_up_proj", {0, 0}, {2, 2}, 4},
        {OT_FAMILY_MIXTRAL,
         "r=2,targets=all-linear,experts.down_proj,r:experts.down_proj=3",
         {0, 0},
         {3, 3},
         20},
        {OT_FAMILY_GPT_OSS,
         "targets=experts.gate_up_proj,model.layers.1.mlp.experts.down_proj,"
         "r:layers.0.mlp.experts.gate_up_proj=5,alpha:experts.gate_up_proj=7",
         {0, 16},
         {5, 16},
         6},
        {OT_FAMILY_QWEN3_MOE, "r=4,targets=experts.gate_up_proj,experts.down_proj", {4, 0}, {4, 0}, 4},
    };
    struct ot_model *model;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct ot_model_config config = config_with_experts(cases[i].family);
        const struct ot_selection selection = {.lora = cases[i].text};
        int adapters = 0;
        check_ok(ot_model_open_selected(&config, OT_F32, 16, &selection, &model));
        for (int64_t layer = 0; layer < 2; layer++) {
            assert_int_equal(rank_of_experts(model, layer, "base_layer.lora_A.weight"),
                             cases[i].inner[layer]);
            assert_int_equal(rank_of_experts(model, layer, "lora_A.weight"), cases[i].outer[layer]);
        }
        for (int64_t t = 0; t < ot_model_tensor_count(model); t++)
            adapters += ot_lora_has_tensor(ot_model_tensor(model, t)->name);
        assert_int_equal(adapters, cases[i].adapters);
        ot_model_close(model);
    }
}

static void test_refused_adapters_of_experts(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"targets=experts.down_proj,dropout=0.1", "0.mlp.experts.down_proj: experts cannot have dropout"},
        {"targets=q_proj,experts.gate_up_proj,dora", "0.mlp.experts.gate_up_proj: experts cannot have DoRA"},
        {"r:experts.down_proj=2", "'experts.down_proj' is the name of no module with an adapter"},
        {"targets=experts.down_proj,alpha:experts.gate_up_proj=2",
         "is the name of no module with an adapter"},
    };
    const struct ot_model_config config = config_with_experts(OT_FAMILY_MIXTRAL),
                                 dense = ot_preset_find("tiny-test")->config;
    const struct ot_selection selection = {.lora = "targets=experts.down_proj"};
    struct ot_model *model;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct ot_selection wrong = {.lora = cases[i][0]};
        check_fails(ot_model_open_selected(&config, OT_F32, 16, &wrong, &model),
                    i < 2 ? OT_E_INPUT : OT_E_USAGE, cases[i][1]);
    }
    check_fails(ot_model_open_selected(&dense, OT_F32, 16, &selection, &model), OT_E_USAGE,
                "'experts.down_proj' is the name of no module that can have an adapter");
}

static void test_module_trained_twice(void **state) {
    (void)state;
    const struct ot_model_config config = ot_preset_find("tiny-test")->config;
    const struct ot_selection selection = {.lora = "targets=q_proj", .train = "layers:1"};
    struct ot_model *model;
    check_fails(
        ot_model_open_selected(&config, OT_F32, 16, &selection, &model), OT_E_USAGE,
        "model.layers.1.self_attn.q_proj.weight is trained itself, and its module also has an adapter");
}

/* Adapters are trained, and of the model itself what --train says. */
static void test_selection_with_adapters(void **state) {
    (void)state;
    const struct ot_model_config config = ot_preset_find("tiny-test")->config;
    static const struct {
        struct ot_selection selection;
        int adapters, own;
    } cases[] = {{{.lora = "r=2"}, 2 * 7 * 2, 0},
                 {{.lora = "r=2,targets=q_proj,lm_head"}, 2 * 2 + 2, 0},
                 {{.lora = "r=2,targets=q_proj", .train = "norms"}, 2 * 2, 5},
                 {{.lora = "r=2,targets=q_proj", .train = "norms", .freeze = "last:1"}, 2 * 2, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ot_model *model;
        int adapters = 0, own = 0;
        check_ok(ot_model_open_selected(&config, OT_F32, 16, &cases[i].selection, &model));
        for (int64_t t = 0; t < ot_model_tensor_count(model); t++) {
            const struct ot_tensor *tensor = ot_model_tensor(model, t);
            adapters += ot_lora_has_tensor(tensor->name) && tensor->trained;
            own += !ot_lora_has_tensor(tensor->name) && tensor->trained;
        }
        ot_model_close(model);
        assert_int_equal(adapters, cases[i].adapters);
        assert_int_equal(own, cases[i].own);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_modules),
        cmocka_unit_test(test_scales_and_dropout),
        cmocka_unit_test(test_refused_texts),
        cmocka_unit_test(test_refused_names),
        cmocka_unit_test(test_names_of_experts),
        cmocka_unit_test(test_adapters_of_experts),
        cmocka_unit_test(test_refused_adapters_of_experts),
        cmocka_unit_test(test_modules_of_an_encoder_decoder),
        cmocka_unit_test(test_module_trained_twice),
        cmocka_unit_test(test_selection_with_adapters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
