/* Files: the system calls that tests replace, reading and writing whole buffers, mapped files, and paths.
 *
 * Whole buffers: loops around calls that transfer fewer bytes than asked or are interrupted. Their errors are
 * -errno; calls NULL: those of the system. An I/O engine has its own loop (offload/store/io_engine.h).
 */
#ifndef OT_BASE_FILE_IO_H
#define OT_BASE_FILE_IO_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* ---- system calls ---- */

/* A table of the system calls that fail on a full or broken disk or that change a directory. Tests replace
 * entries to inject faults (short transfers, EIO, ENOSPC, EINTR, refused set-up) or to end the process.
 *
 * Every entry does the same as the system call of its name, but returns -errno if it fails. Several threads
 * may call an entry at the same time.
 */

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

/* ---- whole buffers ---- */

/* Writes all bytes to a file, pipe or terminal. Waits if another process has made the pipe non-blocking. */
int ot_write_all(const struct ot_io_calls *calls, int fd, const void *data, size_t bytes);
/* Writes all bytes to a file, from the offset on. */
int ot_write_at(const struct ot_io_calls *calls, int fd, const void *data, size_t bytes, int64_t offset);
/* Returns the number of bytes read; fewer than `bytes` only if the file ends there. */
int64_t ot_read_at(int fd, void *memory, size_t bytes, int64_t offset);
/* fallocate, repeated if a signal interrupts it. */
int ot_allocate(const struct ot_io_calls *calls, int fd, int mode, int64_t offset, int64_t bytes);
/* Opens a new file (O_EXCL) with O_DIRECT, or without if the file system does not support it. Returns the
 * descriptor; *direct says which. */
int ot_open_direct(const struct ot_io_calls *calls, int dir_fd, const char *path, int flags, mode_t mode,
                   bool *direct);
/* Turns O_DIRECT on or off. False: the file system does not support it. */
bool ot_set_direct(int fd, bool direct);

/* ---- small files ---- */

/* Reads small files whole. */

/* The caller frees *text, which has no NUL at its end; NULL after an error. Errors: OT_E_IO (cannot read),
 * OT_E_INPUT (more than max_bytes), OT_E_BUDGET. */
int ot_read_file(const char *path, size_t max_bytes, char **text, size_t *bytes);

/* Writes the file under the name PATH.partial, and then renames it, so that a reader never sees a half of it.
 * Errors: OT_E_IO, OT_E_BUDGET. */
int ot_replace_file(const char *path, const void *data, size_t bytes);

/* ---- mapped files ---- */

/* A file that is mapped read-only into memory, as a whole, for files of weights.
 *
 * If the file shrinks or the disk fails after open, touching the memory would raise SIGBUS. So callers first
 * call ot_mapped_file_fetch() on the range: it reads the pages in and turns both cases into an error. Only a
 * truncation between fetch and use can still raise SIGBUS. Replacing the file by rename, as every downloader
 * does, cannot. An open file never changes: any number of threads may read it.
 */

struct ot_mapped_file {
    char *path;
    int fd;
    const char *data; /* NULL: the file is empty, or not mapped yet */
    size_t bytes;
};

/* Opens the file and reads its size, without mapping it. On an error the caller still calls close. Errors:
 * OT_E_IO (cannot open), OT_E_INPUT (not a regular file), OT_E_BUDGET. */
int ot_mapped_file_open(const char *path, struct ot_mapped_file *file);
/* Maps the whole file, which must have a byte at least. Errors: OT_E_IO. */
int ot_mapped_file_map(struct ot_mapped_file *file);
/* A file that is zeroed, or not open, is fine. */
void ot_mapped_file_close(struct ot_mapped_file *file);

/* Reads bytes into memory of the caller, without the map. Errors: OT_E_IO, OT_E_INPUT (the file ends before
 * at + bytes). */
int ot_mapped_file_read(const struct ot_mapped_file *file, void *to, size_t bytes, size_t at);

/* Blocks until [data, data + bytes), which must be within the file, is in memory. Errors: OT_E_IO. */
int ot_mapped_file_fetch(const struct ot_mapped_file *file, const void *data, size_t bytes);
/* Starts reading ahead and returns at once. A hint, which cannot fail. */
void ot_mapped_file_prefetch(const struct ot_mapped_file *file, const void *data, size_t bytes);
/* Removes the range from this process's memory. The page cache may keep it. */
void ot_mapped_file_release(const void *data, size_t bytes);

/* ---- paths ---- */

/* Paths of files and directories that may not exist yet. */

/* Writes the path itself if it exists, else its nearest existing ancestor; "." and "/" always exist. False:
 * the path is too long, or no permission to search it. */
bool ot_path_find_nearest(const char *path, char nearest[PATH_MAX]);

/* True if both paths exist and lead to the same file or directory. */
bool ot_path_is_same(const char *a, const char *b);

/* True if the path ends with the extension, such as ".gguf", after at least one other character. */
bool ot_path_has_extension(const char *path, const char *extension);

/* Makes the directory `path` and its missing ancestors. Changes `path` while it works, and restores it.
 * n_made (may be NULL): how many directories this call made, also if it fails. Returns 0 or -errno. */
int ot_path_make_dirs(char *path, int *n_made);

#endif
