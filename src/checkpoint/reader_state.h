/* Declarations that the files of the reader share: open (reader.c), streaming (reader_stream.c), ranges of
 * weights (reader_master.c), spans read ahead (reader.c). */
#ifndef OT_CHECKPOINT_READER_STATE_H
#define OT_CHECKPOINT_READER_STATE_H

#include "src/checkpoint/reader.h"

struct ot_checkpoint {
    char *dir;
    struct ot_manifest manifest;
    struct ot_checkpoint_record record;
    int *fds;            /* one for each file of the manifest, without O_DIRECT; -1: not here */
    int64_t *span_begin; /* [n_spans]: first byte of the span within its segment */
    int64_t bytes;       /* sum over all spans */
};

/* The next four functions give the error the cause OT_CAUSE_CHECKPOINT. */

/* Fails with OT_E_INPUT: "DIR/NAME: damaged: ...". */
int ot_checkpoint_fail_damaged(const struct ot_checkpoint *checkpoint, const char *name, const char *format,
                               ...) __attribute__((format(printf, 3, 4), cold));
/* Fails with OT_E_INPUT because the bytes of a span have the CRC-32 `crc`, not the one in the manifest. */
int ot_checkpoint_fail_span(const struct ot_checkpoint *checkpoint, const struct ot_store_span *span,
                            uint32_t crc);
/* Fails with OT_E_INPUT because another host has the file. */
int ot_checkpoint_fail_missing(const struct ot_checkpoint *checkpoint, int file);
/* Fails because a read at `offset` of the span's file returned `result`: -errno; 0 (end of file: damaged,
 * OT_E_INPUT); more than 0: too few bytes again and again. */
int ot_checkpoint_fail_read(const struct ot_checkpoint *checkpoint, const struct ot_store_span *span,
                            int64_t offset, int64_t result);

/* Index of the span that holds byte `at` of the segment. */
int64_t ot_checkpoint_find_span(const struct ot_checkpoint *checkpoint,
                                const struct ot_manifest_segment *segment, int64_t at);

/* ---- spans read ahead ---- */

struct ot_span_reader;

/* order [n]: the spans that will be read, in about this order; it outlives the reader. calls NULL: the
 * system's. One thread uses the reader, and nobody else reads the checkpoint meanwhile. Errors: OT_E_BUDGET,
 * OT_E_IO. *out must be closed also after an error. */
int ot_span_reader_open(struct ot_checkpoint *checkpoint, const int64_t *order, int64_t n,
                        enum ot_io_choice io_engine, const struct ot_io_calls *calls,
                        struct ot_span_reader **out);
void ot_span_reader_close(struct ot_span_reader *reader); /* NULL is fine */
/* Returns the bytes of a span of the order, with the checksum of the manifest. They are valid until the next
 * call. A span that lies far from the last one makes the reader begin anew there. Errors: OT_E_INPUT
 * (damaged), OT_E_IO. */
int ot_span_reader_get(struct ot_span_reader *reader, int64_t span, const char **bytes);

#endif
