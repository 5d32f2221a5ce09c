#include "src/base/file_io.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/text.h"

int ot_write_all(const struct ot_io_calls *calls, int fd, const void *data, size_t bytes) {
    const char *from = data;
    calls = calls ? calls : &ot_io_system;
    while (bytes > 0) {
        ssize_t n = calls->write(calls->context, fd, from, bytes);
        struct pollfd ready = {.fd = fd, .events = POLLOUT};
        if (n == -EAGAIN)
            (void)poll(&ready, 1, -1);
        else if (n == 0)
            return -ENOSPC;
        else if (n < 0 && n != -EINTR)
            return (int)n;
        from += ot_max(n, 0);
        bytes -= n > 0 ? (size_t)n : 0;
    }
    return 0;
}

int ot_write_at(const struct ot_io_calls *calls, int fd, const void *data, size_t bytes, int64_t offset) {
    const char *from = data;
    calls = calls ? calls : &ot_io_system;
    while (bytes > 0) {
        ssize_t n = calls->pwrite(calls->context, fd, from, bytes, (off_t)offset);
        if (n == 0)
            return -ENOSPC;
        if (n < 0 && n != -EINTR)
            return (int)n;
        from += ot_max(n, 0);
        offset += ot_max(n, 0);
        bytes -= n > 0 ? (size_t)n : 0;
    }
    return 0;
}

int64_t ot_read_at(int fd, void *memory, size_t bytes, int64_t offset) {
    size_t done = 0;
    while (done < bytes) {
        ssize_t n = pread(fd, (char *)memory + done, bytes - done, (off_t)offset + (off_t)done);
        if (n < 0 && errno != EINTR)
            return -errno;
        if (n == 0)
            break;
        done += n > 0 ? (size_t)n : 0;
    }
    return (int64_t)done;
}

int ot_allocate(const struct ot_io_calls *calls, int fd, int mode, int64_t offset, int64_t bytes) {
    int rc;
    calls = calls ? calls : &ot_io_system;
    do
        rc = calls->allocate(calls->context, fd, mode, (off_t)offset, (off_t)bytes);
    while (rc == -EINTR);
    return rc;
}

int ot_open_direct(const struct ot_io_calls *calls, int dir_fd, const char *path, int flags, mode_t mode,
                   bool *direct) {
    flags |= O_CREAT | O_EXCL;
    int fd = calls->open(calls->context, dir_fd, path, flags | O_DIRECT, mode);
    *direct = fd >= 0;
    if (fd == -EINVAL) /* some file systems have created the file before they refuse O_DIRECT */
        fd = calls->open(calls->context, dir_fd, path, flags & ~O_EXCL, mode);
    return fd;
}

bool ot_set_direct(int fd, bool direct) {
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

/* ---- system calls ---- */

static int or_error(int result) {
    return result < 0 ? -errno : result;
}

static ssize_t or_error_of_bytes(ssize_t result) {
    return result < 0 ? -errno : result;
}

static int system_open(void *context, int dir_fd, const char *path, int flags, mode_t mode) {
    (void)context;
    return or_error(openat(dir_fd, path, flags, mode));
}

static int system_allocate(void *context, int fd, int mode, off_t offset, off_t bytes) {
    (void)context;
    return or_error(fallocate(fd, mode, offset, bytes));
}

static int system_truncate(void *context, int fd, off_t bytes) {
    (void)context;
    return or_error(ftruncate(fd, bytes));
}

static int system_fsync(void *context, int fd) {
    (void)context;
    return or_error(fsync(fd));
}

static int system_fdatasync(void *context, int fd) {
    (void)context;
    return or_error(fdatasync(fd));
}

static ssize_t system_write(void *context, int fd, const void *data, size_t bytes) {
    (void)context;
    return or_error_of_bytes(write(fd, data, bytes));
}

static ssize_t system_pread(void *context, int fd, void *memory, size_t bytes, off_t offset) {
    (void)context;
    return or_error_of_bytes(pread(fd, memory, bytes, offset));
}

static ssize_t system_pwrite(void *context, int fd, const void *memory, size_t bytes, off_t offset) {
    (void)context;
    return or_error_of_bytes(pwrite(fd, memory, bytes, offset));
}

static int system_make_dir(void *context, int dir_fd, const char *name) {
    (void)context;
    return or_error(mkdirat(dir_fd, name, 0777));
}

static int system_rename(void *context, int dir_fd, const char *from, const char *to) {
    (void)context;
    return or_error(renameat(dir_fd, from, dir_fd, to));
}

static int system_exchange(void *context, const char *a, const char *b) {
    (void)context;
    return or_error(renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE));
}

static int system_remove(void *context, int dir_fd, const char *name, int flags) {
    (void)context;
    return or_error(unlinkat(dir_fd, name, flags));
}

static int64_t system_free_bytes(void *context, const char *path) {
    struct statvfs info;
    (void)context;
    return statvfs(path, &info) < 0 ? -errno : (int64_t)info.f_bavail * (int64_t)info.f_frsize;
}

static int system_ring_setup(void *context, unsigned flags) {
    (void)context, (void)flags;
    return 0;
}

static int system_ring_register(void *context, bool buffers) {
    (void)context, (void)buffers;
    return 0;
}

static int system_ring_result(void *context, bool write, int result) {
    (void)context, (void)write;
    return result;
}

const struct ot_io_calls ot_io_system = {
    .open = system_open,
    .allocate = system_allocate,
    .truncate = system_truncate,
    .fsync = system_fsync,
    .fdatasync = system_fdatasync,
    .write = system_write,
    .pread = system_pread,
    .pwrite = system_pwrite,
    .make_dir = system_make_dir,
    .rename = system_rename,
    .exchange = system_exchange,
    .remove = system_remove,
    .free_bytes = system_free_bytes,
    .ring_setup = system_ring_setup,
    .ring_register = system_ring_register,
    .ring_result = system_ring_result,
};

/* ---- small files ---- */

/* Reads to the end, or one byte more than allowed. It does not trust the file's size, because the file may be
 * a pipe. */
static int read_text(int fd, const char *path, size_t max_bytes, char **text, size_t *bytes) {
    size_t capacity = 0;
    *bytes = 0;
    for (;;) {
        if (*bytes == capacity) {
            capacity = capacity ? capacity * 2 : 1 << 16;
            if (capacity > max_bytes)
                capacity = max_bytes + 1;
            char *grown = realloc(*text, capacity);
            if (!grown)
                return ot_fail(OT_E_BUDGET, "%s: no memory to read it", path);
            *text = grown;
        }
        ssize_t n = read(fd, *text + *bytes, capacity - *bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return ot_fail_errno(OT_E_IO, errno, "%s: cannot read it", path);
        if (n == 0)
            return 0;
        *bytes += (size_t)n;
        if (*bytes > max_bytes)
            return ot_fail(OT_E_INPUT, "%s: the file is larger than the limit of %zu bytes", path, max_bytes);
    }
}

int ot_read_file(const char *path, size_t max_bytes, char **text, size_t *bytes) {
    *text = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot open it", path);
    int rc = read_text(fd, path, max_bytes, text, bytes);
    close(fd);
    if (rc < 0) {
        free(*text);
        *text = NULL;
    }
    return rc;
}

int ot_replace_file(const char *path, const void *data, size_t bytes) {
    char *partial;
    OT_TRY(ot_string_format(&partial, "%s.partial", path));
    int fd = open(partial, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    int error = fd >= 0 ? -ot_write_all(NULL, fd, data, bytes) : errno;
    if (fd >= 0 && close(fd) < 0 && error == 0)
        error = errno;
    if (error == 0 && rename(partial, path) < 0)
        error = errno;
    if (error && fd >= 0)
        unlink(partial);
    free(partial);
    return error ? ot_fail_errno(OT_E_IO, error, "%s: cannot write", path) : 0;
}

/* ---- mapped files ---- */

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14; older kernels return EINVAL */
#endif

int ot_mapped_file_open(const char *path, struct ot_mapped_file *file) {
    struct stat info;
    *file = (struct ot_mapped_file){.path = strdup(path), .fd = -1};
    if (!file->path)
        return ot_fail(OT_E_BUDGET, "%s: no memory to open the file", path);
    file->fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* a named pipe must not block open */
    if (file->fd < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot open the file", path);
    if (fstat(file->fd, &info) < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot read the file's size", path);
    if (!S_ISREG(info.st_mode))
        return ot_fail(OT_E_INPUT, "%s: not a regular file", path);
    file->bytes = (size_t)info.st_size;
    return 0;
}

int ot_mapped_file_map(struct ot_mapped_file *file) {
    void *data = mmap(NULL, file->bytes, PROT_READ, MAP_SHARED, file->fd, 0);
    if (data == MAP_FAILED)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot map the file's %zu bytes", file->path, file->bytes);
    file->data = data;
    return 0;
}

void ot_mapped_file_close(struct ot_mapped_file *file) {
    if (file->data)
        munmap((void *)file->data, file->bytes);
    if (file->path && file->fd >= 0)
        close(file->fd);
    free(file->path);
    *file = (struct ot_mapped_file){.fd = -1};
}

int ot_mapped_file_read(const struct ot_mapped_file *file, void *to, size_t bytes, size_t at) {
    int64_t n = ot_read_at(file->fd, to, bytes, (int64_t)at);
    if (n < 0)
        return ot_fail_errno(OT_E_IO, (int)-n, "%s: cannot read the file", file->path);
    return n == (int64_t)bytes
               ? 0
               : ot_fail(OT_E_INPUT, "%s: the file became shorter while it was read", file->path);
}

/* Rounds a range outwards to whole pages, as madvise needs. */
static void page_range(const void *data, size_t bytes, void **begin, size_t *length) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)data & ~(page - 1);
    *begin = (void *)start;
    *length = (size_t)((uintptr_t)data + bytes - start);
}

int ot_mapped_file_fetch(const struct ot_mapped_file *file, const void *data, size_t bytes) {
    struct stat info;
    void *begin;
    size_t length;
    int rc;
    if (fstat(file->fd, &info) < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot read the file's size", file->path);
    if ((size_t)info.st_size < file->bytes)
        return ot_fail(OT_E_IO, "%s: the file was cut from %zu to %lld bytes while it was in use", file->path,
                       file->bytes, (long long)info.st_size);
    page_range(data, bytes, &begin, &length);
    do
        rc = madvise(begin, length, MADV_POPULATE_READ);
    while (rc < 0 && errno == EINTR);
    /* EINVAL: a kernel before 5.14. Then the size check above is all we can do. */
    if (rc < 0 && errno != EINVAL)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot read bytes %td to %td", file->path,
                             (const char *)data - file->data,
                             (const char *)data - file->data + (ptrdiff_t)bytes);
    return 0;
}

void ot_mapped_file_prefetch(const struct ot_mapped_file *file, const void *data, size_t bytes) {
    void *begin;
    size_t length;
    const char *end = file->data + file->bytes;
    if ((const char *)data >= end)
        return;
    if (bytes > (size_t)(end - (const char *)data))
        bytes = (size_t)(end - (const char *)data);
    page_range(data, bytes, &begin, &length);
    (void)madvise(begin, length, MADV_WILLNEED);
}

void ot_mapped_file_release(const void *data, size_t bytes) {
    void *begin;
    size_t length;
    page_range(data, bytes, &begin, &length);
    (void)madvise(begin, length, MADV_DONTNEED);
}

/* ---- paths ---- */

bool ot_path_find_nearest(const char *path, char nearest[PATH_MAX]) {
    if (snprintf(nearest, PATH_MAX, "%s", path) >= PATH_MAX)
        return false;
    while (access(nearest, F_OK) != 0) {
        char *slash = strrchr(nearest, '/');
        if (errno != ENOENT || strcmp(nearest, ".") == 0 || strcmp(nearest, "/") == 0)
            return false;
        if (slash)
            slash[slash == nearest] = '\0'; /* "/name" becomes "/" */
        else
            strcpy(nearest, ".");
    }
    return true;
}

bool ot_path_has_extension(const char *path, const char *extension) {
    size_t bytes = strlen(path), end = strlen(extension);
    return bytes > end && strcmp(path + bytes - end, extension) == 0;
}

int ot_path_make_dirs(char *path, int *n_made) {
    int made = 0, error = 0;
    for (char *at = path; at && error == 0;) {
        at = strchr(at + 1, '/');
        if (at)
            *at = '\0';
        if (mkdir(path, 0777) == 0)
            made++;
        else if (errno != EEXIST && errno != EISDIR) /* EISDIR: "/" on some systems */
            error = -errno;
        if (at)
            *at = '/';
    }
    if (n_made)
        *n_made = made;
    return error;
}

bool ot_path_is_same(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}
