#include "src/checkpoint/catalog.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/grow.h"
#include "src/base/log.h"
#include "src/base/text.h"
#include "src/checkpoint/reader.h"
#include "src/checkpoint/reclaim.h"
#include "src/checkpoint/step_dir.h"

#define COMPLETE_NAME "complete"

enum { OPEN_DIR = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC };

/* ---- reading the folder ---- */

struct found {
    int64_t step;
    bool partial, has_manifest;
};

struct scan {
    const char *parent;
    int fd; /* -1: no such directory */
    int n;
    size_t capacity;
    struct found *found; /* newest first */
};

static int compare_found(const void *a, const void *b) {
    const struct found *x = a, *y = b;
    if (x->step != y->step)
        return x->step > y->step ? -1 : 1;
    return x->partial - y->partial;
}

static bool has_manifest(int parent_fd, const char *name) {
    struct stat info;
    int fd = openat(parent_fd, name, OPEN_DIR);
    bool has =
        fd >= 0 && fstatat(fd, OT_MANIFEST_NAME, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(info.st_mode);
    if (fd >= 0)
        close(fd);
    return has;
}

/* Counts a directory whose name is step-N or step-N.partial. Files and symbolic links are not ours. */
static int add_found(struct scan *scan, const char *name) {
    struct found found;
    struct stat info;
    if (!ot_step_parse(name, &found.step, &found.partial) ||
        fstatat(scan->fd, name, &info, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISDIR(info.st_mode))
        return 0;
    found.has_manifest = has_manifest(scan->fd, name);
    int rc = ot_grow(&scan->found, &scan->capacity, (size_t)scan->n + 1, sizeof *scan->found, "checkpoints");
    if (rc < 0)
        return ot_fail_context(rc, "%s", scan->parent);
    scan->found[scan->n++] = found;
    return 0;
}

static void scan_free(struct scan *scan) {
    if (scan->fd >= 0)
        close(scan->fd);
    free(scan->found);
}

static int scan_make(const char *parent, struct scan *scan) {
    *scan = (struct scan){.parent = parent, .fd = open(parent, OPEN_DIR)};
    if (scan->fd < 0 && errno == ENOTDIR)
        return ot_fail(OT_E_INPUT, "%s: is not a directory (symbolic links are not followed); move it away",
                       parent);
    if (scan->fd < 0)
        return errno == ENOENT ? 0 : ot_fail_errno(OT_E_IO, errno, "%s: cannot look for checkpoints", parent);
    int rc = 0, fd = openat(scan->fd, ".", OPEN_DIR);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (!dir) {
        rc = ot_fail_errno(OT_E_IO, errno, "%s: cannot look for checkpoints", parent);
        if (fd >= 0)
            close(fd);
    } else {
        for (struct dirent *entry; rc == 0 && (entry = readdir(dir));)
            rc = add_found(scan, entry->d_name);
        closedir(dir);
    }
    if (rc < 0)
        scan_free(scan);
    else if (scan->n > 0)
        qsort(scan->found, (size_t)scan->n, sizeof *scan->found, compare_found);
    return rc;
}

int ot_checkpoint_name(const char *parent, int64_t step, char **out) {
    char name[OT_STEP_NAME_BYTES];
    ot_step_name(name, step, false);
    return ot_string_format(out, "%s/%s", parent, name);
}

int ot_checkpoint_list_make(const char *parent, struct ot_checkpoint_list *out) {
    struct scan scan;
    int rc = 0;
    *out = (struct ot_checkpoint_list){0};
    OT_TRY(scan_make(parent, &scan));
    out->entries = calloc((size_t)scan.n + 1, sizeof *out->entries);
    if (!out->entries)
        rc = ot_fail(OT_E_BUDGET, "%s: no memory for a list of checkpoints", parent);
    for (int i = 0; i < scan.n && rc == 0; i++) {
        const struct found *found = &scan.found[i];
        if (found->partial || !found->has_manifest)
            continue;
        struct ot_checkpoint_entry *entry = &out->entries[out->n];
        entry->step = found->step;
        rc = ot_checkpoint_name(parent, found->step, &entry->dir);
        out->n += rc == 0;
    }
    scan_free(&scan);
    if (rc < 0)
        ot_checkpoint_list_free(out);
    return rc;
}

void ot_checkpoint_list_free(struct ot_checkpoint_list *list) {
    for (int i = 0; i < list->n; i++)
        free(list->entries[i].dir);
    free(list->entries);
    *list = (struct ot_checkpoint_list){0};
}

int ot_checkpoint_find_best(const struct ot_checkpoint_list *list, double *loss) {
    int best = -1;
    for (int i = list->n - 1; i >= 0; i--) {
        struct ot_checkpoint *checkpoint;
        if (ot_checkpoint_open(list->entries[i].dir, &checkpoint) < 0)
            continue;
        double eval = ot_checkpoint_record_eval(ot_checkpoint_record(checkpoint));
        ot_checkpoint_close(checkpoint);
        if (isnan(eval) || (best >= 0 && eval >= *loss))
            continue;
        best = i;
        *loss = eval;
    }
    return best;
}

/* ---- removing ---- */

int ot_checkpoint_remove(const char *dir) {
    const char *slash = strrchr(dir, '/'), *name = slash ? slash + 1 : dir;
    int64_t step;
    bool partial;
    char *parent;
    if (!ot_step_parse(name, &step, &partial))
        return ot_fail(OT_E_INPUT, "%s: not the name of a checkpoint (step-00000120, for example)", dir);
    if (!slash)
        OT_TRY(ot_string_format(&parent, "."));
    else
        OT_TRY(ot_string_format(&parent, "%.*s", slash == dir ? 1 : (int)(slash - dir), dir));
    int fd = open(parent, OPEN_DIR), rc;
    if (fd < 0)
        rc = ot_fail_errno(OT_E_IO, errno, "%s: cannot open", parent);
    else
        rc = ot_step_remove(&ot_io_system, fd, name, dir);
    if (fd >= 0)
        close(fd);
    free(parent);
    return rc;
}

int ot_checkpoint_prune(const char *parent, int keep, int64_t best_step) {
    struct ot_checkpoint_list list;
    int rc = 0, n = 0;
    assert(keep >= 1);
    OT_TRY(ot_checkpoint_list_make(parent, &list));
    for (int i = 0; i < list.n; i++) {
        struct ot_checkpoint_entry entry = list.entries[i];
        bool stays = i < keep || entry.step == best_step;
        if (!stays && rc == 0)
            rc = ot_checkpoint_remove(entry.dir);
        if (stays)
            list.entries[n++] = entry;
        else
            free(entry.dir);
    }
    bool removed = n < list.n;
    list.n = n;
    if (rc == 0 && removed)
        rc = ot_checkpoint_reclaim(&list);
    ot_checkpoint_list_free(&list);
    return rc;
}

/* ---- after a run that was killed ---- */

static bool is_whole(const char *path) {
    struct ot_checkpoint *checkpoint;
    bool whole = ot_checkpoint_open(path, &checkpoint) == 0;
    if (whole)
        ot_checkpoint_close(checkpoint);
    return whole;
}

/* The writing process ended after the last file was flushed and before the rename, so the checkpoint is
 * whole. */
static int finish_rename(const struct scan *scan, int64_t step, const char *path) {
    char name[OT_STEP_NAME_BYTES], partial[OT_STEP_NAME_BYTES];
    ot_step_name(name, step, false);
    ot_step_name(partial, step, true);
    OT_TRY(ot_step_remove(&ot_io_system, scan->fd, name, path));
    if (renameat(scan->fd, partial, scan->fd, name) < 0 || fsync(scan->fd) < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot rename the complete checkpoint to this name", path);
    ot_log(OT_LOG_INFO, "%s: recovered; the run that saved it ended just before the rename", path);
    return 0;
}

static int tidy_held(const struct scan *scan, const struct found *found, const char *name, const char *path) {
    char *complete;
    OT_TRY(ot_checkpoint_name(scan->parent, found->step, &complete));
    int rc;
    if (found->partial && is_whole(path) && !is_whole(complete)) {
        rc = finish_rename(scan, found->step, complete);
    } else {
        rc = ot_step_remove(&ot_io_system, scan->fd, name, path);
        if (rc == 0)
            ot_log(OT_LOG_INFO, "%s: removed an incomplete checkpoint", path);
    }
    free(complete);
    return rc;
}

/* Tidies a directory that is not a checkpoint, unless another process holds its lock. */
static int tidy_one(const struct scan *scan, const struct found *found) {
    char name[OT_STEP_NAME_BYTES], *path;
    int dir_fd, rc;
    ot_step_name(name, found->step, found->partial);
    OT_TRY(ot_string_format(&path, "%s/%s", scan->parent, name));
    rc = ot_step_hold(scan->fd, name, path, &dir_fd);
    if (rc == 0 && dir_fd >= 0) {
        rc = tidy_held(scan, found, name, path);
        close(dir_fd);
    }
    free(path);
    return rc;
}

int ot_checkpoint_tidy(const char *parent) {
    struct ot_checkpoint_list list;
    struct scan scan;
    int rc = 0;
    OT_TRY(scan_make(parent, &scan));
    for (int i = 0; i < scan.n && rc == 0; i++)
        if (scan.found[i].partial || !scan.found[i].has_manifest)
            rc = tidy_one(&scan, &scan.found[i]);
    scan_free(&scan);
    OT_TRY(rc);
    OT_TRY(ot_checkpoint_list_make(parent, &list));
    rc = ot_checkpoint_reclaim(&list);
    ot_checkpoint_list_free(&list);
    return rc;
}

int ot_checkpoint_clear(const char *parent) {
    struct ot_checkpoint_list list;
    int rc = 0;
    OT_TRY(ot_checkpoint_tidy(parent));
    OT_TRY(ot_checkpoint_list_make(parent, &list));
    for (int i = 0; i < list.n && rc == 0; i++)
        rc = ot_checkpoint_remove(list.entries[i].dir);
    ot_checkpoint_list_free(&list);
    return rc < 0 ? rc : ot_checkpoint_clear_complete(parent);
}

/* ---- the mark of a completed run ---- */

int ot_checkpoint_mark_complete(const char *parent) {
    int parent_fd = open(parent, OPEN_DIR), fd = -1, rc = 0;
    if (parent_fd >= 0)
        fd = openat(parent_fd, COMPLETE_NAME, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    if (fd < 0 || fsync(fd) < 0 || fsync(parent_fd) < 0)
        rc = ot_fail_errno(OT_E_IO, errno, "%s/" COMPLETE_NAME ": cannot write", parent);
    if (fd >= 0)
        close(fd);
    if (parent_fd >= 0)
        close(parent_fd);
    return rc;
}

int ot_checkpoint_clear_complete(const char *parent) {
    int fd = open(parent, OPEN_DIR), rc = 0;
    if (fd < 0 && errno == ENOENT)
        return 0;
    if (fd < 0 || (unlinkat(fd, COMPLETE_NAME, 0) == 0 ? fsync(fd) < 0 : errno != ENOENT))
        rc = ot_fail_errno(OT_E_IO, errno, "%s/" COMPLETE_NAME ": cannot remove", parent);
    if (fd >= 0)
        close(fd);
    return rc;
}

bool ot_checkpoint_is_complete(const char *parent) {
    struct stat info;
    int fd = open(parent, OPEN_DIR);
    bool is = fd >= 0 && fstatat(fd, COMPLETE_NAME, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(info.st_mode);
    if (fd >= 0)
        close(fd);
    return is;
}
