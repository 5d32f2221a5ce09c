/* Stored tensors: finds those of a quantised matrix, and decodes values into the form of slabs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/dtype.h"
#include "src/base/error.h"
#include "src/base/memory.h"
#include "src/base/minmax.h"
#include "src/files/model_dir_state.h"
#include "src/gguf/gguf.h"
#include "src/gguf/writer.h"

/* Bytes of a file, and how they store values. */
struct place {
    const char *data;
    const struct ot_gguf_type *blocks; /* NULL: as numbers of the dtype */
    enum ot_dtype dtype;
};

static struct place place_of(const struct ot_stored *stored) {
    return (struct place){stored->tensor->data, stored->blocks, stored->tensor->dtype};
}

static struct place place_of_up(const struct ot_stored *stored) {
    return (struct place){stored->up->data, stored->up->type, stored->tensor->dtype};
}

static const char *block_at(struct place place, int64_t value) {
    if (!place.blocks)
        return place.data + value * (int64_t)ot_dtype_bytes(place.dtype);
    return place.data + value / place.blocks->block_values * place.blocks->block_bytes;
}

static struct ot_file_range range_of(const struct ot_stored *stored, struct place place, int64_t first,
                                     int64_t end) {
    const char *data = block_at(place, first);
    return (struct ot_file_range){stored->file, data, (size_t)(block_at(place, end) - data)};
}

/* The same rows of both tensors of a pair, those that a part has and perhaps one more of each. */
static int ranges_of_pair(const struct ot_stored *stored, int64_t first, int64_t end,
                          struct ot_file_range ranges[OT_QUANT_RANGES]) {
    int64_t two = 2 * stored->row_values;
    first = first / two * stored->row_values;
    end = (end + two - 1) / two * stored->row_values;
    ranges[0] = range_of(stored, place_of(stored), first, end);
    ranges[1] = range_of(stored, place_of_up(stored), first, end);
    return 2;
}

/* Finds the bytes of a part in the file. Returns the number of ranges. */
static int ranges_of(const struct ot_stored *stored, int64_t first, int64_t n,
                     struct ot_file_range ranges[OT_QUANT_RANGES]) {
    int64_t end = first + n;
    if (stored->packed)
        return ot_quant_ranges(stored->packed, first, n, ranges);
    if (stored->up)
        return ranges_of_pair(stored, first, end, ranges);
    if (stored->head_rows) {
        int64_t head = stored->head_rows * stored->row_values;
        first = first / head * head;
        end = (end + head - 1) / head * head;
    }
    ranges[0] = range_of(stored, place_of(stored), first, end);
    return 1;
}

size_t ot_stored_bytes(const struct ot_stored *stored, int64_t first, int64_t n) {
    struct ot_file_range ranges[OT_QUANT_RANGES];
    size_t bytes = 0;
    for (int i = ranges_of(stored, first, n, ranges) - 1; i >= 0; i--)
        bytes += ranges[i].bytes;
    return bytes;
}

void ot_stored_prefetch(const struct ot_stored *stored, int64_t first, int64_t n) {
    struct ot_file_range ranges[OT_QUANT_RANGES];
    for (int i = ranges_of(stored, first, n, ranges) - 1; i >= 0; i--)
        ot_mapped_file_prefetch(ranges[i].file, ranges[i].data, ranges[i].bytes);
}

void ot_stored_release(const struct ot_stored *stored, int64_t first, int64_t n) {
    struct ot_file_range ranges[OT_QUANT_RANGES];
    for (int i = ranges_of(stored, first, n, ranges) - 1; i >= 0; i--)
        ot_mapped_file_release(ranges[i].data, ranges[i].bytes);
}

static void decode(struct place place, int64_t first, int64_t n, float *values) {
    place.blocks->decode((const unsigned char *)block_at(place, first), n / place.blocks->block_values,
                         values);
}

/* Values of one row, of those that change places. */
static void decode_moved(const struct ot_stored *stored, int64_t first, int64_t n, float *values) {
    int64_t cols = stored->row_values, row = first / cols, head = stored->head_rows;
    struct place place = stored->up && row % 2 ? place_of_up(stored) : place_of(stored);
    row = stored->up ? row / 2 : row - row % head + ot_gguf_row_of_head(row % head, head);
    decode(place, row * cols + first % cols, n, values);
}

static int convert(const struct ot_stored *stored, int64_t first, int64_t n, float *values) {
    bool moved = stored->head_rows || stored->up;
    if (stored->packed)
        return ot_quant_decode(stored->packed, first, n, values);
    if (!moved)
        decode(place_of(stored), first, n, values);
    for (int64_t at = first, some; moved && at < first + n; at += some) {
        int64_t row_left = stored->row_values - at % stored->row_values, left = first + n - at;
        some = ot_min(row_left, left);
        decode_moved(stored, at, some, values + (at - first));
    }
    for (int64_t i = 0; stored->addend != 0 && i < n; i++)
        values[i] -= stored->addend;
    return 0;
}

int ot_stored_read(const struct ot_stored *stored, int64_t first, int64_t n, float *values, int64_t *bad) {
    struct ot_file_range ranges[OT_QUANT_RANGES];
    for (int i = ranges_of(stored, first, n, ranges) - 1; i >= 0; i--)
        OT_TRY(ot_mapped_file_fetch(ranges[i].file, ranges[i].data, ranges[i].bytes));
    if (!stored->blocks && !stored->packed) {
        *bad = ot_safetensors_convert(stored->tensor->dtype, block_at(place_of(stored), first), n, values);
        return 0;
    }
    OT_TRY(convert(stored, first, n, values));
    *bad = ot_f32_first_not_finite(values, n);
    return 0;
}

int ot_stored_fetch(const struct ot_stored *stored, int64_t first, int64_t n) {
    return ot_mapped_file_fetch(stored->file, block_at(place_of(stored), first),
                                ot_stored_bytes(stored, first, n));
}

void ot_stored_convert(const struct ot_stored *stored, int64_t first, int64_t n, float *values) {
    (void)ot_safetensors_convert(stored->tensor->dtype, block_at(place_of(stored), first), n, values);
}

/* ---- quantised matrices ---- */

/* The tensors of a quantised checkpoint: finds those that are one matrix together (quant_decode.h), by their
 * names. */

enum { NAME_BYTES = 512, MOST_SUFFIXES = 8 };

/* The suffixes of a matrix' tensors. `own` has the codes. The tensor of `mark` must be there too, or the
 * first is a tensor like any other. */
struct packed_names {
    enum ot_quant_method method;
    enum ot_quant_kind kind;
    const char *codes, *mark;
    const char *suffixes[MOST_SUFFIXES]; /* other suffixes, which belong to the matrix */
};

static const struct packed_names kinds[] = {
    {OT_QUANT_GPTQ, OT_QUANT_KIND_GPTQ, ".qweight", ".qweight", {".scales", ".qzeros", ".g_idx"}},
    {OT_QUANT_BITSANDBYTES,
     OT_QUANT_KIND_4BIT,
     ".weight",
     ".weight.quant_state.bitsandbytes__nf4",
     {".weight.absmax", ".weight.quant_map", ".weight.nested_absmax", ".weight.nested_quant_map",
      ".weight.quant_state.bitsandbytes__nf4"}},
    {OT_QUANT_BITSANDBYTES, OT_QUANT_KIND_INT8, ".weight", ".SCB", {".SCB", ".weight_format"}},
    {OT_QUANT_MXFP4, OT_QUANT_KIND_MXFP4, "_blocks", "_scales", {"_scales"}},
};

/* A matrix that is being opened. */
struct unpacking {
    const struct ot_model_dir *dir;
    bool *is_taken; /* [n_stored] */
    const struct packed_names *names;
    char stem[NAME_BYTES]; /* "model.layers.0.self_attn.q_proj" */
};

/* Copies a name without its suffix. False if it has another suffix, or is longer than any tensor's name. */
static bool has_stem(const char *name, const char *suffix, char stem[NAME_BYTES]) {
    size_t bytes = strlen(name), end = strlen(suffix);
    if (bytes <= end || bytes >= NAME_BYTES || strcmp(name + bytes - end, suffix) != 0)
        return false;
    snprintf(stem, NAME_BYTES, "%.*s", (int)(bytes - end), name);
    return true;
}

static const struct ot_stored *find_suffix(const struct unpacking *u, const char *suffix) {
    char name[NAME_BYTES + 64];
    snprintf(name, sizeof name, "%s%s", u->stem, suffix);
    return ot_model_dir_find(u->dir, name);
}

static struct ot_quant_file_tensor part_of(const struct unpacking *u, const char *suffix) {
    const struct ot_stored *stored = find_suffix(u, suffix);
    return stored ? (struct ot_quant_file_tensor){stored->tensor, stored->file}
                  : (struct ot_quant_file_tensor){0};
}

/* The same; the tensor must be there. */
static int need_part(const struct unpacking *u, const char *suffix, struct ot_quant_file_tensor *out) {
    *out = part_of(u, suffix);
    if (out->tensor)
        return 0;
    return ot_fail(OT_E_INPUT, "%s: tensor %.300s%s has no %.300s%s beside it; get the model again",
                   find_suffix(u, u->names->codes)->file->path, u->stem, u->names->codes, u->stem, suffix);
}

/* ---- the kinds ---- */

static int open_gptq(const struct unpacking *u, struct ot_quant_matrix *packed) {
    OT_TRY(need_part(u, ".scales", &packed->scales));
    OT_TRY(need_part(u, ".qzeros", &packed->zeros));
    packed->index = part_of(u, ".g_idx");
    return ot_quant_open_gptq(packed, &u->dir->quantized);
}

static int open_4bit(const struct unpacking *u, struct ot_quant_matrix *packed) {
    struct ot_quant_file_tensor map, nested_map = {0}, state;
    struct ot_weight_tables *tables = ot_arena_alloc(u->dir->arena, 1, sizeof *tables);
    if (!tables)
        return -OT_E_BUDGET;
    OT_TRY(need_part(u, ".weight.absmax", &packed->scales));
    OT_TRY(need_part(u, ".weight.quant_map", &map));
    OT_TRY(need_part(u, u->names->mark, &state));
    packed->group_scales = part_of(u, ".weight.nested_absmax");
    if (packed->group_scales.tensor)
        OT_TRY(need_part(u, ".weight.nested_quant_map", &nested_map));
    return ot_quant_open_4bit(packed, map, nested_map, state, tables);
}

/* Formats other than 0, "row", belong to cards before 2020. */
static int open_int8(const struct unpacking *u, struct ot_quant_matrix *packed) {
    struct ot_quant_file_tensor format = part_of(u, ".weight_format");
    OT_TRY(need_part(u, ".SCB", &packed->scales));
    if (format.tensor && format.tensor->bytes > 0) {
        OT_TRY(ot_mapped_file_fetch(format.file, format.tensor->data, 1));
        if (*(const unsigned char *)format.tensor->data != 0)
            return ot_fail(
                OT_E_INPUT,
                "%s: tensor %s is %d: the matrix is in the order of a card's kernel, which cannot be "
                "read; quantize the model again",
                format.file->path, format.tensor->name, *(const unsigned char *)format.tensor->data);
    }
    return ot_quant_open_int8(packed);
}

static int open_mxfp4(const struct unpacking *u, struct ot_quant_matrix *packed) {
    OT_TRY(need_part(u, "_scales", &packed->scales));
    return ot_quant_open_mxfp4(packed);
}

/* ---- the directory ---- */

static const struct packed_names *find_kind(struct unpacking *u, const struct ot_stored *stored) {
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        u->names = &kinds[i];
        if (kinds[i].method == u->dir->quantized.method &&
            has_stem(stored->tensor->name, kinds[i].codes, u->stem) && find_suffix(u, kinds[i].mark))
            return u->names;
    }
    return NULL;
}

static void note_parts(struct unpacking *u) {
    for (int i = 0; i < MOST_SUFFIXES && u->names->suffixes[i]; i++) {
        const struct ot_stored *stored = find_suffix(u, u->names->suffixes[i]);
        if (stored)
            u->is_taken[stored - u->dir->stored] = true;
    }
}

static int open_packed(struct unpacking *u, const struct ot_stored *codes, struct ot_quant_matrix *packed) {
    *packed = (struct ot_quant_matrix){.codes = {codes->tensor, codes->file}};
    switch (u->names->kind) {
    case OT_QUANT_KIND_GPTQ:
        return open_gptq(u, packed);
    case OT_QUANT_KIND_4BIT:
        return open_4bit(u, packed);
    case OT_QUANT_KIND_MXFP4:
        return open_mxfp4(u, packed);
    default:
        return open_int8(u, packed);
    }
}

/* Describes the matrix as a tensor. ot_stored_read does not look at its dtype and data. */
static int describe(const struct unpacking *u, const struct ot_quant_matrix *packed,
                    struct ot_safetensor *to) {
    char name[NAME_BYTES + 64];
    bool joined = packed->experts > 0; /* the matrices of experts, whose names have no end */
    int bytes = snprintf(name, sizeof name, "%s%s", u->stem, joined ? "" : ".weight");
    *to = (struct ot_safetensor){.name = ot_arena_strdup(u->dir->arena, name, (size_t)bytes),
                                 .dtype_name = packed->codes.tensor->dtype_name,
                                 .readable = true,
                                 .dims = 2,
                                 .shape = {packed->rows, packed->cols},
                                 .count = packed->rows * packed->cols,
                                 .bytes = ot_quant_matrix_bytes(packed)};
    if (joined) {
        to->dims = 3;
        to->shape[0] = packed->experts;
        to->shape[1] = packed->rows / packed->experts;
        to->shape[2] = packed->cols;
    }
    return to->name ? 0 : -OT_E_BUDGET;
}

static int unpack_one(struct unpacking *u, const struct ot_stored *codes, struct ot_stored *to) {
    struct ot_quant_matrix *packed = ot_arena_alloc(u->dir->arena, 1, sizeof *packed);
    struct ot_safetensor *tensor = ot_arena_alloc(u->dir->arena, 1, sizeof *tensor);
    if (!packed || !tensor)
        return -OT_E_BUDGET;
    OT_TRY(open_packed(u, codes, packed));
    OT_TRY(describe(u, packed, tensor));
    note_parts(u);
    *to = (struct ot_stored){.tensor = tensor, .file = codes->file, .packed = packed};
    return 0;
}

/* Makes the matrices in `made`, one for each tensor of codes, then drops the tensors with other suffixes. */
static int unpack_all(struct unpacking *u, struct ot_model_dir *dir, struct ot_stored *made) {
    int64_t n = 0, n_packed = 0;
    for (int64_t i = 0; i < dir->n_stored; i++) {
        made[i] = dir->stored[i];
        if (!find_kind(u, &dir->stored[i]))
            continue;
        OT_TRY(unpack_one(u, &dir->stored[i], &made[i]));
        n_packed++;
    }
    for (int64_t i = 0; i < dir->n_stored; i++)
        if (!u->is_taken[i])
            made[n++] = made[i];
    memcpy(dir->stored, made, (size_t)n * sizeof *made);
    dir->n_stored = n;
    if (n_packed == 0)
        dir->quantized.method = OT_QUANT_NONE;
    ot_model_dir_sort(dir);
    return 0;
}

int ot_model_dir_unpack(struct ot_model_dir *dir) {
    struct unpacking u = {.dir = dir};
    if (dir->quantized.method == OT_QUANT_NONE)
        return 0;
    struct ot_stored *made = calloc((size_t)dir->n_stored + 1, sizeof *made);
    u.is_taken = calloc((size_t)dir->n_stored + 1, sizeof *u.is_taken);
    int rc = made && u.is_taken ? unpack_all(&u, dir, made)
                                : ot_fail(OT_E_BUDGET, "%s: no memory for a table of tensors", dir->path);
    free(made);
    free(u.is_taken);
    return rc;
}

int ot_model_dir_is_zero_bias(const struct ot_model_dir *dir, const struct ot_stored *stored, bool *out) {
    enum { SOME = 1024 };
    struct unpacking u = {.dir = dir};
    float values[SOME];
    *out = false;
    if (dir->quantized.method != OT_QUANT_GPTQ || !stored->tensor->readable ||
        !has_stem(stored->tensor->name, ".bias", u.stem))
        return 0;
    const struct ot_stored *weight = find_suffix(&u, ".weight");
    bool zeros = weight && weight->packed;
    for (int64_t at = 0, n; zeros && at < stored->tensor->count; at += n) {
        int64_t bad;
        n = ot_min(stored->tensor->count - at, SOME);
        OT_TRY(ot_stored_read(stored, at, n, values, &bad));
        for (int64_t i = 0; i < n; i++)
            zeros = zeros && values[i] == 0;
    }
    *out = zeros;
    return 0;
}

/* ---- the layout of tensors ---- */

/* Converts values between the form of files and the form of slabs (models/model.h, enum ot_file_form and
 * is_fused). */

/* Quantised matrices are [out, in], even in a GPT-2: bitsandbytes and GPTQ make them linear layers. So are
 * all matrices of GGUF files. stored NULL: a plain file. */
static bool is_turned(const struct ot_tensor *tensor, const struct ot_stored *stored) {
    return tensor->file_form == OT_FORM_TRANSPOSED && (!stored || (!stored->blocks && !stored->packed));
}

/* A GGUF file has q, k and v one after the other: the order of slabs. */
static bool is_mixed(const struct ot_tensor *tensor, const struct ot_stored *stored) {
    return tensor->is_fused && !stored->blocks;
}

/* Rows of one of the tensor's matrices. */
static int64_t part_rows(const struct ot_tensor *tensor) {
    return tensor->parts > 0 ? tensor->rows / tensor->parts : tensor->rows;
}

int ot_tensor_file_shape(const struct ot_tensor *tensor, const struct ot_stored *stored, int64_t shape[3]) {
    bool turned = is_turned(tensor, stored);
    int dims = 0;
    if (tensor->file_form == OT_FORM_EXPERT_COLUMNS) {
        shape[dims++] = part_rows(tensor);
        shape[dims++] = tensor->cols * tensor->parts;
        return dims;
    }
    if (tensor->parts > 0)
        shape[dims++] = tensor->parts;
    if (tensor->dims == 1) {
        shape[dims++] = tensor->parts > 0 ? tensor->cols / tensor->parts : tensor->cols;
        return dims;
    }
    shape[dims++] = turned ? tensor->cols : part_rows(tensor);
    shape[dims++] = turned ? part_rows(tensor) : tensor->cols;
    return dims;
}

/* ---- reading ---- */

/* One read of values of a tensor. */
struct reading {
    const struct ot_model_config *config;
    const struct ot_tensor *tensor;
    const struct ot_stored *stored;
    int64_t first, n; /* in the slab's form */
    float *values;
};

/* Rows of a fused q, k, v: those that follow each other in the slab and in the file are read at once. A
 * vector has rows of one value. */
static int read_fused(const struct reading *r) {
    int64_t cols = r->tensor->dims == 2 ? r->tensor->cols : 1, end = r->first + r->n, bad;
    int64_t n_rows = r->tensor->rows * r->tensor->cols / cols;
    for (int64_t at = r->first, some; at < end; at += some) {
        int64_t row = at / cols, file_row = ot_model_fused_row(r->config, row), rows = 1;
        while (row + rows < n_rows && (row + rows) * cols < end &&
               ot_model_fused_row(r->config, row + rows) == file_row + rows)
            rows++;
        some = ot_min((row + rows) * cols, end) - at;
        OT_TRY(
            ot_stored_read(r->stored, file_row * cols + at % cols, some, r->values + (at - r->first), &bad));
    }
    return 0;
}

/* Reads values [first, end) of the matrix at value `base` of the tensor. The file has its transpose [cols,
 * rows]; from each row of the file only the needed part is read. piece: room for a value of each row. */
static void read_turned(const struct reading *r, int64_t base, int64_t first, int64_t end, float *piece) {
    int64_t rows = part_rows(r->tensor), cols = r->tensor->cols;
    for (int64_t col = 0; col < cols; col++) {
        /* Rows with first <= row * cols + col < end. */
        int64_t begin = first <= col ? 0 : (first - col + cols - 1) / cols;
        int64_t stop = end <= col ? 0 : (end - col + cols - 1) / cols;
        if (begin >= stop)
            continue;
        ot_stored_convert(r->stored, base + col * rows + begin, stop - begin, piece);
        for (int64_t row = begin; row < stop; row++)
            r->values[base + row * cols + col - r->first] = piece[row - begin];
    }
}

static int read_transposed(const struct reading *r) {
    int64_t count = part_rows(r->tensor) * r->tensor->cols, end = r->first + r->n;
    int64_t base = r->first / count * count; /* of the first matrix */
    float *piece = malloc((size_t)(r->n / r->tensor->cols + 2) * sizeof *piece);
    int rc = piece ? 0 : ot_fail(OT_E_BUDGET, "no memory to read %s", r->tensor->name);
    if (rc == 0)
        rc = ot_stored_fetch(r->stored, base, (end + count - 1) / count * count - base);
    for (; base < end && rc == 0; base += count)
        read_turned(r, base, base < r->first ? r->first - base : 0, ot_min(count, end - base), piece);
    free(piece);
    return rc;
}

/* The place in the file of value i of a tensor of form OT_FORM_EXPERT_COLUMNS. */
static int64_t place_in_columns(const struct ot_tensor *tensor, int64_t i) {
    int64_t rows = part_rows(tensor), cols = tensor->cols, row = i / cols % rows, part = i / cols / rows;
    return (row * cols + i % cols) * tensor->parts + part;
}

/* Adapters are small: the whole tensor is read. */
static int read_columns(const struct reading *r) {
    int64_t count = r->tensor->rows * r->tensor->cols, bad;
    float *whole = malloc((size_t)count * sizeof *whole);
    int rc = whole ? ot_stored_read(r->stored, 0, count, whole, &bad)
                   : ot_fail(OT_E_BUDGET, "no memory to read %s", r->tensor->name);
    for (int64_t i = 0; i < r->n && rc == 0; i++)
        r->values[i] = whole[place_in_columns(r->tensor, r->first + i)];
    free(whole);
    return rc;
}

int ot_tensor_read(const struct ot_model_config *config, const struct ot_tensor *tensor,
                   const struct ot_stored *stored, int64_t first, int64_t n, float *values, int64_t *bad) {
    const struct reading r = {config, tensor, stored, first, n, values};
    bool in_columns = tensor->file_form == OT_FORM_EXPERT_COLUMNS;
    if (!in_columns && !is_turned(tensor, stored) && !is_mixed(tensor, stored))
        return ot_stored_read(stored, first, n, values, bad);
    OT_TRY(in_columns ? read_columns(&r) : is_turned(tensor, stored) ? read_transposed(&r) : read_fused(&r));
    *bad = ot_f32_first_not_finite(values, n);
    return 0;
}

/* ---- writing ---- */

static void mix_rows(const struct ot_model_config *config, const struct ot_tensor *tensor, const float *from,
                     float *to) {
    int64_t cols = tensor->dims == 2 ? tensor->cols : 1, rows = tensor->rows * tensor->cols / cols;
    for (int64_t row = 0; row < rows; row++)
        memcpy(to + ot_model_fused_row(config, row) * cols, from + row * cols, (size_t)cols * sizeof *to);
}

int ot_tensor_to_file(const struct ot_model_config *config, const struct ot_tensor *tensor, float *values) {
    int64_t rows = part_rows(tensor), parts = is_turned(tensor, NULL) ? tensor->rows / rows : 0;
    for (int64_t part = 0; part < parts; part++)
        OT_TRY(ot_lora_transpose(values + part * rows * tensor->cols, rows, tensor->cols));
    if (parts > 0)
        return 0;
    bool in_columns = tensor->file_form == OT_FORM_EXPERT_COLUMNS;
    if (!tensor->is_fused && !in_columns)
        return 0;
    size_t bytes = (size_t)(tensor->rows * tensor->cols) * sizeof *values;
    float *copy = malloc(bytes);
    if (!copy)
        return ot_fail(OT_E_BUDGET, "no memory to write %s", tensor->name);
    memcpy(copy, values, bytes);
    for (int64_t i = 0; in_columns && i < tensor->rows * tensor->cols; i++)
        values[place_in_columns(tensor, i)] = copy[i];
    if (!in_columns)
        mix_rows(config, tensor, copy, values);
    free(copy);
    return 0;
}
