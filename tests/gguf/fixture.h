/* Helpers for the tests of GGUF: raw headers, right or wrong, and files written by the writer. */
#ifndef OT_TESTS_GGUF_FIXTURE_H
#define OT_TESTS_GGUF_FIXTURE_H

#include "src/gguf/writer.h"
#include "tests/support/check.h"

/* Bytes of a file that is put together by hand. Zero it first. */
struct raw {
    unsigned char bytes[4096];
    size_t n;
};
void raw_number(struct raw *raw, uint64_t value, int bytes);
void raw_string(struct raw *raw, const char *text); /* with its length */
void raw_begin(struct raw *raw, uint32_t version, uint64_t n_tensors, uint64_t n_keys);
void raw_u32_key(struct raw *raw, const char *key, uint32_t value);
/* A tensor of one dimension. */
void raw_tensor(struct raw *raw, const char *name, uint64_t values, uint32_t type, uint64_t offset);
void raw_pad(struct raw *raw); /* to a multiple of 32 */

/* FOLDER/NAME; static, overwritten by the next call. */
const char *file_in(const char *folder, const char *name);

/* Opens a writer to a sink whose entries are each one piece. */
struct sink;
void writer_open(const struct ot_gguf_keys *keys, const struct ot_gguf_entry *entries, int64_t n,
                 struct sink *sink, struct ot_gguf_writer **writer);

/* Collects the bytes of a writer. */
struct sink {
    unsigned char *bytes;
    size_t n;                     /* the end of those that it has */
    size_t written;               /* their number: n, if each was written once */
    size_t stop_at;               /* > 0: fails with OT_E_IO once it has as many bytes */
    struct ot_gguf_piece *pieces; /* of writer_open */
};
void sink_free(struct sink *sink);
int sink_put(void *context, int64_t at, const void *data, size_t bytes);

#endif
