/* New rows of the embedding and of the head, for new tokens of the tokenizer. A new row is the mean of the
 * rows of the pieces that the tokenizer made of the token's text before: summed in fp32 in the order of the
 * pieces, and rounded to the dtype of the file. Or adapters have the rows. The model's files stay as they
 * are; reading a table adds the rows. */
#include "src/files/model_dir_state.h"

#include <stdio.h>
#include <string.h>

#include "models/selection.h"
#include "src/base/error.h"
#include "src/base/memory.h"
#include "src/base/minmax.h"
#include "src/files/adapter_config.h"

enum { TABLE_EMBEDDING, TABLE_HEAD, TABLE_BIAS };

/* The table that a tensor is; -1: none. */
static int table_of(const struct ot_tensor *tensor) {
    if (ot_lora_has_tensor(tensor->name))
        return -1;
    if (tensor->module == OT_MODULE_EMBEDDING)
        return TABLE_EMBEDDING;
    return tensor->module != OT_MODULE_HEAD ? -1 : tensor->dims == 2 ? TABLE_HEAD : TABLE_BIAS;
}

static int64_t width_of(const struct ot_tensor *tensor) {
    return tensor->dims == 2 ? tensor->cols : 1;
}

static bool has_rows(const struct ot_model_dir *dir, const struct ot_tensor *tensor) {
    return dir->new_rows.vocab > 0 && table_of(tensor) >= 0;
}

bool ot_new_rows_are_of(const struct ot_model_dir *dir, const struct ot_tensor *tensor,
                        const struct ot_stored *stored) {
    return has_rows(dir, tensor) && stored >= dir->stored && stored < dir->stored + dir->n_stored;
}

/* Copies the part of the new rows that lies in [first, first + n). */
static void put_rows(const struct ot_model_dir *dir, const struct ot_tensor *tensor, int64_t first, int64_t n,
                     float *values) {
    const struct ot_new_rows *rows = &dir->new_rows;
    const float *table = rows->tables[table_of(tensor)];
    int64_t width = width_of(tensor), begin = rows->first * width, end = begin + rows->n * width;
    int64_t from = ot_max(first, begin), to = first + n;
    to = ot_min(to, end);
    if (table && from < to)
        memcpy(values + (from - first), table + (from - begin), (size_t)(to - from) * sizeof *values);
}

int ot_model_dir_read(const struct ot_model_dir *dir, const struct ot_model_config *config,
                      const struct ot_tensor *tensor, const struct ot_stored *stored, int64_t first,
                      int64_t n, float *values, int64_t *bad) {
    if (!has_rows(dir, tensor))
        return ot_tensor_read(config, tensor, stored, first, n, values, bad);
    int64_t in_file = ot_new_rows_in_file(stored, first, n);
    *bad = -1;
    if (in_file > 0)
        OT_TRY(ot_tensor_read(config, tensor, stored, first, in_file, values, bad));
    if (in_file < n)
        memset(values + in_file, 0, (size_t)(n - in_file) * sizeof *values);
    put_rows(dir, tensor, first, n, values);
    return 0;
}

int64_t ot_new_rows_in_file(const struct ot_stored *stored, int64_t first, int64_t n) {
    int64_t left = stored->tensor->count - first;
    return left < 0 ? 0 : ot_min(left, n);
}

/* ---- making the rows ---- */

/* Adds a row of the files to sum. room: for a row and what must be read around it. */
static int add_row(const struct ot_model_dir *dir, const struct ot_tensor *tensor, int64_t row, float *room,
                   float *sum) {
    enum { UNIT = 256 }; /* a read begins and ends at a multiple, or at the end */
    int64_t width = width_of(tensor), count = tensor->rows * tensor->cols, first = row * width;
    int64_t begin = first / UNIT * UNIT, end = (first + width + UNIT - 1) / UNIT * UNIT;
    end = ot_min(end, count);
    OT_TRY(ot_model_dir_get(dir, tensor, begin, end - begin, room));
    for (int64_t i = 0; i < width; i++)
        sum[i] += room[first - begin + i];
    return 0;
}

/* The dtype in which the file has the tensor's values; fp32 if it has codes of them. */
static enum ot_dtype dtype_of(const struct ot_model_dir *dir, const struct ot_tensor *tensor) {
    const struct ot_stored *stored = ot_model_dir_find_tensor(dir, tensor);
    return stored && !stored->blocks && !stored->packed ? stored->tensor->dtype : OT_F32;
}

static int make_rows(struct ot_model_dir *dir, const struct ot_tensor *tensor,
                     const struct ot_token_pieces *pieces) {
    int64_t width = width_of(tensor);
    enum ot_dtype dtype = dtype_of(dir, tensor);
    float *values = ot_arena_alloc(dir->arena, (size_t)(pieces->n * width) + 1, sizeof *values);
    float *room = ot_arena_alloc(dir->arena, (size_t)width + 512, sizeof *room);
    if (!values || !room)
        return -OT_E_BUDGET;
    for (int64_t i = 0; i < pieces->n; i++) {
        float *row = values + i * width;
        for (int64_t k = pieces->begins[i]; k < pieces->begins[i + 1]; k++)
            OT_TRY(add_row(dir, tensor, pieces->ids[k], room, row));
        float count = (float)(pieces->begins[i + 1] - pieces->begins[i]);
        for (int64_t j = 0; j < width; j++) {
            float mean = row[j] / count;
            ot_dtype_write(dtype, &row[j], 0, mean);
            row[j] = ot_dtype_read(dtype, &row[j], 0);
        }
    }
    dir->new_rows.tables[table_of(tensor)] = values;
    return 0;
}

static int make_tables(struct ot_model_dir *dir, const struct ot_token_pieces *pieces) {
    struct ot_model *model;
    int rc = 0;
    OT_TRY(ot_model_open(&dir->facts.config, OT_F32, 1, &model));
    for (int64_t i = 0; i < ot_model_tensor_count(model) && rc == 0; i++)
        if (table_of(ot_model_tensor(model, i)) >= 0)
            rc = make_rows(dir, ot_model_tensor(model, i), pieces);
    ot_model_close(model);
    return rc;
}

int ot_model_dir_add_tokens(struct ot_model_dir *dir, const struct ot_token_pieces *pieces, bool has_values) {
    int64_t vocab = dir->facts.config.vocab;
    if (has_values)
        OT_TRY(make_tables(dir, pieces));
    dir->new_rows.vocab = vocab;
    dir->new_rows.first = pieces->first;
    dir->new_rows.n = pieces->n;
    dir->facts.config.vocab = ot_max(vocab, pieces->first + pieces->n);
    return 0;
}

void ot_model_dir_get_new_rows(const struct ot_model_dir *dir, const struct ot_tensor *rows, int64_t first,
                               int64_t n, float *values) {
    int table = rows->module == OT_MODULE_EMBEDDING ? TABLE_EMBEDDING : TABLE_HEAD;
    memcpy(values, dir->new_rows.tables[table] + first, (size_t)n * sizeof *values);
}

/* ---- of adapters ---- */

const char *ot_new_rows_name(const struct ot_model_dir *dir, enum ot_module module,
                             char name[OT_TABLE_NAME_BYTES]) {
    char table[OT_TABLE_NAME_BYTES];
    ot_model_module_name(&dir->facts.config, module, -1, table, 96);
    snprintf(name, OT_TABLE_NAME_BYTES, OT_LORA_PREFIX "%.96s." OT_LORA_TOKENS, table);
    return name;
}

/* Reads the rows that the adapters have of a table. The loader says if there are none. */
static int read_rows(struct ot_model_dir *dir, enum ot_module module, int table) {
    char name[OT_TABLE_NAME_BYTES];
    const struct ot_stored *stored = ot_adapter_find(&dir->adapter, ot_new_rows_name(dir, module, name));
    int64_t count = dir->new_rows.n * dir->facts.config.hidden, bad;
    if (!stored || stored->tensor->count != count || !stored->tensor->readable)
        return 0;
    float *values = ot_arena_alloc(dir->arena, (size_t)count + 1, sizeof *values);
    if (!values)
        return -OT_E_BUDGET;
    dir->new_rows.tables[table] = values;
    return ot_stored_read(stored, 0, count, values, &bad);
}

int ot_model_dir_add_adapter_tokens(struct ot_model_dir *dir, const char *path) {
    struct ot_model_config *config = &dir->facts.config;
    struct ot_adapter_tokens tokens;
    OT_TRY(ot_adapter_config_tokens(path, config, &tokens));
    if (tokens.n == 0)
        return 0;
    int64_t end = tokens.first + tokens.n;
    if (end > config->vocab && !config->tied && !tokens.in_head)
        return ot_fail(
            OT_E_INPUT,
            "%s: trainable_token_indices has the id %lld, of which neither the base nor the adapters "
            "have a row of the head",
            path, (long long)end - 1);
    dir->new_rows.vocab = dir->is_resized ? dir->new_rows.vocab : config->vocab;
    dir->new_rows.first = config->first_new = tokens.first;
    dir->new_rows.n = config->n_new = tokens.n;
    config->head_has_new = tokens.in_head;
    config->vocab = ot_max(config->vocab, end);
    if (!dir->adapter.file)
        return 0;
    OT_TRY(read_rows(dir, OT_MODULE_EMBEDDING, TABLE_EMBEDDING));
    return tokens.in_head ? read_rows(dir, OT_MODULE_HEAD, TABLE_HEAD) : 0;
}
