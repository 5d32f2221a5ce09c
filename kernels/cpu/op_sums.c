/* Sums over rows, sums over whole arrays, and the embedding's gather and scatter. Sums over rows are split by
 * columns: a thread owns a strip of columns and walks over all rows in order. So no partial results are
 * needed. */
#include "kernels/cpu/op_parts.h"

enum {
    STRIP_COLS = 64, /* one to two cache lines of bf16 */
    BLOCK_ROWS =
        /* rows that are summed before they join the total: the rounding error grows with the block, not with
         * all rows */
    256,
};

/* ---- bias ---- */

static OT_INLINE void bias_backward_strip(enum ot_dtype dtype, const struct ot_bias_backward *op,
                                          int64_t begin, int64_t end) {
    for (int64_t block = 0; block < op->rows; block += BLOCK_ROWS) {
        ot_vf sums[STRIP_COLS / OT_LANES] = {0};
        int64_t last = ot_min(op->rows, block + BLOCK_ROWS);
        for (int64_t row = block; row < last; row++) {
            const void *dy = at(dtype, op->dy, row * op->ld + begin);
            OT_FOR_LANES(i, lanes, end - begin, { sums[i / OT_LANES] += vec_load(dtype, dy, i, lanes); });
        }
        float *dbias = op->dbias + begin;
        OT_FOR_LANES(i, lanes, end - begin, {
            vec_store(OT_F32, dbias, i, lanes, vec_load(OT_F32, dbias, i, lanes) + sums[i / OT_LANES]);
        });
    }
}

static void bias_backward_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct ot_bias_backward *op = context;
    WITH_DTYPE(op->dtype, bias_backward_strip, op, begin, end);
}

static void run_bias_backward(struct ot_lane *lane, const void *args) {
    const struct ot_bias_backward *op = args;
    ot_pool_run(ot_cpu_lane_pool(lane), op->cols, STRIP_COLS, bias_backward_chunk, (void *)op);
}

static void cpu_bias_backward(struct ot_lane *lane, const struct ot_bias_backward *op) {
    ot_cpu_lane_push(lane, run_bias_backward, op, sizeof *op);
}

/* ---- embedding ---- */

static OT_INLINE void embed_scaled(enum ot_dtype dtype, const struct ot_embed *op, int64_t i) {
    const void *row = at(dtype, op->table, op->tokens[i] * op->cols);
    void *out = at_mut(dtype, op->out, i * op->cols);
    OT_FOR_LANES(c, lanes, op->cols,
                 { vec_store(dtype, out, c, lanes, vec_load(dtype, row, c, lanes) * vec_set(op->scale)); });
}

static void embed_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct ot_embed *op = context;
    size_t bytes = (size_t)op->cols * ot_dtype_bytes(op->dtype);
    for (int64_t i = begin; i < end; i++) {
        assert(op->tokens[i] >= 0 && op->tokens[i] < op->vocab);
        if (op->scale != 0 && op->scale != 1) {
            WITH_DTYPE(op->dtype, embed_scaled, op, i);
            continue;
        }
        memcpy(at_mut(op->dtype, op->out, i * op->cols), at(op->dtype, op->table, op->tokens[i] * op->cols),
               bytes);
    }
}

static void run_embed(struct ot_lane *lane, const void *args) {
    const struct ot_embed *op = args;
    ot_pool_run(ot_cpu_lane_pool(lane), op->n, rows_per_chunk(op->cols), embed_chunk, (void *)op);
}

static void cpu_embed(struct ot_lane *lane, const struct ot_embed *op) {
    ot_cpu_lane_push(lane, run_embed, op, sizeof *op);
}

static OT_INLINE void embed_backward_strip(enum ot_dtype dtype, const struct ot_embed_backward *op,
                                           int64_t begin, int64_t end) {
    ot_vf scale = vec_repeat(op->scale != 0 ? op->scale : 1.0f);
    for (int64_t row = 0; row < op->n; row++) {
        assert(op->tokens[row] >= 0 && op->tokens[row] < op->vocab);
        const void *dout = at(dtype, op->dout, row * op->cols + begin);
        float *dtable = op->dtable + op->tokens[row] * op->cols + begin;
        OT_FOR_LANES(i, lanes, end - begin, {
            ot_vf sum = vec_load(OT_F32, dtable, i, lanes) + scale * vec_load(dtype, dout, i, lanes);
            vec_store(OT_F32, dtable, i, lanes, sum);
        });
    }
}

static void embed_backward_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct ot_embed_backward *op = context;
    WITH_DTYPE(op->dtype, embed_backward_strip, op, begin, end);
}

static void run_embed_backward(struct ot_lane *lane, const void *args) {
    const struct ot_embed_backward *op = args;
    ot_pool_run(ot_cpu_lane_pool(lane), op->cols, STRIP_COLS, embed_backward_chunk, (void *)op);
}

static void cpu_embed_backward(struct ot_lane *lane, const struct ot_embed_backward *op) {
    ot_cpu_lane_push(lane, run_embed_backward, op, sizeof *op);
}

/* ---- reduce ---- */

struct reduce_run {
    const struct ot_reduce *op;
    double *partial; /* [chunks] */
};

static void reduce_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)worker;
    const struct reduce_run *run = context;
    const float *x = run->op->x + begin;
    ot_vd sums[2] = {0};
    OT_FOR_LANES(i, lanes, end - begin, {
        ot_vf value = vec_load(OT_F32, x, i, lanes);
        ot_vf8 halves[2];
        memcpy(halves, &value, sizeof halves);
        for (int h = 0; h < 2; h++) {
            ot_vd wide = __builtin_convertvector(halves[h], ot_vd);
            sums[h] += run->op->squares ? wide * wide : wide;
        }
    });
    ot_vd both = sums[0] + sums[1];
    double total = 0;
    for (int i = 0; i < 8; i++)
        total += both[i];
    run->partial[chunk] = total;
    if (run->op->rounded) /* the chunk is still in the cache */
        cast_span(OT_F32, run->op->rounded_dtype, x, at_mut(run->op->rounded_dtype, run->op->rounded, begin),
                  end - begin);
}

static void run_reduce(struct ot_lane *lane, const void *args) {
    const struct ot_reduce *op = args;
    int64_t chunks = ot_chunk_count(op->n, OT_REDUCE_CHUNK);
    struct reduce_run run = {op, ot_cpu_lane_scratch(lane, (size_t)ot_max(chunks, 1) * sizeof(double))};
    if (!run.partial)
        return;
    ot_pool_run(ot_cpu_lane_pool(lane), op->n, OT_REDUCE_CHUNK, reduce_chunk, &run);
    double total = op->accumulate ? *op->out : 0;
    for (int64_t i = 0; i < chunks; i++)
        total += run.partial[i];
    *op->out = total;
}

static void cpu_reduce(struct ot_lane *lane, const struct ot_reduce *op) {
    ot_cpu_lane_push(lane, run_reduce, op, sizeof *op);
}
