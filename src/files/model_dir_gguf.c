/* A GGUF file as a model directory. */
#include "src/files/model_dir_state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/json.h"
#include "src/base/memory.h"
#include "src/gguf/model_keys.h"
#include "src/gguf/names.h"
#include "src/gguf/vocab.h"

/* Makes small file i, in memory. */
static int hold_text(struct ot_model_dir *dir, int i, const char *text, size_t bytes) {
    dir->small_fds[i] = memfd_create(ot_small_files[i], MFD_CLOEXEC);
    if (dir->small_fds[i] < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot make a file in memory", dir->path);
    int rc = ot_write_all(NULL, dir->small_fds[i], text, bytes);
    return rc < 0 ? ot_fail_errno(OT_E_IO, -rc, "%s: cannot write a file in memory", dir->path) : 0;
}

static int make_config(struct ot_model_dir *dir, const struct ot_gguf_token_ids *ids) {
    struct ot_config_file file;
    char *text = NULL;
    size_t bytes;
    OT_TRY(ot_gguf_make_config(dir->gguf, ids->bos, ids->eos, &text, &bytes));
    int rc = ot_json_parse(text, bytes, dir->path, &dir->config);
    if (rc == 0)
        rc = hold_text(dir, OT_SMALL_CONFIG, text, bytes);
    free(text);
    OT_TRY(rc);
    OT_TRY(ot_model_config_parse(dir->config, dir->path, &file));
    dir->facts.config = file.config;
    dir->facts.dtype = file.dtype;
    dir->facts.ids = file.ids;
    return 0;
}

static int make_generation_config(struct ot_model_dir *dir) {
    char *text = NULL;
    size_t bytes;
    if (dir->facts.ids.n_eos == 0)
        return 0;
    OT_TRY(
        ot_generation_config_write(&dir->facts.ids, ot_model_has_pairs(&dir->facts.config), &text, &bytes));
    int rc = ot_json_parse(text, bytes, dir->path, &dir->generation);
    if (rc == 0)
        rc = hold_text(dir, OT_SMALL_GENERATION_CONFIG, text, bytes);
    free(text);
    return rc;
}

static int make_tokenizer(struct ot_model_dir *dir) {
    char *text = NULL, path[PATH_MAX];
    size_t bytes;
    OT_TRY(ot_gguf_make_tokenizer(dir->gguf, &text, &bytes));
    if (!text)
        return 0;
    int rc = hold_text(dir, OT_SMALL_TOKENIZER, text, bytes);
    free(text);
    OT_TRY(rc);
    ot_model_dir_small_file(dir, OT_SMALL_TOKENIZER, path);
    dir->facts.tokenizer_is_made = true;
    dir->facts.tokenizer_path = ot_arena_strdup(dir->arena, path, strlen(path));
    return dir->facts.tokenizer_path ? 0 : -OT_E_BUDGET;
}

static int find_chat_template(struct ot_model_dir *dir) {
    struct ot_gguf_string text = {0};
    OT_TRY(ot_gguf_need_string(dir->gguf, "tokenizer.chat_template", false, &text));
    if (!text.text)
        return 0;
    dir->facts.has_chat_template = true;
    dir->facts.chat_template = ot_arena_strdup(dir->arena, text.text, text.bytes);
    dir->facts.chat_template_bytes = text.bytes;
    if (!dir->facts.chat_template)
        return -OT_E_BUDGET;
    return hold_text(dir, OT_SMALL_CHAT_TEMPLATE, text.text, text.bytes);
}

/* ---- weights ---- */

/* A tensor of a file that is being described as one or more of a directory. */
struct describing {
    struct ot_model_dir *dir;
    const struct ot_gguf_tensor *from;
    bool known; /* a place of the model */
    struct ot_gguf_place place;
};

static bool is_of_experts(const struct describing *d) {
    return d->known && ot_module_is_expert(d->place.module);
}

/* True if a directory has a tensor for each expert. */
static bool has_slices(const struct describing *d) {
    return is_of_experts(d) && d->place.module <= OT_MODULE_EXPERT_DOWN;
}

/* Tensors of a directory that the file's tensor is. */
static int64_t count_described(const struct describing *d) {
    return has_slices(d) ? d->dir->facts.config.n_experts : 1;
}

/* With one expert, programs may leave out the dimension of the experts. */
static int check_shape(const struct describing *d) {
    const struct ot_model_config *config = &d->dir->facts.config;
    char have_text[OT_SHAPE_TEXT_BYTES], want_text[OT_SHAPE_TEXT_BYTES];
    int64_t want[3];
    int dims = ot_gguf_expert_shape(config, &d->place, want);
    int less = config->n_experts == 1 && d->from->dims == dims - 1;
    if (d->from->dims == dims - less &&
        memcmp(d->from->shape, want + less, (size_t)(dims - less) * sizeof *want) == 0)
        return 0;
    return ot_fail(OT_E_INPUT, "%s: tensor %s has the shape %s, but by the file's keys it should be %s",
                   d->dir->path, d->from->name, ot_shape_text(d->from->shape, d->from->dims, have_text),
                   ot_shape_text(want, dims, want_text));
}

/* Adds a tensor of this name and shape, whose values begin with value `first` of the file's. */
static int add_stored(const struct describing *d, const char *name, int64_t first, int dims,
                      const int64_t *shape, struct ot_stored **out) {
    struct ot_model_dir *dir = d->dir;
    const struct ot_gguf_type *type = d->from->type;
    struct ot_safetensor *to = ot_arena_alloc(dir->arena, 1, sizeof *to);
    char *copy = ot_arena_strdup(dir->arena, name, strlen(name));
    if (!to || !copy)
        return -OT_E_BUDGET;
    *to = (struct ot_safetensor){.name = copy,
                                 .dtype_name = type->name,
                                 .readable = type->decode != NULL,
                                 .dtype = dir->facts.dtype,
                                 .dims = dims,
                                 .count = 1,
                                 .data = (const char *)d->from->data +
                                         first / type->block_values * type->block_bytes};
    for (int i = 0; i < dims; i++) {
        to->shape[i] = shape[i];
        to->count *= shape[i];
    }
    to->bytes = (size_t)(to->count / type->block_values * type->block_bytes);
    struct ot_stored *stored = &dir->stored[dir->n_stored++];
    *stored = (struct ot_stored){.tensor = to, .file = ot_gguf_map(dir->gguf), .blocks = type};
    *out = stored;
    return 0;
}

/* Rows that change places must be whole blocks. A bias has rows of one value. */
static int check_rows(const struct describing *d, const struct ot_gguf_tensor *tensor, int64_t row_values) {
    if (!tensor->type->decode)
        return ot_fail(OT_E_INPUT, "%s: tensor %s is stored as %s; readable types are %s", d->dir->path,
                       tensor->name, tensor->type->name, ot_gguf_readable_types());
    if (row_values % tensor->type->block_values == 0)
        return 0;
    return ot_fail(OT_E_INPUT, "%s: tensor %s is stored as %s, which its rows of %lld values cannot be",
                   d->dir->path, tensor->name, tensor->type->name, (long long)row_values);
}

/* The tensor is the gate of a pair. */
static int describe_pair(const struct describing *d, const char *name) {
    const struct ot_model_config *config = &d->dir->facts.config;
    char up_name[OT_GGUF_NAME_BYTES];
    struct ot_stored *stored;
    int64_t shape[3];
    int dims = ot_gguf_expert_shape(config, &d->place, shape);
    snprintf(up_name, sizeof up_name, "%s", d->from->name);
    ot_gguf_name_up(up_name);
    const struct ot_gguf_tensor *up = ot_gguf_find_tensor(d->dir->gguf, up_name);
    if (!up)
        return ot_fail(OT_E_INPUT, "%s: tensor %s has no %s beside it; get the file again", d->dir->path,
                       d->from->name, up_name);
    shape[1] *= 2;
    OT_TRY(add_stored(d, name, 0, dims, shape, &stored));
    stored->up = up;
    stored->row_values = dims == 3 ? shape[2] : 1;
    OT_TRY(check_rows(d, d->from, stored->row_values));
    return check_rows(d, up, stored->row_values);
}

static int describe_experts(const struct describing *d) {
    const struct ot_model_config *config = &d->dir->facts.config;
    int64_t shape[3], n = count_described(d);
    char name[OT_MODEL_NAME_BYTES];
    struct ot_stored *stored;
    int dims = ot_gguf_expert_shape(config, &d->place, shape), each = has_slices(d);
    for (int64_t expert = 0; expert < n && !d->place.is_up; expert++) {
        ot_gguf_name_back(config, &d->place, expert, name);
        if (ot_gguf_is_pair(d->place.module))
            return describe_pair(d, name);
        OT_TRY(add_stored(d, name, expert * (d->from->count / n), dims - each, shape + each, &stored));
    }
    return 0;
}

/* Describes a tensor as the directory's would be described. A name that GGUF does not define stays, so that
 * the load can refuse the tensor by its name. */
static int describe(const struct describing *d) {
    const struct ot_model_config *config = &d->dir->facts.config;
    const struct ot_gguf_tensor *from = d->from;
    char name[OT_MODEL_NAME_BYTES];
    struct ot_stored *stored;
    if (!d->known)
        return add_stored(d, from->name, 0, from->dims, from->shape, &stored);
    if (is_of_experts(d))
        return describe_experts(d);
    ot_gguf_name_back(config, &d->place, 0, name);
    OT_TRY(add_stored(d, name, 0, from->dims, from->shape, &stored));
    stored->head_rows = ot_gguf_head_rows(config, d->place.module);
    stored->row_values = from->dims == 2 ? from->shape[1] : 1;
    stored->addend = ot_gguf_addend(config, d->place.module);
    return stored->head_rows ? check_rows(d, from, stored->row_values) : 0;
}

static struct describing place_tensor(struct ot_model_dir *dir, int64_t index) {
    struct describing d = {.dir = dir, .from = ot_gguf_tensor(dir->gguf, index)};
    d.known = ot_gguf_find_place(&dir->facts.config, d.from->name, &d.place);
    return d;
}

static int find_weights(struct ot_model_dir *dir) {
    int64_t n = ot_gguf_tensor_count(dir->gguf), most = 0;
    for (int64_t i = 0; i < n; i++) {
        const struct describing d = place_tensor(dir, i);
        if (is_of_experts(&d))
            OT_TRY(check_shape(&d));
        most += count_described(&d);
        dir->facts.weight_bytes += (int64_t)d.from->bytes;
    }
    dir->stored = ot_arena_alloc(dir->arena, (size_t)most + 1, sizeof *dir->stored);
    if (!dir->stored)
        return -OT_E_BUDGET;
    dir->facts.has_weights = true;
    dir->facts.n_shards = 1;
    for (int64_t i = 0; i < n; i++) {
        const struct describing d = place_tensor(dir, i);
        if (!ot_gguf_is_rope_tensor(d.from->name)) /* the config has what those say */
            OT_TRY(describe(&d));
    }
    ot_model_dir_sort(dir);
    return 0;
}

int ot_model_dir_open_gguf(struct ot_model_dir *dir) {
    struct ot_gguf_token_ids ids;
    OT_TRY(ot_gguf_open(dir->path, &dir->gguf));
    OT_TRY(ot_gguf_read_token_ids(dir->gguf, &ids));
    OT_TRY(make_config(dir, &ids));
    OT_TRY(make_generation_config(dir));
    OT_TRY(make_tokenizer(dir));
    OT_TRY(find_chat_template(dir));
    return find_weights(dir);
}
