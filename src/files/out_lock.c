#include "src/files/out_lock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/log.h"
#include "src/base/strings.h"

enum { OPEN_DIR = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC };

int ot_out_flock(int fd, const char *path, bool wait) {
    static const struct timespec pause = {.tv_nsec = 50000000};
    bool said = false;
    while (flock(fd, LOCK_EX | LOCK_NB) < 0 && (errno == EWOULDBLOCK || errno == EINTR)) {
        if (errno == EINTR)
            continue;
        if (!wait)
            return 1;
        if (!said)
            ot_log(OT_LOG_WARN, "%s: waiting for another process that has it locked", path);
        said = true;
        nanosleep(&pause, NULL);
    }
    return 0;
}

/* ext4 makes lost+found at the top of a volume. */
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
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot look into", path);
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
               "%s was moved away while this run was writing to it; what is there already (log, "
               "checkpoints) is now in %.*s",
               lock->out, (int)n, path);
}

/* fd: OUT, which is not the directory that is locked, if any is. */
static int take_other(struct ot_out_lock *lock, int fd) {
    bool empty = true;
    if (lock->fd >= 0) {
        OT_TRY(ot_out_is_empty(lock->out, &empty));
        if (!empty)
            return ot_fail(OT_E_INPUT, "%s: is not the directory any more that this run began to write to",
                           lock->out);
        say_away(lock);
    }
    if (ot_out_flock(fd, lock->out, false)) /* whoever has lost its directory saves elsewhere, and soon */
        return ot_fail(OT_E_INPUT,
                       "%s: another process is writing this output; wait for it or choose another",
                       lock->out);
    return 0;
}

int ot_out_lock_take(struct ot_out_lock *lock) {
    for (;;) {
        int fd = open(lock->out, OPEN_DIR);
        if (fd < 0) { /* absent; what else it may be is looked at before anything is written */
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
        if (ot_out_lock_holds(lock)) /* else another one took its place meanwhile */
            return ot_out_lock_keep_marker(lock);
        close(lock->fd);
        lock->fd = -1;
    }
}

int ot_out_lock_move(struct ot_out_lock *lock, int fd) {
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot keep its lock", lock->out);
    if (lock->fd >= 0)
        close(lock->fd);
    lock->fd = own;
    return ot_out_lock_keep_marker(lock);
}

static int put_back_marker(const struct ot_out_lock *lock) {
    int fd = openat(lock->fd, OT_OUT_MARKER, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s/" OT_OUT_MARKER ": cannot be put back", lock->out);
    int error = -ot_write_all(NULL, fd, lock->marker, lock->marker_bytes);
    if (close(fd) < 0 && error == 0)
        error = errno;
    if (error)
        return ot_fail_errno(OT_E_IO, error, "%s/" OT_OUT_MARKER ": cannot be put back", lock->out);
    ot_log(OT_LOG_WARN, "%s/" OT_OUT_MARKER " was removed while this run was writing there; it is put back",
           lock->out);
    return 0;
}

static int read_marker(struct ot_out_lock *lock, int fd) {
    struct stat info;
    if (fstat(fd, &info) < 0 || !S_ISREG(info.st_mode) || info.st_size > OT_OUT_MARKER_MAX_BYTES)
        return 0; /* refused, with its name, when it is looked at */
    char *text = malloc((size_t)info.st_size + 1);
    if (!text)
        return ot_fail(OT_E_BUDGET, "%s: no memory for its marker", lock->out);
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

int ot_out_lock_open(const char *out, struct ot_out_lock **result) {
    size_t length = strlen(out);
    struct ot_out_lock *lock = calloc(1, sizeof *lock);
    if (!lock)
        return ot_fail(OT_E_BUDGET, "%s: no memory to lock it", out);
    while (length > 1 && out[length - 1] == '/')
        length--;
    lock->fd = -1;
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

void ot_out_lock_close(struct ot_out_lock *lock) {
    if (!lock)
        return;
    if (lock->fd >= 0)
        close(lock->fd);
    free(lock->marker);
    free(lock->out);
    free(lock);
}
