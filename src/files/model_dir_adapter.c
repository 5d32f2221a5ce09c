/* Adapters in a directory of PEFT, laid over a model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/arena.h"
#include "src/base/error.h"
#include "src/files/adapter_config.h"
#include "src/files/model_dir_state.h"

static bool has_file(const char *dir, const char *name) {
    char path[PATH_MAX];
    return snprintf(path, sizeof path, "%s/%s", dir, name) < (int)sizeof path && access(path, F_OK) == 0;
}

int ot_model_dir_add_adapter(struct ot_model_dir *dir, const char *path) {
    struct ot_adapter *adapter = &dir->adapter;
    char file[PATH_MAX];
    if (snprintf(file, sizeof file, "%s/" OT_ADAPTER_WEIGHTS_STEM ".safetensors", path) >= (int)sizeof file)
        return ot_fail(OT_E_INPUT, "%.64s...: the path is too long", path);
    if (!has_file(path, OT_ADAPTER_CONFIG_NAME))
        return ot_fail(OT_E_INPUT, "%s: has no " OT_ADAPTER_CONFIG_NAME ", so it holds no adapters", path);
    if (access(file, F_OK) != 0 && has_file(path, OT_ADAPTER_WEIGHTS_STEM ".bin"))
        return ot_fail(OT_E_INPUT,
                       "%s: has " OT_ADAPTER_WEIGHTS_STEM
                       ".bin but no safetensors; load and save the adapter "
                       "with PEFT to convert it",
                       path);
    if (access(file, F_OK) != 0)
        return ot_fail(OT_E_INPUT, "%s: is missing", file);
    OT_TRY(ot_safetensors_open(file, &adapter->file));
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

bool ot_model_dir_is_adapted(const struct ot_model_dir *dir, const char *name) {
    return ot_adapter_find(&dir->adapter, name) != NULL;
}
