#include "src/base/file_io.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "src/base/minmax.h"

int ot_write_all(const struct ot_io_calls *calls, int fd, const void *data, size_t bytes) {
    const char *from = data;
    calls = calls ? calls : &ot_io_system;
    while (bytes > 0) {
        ssize_t n = calls->write(calls->context, fd, from, bytes);
        struct pollfd ready = {.fd = fd, .events = POLLOUT};
        if (n == -EAGAIN)
            (void)poll(&ready, 1, -1);
        else if (n == 0)
            return -ENOSPC;
        else if (n < 0 && n != -EINTR)
            return (int)n;
        from += ot_max(n, 0);
        bytes -= n > 0 ? (size_t)n : 0;
    }
    return 0;
}

int ot_write_at(const struct ot_io_calls *calls, int fd, const void *data, size_t bytes, int64_t offset) {
    const char *from = data;
    calls = calls ? calls : &ot_io_system;
    while (bytes > 0) {
        ssize_t n = calls->pwrite(calls->context, fd, from, bytes, (off_t)offset);
        if (n == 0)
            return -ENOSPC;
        if (n < 0 && n != -EINTR)
            return (int)n;
        from += ot_max(n, 0);
        offset += ot_max(n, 0);
        bytes -= n > 0 ? (size_t)n : 0;
    }
    return 0;
}

int64_t ot_read_at(int fd, void *memory, size_t bytes, int64_t offset) {
    size_t done = 0;
    while (done < bytes) {
        ssize_t n = pread(fd, (char *)memory + done, bytes - done, (off_t)offset + (off_t)done);
        if (n < 0 && errno != EINTR)
            return -errno;
        if (n == 0)
            break;
        done += n > 0 ? (size_t)n : 0;
    }
    return (int64_t)done;
}

int ot_allocate(const struct ot_io_calls *calls, int fd, int mode, int64_t offset, int64_t bytes) {
    int rc;
    calls = calls ? calls : &ot_io_system;
    do
        rc = calls->allocate(calls->context, fd, mode, (off_t)offset, (off_t)bytes);
    while (rc == -EINTR);
    return rc;
}

int ot_open_direct(const struct ot_io_calls *calls, int dir_fd, const char *path, int flags, mode_t mode,
                   bool *direct) {
    flags |= O_CREAT | O_EXCL;
    int fd = calls->open(calls->context, dir_fd, path, flags | O_DIRECT, mode);
    *direct = fd >= 0;
    if (fd == -EINVAL) /* some file systems have created the file before they refuse O_DIRECT */
        fd = calls->open(calls->context, dir_fd, path, flags & ~O_EXCL, mode);
    return fd;
}

bool ot_set_direct(int fd, bool direct) {
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}
