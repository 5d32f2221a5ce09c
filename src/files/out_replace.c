#include "src/files/out_replace.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/io_calls.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/files/out_lock.h"

#define CONFIG "config.json"

enum { OPEN_DIR = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC };

/* ---- mounts ---- */

static bool is_mounted_at(int dir_fd, const char *name, int flags) {
    struct statx info, above;
    if (statx(dir_fd, name, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | flags, STATX_TYPE, &info) < 0)
        return false;
    if (info.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT)
        return info.stx_attributes & STATX_ATTR_MOUNT_ROOT;
    /* Kernels before 5.8 do not report mount points; then only mounts of other file systems are found. */
    return statx(dir_fd, "..", AT_NO_AUTOMOUNT, STATX_TYPE, &above) == 0 &&
           (info.stx_dev_major != above.stx_dev_major || info.stx_dev_minor != above.stx_dev_minor);
}

bool ot_out_is_mount(const char *path) {
    int fd = open(path, OPEN_DIR);
    bool is = fd >= 0 && is_mounted_at(fd, "", AT_EMPTY_PATH);
    if (fd >= 0)
        close(fd);
    return is;
}

int ot_out_has_mount(const char *path, bool *has) {
    DIR *dir = opendir(path);
    if (!dir)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot list the directory", path);
    *has = false;
    for (struct dirent *entry = readdir(dir); entry && !*has; entry = readdir(dir))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            *has = is_mounted_at(dirfd(dir), entry->d_name, 0);
    closedir(dir);
    return 0;
}

/* ---- markers ---- */

int ot_out_read_marker(const char *dir, struct ot_json **marker) {
    char path[PATH_MAX];
    *marker = NULL;
    if (snprintf(path, sizeof path, "%s/" OT_OUT_MARKER, dir) >= (int)sizeof path)
        return ot_fail(OT_E_IO, "%s: the path is too long", dir);
    if (access(path, F_OK) < 0 && errno == ENOENT)
        return 0;
    return ot_json_read_file(path, OT_OUT_MARKER_MAX_BYTES, marker);
}

bool ot_out_is_listed(const struct ot_json *marker, const char *name) {
    const struct ot_json *files = ot_json_get(marker, "files");
    for (size_t i = 0; i < ot_json_length(files); i++) {
        const char *file = ot_json_string(ot_json_at(files, i), NULL);
        if (file && strcmp(file, name) == 0)
            return true;
    }
    return strcmp(name, OT_OUT_MARKER) == 0;
}

/* ---- replacing ---- */

struct replacing {
    const char *out;
    const struct ot_io_calls *calls;
    int out_fd, new_fd;
    struct ot_json *old_marker,
        *new_marker; /* old_marker NULL: OUT had none. new_marker NULL: all files have moved */
};

bool ot_out_is_half_replaced(const char *out) {
    char path[PATH_MAX];
    struct stat info;
    return snprintf(path, sizeof path, "%s/" OT_OUT_REPLACING, out) < (int)sizeof path &&
           lstat(path, &info) == 0;
}

int ot_out_check_whole(const char *out) {
    return ot_out_is_half_replaced(out)
               ? ot_fail(OT_E_INPUT,
                         "%s: a process ended while it was replacing the result here; run its command again "
                         "with the same --out to complete the replacement",
                         out)
               : 0;
}

static int flush(const struct replacing *r) {
    int error = r->calls->fsync(r->calls->context, r->out_fd);
    return error < 0 ? ot_fail_errno(OT_E_IO, -error, "%s: cannot flush the directory", r->out) : 0;
}

/* False: someone else wrote this marker. Files outside the directory are not touched. */
static bool is_plain(const char *name) {
    return name && *name && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

static int remove_old(const struct replacing *r, const char *name) {
    int error = r->calls->remove(r->calls->context, r->out_fd, name, 0);
    return error == 0 || error == -ENOENT
               ? 0
               : ot_fail_errno(OT_E_IO, -error, "%s/%s: cannot remove", r->out, name);
}

/* Renames a file of others that has the name of a new file. */
static int keep_theirs(const struct replacing *r, const char *name) {
    char kept[NAME_MAX + 1];
    struct stat info;
    if (fstatat(r->out_fd, name, &info, AT_SYMLINK_NOFOLLOW) < 0 || ot_out_is_listed(r->old_marker, name))
        return 0;
    if (snprintf(kept, sizeof kept, "%s.kept", name) >= (int)sizeof kept ||
        renameat2(r->out_fd, name, r->out_fd, kept, RENAME_NOREPLACE) < 0)
        return ot_fail(OT_E_IO, "%s/%s: the new output needs this name; move this file away", r->out, name);
    ot_log(OT_LOG_WARN, "%s/%s is not a file of offload-train; renamed it to %s", r->out, name, kept);
    return 0;
}

static int move_in(const struct replacing *r, const char *name) {
    struct stat info;
    if (fstatat(r->new_fd, name, &info, AT_SYMLINK_NOFOLLOW) < 0) /* moved before a kill, or never there */
        return 0;
    OT_TRY(keep_theirs(r, name));
    return renameat(r->new_fd, name, r->out_fd, name) == 0
               ? 0
               : ot_fail_errno(OT_E_IO, errno, "%s/%s: cannot move the new file to this name", r->out, name);
}

static bool comes_last(const char *name) {
    return strcmp(name, CONFIG) == 0 || strcmp(name, OT_OUT_MARKER) == 0;
}

static int remove_all_old(const struct replacing *r) {
    const struct ot_json *files = ot_json_get(r->old_marker, "files");
    struct stat info;
    bool has_moved =
        ot_out_is_listed(r->new_marker, CONFIG) && fstatat(r->new_fd, CONFIG, &info, AT_SYMLINK_NOFOLLOW) < 0;
    if (ot_out_is_listed(r->old_marker, CONFIG) && !has_moved)
        OT_TRY(remove_old(r, CONFIG));
    OT_TRY(flush(r)); /* before other files are removed: a disk may reorder changes */
    for (size_t i = 0; i < ot_json_length(files); i++) {
        const char *name = ot_json_string(ot_json_at(files, i), NULL);
        if (is_plain(name) && !ot_out_is_listed(r->new_marker, name))
            OT_TRY(remove_old(r, name));
    }
    return 0;
}

static int move_all_in(const struct replacing *r) {
    const struct ot_json *files = ot_json_get(r->new_marker, "files");
    for (size_t i = 0; i < ot_json_length(files); i++) {
        const char *name = ot_json_string(ot_json_at(files, i), NULL);
        if (is_plain(name) && !comes_last(name))
            OT_TRY(move_in(r, name));
    }
    OT_TRY(flush(r));
    OT_TRY(move_in(r, CONFIG));
    OT_TRY(flush(r));
    return move_in(r, OT_OUT_MARKER);
}

static int replace(struct replacing *r, const char *new_path) {
    OT_TRY(ot_out_read_marker(r->out, &r->old_marker));
    OT_TRY(ot_out_read_marker(new_path, &r->new_marker));
    OT_TRY(flush(r)); /* flush the directory's new name before old files are removed */
    if (r->new_marker) {
        OT_TRY(remove_all_old(r));
        OT_TRY(move_all_in(r));
    }
    int error = r->calls->remove(r->calls->context, r->out_fd, OT_OUT_REPLACING, AT_REMOVEDIR);
    if (error < 0)
        return ot_fail_errno(OT_E_IO, -error, "%s: cannot remove", new_path);
    return flush(r);
}

int ot_out_replace(const char *out, const struct ot_io_calls *calls) {
    struct replacing r = {.out = out, .calls = calls, .new_fd = -1, .out_fd = open(out, OPEN_DIR)};
    char new_path[PATH_MAX];
    int rc;
    if (snprintf(new_path, sizeof new_path, "%s/" OT_OUT_REPLACING, out) < (int)sizeof new_path)
        r.new_fd = open(new_path, OPEN_DIR);
    if (r.out_fd < 0 || r.new_fd < 0)
        rc = ot_fail_errno(OT_E_IO, errno, "%s: cannot replace the output", out);
    else
        rc = replace(&r, new_path);
    if (r.out_fd >= 0)
        close(r.out_fd);
    if (r.new_fd >= 0)
        close(r.new_fd);
    ot_json_free(r.old_marker);
    ot_json_free(r.new_marker);
    return rc;
}
