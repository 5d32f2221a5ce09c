/* Unpacks zstd as a stream. */
#include <zstd.h>
#include <zstd_errors.h>

#include "src/base/error.h"
#include "src/data/source_state.h"

int ot_source_zstd_begin(struct ot_source *s) {
    s->zstd = ZSTD_createDCtx();
    if (!s->zstd)
        return ot_source_no_memory(s);
    s->packing = PACKED_ZSTD;
    return 0;
}

void ot_source_zstd_end(struct ot_source *s) {
    ZSTD_freeDCtx(s->zstd);
}

static int failed(const struct ot_source *s, size_t code) {
    switch (ZSTD_getErrorCode(code)) {
    case ZSTD_error_memory_allocation:
        return ot_source_no_memory(s);
    case ZSTD_error_frameParameter_windowTooLarge:
        return ot_fail(OT_E_INPUT,
                       "%s: the zstd stream has a window of more than 128 MB, which unpacking would hold in "
                       "memory; pack the file again without --long",
                       s->path);
    case ZSTD_error_dictionary_wrong:
        return ot_fail(OT_E_INPUT, "%s: the file was packed with a dictionary; unpack it with zstd -d -D",
                       s->path);
    default:
        return ot_source_is_damaged(s, "zstd", ZSTD_getErrorName(code));
    }
}

int ot_source_zstd_unpack_block(const struct ot_source *s, const void *from, size_t n, void *to,
                                size_t bytes) {
    (void)s;
    return ZSTD_decompress(to, bytes, from, n) == bytes;
}

int64_t ot_source_zstd_unpack(struct ot_source *s) {
    for (;;) {
        ZSTD_outBuffer out = {s->buffer, s->buffer_bytes, 0};
        ZSTD_inBuffer in = {s->packed, s->packed_end, s->packed_begin};
        size_t left = ZSTD_decompressStream(s->zstd, &out, &in);
        if (ZSTD_isError(left))
            return failed(s, left);
        if (out.pos > 0 || in.pos > s->packed_begin) /* else a new frame would count as begun */
            s->in_member = left > 0;
        s->packed_begin = in.pos;
        if (out.pos > 0)
            return (int64_t)out.pos;
        int rc = ot_source_read_packed(s);
        if (rc <= 0)
            return rc < 0 ? rc : s->in_member ? ot_source_is_cut(s, "zstd") : 0;
    }
}
