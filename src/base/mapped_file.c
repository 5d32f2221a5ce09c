#include "src/base/mapped_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/file_io.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14; older kernels return EINVAL */
#endif

int ot_mapped_file_open(const char *path, struct ot_mapped_file *file) {
    struct stat info;
    *file = (struct ot_mapped_file){.path = strdup(path), .fd = -1};
    if (!file->path)
        return ot_fail(OT_E_BUDGET, "%s: no memory to open the file", path);
    file->fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* a named pipe must not block open */
    if (file->fd < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot open the file", path);
    if (fstat(file->fd, &info) < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot read the file's size", path);
    if (!S_ISREG(info.st_mode))
        return ot_fail(OT_E_INPUT, "%s: not a regular file", path);
    file->bytes = (size_t)info.st_size;
    return 0;
}

int ot_mapped_file_map(struct ot_mapped_file *file) {
    void *data = mmap(NULL, file->bytes, PROT_READ, MAP_SHARED, file->fd, 0);
    if (data == MAP_FAILED)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot map the file's %zu bytes", file->path, file->bytes);
    file->data = data;
    return 0;
}

void ot_mapped_file_close(struct ot_mapped_file *file) {
    if (file->data)
        munmap((void *)file->data, file->bytes);
    if (file->path && file->fd >= 0)
        close(file->fd);
    free(file->path);
    *file = (struct ot_mapped_file){.fd = -1};
}

int ot_mapped_file_read(const struct ot_mapped_file *file, void *to, size_t bytes, size_t at) {
    int64_t n = ot_read_at(file->fd, to, bytes, (int64_t)at);
    if (n < 0)
        return ot_fail_errno(OT_E_IO, (int)-n, "%s: cannot read the file", file->path);
    return n == (int64_t)bytes
               ? 0
               : ot_fail(OT_E_INPUT, "%s: the file became shorter while it was read", file->path);
}

/* Rounds a range outwards to whole pages, as madvise needs. */
static void page_range(const void *data, size_t bytes, void **begin, size_t *length) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)data & ~(page - 1);
    *begin = (void *)start;
    *length = (size_t)((uintptr_t)data + bytes - start);
}

int ot_mapped_file_fetch(const struct ot_mapped_file *file, const void *data, size_t bytes) {
    struct stat info;
    void *begin;
    size_t length;
    int rc;
    if (fstat(file->fd, &info) < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot read the file's size", file->path);
    if ((size_t)info.st_size < file->bytes)
        return ot_fail(OT_E_IO, "%s: the file was cut from %zu to %lld bytes while it was in use", file->path,
                       file->bytes, (long long)info.st_size);
    page_range(data, bytes, &begin, &length);
    do
        rc = madvise(begin, length, MADV_POPULATE_READ);
    while (rc < 0 && errno == EINTR);
    /* EINVAL: a kernel before 5.14. Then the size check above is all we can do. */
    if (rc < 0 && errno != EINVAL)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot read bytes %td to %td", file->path,
                             (const char *)data - file->data,
                             (const char *)data - file->data + (ptrdiff_t)bytes);
    return 0;
}

void ot_mapped_file_prefetch(const struct ot_mapped_file *file, const void *data, size_t bytes) {
    void *begin;
    size_t length;
    const char *end = file->data + file->bytes;
    if ((const char *)data >= end)
        return;
    if (bytes > (size_t)(end - (const char *)data))
        bytes = (size_t)(end - (const char *)data);
    page_range(data, bytes, &begin, &length);
    (void)madvise(begin, length, MADV_WILLNEED);
}

void ot_mapped_file_release(const void *data, size_t bytes) {
    void *begin;
    size_t length;
    page_range(data, bytes, &begin, &length);
    (void)madvise(begin, length, MADV_DONTNEED);
}
