/* A build without libzstd reads no .zst. */
#include "src/base/error.h"
#include "src/data/source_state.h"

int ot_source_zstd_begin(struct ot_source *s) {
    return ot_fail(OT_E_USAGE,
                   "%s: this is a zstd file, and this build has no libzstd; unpack it with zstd -d, or "
                   "install libzstd-dev (scripts/install-packages does) and build again",
                   s->path);
}

void ot_source_zstd_end(struct ot_source *s) {
    (void)s;
}

int64_t ot_source_zstd_unpack(struct ot_source *s) {
    return ot_fail(OT_E_INTERNAL, "%s: this build has no libzstd", s->path);
}
