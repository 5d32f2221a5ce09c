/* Adapters in a directory of PEFT, laid over a model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "models/row_norms.h"
#include "src/base/error.h"
#include "src/base/memory.h"
#include "src/files/adapter_config.h"
#include "src/files/model_dir_state.h"
#include "src/files/torch_file.h"

static bool has_file(const char *dir, const char *name) {
    char path[PATH_MAX];
    return snprintf(path, sizeof path, "%s/%s", dir, name) < (int)sizeof path && access(path, F_OK) == 0;
}

static int open_weights(struct ot_model_dir *dir, const char *path) {
    struct ot_adapter *adapter = &dir->adapter;
    char file[PATH_MAX];
    bool is_torch = !has_file(path, OT_ADAPTER_WEIGHTS_STEM ".safetensors") &&
                    has_file(path, OT_ADAPTER_WEIGHTS_STEM ".bin");
    if (snprintf(file, sizeof file, "%s/" OT_ADAPTER_WEIGHTS_STEM "%s", path,
                 is_torch ? ".bin" : ".safetensors") >= (int)sizeof file)
        return ot_fail(OT_E_INPUT, "%.64s...: the path is too long", path);
    if (!has_file(path, OT_ADAPTER_CONFIG_NAME))
        return ot_fail(OT_E_INPUT, "%s: has no " OT_ADAPTER_CONFIG_NAME ", so it holds no adapters", path);
    if (access(file, F_OK) != 0)
        return ot_fail(OT_E_INPUT, "%s: is missing", file);
    OT_TRY(is_torch ? ot_torch_file_open(file, &adapter->file) : ot_safetensors_open(file, &adapter->file));
    adapter->n_stored = ot_safetensors_count(adapter->file);
    adapter->stored = ot_arena_alloc(dir->arena, (size_t)adapter->n_stored + 1, sizeof *adapter->stored);
    if (!adapter->stored)
        return -OT_E_BUDGET;
    for (int64_t i = 0; i < adapter->n_stored; i++) /* already sorted */
        adapter->stored[i] = (struct ot_stored){.tensor = ot_safetensors_at(adapter->file, i),
                                                .file = ot_safetensors_map(adapter->file)};
    return 0;
}

static int compare_name(const void *key, const void *element) {
    return strcmp(key, ((const struct ot_stored *)element)->tensor->name);
}

const struct ot_stored *ot_adapter_find(const struct ot_adapter *adapter, const char *name) {
    char full[160];
    if (!adapter->file)
        return NULL;
    snprintf(full, sizeof full, "%s%s", ot_lora_has_tensor(name) ? "" : OT_LORA_PREFIX, name);
    return bsearch(full, adapter->stored, (size_t)adapter->n_stored, sizeof *adapter->stored, compare_name);
}

/* PEFT stores the base layer beside the adapters of an embedding or a head, and beside rows of tokens. */
const struct ot_stored *ot_adapter_find_base(const struct ot_adapter *adapter, const char *name) {
    static const char *const inner[] = {"", "token_adapter."};
    const struct ot_stored *found = NULL;
    char inside[160];
    size_t bytes = strlen(name), end = strlen(".weight");
    if (!adapter->file || ot_lora_has_tensor(name) || bytes <= end ||
        strcmp(name + bytes - end, ".weight") != 0)
        return NULL;
    for (size_t i = 0; i < 2 && !found; i++) {
        int n =
            snprintf(inside, sizeof inside, "%.*s.%sbase_layer.weight", (int)(bytes - end), name, inner[i]);
        found = n < (int)sizeof inside ? ot_adapter_find(adapter, inside) : NULL;
    }
    return found;
}

const char *ot_model_dir_table_name(const struct ot_model_dir *dir, enum ot_module module,
                                    char name[OT_TABLE_NAME_BYTES]) {
    ot_model_module_name(&dir->facts.config, module, -1, name, OT_TABLE_NAME_BYTES - sizeof ".weight");
    return strcat(name, ".weight");
}

/* The table that the adapter has in the place of the base's: the base layer that it adapts, or a saved
 * module. NULL: it has none. */
static const struct ot_stored *find_instead(const struct ot_model_dir *dir, enum ot_module module) {
    char name[OT_TABLE_NAME_BYTES];
    const struct ot_stored *stored =
        ot_adapter_find(&dir->adapter, ot_model_dir_table_name(dir, module, name));
    return stored ? stored : ot_adapter_find_base(&dir->adapter, name);
}

static bool is_resized(const struct ot_model_config *config, const struct ot_stored *stored) {
    return stored && stored->tensor->dims == 2 && stored->tensor->shape[1] == config->hidden &&
           stored->tensor->shape[0] != config->vocab;
}

/* An adapter may have been made over a base with another number of tokens (resize_token_embeddings of
 * transformers). It then holds the embedding and the head, and the model has as many tokens as they have. */
static int take_vocab(struct ot_model_dir *dir) {
    struct ot_model_config *config = &dir->facts.config;
    const struct ot_stored *embedding = find_instead(dir, OT_MODULE_EMBEDDING),
                           *head = config->tied ? NULL : find_instead(dir, OT_MODULE_HEAD);
    if (!is_resized(config, embedding) && !is_resized(config, head))
        return 0;
    if (!embedding || (!head && !config->tied) ||
        (head && head->tensor->shape[0] != embedding->tensor->shape[0]))
        return ot_fail(
            OT_E_INPUT,
            "%s: the adapter was made over a base with another number of tokens than %lld, and does "
            "not hold both the embedding and the head of that base; save it again with PEFT's "
            "save_embedding_layers=True",
            ot_safetensors_path(dir->adapter.file), (long long)config->vocab);
    dir->new_rows.vocab = config->vocab;
    config->vocab = embedding->tensor->shape[0];
    dir->is_resized = true;
    return 0;
}

int ot_model_dir_add_adapter(struct ot_model_dir *dir, const char *path) {
    OT_TRY(open_weights(dir, path));
    OT_TRY(take_vocab(dir));
    return ot_model_dir_add_adapter_tokens(dir, path);
}

bool ot_model_dir_is_resized(const struct ot_model_dir *dir) {
    return dir->is_resized || dir->facts.config.n_new > 0;
}

bool ot_model_dir_adapts_module(const struct ot_model_dir *dir, const char *module) {
    for (int64_t i = 0; i < dir->adapter.n_stored; i++) {
        const char *name = dir->adapter.stored[i].tensor->name, *point = strrchr(name, '.');
        size_t bytes = point ? (size_t)(point - name) : 0, length = strlen(module);
        if (!strstr(name, ".lora_") && bytes > length && name[bytes - length - 1] == '.' &&
            memcmp(name + bytes - length, module, length) == 0)
            return true;
    }
    return false;
}

bool ot_model_dir_is_adapted(const struct ot_model_dir *dir, const char *name) {
    return ot_adapter_find(&dir->adapter, name) != NULL;
}

/* ---- file forms ---- */

/* values[row] += sign * the norm of the row of the weight that the tensor belongs to. */
static int add_norms(const struct ot_model *model, const struct ot_tensor *tensor, ot_weight_source source,
                     void *context, float sign, float *values) {
    const struct ot_tensor *weight = ot_model_adapted(model, tensor);
    float *norms = malloc((size_t)weight->rows * sizeof *norms + 1);
    int rc = norms ? ot_model_row_norms(model, weight, source, context, norms)
                   : ot_fail(OT_E_BUDGET, "no memory for the norms of %s", weight->name);
    for (int64_t row = 0; row < weight->rows && rc == 0; row++)
        values[row] += sign * norms[row];
    free(norms);
    return rc;
}

struct slab_source {
    ot_param_source source;
    void *context;
};

static int get_from_source(void *context, const struct ot_tensor *weight, int64_t first, int64_t n,
                           float *values) {
    const struct slab_source *from = context;
    return from->source(from->context, weight->slab, weight->first + first, n, values);
}

int ot_adapter_to_file(const struct ot_model *model, const struct ot_tensor *tensor, ot_param_source source,
                       void *context, float *values) {
    struct slab_source from = {source, context};
    if (tensor->file_form == OT_FORM_ABOVE_NORM)
        OT_TRY(add_norms(model, tensor, get_from_source, &from, 1, values));
    return ot_tensor_to_file(ot_model_get_config(model), tensor, values);
}

static int get_from_dir(void *context, const struct ot_tensor *weight, int64_t first, int64_t n,
                        float *values) {
    return ot_model_dir_get(context, weight, first, n, values);
}

int ot_adapter_load(const struct ot_model_dir *dir, const struct ot_model *model,
                    const struct ot_tensor *tensor, float **values) {
    const struct ot_stored *stored = ot_adapter_find(&dir->adapter, tensor->name);
    int64_t count = tensor->rows * tensor->cols, bad = -1;
    *values = malloc((size_t)count * sizeof **values + 1);
    if (!*values)
        return ot_fail(OT_E_BUDGET, "no memory for %s", tensor->name);
    OT_TRY(ot_tensor_read(ot_model_get_config(model), tensor, stored, 0, count, *values, &bad));
    if (bad >= 0)
        return ot_fail(OT_E_INPUT,
                       "%s: tensor %s holds %g at element %lld; the weights are damaged, get the file again",
                       stored->file->path, stored->tensor->name, (double)(*values)[bad], (long long)bad);
    if (tensor->file_form != OT_FORM_ABOVE_NORM)
        return 0;
    return add_norms(model, tensor, get_from_dir, (void *)dir, -1, *values);
}
