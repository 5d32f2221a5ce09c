/* Attention over spans of keys, forward (kernels/ops_spans.h, which fixes the order of every sum). A chunk of
 * work is one head and one block of queries. The block's queries are cut into RUNS: consecutive queries whose
 * spans begin at the same key. A run visits the tiles of its keys together.
 *
 * The products are loops of our own, because a BLAS adds in an order of its own. Vectors of scores have one
 * key in each lane, so a tile of keys is needed turned: [head_dim, keys]. */
#include "kernels/cpu/op_parts.h"

/* SPAN_COLUMNS: elements of a row that span_weigh adds at the same time, in registers. */
enum { SPAN_TILE = OT_SPAN_TILE, SPAN_SQUARE = SPAN_TILE * SPAN_TILE, SPAN_COLUMNS = 4 * OT_LANES };

/* A worker's task and its fp32 scratch, which is zero beyond the head and beyond the last token. */
struct span_work {
    const struct ot_attend_spans *op;
    int64_t head, width;        /* width: head_dim, rounded up to SPAN_COLUMNS */
    float *q, *k, *v, *dout;    /* [SPAN_TILE, width] */
    float *k_turned, *v_turned; /* [width, SPAN_TILE] */
    float *sum, *sum_too;       /* [SPAN_TILE, width]: results */
    float *p, *ds;              /* [SPAN_TILE, SPAN_TILE]: queries, keys */
    /* The bias of the diagonals of a tile: element SPAN_TILE - 1 + column - row. */
    float near[2 * SPAN_TILE];
};

static int64_t span_width(int64_t head_dim) {
    return ot_chunk_count(head_dim, SPAN_COLUMNS) * SPAN_COLUMNS;
}

static int64_t span_work_elems(int64_t head_dim) {
    return 8 * SPAN_TILE * span_width(head_dim) + 2 * SPAN_SQUARE;
}

static struct span_work span_work_at(float *memory, const struct ot_attend_spans *op) {
    struct span_work w = {.op = op, .width = span_width(op->head_dim)};
    float **const tiles[] = {&w.q, &w.k, &w.v, &w.dout, &w.k_turned, &w.v_turned, &w.sum, &w.sum_too};
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++, memory += SPAN_TILE * w.width)
        *tiles[i] = memory;
    w.p = memory;
    w.ds = w.p + SPAN_SQUARE;
    return w;
}

/* ---- tiles ---- */

static OT_INLINE void span_convert(enum ot_dtype dtype, const void *from, int64_t dim, float *to) {
    OT_FOR_LANES(i, lanes, dim, { vec_store(OT_F32, to, i, lanes, vec_load(dtype, from, i, lanes)); });
}

/* Loads rows [first, last) of the worker's head, at most SPAN_TILE. */
static void span_load(const struct span_work *w, const void *array, int64_t ld, int64_t first, int64_t last,
                      float *to) {
    const struct ot_attend_spans *op = w->op;
    memset(to, 0, (size_t)(SPAN_TILE * w->width) * sizeof *to);
    for (int64_t row = first; row < last; row++, to += w->width)
        WITH_DTYPE(op->dtype, span_convert, at(op->dtype, array, row * ld + w->head * op->head_dim),
                   op->head_dim, to);
}

static void span_turn(const struct span_work *w, const float *rows, float *turned) {
    for (int64_t d = 0; d < w->op->head_dim; d++)
        for (int64_t row = 0; row < SPAN_TILE; row++)
            turned[d * SPAN_TILE + row] = rows[row * w->width + d];
}

static OT_INLINE void span_store(enum ot_dtype dtype, void *to, int64_t dim, const float *sum, float factor) {
    OT_FOR_LANES(i, lanes, dim,
                 { vec_store(dtype, to, i, lanes, factor * vec_load(OT_F32, sum, i, lanes)); });
}

/* ---- products ---- */

/* out[row][key] = the dot product of a row and a key, for rows [first, last) and some rows beside them. */
static void span_dots(const struct span_work *w, const float *rows, const float *turned, int64_t first,
                      int64_t last, float *out) {
    enum { ROWS = 4, VECTORS = SPAN_TILE / OT_LANES };
    for (int64_t row = first / ROWS * ROWS; row < last; row += ROWS) {
        ot_vf sums[ROWS][VECTORS] = {{{0}}};
        for (int64_t d = 0; d < w->op->head_dim; d++)
            for (int a = 0; a < ROWS; a++)
                for (int v = 0; v < VECTORS; v++)
                    sums[a][v] =
                        vec_fma(vec_repeat(rows[(row + a) * w->width + d]),
                                vec_load(OT_F32, turned, d * SPAN_TILE + v * OT_LANES, OT_LANES), sums[a][v]);
        for (int a = 0; a < ROWS; a++)
            for (int v = 0; v < VECTORS; v++)
                vec_store(OT_F32, out, (row + a) * SPAN_TILE + v * OT_LANES, OT_LANES, sums[a][v]);
    }
}

/* sum[width] += the sum over i < SPAN_TILE of weights[i step] rows[i]. A weight of 0 adds nothing, not even
 * a NaN. */
static void span_weigh(const struct span_work *w, const float *weights, int64_t step, const float *rows,
                       float *sum) {
    enum { VECTORS = SPAN_COLUMNS / OT_LANES };
    for (int64_t column = 0; column < w->width; column += SPAN_COLUMNS) {
        ot_vf sums[VECTORS];
        for (int v = 0; v < VECTORS; v++)
            sums[v] = vec_load(OT_F32, sum, column + v * OT_LANES, OT_LANES);
        for (int64_t i = 0; i < SPAN_TILE; i++) {
            float weight = weights[i * step];
            if (weight == 0)
                continue;
            for (int v = 0; v < VECTORS; v++)
                sums[v] =
                    vec_fma(vec_repeat(weight),
                            vec_load(OT_F32, rows, i * w->width + column + v * OT_LANES, OT_LANES), sums[v]);
        }
        for (int v = 0; v < VECTORS; v++)
            vec_store(OT_F32, sum, column + v * OT_LANES, OT_LANES, sums[v]);
    }
}

/* ---- scores ---- */

/* The place in bucket_of of diagonal t (0 to 2 SPAN_TILE - 2) of a tile, whose row 0 is `query` and whose
 * column 0 is `key`. */
static int64_t span_place(const struct ot_attend_spans *op, int64_t query, int64_t key, int64_t t) {
    int64_t distance = key - (query + op->n_keys - op->n) + t - (SPAN_TILE - 1);
    return ot_max(-op->reach, ot_min(op->reach, distance)) + op->reach;
}

static void span_find_bias(struct span_work *w, int64_t query, int64_t key) {
    const struct ot_attend_spans *op = w->op;
    for (int64_t t = 0; op->bias && t < 2 * SPAN_TILE - 1; t++) {
        int64_t bucket = op->bucket_of[span_place(op, query, key, t)];
        w->near[t] = vec_load(op->dtype, op->bias, bucket * op->heads + w->head, 1)[0];
    }
}

/* Scores of lanes [i, i + 16) of a row of dot products. */
static OT_INLINE ot_vf span_scores(const struct span_work *w, const float *dots, int64_t row, int64_t i) {
    const struct ot_attend_spans *op = w->op;
    ot_vf scale = vec_set(op->scale), x = vec_load(OT_F32, dots, i, OT_LANES);
    return op->bias ? vec_fma(scale, x, vec_load(OT_F32, w->near, SPAN_TILE - 1 - row + i, OT_LANES))
                    : scale * x;
}

/* Turns a row of dot products into exp(score - new maximum), and 0 from `seen` on. Rescales the row's sums
 * to the new maximum. */
static void span_softmax_row(const struct span_work *w, int64_t row, int64_t seen, float *max, float *total) {
    float *e = w->p + row * SPAN_TILE, *sum = w->sum + row * w->width;
    ot_vf largest = vec_set(*max);
    for (int64_t i = 0; i < SPAN_TILE; i += OT_LANES) {
        ot_vf x = span_scores(w, e, row, i);
        vec_store(OT_F32, e, i, OT_LANES, x);
        largest = vec_max(vec_select(vec_first(seen - i), x, vec_set(-INFINITY)), largest);
    }
    float new_max = vec_largest(largest);
    if (new_max > *max) {
        float shrink = vec_exp(vec_set(*max - new_max))[0];
        *total *= shrink;
        OT_FOR_LANES(i, lanes, w->width,
                     { vec_store(OT_F32, sum, i, lanes, shrink * vec_load(OT_F32, sum, i, lanes)); });
        *max = new_max;
    }
    for (int64_t i = 0; i < SPAN_TILE; i += OT_LANES) {
        ot_vf x = vec_exp(vec_load(OT_F32, e, i, OT_LANES) - *max);
        vec_store(OT_F32, e, i, OT_LANES, vec_select(vec_first(seen - i), x, vec_set(0.0f)));
    }
    for (int64_t i = 0; i < ot_min(seen, SPAN_TILE); i++)
        *total += e[i];
}

/* ---- a block ---- */

/* Queries [begin, end) whose spans begin at `first`; the longest ends before `last`. */
struct span_run {
    int64_t begin, end, first, last;
};

/* The run that begins with query `begin` of a block that ends before query `end`. */
static struct span_run span_run_at(const struct ot_attend_spans *op, int64_t begin, int64_t end) {
    struct span_run run = {begin, begin, op->key_first[begin], op->key_first[begin]};
    while (run.end < end && op->key_first[run.end] == run.first)
        run.last = ot_max(run.last, op->key_end[run.end++]);
    return run;
}

static void span_forward_run(struct span_work *w, int64_t begin, const struct span_run *run, float *max,
                             float *total) {
    const struct ot_attend_spans *op = w->op;
    for (int64_t key = run->first; key < run->last; key += SPAN_TILE) {
        int64_t end = ot_min(run->last, key + SPAN_TILE);
        span_load(w, op->k, op->ldk, key, end, w->k);
        span_load(w, op->v, op->ldv, key, end, w->v);
        span_turn(w, w->k, w->k_turned);
        span_find_bias(w, begin, key);
        span_dots(w, w->q, w->k_turned, run->begin - begin, run->end - begin, w->p);
        for (int64_t row = run->begin - begin; row < run->end - begin; row++) {
            int64_t seen = op->key_end[begin + row] - key;
            if (seen <= 0)
                continue;
            span_softmax_row(w, row, seen, &max[row], &total[row]);
            span_weigh(w, w->p + row * SPAN_TILE, 1, w->v, w->sum + row * w->width);
        }
    }
}

static void span_forward_block(struct span_work *w, int64_t begin, int64_t end) {
    const struct ot_attend_spans *op = w->op;
    float max[SPAN_TILE], total[SPAN_TILE] = {0};
    for (int row = 0; row < SPAN_TILE; row++)
        max[row] = -INFINITY;
    memset(w->sum, 0, (size_t)(SPAN_TILE * w->width) * sizeof(float));
    span_load(w, op->q, op->ldq, begin, end, w->q);
    for (struct span_run run = {.end = begin}; run.end < end;) {
        run = span_run_at(op, run.end, end);
        span_forward_run(w, begin, &run, max, total);
    }
    for (int64_t row = 0; row < end - begin; row++) {
        int64_t query = begin + row;
        float inverse = total[row] == 0 ? 0 : 1.0f / total[row];
        WITH_DTYPE(op->dtype, span_store,
                   at_mut(op->dtype, op->out, query * op->ldo + w->head * op->head_dim), op->head_dim,
                   w->sum + row * w->width, inverse);
        if (op->softmax) {
            float *softmax = op->softmax + 2 * (w->head * op->n + query);
            softmax[0] = total[row] == 0 ? 0 : max[row] + 0.0f; /* a maximum of -0 becomes 0 */
            softmax[1] = inverse;
        }
    }
}

/* ---- the op ---- */

struct span_job {
    const struct ot_attend_spans *op;
    const struct ot_attend_spans_backward *backward; /* NULL in forward */
    float *scratch;
};

/* The memory of all workers, or NULL; then the lane has failed. */
static float *span_scratch(struct ot_lane *lane, const struct ot_attend_spans *op) {
    int64_t workers = ot_pool_threads(ot_cpu_lane_pool(lane));
    return ot_cpu_lane_scratch(lane, (size_t)(workers * span_work_elems(op->head_dim)) * sizeof(float));
}

static void span_forward_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk;
    const struct span_job *job = context;
    const struct ot_attend_spans *op = job->op;
    struct span_work w = span_work_at(job->scratch + worker * span_work_elems(op->head_dim), op);
    for (int64_t i = begin; i < end; i++) {
        int64_t first = i / op->heads * SPAN_TILE;
        w.head = i % op->heads;
        span_forward_block(&w, first, ot_min(op->n, first + SPAN_TILE));
    }
}

static void run_attend_spans(struct ot_lane *lane, const void *args) {
    struct span_job job = {.op = args, .scratch = span_scratch(lane, args)};
    if (job.scratch)
        ot_pool_run(ot_cpu_lane_pool(lane), ot_chunk_count(job.op->n, SPAN_TILE) * job.op->heads, 1,
                    span_forward_chunk, &job);
}

static bool span_is_sound(const struct ot_attend_spans *op) {
    return op->head_dim <= OT_SPAN_MOST_DIM &&
           (!op->bias || (op->bucket_of && op->reach >= 0 && op->buckets <= OT_SPAN_MOST_BUCKETS));
}

static void cpu_attend_spans(struct ot_lane *lane, const struct ot_attend_spans *op) {
    assert(span_is_sound(op));
    ot_cpu_lane_push(lane, run_attend_spans, op, sizeof *op);
}
