/* The bytes of a file of rows: as they are, or unpacked from gzip (zlib) or zstd (libzstd).
 *
 * The first bytes decide. A file may have several gzip members or zstd frames, which are one text. A reader
 * takes a buffer at a time, so memory does not depend on what a file unpacks to; only a row's length does
 * (OT_SOURCE_MAX_ROW_BYTES), and the window of zstd, which is 128 MB at most. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/data/source_state.h"

int ot_source_no_memory(const struct ot_source *s) {
    return ot_fail(OT_E_BUDGET, "%s: no memory to unpack the file", s->path);
}

int ot_source_is_cut(const struct ot_source *s, const char *kind) {
    return ot_fail(OT_E_INPUT,
                   "%s: the %s stream ends too early, after line %lld: the file is truncated; copy it again",
                   s->path, kind, (long long)s->line);
}

int ot_source_is_damaged(const struct ot_source *s, const char *kind, const char *reason) {
    return ot_fail(OT_E_INPUT, "%s: the %s stream is damaged after line %lld (%s); copy the file again",
                   s->path, kind, (long long)s->line, reason ? reason : "no reason given");
}

/* Reads some bytes of the file. Returns their number, 0 at its end. */
static int64_t read_some(struct ot_source *s, unsigned char *to, size_t room) {
    for (;;) {
        ssize_t n = read(s->fd, to, room);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return ot_fail_errno(OT_E_IO, errno, "%s: cannot read the data", s->path);
        s->bytes_read += n;
        return n;
    }
}

int ot_source_read_packed(struct ot_source *s) {
    if (s->packed_begin < s->packed_end)
        return 1;
    int64_t n = read_some(s, s->packed, s->buffer_bytes);
    if (n < 0)
        return (int)n;
    s->packed_begin = 0;
    s->packed_end = (size_t)n;
    return n > 0;
}

/* ---- gzip ---- */

static int inflate_failed(const struct ot_source *s, int code) {
    return code == Z_MEM_ERROR ? ot_source_no_memory(s) : ot_source_is_damaged(s, "gzip", s->gzip.msg);
}

/* Called between two gzip members. Returns 1 if another member begins, 0 at the end of the file. Zeros at the
 * end are padding. Anything else is a member, even if a damaged one. */
static int begin_member(struct ot_source *s) {
    for (;;) {
        int rc = ot_source_read_packed(s);
        if (rc <= 0)
            return rc;
        if (s->packed[s->packed_begin] != 0)
            break;
        s->packed_begin++;
    }
    s->in_member = true;
    return inflateReset(&s->gzip) == Z_OK ? 1 : inflate_failed(s, Z_STREAM_ERROR);
}

/* Unpacks until the buffer is full or the compressed bytes at hand are used. */
static int64_t unpack_gzip(struct ot_source *s) {
    s->gzip.next_out = s->buffer;
    s->gzip.avail_out = s->buffer_bytes;
    while (s->gzip.avail_out == s->buffer_bytes) {
        int rc = s->in_member ? 1 : begin_member(s);
        if (rc <= 0)
            return rc;
        rc = ot_source_read_packed(s);
        if (rc <= 0)
            return rc < 0 ? rc : ot_source_is_cut(s, "gzip");
        s->gzip.next_in = s->packed + s->packed_begin;
        s->gzip.avail_in = (unsigned)(s->packed_end - s->packed_begin);
        int code = inflate(&s->gzip, Z_NO_FLUSH);
        s->packed_begin = s->packed_end - s->gzip.avail_in;
        if (code != Z_OK && code != Z_STREAM_END)
            return inflate_failed(s, code);
        s->in_member = code == Z_OK;
    }
    return s->buffer_bytes - s->gzip.avail_out;
}

static int begin_gzip(struct ot_source *s) {
    if (inflateInit2(&s->gzip, 15 + 16) != Z_OK) /* 16: accept gzip only */
        return ot_source_no_memory(s);
    s->packing = PACKED_GZIP;
    s->in_member = true;
    return 0;
}

/* ---- the buffer ---- */

/* Fills the empty buffer. Returns 1, or 0 at the end of the file. */
static int fill_buffer(struct ot_source *s) {
    int64_t n = s->packing == PACKED_GZIP   ? unpack_gzip(s)
                : s->packing == PACKED_ZSTD ? ot_source_zstd_unpack(s)
                                            : read_some(s, s->buffer, s->buffer_bytes);
    if (n < 0)
        return (int)n;
    s->begin = 0;
    s->end = (size_t)n;
    return n > 0;
}

/* A file of zstd may begin with a skippable frame, as pzstd writes it. */
static bool is_zstd(const unsigned char *bytes) {
    return memcmp(bytes, "\x28\xb5\x2f\xfd", 4) == 0 ||
           (bytes[0] >> 4 == 5 && memcmp(bytes + 1, "\x2a\x4d\x18", 3) == 0);
}

int ot_source_bytes_begin(struct ot_source *s) {
    enum { MAGIC_BYTES = 4 };
    while (s->end < MAGIC_BYTES) { /* a pipe may return a single byte */
        int64_t n = read_some(s, s->buffer + s->end, s->buffer_bytes - s->end);
        if (n < 0)
            return (int)n;
        if (n == 0)
            break;
        s->end += (size_t)n;
    }
    bool gzip = s->end >= 2 && s->buffer[0] == 0x1f && s->buffer[1] == 0x8b;
    if (!gzip && (s->end < MAGIC_BYTES || !is_zstd(s->buffer)))
        return 0;
    s->packed = s->buffer;
    s->packed_end = s->end;
    s->end = 0;
    s->buffer = malloc(s->buffer_bytes);
    if (!s->buffer)
        return ot_source_no_memory(s);
    OT_TRY(gzip ? begin_gzip(s) : ot_source_zstd_begin(s));
    int rc = fill_buffer(s);
    return rc < 0 ? rc : 0;
}

void ot_source_bytes_end(struct ot_source *s) {
    if (s->packing == PACKED_GZIP)
        inflateEnd(&s->gzip);
    ot_source_zstd_end(s);
    free(s->packed);
    free(s->buffer);
}

int ot_source_peek(struct ot_source *s, int *byte) {
    *byte = -1;
    if (s->begin == s->end) {
        int rc = fill_buffer(s);
        if (rc <= 0)
            return rc;
    }
    *byte = s->buffer[s->begin];
    return 0;
}

int64_t ot_source_bytes_read(const struct ot_source *s) {
    return s->bytes_read - (int64_t)(s->packed_end - s->packed_begin);
}
