#include "models/encoded.h"

#include <stdlib.h>
#include <string.h>

#include "models/decoder.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

enum ot_weight_format ot_base_format(enum ot_base_type base, enum ot_dtype dtype) {
    static const enum ot_weight_format formats[] = {
        [OT_BASE_BF16] = OT_WEIGHT_BF16,
        [OT_BASE_F16] = OT_WEIGHT_F16,
        [OT_BASE_INT8] = OT_WEIGHT_INT8,
        [OT_BASE_NF4] = OT_WEIGHT_NF4,
        [OT_BASE_NF4_DOUBLE] = OT_WEIGHT_NF4_DOUBLE,
        [OT_BASE_MXFP4] = OT_WEIGHT_MXFP4,
    };
    return base == OT_BASE_AUTO ? (enum ot_weight_format)dtype : formats[base];
}

/* ---- entries ---- */

static enum ot_weight_format format_of(const struct ot_model *model) {
    return ot_base_format(model->base, model->chain.dtype);
}

/* A router is small, and an error there would choose another expert. In MXFP4 only experts are encoded, as in
 * files of gpt-oss: so no weight of such a file is rounded. transformers keeps the down projections of a T5
 * ("wo") plain when it quantises, because their outputs are large (_keep_in_fp32_modules). */
static bool stays_plain(const struct ot_model *model, const struct ot_tensor *t) {
    bool is_expert = ot_module_is_expert(t->module);
    if (t->module == OT_MODULE_ROUTER || (model->base == OT_BASE_MXFP4 && model->config.n_experts > 0))
        return !is_expert;
    bool quantises = model->base != OT_BASE_BF16 && model->base != OT_BASE_F16;
    return quantises && model->config.family == OT_FAMILY_T5 && t->module == OT_MODULE_DOWN;
}

static enum ot_weight_format format_of_matrix(const struct ot_model *model, const struct ot_tensor *t) {
    return stays_plain(model, t) ? (enum ot_weight_format)model->chain.dtype : format_of(model);
}

static int64_t entry_bytes(const struct ot_weight *weight) {
    return ot_weight_layout(weight).bytes;
}

/* Matrices of a tensor: one, or one of each expert. */
static int64_t matrices_of(const struct ot_tensor *t) {
    return t->parts > 0 ? t->parts : 1;
}

/* Goes to the next entry of a slab; from {0}, to the first. Matrices come first in a slab; the rest is one
 * entry. False: this was the last. */
static bool next_entry(const struct ot_model *model, int slab, struct ot_encoded_entry *entry) {
    const struct ot_slab_memory *memory = &model->slab_memory[slab];
    const struct ot_tensor *tensors = &model->tensors[memory->first_tensor];
    if (entry->weight.cols > 0) {
        entry->first += entry->weight.rows * entry->weight.cols;
        entry->at += entry_bytes(&entry->weight);
        if (entry->tensor < memory->n_tensors && ++entry->matrix == matrices_of(&tensors[entry->tensor])) {
            entry->tensor++;
            entry->matrix = 0;
        }
    }
    const struct ot_tensor *t = &tensors[entry->tensor];
    if (entry->tensor < memory->n_tensors && t->dims == 2)
        entry->weight = (struct ot_weight){format_of_matrix(model, t), t->rows / matrices_of(t), t->cols};
    else
        entry->weight = (struct ot_weight){(enum ot_weight_format)model->chain.dtype, 1,
                                           model->slabs[slab].n_params - entry->first};
    return entry->weight.cols > 0;
}

/* The array of a slab's pieces in which an entry lies; -1: in none. expert: whose piece it belongs to. */
static int array_of(const struct ot_slab_spec *spec, const struct ot_encoded_entry *entry, int64_t *expert) {
    for (int a = 0; a < spec->n_pieces; a++) {
        *expert = (entry->first - spec->pieces[a].first) / spec->pieces[a].each;
        if (entry->first >= spec->pieces[a].first && *expert < spec->n_parts)
            return a;
    }
    return -1;
}

int ot_slab_encode(struct ot_model *model, int slab) {
    struct ot_slab_spec *spec = &model->slabs[slab];
    const struct ot_slab_memory *memory = &model->slab_memory[slab];
    struct ot_encoded_entry entry = {0};
    int64_t expert;
    bool has_matrix = memory->n_tensors > 0 && model->tensors[memory->first_tensor].dims == 2;
    if (!spec->frozen || spec->edge || spec->shared || !has_matrix ||
        format_of(model) == (enum ot_weight_format)model->chain.dtype)
        return 0;
    while (next_entry(model, slab, &entry)) {
        int rc = ot_weight_check(&entry.weight), array = array_of(spec, &entry, &expert);
        if (rc < 0)
            return ot_fail_context(rc, "slab '%s'", spec->name);
        spec->encoded_bytes = entry.at + entry_bytes(&entry.weight);
        if (array >= 0 && entry.first == spec->pieces[array].first)
            spec->encoded[array].first = entry.at / OT_ENCODED_UNIT;
        if (array >= 0 && expert == 0)
            spec->encoded[array].each += entry_bytes(&entry.weight) / OT_ENCODED_UNIT;
    }
    model->chain.decode = ot_slab_decode;
    return 0;
}

bool ot_encoded_entry(const struct ot_model *model, int slab, int index, struct ot_encoded_entry *out) {
    struct ot_encoded_entry entry = {0};
    bool found = model->slabs[slab].encoded_bytes > 0;
    for (int i = 0; found && i <= index; i++)
        found = next_entry(model, slab, &entry);
    if (found)
        *out = entry;
    return found;
}

bool ot_model_has_encoded(const struct ot_model *model) {
    return model->chain.decode != NULL;
}

int64_t ot_model_encoded_bytes(const struct ot_model *model, int64_t *plain) {
    int64_t encoded = 0, decoded = 0;
    for (int s = 0; s < model->chain.n_slabs; s++)
        if (model->slabs[s].encoded_bytes > 0) {
            encoded += model->slabs[s].encoded_bytes;
            decoded += model->slabs[s].n_params * (int64_t)ot_dtype_bytes(model->chain.dtype);
        }
    if (plain)
        *plain = decoded;
    return encoded;
}

static bool is_decoded(const struct ot_slab_spec *spec, const struct ot_encoded_entry *entry,
                       const struct ot_slab_decoding *what) {
    int64_t expert;
    return array_of(spec, entry, &expert) < 0 ? what->dense
                                              : what->parts && (!what->used || what->used[expert] != 0);
}

void ot_slab_decode(const void *context, int slab, struct ot_lane *lane,
                    const struct ot_slab_decoding *what) {
    const struct ot_model *model = context;
    struct ot_encoded_entry entry = {0};
    while (next_entry(model, slab, &entry)) {
        struct ot_decode op = {
            .weight = entry.weight,
            .dtype = model->chain.dtype,
            .n = entry.weight.rows * entry.weight.cols,
            .encoded = (const char *)what->encoded + entry.at,
            .out = (char *)what->weights + (size_t)entry.first * ot_dtype_bytes(model->chain.dtype),
        };
        if (is_decoded(&model->slabs[slab], &entry, what))
            ot_device_ops(ot_lane_device(lane))->decode(lane, &op);
    }
}

/* ---- encoding ---- */

struct ot_slab_encoder {
    const struct ot_model *model;
    struct ot_pool *pool;
    ot_encoded_sink sink;
    void *context;
    char *encoded; /* the present entry */
    float *scales; /* of NF4_DOUBLE */
    float *carry;  /* values of a unit that is not complete yet */
    int slab, index;
    struct ot_encoded_entry entry;
    int64_t taken;   /* values of the entry, the carried ones among them */
    int64_t carried; /* values */
};

/* The memory of an encoder, which fits the largest entry of any slab. */
struct encoder_sizes {
    size_t encoded, scales, carry;
};

static struct encoder_sizes sizes_of(const struct ot_model *model) {
    struct encoder_sizes sizes = {0};
    for (int slab = 0; slab < model->chain.n_slabs; slab++) {
        struct ot_encoded_entry entry = {0};
        while (model->slabs[slab].encoded_bytes > 0 && next_entry(model, slab, &entry)) {
            struct ot_weight_layout l = ot_weight_layout(&entry.weight);
            bool nested = entry.weight.format == OT_WEIGHT_NF4_DOUBLE;
            sizes.encoded = ot_max(sizes.encoded, (size_t)l.bytes);
            sizes.scales = ot_max(sizes.scales, nested ? (size_t)l.n_scales * sizeof(float) : 0);
            sizes.carry = ot_max(sizes.carry, (size_t)l.unit * sizeof(float));
        }
    }
    return sizes;
}

size_t ot_slab_encoder_bytes(const struct ot_model *model) {
    struct encoder_sizes sizes = sizes_of(model);
    return sizes.encoded + sizes.scales + sizes.carry;
}

int ot_slab_encoder_open(const struct ot_model *model, struct ot_pool *pool, ot_encoded_sink sink,
                         void *context, struct ot_slab_encoder **out) {
    struct encoder_sizes sizes = sizes_of(model);
    struct ot_slab_encoder *e = calloc(1, sizeof *e);
    *out = e;
    if (!e)
        return ot_fail(OT_E_BUDGET, "no memory to encode weights");
    *e = (struct ot_slab_encoder){.model = model, .pool = pool, .sink = sink, .context = context, .slab = -1};
    e->encoded = malloc(sizes.encoded + 1);
    e->scales = malloc(sizes.scales + 1);
    e->carry = malloc(sizes.carry + 1);
    if (e->encoded && e->scales && e->carry)
        return 0;
    ot_slab_encoder_close(e);
    *out = NULL;
    return ot_fail(OT_E_BUDGET, "no memory for the %zu bytes of an encoded matrix", sizes.encoded);
}

void ot_slab_encoder_close(struct ot_slab_encoder *e) {
    if (!e)
        return;
    free(e->encoded);
    free(e->scales);
    free(e->carry);
    free(e);
}

static float *scales_of(const struct ot_slab_encoder *e) {
    return e->entry.weight.format == OT_WEIGHT_NF4_DOUBLE ? e->scales : NULL;
}

static int encode(struct ot_slab_encoder *e, int64_t first, int64_t n, const float *values) {
    const struct ot_weight_range range = {OT_F32, first, n, values};
    int rc = ot_weight_encode(e->pool, &e->entry.weight, &range, e->encoded, scales_of(e));
    return rc < 0 ? ot_fail_context(rc, "slab '%s', matrix %d", e->model->slabs[e->slab].name, e->index + 1)
                  : 0;
}

/* Takes values of the present entry. Only whole units can be encoded: the values of an incomplete unit are
 * carried. */
static int take(struct ot_slab_encoder *e, int64_t n, const float *values) {
    struct ot_weight_layout l = ot_weight_layout(&e->entry.weight);
    int64_t end = e->taken + n;
    if (e->carried > 0) {
        int64_t missing = l.unit - e->carried, more = ot_min(missing, n);
        memcpy(e->carry + e->carried, values, (size_t)more * sizeof *values);
        e->carried += more;
        values += more;
        n -= more;
        if (e->carried == l.unit || end == l.n) {
            OT_TRY(encode(e, end - n - e->carried, e->carried, e->carry));
            e->carried = 0;
        }
    }
    int64_t whole = end == l.n ? n : n - n % l.unit;
    if (whole > 0)
        OT_TRY(encode(e, end - n, whole, values));
    memcpy(e->carry + e->carried, values + whole, (size_t)(n - whole) * sizeof *values);
    e->carried += n - whole;
    e->taken = end;
    return 0;
}

static int begin_part(struct ot_slab_encoder *e, int slab, int index) {
    bool follows = slab == e->slab && index == e->index + 1;
    e->slab = slab;
    e->index = index;
    e->taken = e->carried = 0;
    if (!(follows ? next_entry(e->model, slab, &e->entry)
                  : ot_encoded_entry(e->model, slab, index, &e->entry)))
        return ot_fail(OT_E_INTERNAL, "slab %d has no encoded part %d", slab, index);
    ot_weight_begin(&e->entry.weight, e->encoded);
    return 0;
}

static int end_part(struct ot_slab_encoder *e) {
    ot_weight_end(e->pool, &e->entry.weight, scales_of(e), e->encoded);
    return e->sink(e->context, e->slab, e->entry.at / OT_ENCODED_UNIT,
                   entry_bytes(&e->entry.weight) / OT_ENCODED_UNIT, e->encoded);
}

int ot_slab_encoder_put(struct ot_slab_encoder *e, int slab, int64_t first, int64_t n, const float *values) {
    if (first == 0)
        OT_TRY(begin_part(e, slab, 0));
    while (n > 0) {
        int64_t left = e->entry.weight.rows * e->entry.weight.cols - e->taken, some = ot_min(n, left);
        if (slab != e->slab || first != e->entry.first + e->taken)
            return ot_fail(OT_E_INTERNAL, "parameter %lld of slab %d does not follow the one before",
                           (long long)first, slab);
        OT_TRY(take(e, some, values));
        first += some;
        values += some;
        n -= some;
        if (some == left) {
            OT_TRY(end_part(e));
            if (first < e->model->slabs[slab].n_params)
                OT_TRY(begin_part(e, slab, e->index + 1));
        }
    }
    return 0;
}
