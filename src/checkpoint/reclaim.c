#include "src/checkpoint/reclaim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/file_io.h"
#include "src/base/grow.h"
#include "src/base/log.h"
#include "src/base/text.h"
#include "src/checkpoint/reader.h"

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

int ot_checkpoint_reclaim(const struct ot_checkpoint_list *list) {
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
