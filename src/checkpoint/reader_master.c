/* Reads ranges of the master weights. Whole spans are read and checked; the last few spans stay in memory. */
#include <stdlib.h>
#include <string.h>

#include "src/base/crc32.h"
#include "src/base/file_io.h"
#include "src/checkpoint/reader_state.h"

/* A range needs at most 4 spans at once: its low bits and its weights lie in different spans, and each may
 * cross the border of two spans. */
enum { KEPT_SPANS = 4 };
enum { CHUNK_PARAMS = 2048 };

struct kept {
    int64_t span, used; /* span: -1: none. used: clock of the last use */
    char *bytes;
    int64_t capacity;
};

struct ot_checkpoint_master {
    struct ot_checkpoint *checkpoint;
    int64_t *state, *weights; /* parts that have state, or weights, sorted by slab and first parameter */
    int64_t n_state, n_weights, clock;
    struct kept kept[KEPT_SPANS];
};

/* ---- opening ---- */

static int compare_parts(const void *a, const void *b, void *parts) {
    const struct ot_part *x = &((const struct ot_manifest_part *)parts)[*(const int64_t *)a].part;
    const struct ot_part *y = &((const struct ot_manifest_part *)parts)[*(const int64_t *)b].part;
    if (x->slab != y->slab)
        return x->slab < y->slab ? -1 : 1;
    return (x->first > y->first) - (x->first < y->first);
}

int ot_checkpoint_master_open(struct ot_checkpoint *checkpoint, struct ot_checkpoint_master **out) {
    const struct ot_manifest *m = &checkpoint->manifest;
    struct ot_checkpoint_master *master = *out = calloc(1, sizeof *master);
    size_t bytes = (size_t)(m->n_parts + 1) * sizeof(int64_t);
    if (!master || !(master->state = malloc(bytes)) || !(master->weights = malloc(bytes))) {
        ot_checkpoint_master_close(master);
        *out = NULL;
        return ot_fail(OT_E_BUDGET, "%s: no memory for %lld parts", checkpoint->dir, (long long)m->n_parts);
    }
    master->checkpoint = checkpoint;
    for (int i = 0; i < KEPT_SPANS; i++)
        master->kept[i].span = -1;
    for (int64_t i = 0; i < m->n_parts; i++) {
        if (m->parts[i].part.has_state)
            master->state[master->n_state++] = i;
        if (m->parts[i].part.has_weights)
            master->weights[master->n_weights++] = i;
    }
    qsort_r(master->state, (size_t)master->n_state, sizeof(int64_t), compare_parts, m->parts);
    qsort_r(master->weights, (size_t)master->n_weights, sizeof(int64_t), compare_parts, m->parts);
    return 0;
}

void ot_checkpoint_master_close(struct ot_checkpoint_master *master) {
    if (!master)
        return;
    for (int i = 0; i < KEPT_SPANS; i++)
        free(master->kept[i].bytes);
    free(master->state);
    free(master->weights);
    free(master);
}

/* ---- spans ---- */

static int read_span(const struct ot_checkpoint *c, const struct ot_store_span *span, char *bytes) {
    int64_t n = ot_read_at(c->fds[span->file], bytes, (size_t)span->bytes, span->offset);
    if (n < span->bytes)
        return ot_checkpoint_fail_read(c, span, span->offset + (n > 0 ? n : 0), n < 0 ? n : 0);
    uint32_t crc = ot_crc32(0, bytes, (size_t)span->bytes);
    return crc == span->crc ? 0 : ot_checkpoint_fail_span(c, span, crc);
}

/* Returns a span's bytes from memory, or reads the span in place of the least recently used one. */
static int keep_span(struct ot_checkpoint_master *master, int64_t index, const char **bytes) {
    const struct ot_store_span *span = &master->checkpoint->manifest.spans[index];
    struct kept *kept = &master->kept[0];
    for (int i = 0; i < KEPT_SPANS; i++) {
        struct kept *other = &master->kept[i];
        if (other->span == index || (kept->span != index && other->used < kept->used))
            kept = other;
    }
    if (kept->span != index) {
        kept->span = -1;
        if (kept->capacity < span->bytes) {
            free(kept->bytes);
            kept->bytes = malloc((size_t)span->bytes);
            kept->capacity = kept->bytes ? span->bytes : 0;
        }
        if (!kept->bytes)
            return ot_fail(OT_E_BUDGET, "%s: no memory to read %lld bytes of the checkpoint",
                           master->checkpoint->dir, (long long)span->bytes);
        OT_TRY(read_span(master->checkpoint, span, kept->bytes));
        kept->span = index;
    }
    kept->used = ++master->clock;
    *bytes = kept->bytes;
    return 0;
}

/* Copies bytes [at, at + n) of a part. */
static int get_bytes(struct ot_checkpoint_master *master, const struct ot_manifest_part *part, int64_t at,
                     int64_t n, char *out) {
    const struct ot_checkpoint *c = master->checkpoint;
    if (part->n_spans == 0)
        memset(out, 0, (size_t)n);
    while (part->n_spans > 0 && n > 0) {
        const char *bytes = NULL;
        int64_t index = ot_checkpoint_find_span(c, part, at), within = at - c->span_begin[index];
        int64_t run = c->manifest.spans[index].bytes - within;
        run = run < n ? run : n;
        OT_TRY(keep_span(master, index, &bytes));
        memcpy(out, bytes + within, (size_t)run);
        at += run;
        out += run;
        n -= run;
    }
    return 0;
}

/* ---- ranges ---- */

/* The part that holds a parameter. The manifest's parts cover each parameter exactly once. */
static const struct ot_manifest_part *find_part(const struct ot_checkpoint_master *master, bool state,
                                                int slab, int64_t first) {
    const struct ot_manifest_part *parts = master->checkpoint->manifest.parts;
    const int64_t *order = state ? master->state : master->weights;
    int64_t low = 0, high = (state ? master->n_state : master->n_weights) - 1;
    while (low < high) { /* find the last part that begins at or before the parameter */
        int64_t middle = low + (high - low + 1) / 2;
        const struct ot_part *part = &parts[order[middle]].part;
        if (part->slab < slab || (part->slab == slab && part->first <= first))
            low = middle;
        else
            high = middle - 1;
    }
    return &parts[order[low]];
}

static int64_t run_in(const struct ot_manifest_part *part, int64_t first, int64_t n) {
    int64_t run = part->part.first + part->part.n - first;
    return run < n ? run : n;
}

/* Copies values of an array for parameters [first, first + n), up to the end of the part. Returns the number
 * of parameters copied, or an error. */
static int64_t get_values(struct ot_checkpoint_master *master, enum ot_part_array array, int slab,
                          int64_t first, int64_t n, void *out) {
    const struct ot_manifest_part *part = find_part(master, array != OT_PART_WEIGHTS, slab, first);
    struct ot_part_place place = ot_part_find(master->checkpoint->manifest.dtype, &part->part, array);
    int64_t width = (int64_t)place.width;
    n = run_in(part, first, n);
    int rc =
        get_bytes(master, part, (int64_t)place.offset + (first - part->part.first) * width, n * width, out);
    return rc < 0 ? rc : n;
}

static int64_t get_run(struct ot_checkpoint_master *master, int slab, int64_t first, int64_t n,
                       float *values) {
    enum ot_dtype dtype = master->checkpoint->manifest.dtype;
    if (dtype == OT_F32)
        return get_values(master, OT_PART_WEIGHTS, slab, first, n, values);
    if (dtype == OT_F16)
        return get_values(master, OT_PART_REST, slab, first, n, values);
    int16_t lo[CHUNK_PARAMS] = {0}; /* stays 0 if there are no masters */
    uint16_t hi[CHUNK_PARAMS];
    n = get_values(master, OT_PART_REST, slab, first, n < CHUNK_PARAMS ? n : CHUNK_PARAMS, lo);
    if (n > 0)
        n = get_values(master, OT_PART_WEIGHTS, slab, first, n, hi);
    for (int64_t i = 0; i < n; i++)
        values[i] = ot_join_f32(hi[i], lo[i]);
    return n;
}

int ot_checkpoint_master_get(struct ot_checkpoint_master *master, int slab, int64_t first, int64_t n,
                             float *values) {
    const struct ot_manifest *m = &master->checkpoint->manifest;
    if (slab < 0 || slab >= m->n_slabs || first < 0 || n < 0 || first > m->slab_params[slab] ||
        n > m->slab_params[slab] - first)
        return ot_fail(OT_E_INPUT, "%s: the checkpoint has no parameters %lld to %lld of slab %d",
                       master->checkpoint->dir, (long long)first, (long long)(first + n), slab);
    while (n > 0) {
        int64_t run = get_run(master, slab, first, n, values);
        if (run < 0)
            return (int)run;
        first += run;
        values += run;
        n -= run;
    }
    return 0;
}
