#include "src/base/grow_map.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/minmax.h"
#include "src/base/text.h"

enum { PAGE = 4096, MOST_AHEAD = 64 << 20 };

static int take_file(struct ot_grow_map *map, int file, const char *path) {
    int error = errno;
    *map = (struct ot_grow_map){.file = file, .is_file = file >= 0};
    if (file < 0)
        return ot_fail_errno(OT_E_IO, error, "%s: cannot make the file", path);
    return ot_string_format(&map->path, "%s", path);
}

int ot_grow_map_create(const char *path, struct ot_grow_map *map) {
    return take_file(map, open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666), path);
}

int ot_grow_map_create_unnamed(const char *dir, struct ot_grow_map *map) {
    char *name = NULL;
    int file = open(dir, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    if (file < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) { /* a file system without such files */
        OT_TRY(ot_string_format(&name, "%s/rows-XXXXXX", dir));
        file = mkostemp(name, O_CLOEXEC);
        if (file >= 0)
            unlink(name);
        free(name);
    }
    return take_file(map, file, dir);
}

int ot_grow_map_open(const char *path, size_t bytes, struct ot_grow_map *map) {
    struct stat found;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); /* a pipe must not block */
    *map = (struct ot_grow_map){.file = file, .is_file = file >= 0, .is_read_only = true};
    if (file < 0 || fstat(file, &found) < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot open", path);
    if (!S_ISREG(found.st_mode) || (uint64_t)found.st_size != bytes)
        return ot_fail(OT_E_INPUT, "%s: has not the %zu bytes that it must have", path, bytes);
    OT_TRY(ot_string_format(&map->path, "%s", path));
    if (bytes == 0)
        return 0;
    void *data = mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, 0);
    if (data == MAP_FAILED)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot map", path);
    map->data = data;
    map->bytes = map->capacity = bytes;
    return 0;
}

/* Grows by half, for a file by MOST_AHEAD at most, which is disk space. */
static size_t next_capacity(const struct ot_grow_map *map, size_t needed) {
    size_t ahead = map->capacity / 2;
    if (map->is_file)
        ahead = ot_min(ahead, (size_t)MOST_AHEAD);
    size_t capacity = ot_max(needed, map->capacity + ahead);
    return capacity > SIZE_MAX - PAGE ? 0 : (capacity + PAGE - 1) / PAGE * PAGE;
}

static int grow(struct ot_grow_map *map, size_t needed) {
    size_t capacity = next_capacity(map, needed);
    const int sharing = map->is_file ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    if (capacity && map->is_file) {
        int rc = ot_allocate(&ot_io_system, map->file, 0, (int64_t)map->capacity,
                             (int64_t)(capacity - map->capacity));
        if (rc == -EOPNOTSUPP)
            rc = ot_io_system.truncate(ot_io_system.context, map->file, (off_t)capacity);
        if (rc < 0)
            return ot_fail_errno(OT_E_IO, -rc, "%s: no space for %zu bytes", map->path,
                                 capacity - map->capacity);
    }
    void *data = !capacity       ? MAP_FAILED
                 : map->capacity ? mremap(map->data, map->capacity, capacity, MREMAP_MAYMOVE)
                                 : mmap(NULL, capacity, PROT_READ | PROT_WRITE, sharing,
                                        map->is_file ? map->file : -1, 0);
    if (data == MAP_FAILED)
        return ot_fail(OT_E_BUDGET, "no memory for %zu bytes", needed);
    if (map->is_file) /* what is there stays in the file, and leaves this process */
        (void)madvise(data, map->bytes / PAGE * PAGE, MADV_DONTNEED);
    map->data = data;
    map->capacity = capacity;
    return 0;
}

int ot_grow_map_add(struct ot_grow_map *map, const void *data, size_t bytes) {
    if (bytes > SIZE_MAX - map->bytes)
        return ot_fail(OT_E_BUDGET, "no memory for %zu bytes", bytes);
    if (map->bytes + bytes > map->capacity)
        OT_TRY(grow(map, map->bytes + bytes));
    if (data && bytes)
        memcpy(map->data + map->bytes, data, bytes);
    map->bytes += bytes;
    return 0;
}

int ot_grow_map_flush(struct ot_grow_map *map) {
    if (!map->is_file || map->is_read_only)
        return 0;
    int rc = map->capacity ? msync(map->data, map->capacity, MS_SYNC) : 0;
    if (rc < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot write", map->path);
    rc = ot_io_system.truncate(ot_io_system.context, map->file, (off_t)map->bytes);
    if (rc == 0)
        rc = ot_io_system.fsync(ot_io_system.context, map->file);
    return rc < 0 ? ot_fail_errno(OT_E_IO, -rc, "%s: cannot write", map->path) : 0;
}

void ot_grow_map_expect_random(const struct ot_grow_map *map) {
    if (map->is_file && map->capacity > 0)
        (void)madvise(map->data, map->capacity, MADV_RANDOM);
}

void ot_grow_map_expect_order(const struct ot_grow_map *map) {
    if (map->is_file && map->capacity > 0)
        (void)madvise(map->data, map->capacity, MADV_NORMAL);
}

void ot_grow_map_read_ahead(const struct ot_grow_map *map, size_t at, size_t bytes) {
    at = at / PAGE * PAGE;
    if (map->is_file && at < map->bytes)
        (void)madvise(map->data + at, ot_min(bytes, map->bytes - at), MADV_WILLNEED);
}

size_t ot_grow_map_memory(const struct ot_grow_map *map) {
    return map->is_file ? 0 : map->bytes;
}

void ot_grow_map_close(struct ot_grow_map *map) {
    if (map->data)
        munmap(map->data, map->capacity);
    if (map->is_file)
        close(map->file);
    free(map->path);
    *map = (struct ot_grow_map){0};
}
