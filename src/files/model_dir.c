#include "src/files/model_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/json.h"
#include "src/base/memory.h"
#include "src/base/text.h"
#include "src/base/utf8.h"
#include "src/files/model_dir_state.h"
#include "src/files/out_lock.h"
#include "src/files/torch_file.h"
#include "src/gguf/gguf.h"

/* Larger than any real file. */
enum { INDEX_MAX_BYTES = 16 << 20 };

const char *ot_model_dir_file(const struct ot_model_dir *dir, const char *name, char path[PATH_MAX]) {
    snprintf(path, PATH_MAX, "%s/%.*s", dir->path, NAME_MAX, name);
    return path;
}

bool ot_model_dir_has(const struct ot_model_dir *dir, const char *name) {
    char path[PATH_MAX];
    struct stat info;
    return stat(ot_model_dir_file(dir, name, path), &info) == 0 && S_ISREG(info.st_mode);
}

/* Small files of a base, as transformers' tokenizers save them. */
const char *const ot_small_files[OT_N_SMALL_FILES] = {
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "spiece.model",
};

static int hold_small_files(struct ot_model_dir *dir) {
    char path[PATH_MAX];
    for (int i = 0; i < OT_N_SMALL_FILES; i++) {
        if (!ot_model_dir_has(dir, ot_small_files[i]))
            continue;
        dir->small_fds[i] = open(ot_model_dir_file(dir, ot_small_files[i], path), O_RDONLY | O_CLOEXEC);
        if (dir->small_fds[i] < 0)
            return ot_fail_errno(OT_E_IO, errno, "%s: cannot open the file", path);
    }
    return 0;
}

const char *ot_model_dir_small_file(const struct ot_model_dir *dir, int i, char path[PATH_MAX]) {
    if (dir->small_fds[i] < 0)
        return NULL;
    snprintf(path, PATH_MAX, "/proc/self/fd/%d", dir->small_fds[i]);
    return path;
}

static int read_json(const struct ot_model_dir *dir, const char *name, size_t max_bytes,
                     struct ot_json **out) {
    char path[PATH_MAX];
    return ot_json_read_file(ot_model_dir_file(dir, name, path), max_bytes, out);
}

/* ---- token ids ---- */

static void put_first(struct ot_token_ids *ids, int64_t eos) {
    for (int i = 1; i < ids->n_eos; i++)
        if (ids->eos[i] == eos) {
            ids->eos[i] = ids->eos[0];
            ids->eos[0] = (int32_t)eos;
        }
}

/* On entry facts.ids has the ids of config.json. The tokenizer's file is large, so it is read only if it
 * decides. */
static int resolve_ids(struct ot_model_dir *dir) {
    struct ot_token_ids *ids = &dir->facts.ids, generation = {.bos = -1};
    int64_t bos, eos;
    if (dir->generation) {
        char path[PATH_MAX];
        ot_model_dir_file(dir, "generation_config.json", path);
        OT_TRY(ot_token_ids_parse(dir->generation, path, dir->facts.config.vocab, &generation));
    }
    if (generation.bos < 0 || generation.n_eos != 1) {
        OT_TRY(ot_model_dir_read_tokenizer_ids(dir, &bos, &eos));
        if (bos >= 0)
            ids->bos = (int32_t)bos;
        if (eos >= 0 && generation.n_eos == 0 && ids->n_eos <= 1) {
            ids->n_eos = 1;
            ids->eos[0] = (int32_t)eos;
        }
        put_first(ids, eos);
        put_first(&generation, eos);
    }
    if (generation.bos >= 0)
        ids->bos = generation.bos;
    if (generation.n_eos > 0) {
        ids->n_eos = generation.n_eos;
        memcpy(ids->eos, generation.eos, sizeof ids->eos);
    }
    return 0;
}

/* ---- weights ---- */

/* The formats of weights in a directory. If it has several, the first is read. */
static const struct weights_format {
    const char *end; /* of the names of its files */
    const char *file, *index;
    int (*open)(const char *path, struct ot_safetensors **out);
} formats[] = {
    {".safetensors", "model.safetensors", "model.safetensors.index.json", ot_safetensors_open},
    {".bin", "pytorch_model.bin", "pytorch_model.bin.index.json", ot_torch_file_open},
};
enum { N_FORMATS = sizeof formats / sizeof *formats };

static int open_shard(struct ot_model_dir *dir, const struct weights_format *format, const char *name) {
    size_t n = (size_t)dir->facts.n_shards, capacity = n;
    char path[PATH_MAX];
    OT_TRY(ot_grow(&dir->files, &capacity, n + 1, sizeof *dir->files, "shards"));
    OT_TRY(format->open(ot_model_dir_file(dir, name, path), &dir->files[n]));
    dir->facts.n_shards++;
    return 0;
}

/* The open file with the index's name `name`. The first call for a name opens the file. */
static int find_shard(struct ot_model_dir *dir, const struct weights_format *format, const char *index,
                      const char *name, struct ot_safetensors **file) {
    size_t bytes = strlen(name), end = strlen(format->end), prefix = strlen(dir->path) + 1;
    if (strchr(name, '/') || name[0] == '.' || bytes <= end || bytes > NAME_MAX ||
        strcmp(name + bytes - end, format->end) != 0)
        return ot_fail(OT_E_INPUT, "%s: '%s' is not the name of a %s file in this directory", index, name,
                       format->end);
    for (int i = 0; i < dir->facts.n_shards; i++)
        if (strcmp(ot_safetensors_path(dir->files[i]) + prefix, name) == 0) {
            *file = dir->files[i];
            return 0;
        }
    OT_TRY(open_shard(dir, format, name));
    *file = dir->files[dir->facts.n_shards - 1];
    return 0;
}

/* Checks that the shards hold no tensor that the index does not list: such a tensor would be lost
 * silently. */
static int check_all_listed(const struct ot_model_dir *dir, const char *index, const struct ot_json *map) {
    for (int f = 0; f < dir->facts.n_shards; f++)
        for (int64_t i = 0; i < ot_safetensors_count(dir->files[f]); i++) {
            const char *name = ot_safetensors_at(dir->files[f], i)->name;
            const char *file = ot_json_string(ot_json_get(map, name), NULL);
            if (!file || strcmp(file, strrchr(ot_safetensors_path(dir->files[f]), '/') + 1) != 0)
                return ot_fail(OT_E_INPUT,
                               "%s: holds tensor %s, but %s says it is elsewhere; get the model again",
                               ot_safetensors_path(dir->files[f]), name, index);
        }
    return 0;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct ot_stored *)a)->tensor->name, ((const struct ot_stored *)b)->tensor->name);
}

void ot_model_dir_sort(struct ot_model_dir *dir) {
    qsort(dir->stored, (size_t)dir->n_stored, sizeof *dir->stored, by_name);
}

static int compare_name(const void *key, const void *element) {
    return strcmp(key, ((const struct ot_stored *)element)->tensor->name);
}

const struct ot_stored *ot_model_dir_find(const struct ot_model_dir *dir, const char *name) {
    return bsearch(name, dir->stored, (size_t)dir->n_stored, sizeof *dir->stored, compare_name);
}

static int read_index(struct ot_model_dir *dir, const struct weights_format *format, const char *index,
                      const struct ot_json *root) {
    const struct ot_json *map = ot_json_get(root, "weight_map");
    void *cursor = NULL;
    const char *name;
    struct ot_json *value;
    size_t room = 0;
    if (ot_json_type(map) != OT_JSON_OBJECT)
        return ot_fail(OT_E_INPUT, "%s: the key 'weight_map' must be an object", index);
    while (ot_json_next(map, &cursor, &name, &value))
        room++;
    dir->stored = ot_arena_alloc(dir->arena, room + 1, sizeof *dir->stored);
    if (!dir->stored)
        return -OT_E_BUDGET;
    for (cursor = NULL; ot_json_next(map, &cursor, &name, &value);) {
        const char *file_name = ot_json_string(value, NULL);
        struct ot_safetensors *file = NULL;
        if (!file_name)
            return ot_fail(OT_E_INPUT, "%s: weight_map: tensor %s must name a file", index, name);
        OT_TRY(find_shard(dir, format, index, file_name, &file));
        const struct ot_safetensor *tensor = ot_safetensors_find(file, name);
        if (!tensor)
            return ot_fail(OT_E_INPUT,
                           "%s: says that tensor %s is in %s, but it is not there; get the model again",
                           index, name, file_name);
        dir->stored[dir->n_stored++] = (struct ot_stored){.tensor = tensor, .file = ot_safetensors_map(file)};
    }
    OT_TRY(check_all_listed(dir, index, map));
    ot_model_dir_sort(dir);
    return 0;
}

static int open_sharded(struct ot_model_dir *dir, const struct weights_format *format) {
    struct ot_json *root = NULL;
    char index[PATH_MAX];
    ot_model_dir_file(dir, format->index, index);
    OT_TRY(ot_json_read_file(index, INDEX_MAX_BYTES, &root));
    int rc = read_index(dir, format, index, root);
    ot_json_free(root);
    return rc;
}

static int open_single(struct ot_model_dir *dir, const struct weights_format *format) {
    OT_TRY(open_shard(dir, format, format->file));
    dir->n_stored = ot_safetensors_count(dir->files[0]);
    dir->stored = ot_arena_alloc(dir->arena, (size_t)dir->n_stored + 1, sizeof *dir->stored);
    if (!dir->stored)
        return -OT_E_BUDGET;
    for (int64_t i = 0; i < dir->n_stored; i++) /* already sorted */
        dir->stored[i] = (struct ot_stored){.tensor = ot_safetensors_at(dir->files[0], i),
                                            .file = ot_safetensors_map(dir->files[0])};
    return 0;
}

/* Sets the dtype that most bytes have: some models keep a few fp32 norms among bf16 matrices. Of a quantised
 * model: that most other bytes have. */
static void count_bytes(struct ot_model_dir *dir) {
    int64_t bytes[3] = {0};
    for (int64_t i = 0; i < dir->n_stored; i++) {
        const struct ot_safetensor *tensor = dir->stored[i].tensor;
        dir->facts.weight_bytes += (int64_t)tensor->bytes;
        if (tensor->readable && !dir->stored[i].packed)
            bytes[tensor->dtype] += (int64_t)tensor->bytes;
    }
    for (int dtype = 0; dtype < 3; dtype++)
        if (bytes[dtype] > bytes[dir->facts.dtype])
            dir->facts.dtype = (enum ot_dtype)dtype;
}

/* A T5 whose files have no head shares its embedding, as in transformers 5. The key tie_word_embeddings does
 * not tell: transformers 5 writes true for every T5 (models/family_t5.c). */
static void tie_missing_head(struct ot_model_dir *dir) {
    if (ot_model_has_pairs(&dir->facts.config) && dir->n_stored > 0 &&
        !ot_model_dir_find(dir, "lm_head.weight"))
        dir->facts.config.tied = true;
}

static int open_weights(struct ot_model_dir *dir) {
    for (int i = 0; i < N_FORMATS && !dir->facts.has_weights; i++) {
        bool is_single = ot_model_dir_has(dir, formats[i].file);
        if (!is_single && !ot_model_dir_has(dir, formats[i].index))
            continue;
        dir->facts.has_weights = true;
        OT_TRY(is_single ? open_single(dir, &formats[i]) : open_sharded(dir, &formats[i]));
    }
    if (!dir->facts.has_weights)
        dir->facts.weights_missing =
            "has neither model.safetensors nor pytorch_model.bin, nor the index of shards of either";
    OT_TRY(ot_model_dir_unpack(dir));
    tie_missing_head(dir);
    count_bytes(dir);
    return 0;
}

/* ---- the directory ---- */

/* Older versions of AutoGPTQ described the weights beside config.json. */
static int read_quantize_config(struct ot_model_dir *dir) {
    struct ot_json *root = NULL;
    char path[PATH_MAX];
    if (dir->quantized.method != OT_QUANT_NONE || !ot_model_dir_has(dir, "quantize_config.json"))
        return 0;
    ot_model_dir_file(dir, "quantize_config.json", path);
    OT_TRY(ot_json_read_file(path, OT_CONFIG_MAX_BYTES, &root));
    int rc = ot_quantization_parse(root, path, &dir->quantized);
    ot_json_free(root);
    return rc;
}

static int read_configs(struct ot_model_dir *dir) {
    struct ot_config_file file;
    char path[PATH_MAX];
    ot_model_dir_file(dir, "config.json", path);
    OT_TRY(ot_json_read_file(path, OT_CONFIG_MAX_BYTES, &dir->config));
    OT_TRY(ot_model_config_parse(dir->config, path, &file));
    dir->facts.config = file.config;
    dir->facts.is_text_part = ot_model_config_text_part(dir->config) != NULL;
    dir->facts.dtype = file.dtype;
    dir->facts.ids = file.ids;
    dir->quantized = file.quantized;
    OT_TRY(read_quantize_config(dir));
    if (ot_model_dir_has(dir, "generation_config.json"))
        OT_TRY(read_json(dir, "generation_config.json", OT_CONFIG_MAX_BYTES, &dir->generation));
    OT_TRY(ot_model_dir_find_tokenizer(dir));
    return resolve_ids(dir);
}

static int open_directory(struct ot_model_dir *dir) {
    OT_TRY(ot_out_check_whole(dir->path));
    OT_TRY(hold_small_files(dir));
    OT_TRY(ot_model_dir_hold_others(dir));
    OT_TRY(read_configs(dir));
    OT_TRY(ot_model_dir_find_chat_template(dir));
    return open_weights(dir);
}

static bool is_file(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

int ot_model_dir_open(const char *path, struct ot_model_dir **out) {
    int rc;
    struct ot_model_dir *dir = calloc(1, sizeof *dir);
    if (!dir)
        return ot_fail(OT_E_BUDGET, "%s: no memory to open the model", path);
    for (int i = 0; i < OT_N_SMALL_FILES; i++)
        dir->small_fds[i] = -1;
    dir->made_fd = -1;
    dir->path = strdup(path);
    if (!dir->path) {
        rc = ot_fail(OT_E_BUDGET, "%s: no memory to open the model", path);
        goto out;
    }
    if (strlen(path) + NAME_MAX + 2 > PATH_MAX) {
        rc = ot_fail(OT_E_INPUT, "%.64s...: the path is too long", path);
        goto out;
    }
    OT_TRY_GOTO(ot_arena_open(&dir->arena), rc, out);
    OT_TRY_GOTO(is_file(path) ? ot_model_dir_open_gguf(dir) : open_directory(dir), rc, out);
    *out = dir;
    dir = NULL;
out:
    ot_model_dir_close(dir);
    return rc;
}

void ot_model_dir_close(struct ot_model_dir *dir) {
    if (!dir)
        return;
    for (int i = 0; dir->files && i < dir->facts.n_shards; i++)
        ot_safetensors_close(dir->files[i]);
    ot_safetensors_close(dir->adapter.file);
    ot_gguf_close(dir->gguf);
    for (int i = 0; i < OT_N_SMALL_FILES; i++)
        if (dir->small_fds[i] >= 0)
            close(dir->small_fds[i]);
    if (dir->made_fd >= 0)
        close(dir->made_fd);
    for (int i = 0; i < dir->n_copied; i++)
        close(dir->copied[i].fd);
    free(dir->files);
    ot_json_free(dir->config);
    ot_json_free(dir->generation);
    ot_json_free(dir->tokenizer_config);
    ot_arena_close(dir->arena);
    free(dir->path);
    free(dir);
}

const struct ot_model_facts *ot_model_dir_facts(const struct ot_model_dir *dir) {
    return &dir->facts;
}

const char *ot_model_dir_path(const struct ot_model_dir *dir) {
    return dir->path;
}

/* ---- chat templates ---- */

/* Finds the chat templates of a model's directory, in the order in which transformers looks for them. */

#define TOOL_FILE "additional_chat_templates/tool_use.jinja"

static int keep_text(struct ot_model_dir *dir, const char *text, size_t bytes, const char **out,
                     size_t *kept_bytes) {
    *out = ot_arena_strdup(dir->arena, text, bytes);
    *kept_bytes = bytes;
    return *out ? 0 : -OT_E_BUDGET;
}

static int read_jinja(struct ot_model_dir *dir, const char *name, const char **out, size_t *bytes) {
    char path[PATH_MAX], *text;
    size_t n;
    OT_TRY(ot_read_file(ot_model_dir_file(dir, name, path), OT_CONFIG_MAX_BYTES, &text, &n));
    int rc = keep_text(dir, text, n, out, bytes);
    free(text);
    return rc;
}

/* Several templates are a list of {"name", "template"}. */
static const struct ot_json *find_named(const struct ot_json *list, const char *wanted) {
    for (size_t i = 0; i < ot_json_length(list); i++) {
        const struct ot_json *item = ot_json_at(list, i);
        const char *name = ot_json_string(ot_json_get(item, "name"), NULL);
        if (name && strcmp(name, wanted) == 0)
            return ot_json_get(item, "template");
    }
    return NULL;
}

/* Takes "chat_template" of a configuration: a text, or a list with "default" and "tool_use". */
static int take_value(struct ot_model_dir *dir, const struct ot_json *value) {
    struct ot_model_facts *facts = &dir->facts;
    const struct ot_json *named = find_named(value, "default");
    size_t bytes = 0;
    if (!value)
        return 0;
    facts->has_chat_template = true;
    const char *text = ot_json_string(named ? named : value, &bytes);
    if (text)
        OT_TRY(keep_text(dir, text, bytes, &facts->chat_template, &facts->chat_template_bytes));
    text = ot_json_string(find_named(value, "tool_use"), &bytes);
    return text ? keep_text(dir, text, bytes, &facts->tool_template, &facts->tool_template_bytes) : 0;
}

/* A processor's file, the last resort. */
static int read_processor(struct ot_model_dir *dir) {
    struct ot_json *config;
    char path[PATH_MAX];
    if (dir->facts.has_chat_template || !ot_model_dir_has(dir, "chat_template.json"))
        return 0;
    OT_TRY(
        ot_json_read_file(ot_model_dir_file(dir, "chat_template.json", path), OT_CONFIG_MAX_BYTES, &config));
    int rc = take_value(dir, ot_json_get(config, "chat_template"));
    ot_json_free(config);
    return rc;
}

int ot_model_dir_find_chat_template(struct ot_model_dir *dir) {
    struct ot_model_facts *facts = &dir->facts;
    char path[PATH_MAX];
    if (ot_model_dir_has(dir, "tokenizer_config.json"))
        OT_TRY(ot_json_read_file(ot_model_dir_file(dir, "tokenizer_config.json", path), OT_CONFIG_MAX_BYTES,
                                 &dir->tokenizer_config));
    facts->tokenizer_config = dir->tokenizer_config;
    if (ot_model_dir_has(dir, TOOL_FILE))
        OT_TRY(read_jinja(dir, TOOL_FILE, &facts->tool_template, &facts->tool_template_bytes));
    if (ot_model_dir_has(dir, "chat_template.jinja")) {
        facts->has_chat_template = true;
        return read_jinja(dir, "chat_template.jinja", &facts->chat_template, &facts->chat_template_bytes);
    }
    OT_TRY(take_value(dir, ot_json_get(dir->tokenizer_config, "chat_template")));
    return read_processor(dir);
}

/* ---- copied files ---- */

/* Other files in a model's directory. Licences, a processor's settings and code are copied with the model.
 * All other files are named, so that nobody thinks that they were copied too. */

static bool begins(const char *name, const char *words) {
    const char *word;
    size_t n;
    for (int i = 0; (word = ot_words_at(words, i, &n)); i++)
        if (strncmp(name, word, n) == 0)
            return true;
    return false;
}

static bool ends(const char *name, const char *words) {
    const char *word;
    size_t n, bytes = strlen(name);
    for (int i = 0; (word = ot_words_at(words, i, &n)); i++)
        if (bytes >= n && memcmp(name + bytes - n, word, n) == 0)
            return true;
    return false;
}

static bool goes_along(const char *name) {
    return begins(name, "LICENSE LICENCE USE_POLICY NOTICE COPYING") ||
           ends(name, ".py preprocessor_config.json processor_config.json");
}

/* Files that are copied elsewhere, made anew for the result, or hold weights in any form. */
static bool is_expected(const char *name) {
    static const char first[] =
        ". README run.json finished.json log. offload-train.json quantize_config.json";
    static const char last[] =
        ".safetensors .safetensors.index.json .bin .bin.index.json .pt .pth .gguf .h5 .msgpack .onnx";
    for (int i = 0; i < OT_N_SMALL_FILES; i++)
        if (strcmp(name, ot_small_files[i]) == 0)
            return true;
    return begins(name, first) || ends(name, last);
}

static int keep(struct ot_model_dir *dir, const char *name) {
    char path[PATH_MAX];
    struct ot_copied_file *file = &dir->copied[dir->n_copied];
    file->name = ot_arena_strdup(dir->arena, name, strlen(name));
    if (!file->name)
        return -OT_E_BUDGET;
    file->fd = open(ot_model_dir_file(dir, name, path), O_RDONLY | O_CLOEXEC);
    if (file->fd < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot open the file", path);
    dir->n_copied++;
    return 0;
}

static int keep_or_name(struct ot_model_dir *dir, const char *name, struct ot_string_builder *left) {
    if (is_expected(name) || !ot_model_dir_has(dir, name))
        return 0;
    if (goes_along(name) && dir->n_copied < OT_MAX_COPIED_FILES)
        return keep(dir, name);
    ot_string_append_format(left, "%s%.80s", left->bytes ? ", " : "", name);
    return 0;
}

int ot_model_dir_hold_others(struct ot_model_dir *dir) {
    struct ot_string_builder left = {0};
    struct dirent **names = NULL;
    int rc = 0, n = scandir(dir->path, &names, NULL, alphasort); /* sorted: always in the same order */
    if (n < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot list the directory", dir->path);
    for (int i = 0; i < n && rc == 0; i++)
        rc = keep_or_name(dir, names[i]->d_name, &left);
    for (int i = 0; i < n; i++)
        free(names[i]);
    free(names);
    if (rc == 0 && left.bytes > 0) {
        ot_utf8_keep_line(left.text);
        dir->facts.left_out = ot_arena_strdup(dir->arena, left.text, left.bytes);
        rc = dir->facts.left_out ? 0 : -OT_E_BUDGET;
    }
    free(left.text);
    return rc;
}
