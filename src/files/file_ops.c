#include "src/files/file_ops.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* The size stays: a file is as long as what was written. */
static int reserve(int fd, off_t bytes) {
    return fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, bytes);
}

static int exchange(const char *a, const char *b) {
    return renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE);
}

static int64_t free_bytes(const char *path) {
    struct statvfs info;
    if (statvfs(path, &info) < 0)
        return -1;
    return (int64_t)info.f_bavail * (int64_t)info.f_frsize;
}

static int open_at(int dir_fd, const char *name, int flags, mode_t mode) {
    return openat(dir_fd, name, flags, mode);
}

static int make_dir(int dir_fd, const char *name) {
    return mkdirat(dir_fd, name, 0777);
}

static int rename_in(int dir_fd, const char *from, const char *to) {
    return renameat(dir_fd, from, dir_fd, to);
}

const struct ot_file_ops ot_file_ops_system = {
    .write = write,
    .fsync = fsync,
    .reserve = reserve,
    .exchange = exchange,
    .free_bytes = free_bytes,
    .open_at = open_at,
    .make_dir = make_dir,
    .truncate = ftruncate,
    .rename = rename_in,
    .remove = unlinkat,
};
