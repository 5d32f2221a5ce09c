/* The calls to the system that fail when a disk is full or broken, and those that change what a directory
 * holds, as a table: tests put their own in its place, which fail or end the process. */
#ifndef OT_FILES_FILE_OPS_H
#define OT_FILES_FILE_OPS_H

#include <stdint.h>
#include <sys/types.h>

struct ot_file_ops { /* each as the system call of its name: -1 and errno on failure */
    ssize_t (*write)(int fd, const void *data, size_t bytes);
    int (*fsync)(int fd);
    int (*reserve)(int fd, off_t bytes);           /* fallocate; EOPNOTSUPP where the file system cannot */
    int (*exchange)(const char *a, const char *b); /* renameat2(RENAME_EXCHANGE); EINVAL or ENOSYS likewise */
    int64_t (*free_bytes)(const char *path);       /* for an unprivileged user, by statvfs */
    int (*open_at)(int dir_fd, const char *name, int flags, mode_t mode);
    int (*make_dir)(int dir_fd, const char *name); /* mkdirat */
    int (*truncate)(int fd, off_t bytes);
    int (*rename)(int dir_fd, const char *from, const char *to); /* within a directory */
    int (*remove)(int dir_fd, const char *name, int flags);      /* unlinkat */
};
extern const struct ot_file_ops ot_file_ops_system;

#endif
