#include "src/checkpoint/catalog.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/file_io.h"
#include "src/base/log.h"
#include "src/base/memory.h"
#include "src/base/text.h"
#include "src/checkpoint/reader.h"
#include "src/checkpoint/step_dir.h"

/* ---- freeing disk space ---- */

/* Frees disk space of store files that no checkpoint needs any more.
 *
 * Checkpoints keep hard links to the NVMe store's files (store.h). A hard link keeps the whole file on the
 * disk, but the checkpoint's manifest refers only to some of its bytes, and to fewer as older checkpoints are
 * removed. Reclaim punches holes where no manifest refers to the file. It does so only if no process holds
 * the file (its store is closed or its process has died), and only if every hard link of the file is in a
 * checkpoint that could be read: an unknown link may belong to a user who needs all bytes.
 * ot_store_remove_stale removes a dead store's own name of the file.
 */

struct name { /* a hard link to a store's file */
    dev_t device;
    ino_t inode;
    char *path;
};
struct range { /* bytes that a manifest refers to */
    dev_t device;
    ino_t inode;
    int64_t offset, bytes;
};
struct survey {
    struct name *names;
    struct range *ranges;
    int64_t n_names, n_ranges;
    size_t name_capacity, range_capacity;
};

static int compare_files(dev_t a_device, ino_t a_inode, dev_t b_device, ino_t b_inode) {
    if (a_device != b_device)
        return a_device < b_device ? -1 : 1;
    return (a_inode > b_inode) - (a_inode < b_inode);
}

static int compare_names(const void *a, const void *b) {
    const struct name *x = a, *y = b;
    return compare_files(x->device, x->inode, y->device, y->inode);
}

static int compare_ranges(const void *a, const void *b) {
    const struct range *x = a, *y = b;
    int files = compare_files(x->device, x->inode, y->device, y->inode);
    return files ? files : (x->offset > y->offset) - (x->offset < y->offset);
}

/* ---- reading the manifests ---- */

static int add_file(struct survey *s, const struct ot_manifest *m, int file, const char *dir) {
    struct stat info;
    char *path;
    OT_TRY(ot_string_format(&path, "%s/%s", dir, m->files[file].name));
    int rc = 0;
    if (lstat(path, &info) < 0)
        rc = ot_fail_errno(OT_E_IO, errno, "%s: cannot read the file's attributes", path);
    if (rc == 0)
        rc = ot_grow(&s->names, &s->name_capacity, (size_t)s->n_names + 1, sizeof *s->names,
                     "files of checkpoints");
    if (rc == 0)
        rc = ot_grow(&s->ranges, &s->range_capacity, (size_t)(s->n_ranges + m->n_spans), sizeof *s->ranges,
                     "ranges of checkpoints");
    if (rc < 0) {
        free(path);
        return rc;
    }
    s->names[s->n_names++] = (struct name){info.st_dev, info.st_ino, path};
    for (int64_t i = 0; i < m->n_spans; i++)
        if (m->spans[i].file == file)
            s->ranges[s->n_ranges++] =
                (struct range){info.st_dev, info.st_ino, m->spans[i].offset, m->spans[i].bytes};
    return 0;
}

/* Skips a damaged checkpoint. Its hard links are then not counted, so reclaim_file leaves those files
 * alone. */
static int add_checkpoint(struct survey *s, const char *dir) {
    struct ot_checkpoint *checkpoint;
    int rc = ot_checkpoint_open(dir, &checkpoint);
    if (rc < 0)
        return rc == -OT_E_INPUT ? 0 : rc;
    const struct ot_manifest *m = ot_checkpoint_manifest(checkpoint);
    for (int i = 0; i < m->n_files && rc == 0; i++)
        if (strcmp(m->files[i].name, OT_STATE_NAME) != 0 && ot_checkpoint_has_file(checkpoint, i))
            rc = add_file(s, m, i, dir);
    ot_checkpoint_close(checkpoint);
    return rc;
}

/* ---- punching ---- */

/* Returns false if the file system cannot punch holes. */
static bool punch(int fd, int64_t begin, int64_t end) {
    int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    return begin >= end || ot_allocate(NULL, fd, mode, begin, end - begin) == 0;
}

/* ranges: the bytes in use of this file, sorted by offset. They may repeat and overlap. */
static void punch_rest(int fd, int64_t size, const struct range *ranges, int64_t n) {
    int64_t kept = 0;
    bool done = true;
    for (int64_t i = 0; i < n && done; i++) {
        done = punch(fd, kept, ranges[i].offset);
        if (kept < ranges[i].offset + ranges[i].bytes)
            kept = ranges[i].offset + ranges[i].bytes;
    }
    if (done)
        (void)punch(fd, kept, size);
}

/* names, n_names: all hard links to this file in checkpoints. */
static void reclaim_file(const struct name *names, int64_t n_names, const struct range *ranges, int64_t n) {
    struct stat before, after;
    int fd = open(names[0].path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &before) == 0 && before.st_dev == names[0].device &&
        before.st_ino == names[0].inode && (int64_t)before.st_nlink == n_names) {
        punch_rest(fd, (int64_t)before.st_size, ranges, n);
        if (fstat(fd, &after) == 0 && after.st_blocks < before.st_blocks)
            ot_log(OT_LOG_INFO, "%s: freed %.1f MB that no checkpoint needs any more", names[0].path,
                   (double)(before.st_blocks - after.st_blocks) * 512e-6);
    }
    close(fd);
}

/* list: all checkpoints of one directory. Errors: OT_E_IO, OT_E_BUDGET. */
static int checkpoint_reclaim(const struct ot_checkpoint_list *list) {
    struct survey s = {0};
    int rc = 0;
    for (int i = 0; i < list->n && rc == 0; i++)
        rc = add_checkpoint(&s, list->entries[i].dir);
    if (rc == 0 && s.n_names > 0) {
        qsort(s.names, (size_t)s.n_names, sizeof *s.names, compare_names);
        qsort(s.ranges, (size_t)s.n_ranges, sizeof *s.ranges, compare_ranges);
        int64_t next_name, next_range, range = 0;
        for (int64_t name = 0; name < s.n_names; name = next_name, range = next_range) {
            const struct name *file = &s.names[name];
            for (next_name = name; next_name < s.n_names && compare_names(file, &s.names[next_name]) == 0;)
                next_name++;
            for (next_range = range; next_range < s.n_ranges && s.ranges[next_range].device == file->device &&
                                     s.ranges[next_range].inode == file->inode;)
                next_range++;
            reclaim_file(file, next_name - name, s.ranges + range, next_range - range);
        }
    }
    for (int64_t i = 0; i < s.n_names; i++)
        free(s.names[i].path);
    free(s.names);
    free(s.ranges);
    return rc;
}

/* ---- catalog ---- */

#define COMPLETE_NAME "complete"
#define BEST_NAME     "best"

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

int ot_checkpoint_best_parent(const char *parent, char **out) {
    return ot_string_format(out, "%s/" BEST_NAME, parent);
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

int ot_checkpoint_find_best(const struct ot_checkpoint_list *list, double *cost) {
    int best = -1;
    int64_t evals_first = 0;
    for (int i = list->n - 1; i >= 0; i--) {
        struct ot_checkpoint *checkpoint;
        if (ot_checkpoint_open(list->entries[i].dir, &checkpoint) < 0)
            continue;
        double found = ot_checkpoint_record_cost(ot_checkpoint_record(checkpoint));
        int64_t since = ot_checkpoint_record(checkpoint)->phase.evals_first;
        ot_checkpoint_close(checkpoint);
        if (isnan(found) || since < evals_first || (best >= 0 && since == evals_first && found >= *cost))
            continue;
        evals_first = since;
        best = i;
        *cost = found;
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
        rc = checkpoint_reclaim(&list);
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

static int tidy_all(const char *parent) {
    struct scan scan;
    int rc = 0;
    OT_TRY(scan_make(parent, &scan));
    for (int i = 0; i < scan.n && rc == 0; i++)
        if (scan.found[i].partial || !scan.found[i].has_manifest)
            rc = tidy_one(&scan, &scan.found[i]);
    scan_free(&scan);
    return rc;
}

int ot_checkpoint_tidy(const char *parent) {
    struct ot_checkpoint_list list;
    char *best;
    OT_TRY(tidy_all(parent));
    OT_TRY(ot_checkpoint_best_parent(parent, &best));
    int rc = tidy_all(best);
    free(best);
    OT_TRY(rc);
    OT_TRY(ot_checkpoint_list_make(parent, &list));
    rc = checkpoint_reclaim(&list);
    ot_checkpoint_list_free(&list);
    return rc;
}

static int remove_all(const char *parent) {
    struct ot_checkpoint_list list;
    int rc = 0;
    OT_TRY(ot_checkpoint_list_make(parent, &list));
    for (int i = 0; i < list.n && rc == 0; i++)
        rc = ot_checkpoint_remove(list.entries[i].dir);
    ot_checkpoint_list_free(&list);
    return rc;
}

int ot_checkpoint_clear(const char *parent) {
    char *best;
    OT_TRY(ot_checkpoint_tidy(parent));
    OT_TRY(ot_checkpoint_best_parent(parent, &best));
    int rc = remove_all(best);
    if (rc == 0)
        rmdir(best); /* only if it is empty */
    free(best);
    OT_TRY(rc);
    OT_TRY(remove_all(parent));
    return ot_checkpoint_clear_complete(parent);
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
