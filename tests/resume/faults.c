/* Loaded before libc (LD_PRELOAD), so that the disk of the built program fails, or the program ends, at a
 * chosen call.
 *
 * OT_TEST_FAULT=ACTION:WHERE:N describes the fault. It happens in the N-th (from 1) of the calls that count.
 *   ACTION  kill (the process ends before the call), stop (the process is stopped there, as by SIGSTOP), slow
 *           (the call takes one second longer), the error that the call returns (enospc, eio, erofs), or hold
 *           (the call waits as long as the file OT_TEST_FAULT_HOLD exists; not with bytes)
 *   WHERE   write, fsync, fallocate, rename, mkdir, unlink, open (that creates a file), link, truncate: these
 *           calls count; any: all of them. bytes: N bytes are written. The call that would write more writes
 *           only so much; then the process ends, or every later write fails
 *   N+      the fault happens in this call and in all after it OT_TEST_FAULT_IN=TEXT[:TEXT..]: only calls
 *   count whose path contains one of the texts. OT_TEST_FAULT_LOG=FILE gets a line "CALL PATH" for each call
 *   that counts.
 *
 * OT_TEST_FAULT_RANK=N: the fault and the log are those of rank N alone, of the ranks that the program starts
 * by itself. Then more calls count: read (of a file), connect (to a rank, or from one), and exchange (the
 * memory of another rank is read; the path is the number of bytes).
 *
 * This library does not see the calls that libc makes internally (stdio), nor those of io_uring. */
#undef _FORTIFY_SOURCE   /* would define some of these calls itself */
#undef _FILE_OFFSET_BITS /* would give two names the same symbol */

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

/* The function of that name that this library replaces. */
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

enum { BLOCK = 4096, PATH_BYTES = 2 * PATH_MAX, NOT_UNDERSTOOD = 99, SLOW = -1, HOLD = -2, STOP = -3 };

static struct {
    bool is_read;
    int error; /* 0: the process ends; HOLD, SLOW, STOP: see above; else an errno value */
    char where[16];
    long long at; /* 0: no fault */
    bool goes_on;
    long long calls, bytes; /* counts so far */
} fault;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* ---- the fault that the environment describes ---- */

static void read_fault(void) {
    static const struct {
        const char *name;
        int error;
    } actions[] = {{"kill", 0},    {"enospc", ENOSPC}, {"eio", EIO},  {"erofs", EROFS},
                   {"hold", HOLD}, {"slow", SLOW},     {"stop", STOP}};
    const char *text = getenv("OT_TEST_FAULT");
    char action[16], more = '\0';
    fault.is_read = true;
    if (!text)
        return;
    size_t i = 0, n = sizeof actions / sizeof *actions;
    if (sscanf(text, "%15[^:]:%15[^:]:%lld%c", action, fault.where, &fault.at, &more) < 3)
        i = n;
    while (i < n && strcmp(action, actions[i].name) != 0)
        i++;
    if (i == n) {
        fprintf(stderr, "OT_TEST_FAULT=%s: wanted ACTION:WHERE:N\n", text);
        _exit(NOT_UNDERSTOOD);
    }
    fault.error = actions[i].error;
    fault.goes_on = more == '+';
}

static bool is_of_ranks(void) {
    return getenv("OT_TEST_FAULT_RANK") != NULL;
}

/* True in the process that is meant. The variable of a rank begins with its number. */
static bool is_meant(void) {
    const char *rank = getenv("OFFLOAD_TRAIN_LOCAL_RANK");
    return !is_of_ranks() || (rank && atoi(rank) == atoi(getenv("OT_TEST_FAULT_RANK")));
}

static bool counts(const char *path) {
    const char *texts = getenv("OT_TEST_FAULT_IN");
    char text[256];
    if (!is_meant())
        return false;
    if (!texts || !*texts)
        return true;
    while (*texts) {
        size_t n = strcspn(texts, ":");
        snprintf(text, sizeof text, "%.*s", (int)n, texts);
        if (strstr(path, text))
            return true;
        texts += n + (texts[n] == ':');
    }
    return false;
}

static void log_call(const char *call, const char *path) {
    const char *log = getenv("OT_TEST_FAULT_LOG");
    if (!log)
        return;
    char line[PATH_BYTES + 32];
    int n = snprintf(line, sizeof line, "%s %s\n", call, path);
    int fd = NEXT(open)(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0 || NEXT(write)(fd, line, (size_t)n) != n || close(fd) < 0)
        _exit(NOT_UNDERSTOOD);
}

_Noreturn static void end_process(void) {
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

/* Returns -1 and sets errno if this call must fail. */
static int meet(const char *call, const char *path) {
    int error = 0;
    pthread_mutex_lock(&mutex);
    if (!fault.is_read)
        read_fault();
    if (counts(path)) {
        log_call(call, path);
        bool meant = strcmp(fault.where, "any") == 0 || strcmp(fault.where, call) == 0;
        fault.calls += meant;
        if (meant && (fault.goes_on ? fault.calls >= fault.at : fault.calls == fault.at)) {
            if (fault.error == 0)
                end_process();
            error = fault.error;
        }
    }
    pthread_mutex_unlock(&mutex);
    if (error == STOP)
        kill(getpid(), SIGSTOP);
    if (error == SLOW)
        sleep(1);
    if (error == STOP || error == SLOW)
        error = 0;
    while (error == HOLD)
        if (usleep(1000) == 0 && access(getenv("OT_TEST_FAULT_HOLD"), F_OK) < 0)
            error = 0;
    errno = error;
    return error ? -1 : 0;
}

static const char *path_at(int dir_fd, const char *name, char path[PATH_BYTES]) {
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", dir_fd);
    ssize_t n = *name == '/' || dir_fd == AT_FDCWD ? 0 : readlink(link, path, PATH_MAX - 1);
    n = n < 0 ? 0 : n;
    snprintf(path + n, (size_t)(PATH_BYTES - n), "%s%s", n > 0 && *name ? "/" : "", name);
    return path;
}

static int meet_at(const char *call, int dir_fd, const char *name) {
    char path[PATH_BYTES];
    return meet(call, path_at(dir_fd, name, path));
}

static int meet_fd(const char *call, int fd) {
    return meet_at(call, fd, "");
}

/* ---- writing ---- */

/* How many of the n bytes may be written before the fault. O_DIRECT writes whole blocks only. */
static size_t allow(int fd, size_t n) {
    char path[PATH_BYTES];
    pthread_mutex_lock(&mutex);
    if (strcmp(fault.where, "bytes") == 0 && counts(path_at(fd, "", path))) {
        size_t room = (size_t)(fault.at - fault.bytes);
        if (room < n) {
            int flags = fcntl(fd, F_GETFL);
            n = flags >= 0 && (flags & O_DIRECT) ? room / BLOCK * BLOCK : room;
            fault.bytes = fault.at;
        } else {
            fault.bytes += (long long)n;
        }
    }
    pthread_mutex_unlock(&mutex);
    return n;
}

/* The result of a call that wrote only the allowed part. */
static ssize_t cut_short(ssize_t written) {
    if (fault.error == 0)
        end_process();
    if (written > 0)
        return written;
    errno = fault.error;
    return -1;
}

ssize_t write(int fd, const void *data, size_t n) {
    if (meet_fd("write", fd) < 0)
        return -1;
    size_t allowed = allow(fd, n);
    ssize_t written = allowed > 0 || n == 0 ? NEXT(write)(fd, data, allowed) : 0;
    return allowed == n ? written : cut_short(written);
}

ssize_t pwrite64(int fd, const void *data, size_t n, off64_t offset) {
    if (meet_fd("write", fd) < 0)
        return -1;
    size_t allowed = allow(fd, n);
    ssize_t written = allowed > 0 || n == 0 ? NEXT(pwrite64)(fd, data, allowed, offset) : 0;
    return allowed == n ? written : cut_short(written);
}

int fsync(int fd) {
    return meet_fd("fsync", fd) < 0 ? -1 : NEXT(fsync)(fd);
}

int fdatasync(int fd) {
    return meet_fd("fsync", fd) < 0 ? -1 : NEXT(fdatasync)(fd);
}

int fallocate64(int fd, int mode, off64_t offset, off64_t bytes) {
    return meet_fd("fallocate", fd) < 0 ? -1 : NEXT(fallocate64)(fd, mode, offset, bytes);
}

int ftruncate64(int fd, off64_t bytes) {
    return meet_fd("truncate", fd) < 0 ? -1 : NEXT(ftruncate64)(fd, bytes);
}

/* ---- the calls of ranks ---- */

ssize_t pread64(int fd, void *data, size_t n, off64_t offset) {
    return is_of_ranks() && meet_fd("read", fd) < 0 ? -1 : NEXT(pread64)(fd, data, n, offset);
}

int connect(int fd, const struct sockaddr *to, socklen_t bytes) {
    return is_of_ranks() && meet_fd("connect", fd) < 0 ? -1 : NEXT(connect)(fd, to, bytes);
}

int accept4(int fd, struct sockaddr *from, socklen_t *bytes, int flags) {
    return is_of_ranks() && meet_fd("connect", fd) < 0 ? -1 : NEXT(accept4)(fd, from, bytes, flags);
}

ssize_t process_vm_readv(pid_t process, const struct iovec *here, unsigned long n_here,
                         const struct iovec *there, unsigned long n_there, unsigned long flags) {
    char bytes[32];
    snprintf(bytes, sizeof bytes, "%zu", here->iov_len);
    return is_of_ranks() && meet("exchange", bytes) < 0
               ? -1
               : NEXT(process_vm_readv)(process, here, n_here, there, n_there, flags);
}

/* ---- calls on names ---- */

int open64(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return flags & O_CREAT && meet_at("open", AT_FDCWD, path) < 0 ? -1 : NEXT(open64)(path, flags, mode);
}

int openat64(int dir_fd, const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return flags & O_CREAT && meet_at("open", dir_fd, path) < 0 ? -1
                                                                : NEXT(openat64)(dir_fd, path, flags, mode);
}

int mkdir(const char *path, mode_t mode) {
    return meet_at("mkdir", AT_FDCWD, path) < 0 ? -1 : NEXT(mkdir)(path, mode);
}

int mkdirat(int dir_fd, const char *path, mode_t mode) {
    return meet_at("mkdir", dir_fd, path) < 0 ? -1 : NEXT(mkdirat)(dir_fd, path, mode);
}

int unlink(const char *path) {
    return meet_at("unlink", AT_FDCWD, path) < 0 ? -1 : NEXT(unlink)(path);
}

int unlinkat(int dir_fd, const char *path, int flags) {
    return meet_at("unlink", dir_fd, path) < 0 ? -1 : NEXT(unlinkat)(dir_fd, path, flags);
}

int rmdir(const char *path) {
    return meet_at("unlink", AT_FDCWD, path) < 0 ? -1 : NEXT(rmdir)(path);
}

int rename(const char *from, const char *to) {
    return meet_at("rename", AT_FDCWD, to) < 0 ? -1 : NEXT(rename)(from, to);
}

int renameat(int from_fd, const char *from, int to_fd, const char *to) {
    return meet_at("rename", to_fd, to) < 0 ? -1 : NEXT(renameat)(from_fd, from, to_fd, to);
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags) {
    return meet_at("rename", to_fd, to) < 0 ? -1 : NEXT(renameat2)(from_fd, from, to_fd, to, flags);
}

int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags) {
    return meet_at("link", to_fd, to) < 0 ? -1 : NEXT(linkat)(from_fd, from, to_fd, to, flags);
}
