#include "src/gguf/writer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/pool.h"

enum {
    BATCH_VALUES = 1 << 20, /* a batch has at least one row, or one head */
    CHUNK_VALUES = 1 << 14, /* of a batch that a thread encodes at once */
    ALIGNMENT = OT_GGUF_DEFAULT_ALIGNMENT,
};

struct ot_gguf_writer {
    const struct ot_gguf_entry *entries;
    int64_t n_entries;
    struct ot_pool *pool;
    ot_gguf_put put;
    void *context;
    struct ot_string_builder header; /* freed when it is written */
    int64_t file_bytes;
    bool begun;
    /* The present tensor, and the batch of its rows that is being filled. */
    int64_t entry, done; /* values of the tensor that are encoded */
    int64_t filled;      /* values in the batch */
    float *values;       /* [largest batch] */
    unsigned char *encoded;
};

int64_t ot_gguf_row_of_head(int64_t row, int64_t head_rows) {
    int64_t half = head_rows / 2;
    return row % half * 2 + row / half;
}

static int64_t entry_count(const struct ot_gguf_entry *entry) {
    return entry->rows * entry->cols;
}

static int64_t row_bytes(const struct ot_gguf_entry *entry) {
    return entry->cols / entry->type->block_values * entry->type->block_bytes;
}

static int64_t padding_after(int64_t bytes) {
    return (ALIGNMENT - bytes % ALIGNMENT) % ALIGNMENT;
}

/* Rows that are encoded together: whole heads where rows change places. */
static int64_t batch_rows(const struct ot_gguf_entry *entry) {
    int64_t unit = entry->head_rows ? entry->head_rows : 1;
    int64_t units = BATCH_VALUES / (unit * entry->cols);
    int64_t rows = (units > 1 ? units : 1) * unit;
    return rows < entry->rows ? rows : entry->rows;
}

/* ---- the header ---- */

static void append_entry(struct ot_string_builder *out, const struct ot_gguf_entry *entry, int64_t offset) {
    ot_gguf_append_number(out, strlen(entry->name), 8);
    ot_string_append_text(out, entry->name);
    ot_gguf_append_number(out, (uint64_t)entry->dims, 4);
    ot_gguf_append_number(out, (uint64_t)(entry->dims == 1 ? entry_count(entry) : entry->cols), 8);
    if (entry->dims > 1)
        ot_gguf_append_number(out, (uint64_t)entry->rows, 8);
    ot_gguf_append_number(out, entry->type->id, 4);
    ot_gguf_append_number(out, (uint64_t)offset, 8);
}

static int make_header(struct ot_gguf_writer *w, const struct ot_gguf_keys *keys) {
    static const char zeros[ALIGNMENT];
    struct ot_string_builder *out = &w->header;
    int64_t offset = 0;
    ot_string_append_text(out, "GGUF");
    ot_gguf_append_number(out, OT_GGUF_VERSION, 4);
    ot_gguf_append_number(out, (uint64_t)w->n_entries, 8);
    ot_gguf_append_number(out, (uint64_t)keys->n, 8);
    ot_string_append(out, keys->out.text, keys->out.bytes);
    for (int64_t i = 0; i < w->n_entries; i++) {
        const struct ot_gguf_entry *entry = &w->entries[i];
        append_entry(out, entry, offset);
        offset += entry->rows * row_bytes(entry);
        offset += padding_after(offset);
    }
    ot_string_append(out, zeros, (size_t)padding_after((int64_t)out->bytes));
    if (keys->out.failed || out->failed)
        return ot_fail(OT_E_BUDGET, "no memory for the header of a GGUF file");
    w->file_bytes = (int64_t)out->bytes + offset;
    return 0;
}

static int take_buffers(struct ot_gguf_writer *w) {
    int64_t values = 0, bytes = 0;
    for (int64_t i = 0; i < w->n_entries; i++) {
        int64_t rows = batch_rows(&w->entries[i]);
        values = rows * w->entries[i].cols > values ? rows * w->entries[i].cols : values;
        bytes = rows * row_bytes(&w->entries[i]) > bytes ? rows * row_bytes(&w->entries[i]) : bytes;
    }
    w->values = malloc((size_t)values * sizeof *w->values + 1);
    w->encoded = malloc((size_t)bytes + 1);
    return w->values && w->encoded
               ? 0
               : ot_fail(OT_E_BUDGET, "no memory for a batch of %lld values", (long long)values);
}

int ot_gguf_writer_open(const struct ot_gguf_keys *keys, const struct ot_gguf_entry *entries, int64_t n,
                        struct ot_pool *pool, ot_gguf_put put, void *context, struct ot_gguf_writer **out) {
    int rc;
    struct ot_gguf_writer *w = calloc(1, sizeof *w);
    if (!w)
        return ot_fail(OT_E_BUDGET, "no memory to write a GGUF file");
    w->entries = entries;
    w->n_entries = n;
    w->pool = pool;
    w->put = put;
    w->context = context;
    OT_TRY_GOTO(make_header(w, keys), rc, out);
    OT_TRY_GOTO(take_buffers(w), rc, out);
    *out = w;
    w = NULL;
out:
    ot_gguf_writer_close(w);
    return rc;
}

int64_t ot_gguf_writer_bytes(const struct ot_gguf_writer *w) {
    return w->file_bytes;
}

void ot_gguf_writer_close(struct ot_gguf_writer *w) {
    if (!w)
        return;
    free(w->header.text);
    free(w->values);
    free(w->encoded);
    free(w);
}

/* ---- the values ---- */

static int begin(struct ot_gguf_writer *w) {
    if (w->begun)
        return 0;
    w->begun = true;
    int rc = w->put(w->context, w->header.text, w->header.bytes);
    free(w->header.text);
    w->header = (struct ot_string_builder){0};
    return rc;
}

/* Encodes rows [begin, end) of the batch, in the order in which they come. */
static void encode_rows(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    struct ot_gguf_writer *w = context;
    const struct ot_gguf_entry *entry = &w->entries[w->entry];
    int64_t blocks = entry->cols / entry->type->block_values, head = entry->head_rows;
    (void)chunk, (void)worker;
    for (int64_t row = begin; row < end; row++) {
        int64_t to = head ? row - row % head + ot_gguf_row_of_head(row % head, head) : row;
        entry->type->encode(w->values + row * entry->cols, blocks, w->encoded + to * row_bytes(entry));
    }
}

static int check_values(const struct ot_gguf_writer *w) {
    const struct ot_gguf_entry *entry = &w->entries[w->entry];
    int bad = 0;
    for (int64_t i = 0; i < w->filled; i++)
        bad |= !(fabsf(w->values[i]) <= entry->type->largest);
    for (int64_t i = 0; bad && i < w->filled; i++)
        if (!(fabsf(w->values[i]) <= entry->type->largest))
            return ot_fail(
                OT_E_INPUT,
                "tensor %s has the value %g at element %lld, which %s cannot store; the largest is "
                "%g, so choose bf16 or f32",
                entry->name, (double)w->values[i], (long long)(w->done + i), entry->type->name,
                (double)entry->type->largest);
    return 0;
}

/* Writes the batch. If the tensor is complete, adds its padding and goes to the next. */
static int flush(struct ot_gguf_writer *w) {
    static const char zeros[ALIGNMENT];
    const struct ot_gguf_entry *entry = &w->entries[w->entry];
    int64_t rows = w->filled / entry->cols, chunk = CHUNK_VALUES / entry->cols;
    OT_TRY(check_values(w));
    if (w->pool)
        ot_pool_run(w->pool, rows, chunk > 0 ? chunk : 1, encode_rows, w);
    else
        encode_rows(w, 0, rows, 0, 0);
    OT_TRY(w->put(w->context, w->encoded, (size_t)(rows * row_bytes(entry))));
    w->done += w->filled;
    w->filled = 0;
    if (w->done < entry_count(entry))
        return 0;
    int64_t padding = padding_after(entry->rows * row_bytes(entry));
    w->entry++;
    w->done = 0;
    return padding ? w->put(w->context, zeros, (size_t)padding) : 0;
}

int ot_gguf_writer_put(struct ot_gguf_writer *w, const float *values, int64_t n) {
    OT_TRY(begin(w));
    while (n > 0) {
        if (w->entry == w->n_entries)
            return ot_fail(OT_E_INTERNAL, "more values than the tensors of a GGUF file have");
        const struct ot_gguf_entry *entry = &w->entries[w->entry];
        int64_t room = batch_rows(entry) * entry->cols, left = entry_count(entry) - w->done;
        room = (room < left ? room : left) - w->filled;
        int64_t some = n < room ? n : room;
        memcpy(w->values + w->filled, values, (size_t)some * sizeof *values);
        w->filled += some;
        values += some;
        n -= some;
        if (some == room)
            OT_TRY(flush(w));
    }
    return 0;
}

int ot_gguf_writer_finish(struct ot_gguf_writer *w) {
    OT_TRY(begin(w));
    if (w->entry == w->n_entries)
        return 0;
    return ot_fail(OT_E_INTERNAL, "values of tensor %s are missing in a GGUF file",
                   w->entries[w->entry].name);
}
