#include "src/files/file_ops.h"

#include <fcntl.h>
#include <stdio.h>
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

const struct ot_file_ops ot_file_ops_system = {
    .write = write, .fsync = fsync, .reserve = reserve, .exchange = exchange, .free_bytes = free_bytes};
