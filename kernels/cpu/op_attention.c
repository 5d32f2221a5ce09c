/* Causal attention, forward. Blocks of queries meet blocks of keys with a running softmax (Milakov &
 * Gimelshein, "Online normalizer calculation for softmax"; Dao et al., "FlashAttention"). A chunk of work is
 * one head and one block of queries. It visits only the key blocks that one of its queries sees. So packed
 * rows and windows cost only their own keys. */
#include "kernels/cpu/op_parts.h"

/* QUERIES x KEYS scores are 64 KiB. Together with the operands they stay in L2, and both sizes are large
 * enough for BLAS. */
enum { QUERIES = 64, KEYS = 256 };

/* Memory of one worker for a tile; everything is fp32. */
struct attention_tile {
    float *scores;      /* [QUERIES, KEYS] */
    float *slopes;      /* [QUERIES, KEYS], backward: gradients of the scores */
    float *sum;         /* [KEYS, head_dim] result: rows of queries or of keys */
    float *sum_too;     /* [KEYS, head_dim] backward: the second result */
    float *copy[4];     /* [KEYS, head_dim] each: operands, converted to fp32 or packed */
    float *max, *total; /* [QUERIES] */
};

/* Elements of [KEYS, head_dim], with head_dim rounded up so that the AMX panels of as many bf16 fit. */
static int64_t attention_side_elems(int64_t head_dim) {
    return KEYS * ot_chunk_count(head_dim, OT_CPU_AMX_PANEL) * OT_CPU_AMX_PANEL;
}

static int64_t attention_tile_elems(int64_t head_dim) {
    return 2 * QUERIES * KEYS + 6 * attention_side_elems(head_dim) + 2 * QUERIES;
}

static struct attention_tile attention_tile_at(float *memory, int64_t head_dim) {
    struct attention_tile tile;
    int64_t side = attention_side_elems(head_dim);
    tile.scores = memory;
    tile.slopes = tile.scores + QUERIES * KEYS;
    tile.sum = tile.slopes + QUERIES * KEYS;
    tile.sum_too = tile.sum + side;
    for (int i = 0; i < 4; i++)
        tile.copy[i] = tile.sum_too + (i + 1) * side;
    tile.max = tile.copy[3] + side;
    tile.total = tile.max + QUERIES;
    return tile;
}

/* The keys that query i sees: [first, last). */
struct key_range {
    int64_t first, last;
};

static struct key_range attention_keys(const struct ot_attention *op, int64_t query) {
    int64_t self = query + op->n_keys - op->n;
    int64_t first = op->row_start[query];
    if (op->window)
        first = ot_max(first, self - op->window + 1);
    return (struct key_range){first, self + 1};
}

/* The keys that any query of [begin, end) sees. */
static struct key_range attention_block_keys(const struct ot_attention *op, int64_t begin, int64_t end) {
    struct key_range all = attention_keys(op, end - 1);
    for (int64_t query = begin; query < end - 1; query++)
        all.first = ot_min(all.first, attention_keys(op, query).first);
    return all;
}

/* The vectors of some tokens of one head, as device memory holds them. */
struct head_rows {
    const void *data;
    int64_t ld, rows;
};

static struct head_rows head_rows_at(enum ot_dtype dtype, const void *array, int64_t ld, int64_t first,
                                     int64_t rows, int64_t column) {
    struct head_rows result = {at(dtype, array, first * ld + column), ld, rows};
    show_read(dtype, result.data, rows, ld);
    return result;
}

/* The same rows in fp32: converted into copy if they are not fp32. */
static struct head_rows head_rows_f32(enum ot_dtype dtype, struct head_rows from, int64_t head_dim,
                                      float *copy) {
    if (dtype == OT_F32)
        return from;
    WITH_DTYPE(dtype, convert_block, from.data, from.ld, from.rows, head_dim, copy);
    return (struct head_rows){copy, head_dim, from.rows};
}

static void attention_pack(const struct ot_cpu_product *product, uint16_t *a, uint16_t *b) {
    int64_t panel_elems = ot_cpu_amx_panel_elems(product->k);
    for (int64_t row = 0; row < product->m; row += OT_CPU_AMX_PANEL)
        ot_cpu_amx_pack_a(product, row, a + row / OT_CPU_AMX_PANEL * panel_elems);
    for (int64_t col = 0; col < product->n; col += OT_CPU_AMX_PANEL)
        ot_cpu_amx_pack_b(product, col, b + col / OT_CPU_AMX_PANEL * panel_elems);
}

/* out[a.rows, b.rows] = a b^T. bf16 is multiplied directly if the CPU supports it: its products are exact in
 * fp32. */
static void attention_dots(const struct ot_attention *op, struct head_rows a, struct head_rows b,
                           float *copies[2], float *out) {
    enum ot_cpu_bf16 way = op->dtype == OT_BF16 ? ot_cpu_blas_bf16_way() : OT_CPU_BF16_CONVERT;
    if (way == OT_CPU_BF16_CONVERT) {
        a = head_rows_f32(op->dtype, a, op->head_dim, copies[0]);
        b = head_rows_f32(op->dtype, b, op->head_dim, copies[1]);
    }
    struct ot_cpu_product product = {.trans_b = true,
                                     .m = a.rows,
                                     .n = b.rows,
                                     .k = op->head_dim,
                                     .a = a.data,
                                     .b = b.data,
                                     .c = out,
                                     .lda = a.ld,
                                     .ldb = b.ld,
                                     .ldc = KEYS};
    if (way == OT_CPU_BF16_AMX) {
        attention_pack(&product, (void *)copies[0], (void *)copies[1]);
        product.a = copies[0];
        product.b = copies[1];
        product.lda = 0;
        ot_cpu_amx_multiply(&product);
    } else if (way == OT_CPU_BF16_ONEDNN) {
        ot_cpu_blas_onednn(&product);
    } else {
        ot_cpu_blas_f32(&product);
    }
}

/* sum[m, head_dim] += weights * rows. weights is [m, rows] or its transpose, with KEYS elements between its
 * rows.
 */
static void attention_weigh(const struct ot_attention *op, const float *weights, bool trans, int64_t m,
                            struct head_rows rows, float *sum) {
    struct ot_cpu_product product = {trans,   false,     true, m,    op->head_dim, rows.rows,
                                     weights, rows.data, sum,  KEYS, rows.ld,      op->head_dim};
    ot_cpu_blas_f32(&product);
}

/* Zeroes the elements outside of [first, last) in a row of n. */
static void attention_mask_row(float *row, int64_t first, int64_t last, int64_t n) {
    memset(row, 0, (size_t)first * sizeof *row);
    memset(row + last, 0, (size_t)(n - last) * sizeof *row);
}

/* Turns a row of q.k into capped scores. If derivative is not NULL, the function writes there the derivative
 * of each score by scale * q.k. */
static void attention_cap_row(const struct ot_attention *op, float *qk, int64_t keys, float *derivative) {
    float factor = op->scale / op->softcap;
    OT_FOR_LANES(i, lanes, keys, {
        ot_vf tanh, slope = vec_tanh_slope(factor * vec_load(OT_F32, qk, i, lanes), &tanh);
        vec_store(OT_F32, qk, i, lanes, op->softcap * tanh);
        if (derivative)
            vec_store(OT_F32, derivative, i, lanes, slope);
    });
}

/* Returns the factor that turns q.k into scores. With a softcap or slopes, the function turns q.k of keys
 * [key, key + keys) into the scores themselves, and the factor is 1. derivative: see attention_cap_row; not
 * written without a softcap. */
static float attention_scale_row(const struct ot_attention *op, int64_t head, int64_t query, int64_t key,
                                 float *qk, int64_t keys, float *derivative) {
    float scale = op->scale;
    if (op->softcap > 0) {
        attention_cap_row(op, qk, keys, derivative);
        scale = 1;
    }
    if (!op->slopes)
        return scale;
    const ot_vf lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    int64_t self = query + op->n_keys - op->n;
    OT_FOR_LANES(i, lanes, keys, {
        ot_vf distance = (float)(self - key - i) - lane;
        vec_store(OT_F32, qk, i, lanes, scale * vec_load(OT_F32, qk, i, lanes) - op->slopes[head] * distance);
    });
    return 1;
}

static float attention_sink(const struct ot_attention *op, int64_t head) {
    return vec_load(op->dtype, op->sinks, head, 1)[0];
}

/* Turns the visible part of a row of q.k into exp(scale * q.k - new maximum). Rescales the running sum and
 * the row's result to the new maximum. */
static void attention_softmax_row(const struct ot_attention *op, float scale, float *seen, int64_t keys,
                                  float *max, float *total, float *sum) {
    ot_vf largest = vec_set(*max), added = {0};
    OT_FOR_LANES(i, lanes, keys, {
        ot_vf x = scale * vec_load(OT_F32, seen, i, lanes);
        largest = vec_max(vec_select(vec_first(lanes), x, vec_set(-INFINITY)), largest);
    });
    float new_max = vec_largest(largest);
    OT_FOR_LANES(i, lanes, keys, {
        ot_vf e = vec_exp(scale * vec_load(OT_F32, seen, i, lanes) - new_max);
        vec_store(OT_F32, seen, i, lanes, e);
        added += vec_select(vec_first(lanes), e, vec_set(0.0f));
    });
    if (new_max > *max) { /* also the first time: the maximum is -infinity, and factor and sums are 0 */
        float factor = expf(*max - new_max);
        *total *= factor;
        OT_FOR_LANES(i, lanes, op->head_dim,
                     { vec_store(OT_F32, sum, i, lanes, factor * vec_load(OT_F32, sum, i, lanes)); });
        *max = new_max;
    }
    *total += vec_sum(added);
}

static OT_INLINE void attention_store(enum ot_dtype dtype, void *array, int64_t first, const float *sum,
                                      int64_t dim, float factor) {
    OT_FOR_LANES(i, lanes, dim,
                 { vec_store(dtype, array, first + i, lanes, factor * vec_load(OT_F32, sum, i, lanes)); });
}

/* Computes the block of queries [begin, end) of one head. */
static void attention_block(const struct ot_attention *op, int64_t head, int64_t begin, int64_t end,
                            struct attention_tile *tile) {
    int64_t dim = op->head_dim, rows = end - begin, kv_column = head / (op->heads / op->kv_heads) * dim;
    struct head_rows q = head_rows_at(op->dtype, op->q, op->ldq, begin, rows, head * dim);
    struct key_range all = attention_block_keys(op, begin, end);
    memset(tile->sum, 0, (size_t)(rows * dim) * sizeof(float));
    for (int64_t i = 0; i < rows; i++) { /* a sink is a key without a value, which every row has seen */
        tile->max[i] = op->sinks ? attention_sink(op, head) : -INFINITY;
        tile->total[i] = op->sinks ? 1 : 0;
    }
    for (int64_t key = all.first; key < all.last; key += KEYS) {
        int64_t keys = ot_min(KEYS, all.last - key);
        struct head_rows k = head_rows_at(op->dtype, op->k, op->ldk, key, keys, kv_column);
        struct head_rows v = head_rows_at(op->dtype, op->v, op->ldv, key, keys, kv_column);
        attention_dots(op, q, k, tile->copy, tile->scores);
        for (int64_t i = 0; i < rows; i++) {
            struct key_range seen = attention_keys(op, begin + i);
            int64_t first = ot_min(ot_max(seen.first - key, 0), keys),
                    last = ot_max(ot_min(seen.last - key, keys), first);
            attention_mask_row(tile->scores + i * KEYS, first, last, keys);
            if (first == last)
                continue;
            float *row = tile->scores + i * KEYS + first;
            float scale = attention_scale_row(op, head, begin + i, key + first, row, last - first, NULL);
            attention_softmax_row(op, scale, row, last - first, &tile->max[i], &tile->total[i],
                                  tile->sum + i * dim);
        }
        attention_weigh(op, tile->scores, false, rows, head_rows_f32(op->dtype, v, dim, tile->copy[2]),
                        tile->sum);
    }
    for (int64_t i = 0; i < rows; i++) {
        int64_t out = (begin + i) * op->ldo + head * dim;
        WITH_DTYPE(op->dtype, attention_store, op->out, out, tile->sum + i * dim, dim, 1.0f / tile->total[i]);
        if (op->lse)
            op->lse[head * op->n + begin + i] = tile->max[i] + logf(tile->total[i]);
    }
}

struct attention_run {
    const struct ot_attention *op;
    const struct ot_attention_backward *backward; /* NULL in forward */
    float *scratch;
    int64_t blocks; /* blocks of queries or of keys, per head */
};

static void attention_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk;
    const struct attention_run *run = context;
    const struct ot_attention *op = run->op;
    struct attention_tile tile =
        attention_tile_at(run->scratch + worker * attention_tile_elems(op->head_dim), op->head_dim);
    for (int64_t i = begin; i < end; i++) {
        /* Late queries see most keys, so the longest work starts first. */
        int64_t block = run->blocks - 1 - i / op->heads;
        attention_block(op, i % op->heads, block * QUERIES, ot_min(op->n, (block + 1) * QUERIES), &tile);
    }
}

static float *attention_scratch(struct ot_lane *lane, int64_t head_dim) {
    int64_t workers = ot_pool_threads(ot_cpu_lane_pool(lane));
    return ot_cpu_lane_scratch(lane, (size_t)(workers * attention_tile_elems(head_dim)) * sizeof(float));
}

static void run_attention(struct ot_lane *lane, const void *args) {
    const struct ot_attention *op = args;
    struct attention_run run = {op, NULL, attention_scratch(lane, op->head_dim),
                                ot_chunk_count(op->n, QUERIES)};
    if (run.scratch)
        ot_pool_run(ot_cpu_lane_pool(lane), run.blocks * op->heads, 1, attention_chunk, &run);
}

static void cpu_attention(struct ot_lane *lane, const struct ot_attention *op) {
    assert(op->heads % op->kv_heads == 0 && op->n_keys >= op->n && op->softcap >= 0);
    ot_cpu_lane_push(lane, run_attention, op, sizeof *op);
}
