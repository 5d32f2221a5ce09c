/* A GGUF file as a model directory. */
#include "src/files/model_dir_state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "src/base/arena.h"
#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/json.h"
#include "src/gguf/model_keys.h"
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
    OT_TRY(ot_generation_config_write(&dir->facts.ids, false, &text, &bytes));
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

/* Describes a tensor as the directory's would be described. A name that GGUF does not define stays, so that
 * the load can refuse the tensor by its name. */
static int describe(struct ot_model_dir *dir, const struct ot_gguf_tensor *from, struct ot_safetensor *to,
                    struct ot_stored *stored) {
    const struct ot_model_config *config = &dir->facts.config;
    struct ot_gguf_place place;
    char name[OT_MODEL_NAME_BYTES];
    const char *named = from->name;
    *stored = (struct ot_stored){.tensor = to, .file = ot_gguf_map(dir->gguf), .blocks = from->type};
    if (ot_gguf_find_place(config, from->name, &place)) {
        ot_gguf_name_back(config, &place, name);
        named = name;
        stored->head_rows = ot_gguf_head_rows(config, place.module);
        stored->addend = ot_gguf_addend(config, place.module);
    }
    *to = (struct ot_safetensor){.name = ot_arena_strdup(dir->arena, named, strlen(named)),
                                 .dtype_name = from->type->name,
                                 .readable = from->type->decode != NULL,
                                 .dtype = dir->facts.dtype,
                                 .dims = from->dims,
                                 .count = from->count,
                                 .data = from->data,
                                 .bytes = from->bytes};
    memcpy(to->shape, from->shape, sizeof from->shape);
    return to->name ? 0 : -OT_E_BUDGET;
}

static int find_weights(struct ot_model_dir *dir) {
    int64_t n = ot_gguf_tensor_count(dir->gguf);
    struct ot_safetensor *tensors = ot_arena_alloc(dir->arena, (size_t)n + 1, sizeof *tensors);
    dir->stored = ot_arena_alloc(dir->arena, (size_t)n + 1, sizeof *dir->stored);
    if (!tensors || !dir->stored)
        return -OT_E_BUDGET;
    dir->facts.has_weights = true;
    dir->facts.n_shards = 1;
    for (int64_t i = 0; i < n; i++) {
        const struct ot_gguf_tensor *tensor = ot_gguf_tensor(dir->gguf, i);
        dir->facts.weight_bytes += (int64_t)tensor->bytes;
        if (!ot_gguf_is_rope_tensor(tensor->name)) /* the config has what those say */
            OT_TRY(describe(dir, tensor, &tensors[i], &dir->stored[dir->n_stored++]));
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
