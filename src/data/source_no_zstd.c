/* A build without libzstd reads no .zst. */
#include "src/base/error.h"
#include "src/data/source_state.h"

static int refuse(const struct ot_source *s) {
    return ot_fail(
        OT_E_USAGE,
        "%s: the file is packed with zstd, and this build has no libzstd; unpack it with zstd -d, or "
        "install libzstd-dev (scripts/install-packages does) and build again",
        s->path);
}

int ot_source_zstd_begin(struct ot_source *s) {
    return refuse(s);
}

void ot_source_zstd_end(struct ot_source *s) {
    (void)s;
}

int64_t ot_source_zstd_unpack(struct ot_source *s) {
    return refuse(s);
}

int ot_source_zstd_unpack_block(const struct ot_source *s, const void *from, size_t n, void *to,
                                size_t bytes) {
    (void)from, (void)n, (void)to, (void)bytes;
    return refuse(s);
}
