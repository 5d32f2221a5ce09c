#include "src/base/io_calls.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

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
