#include "tests/gguf/fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void raw_number(struct raw *raw, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++)
        raw->bytes[raw->n++] = (unsigned char)(value >> (8 * i));
}

void raw_string(struct raw *raw, const char *text) {
    raw_number(raw, strlen(text), 8);
    memcpy(raw->bytes + raw->n, text, strlen(text));
    raw->n += strlen(text);
}

void raw_begin(struct raw *raw, uint32_t version, uint64_t n_tensors, uint64_t n_keys) {
    *raw = (struct raw){.n = 4};
    memcpy(raw->bytes, "GGUF", 4);
    raw_number(raw, version, 4);
    raw_number(raw, n_tensors, 8);
    raw_number(raw, n_keys, 8);
}

void raw_u32_key(struct raw *raw, const char *key, uint32_t value) {
    raw_string(raw, key);
    raw_number(raw, OT_GGUF_KIND_U32, 4);
    raw_number(raw, value, 4);
}

void raw_tensor(struct raw *raw, const char *name, uint64_t values, uint32_t type, uint64_t offset) {
    raw_string(raw, name);
    raw_number(raw, 1, 4);
    raw_number(raw, values, 8);
    raw_number(raw, type, 4);
    raw_number(raw, offset, 8);
}

void raw_pad(struct raw *raw) {
    while (raw->n % 32)
        raw_number(raw, 0, 1);
}

const char *file_in(const char *folder, const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

void writer_open(const struct ot_gguf_keys *keys, const struct ot_gguf_entry *entries, int64_t n,
                 struct sink *sink, struct ot_gguf_writer **writer) {
    free(sink->pieces);
    sink->pieces = calloc((size_t)n + 1, sizeof *sink->pieces);
    assert_non_null(sink->pieces);
    for (int64_t i = 0; i < n; i++)
        sink->pieces[i] = (struct ot_gguf_piece){.entry = i, .rows = entries[i].rows};
    const struct ot_gguf_tensors tensors = {entries, n, sink->pieces, n};
    check_ok(ot_gguf_writer_open(keys, &tensors, NULL, sink_put, sink, writer));
}

int sink_put(void *context, int64_t at, const void *data, size_t bytes) {
    struct sink *sink = context;
    size_t end = (size_t)at + bytes;
    if (sink->stop_at && sink->written + bytes >= sink->stop_at)
        return ot_fail(OT_E_IO, "the sink is full");
    if (end > sink->n) {
        sink->bytes = realloc(sink->bytes, end + 1);
        assert_non_null(sink->bytes);
        memset(sink->bytes + sink->n, 0xee, end - sink->n);
        sink->n = end;
    }
    memcpy(sink->bytes + at, data, bytes);
    sink->written += bytes;
    return 0;
}

void sink_free(struct sink *sink) {
    free(sink->bytes);
    free(sink->pieces);
    *sink = (struct sink){0};
}
