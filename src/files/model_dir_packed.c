/* The tensors of a quantised checkpoint: finds those that are one matrix together (quant_decode.h), by their
 * names. */
#include "src/files/model_dir_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/arena.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

enum { NAME_BYTES = 512, MOST_SUFFIXES = 8 };

/* The suffixes of a matrix' tensors. `own` has the codes. The tensor of `mark` must be there too, or the
 * first is a tensor like any other. */
struct packed_names {
    enum ot_quant_method method;
    enum ot_quant_kind kind;
    const char *own, *mark;
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
                   find_suffix(u, u->names->own)->file->path, u->stem, u->names->own, u->stem, suffix);
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
            has_stem(stored->tensor->name, kinds[i].own, u->stem) && find_suffix(u, kinds[i].mark))
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
