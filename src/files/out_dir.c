#include "src/files/out_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/base/memory.h"
#include "src/base/text.h"
#include "src/files/out_lock.h"

/* A flag in OUT.partial while it is being written: all files there are then ours and of no value. */
#define UNFINISHED ".offload-train-unfinished"

enum { COPY_BYTES = 1 << 16 };

struct ot_out_dir {
    char *out, *beside, *inside;
    const char *partial; /* `beside` or `inside`: where the files are written */
    char *parent;
    int n_made_parents; /* number of OUT's parents that open made, counted from the innermost */
    const struct ot_io_calls *calls;
    struct ot_out_lock *lock;
    bool owns_lock; /* close the lock with the directory */
    int dir_fd;     /* of `partial`, locked */
    int file_fd;
    char **names; /* written files; the last one is open while file_fd >= 0 */
    size_t n_names;
    bool committed;
};

static bool has_entry(const char *dir, const char *name) {
    char path[PATH_MAX];
    struct stat info;
    return snprintf(path, sizeof path, "%s/%s", dir, name) < (int)sizeof path && lstat(path, &info) == 0 &&
           S_ISREG(info.st_mode);
}

/* ---- checking what exists at OUT ---- */

/* *exists: OUT is an output of ours. An empty directory counts as absent. */
static int check_target(const char *out, bool *exists) {
    struct stat info;
    bool empty;
    *exists = false;
    if (lstat(out, &info) < 0)
        return errno == ENOENT
                   ? 0
                   : ot_fail_errno(OT_E_IO, errno, "%s: cannot use this path for the output", out);
    if (S_ISLNK(info.st_mode))
        return ot_fail(OT_E_INPUT, "%s: the output is a symbolic link; give the directory itself", out);
    if (!S_ISDIR(info.st_mode))
        return ot_fail(OT_E_INPUT, "%s: the output is not a directory; choose another --out", out);
    OT_TRY(ot_out_is_empty(out, &empty));
    *exists = has_entry(out, OT_OUT_MARKER);
    if (!empty && !*exists)
        return ot_fail(OT_E_INPUT,
                       "%s: not empty, and not an earlier output of offload-train (it has no " OT_OUT_MARKER
                       "); choose another --out, or empty this directory",
                       out);
    return 0;
}

/* ---- clearing OUT.partial ---- */

static int retire_entry(const struct ot_out_dir *dir, int fd, const char *name, bool ours) {
    char to[PATH_MAX];
    if (ours)
        return unlinkat(fd, name, 0) == 0 || errno == ENOENT
                   ? 0
                   : ot_fail_errno(OT_E_IO, errno, "%s/%s: cannot remove", dir->partial, name);
    struct stat info;
    if (snprintf(to, sizeof to, "%s/%s", dir->out, name) >= (int)sizeof to)
        return ot_fail(OT_E_IO, "%s/%s: the path is too long, so the file cannot be kept", dir->out, name);
    if (lstat(to, &info) == 0 || renameat(fd, name, AT_FDCWD, to) < 0)
        return ot_fail(OT_E_IO, "%s/%s: cannot move this file to %s; move it away yourself", dir->partial,
                       name, dir->out);
    return 0;
}

/* Empties and removes OUT.partial. If it is an unfinished output, all of it is ours and is removed. If it is
 * a previous output, the files in its marker are removed and all other files move to OUT. */
static int retire_partial(const struct ot_out_dir *dir) {
    struct ot_json *marker = NULL;
    int rc = 0;
    bool unfinished = has_entry(dir->partial, UNFINISHED);
    if (!unfinished)
        OT_TRY(ot_out_read_marker(dir->partial, &marker));
    DIR *entries = opendir(dir->partial);
    if (!entries) {
        rc = ot_fail_errno(OT_E_IO, errno, "%s: cannot list the directory", dir->partial);
        goto out;
    }
    /* The marker and the flag go last, so that an interrupted removal starts again at the next open. */
    for (struct dirent *entry = readdir(entries); entry && rc == 0; entry = readdir(entries)) {
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, OT_OUT_MARKER) == 0 ||
            strcmp(name, UNFINISHED) == 0)
            continue;
        rc = retire_entry(dir, dirfd(entries), name, unfinished || ot_out_is_listed(marker, name));
    }
    if (rc == 0) {
        (void)unlinkat(dirfd(entries), OT_OUT_MARKER, 0);
        (void)unlinkat(dirfd(entries), UNFINISHED, 0);
        if (rmdir(dir->partial) < 0)
            rc = ot_fail_errno(OT_E_IO, errno, "%s: cannot remove", dir->partial);
    }
    closedir(entries);
out:
    ot_json_free(marker);
    return rc;
}

/* ---- opening ---- */

static int make_parents(struct ot_out_dir *dir) {
    int error = ot_path_make_dirs(dir->parent, &dir->n_made_parents);
    return error < 0 ? ot_fail_errno(OT_E_IO, -error, "%s: cannot make the parent directories of the output",
                                     dir->out)
                     : 0;
}

static void remove_made_parents(struct ot_out_dir *dir) {
    for (; dir->n_made_parents > 0; dir->n_made_parents--) {
        char *slash = strrchr(dir->parent, '/');
        if (rmdir(dir->parent) < 0 || !slash || slash == dir->parent)
            return;
        *slash = '\0';
    }
}

static int refuse_second_writer(const struct ot_out_dir *dir) {
    return ot_fail(
        OT_E_INPUT,
        "%s: another process is writing this output; wait for that process, or choose another --out",
        dir->out);
}

static int hold_partial(struct ot_out_dir *dir) {
    dir->dir_fd = open(dir->partial, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir->dir_fd < 0 && errno == ENOENT) /* it was there a moment ago: its owner renamed it */
        return refuse_second_writer(dir);
    if (dir->dir_fd < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot open", dir->partial);
    if (ot_out_flock(dir->dir_fd, dir->partial, dir->lock->insists ? INFINITY : dir->lock->patience_seconds))
        return refuse_second_writer(dir);
    return 0;
}

/* False if the process that held the directory's lock has renamed or removed it meanwhile. */
static bool is_still_there(const struct ot_out_dir *dir) {
    struct stat held, named;
    return fstat(dir->dir_fd, &held) == 0 && lstat(dir->partial, &named) == 0 &&
           held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

static int clear_place(struct ot_out_dir *dir, const char *place) {
    struct stat info;
    bool empty;
    dir->partial = place;
    if (lstat(place, &info) < 0)
        return 0;
    if (!S_ISDIR(info.st_mode))
        return ot_fail(OT_E_INPUT, "%s: the output needs this name, but it is not a directory; move it away",
                       place);
    OT_TRY(ot_out_is_empty(place, &empty));
    if (!empty && !has_entry(place, OT_OUT_MARKER) && !has_entry(place, UNFINISHED))
        return ot_fail(OT_E_INPUT,
                       "%s: the output needs this name, but the directory is not ours; move it away", place);
    OT_TRY(hold_partial(dir));
    if (is_still_there(dir))
        OT_TRY(retire_partial(dir));
    else if (!dir->lock->insists) /* its owner was alive, and OUT may be there now */
        return refuse_second_writer(dir);
    close(dir->dir_fd);
    dir->dir_fd = -1;
    return 0;
}

/* Removes or completes files that a crash of this program left behind. */
static int clear_stale(struct ot_out_dir *dir) {
    if (ot_out_is_half_replaced(dir->out)) {
        OT_TRY(ot_out_replace(dir->out, dir->calls));
        ot_log(OT_LOG_INFO, "%s: completed the result that an interrupted process left half in place",
               dir->out);
    }
    OT_TRY(clear_place(dir, dir->inside));
    return clear_place(dir, dir->beside);
}

/* True if the new directory beside OUT can be moved into OUT, as commit may need. On failure it is
 * removed. */
static bool can_move_in(const struct ot_out_dir *dir) {
    if (rename(dir->beside, dir->inside) == 0)
        return rename(dir->inside, dir->beside) == 0;
    (void)rmdir(dir->beside);
    return false;
}

/* Makes the directory for the files: beside OUT, if a rename can put it in place; otherwise inside OUT. */
static int make_partial(struct ot_out_dir *dir) {
    struct stat info;
    bool is_there = lstat(dir->out, &info) == 0;
    dir->partial = dir->beside;
    if (!is_there || !ot_out_is_mount(dir->out)) {
        if (mkdir(dir->beside, 0777) == 0) {
            if (!is_there || can_move_in(dir))
                return 0;
        } else if (!is_there && errno == EEXIST) { /* another process made it after clear_stale */
            return refuse_second_writer(dir);
        } else if (!is_there || errno == ENOSPC) {
            return ot_fail_errno(OT_E_IO, errno, "%s: cannot make this directory", dir->beside);
        }
    }
    dir->partial = dir->inside;
    if (mkdir(dir->inside, 0777) < 0 && errno != EEXIST)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot make this directory", dir->inside);
    return 0;
}

static int name_paths(struct ot_out_dir *dir, const char *out) {
    size_t length = strlen(out);
    while (length > 1 && out[length - 1] == '/')
        length--;
    const char *base = memrchr(out, '/', length);
    base = base ? base + 1 : out;
    size_t base_bytes = length - (size_t)(base - out);
    if (length == 0 || base_bytes == 0 || strncmp(base, ".", base_bytes) == 0 ||
        strncmp(base, "..", base_bytes) == 0)
        return ot_fail(OT_E_INPUT, "'%s' cannot be the output: give a directory that may be replaced", out);
    if (length + 64 > PATH_MAX)
        return ot_fail(OT_E_INPUT, "the path of the output is too long");
    OT_TRY(ot_string_format(&dir->out, "%.*s", (int)length, out));
    OT_TRY(ot_string_format(&dir->beside, "%s.partial", dir->out));
    OT_TRY(ot_string_format(&dir->inside, "%s/" OT_OUT_STAGED, dir->out));
    if (base == out)
        return ot_string_format(&dir->parent, ".");
    size_t parent_bytes = (size_t)(base - out);
    while (parent_bytes > 1 && out[parent_bytes - 1] == '/')
        parent_bytes--;
    return ot_string_format(&dir->parent, "%.*s", (int)parent_bytes, out);
}

/* The beginning of every use of OUT: takes its lock, and cleans up after a crash. */
static int start(struct ot_out_dir *dir, const char *out, const struct ot_io_calls *calls,
                 struct ot_out_lock *lock, bool *exists) {
    *dir = (struct ot_out_dir){.calls = calls ? calls : &ot_io_system,
                               .lock = lock,
                               .dir_fd = -1,
                               .file_fd = -1,
                               .committed = true}; /* nothing written yet */
    OT_TRY(name_paths(dir, out));
    dir->owns_lock = !lock;
    OT_TRY(lock ? ot_out_lock_take(lock) : ot_out_lock_open(out, &dir->lock));
    OT_TRY(check_target(dir->out, exists));
    return clear_stale(dir);
}

/* Makes and locks the directory for the files. Another process that clears stale directories can lock and
 * remove the new one before this process has locked it. */
static int take_partial(struct ot_out_dir *dir) {
    for (;;) {
        OT_TRY(make_partial(dir));
        OT_TRY(hold_partial(dir));
        if (is_still_there(dir))
            return 0;
        if (!dir->lock->insists)
            return refuse_second_writer(dir);
        close(dir->dir_fd);
        dir->dir_fd = -1;
    }
}

static int begin(struct ot_out_dir *dir) {
    OT_TRY(make_parents(dir));
    OT_TRY(take_partial(dir));
    int flag = openat(dir->dir_fd, UNFINISHED, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (flag < 0) {
        int rc = ot_fail_errno(OT_E_IO, errno, "%s: cannot write into the directory", dir->partial);
        rmdir(dir->partial);
        return rc;
    }
    close(flag);
    dir->committed = false;
    return 0;
}

int ot_out_dir_open(const char *out, const struct ot_io_calls *calls, struct ot_out_lock *lock,
                    struct ot_out_dir **result) {
    bool exists;
    struct ot_out_dir *dir = malloc(sizeof *dir);
    if (!dir)
        return ot_fail(OT_E_BUDGET, "%s: no memory to write the output", out);
    int rc = start(dir, out, calls, lock, &exists);
    if (rc == 0)
        rc = begin(dir);
    if (rc < 0) { /* nothing of ours is there yet, and existing files may belong to others */
        remove_made_parents(dir);
        ot_out_dir_close(dir);
        dir = NULL;
    }
    *result = dir;
    return rc;
}

void ot_out_dir_close(struct ot_out_dir *dir) {
    if (!dir)
        return;
    if (dir->file_fd >= 0)
        close(dir->file_fd);
    if (!dir->committed) {
        /* The caller reports this error. The next open removes files that cannot be removed now. */
        struct ot_error why;
        ot_error_save(&why, -OT_E_INTERNAL);
        if (retire_partial(dir) == 0)
            remove_made_parents(dir);
        ot_error_load(&why);
    }
    if (dir->dir_fd >= 0)
        close(dir->dir_fd);
    for (size_t i = 0; i < dir->n_names; i++)
        free(dir->names[i]);
    free(dir->names);
    if (dir->owns_lock)
        ot_out_lock_close(dir->lock);
    free(dir->out);
    free(dir->beside);
    free(dir->inside);
    free(dir->parent);
    free(dir);
}

int ot_out_dir_need_space(struct ot_out_dir *dir, int64_t bytes) {
    int64_t free_bytes = dir->calls->free_bytes(dir->calls->context, dir->partial);
    if (free_bytes < 0)
        return ot_fail_errno(OT_E_IO, (int)-free_bytes, "%s: cannot read the disk's free space", dir->out);
    if (free_bytes < bytes)
        return ot_fail(OT_E_IO,
                       "%s: the output needs %.1f MB, but only %.1f MB are free there: free %.1f MB, or "
                       "choose another --out",
                       dir->out, (double)bytes * 1e-6, (double)free_bytes * 1e-6,
                       (double)(bytes - free_bytes) * 1e-6);
    return 0;
}

/* ---- files ---- */

static int add_name(struct ot_out_dir *dir, const char *name) {
    if (!*name || strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return ot_fail(OT_E_INTERNAL, "'%s' is not a plain file name", name);
    size_t capacity = dir->n_names;
    OT_TRY(ot_grow(&dir->names, &capacity, dir->n_names + 1, sizeof *dir->names, "file names"));
    char *copy = strdup(name);
    if (!copy)
        return ot_fail(OT_E_BUDGET, "no memory for the name of %s", name);
    dir->names[dir->n_names++] = copy;
    return 0;
}

static int fail_file(const struct ot_out_dir *dir, int errno_value, const char *what) {
    return ot_fail_errno(OT_E_IO, errno_value, "%s/%s: cannot %s", dir->out, dir->names[dir->n_names - 1],
                         what);
}

int ot_out_dir_create(struct ot_out_dir *dir, const char *name, int64_t reserve_bytes) {
    OT_TRY(add_name(dir, name));
    dir->file_fd = openat(dir->dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (dir->file_fd < 0)
        return fail_file(dir, errno, "create");
    if (reserve_bytes <= 0)
        return 0;
    /* KEEP_SIZE: the file's size must not grow beyond the written bytes. */
    int error = ot_allocate(dir->calls, dir->file_fd, FALLOC_FL_KEEP_SIZE, 0, reserve_bytes);
    return error == 0 || error == -EOPNOTSUPP || error == -ENOSYS || error == -EINVAL || error == -EPERM
               ? 0
               : fail_file(dir, -error, "reserve disk space");
}

int ot_out_dir_write(struct ot_out_dir *dir, const void *data, size_t bytes) {
    int error = ot_write_all(dir->calls, dir->file_fd, data, bytes);
    return error < 0 ? fail_file(dir, -error, "write") : 0;
}

int ot_out_dir_write_at(struct ot_out_dir *dir, int64_t at, const void *data, size_t bytes) {
    int error = ot_write_at(dir->calls, dir->file_fd, data, bytes, at);
    return error < 0 ? fail_file(dir, -error, "write") : 0;
}

int ot_out_dir_finish(struct ot_out_dir *dir) {
    int fd = dir->file_fd;
    dir->file_fd = -1;
    int error = dir->calls->fsync(dir->calls->context, fd);
    bool closed = close(fd) == 0;
    if (error < 0)
        return fail_file(dir, -error, "flush");
    return closed ? 0 : fail_file(dir, errno, "close");
}

int ot_out_dir_put(struct ot_out_dir *dir, const char *name, const void *data, size_t bytes) {
    OT_TRY(ot_out_dir_create(dir, name, 0));
    OT_TRY(ot_out_dir_write(dir, data, bytes));
    return ot_out_dir_finish(dir);
}

int ot_out_dir_copy(struct ot_out_dir *dir, const char *name, const char *from) {
    int rc = 0, fd = open(from, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* a named pipe must not block open */
    char *buffer = NULL;
    struct stat info;
    if (fd < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot open", from);
    if (fstat(fd, &info) < 0 || !S_ISREG(info.st_mode)) {
        rc = ot_fail(OT_E_INPUT, "%s: not a regular file", from);
        goto out;
    }
    buffer = malloc(COPY_BYTES);
    if (!buffer) {
        rc = ot_fail(OT_E_BUDGET, "%s: no memory to copy the file", from);
        goto out;
    }
    OT_TRY_GOTO(ot_out_dir_create(dir, name, (int64_t)info.st_size), rc, out);
    int64_t at = 0, n;
    for (; (n = ot_read_at(fd, buffer, COPY_BYTES, at)) > 0; at += n)
        OT_TRY_GOTO(ot_out_dir_write(dir, buffer, (size_t)n), rc, out);
    rc = n < 0 ? ot_fail_errno(OT_E_IO, (int)-n, "%s: cannot read", from) : ot_out_dir_finish(dir);
out:
    free(buffer);
    close(fd);
    return rc;
}

/* ---- commit ---- */

static int write_marker(struct ot_out_dir *dir) {
    struct ot_json_writer w = {.indent = 0};
    char *text;
    size_t bytes;
    ot_json_begin_object(&w, NULL);
    ot_json_put_text(&w, "made_by", "offload-train " OT_VERSION);
    ot_json_begin_array(&w, "files");
    for (size_t i = 0; i < dir->n_names; i++)
        ot_json_put_text(&w, NULL, dir->names[i]);
    ot_json_end_array(&w);
    ot_json_end_object(&w);
    OT_TRY(ot_json_writer_take(&w, &text, &bytes));
    int rc = ot_out_dir_put(dir, OT_OUT_MARKER, text, bytes);
    free(text);
    return rc;
}

/* Puts the new directory in OUT's place by a rename, if that is possible. *old: an old output existed; it is
 * OUT.partial now. */
static int swap_in(struct ot_out_dir *dir, bool *swapped, bool *old) {
    bool has_mount;
    struct stat info;
    *old = false;
    *swapped = dir->partial == dir->beside && rename(dir->beside, dir->out) == 0; /* OUT is absent or empty */
    if (*swapped || dir->partial != dir->beside)
        return 0;
    if (lstat(dir->out, &info) < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot move the finished output to this path", dir->out);
    OT_TRY(ot_out_has_mount(dir->out, &has_mount)); /* a mount could not move to the new directory */
    *swapped = *old = !has_mount && dir->calls->exchange(dir->calls->context, dir->beside, dir->out) == 0;
    return 0;
}

static int replace_files(struct ot_out_dir *dir) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/" OT_OUT_REPLACING, dir->out); /* name_paths has checked the length */
    if (rename(dir->partial, path) < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot move the finished output to this path", dir->out);
    dir->committed = true;
    int rc = ot_out_replace(dir->out, dir->calls);
    return rc < 0 ? ot_fail_context(rc,
                                    "%s: the result is saved in %s, but not yet in place; the next command "
                                    "with this --out puts it in place",
                                    dir->out, path)
                  : ot_out_lock_keep_marker(dir->lock);
}

static int flush_parent(const struct ot_out_dir *dir) {
    int fd = open(dir->parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot open", dir->parent);
    int error = dir->calls->fsync(dir->calls->context, fd);
    close(fd);
    return error < 0 ? ot_fail_errno(OT_E_IO, -error, "%s: cannot flush the directory", dir->parent) : 0;
}

/* The old output is OUT.partial now. Its lock is still held. */
static int retire_old(struct ot_out_dir *dir, bool old) {
    int rc = old ? retire_partial(dir) : 0;
    if (rc < 0)
        rc = ot_fail_context(rc, "%s: the result is saved, but the previous output could not be removed",
                             dir->out);
    int moved = ot_out_lock_move(dir->lock, dir->dir_fd);
    return rc < 0 ? rc : moved;
}

int ot_out_dir_commit(struct ot_out_dir *dir) {
    bool exists, swapped, old;
    OT_TRY(ot_out_lock_take(dir->lock)); /* Lock and check again: training took hours. */
    OT_TRY(check_target(dir->out, &exists));
    OT_TRY(write_marker(dir));
    if (unlinkat(dir->dir_fd, UNFINISHED, 0) < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot finish the output", dir->out);
    int error = dir->calls->fsync(dir->calls->context, dir->dir_fd);
    if (error < 0)
        return ot_fail_errno(OT_E_IO, -error, "%s: cannot flush the output", dir->out);
    OT_TRY(swap_in(dir, &swapped, &old));
    if (!swapped)
        return replace_files(dir);
    dir->committed = true;
    int rc = flush_parent(dir);
    int retired = retire_old(dir, old);
    return rc < 0 ? rc : retired;
}

int ot_out_dir_settle(const char *out, const struct ot_io_calls *calls, struct ot_out_lock *lock) {
    bool exists;
    struct ot_out_dir *dir = malloc(sizeof *dir);
    if (!dir)
        return ot_fail(OT_E_BUDGET, "%s: no memory to check the output", out);
    int rc = start(dir, out, calls, lock, &exists);
    ot_out_dir_close(dir);
    return rc;
}

int ot_out_dir_claim(const char *out, const struct ot_io_calls *calls, struct ot_out_lock *lock) {
    struct ot_out_dir *dir = NULL;
    bool exists;
    int rc;
    OT_TRY_GOTO(ot_out_dir_open(out, calls, lock, &dir), rc, out);
    OT_TRY_GOTO(check_target(dir->out, &exists), rc, out);
    if (!exists)
        rc = ot_out_dir_commit(dir);
out:
    ot_out_dir_close(dir);
    return rc;
}
