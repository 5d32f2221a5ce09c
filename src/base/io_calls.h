/* A table of the system calls that fail on a full or broken disk or that change a directory. Tests replace
 * entries to inject faults (short transfers, EIO, ENOSPC, EINTR, refused set-up) or to end the process.
 *
 * Every entry does the same as the system call of its name, but returns -errno if it fails. Several threads
 * may call an entry at the same time.
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
    int64_t (*free_bytes)(void *context,
                          const char *path); /* statvfs: the space for users without privileges */
    /* io_uring. ring_setup and ring_register return 0, or the -errno with which to refuse a ring with these
     * flags, or the registration of files or buffers. ring_result returns the result to use for a completion.
     */
    int (*ring_setup)(void *context, unsigned flags);
    int (*ring_register)(void *context, bool buffers);
    int (*ring_result)(void *context, bool write, int result);
    /* Called for each I/O when it goes to the system: with a ring, when its entry is filled in; with the
     * pool, when a thread takes it. The calls of one engine do not overlap, so they show its order. NULL: not
     * called. */
    void (*begin)(void *context, bool write, int fd, size_t bytes, off_t offset);
};
extern const struct ot_io_calls ot_io_system;

#endif
