/* adapter_config.json, and the text of --lora: what is accepted describes adapters of a small model, can be
 * written for PEFT, and is read again as the same adapters. */
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "src/files/adapter_config.h"
#include "tests/fuzz/target.h"

static void parse_again(const char *text, size_t bytes, const char *lora,
                        const struct ot_model_config *config) {
    struct ot_json *root;
    char *again;
    bool equal;
    FUZZ_CHECK(ot_json_parse(text, bytes, "written", &root) == 0);
    FUZZ_CHECK(ot_adapter_config_parse(root, "written", config, true, &again) == 0);
    FUZZ_CHECK(ot_adapter_config_equal(lora, again, config, &equal) == 0 && equal);
    free(again);
    ot_json_free(root);
}

/* A text of a spec. Returns true if it describes adapters of the model. */
static bool check_spec(const char *lora, const struct ot_model_config *config) {
    const struct ot_selection selection = {.lora = lora};
    struct ot_model *model;
    char *text;
    size_t bytes;
    int rc = ot_model_open_selected(config, OT_F32, 1, &selection, &model);
    if (rc < 0) {
        fuzz_check_refusal(rc, rc == -OT_E_INPUT ? OT_E_INPUT : OT_E_USAGE);
        return false;
    }
    FUZZ_CHECK(ot_model_trained_count(model) > 0);
    FUZZ_CHECK(ot_adapter_config_write(lora, model, "base", &text, &bytes) == 0);
    parse_again(text, bytes, lora, config);
    free(text);
    ot_model_close(model);
    return true;
}

static void check_file(const uint8_t *data, size_t size, const struct ot_model_config *config) {
    struct ot_json *root;
    char *lora;
    if (ot_json_parse((const char *)data, size, "adapter_config.json", &root) < 0)
        return; /* target_json.c tests these inputs */
    int rc = ot_adapter_config_parse(root, "adapter_config.json", config, true, &lora);
    if (rc < 0) {
        fuzz_check_refusal(rc, OT_E_INPUT);
    } else {
        FUZZ_CHECK(check_spec(lora, config));
        free(lora);
    }
    ot_json_free(root);
}

static void check_input(const uint8_t *data, size_t size, const struct ot_model_config *config) {
    if (size > 0 && data[0] == '{') {
        check_file(data, size, config);
    } else if (!memchr(data, 0, size)) {
        char *text = strndup((const char *)data, size);
        FUZZ_CHECK(text);
        check_spec(text, config);
        free(text);
    }
}

/* Over a dense model, and over one whose second layer has experts. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct ot_model_config config = ot_preset_find("tiny-test")->config;
    check_input(data, size, &config);
    config.family = OT_FAMILY_QWEN3_MOE;
    config.n_experts = 4;
    config.top_experts = 2;
    config.expert_ffn = 16;
    config.dense_layers.bits[0] = 1;
    check_input(data, size, &config);
    return 0;
}
