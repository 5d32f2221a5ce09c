#include "offload/store/files.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/log.h"
#include "src/base/minmax.h"
#include "src/base/text.h"

enum { NAP_NS = 10000000, MOST_NAPS = 200 };

#define MOST_LIMIT ((int64_t)1 << 56) /* sums of limits cannot overflow */

const char *ot_store_print_size(char text[OT_STORE_SIZE_BYTES], int64_t bytes) {
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
    double size = (double)bytes / 1024;
    int unit = 0;
    for (; size >= 1024 && unit < 3; unit++)
        size /= 1024;
    snprintf(text, OT_STORE_SIZE_BYTES, "%.4g %s", size, units[unit]);
    return text;
}

/* ---- files of crashed runs ---- */

static const char file_prefix[] = "offload-train.", file_suffix[] = ".store";

/* The PID in offload-train.PID.N.store. 0: the file is not a store file. */
static pid_t owner_of(const char *name) {
    static const char digits[] = "0123456789";
    if (strncmp(name, file_prefix, sizeof file_prefix - 1) != 0)
        return 0;
    const char *pid = name + sizeof file_prefix - 1;
    size_t pid_digits = strspn(pid, digits);
    if (pid_digits == 0 || pid_digits > 9 || pid[pid_digits] != '.')
        return 0;
    const char *number = pid + pid_digits + 1;
    size_t number_digits = strspn(number, digits);
    return number_digits > 0 && strcmp(number + number_digits, file_suffix) == 0 ? atoi(pid) : 0;
}

/* Locks a file that may be stale. A live run keeps its file locked until the file is unlinked; see
 * make_locked. After a process is killed, its io_uring may keep the registered file, and so the lock, a
 * little longer. So if the lock is held but the process is gone, this function retries for up to *patience
 * naps. A process in another PID namespace also seems to be gone; then the retries end without the lock. */
static bool take_lock(int fd, pid_t owner, int *patience) {
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK || kill(owner, 0) == 0 || errno != ESRCH || *patience == 0)
            return false;
        --*patience;
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
    return true;
}

/* Returns the bytes that were freed. 0: the file is in use, belongs to another user, or has other names. */
static int64_t remove_if_stale(int dir_fd, const char *name, int *patience) {
    struct stat info;
    int64_t freed = 0;
    pid_t owner = owner_of(name);
    int fd = owner ? openat(dir_fd, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;
    if (fd < 0)
        return 0;
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && take_lock(fd, owner, patience) &&
        unlinkat(dir_fd, name, 0) == 0 && fstat(fd, &info) == 0 && info.st_nlink == 0)
        freed = (int64_t)info.st_blocks * 512;
    close(fd);
    return freed;
}

int ot_store_remove_stale(const char *path) {
    char text[OT_STORE_SIZE_BYTES];
    int64_t freed = 0;
    int patience = MOST_NAPS;
    DIR *dir = opendir(path);
    if (!dir)
        return ot_fail_errno(OT_E_IO, errno, "%s: the directory for the NVMe store cannot be read", path);
    for (struct dirent *entry; (entry = readdir(dir));)
        freed += remove_if_stale(dirfd(dir), entry->d_name, &patience);
    closedir(dir);
    if (freed > 0)
        ot_log(OT_LOG_INFO, "%s: removed %s of files that a killed run left behind", path,
               ot_store_print_size(text, freed));
    return 0;
}

/* ---- limits ---- */

/* The usable part of the free space. 5 % stay free, but at least 1 GiB and at most a quarter: a full file
 * system is slow, and others use it too. */
static int64_t less_reserve(int64_t room) {
    int64_t reserve = room / 20 > (1 << 30) ? room / 20 : 1 << 30;
    return room - ot_min(reserve, room / 4);
}

static int look_at(const char *path, dev_t *device, int64_t *room) {
    struct stat info;
    if (stat(path, &info) < 0)
        return ot_fail_errno(OT_E_IO, errno,
                             "%s: make this directory first, or name another for the NVMe store", path);
    if (!S_ISDIR(info.st_mode))
        return ot_fail(OT_E_IO, "%s: is a file; the NVMe store needs a directory", path);
    OT_TRY(ot_store_remove_stale(path));
    *device = info.st_dev;
    *room = ot_io_system.free_bytes(NULL, path);
    if (*room < 0)
        return ot_fail_errno(OT_E_IO, (int)-*room, "%s: cannot find out how much space is free", path);
    return 0;
}

int ot_store_find_limits(const struct ot_store_dir *dirs, int n, int64_t *limits) {
    dev_t devices[OT_STORE_MAX_DIRS];
    int64_t room[OT_STORE_MAX_DIRS];
    assert(n <= OT_STORE_MAX_DIRS);
    for (int i = 0; i < n; i++)
        OT_TRY(look_at(dirs[i].path, &devices[i], &room[i]));
    for (int i = 0; i < n; i++) {
        int64_t claimed = 0, sharing = 0;
        for (int k = 0; k < n; k++)
            if (devices[k] == devices[i]) {
                claimed += dirs[k].bytes < (size_t)MOST_LIMIT ? (int64_t)dirs[k].bytes : MOST_LIMIT;
                sharing += dirs[k].bytes == 0;
            }
        int64_t left = less_reserve(room[i]) - claimed;
        if (dirs[i].bytes == 0)
            limits[i] = left > 0 ? left / sharing : 0;
        else
            limits[i] = dirs[i].bytes < (size_t)MOST_LIMIT ? (int64_t)dirs[i].bytes : MOST_LIMIT;
    }
    return 0;
}

/* ---- files ---- */

/* Makes a file with a new name and locks it. Before it is locked, another run may take it for a stale file
 * and unlink it: then the next name is tried. If the file system has no locks, other runs cannot remove its
 * files. */
static int make_locked(const char *dir, const struct ot_io_calls *calls, struct ot_store_file *file) {
    static _Atomic unsigned next_number;
    for (;;) {
        free(file->path);
        file->path = NULL;
        OT_TRY(ot_string_format(&file->path, "%s/%s%ld.%u%s", dir, file_prefix, (long)getpid(),
                                atomic_fetch_add(&next_number, 1), file_suffix));
        int fd =
            ot_open_direct(calls, AT_FDCWD, file->path, O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0600, &file->direct);
        if (fd == -EEXIST)
            continue;
        if (fd < 0)
            return ot_fail_errno(OT_E_IO, -fd, "%s: cannot make a file for the NVMe store here", dir);
        struct stat info;
        bool locked = flock(fd, LOCK_EX | LOCK_NB) == 0;
        if ((locked || errno != EWOULDBLOCK) && fstat(fd, &info) == 0 && info.st_nlink > 0) {
            file->fd = fd;
            return 0;
        }
        close(fd);
    }
}

static int refuse_space(const char *dir, int64_t bytes, const struct ot_io_calls *calls, int error) {
    char want[OT_STORE_SIZE_BYTES], have[OT_STORE_SIZE_BYTES] = "an unknown amount";
    int64_t room = calls->free_bytes(calls->context, dir);
    if (room >= 0)
        ot_store_print_size(have, room);
    return ot_fail(OT_E_IO,
                   "%s: cannot reserve %s for the NVMe store (%s), %s is free: make room there, or name "
                   "another directory",
                   dir, ot_store_print_size(want, bytes), strerror(error), have);
}

/* Reserves the space of a file. If the file system cannot reserve space, checks that enough is free. */
static int reserve(const char *dir, int64_t bytes, const struct ot_io_calls *calls,
                   struct ot_store_file *file) {
    if (bytes == 0)
        return 0;
    int error = ot_allocate(calls, file->fd, 0, 0, bytes);
    file->reserved = error == 0;
    if (error == 0)
        return 0;
    if (error != -EOPNOTSUPP && error != -ENOSYS)
        return refuse_space(dir, bytes, calls, -error);
    if (calls->free_bytes(calls->context, dir) < bytes)
        return refuse_space(dir, bytes, calls, ENOSPC);
    error = calls->truncate(calls->context, file->fd, bytes);
    if (error < 0)
        return refuse_space(dir, bytes, calls, -error);
    return 0;
}

/* Switches O_DIRECT off if the first write with it fails. Some file systems accept O_DIRECT in open and
 * refuse it with a transfer, or want blocks of more than 4 KiB. */
static void try_direct(const struct ot_io_calls *calls, struct ot_store_file *file) {
    static const _Alignas(OT_STORE_ALIGN) char zeros[OT_STORE_ALIGN];
    if (!file->direct || file->bytes == 0 ||
        calls->pwrite(calls->context, file->fd, zeros, sizeof zeros, 0) != -EINVAL)
        return;
    file->direct = !ot_set_direct(file->fd, false);
}

int ot_store_make_file(const char *dir, int64_t bytes, const struct ot_io_calls *calls,
                       struct ot_store_file *out) {
    *out = (struct ot_store_file){.fd = -1, .bytes = bytes};
    int rc = ot_string_format(&out->dir, "%s", dir);
    if (rc == 0)
        rc = make_locked(dir, calls, out);
    if (rc == 0)
        rc = reserve(dir, bytes, calls, out);
    if (rc == 0) {
        try_direct(calls, out);
        return 0;
    }
    ot_store_remove_file(out);
    return rc;
}

bool ot_store_unlink_file(const struct ot_store_file *file) {
    struct stat info;
    if (file->fd < 0)
        return false;
    unlink(file->path);
    return fstat(file->fd, &info) == 0 && info.st_nlink > 0;
}

void ot_store_close_file(struct ot_store_file *file) {
    if (file->fd >= 0)
        close(file->fd);
    free(file->path);
    free(file->dir);
    *file = (struct ot_store_file){.fd = -1};
}

void ot_store_remove_file(struct ot_store_file *file) {
    ot_store_unlink_file(file);
    ot_store_close_file(file);
}

void ot_store_drop_cache(const struct ot_store_file *file, int64_t offset, int64_t bytes) {
    posix_fadvise(file->fd, offset, bytes, POSIX_FADV_DONTNEED);
}
