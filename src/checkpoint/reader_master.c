/* Reads ranges of the master weights. Their spans are read ahead in the order of slabs and parameters. */
#include <stdlib.h>
#include <string.h>

#include "src/checkpoint/reader_state.h"

#include "src/base/minmax.h"

enum { CHUNK_PARAMS = 2048 };

struct ot_checkpoint_master {
    struct ot_checkpoint *checkpoint;
    int64_t *state, *weights; /* segments that have state, or weights, sorted by slab and first parameter */
    int64_t n_state, n_weights;
    int64_t *order; /* the spans with master weights, in order of slabs and parameters */
    struct ot_span_reader *spans;
};

/* ---- opening ---- */

static int compare_segments(const void *a, const void *b, void *segments) {
    const struct ot_segment *x = &((const struct ot_manifest_segment *)segments)[*(const int64_t *)a].segment;
    const struct ot_segment *y = &((const struct ot_manifest_segment *)segments)[*(const int64_t *)b].segment;
    if (x->slab != y->slab)
        return x->slab < y->slab ? -1 : 1;
    return (x->first > y->first) - (x->first < y->first);
}

static int list_segments(struct ot_checkpoint_master *master) {
    const struct ot_manifest *m = &master->checkpoint->manifest;
    size_t bytes = (size_t)(m->n_segments + 1) * sizeof(int64_t);
    if (!(master->state = malloc(bytes)) || !(master->weights = malloc(bytes)))
        return ot_fail(OT_E_BUDGET, "%s: no memory for %lld segments", master->checkpoint->dir,
                       (long long)m->n_segments);
    for (int64_t i = 0; i < m->n_segments; i++) {
        if (m->segments[i].segment.has_state)
            master->state[master->n_state++] = i;
        if (m->segments[i].segment.has_weights)
            master->weights[master->n_weights++] = i;
    }
    qsort_r(master->state, (size_t)master->n_state, sizeof(int64_t), compare_segments, m->segments);
    qsort_r(master->weights, (size_t)master->n_weights, sizeof(int64_t), compare_segments, m->segments);
    return 0;
}

struct need { /* a span, and the first parameter whose values are wanted from it */
    int slab;
    int64_t param, span;
};

static int compare_needs(const void *a, const void *b) {
    const struct need *x = a, *y = b;
    if (x->slab != y->slab)
        return x->slab < y->slab ? -1 : 1;
    if (x->param != y->param)
        return x->param < y->param ? -1 : 1;
    return (x->span > y->span) - (x->span < y->span);
}

/* Adds the spans with values of an array. Returns their number. */
static int64_t add_needs(const struct ot_checkpoint *c, const struct ot_manifest_segment *segment,
                         enum ot_segment_array array, struct need *needs) {
    struct ot_segment_values where = ot_segment_find(c->manifest.dtype, &segment->segment, array);
    int64_t begin = (int64_t)where.offset,
            end = begin + (int64_t)ot_segment_value_bytes(where, segment->segment.n);
    if (segment->n_spans == 0 || begin == end)
        return 0;
    int64_t first = ot_checkpoint_find_span(c, segment, begin),
            last = ot_checkpoint_find_span(c, segment, end - 1);
    for (int64_t i = first; i <= last; i++) {
        int64_t from = ot_max(c->span_begin[i], begin);
        needs[i - first] = (struct need){segment->segment.slab,
                                         segment->segment.first + (from - begin) / (int64_t)where.width, i};
    }
    return last - first + 1;
}

/* Fills in the order: each span once, where it is first wanted. Returns the number of spans. */
static int64_t put_in_order(const struct ot_checkpoint_master *master, struct need *needs, bool *seen) {
    const struct ot_checkpoint *c = master->checkpoint;
    enum ot_dtype dtype = c->manifest.dtype;
    int64_t n = 0, n_spans = 0;
    for (int64_t i = 0; i < master->n_state && dtype != OT_F32; i++)
        n += add_needs(c, &c->manifest.segments[master->state[i]], OT_SEGMENT_MASTER_REST, needs + n);
    for (int64_t i = 0; i < master->n_weights && dtype != OT_F16; i++)
        n += add_needs(c, &c->manifest.segments[master->weights[i]], OT_SEGMENT_WEIGHTS, needs + n);
    qsort(needs, (size_t)n, sizeof *needs, compare_needs);
    for (int64_t i = 0; i < n; i++)
        if (!seen[needs[i].span]) {
            seen[needs[i].span] = true;
            master->order[n_spans++] = needs[i].span;
        }
    return n_spans;
}

static int open_spans(struct ot_checkpoint_master *master, enum ot_io_choice io_engine,
                      const struct ot_io_calls *calls) {
    struct ot_checkpoint *c = master->checkpoint;
    size_t n = (size_t)c->manifest.n_spans + 1;
    struct need *needs = malloc(2 * n * sizeof *needs); /* a span may have values of two arrays */
    bool *seen = calloc(n, sizeof *seen);
    master->order = malloc(n * sizeof *master->order);
    int rc;
    if (needs && seen && master->order)
        rc = ot_span_reader_open(c, master->order, put_in_order(master, needs, seen), io_engine, calls,
                                 &master->spans);
    else
        rc = ot_fail(OT_E_BUDGET, "%s: no memory for %zu spans", c->dir, n);
    free(needs);
    free(seen);
    return rc;
}

int ot_checkpoint_master_open(struct ot_checkpoint *checkpoint, enum ot_io_choice io_engine,
                              const struct ot_io_calls *calls, struct ot_checkpoint_master **out) {
    struct ot_checkpoint_master *master = calloc(1, sizeof *master);
    int rc;
    *out = NULL;
    if (!master)
        return ot_fail(OT_E_BUDGET, "%s: no memory to read the weights", checkpoint->dir);
    master->checkpoint = checkpoint;
    OT_TRY_GOTO(list_segments(master), rc, out);
    rc = open_spans(master, io_engine, calls);
out:
    if (rc < 0)
        ot_checkpoint_master_close(master);
    else
        *out = master;
    return rc;
}

void ot_checkpoint_master_close(struct ot_checkpoint_master *master) {
    if (!master)
        return;
    ot_span_reader_close(master->spans);
    free(master->order);
    free(master->state);
    free(master->weights);
    free(master);
}

/* ---- ranges ---- */

/* Copies bytes [at, at + n) of a segment. */
static int get_bytes(struct ot_checkpoint_master *master, const struct ot_manifest_segment *segment,
                     int64_t at, int64_t n, char *out) {
    const struct ot_checkpoint *c = master->checkpoint;
    if (segment->n_spans == 0)
        memset(out, 0, (size_t)n);
    while (segment->n_spans > 0 && n > 0) {
        const char *bytes = NULL;
        int64_t index = ot_checkpoint_find_span(c, segment, at), within = at - c->span_begin[index];
        int64_t run = c->manifest.spans[index].bytes - within;
        run = ot_min(run, n);
        OT_TRY(ot_span_reader_get(master->spans, index, &bytes));
        memcpy(out, bytes + within, (size_t)run);
        at += run;
        out += run;
        n -= run;
    }
    return 0;
}

/* The segment that holds a parameter. The manifest's segments cover each parameter exactly once. */
static const struct ot_manifest_segment *find_segment(const struct ot_checkpoint_master *master, bool state,
                                                      int slab, int64_t first) {
    const struct ot_manifest_segment *segments = master->checkpoint->manifest.segments;
    const int64_t *order = state ? master->state : master->weights;
    int64_t low = 0, high = (state ? master->n_state : master->n_weights) - 1;
    while (low < high) { /* find the last segment that begins at or before the parameter */
        int64_t middle = low + (high - low + 1) / 2;
        const struct ot_segment *segment = &segments[order[middle]].segment;
        if (segment->slab < slab || (segment->slab == slab && segment->first <= first))
            low = middle;
        else
            high = middle - 1;
    }
    return &segments[order[low]];
}

static int64_t run_in(const struct ot_manifest_segment *segment, int64_t first, int64_t n) {
    int64_t run = segment->segment.first + segment->segment.n - first;
    return ot_min(run, n);
}

/* Copies values of an array for parameters [first, first + n), up to the end of the segment. Returns the
 * number of parameters copied, or an error. */
static int64_t get_values(struct ot_checkpoint_master *master, enum ot_segment_array array, int slab,
                          int64_t first, int64_t n, void *out) {
    const struct ot_manifest_segment *segment =
        find_segment(master, array != OT_SEGMENT_WEIGHTS, slab, first);
    struct ot_segment_values where =
        ot_segment_find(master->checkpoint->manifest.dtype, &segment->segment, array);
    int64_t width = (int64_t)where.width;
    n = run_in(segment, first, n);
    int rc = get_bytes(master, segment, (int64_t)where.offset + (first - segment->segment.first) * width,
                       n * width, out);
    return rc < 0 ? rc : n;
}

static int64_t get_run(struct ot_checkpoint_master *master, int slab, int64_t first, int64_t n,
                       float *values) {
    enum ot_dtype dtype = master->checkpoint->manifest.dtype;
    if (dtype == OT_F32)
        return get_values(master, OT_SEGMENT_WEIGHTS, slab, first, n, values);
    if (dtype == OT_F16)
        return get_values(master, OT_SEGMENT_MASTER_REST, slab, first, n, values);
    int16_t lo[CHUNK_PARAMS] = {0}; /* stays 0 if there are no masters */
    uint16_t hi[CHUNK_PARAMS];
    n = get_values(master, OT_SEGMENT_MASTER_REST, slab, first, ot_min(n, CHUNK_PARAMS), lo);
    if (n > 0)
        n = get_values(master, OT_SEGMENT_WEIGHTS, slab, first, n, hi);
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
