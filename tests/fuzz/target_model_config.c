/* config.json: an accepted config describes a model whose parameters can be counted, and a config.json
 * written from it has the same values. */
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "src/files/model_config.h"
#include "tests/fuzz/target.h"

static char *write_config(const struct ot_config_file *file, size_t *bytes) {
    char *text = NULL;
    FUZZ_CHECK(ot_model_config_write(file, &text, bytes) == 0);
    return text;
}

/* A written config is read as the same config, as far as the written keys describe it. */
static void check_written(const struct ot_config_file *file) {
    size_t bytes, again_bytes;
    struct ot_json *root;
    struct ot_config_file again;
    char *text = write_config(file, &bytes);
    FUZZ_CHECK(ot_json_parse(text, bytes, "written", &root) == 0);
    FUZZ_CHECK(ot_model_config_parse(root, "written", &again) == 0);
    char *again_text = write_config(&again, &again_bytes);
    FUZZ_CHECK(again_bytes == bytes && memcmp(again_text, text, bytes) == 0);
    free(again_text);
    free(text);
    ot_json_free(root);
}

/* Another dtype and other ids are written into the base's file, and are read from it again. */
static void check_rewritten(const struct ot_json *root, const struct ot_config_file *file) {
    static const struct ot_token_ids ids = {.bos = 0, .n_eos = 1, .eos = {0}};
    char *text = NULL;
    size_t bytes;
    struct ot_json *tree;
    struct ot_config_file again;
    enum ot_dtype other = file->dtype == OT_BF16 ? OT_F32 : OT_BF16;
    struct ot_config_changes changes = {.dtype = other, .ids = &ids};
    FUZZ_CHECK(ot_model_config_rewrite(root, &changes, &text, &bytes) == 0);
    if (!text)
        return;
    FUZZ_CHECK(ot_json_parse(text, bytes, "rewritten", &tree) == 0);
    FUZZ_CHECK(ot_model_config_parse(tree, "rewritten", &again) == 0);
    FUZZ_CHECK(again.dtype == other && again.ids.n_eos == 1 && again.ids.eos[0] == 0);
    FUZZ_CHECK(ot_model_param_count(&again.config) == ot_model_param_count(&file->config));
    ot_json_free(tree);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct ot_json *root;
    struct ot_config_file file;
    if (ot_json_parse((const char *)data, size, "config.json", &root) < 0)
        return 0; /* target_json.c tests these inputs */
    int rc = ot_model_config_parse(root, "config.json", &file);
    if (rc < 0) {
        fuzz_check_refusal(rc, OT_E_INPUT);
    } else {
        FUZZ_CHECK(ot_model_param_count(&file.config) > 0);
        FUZZ_CHECK(file.ids.n_eos >= 0 && file.ids.n_eos <= OT_MAX_EOS);
        check_written(&file);
        check_rewritten(root, &file);
    }
    ot_json_free(root);
    return 0;
}
