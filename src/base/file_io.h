/* Reading and writing files whole: the loops around system calls that move fewer bytes than asked, or are
 * interrupted. What is moved by an I/O engine has such a loop in offload/store/io_engine.h.
 *
 * Errors are -errno; the caller words them. calls NULL: the system's.
 */
#ifndef OT_BASE_FILE_IO_H
#define OT_BASE_FILE_IO_H

#include "src/base/io_calls.h"

/* Writes all of it, to a file, pipe or terminal. Waits where another process made a pipe non-blocking. */
int ot_write_all(const struct ot_io_calls *calls, int fd, const void *data, size_t bytes);
/* Returns the bytes that it read: fewer than `bytes` where the file ends before. */
int64_t ot_read_at(int fd, void *memory, size_t bytes, int64_t offset);
/* fallocate, begun again where a signal interrupted it. */
int ot_allocate(const struct ot_io_calls *calls, int fd, int mode, int64_t offset, int64_t bytes);
/* Opens a new file (O_EXCL) with O_DIRECT, or without it where the file system has none. Returns its
 * descriptor. */
int ot_open_direct(const struct ot_io_calls *calls, int dir_fd, const char *path, int flags, mode_t mode,
                   bool *direct);
/* Turns O_DIRECT on or off; whether the file system took it. */
bool ot_set_direct(int fd, bool direct);

#endif
