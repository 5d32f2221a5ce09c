/* Other files in a model's directory. Licences, a processor's settings and code are copied with the model.
 * All other files are named, so that nobody thinks that they were copied too. */
#include "src/files/model_dir_state.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/arena.h"
#include "src/base/error.h"
#include "src/base/text.h"
#include "src/base/utf8.h"

static bool begins(const char *name, const char *const *words) {
    for (; *words; words++)
        if (strncmp(name, *words, strlen(*words)) == 0)
            return true;
    return false;
}

static bool ends(const char *name, const char *const *words) {
    size_t bytes = strlen(name);
    for (; *words; words++)
        if (bytes >= strlen(*words) && strcmp(name + bytes - strlen(*words), *words) == 0)
            return true;
    return false;
}

static bool goes_along(const char *name) {
    static const char *const first[] = {"LICENSE", "LICENCE", "USE_POLICY", "NOTICE", "COPYING", NULL};
    static const char *const last[] = {".py", "preprocessor_config.json", "processor_config.json", NULL};
    return begins(name, first) || ends(name, last);
}

/* Files that are copied elsewhere, made anew for the result, or hold weights in any form. */
static bool is_expected(const char *name) {
    static const char *const first[] = {
        ".", "README", "run.json", "finished.json", "log.", "offload-train.json", "quantize_config.json",
        NULL};
    static const char *const last[] = {".safetensors",
                                       ".safetensors.index.json",
                                       ".bin",
                                       ".bin.index.json",
                                       ".pt",
                                       ".pth",
                                       ".gguf",
                                       ".h5",
                                       ".msgpack",
                                       ".onnx",
                                       NULL};
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
