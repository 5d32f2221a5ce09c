#include "src/quantize/layer.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/thread.h"

static int64_t groups_of(const struct ot_quant_format *format, int64_t cols) {
    const struct ot_gptq_config config = {.group_size = format->group_size};
    return ot_gptq_groups(&config, cols);
}

/* ---- the units ---- */

/* The matrices of a unit follow each other in the model. */
static void add_map(struct ot_quant_layer *layer, const struct ot_tensor *tensor, enum ot_layer_input input) {
    struct ot_quant_unit *unit = layer->n_units > 0 ? &layer->units[layer->n_units - 1] : NULL;
    if (!unit || unit->input != input || unit->expert != tensor->expert) {
        unit = &layer->units[layer->n_units++];
        *unit = (struct ot_quant_unit){
            .input = input, .expert = tensor->expert, .first = tensor->first, .cols = tensor->cols};
    }
    unit->maps[unit->n_maps++] = (struct ot_quant_map){.tensor = tensor};
    unit->rows += tensor->rows;
}

int ot_quant_layer_begin(const struct ot_model *model, int slab, struct ot_quant_layer *layer) {
    int64_t first = 0, end = ot_model_tensor_count(model);
    while (first < end && ot_model_tensor(model, first)->slab != slab)
        first++;
    while (end > first && ot_model_tensor(model, end - 1)->slab != slab)
        end--;
    layer->config = ot_model_get_config(model);
    layer->units = calloc((size_t)(end - first) + 1, sizeof *layer->units);
    if (!layer->units)
        return ot_fail(OT_E_BUDGET, "no memory for a table of the matrices of a layer");
    for (int64_t i = first; i < end; i++) {
        enum ot_layer_input input;
        if (ot_quant_encode_takes(layer->format, ot_model_tensor(model, i), &input))
            add_map(layer, ot_model_tensor(model, i), input);
    }
    return 0;
}

static void free_parts(struct ot_quant_layer *layer) {
    for (int i = 0; i < OT_QUANT_TENSORS; i++) {
        free(layer->tensors[i]);
        layer->tensors[i] = NULL;
    }
}

void ot_quant_layer_free(struct ot_quant_layer *layer) {
    for (int u = 0; u < layer->n_units; u++) {
        struct ot_quant_unit *unit = &layer->units[u];
        for (int m = 0; m < unit->n_maps; m++)
            free(unit->maps[m].encoded);
        free(unit->codes);
        free(unit->zeros);
        free(unit->scales);
        free(unit->index);
    }
    free(layer->units);
    layer->units = NULL;
    layer->n_units = 0;
    free_parts(layer);
}

int64_t ot_quant_layer_bytes(const struct ot_model *model, const struct ot_quant_format *format) {
    struct ot_quant_tensor tensors[OT_QUANT_TENSORS];
    int64_t bytes = 0, most_bytes = 0, most = 0;
    int slab = -1;
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++) {
        const struct ot_tensor *t = ot_model_tensor(model, i);
        enum ot_layer_input input;
        int64_t packed = 0, groups = groups_of(format, t->cols);
        if (!ot_quant_encode_takes(format, t, &input))
            continue;
        for (int p = ot_quant_encode_tensors(format, t, tensors) - 1; p >= 0; p--)
            packed += ot_quant_tensor_bytes(&tensors[p]);
        packed += t->is_fused ? t->rows * t->cols * (int64_t)sizeof(float) : 0; /* with its rows moved */
        most = ot_max(packed, most);
        bytes = t->slab == slab ? bytes : 0;
        bytes += format->kind == OT_QUANT_KIND_GPTQ ? t->rows * (t->cols + 5 * groups) : packed;
        most_bytes = ot_max(bytes, most_bytes);
        slab = t->slab;
    }
    return most_bytes + most;
}

/* ---- the order of rows ---- */

/* The row of the file that row `row` of the slab becomes. */
static int64_t file_row(const struct ot_quant_layer *layer, const struct ot_tensor *tensor, int64_t row) {
    return tensor->is_fused ? ot_model_fused_row(layer->config, row) : row;
}

/* Moves the rows of a matrix from the slab's order to the file's, or back. */
static int move_rows(const struct ot_quant_layer *layer, const struct ot_tensor *tensor, bool to_file,
                     void *matrix, size_t item_bytes) {
    size_t bytes = (size_t)tensor->cols * item_bytes;
    char *from = tensor->is_fused ? malloc((size_t)tensor->rows * bytes) : NULL, *to = matrix;
    if (!tensor->is_fused)
        return 0;
    if (!from)
        return ot_fail(OT_E_BUDGET, "no memory to move rows");
    memcpy(from, matrix, (size_t)tensor->rows * bytes);
    for (int64_t row = 0; row < tensor->rows; row++) {
        size_t in_slab = (size_t)row * bytes, in_file = (size_t)file_row(layer, tensor, row) * bytes;
        memcpy(to + (to_file ? in_file : in_slab), from + (to_file ? in_slab : in_file), bytes);
    }
    free(from);
    return 0;
}

/* ---- GPTQ ---- */

static int run_gptq(struct ot_quant_layer *layer, struct ot_quant_unit *unit, const float *hessian,
                    float *weights, double *error, double *power) {
    const struct ot_quant_format *f = layer->format;
    const struct ot_gptq_config config = {.bits = f->bits,
                                          .group_size = f->group_size,
                                          .act_order = f->act_order,
                                          .symmetric = f->symmetric,
                                          .damping = f->damping};
    size_t rows = (size_t)unit->rows, groups = (size_t)groups_of(f, unit->cols);
    unit->codes = malloc(rows * (size_t)unit->cols);
    unit->zeros = malloc(groups * rows);
    unit->scales = malloc(groups * rows * sizeof *unit->scales);
    unit->index = malloc((size_t)unit->cols * sizeof *unit->index);
    if (!unit->codes || !unit->zeros || !unit->scales || !unit->index)
        return ot_fail(OT_E_BUDGET, "no memory for codes");
    const struct ot_gptq job = {.config = &config,
                                .rows = unit->rows,
                                .cols = unit->cols,
                                .hessian = hessian,
                                .weights = weights,
                                .codes = unit->codes,
                                .scales = unit->scales,
                                .zeros = unit->zeros,
                                .index = unit->index,
                                .error = error,
                                .power = power};
    return ot_gptq_run(layer->pool, &job);
}

static int quantize_gptq(struct ot_quant_layer *layer, struct ot_quant_unit *unit,
                         const struct ot_quant_input *input, float *weights) {
    double *error = malloc((size_t)unit->rows * sizeof *error),
           *power = malloc((size_t)unit->rows * sizeof *power);
    int rc = error && power ? run_gptq(layer, unit, input->hessian, weights, error, power)
                            : ot_fail(OT_E_BUDGET, "no memory for errors");
    int64_t row = 0;
    double rows = input->hessian ? (double)input->rows : 1;
    unit->rounded = !input->hessian;
    for (int m = 0; m < unit->n_maps && rc == 0; m++)
        for (int64_t end = row + unit->maps[m].tensor->rows; row < end; row++) {
            unit->maps[m].error += rows * error[row];
            unit->maps[m].power += rows * power[row];
        }
    free(error);
    free(power);
    return rc;
}

/* ---- nf4, int8 and MXFP4 ---- */

static struct ot_weight weight_of(const struct ot_quant_format *f, const struct ot_tensor *tensor) {
    return (struct ot_weight){.format = f->kind == OT_QUANT_KIND_INT8    ? OT_WEIGHT_INT8
                                        : f->kind == OT_QUANT_KIND_MXFP4 ? OT_WEIGHT_MXFP4
                                        : f->nested                      ? OT_WEIGHT_NF4_DOUBLE
                                                                         : OT_WEIGHT_NF4,
                              .rows = tensor->rows,
                              .cols = tensor->cols};
}

struct decoding {
    const struct ot_weight *weight;
    const char *encoded;
    float *values;         /* of the matrix */
    float *pieces;         /* [threads, piece] */
    int64_t piece;         /* values that are decoded at once: whole units of the format */
    double *error, *power; /* by piece */
};

/* Decodes a piece, in place of the weights. */
static void decode_piece(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    const struct decoding *d = context;
    float *piece = d->pieces + worker * d->piece, *values = d->values + begin;
    double error = 0, power = 0;
    ot_weight_decode(d->weight, d->encoded, OT_F32, begin, end - begin, piece);
    for (int64_t i = 0; i < end - begin; i++) {
        double lost = (double)values[i] - (double)piece[i];
        error += lost * lost;
        power += (double)values[i] * (double)values[i];
    }
    memcpy(values, piece, (size_t)(end - begin) * sizeof *piece);
    d->error[chunk] = error;
    d->power[chunk] = power;
}

static int decode_map(struct ot_quant_layer *layer, const struct ot_weight *weight, struct ot_quant_map *map,
                      float *values) {
    int64_t count = weight->rows * weight->cols;
    struct decoding d = {.weight = weight, .encoded = map->encoded, .values = values};
    d.piece = weight->format == OT_WEIGHT_INT8 ? weight->cols : OT_WEIGHT_BLOCK * OT_WEIGHT_GROUP;
    int64_t n = ot_chunk_count(count, d.piece);
    d.pieces = malloc((size_t)(ot_pool_threads(layer->pool) * d.piece) * sizeof *d.pieces);
    d.error = calloc((size_t)n, sizeof *d.error);
    d.power = calloc((size_t)n, sizeof *d.power);
    bool ok = d.pieces && d.error && d.power;
    if (ok)
        ot_pool_run(layer->pool, count, d.piece, decode_piece, &d);
    for (int64_t i = 0; ok && i < n; i++) {
        map->error += d.error[i];
        map->power += d.power[i];
    }
    free(d.pieces);
    free(d.error);
    free(d.power);
    return ok ? 0 : ot_fail(OT_E_BUDGET, "no memory to decode a matrix");
}

/* values: in the order of the file. */
static int encode_ordered(struct ot_quant_layer *layer, struct ot_quant_map *map, float *values) {
    const struct ot_weight weight = weight_of(layer->format, map->tensor);
    const struct ot_weight_layout layout = ot_weight_layout(&weight);
    const struct ot_weight_range range = {.dtype = OT_F32, .n = layout.n, .values = values};
    bool nested = weight.format == OT_WEIGHT_NF4_DOUBLE;
    float *scales = nested ? malloc((size_t)layout.n_scales * sizeof *scales) : NULL;
    map->encoded = aligned_alloc(OT_WEIGHT_EXTENT, (size_t)layout.bytes);
    int rc = map->encoded && (scales || !nested) ? 0 : ot_fail(OT_E_BUDGET, "no memory for codes");
    if (rc == 0) {
        ot_weight_begin(&weight, map->encoded);
        rc = ot_weight_encode(layer->pool, &weight, &range, map->encoded, scales);
    }
    if (rc == 0) {
        ot_weight_end(layer->pool, &weight, scales, map->encoded);
        rc = decode_map(layer, &weight, map, values);
    }
    free(scales);
    return rc;
}

static int encode_map(struct ot_quant_layer *layer, struct ot_quant_map *map, float *values) {
    OT_TRY(move_rows(layer, map->tensor, true, values, sizeof *values));
    OT_TRY(encode_ordered(layer, map, values));
    return move_rows(layer, map->tensor, false, values, sizeof *values);
}

int ot_quant_unit_run(struct ot_quant_layer *layer, int u, const struct ot_quant_input *input,
                      float *weights) {
    struct ot_quant_unit *unit = &layer->units[u];
    int64_t row = 0;
    int rc = 0, m = 0;
    if (layer->format->kind == OT_QUANT_KIND_GPTQ)
        rc = quantize_gptq(layer, unit, input, weights);
    for (; layer->format->kind != OT_QUANT_KIND_GPTQ && m < unit->n_maps && rc == 0; m++) {
        rc = encode_map(layer, &unit->maps[m], weights + row * unit->cols);
        row += unit->maps[m].tensor->rows;
    }
    return rc < 0 ? ot_fail_context(rc, "%s", unit->maps[m > 0 ? m - 1 : 0].tensor->name) : 0;
}

/* ---- the tensors of the checkpoint ---- */

/* Parts of a GPTQ matrix: rows [first, first + rows) of the unit. The codes are in the order of the
 * file for a while. */
static int gptq_parts(struct ot_quant_layer *layer, const struct ot_quant_unit *unit, int64_t first,
                      const struct ot_tensor *t) {
    const struct ot_quant_format *f = layer->format;
    int64_t groups = groups_of(f, t->cols);
    uint8_t *zeros = malloc((size_t)(groups * t->rows)), *codes = unit->codes + first * t->cols;
    uint16_t *scales = layer->tensors[2];
    if (!zeros)
        return ot_fail(OT_E_BUDGET, "no memory for zero points");
    for (int64_t g = 0; g < groups; g++)
        for (int64_t r = 0; r < t->rows; r++) {
            int64_t to = g * t->rows + file_row(layer, t, r);
            scales[to] = ot_f16_from_f32(unit->scales[g * unit->rows + first + r]);
            zeros[to] = unit->zeros[g * unit->rows + first + r];
        }
    int rc = move_rows(layer, t, true, codes, sizeof *codes);
    if (rc == 0) {
        ot_quant_encode_codes(f, t->rows, t->cols, codes, layer->tensors[0]);
        ot_quant_encode_zeros(f, t->rows, groups, zeros, layer->tensors[1]);
        memcpy(layer->tensors[3], unit->index, (size_t)t->cols * sizeof *unit->index);
        rc = move_rows(layer, t, false, codes, sizeof *codes);
    }
    free(zeros);
    return rc;
}

/* Finds the tensors of an encoded matrix: pieces of its bytes. */
static void encoded_parts(struct ot_quant_layer *layer, const struct ot_quant_map *map,
                          const struct ot_quant_tensor *described) {
    const struct ot_quant_format *f = layer->format;
    const struct ot_weight weight = weight_of(f, map->tensor);
    const struct ot_weight_layout l = ot_weight_layout(&weight);
    const struct ot_weight_tables *tables = (const struct ot_weight_tables *)(map->encoded + l.tables);
    int at = 0;
    memcpy(layer->tensors[at], map->encoded, (size_t)ot_quant_tensor_bytes(&described[at]));
    at++;
    memcpy(layer->tensors[at], map->encoded + l.scales, (size_t)ot_quant_tensor_bytes(&described[at]));
    at++;
    if (f->kind != OT_QUANT_KIND_4BIT)
        return;
    if (f->nested) {
        memcpy(layer->tensors[at], map->encoded + l.group_scales,
               (size_t)ot_quant_tensor_bytes(&described[at]));
        at++;
        memcpy(layer->tensors[at++], tables->map, sizeof tables->map);
    }
    memcpy(layer->tensors[at++], tables->table, sizeof tables->table);
    ot_quant_encode_state(f, map->tensor->rows, map->tensor->cols, tables->offset, layer->tensors[at]);
}

static int make_parts(struct ot_quant_layer *layer, const struct ot_quant_unit *unit, int m, int64_t row) {
    struct ot_quant_tensor described[OT_QUANT_TENSORS];
    const struct ot_tensor *t = unit->maps[m].tensor;
    int n = ot_quant_encode_tensors(layer->format, t, described);
    free_parts(layer);
    for (int i = 0; i < n; i++) {
        layer->tensors[i] = malloc((size_t)ot_quant_tensor_bytes(&described[i]));
        if (!layer->tensors[i])
            return ot_fail(OT_E_BUDGET, "no memory for the codes of %s", t->name);
    }
    if (layer->format->kind == OT_QUANT_KIND_GPTQ)
        return gptq_parts(layer, unit, row, t);
    encoded_parts(layer, &unit->maps[m], described);
    return 0;
}

int ot_quant_layer_tensors(struct ot_quant_layer *layer, const struct ot_tensor *tensor,
                           const void *tensors[OT_QUANT_TENSORS]) {
    for (int u = 0; u < layer->n_units; u++) {
        const struct ot_quant_unit *unit = &layer->units[u];
        int64_t row = 0;
        for (int m = 0; m < unit->n_maps; row += unit->maps[m++].tensor->rows) {
            if (unit->maps[m].tensor != tensor)
                continue;
            OT_TRY(make_parts(layer, unit, m, row));
            memcpy(tensors, layer->tensors, sizeof layer->tensors);
            return 0;
        }
    }
    return ot_fail(OT_E_INTERNAL, "%s is not of this layer", tensor->name);
}
