/* GGUF files: every tensor lies within the file, and what opens as a model can be loaded or is refused in one
 * line. */
#include <string.h>

#include "src/base/error.h"
#include "src/files/model_dir.h"
#include "src/gguf/gguf.h"
#include "src/tokenizer/tokenizer.h"
#include "tests/fuzz/target.h"

static void check_tensors(const struct ot_gguf *file, size_t size) {
    const struct ot_mapped_file *map = ot_gguf_map(file);
    for (int64_t i = 0; i < ot_gguf_tensor_count(file); i++) {
        const struct ot_gguf_tensor *tensor = ot_gguf_tensor(file, i);
        size_t from = (size_t)((const char *)tensor->data - map->data);
        float values[OT_GGUF_MAX_BLOCK_VALUES];
        int64_t count = 1;
        FUZZ_CHECK(ot_gguf_find_tensor(file, tensor->name) == tensor);
        FUZZ_CHECK(tensor->dims >= 1 && tensor->dims <= OT_GGUF_MAX_DIMS);
        for (int d = 0; d < tensor->dims; d++)
            count *= tensor->shape[d];
        FUZZ_CHECK(count == tensor->count && count >= 0 && from <= size && tensor->bytes <= size - from);
        if (tensor->type->decode && count > 0)
            tensor->type->decode(tensor->data, 1, values);
    }
}

static int drop_values(void *context, int slab, int64_t first, int64_t n, const float *values) {
    int64_t *next = context;
    FUZZ_CHECK(slab >= 0 && first >= 0 && n > 0 && values);
    *next += n;
    return 0;
}

/* Larger models take too long for a target. */
enum { MOST_PARAMS = 1 << 16 };

static void load(const struct ot_model_dir *dir) {
    const struct ot_model_facts *facts = ot_model_dir_facts(dir);
    struct ot_tokenizer *tokenizer;
    struct ot_model *model;
    int64_t n = 0;
    FUZZ_CHECK(facts->tokenizer_is_made == (facts->tokenizer_path != NULL));
    int rc = facts->tokenizer_path ? ot_tokenizer_open(facts->tokenizer_path, &tokenizer) : -1;
    if (rc == 0)
        ot_tokenizer_close(tokenizer);
    else if (facts->tokenizer_path)
        fuzz_check_refusal(rc, OT_E_INPUT);
    if (ot_model_config_check(&facts->config, "config") < 0 ||
        ot_model_param_count(&facts->config) > MOST_PARAMS ||
        ot_model_open(&facts->config, OT_F32, 1, &model) < 0)
        return;
    rc = ot_model_dir_load(dir, model, NULL, drop_values, &n);
    if (rc < 0)
        fuzz_check_refusal(rc, OT_E_INPUT);
    FUZZ_CHECK(rc < 0 || n >= ot_model_param_count(&facts->config));
    ot_model_close(model);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct ot_gguf *file = NULL;
    struct ot_model_dir *dir;
    const char *path = fuzz_file(data, size);
    int rc = ot_gguf_open(path, &file);
    if (rc < 0) {
        FUZZ_CHECK(!file);
        fuzz_check_refusal(rc, OT_E_INPUT);
        return 0;
    }
    check_tensors(file, size);
    ot_gguf_close(file);
    rc = ot_model_dir_open(path, &dir);
    if (rc < 0) {
        fuzz_check_refusal(rc, OT_E_INPUT);
        return 0;
    }
    load(dir);
    ot_model_dir_close(dir);
    return 0;
}
