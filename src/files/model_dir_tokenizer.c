#include "src/files/model_dir_tokenizer.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/json.h"
#include "src/base/memory.h"
#include "src/base/minmax.h"
#include "src/files/model_config.h"
#include "src/files/model_dir_state.h"
#include "src/tokenizer/new_tokens.h"
#include "src/tokenizer/sentencepiece.h"
#include "src/tokenizer/tokenizer.h"

static const char *name_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

bool ot_tokenizer_is_model(const char *path) {
    const char *end = strstr(name_of(path), ".model");
    return end && end > name_of(path) && (end[6] == '\0' || end[6] == '.') &&
           !ot_path_has_extension(path, ".json");
}

/* The path of a file beside the model. False: it would be too long. */
static bool beside(const char *model, const char *name, char path[PATH_MAX]) {
    int folder = (int)(name_of(model) - model);
    return snprintf(path, PATH_MAX, "%.*s%s", folder, model, name) < PATH_MAX;
}

/* *out stays NULL if the file is absent. */
static int read_beside(const char *model, const char *name, struct ot_json **out) {
    char path[PATH_MAX];
    if (!beside(model, name, path) || access(path, F_OK) != 0)
        return 0;
    return ot_json_read_file(path, OT_CONFIG_MAX_BYTES, out);
}

/* Reads the files beside a tokenizer. trees: config.json and the three of struct ot_sentencepiece_files; the
 * caller frees them, after an error too. */
enum { N_BESIDE = 4 };
static int read_all_beside(const char *path, struct ot_json *trees[N_BESIDE],
                           struct ot_sentencepiece_files *files) {
    static const char *const names[N_BESIDE] = {"config.json", "tokenizer_config.json",
                                                "special_tokens_map.json", "added_tokens.json"};
    for (size_t i = 0; i < N_BESIDE; i++)
        OT_TRY(read_beside(path, names[i], &trees[i]));
    *files = (struct ot_sentencepiece_files){.tokenizer_config = trees[1],
                                             .special_tokens_map = trees[2],
                                             .added_tokens = trees[3],
                                             .model_type =
                                                 ot_json_string(ot_json_get(trees[0], "model_type"), NULL)};
    return 0;
}

static void free_trees(struct ot_json *trees[N_BESIDE]) {
    for (size_t i = 0; i < N_BESIDE; i++)
        ot_json_free(trees[i]);
}

static int make_text(const char *path, char **text, size_t *bytes) {
    struct ot_json *trees[N_BESIDE] = {0};
    struct ot_sentencepiece_files files;
    struct ot_sentencepiece *model = NULL;
    int rc = 0;
    OT_TRY_GOTO(read_all_beside(path, trees, &files), rc, out);
    OT_TRY_GOTO(ot_sentencepiece_open(path, &model), rc, out);
    OT_TRY_GOTO(ot_sentencepiece_make(model, &files, path, text, bytes), rc, out);
out:
    ot_sentencepiece_close(model);
    free_trees(trees);
    return rc;
}

static int complete_text(const char *path, char **text, size_t *bytes) {
    struct ot_json *trees[N_BESIDE] = {0}, *tokenizer = NULL;
    struct ot_sentencepiece_files files;
    int rc = 0;
    OT_TRY_GOTO(read_all_beside(path, trees, &files), rc, out);
    if (!files.tokenizer_config && !files.special_tokens_map && !files.added_tokens)
        goto out;
    rc = ot_json_read_file(path, OT_TOKENIZER_MAX_FILE_BYTES, &tokenizer);
    if (rc == -OT_E_INPUT) /* opening the tokenizer says it */
        rc = 0;
    if (!tokenizer)
        goto out;
    rc = ot_tokenizer_complete_text(tokenizer, &files, text, bytes);
    if (rc < 0)
        rc = ot_fail_context(rc, "%s: the added tokens of the files beside it", path);
out:
    ot_json_free(tokenizer);
    free_trees(trees);
    return rc;
}

/* Puts the text into a file in memory, and frees it. */
static int keep_in_memory(const char *path, char *text, size_t bytes, int *fd) {
    int made = memfd_create("tokenizer.json", MFD_CLOEXEC);
    int rc = made < 0 ? -errno : ot_write_all(NULL, made, text, bytes);
    free(text);
    if (rc < 0) {
        if (made >= 0)
            close(made);
        return ot_fail_errno(OT_E_IO, -rc, "%s: cannot make a file in memory for its tokenizer", path);
    }
    *fd = made;
    return 0;
}

int ot_tokenizer_make(const char *path, int *fd) {
    char *text = NULL;
    size_t bytes = 0;
    *fd = -1;
    OT_TRY(make_text(path, &text, &bytes));
    return keep_in_memory(path, text, bytes, fd);
}

int ot_tokenizer_complete(const char *path, int *fd) {
    char *text = NULL;
    size_t bytes = 0;
    *fd = -1;
    OT_TRY(complete_text(path, &text, &bytes));
    return text ? keep_in_memory(path, text, bytes, fd) : 0;
}

int ot_tokenizer_extend(const char *path, const struct ot_new_tokens *tokens, int *fd) {
    struct ot_json *tokenizer;
    char *text = NULL;
    size_t bytes = 0;
    *fd = -1;
    OT_TRY(ot_json_read_file(path, OT_TOKENIZER_MAX_FILE_BYTES, &tokenizer));
    int rc = ot_new_tokens_add(tokenizer, tokens, &text, &bytes);
    if (rc == 0 && text)
        rc = keep_in_memory(path, text, bytes, fd);
    ot_json_free(tokenizer);
    return rc;
}

/* Explains why a directory without tokenizer.json and SentencePiece model has no tokenizer: names the files
 * that it has instead, and the cure. NULL: it has no file of a tokenizer. Never fails. */
static const char *tokenizer_instead(const char *folder) {
    static const char *const found[][2] = {
        {"tekken.json", "has Mistral's tekken.json, which is not supported, but no tokenizer.json; get the "
                        "tokenizer.json of the same model in Hugging Face's format"},
        {"vocab.json",
         "has vocab.json but no tokenizer.json; load the tokenizer with transformers and save it "
         "here, which writes tokenizer.json"},
        {"vocab.txt", "has vocab.txt, of a WordPiece tokenizer, which is not supported"},
    };
    char path[PATH_MAX];
    for (size_t i = 0; i < sizeof found / sizeof *found; i++)
        if (snprintf(path, sizeof path, "%s/%s", folder, found[i][0]) < (int)sizeof path &&
            access(path, F_OK) == 0)
            return found[i][1];
    return NULL;
}

/* ---- the file of the tokenizer, and its ids of bos and eos ---- */

static int keep(struct ot_model_dir *dir, const char *text, const char **out) {
    *out = ot_arena_strdup(dir->arena, text, strlen(text));
    return *out ? 0 : -OT_E_BUDGET;
}

static int find_sentencepiece(struct ot_model_dir *dir) {
    static const char *const names[] = {"tokenizer.model", "spiece.model"};
    char path[PATH_MAX];
    for (size_t i = 0; i < 2 && !dir->facts.sentencepiece; i++)
        if (ot_model_dir_has(dir, names[i]))
            OT_TRY(keep(dir, ot_model_dir_file(dir, names[i], path), &dir->facts.sentencepiece));
    return 0;
}

/* tokenizer.json, or a file in memory if the files beside it have more added tokens. */
static int take_tokenizer(struct ot_model_dir *dir) {
    char path[PATH_MAX];
    ot_model_dir_file(dir, "tokenizer.json", path);
    int rc = ot_tokenizer_complete(path, &dir->made_fd);
    if (rc == -OT_E_INPUT) /* the model can be used with another tokenizer */
        OT_TRY(keep(dir, ot_error_text(), &dir->facts.tokenizer_missing));
    else if (rc < 0)
        return rc;
    else if (dir->made_fd < 0)
        return keep(dir, path, &dir->facts.tokenizer_path);
    OT_TRY(keep(dir, path, &dir->facts.tokenizer_file));
    if (dir->made_fd < 0)
        return 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", dir->made_fd);
    return keep(dir, path, &dir->facts.tokenizer_path);
}

int ot_model_dir_find_tokenizer(struct ot_model_dir *dir) {
    char path[PATH_MAX];
    OT_TRY(find_sentencepiece(dir));
    if (ot_model_dir_has(dir, "tokenizer.json"))
        return take_tokenizer(dir);
    if (!dir->facts.sentencepiece) {
        const char *instead = tokenizer_instead(dir->path);
        char text[PATH_MAX + OT_ERROR_TEXT_BYTES];
        snprintf(text, sizeof text, "%s %s", dir->path, instead);
        return instead ? keep(dir, text, &dir->facts.tokenizer_missing) : 0;
    }
    int rc = ot_tokenizer_make(dir->facts.sentencepiece, &dir->made_fd);
    if (rc == -OT_E_INPUT) /* the model can be used with another tokenizer */
        return keep(dir, ot_error_text(), &dir->facts.tokenizer_missing);
    OT_TRY(rc);
    dir->facts.has_made_sentencepiece = true;
    snprintf(path, sizeof path, "/proc/self/fd/%d", dir->made_fd);
    return keep(dir, path, &dir->facts.tokenizer_path);
}

/* ---- token ids ---- */

/* A special token in tokenizer_config.json is a text, or an object that holds the text. */
static const char *token_text(const struct ot_json *tokenizer_config, const char *key) {
    const struct ot_json *token = ot_json_get(tokenizer_config, key);
    const struct ot_json *content = ot_json_get(token, "content");
    return ot_json_string(content ? content : token, NULL);
}

/* A BPE model maps tokens to ids; in a Unigram model, ids are places in a list. */
static int64_t vocab_id(const struct ot_json *vocab, const char *text) {
    for (size_t i = 0; i < ot_json_length(vocab); i++) {
        const char *token = ot_json_string(ot_json_at(ot_json_at(vocab, i), 0), NULL);
        if (token && strcmp(token, text) == 0)
            return (int64_t)i;
    }
    return ot_json_int(ot_json_get(vocab, text), -1);
}

static int64_t token_id(const struct ot_json *tokenizer, const char *text) {
    const struct ot_json *added = ot_json_get(tokenizer, "added_tokens");
    for (size_t i = 0; text && i < ot_json_length(added); i++) {
        const struct ot_json *token = ot_json_at(added, i);
        const char *content = ot_json_string(ot_json_get(token, "content"), NULL);
        if (content && strcmp(content, text) == 0)
            return ot_json_int(ot_json_get(token, "id"), -1);
    }
    return text ? vocab_id(ot_json_get(ot_json_get(tokenizer, "model"), "vocab"), text) : -1;
}

int ot_model_dir_read_tokenizer_ids(const struct ot_model_dir *dir, int64_t *bos, int64_t *eos) {
    struct ot_json *config = NULL, *tokenizer = NULL;
    const struct ot_model_facts *facts = &dir->facts;
    char path[PATH_MAX];
    int rc = 0;
    *bos = *eos = -1;
    if (!facts->tokenizer_path || !ot_model_dir_has(dir, "tokenizer_config.json"))
        return 0;
    ot_model_dir_file(dir, "tokenizer_config.json", path);
    OT_TRY_GOTO(ot_json_read_file(path, OT_CONFIG_MAX_BYTES, &config), rc, out);
    OT_TRY_GOTO(ot_json_read_file(facts->tokenizer_path, OT_TOKENIZER_MAX_FILE_BYTES, &tokenizer), rc, out);
    *bos = token_id(tokenizer, token_text(config, "bos_token"));
    *eos = token_id(tokenizer, token_text(config, "eos_token"));
    if (facts->tokenizer_file) { /* a name that only the config has may lie beyond the model's tokens */
        *bos = *bos < facts->config.vocab ? *bos : -1;
        *eos = *eos < facts->config.vocab ? *eos : -1;
    }
    if (*bos >= facts->config.vocab || *eos >= facts->config.vocab)
        rc = ot_fail(OT_E_INPUT,
                     "%s: bos_token or eos_token has the id %lld, must be below the model's vocab_size %lld",
                     facts->has_made_sentencepiece ? facts->sentencepiece : facts->tokenizer_path,
                     (long long)ot_max(*bos, *eos), (long long)facts->config.vocab);
out:
    ot_json_free(tokenizer);
    ot_json_free(config);
    return rc;
}
