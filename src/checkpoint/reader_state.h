/* What the parts of the reader share: open (reader.c), the stream (reader_stream.c), ranges
 * (reader_master.c). */
#ifndef OT_CHECKPOINT_READER_STATE_H
#define OT_CHECKPOINT_READER_STATE_H

#include "src/checkpoint/reader.h"

struct ot_checkpoint {
    char *dir;
    struct ot_manifest manifest;
    struct ot_checkpoint_record record;
    int *fds;            /* of the manifest's files, buffered; -1: not open yet */
    int64_t *span_begin; /* of each span: where it begins within its part */
    int64_t bytes;       /* of all spans */
};

/* Fails with OT_E_INPUT: "DIR/NAME: damaged: ...". */
int ot_checkpoint_fail_damaged(const struct ot_checkpoint *checkpoint, const char *name, const char *format,
                               ...) __attribute__((format(printf, 3, 4), cold));
/* The same for bytes of a span; crc: what they have. */
int ot_checkpoint_fail_span(const struct ot_checkpoint *checkpoint, const struct ot_store_span *span,
                            uint32_t crc);
/* Fails with what a read of a span's bytes returned: -errno, 0: the file ends there, else too few. */
int ot_checkpoint_fail_read(const struct ot_checkpoint *checkpoint, const struct ot_store_span *span,
                            int64_t offset, int64_t result);

/* The span that has byte `at` of the part. */
int64_t ot_checkpoint_find_span(const struct ot_checkpoint *checkpoint, const struct ot_manifest_part *part,
                                int64_t at);

#endif
