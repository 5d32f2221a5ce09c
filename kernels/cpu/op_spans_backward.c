/* Attention over spans of keys, backward (kernels/ops_spans.h), with
 *
 *     p = exp(score - largest) / sum     delta = dout.out     ds = p * (dout.v - delta)
 *     dv += p dout                       dq += ds k scale     dk += ds q scale     dbias[bucket] += ds
 *
 * There are two passes, and each recomputes p and ds. One owns a block of queries and sums dq, and the
 * block's part of dbias. The other owns a tile of keys and sums dk and dv over the queries that see one of
 * them. So every sum has one owner and one order. */
#include "kernels/cpu/op_parts.h"

/* w->p becomes p, and w->ds becomes ds, of the rows [first, last) of queries; 0 where a query does not see a
 * key. Row 0 is `query`, column 0 is `key`. */
static void span_pairs(const struct ot_attend_spans_backward *op, struct span_work *w, int64_t query,
                       int64_t key, int64_t first, int64_t last) {
    const struct ot_attend_spans *f = &op->forward;
    span_find_bias(w, query, key);
    span_dots(w, w->q, w->k_turned, first, last, w->p);
    span_dots(w, w->dout, w->v_turned, first, last, w->ds);
    memset(w->p, 0, (size_t)(first * SPAN_TILE) * sizeof(float)); /* rows that span_dots wrote beside them */
    memset(w->ds, 0, (size_t)(first * SPAN_TILE) * sizeof(float));
    memset(w->p + last * SPAN_TILE, 0, (size_t)((SPAN_TILE - last) * SPAN_TILE) * sizeof(float));
    memset(w->ds + last * SPAN_TILE, 0, (size_t)((SPAN_TILE - last) * SPAN_TILE) * sizeof(float));
    for (int64_t row = first; row < last; row++) {
        int64_t own = w->head * f->n + query + row;
        float *p = w->p + row * SPAN_TILE, *ds = w->ds + row * SPAN_TILE;
        float most = f->softmax[2 * own], inverse = f->softmax[2 * own + 1], delta = op->scratch[own];
        int64_t begin = f->key_first[query + row] - key, end = f->key_end[query + row] - key;
        for (int64_t i = 0; i < SPAN_TILE; i += OT_LANES) {
            ot_vi seen = vec_first(end - i) & ~vec_first(begin - i);
            ot_vf weight = vec_exp(span_scores(w, p, row, i) - most) * inverse;
            ot_vf slope = weight * (vec_load(OT_F32, ds, i, OT_LANES) - delta);
            vec_store(OT_F32, p, i, OT_LANES, vec_select(seen, weight, vec_set(0.0f)));
            vec_store(OT_F32, ds, i, OT_LANES, vec_select(seen, slope, vec_set(0.0f)));
        }
    }
}

/* ---- dq, and the parts of dbias ---- */

/* The part of dbias that a block of queries sums for one head: [buckets]. */
static float *span_part(const struct ot_attend_spans_backward *op, int64_t block, int64_t head) {
    const struct ot_attend_spans *f = &op->forward;
    return op->scratch + f->n * f->heads + (block * f->heads + head) * f->buckets;
}

/* Adds a tile's ds to the block's part. Row 0 is `query`, column 0 is `key`. */
static void span_add_bias(const struct ot_attend_spans_backward *op, const struct span_work *w, int64_t query,
                          int64_t key) {
    float sums[2 * SPAN_TILE] = {0}, *part = span_part(op, query / SPAN_TILE, w->head);
    for (int64_t row = 0; row < SPAN_TILE; row++)
        for (int64_t i = 0; i < SPAN_TILE; i += OT_LANES) {
            int64_t t = SPAN_TILE - 1 - row + i;
            vec_store(OT_F32, sums, t, OT_LANES,
                      vec_load(OT_F32, sums, t, OT_LANES) +
                          vec_load(OT_F32, w->ds, row * SPAN_TILE + i, OT_LANES));
        }
    for (int64_t t = 0; t < 2 * SPAN_TILE - 1; t++)
        part[op->forward.bucket_of[span_place(&op->forward, query, key, t)]] += sums[t];
}

/* dot(out, dout) of the block's queries. Uses w->k. */
static void span_deltas(const struct ot_attend_spans_backward *op, struct span_work *w, int64_t begin,
                        int64_t end) {
    const struct ot_attend_spans *f = &op->forward;
    span_load(w, f->out, f->ldo, begin, end, w->k);
    for (int64_t row = 0; row < end - begin; row++) {
        const float *out = w->k + row * w->width, *dout = w->dout + row * w->width;
        float sum = 0;
        for (int64_t d = 0; d < f->head_dim; d++)
            sum = fmaf(dout[d], out[d], sum);
        op->scratch[w->head * f->n + begin + row] = sum;
    }
}

static void span_queries_block(const struct ot_attend_spans_backward *op, struct span_work *w, int64_t begin,
                               int64_t end) {
    const struct ot_attend_spans *f = &op->forward;
    memset(w->sum, 0, (size_t)(SPAN_TILE * w->width) * sizeof(float));
    span_load(w, f->q, f->ldq, begin, end, w->q);
    span_load(w, op->dout, f->ldo, begin, end, w->dout);
    span_deltas(op, w, begin, end);
    if (op->dbias)
        memset(span_part(op, begin / SPAN_TILE, w->head), 0, (size_t)f->buckets * sizeof(float));
    for (struct span_run run = {.end = begin}; run.end < end;) {
        run = span_run_at(f, run.end, end);
        for (int64_t key = run.first; key < run.last; key += SPAN_TILE) {
            span_load(w, f->k, f->ldk, key, ot_min(run.last, key + SPAN_TILE), w->k);
            span_load(w, f->v, f->ldv, key, ot_min(run.last, key + SPAN_TILE), w->v);
            span_turn(w, w->k, w->k_turned);
            span_turn(w, w->v, w->v_turned);
            span_pairs(op, w, begin, key, run.begin - begin, run.end - begin);
            for (int64_t row = run.begin - begin; row < run.end - begin; row++)
                span_weigh(w, w->ds + row * SPAN_TILE, 1, w->k, w->sum + row * w->width);
            if (op->dbias)
                span_add_bias(op, w, begin, key);
        }
    }
    for (int64_t row = 0; row < end - begin; row++)
        WITH_DTYPE(f->dtype, span_store,
                   at_mut(f->dtype, op->dq, (begin + row) * f->ldq + w->head * f->head_dim), f->head_dim,
                   w->sum + row * w->width, f->scale);
}

static void span_queries_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk;
    const struct span_job *job = context;
    const struct ot_attend_spans *op = job->op;
    struct span_work w = span_work_at(job->scratch + worker * span_work_elems(op->head_dim), op);
    for (int64_t i = begin; i < end; i++) {
        int64_t first = i / op->heads * SPAN_TILE;
        w.head = i % op->heads;
        span_queries_block(job->backward, &w, first, ot_min(op->n, first + SPAN_TILE));
    }
}

/* Adds the parts of the blocks, in order, for heads [begin, end). */
static void span_dbias_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct ot_attend_spans_backward *op = context;
    const struct ot_attend_spans *f = &op->forward;
    for (int64_t head = begin; head < end; head++)
        for (int64_t bucket = 0; bucket < f->buckets; bucket++) {
            float sum = 0;
            for (int64_t block = 0; block < ot_chunk_count(f->n, SPAN_TILE); block++)
                sum += span_part(op, block, head)[bucket];
            op->dbias[bucket * f->heads + head] += sum;
        }
}

/* ---- dk, dv ---- */

/* True if one of the queries [begin, end) sees one of the keys [first, last). */
static bool span_meets(const struct ot_attend_spans *op, int64_t begin, int64_t end, int64_t first,
                       int64_t last) {
    for (int64_t query = begin; query < end; query++)
        if (ot_max(op->key_first[query], first) < ot_min(op->key_end[query], last))
            return true;
    return false;
}

static void span_keys_block(const struct ot_attend_spans_backward *op, struct span_work *w, int64_t begin,
                            int64_t end) {
    const struct ot_attend_spans *f = &op->forward;
    memset(w->sum, 0, (size_t)(SPAN_TILE * w->width) * sizeof(float));
    memset(w->sum_too, 0, (size_t)(SPAN_TILE * w->width) * sizeof(float));
    span_load(w, f->k, f->ldk, begin, end, w->k);
    span_load(w, f->v, f->ldv, begin, end, w->v);
    span_turn(w, w->k, w->k_turned);
    span_turn(w, w->v, w->v_turned);
    for (int64_t query = 0; query < f->n; query += SPAN_TILE) {
        int64_t last = ot_min(f->n, query + SPAN_TILE);
        if (!span_meets(f, query, last, begin, end))
            continue;
        span_load(w, f->q, f->ldq, query, last, w->q);
        span_load(w, op->dout, f->ldo, query, last, w->dout);
        span_pairs(op, w, query, begin, 0, last - query);
        for (int64_t key = 0; key < end - begin; key++) {
            span_weigh(w, w->ds + key, SPAN_TILE, w->q, w->sum + key * w->width);
            span_weigh(w, w->p + key, SPAN_TILE, w->dout, w->sum_too + key * w->width);
        }
    }
    for (int64_t key = 0; key < end - begin; key++) {
        int64_t column = w->head * f->head_dim, from = key * w->width;
        WITH_DTYPE(f->dtype, span_store, at_mut(f->dtype, op->dk, (begin + key) * f->ldk + column),
                   f->head_dim, w->sum + from, f->scale);
        WITH_DTYPE(f->dtype, span_store, at_mut(f->dtype, op->dv, (begin + key) * f->ldv + column),
                   f->head_dim, w->sum_too + from, 1.0f);
    }
}

static void span_keys_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk;
    const struct span_job *job = context;
    const struct ot_attend_spans *op = job->op;
    struct span_work w = span_work_at(job->scratch + worker * span_work_elems(op->head_dim), op);
    for (int64_t i = begin; i < end; i++) {
        int64_t first = i / op->heads * SPAN_TILE;
        w.head = i % op->heads;
        span_keys_block(job->backward, &w, first, ot_min(op->n_keys, first + SPAN_TILE));
    }
}

/* ---- the op ---- */

static void run_attend_spans_backward(struct ot_lane *lane, const void *args) {
    const struct ot_attend_spans_backward *op = args;
    const struct ot_attend_spans *f = &op->forward;
    struct ot_pool *pool = ot_cpu_lane_pool(lane);
    struct span_job job = {f, op, span_scratch(lane, f)};
    if (!job.scratch)
        return;
    ot_pool_run(pool, ot_chunk_count(f->n, SPAN_TILE) * f->heads, 1, span_queries_chunk, &job);
    if (op->dbias)
        ot_pool_run(pool, f->heads, 1, span_dbias_chunk, (void *)op);
    ot_pool_run(pool, ot_chunk_count(f->n_keys, SPAN_TILE) * f->heads, 1, span_keys_chunk, &job);
}

static void cpu_attend_spans_backward(struct ot_lane *lane, const struct ot_attend_spans_backward *op) {
    assert(span_is_sound(&op->forward) && (op->forward.softmax || op->forward.n == 0));
    assert(op->forward.bias || !op->dbias);
    ot_cpu_lane_push(lane, run_attend_spans_backward, op, sizeof *op);
}
