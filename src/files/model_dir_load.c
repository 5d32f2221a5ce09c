/* Finds each tensor of a model in its directory, and streams the values into slabs. */
#include "src/files/model_dir_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/block.h"
#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/thread.h"
#include "src/gguf/gguf.h"

enum {
    CHUNK_VALUES = 1 << 20,
    PART_VALUES = 1 << 16,
    MAX_PARTS = CHUNK_VALUES / PART_VALUES,
    AHEAD_BYTES =
        32 << 20, /* the kernel reads it while we convert; enough to keep a fast NVMe's queue full */
};

/* The embedding of a T5 in the stacks that read it. Files have it under one of its names, or several. */
static const char *const STACK_EMBEDDINGS[] = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"};
enum { N_STACK_EMBEDDINGS = sizeof STACK_EMBEDDINGS / sizeof *STACK_EMBEDDINGS };

/* ---- mapping stored tensors to the model's ---- */

static const char *without_prefix(const char *name) {
    static const char *const prefixes[] = {"model.", "transformer."};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return name + strlen(prefixes[i]);
    return name;
}

/* Finds a tensor with or without prefix: files of a model saved without its head have no prefix. */
static const struct ot_stored *find_stored(const struct ot_model_dir *dir, const char *name) {
    char other[128];
    const char *bare = without_prefix(name);
    const struct ot_stored *stored = ot_model_dir_find(dir, name);
    if (!stored)
        stored = ot_model_dir_find(dir, bare);
    static const char *const prefixes[] = {"model.", "transformer."};
    /* The text part of a model of text and images, as newer and as older files name it. */
    static const char *const outer[] = {"model.language_model.", "language_model.model.", "language_model."};
    for (size_t i = 0; !stored && dir->facts.is_text_part && i < sizeof outer / sizeof *outer; i++) {
        snprintf(other, sizeof other, "%s%s", outer[i], bare);
        stored = ot_model_dir_find(dir, other);
    }
    for (size_t i = 0; !stored && i < sizeof prefixes / sizeof *prefixes; i++) {
        snprintf(other, sizeof other, "%s%s", prefixes[i], bare);
        stored = ot_model_dir_find(dir, other);
    }
    return stored;
}

static int check_tensor(const struct ot_model_dir *dir, const struct ot_stored *stored,
                        const struct ot_tensor *wanted) {
    const struct ot_safetensor *found = stored->tensor;
    int64_t want[3];
    int dims = ot_tensor_file_shape(wanted, stored, want);
    if (ot_new_rows_are_of(dir, wanted, stored))
        want[0] = dir->new_rows.vocab;
    char have_text[OT_SHAPE_TEXT_BYTES], want_text[OT_SHAPE_TEXT_BYTES];
    if (found->dims != dims || memcmp(found->shape, want, (size_t)dims * sizeof *want) != 0)
        return ot_fail(OT_E_INPUT, "%s: tensor %s has the shape %s, but by config.json it should be %s",
                       stored->file->path, found->name, ot_shape_text(found->shape, found->dims, have_text),
                       ot_shape_text(want, dims, want_text));
    if (!found->readable)
        return ot_fail(OT_E_INPUT, "%s: tensor %s is stored as %s; readable types are %s", stored->file->path,
                       found->name, found->dtype_name,
                       stored->blocks ? ot_gguf_readable_types() : "F32, F16, BF16");
    return 0;
}

static bool has_pairs(const struct ot_model_dir *dir) {
    return ot_model_has_pairs(&dir->facts.config);
}

/* True for tensors that are not parameters: buffers that older versions of transformers saved, biases of
 * cross attention that no T5 uses, and copies of the embedding: the head of a tied model, and in the stacks
 * of a T5. */
static bool may_ignore(const struct ot_model_dir *dir, const struct ot_safetensor *tensor, bool tied) {
    static const char *const of_images[] = {"vision_tower.", "multi_modal_projector.", "vision_model."};
    for (size_t i = 0; dir->facts.is_text_part && i < sizeof of_images / sizeof *of_images; i++)
        if (strstr(tensor->name, of_images[i]))
            return true;
    static const char *const suffixes[] = {
        ".rotary_emb.inv_freq",    ".attn.bias",
        ".attn.masked_bias",       ".attn.causal_mask",
        ".maybe_rotary.inv_freq",  ".EncDecAttention.relative_attention_bias.weight",
        ".cross_attn_rel_b.weight"};
    size_t bytes = strlen(tensor->name);
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        size_t end = strlen(suffixes[i]);
        if (bytes > end && strcmp(tensor->name + bytes - end, suffixes[i]) == 0)
            return true;
    }
    for (int i = 0; has_pairs(dir) && i < N_STACK_EMBEDDINGS; i++)
        if (strcmp(tensor->name, STACK_EMBEDDINGS[i]) == 0)
            return true;
    return tied && strcmp(without_prefix(tensor->name), OT_HEAD_WEIGHT) == 0;
}

/* The base's tensor. Of two tied tensors safetensors stores one; the writer chooses which. */
static const struct ot_stored *find_own(const struct ot_model_dir *dir, const struct ot_tensor *wanted,
                                        bool tied) {
    const struct ot_stored *stored = find_stored(dir, wanted->name);
    if (stored || wanted->module != OT_MODULE_EMBEDDING || ot_lora_has_tensor(wanted->name))
        return stored;
    for (int i = 0; !stored && has_pairs(dir) && i < N_STACK_EMBEDDINGS; i++)
        stored = find_stored(dir, STACK_EMBEDDINGS[i]);
    return stored || !tied ? stored : find_stored(dir, OT_HEAD_WEIGHT);
}

static const struct ot_stored *find_wanted(const struct ot_model_dir *dir, const struct ot_tensor *wanted,
                                           bool tied) {
    const struct ot_stored *stored = ot_adapter_find(&dir->adapter, wanted->name);
    if (!stored)
        stored = ot_adapter_find_base(&dir->adapter, wanted->name);
    return stored ? stored : find_own(dir, wanted, tied);
}

const struct ot_stored *ot_model_dir_find_tensor(const struct ot_model_dir *dir,
                                                 const struct ot_tensor *tensor) {
    return find_wanted(dir, tensor, dir->facts.config.tied);
}

static int fail_missing(const struct ot_model_dir *dir, const struct ot_tensor *missing, int64_t n_missing) {
    const char *hint = strcmp(missing->name, OT_HEAD_WEIGHT) == 0
                           ? "; if the model shares these weights with the embedding, config.json needs "
                             "tie_word_embeddings true"
                           : "";
    return ot_fail(OT_E_INPUT, "%s: tensor %s is missing from the weights (missing tensors: %lld)%s",
                   ot_lora_has_tensor(missing->name) ? ot_safetensors_path(dir->adapter.file) : dir->path,
                   missing->name, (long long)n_missing, hint);
}

static int find_all(const struct ot_model_dir *dir, const struct ot_model *model,
                    const struct ot_stored **map) {
    bool tied = ot_model_get_config(model)->tied;
    const struct ot_tensor *missing = NULL;
    int64_t n_missing = 0;
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++) {
        const struct ot_tensor *wanted = ot_model_tensor(model, i);
        map[i] = find_wanted(dir, wanted, tied);
        if (map[i]) {
            OT_TRY(check_tensor(dir, map[i], wanted));
        } else if (dir->adapter.file || !ot_lora_has_tensor(wanted->name)) {
            missing = missing ? missing : wanted;
            n_missing++;
        }
    }
    return missing ? fail_missing(dir, missing, n_missing) : 0;
}

/* Marks the base's and the adapter's tensors that the model has. */
static void mark_used(const struct ot_model_dir *dir, const struct ot_model *model, bool *used,
                      bool *adapter_used) {
    bool tied = ot_model_get_config(model)->tied;
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++) {
        const struct ot_tensor *tensor = ot_model_tensor(model, i);
        const struct ot_stored *stored = find_own(dir, tensor, tied),
                               *adapted = ot_adapter_find(&dir->adapter, tensor->name);
        if (stored)
            used[stored - dir->stored] = true;
        if (!adapted)
            adapted = ot_adapter_find_base(&dir->adapter, tensor->name);
        if (adapted)
            adapter_used[adapted - dir->adapter.stored] = true;
    }
    /* check_copies compares them with the embedding */
    char rows[OT_TABLE_NAME_BYTES];
    const struct ot_stored *copies[] = {
        ot_adapter_find(&dir->adapter, OT_HEAD_WEIGHT), ot_adapter_find_base(&dir->adapter, OT_HEAD_WEIGHT),
        ot_adapter_find(&dir->adapter, ot_new_rows_name(dir, OT_MODULE_HEAD, rows))};
    for (size_t i = 0; tied && i < 3; i++)
        if (copies[i])
            adapter_used[copies[i] - dir->adapter.stored] = true;
}

static int fail_extra(const struct ot_stored *extra, int64_t n, const char *what) {
    return ot_fail(OT_E_INPUT, "%s: tensor %s is not part of %s (such tensors: %lld)", extra->file->path,
                   extra->tensor->name, what, (long long)n);
}

static int check_extra(const struct ot_model_dir *dir, const struct ot_model *model, bool *used) {
    bool tied = ot_model_get_config(model)->tied, *adapter_used = used + dir->n_stored;
    const struct ot_stored *extra = NULL, *adapter_extra = NULL;
    int64_t n_extra = 0, n_adapter_extra = 0;
    mark_used(dir, model, used, adapter_used);
    for (int64_t i = 0; i < dir->n_stored; i++) {
        bool ignored = used[i] || may_ignore(dir, dir->stored[i].tensor, tied);
        if (!ignored)
            OT_TRY(ot_model_dir_is_zero_bias(dir, &dir->stored[i], &ignored));
        if (!ignored) {
            extra = extra ? extra : &dir->stored[i];
            n_extra++;
        }
    }
    for (int64_t i = 0; i < dir->adapter.n_stored; i++)
        if (!adapter_used[i]) {
            adapter_extra = adapter_extra ? adapter_extra : &dir->adapter.stored[i];
            n_adapter_extra++;
        }
    if (adapter_extra)
        return fail_extra(adapter_extra, n_adapter_extra, "what its adapter_config.json describes");
    return extra ? fail_extra(extra, n_extra, "the model that config.json describes") : 0;
}

static int compare_values(const struct ot_stored *a, const struct ot_stored *b, bool *same) {
    float *values = malloc(2 * PART_VALUES * sizeof *values);
    int rc = 0;
    if (!values)
        return ot_fail(OT_E_BUDGET, "no memory to compare two tensors");
    for (int64_t at = 0, n; at < a->tensor->count && *same && rc == 0; at += n) {
        n = ot_min(a->tensor->count - at, PART_VALUES);
        int64_t bad; /* the loader refuses values that are not finite */
        rc = ot_stored_read(a, at, n, values, &bad);
        if (rc == 0)
            rc = ot_stored_read(b, at, n, values + PART_VALUES, &bad);
        if (rc == 0)
            *same = memcmp(values, values + PART_VALUES, (size_t)n * sizeof *values) == 0;
        ot_stored_release(a, at, n);
        ot_stored_release(b, at, n);
    }
    free(values);
    return rc;
}

static int check_copy(const struct ot_stored *embedding, const struct ot_stored *copy, const char *why) {
    if (!copy || copy == embedding)
        return 0;
    const struct ot_safetensor *c = copy->tensor, *e = embedding->tensor;
    bool same = c->readable && c->dims == e->dims &&
                memcmp(c->shape, e->shape, (size_t)c->dims * sizeof *c->shape) == 0;
    if (same)
        OT_TRY(compare_values(copy, embedding, &same));
    return same ? 0
                : ot_fail(OT_E_INPUT, "%s: tensor %s differs from %s, but %s", copy->file->path, c->name,
                          e->name, why);
}

/* A config may tie head and embedding while the files still hold a head. The head may be ignored only if it
 * equals the embedding: transformers uses a different head, tied or not. So may an embedding of a stack. */
static int check_copies(const struct ot_model_dir *dir, const struct ot_model *model,
                        const struct ot_stored *const *map) {
    int64_t i = 0;
    while (ot_model_tensor(model, i)->module != OT_MODULE_EMBEDDING ||
           ot_lora_has_tensor(ot_model_tensor(model, i)->name))
        i++;
    for (int k = 0; has_pairs(dir) && k < N_STACK_EMBEDDINGS; k++)
        OT_TRY(check_copy(map[i], find_stored(dir, STACK_EMBEDDINGS[k]), "a T5 has one embedding"));
    if (!ot_model_get_config(model)->tied)
        return 0;
    static const char why[] = "config.json says tie_word_embeddings true";
    OT_TRY(check_copy(map[i], ot_adapter_find_base(&dir->adapter, OT_HEAD_WEIGHT), why));
    OT_TRY(check_copy(map[i], ot_adapter_find(&dir->adapter, OT_HEAD_WEIGHT), why));
    char name[OT_TABLE_NAME_BYTES];
    const struct ot_stored *rows =
        ot_adapter_find(&dir->adapter, ot_new_rows_name(dir, OT_MODULE_EMBEDDING, name));
    if (rows)
        OT_TRY(check_copy(rows, ot_adapter_find(&dir->adapter, ot_new_rows_name(dir, OT_MODULE_HEAD, name)),
                          why));
    return check_copy(map[i], find_stored(dir, OT_HEAD_WEIGHT),
                      "config.json says tie_word_embeddings true; set it to false to use both, as "
                      "transformers does");
}

int ot_model_dir_check_base_layers(const struct ot_model_dir *dir) {
    static const enum ot_module modules[] = {OT_MODULE_EMBEDDING, OT_MODULE_HEAD};
    static const char cure[] =
        "adapters are saved without it; merge these adapters first (offload-train merge), "
        "and use the result as the model";
    if (dir->is_resized)
        return ot_fail(OT_E_INPUT, "%s: its embedding has %lld tokens, other than the base's, but %s",
                       ot_safetensors_path(dir->adapter.file), (long long)dir->facts.config.vocab, cure);
    const struct ot_stored *stored = NULL;
    for (size_t i = 0; i < sizeof modules / sizeof *modules; i++) {
        char name[OT_TABLE_NAME_BYTES];
        const struct ot_stored *found = find_stored(dir, ot_model_dir_table_name(dir, modules[i], name));
        stored = found ? found : stored; /* a tied head is the embedding */
        if (stored)
            OT_TRY(check_copy(stored, ot_adapter_find_base(&dir->adapter, name), cure));
    }
    return 0;
}

int ot_model_dir_map(const struct ot_model_dir *dir, const struct ot_model *model,
                     const struct ot_stored ***out) {
    if (!dir->facts.has_weights)
        return ot_fail(OT_E_INPUT, "%s: %s", dir->path, dir->facts.weights_missing);
    const struct ot_stored **map = calloc((size_t)ot_model_tensor_count(model) + 1, sizeof *map);
    bool *used = calloc((size_t)(dir->n_stored + dir->adapter.n_stored) + 1, sizeof *used);
    int rc;
    if (!map || !used) {
        rc = ot_fail(OT_E_BUDGET, "%s: no memory for a table of tensors", dir->path);
        goto out;
    }
    OT_TRY_GOTO(find_all(dir, model, map), rc, out);
    OT_TRY_GOTO(check_extra(dir, model, used), rc, out);
    OT_TRY_GOTO(check_copies(dir, model, map), rc, out);
    *out = map;
    map = NULL;
out:
    free(used);
    free(map);
    return rc;
}

int ot_model_dir_check(const struct ot_model_dir *dir, const struct ot_model *model) {
    const struct ot_stored **map;
    OT_TRY(ot_model_dir_map(dir, model, &map));
    free(map);
    return 0;
}

/* ---- streaming ---- */

struct loader {
    const struct ot_model_dir *dir;
    const struct ot_model *model;
    const struct ot_stored **map;
    struct ot_pool *pool;
    ot_param_sink sink;
    void *context;
    float *values; /* CHUNK_VALUES */
    /* The end of the kernel's read-ahead: tensor, value in it, and bytes from the present position. */
    int64_t ahead_tensor, ahead_value, ahead_bytes;
    bool frozen_only;
    /* The present chunk. */
    const struct ot_tensor *tensor;
    const struct ot_stored *stored;
    int64_t first;
    struct ot_error errors[MAX_PARTS];
};

static bool wants_slab(const struct loader *l, int slab) {
    return !l->frozen_only || ot_model_chain(l->model)->slabs[slab].frozen;
}

/* A magnitude of DoRA is computed as a whole. The B of experts' adapters changes its order as a whole. */
static bool is_small(const struct ot_tensor *tensor) {
    return tensor->file_form == OT_FORM_ABOVE_NORM || tensor->file_form == OT_FORM_EXPERT_COLUMNS;
}

/* Keeps the kernel AHEAD_BYTES ahead, in the order in which the model (not the file) needs the tensors. */
static void read_ahead(struct loader *l) {
    while (l->ahead_bytes < AHEAD_BYTES && l->ahead_tensor < ot_model_tensor_count(l->model)) {
        const struct ot_tensor *tensor = ot_model_tensor(l->model, l->ahead_tensor);
        if (!l->map[l->ahead_tensor] || !wants_slab(l, tensor->slab) || is_small(tensor)) {
            l->ahead_tensor++;
            continue;
        }
        const struct ot_stored *stored = l->map[l->ahead_tensor];
        int64_t n = ot_min(stored->tensor->count - l->ahead_value, CHUNK_VALUES);
        ot_stored_prefetch(stored, l->ahead_value, n);
        l->ahead_bytes += (int64_t)ot_stored_bytes(stored, l->ahead_value, n);
        l->ahead_value += n;
        if (l->ahead_value == stored->tensor->count) {
            l->ahead_tensor++;
            l->ahead_value = 0;
        }
    }
}

static int convert_part(const struct loader *l, int64_t begin, int64_t end) {
    int64_t bad;
    OT_TRY(ot_model_dir_read(l->dir, ot_model_get_config(l->model), l->tensor, l->stored, l->first + begin,
                             end - begin, l->values + begin, &bad));
    if (bad >= 0)
        return ot_fail(OT_E_INPUT,
                       "%s: tensor %s holds %g at element %lld; the weights are damaged, get the file again",
                       l->stored->file->path, l->stored->tensor->name, (double)l->values[begin + bad],
                       (long long)(l->first + begin + bad));
    return 0;
}

static void convert_on_pool(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    struct loader *l = context;
    (void)worker;
    ot_error_save(&l->errors[chunk], convert_part(l, begin, end));
}

static int convert_chunk(struct loader *l, int64_t n) {
    if (!l->pool)
        return convert_part(l, 0, n);
    ot_pool_run(l->pool, n, PART_VALUES, convert_on_pool, l);
    for (int64_t part = 0; part < ot_chunk_count(n, PART_VALUES); part++)
        if (l->errors[part].code != 0)
            return ot_error_load(&l->errors[part]);
    return 0;
}

/* A table has zeros where adapters have rows of its tokens (models/lora.h). */
static void clear_rows(struct loader *l, const struct ot_tensor *tensor, int64_t n) {
    const struct ot_model_config *config = ot_model_get_config(l->model);
    int64_t begin = ot_max(config->first_new * tensor->cols, l->first), end = l->first + n,
            last = (config->first_new + config->n_new) * tensor->cols;
    end = ot_min(end, last);
    if (ot_model_has_token_rows(l->model, tensor) && begin < end)
        memset(l->values + (begin - l->first), 0, (size_t)(end - begin) * sizeof *l->values);
}

static int load_tensor(struct loader *l, const struct ot_tensor *tensor, const struct ot_stored *stored) {
    int64_t count = tensor->rows * tensor->cols;
    l->tensor = tensor;
    l->stored = stored;
    for (l->first = 0; l->first < count;) {
        int64_t n = ot_min(count - l->first, CHUNK_VALUES),
                in_file = ot_new_rows_in_file(stored, l->first, n);
        read_ahead(l);
        OT_TRY(convert_chunk(l, n));
        clear_rows(l, tensor, n);
        OT_TRY(l->sink(l->context, tensor->slab, tensor->first + l->first, n, l->values));
        if (in_file > 0) {
            ot_stored_release(stored, l->first, in_file);
            l->ahead_bytes -= (int64_t)ot_stored_bytes(stored, l->first, in_file);
        }
        l->first += n;
    }
    return 0;
}

static int load_small(struct loader *l, const struct ot_tensor *tensor) {
    int64_t count = tensor->rows * tensor->cols;
    float *values;
    int rc = ot_adapter_load(l->dir, l->model, tensor, &values);
    for (int64_t at = 0, n; at < count && rc == 0; at += n) {
        n = ot_min(count - at, CHUNK_VALUES);
        rc = l->sink(l->context, tensor->slab, tensor->first + at, n, values + at);
    }
    free(values);
    return rc;
}

static int load_zeros(struct loader *l, int slab, int64_t first, int64_t end) {
    if (first < end)
        memset(l->values, 0, (size_t)ot_min(end - first, CHUNK_VALUES) * sizeof *l->values);
    for (int64_t n; first < end; first += n) {
        n = ot_min(end - first, CHUNK_VALUES);
        OT_TRY(l->sink(l->context, slab, first, n, l->values));
    }
    return 0;
}

static int load_slabs(struct loader *l) {
    const struct ot_chain *chain = ot_model_chain(l->model);
    int64_t index = 0, count = ot_model_tensor_count(l->model);
    for (int slab = 0; slab < chain->n_slabs; slab++) {
        int64_t at = 0;
        for (; index < count && ot_model_tensor(l->model, index)->slab == slab; index++) {
            const struct ot_tensor *tensor = ot_model_tensor(l->model, index);
            if (tensor->first < at)
                return ot_fail(OT_E_INTERNAL, "tensor %s begins before the end of the tensor before it",
                               tensor->name);
            if (!wants_slab(l, slab))
                continue;
            OT_TRY(load_zeros(l, slab, at, tensor->first));
            if (l->map[index])
                OT_TRY(is_small(tensor) ? load_small(l, tensor) : load_tensor(l, tensor, l->map[index]));
            at = tensor->first + tensor->rows * tensor->cols;
        }
        if (wants_slab(l, slab))
            OT_TRY(load_zeros(l, slab, at, chain->slabs[slab].n_params));
    }
    return 0;
}

static int load(const struct ot_model_dir *dir, const struct ot_model *model, bool frozen_only,
                struct ot_pool *pool, ot_param_sink sink, void *context) {
    int rc;
    struct loader *l = calloc(1, sizeof *l);
    if (!l)
        return ot_fail(OT_E_BUDGET, "%s: no memory to read the model", dir->path);
    *l = (struct loader){.dir = dir,
                         .model = model,
                         .frozen_only = frozen_only,
                         .pool = pool,
                         .sink = sink,
                         .context = context};
    OT_TRY_GOTO(ot_model_dir_map(dir, model, &l->map), rc, out);
    l->values = malloc(CHUNK_VALUES * sizeof *l->values);
    if (!l->values) {
        rc = ot_fail(OT_E_BUDGET, "%s: no memory for a buffer of %zu bytes to read the model", dir->path,
                     CHUNK_VALUES * sizeof *l->values);
        goto out;
    }
    rc = load_slabs(l);
out:
    free(l->values);
    free(l->map);
    free(l);
    return rc;
}

int ot_model_dir_load(const struct ot_model_dir *dir, const struct ot_model *model, struct ot_pool *pool,
                      ot_param_sink sink, void *context) {
    return load(dir, model, false, pool, sink, context);
}

int ot_model_dir_load_frozen(const struct ot_model_dir *dir, const struct ot_model *model,
                             struct ot_pool *pool, ot_param_sink sink, void *context) {
    return load(dir, model, true, pool, sink, context);
}

int ot_model_dir_get(const struct ot_model_dir *dir, const struct ot_tensor *tensor, int64_t first, int64_t n,
                     float *values) {
    const struct ot_stored *stored = ot_model_dir_find_tensor(dir, tensor);
    int64_t bad; /* who trained with the file has refused values that are not finite */
    if (!stored)
        return ot_fail(OT_E_INPUT, "%s: tensor %s is missing from the weights", dir->path, tensor->name);
    OT_TRY(check_tensor(dir, stored, tensor));
    int rc = ot_model_dir_read(dir, &dir->facts.config, tensor, stored, first, n, values, &bad);
    ot_stored_release(stored, 0, stored->tensor->count); /* some forms read more than the part */
    return rc;
}

bool ot_model_dir_has_mxfp4(const struct ot_model_dir *dir, const struct ot_tensor *tensor) {
    const struct ot_stored *stored = ot_model_dir_find_tensor(dir, tensor);
    if (!stored || !stored->blocks)
        return stored && stored->packed && stored->packed->kind == OT_QUANT_KIND_MXFP4;
    return stored->blocks->id == OT_GGUF_MXFP4 && (!stored->up || stored->up->type->id == OT_GGUF_MXFP4);
}
