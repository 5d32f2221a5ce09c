/* Converts values between the form of files and the form of slabs (models/model.h, enum ot_file_form and
 * is_fused). */
#include <stdlib.h>
#include <string.h>

#include "src/base/dtype.h"
#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/files/model_dir_state.h"

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
