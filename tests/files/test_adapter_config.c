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

static int read_config(const char *folder, const char *members, bool tied, char **lora) {
    char text[1024];
    const struct ot_model_config config = tiny(tied);
    snprintf(text, sizeof text, "{\"peft_type\": \"LORA\", %s}", members);
    write_text(folder, "adapter_config.json", text);
    return ot_adapter_config_read(folder, &config, true, lora);
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
         "the key 'fan_in_fan_out' has a value"},
        {"\"target_modules\": [\"q_proj\"], \"trainable_token_indices\": [1]", "'trainable_token_indices'"},
        {"\"target_modules\": [\"q_proj\"], \"init_lora_weights\": \"pissa_niter_4\"",
         "changes the base too"},
        {"\"target_modules\": [\"q_proj\"], \"layers_pattern\": \"h\"", "layers_pattern is 'h'"},
        {"\"target_modules\": [\"q_proj\"], \"modules_to_save\": [\"embed_tokens\"]", "ensure_weight_tying"},
        {"\"target_modules\": [\"lm_head\"], \"ensure_weight_tying\": true",
         "ensure_weight_tying with adapters"},
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

static void write_spec(const char *folder, const struct ot_selection *selection, bool tied) {
    const struct ot_model_config config = tiny(tied);
    struct ot_model *model;
    char *text;
    size_t bytes;
    check_ok(ot_model_open_selected(&config, OT_F32, 16, selection, &model));
    check_ok(ot_adapter_config_write(selection->lora, model, "org/base", &text, &bytes));
    ot_model_close(model);
    write_text(folder, "adapter_config.json", text);
    free(text);
}

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_read, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_refuse, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_round_trip, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_written_modules, open_folder, drop_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
