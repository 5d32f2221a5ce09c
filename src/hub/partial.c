#include "src/hub/partial.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/minmax.h"
#include "src/base/text.h"

static const char magic[8] = {'O', 'T', 'P', 'A', 'R', 'T', '1', '\n'};
static const char ending[] = ".offload-train.incomplete";
enum { HEAD_BYTES = 24, ENTRY_BYTES = 4 };

/* Small files are one chunk. Of larger ones, several connections have something to do from the start. A chunk
 * costs a request to the hub, and the hub counts requests. */
static const int64_t least_chunk = 4 << 20, most_chunk = 64 << 20, wanted_chunks = 16;

static int64_t chunk_bytes_of(int64_t bytes) {
    int64_t share = (bytes + wanted_chunks - 1) / wanted_chunks;
    return ot_min(ot_max((share + least_chunk - 1) / least_chunk * least_chunk, least_chunk), most_chunk);
}

static void put_number(unsigned char *at, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++)
        at[i] = (unsigned char)(value >> 8 * i);
}

static uint64_t get_number(const unsigned char *at, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << 8 * i;
    return value;
}

static int cannot_write(const struct ot_partial *p, int error) {
    return ot_fail_errno(OT_E_IO, error, "%s: cannot write", p->path);
}

int64_t ot_partial_size_of(const struct ot_partial *p, size_t chunk) {
    return ot_min(p->chunk_bytes, p->bytes - (int64_t)chunk * p->chunk_bytes);
}

static size_t table_bytes(const struct ot_partial *p) {
    return HEAD_BYTES + ENTRY_BYTES * p->n_chunks;
}

/* False: the file has no table that fits. */
static bool read_table(struct ot_partial *p, unsigned char *table) {
    struct stat info;
    size_t bytes = table_bytes(p);
    if (fstat(p->fd, &info) < 0 || info.st_size != p->bytes + (int64_t)bytes ||
        ot_read_at(p->fd, table, bytes, p->bytes) != (int64_t)bytes ||
        memcmp(table, magic, sizeof magic) != 0 || get_number(table + 8, 8) != (uint64_t)p->chunk_bytes ||
        get_number(table + 16, 8) != p->n_chunks)
        return false;
    for (size_t i = 0; i < p->n_chunks; i++) {
        p->done[i] = (uint32_t)get_number(table + HEAD_BYTES + ENTRY_BYTES * i, ENTRY_BYTES);
        if (p->done[i] > ot_partial_size_of(p, i))
            return false;
    }
    return true;
}

int ot_partial_restart(struct ot_partial *p) {
    size_t bytes = table_bytes(p);
    unsigned char *table = calloc(1, bytes);
    if (!table)
        return ot_fail(OT_E_BUDGET, "no memory for the table of %s", p->path);
    memcpy(table, magic, sizeof magic);
    put_number(table + 8, (uint64_t)p->chunk_bytes, 8);
    put_number(table + 16, p->n_chunks, 8);
    memset(p->done, 0, p->n_chunks * sizeof *p->done);
    int error = ftruncate(p->fd, 0) < 0 ? errno : -ot_write_at(NULL, p->fd, table, bytes, p->bytes);
    free(table);
    return error ? cannot_write(p, error) : 0;
}

int ot_partial_open(const char *blob, int64_t bytes, bool takes_ranges, struct ot_partial *p) {
    *p = (struct ot_partial){.bytes = bytes, .chunk_bytes = takes_ranges ? chunk_bytes_of(bytes) : INT32_MAX};
    if (!takes_ranges && bytes > p->chunk_bytes)
        p->chunk_bytes = UINT32_MAX;
    p->n_chunks = (size_t)((bytes + p->chunk_bytes - 1) / p->chunk_bytes);
    char *path;
    OT_TRY(ot_string_format(&path, "%s%s", blob, ending));
    p->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (p->fd < 0) {
        int rc = ot_fail_errno(OT_E_IO, errno, "%s: cannot write", path);
        free(path);
        return rc;
    }
    p->path = path;
    p->done = calloc(p->n_chunks + 1, sizeof *p->done);
    unsigned char *table = malloc(table_bytes(p));
    if (!p->done || !table) {
        free(table);
        return ot_fail(OT_E_BUDGET, "no memory for the table of %s", path);
    }
    bool is_here = read_table(p, table);
    free(table);
    return is_here ? 0 : ot_partial_restart(p);
}

void ot_partial_close(struct ot_partial *p) {
    if (p->path)
        close(p->fd);
    free(p->path);
    free(p->done);
    *p = (struct ot_partial){0};
}

int64_t ot_partial_here(const struct ot_partial *p) {
    int64_t here = 0;
    for (size_t i = 0; i < p->n_chunks; i++)
        here += p->done[i];
    return here;
}

int64_t ot_partial_space(const char *blob) {
    struct stat info;
    char *path = NULL;
    bool is_here = ot_string_format(&path, "%s%s", blob, ending) == 0 && lstat(path, &info) == 0;
    free(path);
    return is_here ? 512 * (int64_t)info.st_blocks : 0;
}

int ot_partial_put(struct ot_partial *p, size_t chunk, const void *data, size_t bytes) {
    unsigned char entry[ENTRY_BYTES];
    int64_t at = (int64_t)chunk * p->chunk_bytes + p->done[chunk];
    bytes = ot_min(bytes, (size_t)(ot_partial_size_of(p, chunk) - p->done[chunk]));
    int error = -ot_write_at(NULL, p->fd, data, bytes, at);
    if (!error) {
        p->done[chunk] += (uint32_t)bytes;
        put_number(entry, p->done[chunk], ENTRY_BYTES);
        error = -ot_write_at(NULL, p->fd, entry, sizeof entry,
                             p->bytes + HEAD_BYTES + ENTRY_BYTES * (int64_t)chunk);
    }
    return error ? cannot_write(p, error) : 0;
}

int ot_partial_finish(struct ot_partial *p, const char *blob) {
    if (ftruncate(p->fd, p->bytes) < 0 || fdatasync(p->fd) < 0)
        return cannot_write(p, errno);
    if (rename(p->path, blob) < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot rename it to %s", p->path, blob);
    return 0;
}
