#include "src/train/disk_reserve.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/units.h"

static int name_file(const char *dir, const char *name, char path[PATH_MAX]) {
    return snprintf(path, PATH_MAX, "%s/%s", dir, name) < PATH_MAX
               ? 0
               : ot_fail(OT_E_IO, "%s: the path is too long", dir);
}

int64_t ot_disk_reserved(const char *dir) {
    char path[PATH_MAX];
    struct stat info;
    return name_file(dir, "reserved", path) == 0 && lstat(path, &info) == 0 ? (int64_t)info.st_blocks * 512
                                                                            : 0;
}

int ot_disk_reserve(const char *dir, int64_t bytes) {
    char path[PATH_MAX];
    OT_TRY(name_file(dir, "reserved", path));
    unlink(path);
    if (bytes <= 0)
        return 0;
    int64_t have = ot_io_system.free_bytes(NULL, dir);
    if (have >= 0 && have < bytes)
        return 1;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot create the file that reserves disk space", path);
    int error = ot_allocate(NULL, fd, FALLOC_FL_KEEP_SIZE, 0, bytes);
    close(fd);
    bool is_full = error == -ENOSPC || error == -EDQUOT;
    if (is_full)
        unlink(path);
    return is_full;
}

int ot_disk_check_file_size(const char *what, int64_t bytes) {
    struct rlimit limit;
    char size[OT_TEXT_BYTES], allowed[OT_TEXT_BYTES];
    if (getrlimit(RLIMIT_FSIZE, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY ||
        limit.rlim_cur >= (rlim_t)bytes)
        return 0;
    return ot_fail(OT_E_IO, "%s needs a file of up to %s, but `ulimit -f` allows only %s; raise that limit",
                   what, ot_text_bytes(bytes, size), ot_text_bytes((int64_t)limit.rlim_cur, allowed));
}

int64_t ot_disk_free(const char *dir) {
    char nearest[PATH_MAX];
    return ot_path_find_nearest(dir, nearest) ? ot_io_system.free_bytes(NULL, nearest) : -1;
}

double ot_disk_time_flush(const char *dir) {
    static const char text[] = "how long a flush takes\n";
    char path[PATH_MAX];
    if (name_file(dir, "flush-test", path) < 0)
        return 0;
    unlink(path); /* left by a killed run */
    double began = ot_clock_seconds();
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return 0;
    bool flushed = ot_write_all(NULL, fd, text, sizeof text) == 0 && fsync(fd) == 0;
    double seconds = ot_clock_seconds() - began;
    close(fd);
    unlink(path);
    return flushed ? seconds : 0;
}
