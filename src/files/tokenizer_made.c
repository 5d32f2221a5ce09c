#include "src/files/tokenizer_made.h"

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
#include "src/base/path.h"
#include "src/files/model_config.h"
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

const char *ot_tokenizer_instead(const char *folder) {
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
