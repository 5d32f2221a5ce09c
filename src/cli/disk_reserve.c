#include "src/cli/disk_reserve.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/files/file_ops.h"

int ot_disk_reserve(const char *dir, int64_t bytes) {
    const struct ot_file_ops *ops = &ot_file_ops_system;
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/reserved", dir) >= PATH_MAX)
        return ot_fail(OT_E_IO, "%s: the name is too long", dir);
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
