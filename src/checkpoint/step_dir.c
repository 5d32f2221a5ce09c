#include "src/checkpoint/step_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/checkpoint/manifest.h"

enum { OPEN_DIR = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC };

void ot_step_name(char name[OT_STEP_NAME_BYTES], int64_t step, bool partial) {
    snprintf(name, OT_STEP_NAME_BYTES, "step-%08lld%s", (long long)step, partial ? ".partial" : "");
}

/* Accepts only the exact spelling of ot_step_name, so that two names never stand for the same step. */
bool ot_step_parse(const char *name, int64_t *step, bool *partial) {
    static const char prefix[] = "step-";
    char again[OT_STEP_NAME_BYTES];
    if (strncmp(name, prefix, sizeof prefix - 1) != 0)
        return false;
    const char *digits = name + sizeof prefix - 1;
    size_t n = strspn(digits, "0123456789");
    if (n == 0 || n > 18)
        return false;
    *step = strtoll(digits, NULL, 10);
    *partial = digits[n] != '\0';
    ot_step_name(again, *step, *partial);
    return strcmp(name, again) == 0;
}

int ot_step_hold(int parent_fd, const char *name, const char *path, int *dir_fd) {
    struct stat held, named;
    *dir_fd = openat(parent_fd, name, OPEN_DIR);
    if (*dir_fd < 0 && (errno == ENOTDIR || errno == ELOOP))
        return ot_fail(OT_E_INPUT,
                       "%s: a checkpoint needs this name, but it is not a directory; move it away", path);
    if (*dir_fd < 0)
        return errno == ENOENT ? 0 : ot_fail_errno(OT_E_IO, errno, "%s: cannot open", path);
    /* If the file system has no locks, we go on: the user must not give two programs the same output. */
    bool taken = flock(*dir_fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK;
    /* The previous holder of the lock may have renamed or removed the directory just before. */
    if (taken || fstat(*dir_fd, &held) < 0 || fstatat(parent_fd, name, &named, AT_SYMLINK_NOFOLLOW) < 0 ||
        held.st_dev != named.st_dev || held.st_ino != named.st_ino) {
        close(*dir_fd);
        *dir_fd = -1;
    }
    return 0;
}

static int remove_manifest(const struct ot_io_calls *calls, int dir_fd, const char *path) {
    int error = calls->remove(calls->context, dir_fd, OT_MANIFEST_NAME, 0);
    if (error == -ENOENT)
        return 0;
    if (error < 0)
        return ot_fail_errno(OT_E_IO, -error, "%s/" OT_MANIFEST_NAME ": cannot remove", path);
    /* Flush before the other files are removed: a disk may reorder removals. */
    error = calls->fsync(calls->context, dir_fd);
    return error < 0 ? ot_fail_errno(OT_E_IO, -error, "%s: cannot flush the directory", path) : 0;
}

static int remove_entry(const struct ot_io_calls *calls, int dir_fd, const char *path, const char *name) {
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return 0;
    int error = calls->remove(calls->context, dir_fd, name, 0);
    if (error == 0 || error == -ENOENT)
        return 0;
    if (error == -EISDIR || error == -EPERM)
        return ot_fail(OT_E_IO, "%s/%s: not a file of a checkpoint; move it away", path, name);
    return ot_fail_errno(OT_E_IO, -error, "%s/%s: cannot remove", path, name);
}

int ot_step_clear(const struct ot_io_calls *calls, int dir_fd, const char *path) {
    OT_TRY(remove_manifest(calls, dir_fd, path));
    int rc = 0, fd = openat(dir_fd, ".", OPEN_DIR);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (!dir) {
        rc = ot_fail_errno(OT_E_IO, errno, "%s: cannot list the directory", path);
        if (fd >= 0)
            close(fd);
        return rc;
    }
    for (struct dirent *entry; rc == 0 && (entry = readdir(dir));)
        rc = remove_entry(calls, dir_fd, path, entry->d_name);
    closedir(dir);
    return rc;
}

int ot_step_remove(const struct ot_io_calls *calls, int parent_fd, const char *name, const char *path) {
    int dir_fd = openat(parent_fd, name, OPEN_DIR);
    if (dir_fd < 0)
        return errno == ENOENT ? 0 : ot_fail_errno(OT_E_IO, errno, "%s: cannot open", path);
    int rc = ot_step_clear(calls, dir_fd, path);
    close(dir_fd);
    OT_TRY(rc);
    int error = calls->remove(calls->context, parent_fd, name, AT_REMOVEDIR);
    return error < 0 ? ot_fail_errno(OT_E_IO, -error, "%s: cannot remove", path) : 0;
}
