/* Rotary embedding (Su et al., "RoFormer"): pairs of both halves of a head, or of neighbours. Both compute
 * a pair (a, b) as (a c - b s, b c + a s), so a pair has the same bits in either place. */
#include "kernels/cpu/op_parts.h"

/* Rotates the halves of one head. */
static OT_INLINE void rope_halves(enum ot_dtype dtype, void *first, int64_t half, const float *cosines,
                                  const float *sines, float direction) {
    void *second = at_mut(dtype, first, half);
    OT_FOR_LANES(i, lanes, half, {
        ot_vf c = vec_load(OT_F32, cosines, i, lanes), s = direction * vec_load(OT_F32, sines, i, lanes);
        ot_vf a = vec_load(dtype, first, i, lanes), b = vec_load(dtype, second, i, lanes);
        vec_store(dtype, first, i, lanes, a * c - b * s);
        vec_store(dtype, second, i, lanes, b * c + a * s);
    });
}

/* Rotates the neighbours of one head: 8 pairs at a time. Each element meets its neighbour by a shuffle; the
 * sine of its even elements is negated. */
static OT_INLINE void rope_neighbours(enum ot_dtype dtype, void *x, int64_t half, const float *cosines,
                                      const float *sines, float direction) {
    const ot_vi even = {-1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0};
    OT_FOR_LANES(i, lanes, 2 * half, {
        ot_vf c = vec_load(OT_F32, cosines, i / 2, lanes / 2);
        ot_vf s = direction * vec_load(OT_F32, sines, i / 2, lanes / 2);
        c = vec_twice(c);
        s = vec_twice(s);
        ot_vf own = vec_load(dtype, x, i, lanes), other = vec_swap_neighbours(own);
        vec_store(dtype, x, i, lanes, own * c + other * vec_select(even, -s, s));
    });
}

static OT_INLINE void rope_token(enum ot_dtype dtype, const struct ot_rope *op, int64_t token) {
    int64_t half = op->rotary_dim / 2, row = op->position[token] * half;
    assert(op->position[token] >= 0 && op->position[token] < op->max_position);
    const float *cosines = op->cos_table + row, *sines = op->sin_table + row;
    float direction = op->inverse ? -1.0f : 1.0f;
    for (int64_t head = 0; head < op->heads; head++) {
        void *x = at_mut(dtype, op->x, token * op->ld + head * op->head_dim);
        if (op->interleaved)
            rope_neighbours(dtype, x, half, cosines, sines, direction);
        else
            rope_halves(dtype, x, half, cosines, sines, direction);
    }
}

static void rope_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct ot_rope *op = context;
    for (int64_t token = begin; token < end; token++)
        WITH_DTYPE(op->dtype, rope_token, op, token);
}

static void run_rope(struct ot_lane *lane, const void *args) {
    const struct ot_rope *op = args;
    int64_t rows = rows_per_chunk(op->heads * op->rotary_dim);
    ot_pool_run(ot_cpu_lane_pool(lane), op->n, rows, rope_chunk, (void *)op);
}

static void cpu_rope(struct ot_lane *lane, const struct ot_rope *op) {
    ot_cpu_lane_push(lane, run_rope, op, sizeof *op);
}
