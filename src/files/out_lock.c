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
    static const char *const names[] = {".", "..", "lost+found", OT_OUT_STAGED, OT_OUT_REPLACING};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
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
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot keep the lock of the output", lock->out);
    if (lock->fd >= 0)
        close(lock->fd);
    lock->fd = own;
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
