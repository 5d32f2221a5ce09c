/* adapter_config.json: what PEFT's files say as the text of --lora, what is refused, and what is written. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/json.h"
#include "src/files/adapter_config.h"
#include "tests/files/fixture.h"

static int open_folder(void **state) {
    *state = make_folder();
    return 0;
}

static int drop_folder(void **state) {
    remove_folder(*state);
    return 0;
}

static struct ot_model_config tiny(bool tied) {
    struct ot_model_config c = ot_preset_find("tiny-test")->config; /* 2 layers */
    c.tied = tied;
    return c;
}

static int read_config_of(const char *folder, const char *members, const struct ot_model_config *config,
                          char **lora) {
    char text[1024];
    snprintf(text, sizeof text, "{\"peft_type\": \"LORA\", %s}", members);
    write_text(folder, "adapter_config.json", text);
    return ot_adapter_config_read(folder, config, true, lora);
}

static int read_config(const char *folder, const char *members, bool tied, char **lora) {
    const struct ot_model_config config = tiny(tied);
    return read_config_of(folder, members, &config, lora);
}

static void test_read(void **state) {
    static const char *const cases[][2] = {
        {"\"target_modules\": [\"v_proj\", \"q_proj\"]", "r=8,alpha=8,targets=q_proj,v_proj"},
        {"\"r\": 4, \"lora_alpha\": 6, \"target_modules\": \"all-linear\"",
         "r=4,alpha=6,targets=q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"},
        {"\"target_modules\": [\"q_proj\", \"lm_head\"], \"use_rslora\": true, \"lora_dropout\": 0.05",
         "r=8,alpha=8,rslora,dropout=0.05,targets=q_proj,lm_head"},
        {"\"target_modules\": \".*mlp\\\\.(up|down)_proj\"", "r=8,alpha=8,targets=up_proj,down_proj"},
        {"\"target_modules\": \"model\\\\.layers\\\\.1\\\\..*_proj\", "
         "\"exclude_modules\": [\"mlp.up_proj\", \"o_proj\"]",
         "r=8,alpha=8,targets=model.layers.1.self_attn.q_proj,model.layers.1.self_attn.k_proj,"
         "model.layers.1.self_attn.v_proj,model.layers.1.mlp.gate_proj,model.layers.1.mlp.down_proj"},
        {"\"target_modules\": [\"q_proj\"], \"layers_to_transform\": [1]",
         "r=8,alpha=8,targets=model.layers.1.self_attn.q_proj"},
        {"\"target_modules\": [\"q_proj\", \"v_proj\"], \"layers_to_transform\": 0",
         "r=8,alpha=8,targets=model.layers.0.self_attn.q_proj,model.layers.0.self_attn.v_proj"},
        {"\"target_modules\": [\"q_proj\", \"o_proj\"], \"rank_pattern\": {\"o_proj\": 3}, "
         "\"alpha_pattern\": {\"self_attn.o_proj\": 1.5}",
         "r=8,alpha=8,targets=q_proj,o_proj,r:o_proj=3,alpha:o_proj=1.5"},
        {"\"target_modules\": [\"q_proj\"], \"rank_pattern\": {\"^model.layers.1.*\": 3}",
         "r=8,alpha=8,targets=model.layers.0.self_attn.q_proj,model.layers.1.self_attn.q_proj,"
         "r:model.layers.1.self_attn.q_proj=3"},
        {"\"target_modules\": [\"q_proj\", \"embed_tokens\"], \"use_dora\": false",
         "r=8,alpha=8,targets=q_proj,embed_tokens"},
        {"\"target_modules\": [\"q_proj\"], \"use_dora\": true", "r=8,alpha=8,dora,targets=q_proj"},
        {"\"target_modules\": [\"q_proj\"], \"use_dora\": true, \"lora_dropout\": 0.25",
         "r=8,alpha=8,dora,dropout=0.25,targets=q_proj"},
        {"\"target_modules\": [\"q_proj\"], \"future_key\": null, \"corda_config\": {}, "
         "\"peft_version\": \"9\"",
         "r=8,alpha=8,targets=q_proj"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *lora;
        check_ok(read_config(*state, cases[i][0], false, &lora));
        assert_string_equal(lora, cases[i][1]);
        free(lora);
    }
}

static void test_refuse(void **state) {
    static const char *const cases[][2] = {
        {"\"target_modules\": [\"c_attn\"]", "target_modules names no module of the base"},
        {"\"r\": 8", "target_modules names no module of the base"},
        {"\"target_modules\": [3]", "target_modules must be a list of names"},
        {"\"target_modules\": \"(\"", "a pattern of modules"},
        {"\"target_modules\": [\"q_proj\"], \"r\": 0", "'r'"},
        {"\"target_modules\": [\"q_proj\"], \"r\": \"8\"", "'r'"},
        {"\"target_modules\": [\"q_proj\"], \"rank_pattern\": {\"q_proj\": 2.5}", "q_proj has rank 2.5"},
        {"\"target_modules\": [\"q_proj\"], \"alpha_pattern\": {\"q_proj\": -1}", "and alpha -1"},
        {"\"target_modules\": [\"q_proj\"], \"lora_dropout\": 1", "'lora_dropout'"},
        {"\"target_modules\": [\"q_proj\"], \"bias\": \"all\"", "bias is 'all'"},
        {"\"target_modules\": [\"q_proj\"], \"fan_in_fan_out\": true",
         "adapters with 'fan_in_fan_out' are not supported"},
        {"\"target_modules\": [\"q_proj\"], \"init_lora_weights\": \"pissa_niter_4\"",
         "changes the base too"},
        {"\"target_modules\": [\"q_proj\"], \"layers_pattern\": \"h\"", "layers_pattern is 'h'"},
        {"\"target_modules\": [\"q_proj\"], \"modules_to_save\": [\"embed_tokens\"]", "ensure_weight_tying"},
        {"\"target_modules\": [\"lm_head\"], \"ensure_weight_tying\": true",
         "ensure_weight_tying with adapters"},
        {"\"target_modules\": [], \"target_parameters\": [\"mlp.experts.down_proj\"]",
         "target_parameters has 'mlp.experts.down_proj'"},
    };
    char *lora;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_fails(read_config(*state, cases[i][0], true, &lora), OT_E_INPUT, cases[i][1]);
    const struct ot_model_config config = tiny(false);
    write_text(*state, "adapter_config.json", "{\"peft_type\": \"IA3\"}");
    check_fails(ot_adapter_config_read(*state, &config, true, &lora), OT_E_INPUT,
                "only adapters of type LORA");
    write_text(*state, "adapter_config.json", "{}");
    check_fails(ot_adapter_config_read(*state, &config, true, &lora), OT_E_INPUT, "peft_type");
}

/* Lists of neighbouring ids, of the embedding and of a head that is not tied. */
static void test_tokens(void **state) {
    static const struct {
        const char *value;
        bool tied, in_head;
        int64_t first, n;
        const char *error;
    } cases[] = {
        {"null", false, false, 0, 0, NULL},
        {"[]", false, false, 0, 0, NULL},
        {"{}", true, false, 0, 0, NULL},
        {"[7]", false, false, 7, 1, NULL},
        {"[7, 8, 9]", true, false, 7, 3, NULL},
        {"{\"embed_tokens\": [0, 1]}", false, false, 0, 2, NULL},
        {"{\"model.embed_tokens\": [5, 6], \"lm_head\": [5, 6]}", false, true, 5, 2, NULL},
        {"{\"lm_head\": [5, 6], \"embed_tokens\": [5, 6]}", true, false, 5, 2, NULL},
        {"[7, 9]", false, false, 0, 0, "lists of neighbouring ids"},
        {"[8, 7]", false, false, 0, 0, "lists of neighbouring ids"},
        {"[-1, 0]", false, false, 0, 0, "lists of neighbouring ids"},
        {"[\"7\"]", false, false, 0, 0, "lists of neighbouring ids"},
        {"[4294967296]", false, false, 0, 0, "lists of neighbouring ids"},
        {"{\"embed_tokens\": []}", false, false, 0, 0, "lists of neighbouring ids"},
        {"{\"embed_tokens\": [5], \"lm_head\": [6]}", false, false, 0, 0, "the same for the embedding"},
        {"{\"embed_tokens\": [5, 6], \"lm_head\": [5]}", false, false, 0, 0, "the same for the embedding"},
        {"{\"lm_head\": [5]}", false, false, 0, 0, "no tokens of the embedding"},
        {"{\"tokens\": [5]}", false, false, 0, 0, "has 'tokens', which is neither"},
        {"7", false, false, 0, 0, "no tokens of the embedding"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct ot_model_config config = tiny(cases[i].tied);
        struct ot_adapter_tokens tokens;
        char text[256];
        snprintf(text, sizeof text, "{\"trainable_token_indices\": %s}", cases[i].value);
        write_text(*state, "adapter_config.json", text);
        int rc = ot_adapter_config_tokens(*state, &config, &tokens);
        if (cases[i].error) {
            check_fails(rc, OT_E_INPUT, cases[i].error);
            continue;
        }
        check_ok(rc);
        assert_int_equal(tokens.n, cases[i].n);
        assert_int_equal(tokens.first, cases[i].first);
        assert_int_equal(tokens.in_head, cases[i].in_head);
    }
}

/* ---- experts ---- */

/* The first of two layers has an MLP. */
static struct ot_model_config with_experts(void) {
    struct ot_model_config c = tiny(false);
    c.family = OT_FAMILY_QWEN3_MOE;
    c.n_experts = 4;
    c.top_experts = 2;
    c.expert_ffn = 16;
    c.dense_layers.bits[0] = 1;
    return c;
}

/* As PEFT matches names: by their ends; patterns are regular expressions. It applies neither exclude_modules
 * nor layers_to_transform to parameters. */
static void test_read_experts(void **state) {
    static const char *const cases[][2] = {
        {"\"target_modules\": [\"q_proj\"], "
         "\"target_parameters\": [\"mlp.experts.down_proj\", \"mlp.experts.gate_up_proj\"]",
         "r=8,alpha=8,targets=q_proj,experts.gate_up_proj,experts.down_proj"},
        {"\"target_modules\": null, \"target_parameters\": [\"down_proj\"], \"use_rslora\": true",
         "r=8,alpha=8,rslora,targets=experts.down_proj"},
        {"\"target_modules\": [], \"target_parameters\": [\"model.layers.1.mlp.experts.gate_up_proj\"]",
         "r=8,alpha=8,targets=experts.gate_up_proj"},
        {"\"target_modules\": [\"o_proj\"], \"target_parameters\": [\"gate_up_proj\", \"down_proj\"], "
         "\"rank_pattern\": {\".*\\\\.gate_up_proj\": 16, \"o_proj\": 2}, "
         "\"alpha_pattern\": {\"experts.(gate_up|down)_proj\": 3}",
         "r=2,alpha=8,targets=o_proj,experts.gate_up_proj,experts.down_proj,r:experts.gate_up_proj=16,"
         "alpha:experts.gate_up_proj=3,r:experts.down_proj=8,alpha:experts.down_proj=3"},
        {"\"target_modules\": [\"v_proj\"], \"target_parameters\": [\"experts.down_proj\"], "
         "\"exclude_modules\": [\"mlp.experts\", \"experts.down_proj\"], \"layers_to_transform\": [0]",
         "r=8,alpha=8,targets=model.layers.0.self_attn.v_proj,model.layers.1.mlp.experts.down_proj"},
        {"\"target_modules\": \"all-linear\", \"target_parameters\": []",
         "r=8,alpha=8,targets=q_proj,k_proj,v_proj,o_proj"},
    };
    const struct ot_model_config config = with_experts();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *lora;
        check_ok(read_config_of(*state, cases[i][0], &config, &lora));
        assert_string_equal(lora, cases[i][1]);
        free(lora);
    }
}

static void test_refuse_experts(void **state) {
    static const char *const cases[][2] = {
        {"\"target_parameters\": [\"mlp.gate.weight\"]", "target_parameters has 'mlp.gate.weight'"},
        {"\"target_parameters\": [\"down_proj\", \"self_attn.q_proj.weight\"]",
         "has 'self_attn.q_proj.weight'"},
        {"\"target_parameters\": [\"mlp.experts.down_proj_bias\"]", "has 'mlp.experts.down_proj_bias'"},
        {"\"target_parameters\": [\"layers.0.mlp.experts.down_proj\"]",
         "has 'layers.0.mlp.experts.down_proj'"},
        {"\"target_parameters\": [\"own_proj\"]", "has 'own_proj'"},
        {"\"target_parameters\": [\"\"]", "target_parameters has ''"},
        {"\"target_parameters\": [7]", "has 'a value that is no name'"},
        {"\"target_parameters\": \"down_proj\"", "target_parameters must be a list of names"},
        {"\"target_parameters\": {\"down_proj\": 2}", "target_parameters must be a list of names"},
        {"\"target_parameters\": [\"down_proj\"], \"lora_dropout\": 0.1",
         "lora_dropout is above 0, which adapters of experts"},
        {"\"target_parameters\": [\"down_proj\"], \"use_dora\": true",
         "use_dora is true, which adapters of experts"},
        {"\"target_parameters\": [\"down_proj\"], \"lora_bias\": true",
         "adapters with 'lora_bias' are not supported"},
        {"\"target_parameters\": [\"down_proj\"], \"rank_pattern\": {\"down_proj\": 0}",
         "model.layers.1.mlp.experts.down_proj has rank 0"},
        {"\"target_parameters\": [\"down_proj\"], \"target_modules\": [\"up_proj\"]",
         "target_modules has 'up_proj'"},
    };
    const struct ot_model_config config = with_experts();
    char *lora;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_fails(read_config_of(*state, cases[i][0], &config, &lora), OT_E_INPUT, cases[i][1]);
}

static void write_spec_of(const char *folder, const struct ot_selection *selection,
                          const struct ot_model_config *config) {
    struct ot_model *model;
    char *text;
    size_t bytes;
    check_ok(ot_model_open_selected(config, OT_F32, 16, selection, &model));
    check_ok(ot_adapter_config_write(selection->lora, model, "org/base", &text, &bytes));
    ot_model_close(model);
    write_text(folder, "adapter_config.json", text);
    free(text);
}

static void write_spec(const char *folder, const struct ot_selection *selection, bool tied) {
    const struct ot_model_config config = tiny(tied);
    write_spec_of(folder, selection, &config);
}

/* Modules and experts have keys of their own, and both are read again. */
static void test_round_trip_of_experts(void **state) {
    static const struct {
        const char *spec;
        size_t modules, parameters;
    } cases[] = {
        {"targets=experts.down_proj", 0, 1},
        {"targets=q_proj,layers.1.mlp.experts.gate_up_proj,experts.down_proj,lm_head", 2, 2},
        {"targets=all-linear,experts.down_proj,r=3,rslora,r:experts.down_proj=5,alpha:q_proj=2.5", 4, 1},
        {"targets=all-linear,r=3", 4, 0},
    };
    const struct ot_model_config config = with_experts();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct ot_selection selection = {.lora = cases[i].spec};
        struct ot_json *root;
        char *lora;
        bool equal;
        write_spec_of(*state, &selection, &config);
        check_ok(ot_adapter_config_read(*state, &config, true, &lora));
        check_ok(ot_adapter_config_equal(cases[i].spec, lora, &config, &equal));
        if (!equal)
            fail_msg("%s became %s", cases[i].spec, lora);
        check_ok(ot_adapter_config_equal("targets=q_proj,experts.down_proj,r=77", lora, &config, &equal));
        assert_false(equal);
        free(lora);
        check_ok(ot_json_read_file(in_folder(*state, "adapter_config.json"), 1 << 20, &root));
        assert_int_equal(ot_json_length(ot_json_get(root, "target_modules")), cases[i].modules);
        assert_int_equal(ot_json_length(ot_json_get(root, "target_parameters")), cases[i].parameters);
        ot_json_free(root);
    }
}

/* ---- what is written ---- */

/* What is written is read again as the same adapters. */
static void test_round_trip(void **state) {
    static const char *const specs[] = {"",
                                        "r=4,alpha=6,rslora,dropout=0.05",
                                        "targets=q_proj,lm_head,r=3",
                                        "targets=all-linear,lm_head,alpha=2.5",
                                        "r:down_proj=5,r:layers.1.mlp.up_proj=2,alpha:up_proj=3",
                                        "r:q_proj=5,alpha:q_proj=7,alpha:o_proj=1",
                                        "targets=model.layers.1.self_attn.q_proj",
                                        "dora,r=3",
                                        "dora,r=3,dropout=0.5",
                                        "targets=embed_tokens,lm_head"};
    const struct ot_model_config config = tiny(false);
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        const struct ot_selection selection = {.lora = specs[i]};
        char *lora, *base;
        bool equal;
        write_spec(*state, &selection, false);
        check_ok(ot_adapter_config_read(*state, &config, true, &lora));
        check_ok(ot_adapter_config_equal(specs[i], lora, &config, &equal));
        if (!equal)
            fail_msg("%s became %s", specs[i], lora);
        check_ok(ot_adapter_config_equal("r=4,alpha=9", lora, &config, &equal));
        assert_false(equal);
        free(lora);
        check_ok(ot_adapter_config_base(*state, &base));
        assert_string_equal(base, "org/base");
        free(base);
    }
}

static void test_written_modules(void **state) {
    const struct ot_selection selection = {.lora = "targets=q_proj,dropout=0.1", .train = "norms,embeddings"};
    struct ot_json *root;
    char *lora;
    const struct ot_model_config config = tiny(true);
    write_spec(*state, &selection, true);
    check_ok(ot_json_read_file(in_folder(*state, "adapter_config.json"), 1 << 20, &root));
    const struct ot_json *modules = ot_json_get(root, "modules_to_save");
    assert_int_equal(ot_json_length(modules), 1 + 2 * 2 + 1);
    assert_string_equal(ot_json_string(ot_json_at(modules, 0), NULL), "model.embed_tokens");
    assert_true(ot_json_bool(ot_json_get(root, "ensure_weight_tying"), false));
    assert_true(ot_json_real(ot_json_get(root, "lora_dropout"), 0) == 0.1);
    ot_json_free(root);
    check_ok(ot_adapter_config_read(*state, &config, true, &lora));
    free(lora);
}

/* A T5 of two layers in each stack: names that mean maps of both stacks, and of both kinds of attention. */
static void test_an_encoder_decoder(void **state) {
    static const char *const cases[][2] = {
        {"\"target_modules\": \"all-linear\"", "r=8,alpha=8,targets=q,k,v,o,wi,wo"},
        {"\"target_modules\": [\"q\", \"v\"]", "r=8,alpha=8,targets=q,v"},
        {"\"target_modules\": [\"EncDecAttention.q\", \"lm_head\"]",
         "r=8,alpha=8,targets=decoder.block.0.layer.1.EncDecAttention.q,"
         "decoder.block.1.layer.1.EncDecAttention.q,lm_head"},
        {"\"target_modules\": [\"wi\"], \"layers_to_transform\": [1], \"layers_pattern\": \"block\"",
         "r=8,alpha=8,targets=encoder.block.1.layer.1.DenseReluDense.wi,"
         "decoder.block.1.layer.2.DenseReluDense.wi"},
    };
    struct ot_model_config config = ot_preset_find("t5-small")->config;
    const struct ot_selection all = {.lora = "r=2"};
    struct ot_model *model;
    struct ot_json *root;
    char *lora, *text;
    size_t bytes;
    config.n_encoder_layers = 2;
    config.n_layers = 4;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char members[512];
        snprintf(members, sizeof members, "{\"peft_type\": \"LORA\", %s}", cases[i][0]);
        write_text(*state, "adapter_config.json", members);
        check_ok(ot_adapter_config_read(*state, &config, true, &lora));
        assert_string_equal(lora, cases[i][1]);
        free(lora);
    }
    check_ok(ot_model_open_selected(&config, OT_F32, 8, &all, &model));
    check_ok(ot_adapter_config_write("r=2", model, "org/base", &text, &bytes));
    check_ok(ot_json_parse(text, bytes, "written", &root));
    assert_string_equal(ot_json_string(ot_json_get(root, "task_type"), NULL), "SEQ_2_SEQ_LM");
    check_ok(ot_adapter_config_parse(root, "written", &config, true, &lora));
    assert_string_equal(lora, "r=2,alpha=4,targets=q,k,v,o,wi,wo");
    free(lora);
    free(text);
    ot_json_free(root);
    ot_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_read, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_refuse, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_tokens, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_read_experts, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_refuse_experts, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_round_trip_of_experts, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_round_trip, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_written_modules, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_an_encoder_decoder, open_folder, drop_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
