/* Writes safetensors files: cuts shards, and writes their headers, their tensors and the index. */
#include "src/files/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/minmax.h"
#include "src/files/out_dir.h"

enum { BUFFER_VALUES = 1 << 16, HEADER_ALIGN = 8 };

struct shard {
    int64_t first, n; /* entries */
    int64_t data_bytes;
    int64_t file_bytes; /* header and data */
    char name[48];
};

struct ot_safetensors_writer {
    struct ot_out_dir *dir;
    const char *stem;
    const struct ot_safetensors_entry *entries;
    int64_t n_entries;
    struct shard *shards;
    int n_shards;
    int shard;       /* index of the shard being written; n_shards: all are written */
    bool in_shard;   /* the shard's header is written */
    int64_t entry;   /* index of the entry being written */
    int64_t written; /* values of that entry already written */
    char *index;     /* NULL for a single shard */
    size_t index_bytes;
    unsigned char *buffer; /* BUFFER_VALUES rounded values */
};

static int64_t entry_count(const struct ot_safetensors_entry *entry) {
    int64_t count = 1;
    for (int i = 0; i < entry->dims; i++)
        count *= entry->shape[i];
    return count;
}

static int64_t entry_bytes(const struct ot_safetensors_entry *entry) {
    return entry_count(entry) *
           (entry->raw ? (int64_t)entry->item_bytes : (int64_t)ot_dtype_bytes(entry->dtype));
}

static const char *dtype_label(const struct ot_safetensors_entry *entry) {
    if (entry->raw)
        return entry->raw;
    return entry->dtype == OT_F32 ? "F32" : entry->dtype == OT_BF16 ? "BF16" : "F16";
}

/* Makes the length and the header. Spaces pad the header so that the data begins at a multiple of 8 bytes,
 * as Hugging Face's writer does. */
static int make_header(const struct ot_safetensors_writer *writer, const struct shard *shard, char **text,
                       size_t *bytes) {
    struct ot_json_writer json = {.indent = -1};
    int64_t at = 0;
    ot_json_begin_object(&json, NULL);
    ot_json_begin_object(&json, "__metadata__");
    ot_json_put_text(&json, "format", "pt");
    ot_json_end_object(&json);
    for (int64_t i = shard->first; i < shard->first + shard->n; i++) {
        const struct ot_safetensors_entry *entry = &writer->entries[i];
        int64_t end = at + entry_bytes(entry);
        ot_json_begin_object(&json, entry->name);
        ot_json_put_text(&json, "dtype", dtype_label(entry));
        ot_json_begin_array(&json, "shape");
        for (int d = 0; d < entry->dims; d++)
            ot_json_put_int(&json, NULL, entry->shape[d]);
        ot_json_end_array(&json);
        ot_json_begin_array(&json, "data_offsets");
        ot_json_put_int(&json, NULL, at);
        ot_json_put_int(&json, NULL, end);
        ot_json_end_array(&json);
        ot_json_end_object(&json);
        at = end;
    }
    ot_json_end_object(&json);

    char *header = NULL;
    size_t length;
    OT_TRY(ot_json_writer_take(&json, &header, &length));
    size_t padded = (length + HEADER_ALIGN - 1) / HEADER_ALIGN * HEADER_ALIGN;
    *bytes = 8 + padded;
    *text = malloc(*bytes);
    if (!*text) {
        free(header);
        return ot_fail(OT_E_BUDGET, "no memory for a header of %zu bytes", *bytes);
    }
    for (int i = 0; i < 8; i++)
        (*text)[i] = (char)(unsigned char)((uint64_t)padded >> (8 * i));
    memcpy(*text + 8, header, length);
    memset(*text + 8 + length, ' ', padded - length);
    free(header);
    return 0;
}

static int make_index(struct ot_safetensors_writer *writer) {
    struct ot_json_writer json = {.indent = 0};
    int64_t total = 0;
    for (int64_t i = 0; i < writer->n_entries; i++)
        total += entry_bytes(&writer->entries[i]);
    ot_json_begin_object(&json, NULL);
    ot_json_begin_object(&json, "metadata");
    ot_json_put_int(&json, "total_size", total);
    ot_json_end_object(&json);
    ot_json_begin_object(&json, "weight_map");
    for (int s = 0; s < writer->n_shards; s++)
        for (int64_t i = 0; i < writer->shards[s].n; i++)
            ot_json_put_text(&json, writer->entries[writer->shards[s].first + i].name,
                             writer->shards[s].name);
    ot_json_end_object(&json);
    ot_json_end_object(&json);
    return ot_json_writer_take(&json, &writer->index, &writer->index_bytes);
}

/* Fills shards greedily and in order, as transformers does: a tensor that does not fit begins the next
 * shard. */
static void cut_shards(struct ot_safetensors_writer *writer, int64_t shard_bytes) {
    int64_t room = 0;
    for (int64_t i = 0; i < writer->n_entries; i++) {
        int64_t bytes = entry_bytes(&writer->entries[i]);
        if (i == 0 || bytes > room) {
            writer->shards[writer->n_shards++] = (struct shard){.first = i};
            room = shard_bytes;
        }
        struct shard *shard = &writer->shards[writer->n_shards - 1];
        shard->n++;
        shard->data_bytes += bytes;
        room -= bytes;
    }
    for (int s = 0; s < writer->n_shards; s++)
        if (writer->n_shards == 1)
            snprintf(writer->shards[s].name, sizeof writer->shards[s].name, "%s.safetensors", writer->stem);
        else
            snprintf(writer->shards[s].name, sizeof writer->shards[s].name, "%s-%05d-of-%05d.safetensors",
                     writer->stem, s + 1, writer->n_shards);
}

static int measure_shards(struct ot_safetensors_writer *writer) {
    for (int s = 0; s < writer->n_shards; s++) {
        struct shard *shard = &writer->shards[s];
        char *header;
        size_t bytes;
        OT_TRY(make_header(writer, shard, &header, &bytes));
        free(header);
        shard->file_bytes = (int64_t)bytes + shard->data_bytes;
    }
    return 0;
}

int ot_safetensors_writer_open(struct ot_out_dir *dir, const char *stem,
                               const struct ot_safetensors_entry *entries, int64_t n, int64_t shard_bytes,
                               struct ot_safetensors_writer **out) {
    int rc = 0;
    struct ot_safetensors_writer *writer = calloc(1, sizeof *writer);
    if (!writer)
        return ot_fail(OT_E_BUDGET, "no memory to write the weights");
    *writer = (struct ot_safetensors_writer){.dir = dir, .stem = stem, .entries = entries, .n_entries = n};
    writer->shards = calloc((size_t)n + 1, sizeof *writer->shards);
    writer->buffer = malloc(BUFFER_VALUES * sizeof(float));
    if (!writer->shards || !writer->buffer) {
        rc = ot_fail(OT_E_BUDGET, "no memory to write %lld tensors", (long long)n);
        goto out;
    }
    cut_shards(writer, shard_bytes);
    OT_TRY_GOTO(measure_shards(writer), rc, out);
    if (writer->n_shards > 1)
        OT_TRY_GOTO(make_index(writer), rc, out);
    *out = writer;
    writer = NULL;
out:
    ot_safetensors_writer_close(writer);
    return rc;
}

int64_t ot_safetensors_writer_bytes(const struct ot_safetensors_writer *writer) {
    int64_t bytes = (int64_t)writer->index_bytes;
    for (int s = 0; s < writer->n_shards; s++)
        bytes += writer->shards[s].file_bytes;
    return bytes;
}

static int begin_shard(struct ot_safetensors_writer *writer) {
    const struct shard *shard = &writer->shards[writer->shard];
    char *header = NULL;
    size_t bytes;
    int rc;
    OT_TRY(ot_out_dir_create(writer->dir, shard->name, shard->file_bytes));
    OT_TRY_GOTO(make_header(writer, shard, &header, &bytes), rc, out);
    OT_TRY_GOTO(ot_out_dir_write(writer->dir, header, bytes), rc, out);
    writer->in_shard = true;
out:
    free(header);
    return rc;
}

/* Called after an entry's last value: goes on to the next entry, in the next shard if this one is full. */
static int end_entry(struct ot_safetensors_writer *writer) {
    const struct shard *shard = &writer->shards[writer->shard];
    writer->written = 0;
    if (++writer->entry < shard->first + shard->n)
        return 0;
    OT_TRY(ot_out_dir_finish(writer->dir));
    writer->shard++;
    writer->in_shard = false;
    return 0;
}

static void round_values(enum ot_dtype dtype, const float *values, int64_t n, unsigned char *out) {
    uint16_t *half = (uint16_t *)(void *)out;
    switch (dtype) {
    case OT_F32:
        memcpy(out, values, (size_t)n * sizeof *values);
        break;
    case OT_BF16:
        for (int64_t i = 0; i < n; i++)
            half[i] = ot_bf16_from_f32(values[i]);
        break;
    case OT_F16:
        for (int64_t i = 0; i < n; i++)
            half[i] = ot_f16_from_f32(values[i]);
        break;
    }
}

int ot_safetensors_writer_put(struct ot_safetensors_writer *writer, const float *values, int64_t n) {
    while (n > 0) {
        if (writer->shard == writer->n_shards)
            return ot_fail(OT_E_INTERNAL, "%lld values too many for the declared tensors", (long long)n);
        if (!writer->in_shard)
            OT_TRY(begin_shard(writer));
        const struct ot_safetensors_entry *entry = &writer->entries[writer->entry];
        if (entry->raw)
            return ot_fail(OT_E_INTERNAL, "tensor %s takes bytes, not values", entry->name);
        int64_t count = entry_count(entry), part = count - writer->written;
        part = ot_min(part, n);
        part = ot_min(part, BUFFER_VALUES);
        round_values(entry->dtype, values, part, writer->buffer);
        OT_TRY(ot_out_dir_write(writer->dir, writer->buffer, (size_t)part * ot_dtype_bytes(entry->dtype)));
        writer->written += part;
        values += part;
        n -= part;
        if (writer->written == count)
            OT_TRY(end_entry(writer));
    }
    return 0;
}

int ot_safetensors_writer_put_raw(struct ot_safetensors_writer *writer, const void *data) {
    const struct ot_safetensors_entry *entry = &writer->entries[writer->entry];
    if (writer->shard == writer->n_shards || !entry->raw || writer->written > 0)
        return ot_fail(OT_E_INTERNAL, "the next tensor does not take bytes");
    if (!writer->in_shard)
        OT_TRY(begin_shard(writer));
    OT_TRY(ot_out_dir_write(writer->dir, data, (size_t)entry_bytes(entry)));
    return end_entry(writer);
}

int ot_safetensors_writer_finish(struct ot_safetensors_writer *writer) {
    if (writer->shard != writer->n_shards)
        return ot_fail(OT_E_INTERNAL, "values are missing: only %d of %d shards are complete", writer->shard,
                       writer->n_shards);
    if (!writer->index)
        return 0;
    char name[64];
    snprintf(name, sizeof name, "%s.safetensors.index.json", writer->stem);
    return ot_out_dir_put(writer->dir, name, writer->index, writer->index_bytes);
}

void ot_safetensors_writer_close(struct ot_safetensors_writer *writer) {
    if (!writer)
        return;
    free(writer->shards);
    free(writer->buffer);
    free(writer->index);
    free(writer);
}
