/* Causal attention, backward (Dao et al., "FlashAttention", section 3 and appendix B), with
 *
 *     p = exp(score - lse)     delta = dout.out     ds = p * (dout.v - delta) * scale
 *     dv += p dout             dq += ds k           dk += ds q
 *
 * ALiBi's part of a score is a constant, so it has no gradient. With a softcap, ds has one more factor, the
 * derivative of the capped score: 1 - tanh^2. A sink changes p through lse alone. It is a key whose value is
 * 0, so its own gradient is the sum of -exp(sink - lse) delta over the queries.
 *
 * There are two passes over the tiles, and each recomputes p. One pass owns a block of queries and sums dq
 * over keys. The other owns a block of keys and sums dk and dv over queries and over the heads that share the
 * keys. That takes seven products per tile instead of the five of a fused pass. But every sum has one owner
 * and one order, and needs no memory beyond a tile. */
#include "kernels/cpu/op_parts.h"

/* Keys that a chunk of the second pass owns. It visits as many queries at a time. */
enum { OWNED_KEYS = 128 };

/* ---- delta ---- */

static OT_INLINE void attention_delta(enum ot_dtype dtype, const struct ot_attention_backward *op,
                                      int64_t query) {
    const struct ot_attention *forward = &op->forward;
    for (int64_t head = 0; head < forward->heads; head++) {
        int64_t first = query * forward->ldo + head * forward->head_dim;
        const void *out = at(dtype, forward->out, first), *dout = at(dtype, op->dout, first);
        ot_vf sum = {0};
        OT_FOR_LANES(i, lanes, forward->head_dim,
                     { sum += vec_load(dtype, out, i, lanes) * vec_load(dtype, dout, i, lanes); });
        op->scratch[head * forward->n + query] = vec_sum(sum);
    }
}

static void attention_delta_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct ot_attention_backward *op = context;
    for (int64_t query = begin; query < end; query++)
        WITH_DTYPE(op->forward.dtype, attention_delta, op, query);
}

/* ---- one tile ---- */

/* Queries [query, query + q.rows) against keys [key, key + k.rows) of one head. */
struct attention_pair {
    int64_t head, query, key;
    struct head_rows q, k, v, dout;
};

/* tile->scores becomes p, and tile->slopes becomes ds. */
static void attention_slopes(const struct ot_attention_backward *op, const struct attention_pair *pair,
                             struct attention_tile *tile) {
    const struct ot_attention *forward = &op->forward;
    float derivative[KEYS];
    attention_dots(forward, pair->q, pair->k, tile->copy, tile->scores);
    attention_dots(forward, pair->dout, pair->v, tile->copy, tile->slopes);
    for (int64_t i = 0; i < pair->q.rows; i++) {
        int64_t query = pair->query + i, keys = pair->k.rows;
        struct key_range seen = attention_keys(forward, query);
        int64_t first = ot_min(ot_max(seen.first - pair->key, 0), keys);
        int64_t last = ot_max(ot_min(seen.last - pair->key, keys), first);
        float *p = tile->scores + i * KEYS, *ds = tile->slopes + i * KEYS;
        float lse = forward->lse[pair->head * forward->n + query],
              delta = op->scratch[pair->head * forward->n + query];
        attention_mask_row(p, first, last, keys);
        attention_mask_row(ds, first, last, keys);
        p += first;
        ds += first;
        float scale =
            attention_scale_row(forward, pair->head, query, pair->key + first, p, last - first, derivative);
        OT_FOR_LANES(j, lanes, last - first, {
            ot_vf e = vec_exp(scale * vec_load(OT_F32, p, j, lanes) - lse);
            vec_store(OT_F32, p, j, lanes, e);
            vec_store(OT_F32, ds, j, lanes, e * (vec_load(OT_F32, ds, j, lanes) - delta) * forward->scale);
        });
        if (forward->softcap > 0)
            OT_FOR_LANES(j, lanes, last - first, {
                ot_vf slope = vec_load(OT_F32, derivative, j, lanes);
                vec_store(OT_F32, ds, j, lanes, slope * vec_load(OT_F32, ds, j, lanes));
            });
    }
}

/* ---- dq ---- */

static void attention_dq_block(const struct ot_attention_backward *op, int64_t head, int64_t begin,
                               int64_t end, struct attention_tile *tile) {
    const struct ot_attention *f = &op->forward;
    int64_t dim = f->head_dim, rows = end - begin, kv_column = head / (f->heads / f->kv_heads) * dim;
    struct attention_pair pair = {head, begin, 0, {0}, {0}, {0}, {0}};
    pair.q = head_rows_at(f->dtype, f->q, f->ldq, begin, rows, head * dim);
    pair.dout = head_rows_at(f->dtype, op->dout, f->ldo, begin, rows, head * dim);
    struct key_range all = attention_block_keys(f, begin, end);
    memset(tile->sum, 0, (size_t)(rows * dim) * sizeof(float));
    for (pair.key = all.first; pair.key < all.last; pair.key += KEYS) {
        int64_t keys = ot_min(KEYS, all.last - pair.key);
        pair.k = head_rows_at(f->dtype, f->k, f->ldk, pair.key, keys, kv_column);
        pair.v = head_rows_at(f->dtype, f->v, f->ldv, pair.key, keys, kv_column);
        attention_slopes(op, &pair, tile);
        attention_weigh(f, tile->slopes, false, rows, head_rows_f32(f->dtype, pair.k, dim, tile->copy[2]),
                        tile->sum);
    }
    for (int64_t i = 0; i < rows; i++)
        WITH_DTYPE(f->dtype, attention_store, op->dq, (begin + i) * f->ldq + head * dim, tile->sum + i * dim,
                   dim, 1);
}

static void attention_dq_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk;
    const struct attention_run *run = context;
    const struct ot_attention *op = run->op;
    struct attention_tile tile =
        attention_tile_at(run->scratch + worker * attention_tile_elems(op->head_dim), op->head_dim);
    for (int64_t i = begin; i < end; i++) {
        int64_t block = run->blocks - 1 - i / op->heads;
        attention_dq_block(run->backward, i % op->heads, block * QUERIES,
                           ot_min(op->n, (block + 1) * QUERIES), &tile);
    }
}

/* ---- dk, dv ---- */

/* Adds the contributions of one head's queries to the keys [begin, end), starting at the first query that can
 * see them. */
static void attention_add_head(const struct ot_attention_backward *op, struct attention_pair *pair,
                               int64_t end, struct attention_tile *tile) {
    const struct ot_attention *f = &op->forward;
    int64_t dim = f->head_dim;
    for (pair->query = pair->key; pair->query < f->n; pair->query += QUERIES) {
        int64_t rows = ot_min(QUERIES, f->n - pair->query);
        if (attention_block_keys(f, pair->query, pair->query + rows).first >= end)
            continue;
        pair->q = head_rows_at(f->dtype, f->q, f->ldq, pair->query, rows, pair->head * dim);
        pair->dout = head_rows_at(f->dtype, op->dout, f->ldo, pair->query, rows, pair->head * dim);
        attention_slopes(op, pair, tile);
        attention_weigh(f, tile->slopes, true, pair->k.rows,
                        head_rows_f32(f->dtype, pair->q, dim, tile->copy[2]), tile->sum);
        attention_weigh(f, tile->scores, true, pair->k.rows,
                        head_rows_f32(f->dtype, pair->dout, dim, tile->copy[3]), tile->sum_too);
    }
}

static void attention_dkv_block(const struct ot_attention_backward *op, int64_t kv_head, int64_t begin,
                                int64_t end, struct attention_tile *tile) {
    const struct ot_attention *f = &op->forward;
    int64_t dim = f->head_dim, keys = end - begin, group = f->heads / f->kv_heads;
    struct attention_pair pair = {0, 0, begin, {0}, {0}, {0}, {0}};
    pair.k = head_rows_at(f->dtype, f->k, f->ldk, begin, keys, kv_head * dim);
    pair.v = head_rows_at(f->dtype, f->v, f->ldv, begin, keys, kv_head * dim);
    memset(tile->sum, 0, (size_t)(keys * dim) * sizeof(float));
    memset(tile->sum_too, 0, (size_t)(keys * dim) * sizeof(float));
    for (pair.head = kv_head * group; pair.head < (kv_head + 1) * group; pair.head++)
        attention_add_head(op, &pair, end, tile);
    for (int64_t j = 0; j < keys; j++) {
        int64_t k = (begin + j) * f->ldk + kv_head * dim, v = (begin + j) * f->ldv + kv_head * dim;
        WITH_DTYPE(f->dtype, attention_store, op->dk, k, tile->sum + j * dim, dim, 1);
        WITH_DTYPE(f->dtype, attention_store, op->dv, v, tile->sum_too + j * dim, dim, 1);
    }
}

static void attention_dkv_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk;
    const struct attention_run *run = context;
    const struct ot_attention *op = run->op;
    struct attention_tile tile =
        attention_tile_at(run->scratch + worker * attention_tile_elems(op->head_dim), op->head_dim);
    for (int64_t i = begin; i < end; i++) {
        int64_t first =
            /* early keys are seen by most queries, so the longest work starts first */
            i / op->kv_heads * OWNED_KEYS;
        attention_dkv_block(run->backward, i % op->kv_heads, first, ot_min(op->n, first + OWNED_KEYS), &tile);
    }
}

/* ---- dsinks ---- */

/* One chunk has one head, and adds its queries in order. */
static void attention_dsinks_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct ot_attention_backward *op = context;
    const struct ot_attention *f = &op->forward;
    for (int64_t head = begin; head < end; head++) {
        const float *lse = f->lse + head * f->n, *delta = op->scratch + head * f->n;
        float sink = attention_sink(f, head);
        ot_vf sum = {0};
        OT_FOR_LANES(i, lanes, f->n, {
            ot_vf p = vec_exp(sink - vec_load(OT_F32, lse, i, lanes));
            p = vec_select(vec_first(lanes), p, vec_set(0.0f));
            sum += p * vec_load(OT_F32, delta, i, lanes);
        });
        op->dsinks[head] -= vec_sum(sum);
    }
}

static void run_attention_backward(struct ot_lane *lane, const void *args) {
    const struct ot_attention_backward *op = args;
    const struct ot_attention *forward = &op->forward;
    struct ot_pool *pool = ot_cpu_lane_pool(lane);
    struct attention_run run = {forward, op, attention_scratch(lane, forward->head_dim), 0};
    if (!run.scratch)
        return;
    ot_pool_run(pool, forward->n, rows_per_chunk(forward->heads * forward->head_dim), attention_delta_chunk,
                (void *)op);
    if (op->dsinks)
        ot_pool_run(pool, forward->heads, 1, attention_dsinks_chunk, (void *)op);
    run.blocks = ot_chunk_count(forward->n, QUERIES);
    ot_pool_run(pool, run.blocks * forward->heads, 1, attention_dq_chunk, &run);
    run.blocks = ot_chunk_count(forward->n, OWNED_KEYS);
    ot_pool_run(pool, run.blocks * forward->kv_heads, 1, attention_dkv_chunk, &run);
}

static void cpu_attention_backward(struct ot_lane *lane, const struct ot_attention_backward *op) {
    assert(op->forward.n_keys == op->forward.n && op->forward.lse && op->forward.softcap >= 0);
    assert(op->forward.sinks || !op->dsinks);
    ot_cpu_lane_push(lane, run_attention_backward, op, sizeof *op);
}
