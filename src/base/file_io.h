/* Reads and writes whole buffers: loops around system calls that transfer fewer bytes than asked or are
 * interrupted. Transfers by an I/O engine have their own loop (offload/store/io_engine.h).
 *
 * Errors are -errno; the caller makes the sentence. calls NULL: the calls of the system.
 */
#ifndef OT_BASE_FILE_IO_H
#define OT_BASE_FILE_IO_H

#include "src/base/io_calls.h"

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

#endif
