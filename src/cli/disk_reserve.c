#include "src/cli/disk_reserve.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/files/file_ops.h"

static int name_file(const char *dir, char path[PATH_MAX]) {
    return snprintf(path, PATH_MAX, "%s/reserved", dir) < PATH_MAX
               ? 0
               : ot_fail(OT_E_IO, "%s: the name is too long", dir);
}

int64_t ot_disk_reserved(const char *dir) {
    char path[PATH_MAX];
    struct stat info;
    return name_file(dir, path) == 0 && lstat(path, &info) == 0 ? (int64_t)info.st_blocks * 512 : 0;
}

int ot_disk_reserve(const char *dir, int64_t bytes) {
    const struct ot_file_ops *ops = &ot_file_ops_system;
    char path[PATH_MAX];
    OT_TRY(name_file(dir, path));
    unlink(path);
    if (bytes <= 0)
        return 0;
    int64_t have = ops->free_bytes(dir);
    if (have >= 0 && have < bytes)
        return 1;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot be made", path);
    int rc = ops->reserve(fd, (off_t)bytes) < 0 && (errno == ENOSPC || errno == EDQUOT);
    close(fd);
    if (rc)
        unlink(path);
    return rc;
}
