#include "src/files/out_lock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/base/text.h"

enum { OPEN_DIR = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC };

/* A killed process that gives back much memory, or whose disk is slow, takes some seconds to end. */
static const double patience_seconds = 5;

static void say_wait(const char *path, double seconds) {
    if (isfinite(seconds))
        ot_log(OT_LOG_INFO,
               "note    %s: another process has locked this directory; waiting up to %g s for it to end",
               path, seconds);
    else
        ot_log(OT_LOG_WARN, "%s: waiting for another process that has locked this directory", path);
}

int ot_out_flock(int fd, const char *path, double seconds) {
    static const struct timespec pause = {.tv_nsec = 50000000};
    double until = ot_clock_seconds() + seconds;
    bool said = false;
    while (flock(fd, LOCK_EX | LOCK_NB) < 0 && (errno == EWOULDBLOCK || errno == EINTR)) {
        if (errno == EINTR)
            continue;
        if (ot_clock_seconds() >= until)
            return 1;
        if (!said)
            say_wait(path, seconds);
        said = true;
        nanosleep(&pause, NULL);
    }
    return 0;
}

/* Entries that do not count as contents. ext4 makes lost+found at the root of a volume. */
static bool is_of_no_one(const char *name) {
    return ot_words_have(". .. lost+found " OT_OUT_STAGED " " OT_OUT_REPLACING, name);
}

int ot_out_is_empty(const char *path, bool *empty) {
    DIR *dir = opendir(path);
    if (!dir)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot list the directory", path);
    *empty = true;
    for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir))
        *empty = *empty && is_of_no_one(entry->d_name);
    closedir(dir);
    return 0;
}

static bool is_same(int a, int b) {
    struct stat x, y;
    return a >= 0 && b >= 0 && fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
}

bool ot_out_lock_holds(const struct ot_out_lock *lock) {
    int fd = open(lock->out, OPEN_DIR);
    bool holds = is_same(fd, lock->fd);
    if (fd >= 0)
        close(fd);
    return holds;
}

static void say_away(struct ot_out_lock *lock) {
    char link[32], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", lock->fd);
    ssize_t n = lock->is_away ? -1 : readlink(link, path, sizeof path - 1);
    lock->is_away = true;
    if (n > 0)
        ot_log(OT_LOG_WARN,
               "%s was moved away while this run was writing to it; its earlier files (log, checkpoints) are "
               "now in %.*s",
               lock->out, (int)n, path);
}

/* fd: the directory OUT. It is not the locked directory, if there is a locked one. */
static int take_other(struct ot_out_lock *lock, int fd) {
    bool empty = true;
    if (lock->fd >= 0) {
        OT_TRY(ot_out_is_empty(lock->out, &empty));
        if (!empty)
            return ot_fail(OT_E_INPUT,
                           "%s: another directory has taken the place of this run's output directory",
                           lock->out);
        say_away(lock);
    }
    /* A run that lost its directory must save elsewhere, soon. */
    if (ot_out_flock(fd, lock->out, lock->fd < 0 ? lock->patience_seconds : 0))
        return ot_fail(OT_E_INPUT,
                       "%s: another process is writing this output; wait for that process, or choose another "
                       "--out",
                       lock->out);
    return 0;
}

int ot_out_lock_take(struct ot_out_lock *lock) {
    for (;;) {
        int fd = open(lock->out, OPEN_DIR);
        if (fd < 0) { /* absent, or not a directory: that is checked before anything is written */
            if (lock->fd >= 0)
                say_away(lock);
            return 0;
        }
        int rc = is_same(fd, lock->fd) ? 1 : take_other(lock, fd);
        if (rc != 0) {
            close(fd);
            return rc < 0 ? rc : ot_out_lock_keep_marker(lock);
        }
        if (lock->fd >= 0)
            close(lock->fd);
        lock->fd = fd;
        if (ot_out_lock_holds(lock)) /* false: another directory took its place meanwhile */
            return ot_out_lock_keep_marker(lock);
        close(lock->fd);
        lock->fd = -1;
    }
}

int ot_out_lock_move(struct ot_out_lock *lock, int fd) {
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (moved < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot keep the lock of the output", lock->out);
    if (lock->fd >= 0)
        close(lock->fd);
    lock->fd = moved;
    return ot_out_lock_keep_marker(lock);
}

static int put_back_marker(const struct ot_out_lock *lock) {
    int fd = openat(lock->fd, OT_OUT_MARKER, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s/" OT_OUT_MARKER ": cannot restore the file", lock->out);
    int error = -ot_write_all(NULL, fd, lock->marker, lock->marker_bytes);
    if (close(fd) < 0 && error == 0)
        error = errno;
    if (error)
        return ot_fail_errno(OT_E_IO, error, "%s/" OT_OUT_MARKER ": cannot restore the file", lock->out);
    ot_log(OT_LOG_WARN, "%s/" OT_OUT_MARKER " was removed while this run was writing there; restored it",
           lock->out);
    return 0;
}

static int read_marker(struct ot_out_lock *lock, int fd) {
    struct stat info;
    if (fstat(fd, &info) < 0 || !S_ISREG(info.st_mode) || info.st_size > OT_OUT_MARKER_MAX_BYTES)
        return 0; /* a later check refuses it, with its name */
    char *text = malloc((size_t)info.st_size + 1);
    if (!text)
        return ot_fail(OT_E_BUDGET, "%s: no memory to read the marker file", lock->out);
    int64_t n = ot_read_at(fd, text, (size_t)info.st_size, 0);
    if (n != info.st_size) {
        free(text);
        return ot_fail_errno(OT_E_IO, n < 0 ? (int)-n : EIO, "%s/" OT_OUT_MARKER ": cannot read", lock->out);
    }
    free(lock->marker);
    lock->marker = text;
    lock->marker_bytes = (size_t)n;
    return 0;
}

int ot_out_lock_keep_marker(struct ot_out_lock *lock) {
    if (lock->fd < 0 || !ot_out_lock_holds(lock))
        return 0;
    int fd = openat(lock->fd, OT_OUT_MARKER, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT && lock->marker ? put_back_marker(lock) : 0;
    int rc = read_marker(lock, fd);
    close(fd);
    return rc;
}

static int open_lock(const char *out, double patience, struct ot_out_lock **result) {
    size_t length = strlen(out);
    struct ot_out_lock *lock = calloc(1, sizeof *lock);
    if (!lock)
        return ot_fail(OT_E_BUDGET, "%s: no memory to lock the output", out);
    while (length > 1 && out[length - 1] == '/')
        length--;
    lock->fd = -1;
    lock->patience_seconds = patience;
    int rc = ot_string_format(&lock->out, "%.*s", (int)length, out);
    if (rc == 0)
        rc = ot_out_lock_take(lock);
    if (rc < 0) {
        ot_out_lock_close(lock);
        lock = NULL;
    }
    *result = lock;
    return rc;
}

int ot_out_lock_open(const char *out, struct ot_out_lock **result) {
    return open_lock(out, 0, result);
}

int ot_out_lock_await(const char *out, struct ot_out_lock **result) {
    return open_lock(out, patience_seconds, result);
}

void ot_out_lock_close(struct ot_out_lock *lock) {
    if (!lock)
        return;
    if (lock->fd >= 0)
        close(lock->fd);
    free(lock->marker);
    free(lock->out);
    free(lock);
}

/* ---- replacing an output ---- */

#define CONFIG "config.json"

/* ---- mounts ---- */

static bool is_mounted_at(int dir_fd, const char *name, int flags) {
    struct statx info, above;
    if (statx(dir_fd, name, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | flags, STATX_TYPE, &info) < 0)
        return false;
    if (info.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT)
        return info.stx_attributes & STATX_ATTR_MOUNT_ROOT;
    /* Kernels before 5.8 do not report mount points; then only mounts of other file systems are found. */
    return statx(dir_fd, "..", AT_NO_AUTOMOUNT, STATX_TYPE, &above) == 0 &&
           (info.stx_dev_major != above.stx_dev_major || info.stx_dev_minor != above.stx_dev_minor);
}

bool ot_out_is_mount(const char *path) {
    int fd = open(path, OPEN_DIR);
    bool is = fd >= 0 && is_mounted_at(fd, "", AT_EMPTY_PATH);
    if (fd >= 0)
        close(fd);
    return is;
}

int ot_out_has_mount(const char *path, bool *has) {
    DIR *dir = opendir(path);
    if (!dir)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot list the directory", path);
    *has = false;
    for (struct dirent *entry = readdir(dir); entry && !*has; entry = readdir(dir))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            *has = is_mounted_at(dirfd(dir), entry->d_name, 0);
    closedir(dir);
    return 0;
}

/* ---- markers ---- */

int ot_out_read_marker(const char *dir, struct ot_json **marker) {
    char path[PATH_MAX];
    *marker = NULL;
    if (snprintf(path, sizeof path, "%s/" OT_OUT_MARKER, dir) >= (int)sizeof path)
        return ot_fail(OT_E_IO, "%s: the path is too long", dir);
    if (access(path, F_OK) < 0 && errno == ENOENT)
        return 0;
    return ot_json_read_file(path, OT_OUT_MARKER_MAX_BYTES, marker);
}

bool ot_out_is_listed(const struct ot_json *marker, const char *name) {
    const struct ot_json *files = ot_json_get(marker, "files");
    for (size_t i = 0; i < ot_json_length(files); i++) {
        const char *file = ot_json_string(ot_json_at(files, i), NULL);
        if (file && strcmp(file, name) == 0)
            return true;
    }
    return strcmp(name, OT_OUT_MARKER) == 0;
}

/* ---- replacing ---- */

struct replacing {
    const char *out;
    const struct ot_io_calls *calls;
    int out_fd, new_fd;
    struct ot_json *old_marker,
        *new_marker; /* old_marker NULL: OUT had none. new_marker NULL: all files have moved */
};

bool ot_out_is_half_replaced(const char *out) {
    char path[PATH_MAX];
    struct stat info;
    return snprintf(path, sizeof path, "%s/" OT_OUT_REPLACING, out) < (int)sizeof path &&
           lstat(path, &info) == 0;
}

int ot_out_check_whole(const char *out) {
    return ot_out_is_half_replaced(out)
               ? ot_fail(OT_E_INPUT,
                         "%s: a process ended while it was replacing the result here; run its command again "
                         "with the same --out to complete the replacement",
                         out)
               : 0;
}

static int flush(const struct replacing *r) {
    int error = r->calls->fsync(r->calls->context, r->out_fd);
    return error < 0 ? ot_fail_errno(OT_E_IO, -error, "%s: cannot flush the directory", r->out) : 0;
}

/* False: someone else wrote this marker. Files outside the directory are not touched. */
static bool is_plain(const char *name) {
    return name && *name && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

static int remove_old(const struct replacing *r, const char *name) {
    int error = r->calls->remove(r->calls->context, r->out_fd, name, 0);
    return error == 0 || error == -ENOENT
               ? 0
               : ot_fail_errno(OT_E_IO, -error, "%s/%s: cannot remove", r->out, name);
}

/* Renames a file of others that has the name of a new file. */
static int keep_theirs(const struct replacing *r, const char *name) {
    char kept[NAME_MAX + 1];
    struct stat info;
    if (fstatat(r->out_fd, name, &info, AT_SYMLINK_NOFOLLOW) < 0 || ot_out_is_listed(r->old_marker, name))
        return 0;
    if (snprintf(kept, sizeof kept, "%s.kept", name) >= (int)sizeof kept ||
        renameat2(r->out_fd, name, r->out_fd, kept, RENAME_NOREPLACE) < 0)
        return ot_fail(OT_E_IO, "%s/%s: the new output needs this name; move this file away", r->out, name);
    ot_log(OT_LOG_WARN, "%s/%s is not a file of offload-train; renamed it to %s", r->out, name, kept);
    return 0;
}

static int move_in(const struct replacing *r, const char *name) {
    struct stat info;
    if (fstatat(r->new_fd, name, &info, AT_SYMLINK_NOFOLLOW) < 0) /* moved before a kill, or never there */
        return 0;
    OT_TRY(keep_theirs(r, name));
    return renameat(r->new_fd, name, r->out_fd, name) == 0
               ? 0
               : ot_fail_errno(OT_E_IO, errno, "%s/%s: cannot move the new file to this name", r->out, name);
}

static bool comes_last(const char *name) {
    return strcmp(name, CONFIG) == 0 || strcmp(name, OT_OUT_MARKER) == 0;
}

static int remove_all_old(const struct replacing *r) {
    const struct ot_json *files = ot_json_get(r->old_marker, "files");
    struct stat info;
    bool has_moved =
        ot_out_is_listed(r->new_marker, CONFIG) && fstatat(r->new_fd, CONFIG, &info, AT_SYMLINK_NOFOLLOW) < 0;
    if (ot_out_is_listed(r->old_marker, CONFIG) && !has_moved)
        OT_TRY(remove_old(r, CONFIG));
    OT_TRY(flush(r)); /* before other files are removed: a disk may reorder changes */
    for (size_t i = 0; i < ot_json_length(files); i++) {
        const char *name = ot_json_string(ot_json_at(files, i), NULL);
        if (is_plain(name) && !ot_out_is_listed(r->new_marker, name))
            OT_TRY(remove_old(r, name));
    }
    return 0;
}

static int move_all_in(const struct replacing *r) {
    const struct ot_json *files = ot_json_get(r->new_marker, "files");
    for (size_t i = 0; i < ot_json_length(files); i++) {
        const char *name = ot_json_string(ot_json_at(files, i), NULL);
        if (is_plain(name) && !comes_last(name))
            OT_TRY(move_in(r, name));
    }
    OT_TRY(flush(r));
    OT_TRY(move_in(r, CONFIG));
    OT_TRY(flush(r));
    return move_in(r, OT_OUT_MARKER);
}

static int replace(struct replacing *r, const char *new_path) {
    OT_TRY(ot_out_read_marker(r->out, &r->old_marker));
    OT_TRY(ot_out_read_marker(new_path, &r->new_marker));
    OT_TRY(flush(r)); /* flush the directory's new name before old files are removed */
    if (r->new_marker) {
        OT_TRY(remove_all_old(r));
        OT_TRY(move_all_in(r));
    }
    int error = r->calls->remove(r->calls->context, r->out_fd, OT_OUT_REPLACING, AT_REMOVEDIR);
    if (error < 0)
        return ot_fail_errno(OT_E_IO, -error, "%s: cannot remove", new_path);
    return flush(r);
}

int ot_out_replace(const char *out, const struct ot_io_calls *calls) {
    struct replacing r = {.out = out, .calls = calls, .new_fd = -1, .out_fd = open(out, OPEN_DIR)};
    char new_path[PATH_MAX];
    int rc;
    if (snprintf(new_path, sizeof new_path, "%s/" OT_OUT_REPLACING, out) < (int)sizeof new_path)
        r.new_fd = open(new_path, OPEN_DIR);
    if (r.out_fd < 0 || r.new_fd < 0)
        rc = ot_fail_errno(OT_E_IO, errno, "%s: cannot replace the output", out);
    else
        rc = replace(&r, new_path);
    if (r.out_fd >= 0)
        close(r.out_fd);
    if (r.new_fd >= 0)
        close(r.new_fd);
    ot_json_free(r.old_marker);
    ot_json_free(r.new_marker);
    return rc;
}
