#include "src/files/quant_decode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/minmax.h"

enum {
    TILE_ROWS = 16,      /* of a GPTQ matrix: words of this many rows lie side by side, in one cache line */
    PIECE_VALUES = 16384 /* bitsandbytes: decoded at once; the values of one group of scales */
};

/* ---- checks ---- */

static int wrong_tensor(const struct ot_quant_file_tensor *stored, const char *dtype, const int64_t *shape,
                        int dims) {
    char have[OT_SHAPE_TEXT_BYTES], want[OT_SHAPE_TEXT_BYTES];
    return ot_fail(OT_E_INPUT, "%s: tensor %s is %s %s, but should be %s %s; get the model again",
                   stored->file->path, stored->tensor->name, stored->tensor->dtype_name,
                   ot_shape_text(stored->tensor->shape, stored->tensor->dims, have), dtype,
                   ot_shape_text(shape, dims, want));
}

static bool has_shape(const struct ot_quant_file_tensor *stored, const char *dtype, const int64_t *shape,
                      int dims) {
    const struct ot_safetensor *t = stored->tensor;
    return strcmp(t->dtype_name, dtype) == 0 && t->dims == dims &&
           memcmp(t->shape, shape, (size_t)dims * sizeof *shape) == 0;
}

static int check_tensor(const struct ot_quant_file_tensor *stored, const char *dtype, int64_t rows,
                        int64_t cols) {
    int64_t shape[2] = {rows, cols};
    return has_shape(stored, dtype, shape, 2) ? 0 : wrong_tensor(stored, dtype, shape, 2);
}

/* A vector, which may be stored with further dimensions of 1. */
static int check_vector(const struct ot_quant_file_tensor *stored, const char *dtype, int64_t n) {
    if (strcmp(stored->tensor->dtype_name, dtype) == 0 && stored->tensor->count == n)
        return 0;
    return wrong_tensor(stored, dtype, &n, 1);
}

static int check_size(const struct ot_quant_matrix *p, int64_t rows, int64_t cols) {
    const struct ot_weight weight = {.format = OT_WEIGHT_F32, .rows = rows, .cols = cols};
    int rc = ot_weight_check(&weight);
    return rc < 0 ? ot_fail_context(rc, "%s: tensor %s", p->codes.file->path, p->codes.tensor->name) : 0;
}

static int64_t quotient_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

/* ---- GPTQ ---- */

/* The number of columns. Without g_idx, only whole words and groups say it. */
static int find_gptq_size(struct ot_quant_matrix *p, const struct ot_quantization *config) {
    const struct ot_safetensor *codes = p->codes.tensor;
    if (codes->dims != 2)
        return check_tensor(&p->codes, "I32", codes->count, 1);
    p->rows = codes->shape[1];
    p->cols = p->index.tensor ? p->index.tensor->count : codes->shape[0] / config->bits * 32;
    return check_size(p, p->rows, p->cols);
}

int ot_quant_open_gptq(struct ot_quant_matrix *p, const struct ot_quantization *config) {
    p->kind = OT_QUANT_KIND_GPTQ;
    p->bits = config->bits;
    p->true_zeros = config->true_zeros;
    OT_TRY(find_gptq_size(p, config));
    p->group_size = config->group_size > 0 ? config->group_size : p->cols;
    p->groups = p->index.tensor && p->scales.tensor->dims == 2 ? p->scales.tensor->shape[0]
                                                               : quotient_up(p->cols, p->group_size);
    if (p->index.tensor)
        OT_TRY(check_vector(&p->index, "I32", p->cols));
    OT_TRY(check_tensor(&p->codes, "I32", quotient_up(p->cols * p->bits, 32), p->rows));
    OT_TRY(check_tensor(&p->zeros, "I32", p->groups, quotient_up(p->rows * p->bits, 32)));
    return check_tensor(&p->scales, p->scales.tensor->readable ? p->scales.tensor->dtype_name : "F16",
                        p->groups, p->rows);
}

static uint32_t word_at(const void *words, int64_t at) {
    uint32_t word;
    memcpy(&word, (const char *)words + at * (int64_t)sizeof word, sizeof word);
    return word;
}

/* `bits` bits at bit `shift` of the word at `at`; the word `step` words further on has the missing bits. */
static uint32_t bits_at(const void *words, int64_t at, int64_t step, int shift, int bits) {
    uint32_t code = word_at(words, at) >> shift;
    if (shift + bits > 32)
        code |= word_at(words, at + step) << (32 - shift);
    return code & ((1u << bits) - 1);
}

static float number_at(const struct ot_safetensor *tensor, int64_t at) {
    float value;
    ot_safetensors_convert(
        tensor->dtype, (const char *)tensor->data + at * (int64_t)ot_dtype_bytes(tensor->dtype), 1, &value);
    return value;
}

/* Scales and zero points of a group, for the rows of a tile. */
static void load_group(const struct ot_quant_matrix *p, int64_t group, int64_t row, int64_t rows,
                       float *scales, float *zeros) {
    int64_t words = p->zeros.tensor->shape[1];
    for (int64_t r = 0; r < rows; r++) {
        int64_t bit = (row + r) * p->bits;
        uint32_t zero = bits_at(p->zeros.tensor->data, group * words + bit / 32, 1, (int)(bit % 32), p->bits);
        scales[r] = number_at(p->scales.tensor, group * p->rows + row + r);
        zeros[r] = (float)(p->true_zeros ? zero : (zero + 1) & ((1u << p->bits) - 1));
    }
}

static int find_group(const struct ot_quant_matrix *p, int64_t col, int64_t *group) {
    if (!p->index.tensor) {
        *group = col / p->group_size;
        return 0;
    }
    *group = (int32_t)word_at(p->index.tensor->data, col);
    if (*group >= 0 && *group < p->groups)
        return 0;
    return ot_fail(OT_E_INPUT,
                   "%s: tensor %s says that column %lld is in group %lld, but there are %lld groups; get the "
                   "model again",
                   p->index.file->path, p->index.tensor->name, (long long)col, (long long)*group,
                   (long long)p->groups);
}

/* Columns [col, col + cols) of some rows. */
static int decode_tile(const struct ot_quant_matrix *p, int64_t row, int64_t rows, int64_t col, int64_t cols,
                       float *values) {
    float scales[TILE_ROWS], zeros[TILE_ROWS];
    int64_t loaded = -1, group;
    for (int64_t c = 0; c < cols; c++) {
        OT_TRY(find_group(p, col + c, &group));
        if (group != loaded)
            load_group(p, group, row, rows, scales, zeros);
        loaded = group;
        int64_t bit = (col + c) * p->bits, at = bit / 32 * p->rows + row;
        for (int64_t r = 0; r < rows; r++)
            values[r * cols + c] =
                scales[r] *
                ((float)bits_at(p->codes.tensor->data, at + r, p->rows, (int)(bit % 32), p->bits) - zeros[r]);
    }
    return 0;
}

static int decode_gptq(const struct ot_quant_matrix *p, int64_t first, int64_t n, float *values) {
    for (int64_t at = first, some; at < first + n; at += some) {
        int64_t col = at % p->cols, left = first + n - at, rows = col == 0 ? left / p->cols : 0;
        rows = ot_min(rows, TILE_ROWS);
        int64_t row_left = p->cols - col, cols = rows > 0 ? p->cols : ot_min(row_left, left);
        rows = rows > 0 ? rows : 1;
        OT_TRY(decode_tile(p, at / p->cols, rows, col, cols, values + (at - first)));
        some = rows * cols;
    }
    return 0;
}

/* ---- bitsandbytes ---- */

int ot_quant_open_int8(struct ot_quant_matrix *p) {
    const struct ot_safetensor *codes = p->codes.tensor;
    p->kind = OT_QUANT_KIND_INT8;
    if (codes->dims != 2)
        return check_tensor(&p->codes, "I8", codes->count, 1);
    p->rows = codes->shape[0];
    p->cols = codes->shape[1];
    OT_TRY(check_size(p, p->rows, p->cols));
    return check_vector(&p->scales, "F32", p->rows);
}

/* ---- MXFP4 ---- */

enum { MX_BLOCK = OT_WEIGHT_MX_BLOCK, MX_NO_NUMBER = 255 };

int ot_quant_open_mxfp4(struct ot_quant_matrix *p) {
    const int64_t *shape = p->codes.tensor->shape;
    const int64_t codes[4] = {shape[0], shape[1], shape[2], MX_BLOCK / 2};
    p->kind = OT_QUANT_KIND_MXFP4;
    if (!has_shape(&p->codes, "U8", codes, 4))
        return wrong_tensor(&p->codes, "U8", codes, 4);
    if (!has_shape(&p->scales, "U8", codes, 3))
        return wrong_tensor(&p->scales, "U8", codes, 3);
    p->experts = shape[0];
    p->rows = shape[0] * shape[1];
    p->cols = shape[2] * MX_BLOCK;
    return check_size(p, p->rows, p->cols);
}

static int decode_mxfp4(const struct ot_quant_matrix *p, int64_t first, int64_t n, float *values) {
    const uint8_t *codes = p->codes.tensor->data, *scales = p->scales.tensor->data;
    for (int64_t at = first, end; at < first + n; at = end) {
        int64_t block = at / MX_BLOCK;
        end = ot_min((block + 1) * MX_BLOCK, first + n);
        if (scales[block] == MX_NO_NUMBER)
            return ot_fail(OT_E_INPUT,
                           "%s: tensor %s has the scale %d at element %lld, which is no number; the weights "
                           "are damaged, get the file again",
                           p->scales.file->path, p->scales.tensor->name, MX_NO_NUMBER, (long long)block);
        float scale = ot_f32_from_bits(OT_WEIGHT_MX_SCALE(scales[block]));
        for (int64_t i = at; i < end; i++)
            values[i - first] = ot_weight_mx_table[codes[i / 2] >> (i % 2 * 4) & 15] * scale;
    }
    return 0;
}

/* ---- bitsandbytes, 4 bits ---- */

/* MOST_SCALE: the largest number of fp16. A scale is the largest weight of its block, so a larger one is
 * damage, which would otherwise show as an infinite loss. */
enum { STATE_MAX_BYTES = 1 << 16, MOST_SCALE = 65504 };

static int fetch_tensor(const struct ot_quant_file_tensor *stored) {
    return ot_mapped_file_fetch(stored->file, stored->tensor->data, stored->tensor->bytes);
}

static int read_shape(struct ot_quant_matrix *p, const struct ot_json *state, const char *where) {
    const struct ot_json *shape = ot_json_get(state, "shape");
    p->rows = ot_json_int(ot_json_at(shape, 0), 0);
    p->cols = ot_json_int(ot_json_at(shape, 1), 0);
    if (ot_json_length(shape) != 2)
        return ot_fail(OT_E_INPUT, "%s: shape must be a list of two numbers", where);
    return check_size(p, p->rows, p->cols);
}

/* Reads the JSON text of a state. Blocks of other sizes than bitsandbytes' default are in no checkpoint that
 * transformers writes. */
static int read_state(struct ot_quant_matrix *p, const struct ot_json *state, const char *where,
                      struct ot_weight_tables *tables) {
    bool nested = p->group_scales.tensor != NULL;
    int64_t block = 0, nested_block = OT_WEIGHT_GROUP;
    double offset = 0;
    OT_TRY(read_shape(p, state, where));
    OT_TRY(ot_json_need_int(state, where, "blocksize", true, 1, INT32_MAX, &block));
    if (nested) {
        OT_TRY(ot_json_need_int(state, where, "nested_blocksize", true, 1, INT32_MAX, &nested_block));
        OT_TRY(ot_json_need_real(state, where, "nested_offset", true, -MOST_SCALE, MOST_SCALE, &offset));
    }
    if (block != OT_WEIGHT_BLOCK || nested_block != OT_WEIGHT_GROUP)
        return ot_fail(OT_E_INPUT,
                       "%s: blocks of %lld values and %lld scales cannot be read, only those of %d and %d; "
                       "quantize the model again with the default sizes",
                       where, (long long)block, (long long)nested_block, OT_WEIGHT_BLOCK, OT_WEIGHT_GROUP);
    tables->offset = (float)offset;
    return 0;
}

static int parse_state(struct ot_quant_matrix *p, const struct ot_quant_file_tensor *stored,
                       struct ot_weight_tables *tables) {
    struct ot_json *state = NULL;
    struct ot_string_builder where = {0};
    if (stored->tensor->bytes > STATE_MAX_BYTES)
        return check_vector(stored, "U8", STATE_MAX_BYTES);
    OT_TRY(fetch_tensor(stored));
    ot_string_append_format(&where, "%s: tensor %.200s", stored->file->path, stored->tensor->name);
    int rc = where.text ? ot_json_parse(stored->tensor->data, stored->tensor->bytes, where.text, &state)
                        : ot_fail(OT_E_BUDGET, "no memory for an error message");
    if (rc == 0)
        rc = read_state(p, state, where.text, tables);
    ot_json_free(state);
    free(where.text);
    return rc;
}

/* The numbers that codes stand for are multiples of the largest, which is 1. */
static int check_map(const struct ot_quant_file_tensor *stored, const float *numbers, int n) {
    for (int i = 0; i < n; i++)
        if (!(numbers[i] >= -1 && numbers[i] <= 1))
            return ot_fail(OT_E_INPUT,
                           "%s: tensor %s has %g at element %d, and should have numbers from -1 to 1; the "
                           "weights are damaged, get the file again",
                           stored->file->path, stored->tensor->name, (double)numbers[i], i);
    return 0;
}

int ot_quant_open_4bit(struct ot_quant_matrix *p, struct ot_quant_file_tensor map,
                       struct ot_quant_file_tensor nested_map, struct ot_quant_file_tensor state,
                       struct ot_weight_tables *tables) {
    bool nested = p->group_scales.tensor != NULL;
    int64_t blocks;
    p->kind = OT_QUANT_KIND_4BIT;
    p->tables = tables;
    memset(tables, 0, sizeof *tables);
    OT_TRY(parse_state(p, &state, tables));
    blocks = quotient_up(p->rows * p->cols, OT_WEIGHT_BLOCK);
    /* The codes may be stored with any dtype: quant_storage chooses it. */
    if ((int64_t)p->codes.tensor->bytes != quotient_up(p->rows * p->cols, 2))
        return check_vector(&p->codes, "U8", quotient_up(p->rows * p->cols, 2));
    OT_TRY(check_vector(&p->scales, nested ? "U8" : "F32", blocks));
    OT_TRY(check_vector(&map, "F32", 16));
    OT_TRY(fetch_tensor(&map));
    memcpy(tables->table, map.tensor->data, sizeof tables->table);
    OT_TRY(check_map(&map, tables->table, 16));
    if (!nested)
        return 0;
    OT_TRY(check_vector(&p->group_scales, "F32", quotient_up(blocks, OT_WEIGHT_GROUP)));
    OT_TRY(check_vector(&nested_map, "F32", 256));
    OT_TRY(fetch_tensor(&nested_map));
    memcpy(tables->map, nested_map.tensor->data, sizeof tables->map);
    return check_map(&nested_map, tables->map, 256);
}

/* The value where decoding must begin: with 4 bits the first of its block, with nested scales the first of
 * their group, because ot_weight_decode counts from there. */
static int64_t piece_first(const struct ot_quant_matrix *p, int64_t at) {
    int64_t unit = p->group_scales.tensor           ? PIECE_VALUES
                   : p->kind == OT_QUANT_KIND_4BIT  ? OT_WEIGHT_BLOCK
                   : p->kind == OT_QUANT_KIND_MXFP4 ? MX_BLOCK
                                                    : 1;
    return at / unit * unit;
}

/* Makes a matrix of one row in the layout of kernels/weight_format.h of the values [base, base + n). */
static void gather_4bit(const struct ot_quant_matrix *p, int64_t base, const struct ot_weight *w,
                        char *encoded) {
    struct ot_weight_layout l = ot_weight_layout(w);
    int64_t block = base / OT_WEIGHT_BLOCK, scale_bytes = p->group_scales.tensor ? 1 : 4;
    memcpy(encoded, (const char *)p->codes.tensor->data + base / 2, (size_t)l.code_bytes);
    memcpy(encoded + l.scales, (const char *)p->scales.tensor->data + block * scale_bytes,
           (size_t)(l.n_scales * scale_bytes));
    if (p->group_scales.tensor)
        memcpy(encoded + l.group_scales,
               (const char *)p->group_scales.tensor->data + block / OT_WEIGHT_GROUP * 4,
               (size_t)l.n_groups * 4);
    memcpy(encoded + l.tables, p->tables, sizeof *p->tables);
}

static void gather_int8(const struct ot_quant_matrix *p, int64_t base, const struct ot_weight *w,
                        char *encoded) {
    memcpy(encoded, (const char *)p->codes.tensor->data + base, (size_t)w->cols);
    memcpy(encoded + ot_weight_layout(w).scales, (const char *)p->scales.tensor->data + base / p->cols * 4,
           4);
}

/* Checks scales [first, first + n) of a tensor. Values that are not finite are found when they are decoded.
 */
static int check_scales(const struct ot_quant_file_tensor *stored, int64_t first, int64_t n) {
    for (int64_t i = first; i < first + n; i++) {
        float scale;
        memcpy(&scale, (const char *)stored->tensor->data + 4 * i, sizeof scale);
        if (scale < 0 || (isfinite(scale) && scale > MOST_SCALE))
            return ot_fail(OT_E_INPUT,
                           "%s: tensor %s has the scale %g at element %lld; the weights are damaged, get the "
                           "file again",
                           stored->file->path, stored->tensor->name, (double)scale, (long long)i);
    }
    return 0;
}

/* Checks the scales of the values [base, base + n). */
static int check_scales_of(const struct ot_quant_matrix *p, int64_t base, int64_t n) {
    int64_t unit = p->kind == OT_QUANT_KIND_INT8 ? p->cols
                   : p->group_scales.tensor      ? (int64_t)OT_WEIGHT_BLOCK * OT_WEIGHT_GROUP
                                                 : OT_WEIGHT_BLOCK;
    const struct ot_quant_file_tensor *stored = p->group_scales.tensor ? &p->group_scales : &p->scales;
    return check_scales(stored, base / unit, (base + n - 1) / unit - base / unit + 1);
}

static int decode_bitsandbytes(const struct ot_quant_matrix *p, int64_t first, int64_t n, float *values) {
    _Alignas(OT_WEIGHT_ALIGN) char encoded[PIECE_VALUES + 2 * OT_WEIGHT_EXTENT];
    bool is_int8 = p->kind == OT_QUANT_KIND_INT8;
    struct ot_weight w = {.format = is_int8                  ? OT_WEIGHT_INT8
                                    : p->group_scales.tensor ? OT_WEIGHT_NF4_DOUBLE
                                                             : OT_WEIGHT_NF4,
                          .rows = 1};
    for (int64_t at = first, end; at < first + n; at = end) {
        int64_t base = piece_first(p, at), row_end = (at / p->cols + 1) * p->cols;
        end = ot_min(base + PIECE_VALUES, first + n);
        end = is_int8 && row_end < end ? row_end : end;
        w.cols = end - base;
        OT_TRY(check_scales_of(p, base, w.cols));
        if (is_int8)
            gather_int8(p, base, &w, encoded);
        else
            gather_4bit(p, base, &w, encoded);
        ot_weight_decode(&w, encoded, OT_F32, at - base, end - at, values + (at - first));
    }
    return 0;
}

/* ---- reading ---- */

int ot_quant_decode(const struct ot_quant_matrix *p, int64_t first, int64_t n, float *values) {
    if (p->kind == OT_QUANT_KIND_GPTQ)
        return decode_gptq(p, first, n, values);
    if (p->kind == OT_QUANT_KIND_MXFP4)
        return decode_mxfp4(p, first, n, values);
    return decode_bitsandbytes(p, first, n, values);
}

static struct ot_file_range range_of(const struct ot_quant_file_tensor *stored, int64_t first, int64_t end) {
    return (struct ot_file_range){stored->file, (const char *)stored->tensor->data + first,
                                  (size_t)(end - first)};
}

static struct ot_file_range whole(const struct ot_quant_file_tensor *stored) {
    return range_of(stored, 0, (int64_t)stored->tensor->bytes);
}

int ot_quant_ranges(const struct ot_quant_matrix *p, int64_t first, int64_t n,
                    struct ot_file_range ranges[OT_QUANT_RANGES]) {
    int64_t end = first + n, base = piece_first(p, first), scale_bytes = p->group_scales.tensor ? 1 : 4;
    int count = 0;
    switch (p->kind) {
    case OT_QUANT_KIND_GPTQ:
        ranges[count++] = whole(&p->codes);
        ranges[count++] = whole(&p->scales);
        ranges[count++] = whole(&p->zeros);
        if (p->index.tensor)
            ranges[count++] = whole(&p->index);
        break;
    case OT_QUANT_KIND_INT8:
        ranges[count++] = range_of(&p->codes, first, end);
        ranges[count++] = range_of(&p->scales, first / p->cols * 4, ((end - 1) / p->cols + 1) * 4);
        break;
    case OT_QUANT_KIND_MXFP4:
        ranges[count++] = range_of(&p->codes, base / 2, (end + 1) / 2);
        ranges[count++] = range_of(&p->scales, base / MX_BLOCK, quotient_up(end, MX_BLOCK));
        break;
    case OT_QUANT_KIND_4BIT:
        ranges[count++] = range_of(&p->codes, base / 2, (end + 1) / 2);
        ranges[count++] = range_of(&p->scales, base / OT_WEIGHT_BLOCK * scale_bytes,
                                   quotient_up(end, OT_WEIGHT_BLOCK) * scale_bytes);
        if (p->group_scales.tensor)
            ranges[count++] = whole(&p->group_scales);
        break;
    }
    return count;
}

size_t ot_quant_matrix_bytes(const struct ot_quant_matrix *p) {
    const struct ot_quant_file_tensor *tensors[] = {&p->codes, &p->scales, &p->zeros, &p->index,
                                                    &p->group_scales};
    size_t bytes = 0;
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        bytes += tensors[i]->tensor ? tensors[i]->tensor->bytes : 0;
    return bytes;
}

/* ---- quantization ---- */

/* The cure for every quantised model that cannot be read. */
#define CURE "use the model that it was made from, or one in GPTQ, bitsandbytes, MXFP4 or GGUF"

static int refuse(const char *where, const char *key, const char *value) {
    return ot_fail(OT_E_INPUT, "%s: quantized weights with %s '%.64s' cannot be read; " CURE, where, key,
                   value);
}

/* "gptq" and "gptq_v2" are the formats that hold the codes in the order of the matrix. The others are for
 * one kernel each. */
static int parse_format(const struct ot_json *config, const char *where, struct ot_quantization *out) {
    const char *format = "gptq", *pack = "int32";
    OT_TRY(ot_json_need_string(config, where, "format", false, &format));
    OT_TRY(ot_json_need_string(config, where, "checkpoint_format", false, &format));
    OT_TRY(ot_json_need_string(config, where, "pack_dtype", false, &pack));
    out->true_zeros = strcmp(format, "gptq_v2") == 0;
    if (!out->true_zeros && strcmp(format, "gptq") != 0)
        return refuse(where, "checkpoint_format", format);
    if (ot_json_bool(ot_json_get(config, "is_marlin_format"), false))
        return refuse(where, "checkpoint_format", "marlin");
    return strcmp(pack, "int32") == 0 ? 0 : refuse(where, "pack_dtype", pack);
}

/* GPTQModel's key `dynamic` gives modules settings of their own. "-:PATTERN" leaves modules as they are,
 * which their tensors show too. */
static int check_dynamic(const struct ot_json *config, const char *where) {
    const struct ot_json *dynamic = ot_json_get(config, "dynamic");
    void *cursor = NULL;
    const char *key;
    struct ot_json *value;
    while (ot_json_next(dynamic, &cursor, &key, &value))
        if (strncmp(key, "-:", 2) != 0)
            return refuse(where, "dynamic", key);
    return 0;
}

static int parse_gptq(const struct ot_json *config, const char *where, struct ot_quantization *out) {
    int64_t bits = 4;
    out->method = OT_QUANT_GPTQ;
    out->group_size = -1;
    OT_TRY(ot_json_need_int(config, where, "bits", true, 2, 8, &bits));
    if (bits != 2 && bits != 3 && bits != 4 && bits != 8)
        return ot_fail(OT_E_INPUT, "%s: GPTQ weights of %lld bits cannot be read, only those of 2, 3, 4 or 8",
                       where, (long long)bits);
    out->bits = (int)bits;
    OT_TRY(ot_json_need_int(config, where, "group_size", false, -1, INT32_MAX, &out->group_size));
    if (out->group_size == 0)
        return ot_fail(OT_E_INPUT, "%s: group_size is 0, must be -1 or more than 0", where);
    OT_TRY(check_dynamic(config, where));
    return parse_format(config, where, out);
}

static int parse_bitsandbytes(const struct ot_json *config, const char *where, struct ot_quantization *out) {
    const char *type = "nf4";
    out->method = OT_QUANT_BITSANDBYTES;
    if (!ot_json_bool(ot_json_get(config, "load_in_4bit"), false))
        return 0;
    OT_TRY(ot_json_need_string(config, where, "bnb_4bit_quant_type", false, &type));
    return strcmp(type, "nf4") == 0 ? 0 : refuse(where, "bnb_4bit_quant_type", type);
}

int ot_quantization_parse(const struct ot_json *config, const char *where, struct ot_quantization *out) {
    const char *method = NULL;
    *out = (struct ot_quantization){.method = OT_QUANT_NONE};
    if (ot_json_type(config) != OT_JSON_OBJECT)
        return ot_fail(OT_E_INPUT, "%s: the description of quantized weights is %s, not an object", where,
                       ot_json_type_name(ot_json_type(config)));
    OT_TRY(ot_json_need_string(config, where, "quant_method", false, &method));
    if (!method) /* the first versions of both wrote none */
        method = ot_json_get(config, "bits") ? "gptq" : "bitsandbytes";
    if (strcmp(method, "gptq") == 0)
        return parse_gptq(config, where, out);
    if (strcmp(method, "bitsandbytes") == 0)
        return parse_bitsandbytes(config, where, out);
    if (strcmp(method, "mxfp4") == 0) {
        out->method = OT_QUANT_MXFP4;
        return 0;
    }
    return refuse(where, "quant_method", method);
}
