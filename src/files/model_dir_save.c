/* Saves weights as a new model directory: the tensors, config.json, and the base's small files. */
#include "src/files/model_dir_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/minmax.h"
#include "src/files/adapter_config.h"
#include "src/files/out_dir.h"

enum {
    CHUNK_VALUES = 1 << 20,
    MARGIN_BYTES = 1 << 20, /* configs that we write, the marker, blocks of the file system */
    TRIAL_BYTES = 1 << 16,
};

enum { NAME_BYTES = OT_MODEL_NAME_BYTES + 64 }; /* of a tensor: its name in the model, with more around it */

struct saver {
    const struct ot_model_save *save;
    struct ot_out_dir *dir;
    struct ot_safetensors_entry *entries;
    int64_t n_entries;
    char (*names)[NAME_BYTES]; /* of the entries of an adapter, and of the parts of a matrix */
    struct ot_safetensors_writer *writer;
    float *values; /* CHUNK_VALUES */
};

static bool is_extra(const struct ot_model_save *save, const char *name) {
    for (int i = 0; i < save->n_extra; i++)
        if (strcmp(save->extra[i].name, name) == 0)
            return true;
    return false;
}

/* True if the save writes the tensor. */
static bool writes(const struct ot_model_save *save, const struct ot_tensor *tensor) {
    return !save->adapter_config || tensor->trained;
}

/* PEFT stores a trained embedding that is also the head under both names, and its reader wants both. */
static bool has_copy(const struct ot_model_save *save, const struct ot_tensor *tensor) {
    return save->adapter_config && ot_model_get_config(save->model)->tied &&
           tensor->module == OT_MODULE_EMBEDDING && !ot_lora_has_tensor(tensor->name);
}

/* Path to copy the base's small file i from; NULL: the file is not copied. */
static const char *small_path(const struct ot_model_save *save, int i, char path[PATH_MAX]) {
    return save->base && !is_extra(save, ot_small_files[i]) ? ot_model_dir_small_file(save->base, i, path)
                                                            : NULL;
}

/* Some models keep a few tensors, such as norms, in another dtype than the rest. Each tensor keeps its own
 * dtype. *stored is NULL if all tensors are written in save->dtype: there is no base with these tensors, or
 * another dtype is wanted. */
static int map_base(const struct ot_model_save *save, const struct ot_stored ***stored) {
    const struct ot_model_dir *base = save->base;
    if (!base || save->adapter_config || !base->facts.has_weights || base->facts.dtype != save->dtype ||
        base->gguf || base->quantized.method != OT_QUANT_NONE)
        return 0; /* GGUF has vectors in fp32 for every dtype of the model */
    int rc = ot_model_dir_map(base, save->model, stored);
    if (rc == -OT_E_INPUT) /* with --init random the base's weights were not loaded and may differ */
        return 0;
    /* Readers expect values at multiples of their size, and tensors are stored without gaps. So keep the
     * dtypes only if every tensor's size is a multiple of 4 bytes. */
    bool aligned = true;
    for (int64_t i = 0; rc == 0 && i < ot_model_tensor_count(save->model); i++) {
        const struct ot_tensor *tensor = ot_model_tensor(save->model, i);
        size_t item = ot_dtype_bytes((*stored)[i]->tensor->dtype);
        aligned = aligned && (size_t)(tensor->rows * tensor->cols) * item % sizeof(float) == 0;
    }
    if (!aligned) {
        free(*stored);
        *stored = NULL;
    }
    return rc;
}

/* The licence and the code of a base go with a whole model. */
static int copied_files(const struct ot_model_save *save) {
    return save->base && !save->adapter_config ? save->base->n_copied : 0;
}

/* Path to copy kept file i from; NULL: an extra file replaces it. */
static const char *copied_path(const struct ot_model_save *save, int i, char path[PATH_MAX]) {
    const struct ot_copied_file *file = &save->base->copied[i];
    snprintf(path, PATH_MAX, "/proc/self/fd/%d", file->fd);
    return is_extra(save, file->name) ? NULL : path;
}

/* True if the save stores the tensor in its format of quantised checkpoints. */
static bool is_packed(const struct ot_model_save *save, const struct ot_tensor *tensor) {
    enum ot_layer_input input;
    return save->pack && ot_quant_encode_takes(save->pack, tensor, &input);
}

static int add_packed_entries(struct saver *s, const struct ot_tensor *tensor) {
    struct ot_quant_tensor tensors[OT_QUANT_TENSORS];
    OT_TRY(ot_quant_encode_check(s->save->pack, tensor));
    int n = ot_quant_encode_tensors(s->save->pack, tensor, tensors);
    for (int i = 0; i < n; i++) {
        char *name = s->names[s->n_entries];
        struct ot_safetensors_entry *entry = &s->entries[s->n_entries++];
        ot_quant_tensor_name(tensor, &tensors[i], name, NAME_BYTES);
        *entry = (struct ot_safetensors_entry){.name = name,
                                               .dims = tensors[i].dims,
                                               .raw = tensors[i].dtype,
                                               .item_bytes = tensors[i].item_bytes};
        memcpy(entry->shape, tensors[i].shape, sizeof entry->shape);
    }
    return 0;
}

/* The entry of a tensor that is stored plainly. */
static void add_plain_entry(struct saver *s, const struct ot_tensor *tensor, enum ot_dtype dtype) {
    struct ot_safetensors_entry *entry = &s->entries[s->n_entries];
    *entry = (struct ot_safetensors_entry){.name = tensor->name, .dtype = dtype};
    if (s->save->adapter_config) {
        entry->name = s->names[s->n_entries];
        snprintf(s->names[s->n_entries], NAME_BYTES, "%s%s",
                 ot_lora_has_tensor(tensor->name) ? "" : OT_LORA_PREFIX, tensor->name);
        entry->dtype = OT_F32;
    }
    entry->dims = ot_tensor_file_shape(tensor, NULL, entry->shape);
    s->n_entries++;
}

static int add_entries(struct saver *s, const struct ot_stored *const *stored) {
    const struct ot_model *model = s->save->model;
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++) {
        const struct ot_tensor *tensor = ot_model_tensor(model, i);
        if (!writes(s->save, tensor))
            continue;
        if (is_packed(s->save, tensor))
            OT_TRY(add_packed_entries(s, tensor));
        else
            add_plain_entry(s, tensor, stored ? stored[i]->tensor->dtype : s->save->dtype);
        if (has_copy(s->save, tensor)) {
            struct ot_tensor copy = *tensor;
            snprintf(copy.name, sizeof copy.name, "%s", OT_HEAD_WEIGHT);
            add_plain_entry(s, &copy, OT_F32);
        }
    }
    return 0;
}

static int open_writer(struct saver *s) {
    const struct ot_model_save *save = s->save;
    size_t most = (size_t)ot_model_tensor_count(save->model) * (save->pack ? OT_QUANT_TENSORS : 1) + 2;
    const struct ot_stored **stored = NULL;
    int64_t shard_bytes = save->adapter_config    ? INT64_MAX /* PEFT reads one file */
                          : save->shard_bytes > 0 ? save->shard_bytes
                                                  : OT_SHARD_BYTES;
    OT_TRY(map_base(save, &stored));
    s->entries = calloc(most, sizeof *s->entries);
    s->names = calloc(save->adapter_config || save->pack ? most : 1, sizeof *s->names);
    int rc = s->entries && s->names ? add_entries(s, stored)
                                    : ot_fail(OT_E_BUDGET, "%s: no memory for a table of tensors", save->out);
    free(stored);
    OT_TRY(rc);
    return ot_safetensors_writer_open(s->dir, save->adapter_config ? OT_ADAPTER_WEIGHTS_STEM : "model",
                                      s->entries, s->n_entries, shard_bytes, &s->writer);
}

static int add_file_bytes(const char *path, int64_t *bytes) {
    struct stat info;
    if (stat(path, &info) < 0 || !S_ISREG(info.st_mode))
        return ot_fail(OT_E_IO, "%s: cannot copy the file to the output: it is not a readable file", path);
    *bytes += info.st_size;
    return 0;
}

static int count_bytes(const struct saver *s, int64_t *bytes) {
    const struct ot_model_save *save = s->save;
    char path[PATH_MAX];
    *bytes = ot_safetensors_writer_bytes(s->writer) + MARGIN_BYTES;
    for (int i = 0; i < save->n_extra; i++)
        if (save->extra[i].path)
            OT_TRY(add_file_bytes(save->extra[i].path, bytes));
        else
            *bytes += (int64_t)save->extra[i].bytes;
    for (int i = OT_SMALL_COPIED; i < OT_N_SMALL_FILES; i++)
        if (small_path(save, i, path))
            OT_TRY(add_file_bytes(path, bytes));
    for (int i = 0; i < copied_files(save); i++)
        if (copied_path(save, i, path))
            OT_TRY(add_file_bytes(path, bytes));
    return 0;
}

static void close_saver(struct saver *s) {
    ot_safetensors_writer_close(s->writer);
    ot_out_dir_close(s->dir);
    free(s->entries);
    free(s->names);
    free(s->values);
}

int ot_model_dir_save_bytes(const struct ot_model_save *save, int64_t *bytes) {
    struct saver s = {.save = save};
    int rc;
    OT_TRY_GOTO(open_writer(&s), rc, out);
    rc = count_bytes(&s, bytes);
out:
    close_saver(&s);
    return rc;
}

/* Does everything that is possible before the first value: makes the directory and checks the space. */
static int prepare(struct saver *s) {
    int64_t bytes;
    OT_TRY(ot_out_dir_open(s->save->out, s->save->calls, s->save->lock, &s->dir));
    OT_TRY(open_writer(s));
    OT_TRY(count_bytes(s, &bytes));
    return ot_out_dir_need_space(s->dir, bytes);
}

/* ---- the small files ---- */

/* text NULL: copies small file i of the base unchanged. */
static int put_config(const struct saver *s, int i, char *text, size_t bytes) {
    char path[PATH_MAX];
    int rc =
        text ? ot_out_dir_put(s->dir, ot_small_files[i], text, bytes)
             : ot_out_dir_copy(s->dir, ot_small_files[i], ot_model_dir_small_file(s->save->base, i, path));
    free(text);
    return rc;
}

/* *text stays NULL if the base's config.json is right. The text part of a larger model gets its own
 * config. */
static int make_config(const struct ot_model_save *save, char **text, size_t *bytes) {
    const struct ot_model_dir *base = save->base;
    struct ot_config_file file = {.config = *ot_model_get_config(save->model),
                                  .has_dtype = true,
                                  .dtype = save->dtype,
                                  .ids = save->ids};
    if (!base || base->facts.is_text_part) {
        if (base && file.ids.n_eos == 0)
            file.ids = base->facts.ids;
        return ot_model_config_write(&file, text, bytes);
    }
    bool is_resized = base->is_resized || base->new_rows.vocab > 0;
    bool scaled = !ot_model_config_same_rope(&base->facts.config, &file.config);
    struct ot_config_changes changes = {.dtype = save->dtype,
                                        .ids = &save->ids,
                                        .pack = save->pack,
                                        .unties = base->facts.config.tied && !file.config.tied,
                                        .vocab = is_resized ? file.config.vocab : 0,
                                        .rope = scaled ? &file.config : NULL};
    return ot_model_config_rewrite(base->config, &changes, text, bytes);
}

static int save_configs(const struct saver *s) {
    const struct ot_model_save *save = s->save;
    char *text = NULL;
    size_t bytes = 0;
    if (save->adapter_config)
        return ot_out_dir_put(s->dir, OT_ADAPTER_CONFIG_NAME, save->adapter_config,
                              strlen(save->adapter_config));
    if (!is_extra(save, "config.json")) {
        OT_TRY(make_config(save, &text, &bytes));
        OT_TRY(put_config(s, OT_SMALL_CONFIG, text, bytes));
    }
    if (is_extra(save, "generation_config.json") ||
        (save->base ? !save->base->generation : save->ids.n_eos == 0))
        return 0;
    text = NULL;
    OT_TRY(save->base ? ot_generation_config_rewrite(save->base->generation, &save->ids, &text, &bytes)
                      : ot_generation_config_write(
                            &save->ids, ot_model_has_pairs(ot_model_get_config(save->model)), &text, &bytes));
    return put_config(s, OT_SMALL_GENERATION_CONFIG, text, bytes);
}

static int save_files(const struct saver *s) {
    const struct ot_model_save *save = s->save;
    char path[PATH_MAX];
    for (int i = 0; i < save->n_extra; i++) {
        const struct ot_extra_file *file = &save->extra[i];
        OT_TRY(file->path ? ot_out_dir_copy(s->dir, file->name, file->path)
                          : ot_out_dir_put(s->dir, file->name, file->text, file->bytes));
    }
    for (int i = OT_SMALL_COPIED; i < OT_N_SMALL_FILES; i++)
        if (small_path(save, i, path))
            OT_TRY(ot_out_dir_copy(s->dir, ot_small_files[i], path));
    for (int i = 0; i < copied_files(save); i++)
        if (copied_path(save, i, path))
            OT_TRY(ot_out_dir_copy(s->dir, save->base->copied[i].name, path));
    return 0;
}

/* ---- the weights ---- */

static int save_packed(struct saver *s, const struct ot_tensor *tensor, void *context) {
    struct ot_quant_tensor described[OT_QUANT_TENSORS];
    const void *tensors[OT_QUANT_TENSORS];
    int n = ot_quant_encode_tensors(s->save->pack, tensor, described);
    OT_TRY(s->save->quant_source(context, tensor, tensors));
    for (int i = 0; i < n; i++)
        OT_TRY(ot_safetensors_writer_put_raw(s->writer, tensors[i]));
    return 0;
}

/* True if files have the values in another form or order. */
static bool has_form(const struct ot_tensor *tensor) {
    return tensor->file_form != OT_FORM_SAME || tensor->is_fused;
}

/* A tensor that files have in another form, as a whole. */
static int save_formed(struct saver *s, const struct ot_tensor *tensor, ot_param_source source,
                       void *context) {
    int64_t count = tensor->rows * tensor->cols;
    float *values = malloc((size_t)count * sizeof *values + 1);
    int rc = values ? 0 : ot_fail(OT_E_BUDGET, "%s: no memory for %s", s->save->out, tensor->name);
    for (int64_t at = 0, n; at < count && rc == 0; at += n) {
        n = ot_min(count - at, CHUNK_VALUES);
        rc = source(context, tensor->slab, tensor->first + at, n, values + at);
    }
    if (rc == 0)
        rc = ot_adapter_to_file(s->save->model, tensor, source, context, values);
    if (rc == 0)
        rc = ot_safetensors_writer_put(s->writer, values, count);
    free(values);
    return rc;
}

static int save_plain(struct saver *s, const struct ot_tensor *tensor, ot_param_source source,
                      void *context) {
    int64_t count = tensor->rows * tensor->cols;
    for (int64_t at = 0, n; at < count; at += n) {
        n = ot_min(count - at, CHUNK_VALUES);
        OT_TRY(source(context, tensor->slab, tensor->first + at, n, s->values));
        OT_TRY(ot_safetensors_writer_put(s->writer, s->values, n));
    }
    return 0;
}

static int save_weights(struct saver *s, ot_param_source source, void *context) {
    const struct ot_model *model = s->save->model;
    s->values = malloc(CHUNK_VALUES * sizeof *s->values);
    if (!s->values)
        return ot_fail(OT_E_BUDGET, "%s: no memory for a buffer of %zu bytes to write the model",
                       s->save->out, CHUNK_VALUES * sizeof *s->values);
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++) {
        const struct ot_tensor *tensor = ot_model_tensor(model, i);
        if (!writes(s->save, tensor))
            continue;
        OT_TRY(is_packed(s->save, tensor) ? save_packed(s, tensor, context)
               : has_form(tensor)         ? save_formed(s, tensor, source, context)
                                          : save_plain(s, tensor, source, context));
        if (has_copy(s->save, tensor))
            OT_TRY(save_plain(s, tensor, source, context));
    }
    return ot_safetensors_writer_finish(s->writer);
}

int ot_model_dir_save_try(const struct ot_model_save *save) {
    static const char trial[TRIAL_BYTES];
    struct saver s = {.save = save};
    int rc;
    OT_TRY_GOTO(prepare(&s), rc, out);
    rc = ot_out_dir_put(s.dir, "write-test", trial, sizeof trial);
out:
    close_saver(&s);
    return rc;
}

int ot_model_dir_save(const struct ot_model_save *save, ot_param_source source, void *context) {
    struct saver s = {.save = save};
    int rc;
    OT_TRY_GOTO(prepare(&s), rc, out);
    OT_TRY_GOTO(save_configs(&s), rc, out);
    OT_TRY_GOTO(save_files(&s), rc, out);
    OT_TRY_GOTO(save_weights(&s, source, context), rc, out);
    rc = ot_out_dir_commit(s.dir);
out:
    close_saver(&s);
    return rc;
}
