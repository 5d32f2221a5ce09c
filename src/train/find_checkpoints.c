#include "src/train/find_checkpoints.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "src/base/error.h"
#include "src/base/path.h"
#include "src/base/text.h"
#include "src/checkpoint/manifest.h"
#include "src/files/adapter_config.h"
#include "src/files/out_replace.h"

static bool has(const char *dir, const char *name) {
    char path[PATH_MAX];
    struct stat status;
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    return n > 0 && (size_t)n < sizeof path && lstat(path, &status) == 0;
}

/* Lists the checkpoint and the older ones in its directory. The list is empty if the checkpoint's directory
 * was renamed. */
static int find_older(const char *dir, struct ot_checkpoint_list *list) {
    char *real = realpath(dir, NULL), *slash = real ? strrchr(real, '/') : NULL;
    if (!slash) {
        free(real);
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot resolve the path", dir);
    }
    *slash = '\0';
    int rc = ot_checkpoint_list_make(*real ? real : "/", list), at = 0;
    if (rc == 0) {
        while (at < list->n && strcmp(strrchr(list->entries[at].dir, '/') + 1, slash + 1) != 0)
            at++;
        for (int i = 0; i < at; i++)
            free(list->entries[i].dir);
        list->n -= at;
        memmove(list->entries, list->entries + at, (size_t)list->n * sizeof *list->entries);
    }
    free(real);
    return rc;
}

static int find_one(const char *dir, struct ot_checkpoint_list *list) {
    OT_TRY(find_older(dir, list));
    if (list->n == 0) {
        free(list->entries);
        list->entries = calloc(1, sizeof *list->entries);
        if (!list->entries)
            return ot_fail(OT_E_BUDGET, "%s: no memory to list checkpoints", dir);
        list->n = 1;
        list->entries[0].step = -1;
    }
    free(list->entries[0].dir);
    list->entries[0].dir = strdup(dir); /* the path as the user wrote it */
    return list->entries[0].dir ? 0 : ot_fail(OT_E_BUDGET, "%s: no memory to list checkpoints", dir);
}

static bool is_gguf(const char *path) {
    struct stat status;
    return ot_path_has_extension(path, ".gguf") && stat(path, &status) == 0 && S_ISREG(status.st_mode);
}

int ot_find_checkpoints(const char *dir, struct ot_found *out) {
    char *inner;
    struct stat status;
    *out = (struct ot_found){0};
    out->is_model = is_gguf(dir);
    if (out->is_model)
        return 0;
    if (stat(dir, &status) < 0 || !S_ISDIR(status.st_mode))
        return ot_fail(OT_E_INPUT, "%s: no such directory", dir);
    if (has(dir, OT_MANIFEST_NAME))
        return find_one(dir, &out->list);
    out->is_model = has(dir, "config.json") || has(dir, OT_ADAPTER_CONFIG_NAME);
    OT_TRY(ot_checkpoint_list_make(dir, &out->list));
    if (out->list.n == 0) {
        ot_checkpoint_list_free(&out->list);
        OT_TRY(ot_string_format(&inner, "%s/checkpoints", dir));
        int rc = ot_checkpoint_list_make(inner, &out->list);
        free(inner);
        OT_TRY(rc);
    }
    if (out->list.n == 0)
        OT_TRY(ot_out_check_whole(dir));
    if (out->list.n == 0 && !out->is_model)
        return ot_fail(OT_E_INPUT,
                       "%s: not a checkpoint (it has no " OT_MANIFEST_NAME
                       "), not a run with checkpoints, and not a model (it has no config.json)",
                       dir);
    return 0;
}

void ot_found_free(struct ot_found *found) {
    ot_checkpoint_list_free(&found->list);
    *found = (struct ot_found){0};
}
