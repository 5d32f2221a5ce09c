/* The system calls on files that a full or broken disk makes fail, and those that change what a directory
 * holds: the seam at which tests inject faults (short transfers, EIO, ENOSPC, EINTR, refused set-up) or end
 * the process.
 *
 * Every call does what the system call of its name does, and returns -errno where that fails. Several threads
 * call at once.
 */
#ifndef OT_BASE_IO_CALLS_H
#define OT_BASE_IO_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct ot_io_calls {
    void *context;
    /* files */
    int (*open)(void *context, int dir_fd, const char *path, int flags, mode_t mode); /* openat */
    int (*allocate)(void *context, int fd, int mode, off_t offset, off_t bytes);      /* fallocate */
    int (*truncate)(void *context, int fd, off_t bytes);
    int (*fsync)(void *context, int fd);
    int (*fdatasync)(void *context, int fd);
    ssize_t (*write)(void *context, int fd, const void *data, size_t bytes);
    ssize_t (*pread)(void *context, int fd, void *memory, size_t bytes, off_t offset);
    ssize_t (*pwrite)(void *context, int fd, const void *memory, size_t bytes, off_t offset);
    /* directories */
    int (*make_dir)(void *context, int dir_fd, const char *name); /* mkdirat */
    int (*rename)(void *context, int dir_fd, const char *from, const char *to);
    int (*exchange)(void *context, const char *a, const char *b);          /* renameat2(RENAME_EXCHANGE) */
    int (*remove)(void *context, int dir_fd, const char *name, int flags); /* unlinkat */
    int64_t (*free_bytes)(void *context, const char *path); /* statvfs: for a user without privileges */
    /* io_uring: whether a ring may be set up with these flags and whether files, or buffers, may be
     * registered (0 or -errno), and what the result of a completion becomes. */
    int (*ring_setup)(void *context, unsigned flags);
    int (*ring_register)(void *context, bool buffers);
    int (*ring_result)(void *context, bool write, int result);
    /* Sees each I/O as the system gets it: for a ring when its entry is filled in, for the pool when a thread
     * takes it. The calls of one engine do not overlap, so they show its order. NULL: nobody looks. */
    void (*begin)(void *context, bool write, int fd, size_t bytes, off_t offset);
};
extern const struct ot_io_calls ot_io_system;

#endif
