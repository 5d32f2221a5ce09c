#include "src/gguf/writer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/dtype.h"
#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/thread.h"
#include "src/gguf/little.h"

enum {
    BATCH_VALUES = 1 << 20, /* a batch has at least one row, or one head */
    CHUNK_VALUES = 1 << 14, /* of a batch that a thread encodes at once */
    ALIGNMENT = OT_GGUF_DEFAULT_ALIGNMENT,
};

struct ot_gguf_writer {
    struct ot_gguf_tensors tensors;
    int64_t *places; /* [entries]: where each begins in the file */
    struct ot_pool *pool;
    ot_gguf_put put;
    void *context;
    struct ot_string_builder header; /* freed when it is written */
    int64_t file_bytes;
    bool begun;
    /* The present piece, and the batch of its rows that is being filled. */
    int64_t piece, done; /* rows of the piece that are written */
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

static const struct ot_gguf_entry *entry_of(const struct ot_gguf_writer *w,
                                            const struct ot_gguf_piece *piece) {
    return &w->tensors.entries[piece->entry];
}

/* Rows that are encoded together: whole heads where rows change places, and the same of two tensors. */
static int64_t batch_rows(const struct ot_gguf_writer *w, const struct ot_gguf_piece *piece) {
    const struct ot_gguf_entry *entry = entry_of(w, piece);
    int64_t unit = piece->alternates ? 2 : entry->head_rows ? entry->head_rows : 1;
    int64_t units = BATCH_VALUES / (unit * entry->cols);
    int64_t rows = ot_max(units, 1) * unit;
    return ot_min(rows, piece->rows);
}

/* ---- the header ---- */

static void append_entry(struct ot_string_builder *out, const struct ot_gguf_entry *entry, int64_t offset) {
    ot_gguf_append_number(out, strlen(entry->name), 8);
    ot_string_append_text(out, entry->name);
    int64_t parts = entry->parts > 0 ? entry->parts : 1;
    ot_gguf_append_number(out, (uint64_t)(entry->dims + (entry->parts > 0)), 4);
    ot_gguf_append_number(out, (uint64_t)(entry->dims == 1 ? entry_count(entry) / parts : entry->cols), 8);
    if (entry->dims > 1)
        ot_gguf_append_number(out, (uint64_t)(entry->rows / parts), 8);
    if (entry->parts > 0)
        ot_gguf_append_number(out, (uint64_t)parts, 8);
    ot_gguf_append_number(out, entry->type->id, 4);
    ot_gguf_append_number(out, (uint64_t)offset, 8);
}

static int make_header(struct ot_gguf_writer *w, const struct ot_gguf_keys *keys) {
    static const char zeros[ALIGNMENT];
    struct ot_string_builder *out = &w->header;
    int64_t offset = 0, n = w->tensors.n_entries;
    ot_string_append_text(out, "GGUF");
    ot_gguf_append_number(out, OT_GGUF_VERSION, 4);
    ot_gguf_append_number(out, (uint64_t)n, 8);
    ot_gguf_append_number(out, (uint64_t)keys->n, 8);
    ot_string_append(out, keys->out.text, keys->out.bytes);
    for (int64_t i = 0; i < n; i++) {
        const struct ot_gguf_entry *entry = &w->tensors.entries[i];
        append_entry(out, entry, offset);
        w->places[i] = offset;
        offset += entry->rows * row_bytes(entry);
        offset += padding_after(offset);
    }
    ot_string_append(out, zeros, (size_t)padding_after((int64_t)out->bytes));
    if (keys->out.failed || out->failed)
        return ot_fail(OT_E_BUDGET, "no memory for the header of a GGUF file");
    for (int64_t i = 0; i < n; i++)
        w->places[i] += (int64_t)out->bytes;
    w->file_bytes = (int64_t)out->bytes + offset;
    return 0;
}

static int take_buffers(struct ot_gguf_writer *w) {
    int64_t values = 0, bytes = 0;
    for (int64_t i = 0; i < w->tensors.n_pieces; i++) {
        const struct ot_gguf_piece *piece = &w->tensors.pieces[i];
        const struct ot_gguf_entry *entry = entry_of(w, piece);
        int64_t rows = batch_rows(w, piece);
        values = ot_max(rows * entry->cols, values);
        bytes = ot_max(rows * row_bytes(entry), bytes);
    }
    w->values = malloc((size_t)values * sizeof *w->values + 1);
    w->encoded = malloc((size_t)bytes + 1);
    return w->values && w->encoded
               ? 0
               : ot_fail(OT_E_BUDGET, "no memory for a batch of %lld values", (long long)values);
}

int ot_gguf_writer_open(const struct ot_gguf_keys *keys, const struct ot_gguf_tensors *tensors,
                        struct ot_pool *pool, ot_gguf_put put, void *context, struct ot_gguf_writer **out) {
    int rc;
    struct ot_gguf_writer *w = calloc(1, sizeof *w);
    if (!w)
        return ot_fail(OT_E_BUDGET, "no memory to write a GGUF file");
    *w = (struct ot_gguf_writer){.tensors = *tensors, .pool = pool, .put = put, .context = context};
    w->places = calloc((size_t)tensors->n_entries + 1, sizeof *w->places);
    if (!w->places) {
        rc = ot_fail(OT_E_BUDGET, "no memory to write a GGUF file");
        goto out;
    }
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
    free(w->places);
    free(w->values);
    free(w->encoded);
    free(w);
}

/* ---- the values ---- */

static int begin(struct ot_gguf_writer *w) {
    if (w->begun)
        return 0;
    w->begun = true;
    int rc = w->put(w->context, 0, w->header.text, w->header.bytes);
    free(w->header.text);
    w->header = (struct ot_string_builder){0};
    return rc;
}

static const struct ot_gguf_piece *present(const struct ot_gguf_writer *w) {
    return &w->tensors.pieces[w->piece];
}

/* The place of a batch's row in `encoded`: the rows of two tensors are separated. */
static int64_t place_in_batch(const struct ot_gguf_writer *w, int64_t row) {
    const struct ot_gguf_entry *entry = entry_of(w, present(w));
    int64_t head = entry->head_rows, half = w->filled / entry->cols / 2;
    if (present(w)->alternates)
        return row % 2 * half + row / 2;
    return head ? row - row % head + ot_gguf_row_of_head(row % head, head) : row;
}

/* Encodes rows [begin, end) of the batch, in the order in which they come. */
static void encode_rows(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    struct ot_gguf_writer *w = context;
    const struct ot_gguf_entry *entry = entry_of(w, present(w));
    int64_t blocks = entry->cols / entry->type->block_values;
    (void)chunk, (void)worker;
    for (int64_t row = begin; row < end; row++)
        entry->type->encode(w->values + row * entry->cols, blocks,
                            w->encoded + place_in_batch(w, row) * row_bytes(entry));
}

static int refuse_value(const struct ot_gguf_writer *w, int64_t index) {
    const struct ot_gguf_piece *piece = present(w);
    const struct ot_gguf_entry *entry = entry_of(w, piece);
    int64_t row = w->done + index / entry->cols;
    entry += piece->alternates ? row % 2 : 0;
    row = piece->first_row + (piece->alternates ? row / 2 : row);
    return ot_fail(OT_E_INPUT,
                   "tensor %s has the value %g at element %lld, which %s cannot store; the largest is %g, so "
                   "choose bf16 or f32",
                   entry->name, (double)w->values[index],
                   (long long)(row * entry->cols + index % entry->cols), entry->type->name,
                   (double)entry->type->largest);
}

static int check_values(const struct ot_gguf_writer *w) {
    float largest = entry_of(w, present(w))->type->largest;
    int bad = 0;
    for (int64_t i = 0; i < w->filled; i++)
        bad |= !(fabsf(w->values[i]) <= largest);
    for (int64_t i = 0; bad && i < w->filled; i++)
        if (!(fabsf(w->values[i]) <= largest))
            return refuse_value(w, i);
    return 0;
}

/* Writes rows of an entry. Behind the last one comes the padding. */
static int put_rows(struct ot_gguf_writer *w, int64_t index, int64_t first, int64_t rows,
                    const unsigned char *encoded) {
    static const char zeros[ALIGNMENT];
    const struct ot_gguf_entry *entry = &w->tensors.entries[index];
    int64_t bytes = row_bytes(entry), padding = padding_after(entry->rows * bytes);
    OT_TRY(w->put(w->context, w->places[index] + first * bytes, encoded, (size_t)(rows * bytes)));
    if (first + rows < entry->rows || padding == 0)
        return 0;
    return w->put(w->context, w->places[index] + entry->rows * bytes, zeros, (size_t)padding);
}

static int put_batch(struct ot_gguf_writer *w, int64_t rows) {
    const struct ot_gguf_piece *piece = present(w);
    if (!piece->alternates) {
        OT_TRY(put_rows(w, piece->entry, piece->first_row + w->done, rows, w->encoded));
        if (!piece->twice)
            return 0;
        return put_rows(w, piece->entry + 1, piece->first_row + w->done, rows, w->encoded);
    }
    int64_t first = piece->first_row + w->done / 2;
    OT_TRY(put_rows(w, piece->entry, first, rows / 2, w->encoded));
    return put_rows(w, piece->entry + 1, first, rows / 2,
                    w->encoded + rows / 2 * row_bytes(entry_of(w, piece)));
}

/* Writes the batch. If the piece is complete, goes to the next. */
static int flush(struct ot_gguf_writer *w) {
    int64_t cols = entry_of(w, present(w))->cols, rows = w->filled / cols, chunk = CHUNK_VALUES / cols;
    OT_TRY(check_values(w));
    if (w->pool)
        ot_pool_run(w->pool, rows, chunk > 0 ? chunk : 1, encode_rows, w);
    else
        encode_rows(w, 0, rows, 0, 0);
    OT_TRY(put_batch(w, rows));
    w->done += rows;
    w->filled = 0;
    if (w->done == present(w)->rows) {
        w->piece++;
        w->done = 0;
    }
    return 0;
}

int ot_gguf_writer_put(struct ot_gguf_writer *w, const float *values, int64_t n) {
    OT_TRY(begin(w));
    while (n > 0) {
        if (w->piece == w->tensors.n_pieces)
            return ot_fail(OT_E_INTERNAL, "more values than the tensors of a GGUF file have");
        int64_t room = batch_rows(w, present(w)), left = present(w)->rows - w->done;
        room = ot_min(room, left) * entry_of(w, present(w))->cols - w->filled;
        int64_t some = ot_min(n, room);
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
    if (w->piece == w->tensors.n_pieces)
        return 0;
    return ot_fail(OT_E_INTERNAL, "values of tensor %s are missing in a GGUF file",
                   entry_of(w, present(w))->name);
}

/* ---- keys ---- */

void ot_gguf_append_number(struct ot_string_builder *out, uint64_t value, int bytes) {
    unsigned char raw[8];
    ot_little_put_u64(raw, value, bytes);
    ot_string_append(out, (const char *)raw, (size_t)bytes);
}

static void put_number(struct ot_gguf_keys *keys, uint64_t value, int bytes) {
    ot_gguf_append_number(&keys->out, value, bytes);
}

void ot_gguf_put_string_item(struct ot_gguf_keys *keys, const char *text, size_t bytes) {
    put_number(keys, bytes, 8);
    ot_string_append(&keys->out, text, bytes);
}

void ot_gguf_put_i32_item(struct ot_gguf_keys *keys, int32_t value) {
    put_number(keys, (uint32_t)value, 4);
}

void ot_gguf_put_f32_item(struct ot_gguf_keys *keys, float value) {
    put_number(keys, ot_f32_bits(value), 4);
}

void ot_gguf_put_bool_item(struct ot_gguf_keys *keys, bool value) {
    put_number(keys, value, 1);
}

static void begin_key(struct ot_gguf_keys *keys, const char *key, enum ot_gguf_kind kind) {
    ot_gguf_put_string_item(keys, key, strlen(key));
    put_number(keys, kind, 4);
    keys->n++;
}

void ot_gguf_put_u32(struct ot_gguf_keys *keys, const char *key, uint32_t value) {
    begin_key(keys, key, OT_GGUF_KIND_U32);
    put_number(keys, value, 4);
}

void ot_gguf_put_f32(struct ot_gguf_keys *keys, const char *key, float value) {
    begin_key(keys, key, OT_GGUF_KIND_F32);
    ot_gguf_put_f32_item(keys, value);
}

void ot_gguf_put_bool(struct ot_gguf_keys *keys, const char *key, bool value) {
    begin_key(keys, key, OT_GGUF_KIND_BOOL);
    put_number(keys, value, 1);
}

void ot_gguf_put_string(struct ot_gguf_keys *keys, const char *key, const char *text, size_t bytes) {
    begin_key(keys, key, OT_GGUF_KIND_STRING);
    ot_gguf_put_string_item(keys, text, bytes);
}

void ot_gguf_put_text(struct ot_gguf_keys *keys, const char *key, const char *text) {
    ot_gguf_put_string(keys, key, text, strlen(text));
}

void ot_gguf_put_array(struct ot_gguf_keys *keys, const char *key, enum ot_gguf_kind item, int64_t n) {
    begin_key(keys, key, OT_GGUF_KIND_ARRAY);
    put_number(keys, item, 4);
    put_number(keys, (uint64_t)n, 8);
}

void ot_gguf_keys_free(struct ot_gguf_keys *keys) {
    free(keys->out.text);
    *keys = (struct ot_gguf_keys){0};
}

void ot_gguf_put_bytes(struct ot_gguf_keys *keys, const char *key, const void *bytes, size_t n) {
    ot_gguf_put_array(keys, key, OT_GGUF_KIND_U8, (int64_t)n);
    ot_string_append(&keys->out, bytes, n);
}
