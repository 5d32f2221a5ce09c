/* Element-wise ops: add, cast, activations, gated activations, AdamW in chunks. */
#include "kernels/cpu/op_parts.h"

#include "kernels/adamw.h"

/* ---- activate ---- */

static OT_INLINE void activate_span(enum ot_dtype dtype, const struct ot_activate *op, int64_t begin,
                                    int64_t end) {
    const void *x = at(dtype, op->x, begin);
    void *y = at_mut(dtype, op->y, begin);
    OT_FOR_LANES(i, lanes, end - begin,
                 { vec_store(dtype, y, i, lanes, vec_activation(op->act, vec_load(dtype, x, i, lanes))); });
}

static void activate_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct ot_activate *op = context;
    WITH_DTYPE(op->dtype, activate_span, op, begin, end);
}

static void run_activate(struct ot_lane *lane, const void *args) {
    const struct ot_activate *op = args;
    ot_pool_run(ot_cpu_lane_pool(lane), op->n, CHUNK_ELEMENTS, activate_chunk, (void *)op);
}

static void cpu_activate(struct ot_lane *lane, const struct ot_activate *op) {
    ot_cpu_lane_push(lane, run_activate, op, sizeof *op);
}

static OT_INLINE void activate_backward_span(enum ot_dtype dtype, const struct ot_activate_backward *op,
                                             int64_t begin, int64_t end) {
    const void *x = at(dtype, op->x, begin), *dy = at(dtype, op->dy, begin);
    void *dx = at_mut(dtype, op->dx, begin);
    OT_FOR_LANES(i, lanes, end - begin, {
        ot_vf y;
        ot_vf slope = vec_activation_slope(op->act, vec_load(dtype, x, i, lanes), &y);
        vec_store(dtype, dx, i, lanes, vec_load(dtype, dy, i, lanes) * slope);
    });
}

static void activate_backward_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct ot_activate_backward *op = context;
    WITH_DTYPE(op->dtype, activate_backward_span, op, begin, end);
}

static void run_activate_backward(struct ot_lane *lane, const void *args) {
    const struct ot_activate_backward *op = args;
    ot_pool_run(ot_cpu_lane_pool(lane), op->n, CHUNK_ELEMENTS, activate_backward_chunk, (void *)op);
}

static void cpu_activate_backward(struct ot_lane *lane, const struct ot_activate_backward *op) {
    ot_cpu_lane_push(lane, run_activate_backward, op, sizeof *op);
}

/* ---- glu ---- */

static OT_INLINE void glu_row(enum ot_dtype dtype, const struct ot_glu *op, int64_t row) {
    const void *gate = at(dtype, op->gate, row * op->ld_in), *up = at(dtype, op->up, row * op->ld_in);
    void *out = at_mut(dtype, op->out, row * op->ld_out);
    OT_FOR_LANES(i, lanes, op->cols, {
        ot_vf a = vec_activation(op->act, vec_load(dtype, gate, i, lanes));
        vec_store(dtype, out, i, lanes, a * vec_load(dtype, up, i, lanes));
    });
}

/* Splits `lanes` pairs of gate and up, from pair i on. */
static OT_INLINE void glu_load_pairs(enum ot_dtype dtype, const void *both, int64_t i, int64_t lanes,
                                     ot_vf *gate, ot_vf *up) {
    int64_t first = ot_min(2 * lanes, OT_LANES);
    ot_vf a = vec_load(dtype, both, 2 * i, first);
    ot_vf b = vec_load(dtype, both, 2 * i + first, 2 * lanes - first);
    *gate = vec_evens(a, b);
    *up = vec_odds(a, b);
}

static OT_INLINE void glu_bounded_row(enum ot_dtype dtype, const struct ot_glu *op, int64_t row) {
    const void *both = at(dtype, op->gate, row * op->ld_in);
    void *out = at_mut(dtype, op->out, row * op->ld_out);
    OT_FOR_LANES(i, lanes, op->cols, {
        ot_vf gate, up;
        glu_load_pairs(dtype, both, i, lanes, &gate, &up);
        vec_store(dtype, out, i, lanes, vec_bounded_glu(op->limit, op->alpha, gate, up));
    });
}

static void glu_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct ot_glu *op = context;
    for (int64_t row = begin; row < end; row++)
        if (op->limit != 0)
            WITH_DTYPE(op->dtype, glu_bounded_row, op, row);
        else
            WITH_DTYPE(op->dtype, glu_row, op, row);
}

static void run_glu(struct ot_lane *lane, const void *args) {
    const struct ot_glu *op = args;
    ot_pool_run(ot_cpu_lane_pool(lane), op->rows, rows_per_chunk(op->cols), glu_chunk, (void *)op);
}

/* A limit needs rows of whole pairs. */
static bool is_sound_glu(const struct ot_glu *op) {
    return op->limit == 0 || (op->limit > 0 && isfinite(op->limit) && op->ld_in % 2 == 0);
}

static void cpu_glu(struct ot_lane *lane, const struct ot_glu *op) {
    assert(is_sound_glu(op));
    ot_cpu_lane_push(lane, run_glu, op, sizeof *op);
}

static OT_INLINE void glu_backward_row(enum ot_dtype dtype, const struct ot_glu_backward *op, int64_t row) {
    const struct ot_glu *forward = &op->forward;
    int64_t in = row * forward->ld_in;
    const void *gate = at(dtype, forward->gate, in), *up = at(dtype, forward->up, in);
    const void *dout = at(dtype, op->dout, row * forward->ld_out);
    void *dgate = at_mut(dtype, op->dgate, in), *dup = at_mut(dtype, op->dup, in);
    OT_FOR_LANES(i, lanes, forward->cols, {
        ot_vf a;
        ot_vf slope = vec_activation_slope(forward->act, vec_load(dtype, gate, i, lanes), &a);
        ot_vf d = vec_load(dtype, dout, i, lanes), u = vec_load(dtype, up, i, lanes);
        vec_store(dtype, dgate, i, lanes, (d * u) * slope);
        vec_store(dtype, dup, i, lanes, d * a);
    });
}

static OT_INLINE void glu_bounded_backward_row(enum ot_dtype dtype, const struct ot_glu_backward *op,
                                               int64_t row) {
    const struct ot_glu *forward = &op->forward;
    const void *both = at(dtype, forward->gate, row * forward->ld_in);
    const void *dout = at(dtype, op->dout, row * forward->ld_out);
    void *dboth = at_mut(dtype, op->dgate, row * forward->ld_in);
    OT_FOR_LANES(i, lanes, forward->cols, {
        ot_vf gate, up, by_up, d = vec_load(dtype, dout, i, lanes);
        glu_load_pairs(dtype, both, i, lanes, &gate, &up);
        ot_vf dgate = d * vec_bounded_glu_slopes(forward->limit, forward->alpha, gate, up, &by_up);
        int64_t first = ot_min(2 * lanes, OT_LANES);
        vec_store(dtype, dboth, 2 * i, first, vec_zip_low(dgate, d * by_up));
        vec_store(dtype, dboth, 2 * i + first, 2 * lanes - first, vec_zip_high(dgate, d * by_up));
    });
}

static void glu_backward_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct ot_glu_backward *op = context;
    for (int64_t row = begin; row < end; row++)
        if (op->forward.limit != 0)
            WITH_DTYPE(op->forward.dtype, glu_bounded_backward_row, op, row);
        else
            WITH_DTYPE(op->forward.dtype, glu_backward_row, op, row);
}

static void run_glu_backward(struct ot_lane *lane, const void *args) {
    const struct ot_glu_backward *op = args;
    ot_pool_run(ot_cpu_lane_pool(lane), op->forward.rows, rows_per_chunk(op->forward.cols),
                glu_backward_chunk, (void *)op);
}

static void cpu_glu_backward(struct ot_lane *lane, const struct ot_glu_backward *op) {
    assert(is_sound_glu(&op->forward));
    ot_cpu_lane_push(lane, run_glu_backward, op, sizeof *op);
}

/* ---- add ---- */

static OT_INLINE void add_span(enum ot_dtype dtype, const struct ot_add *op, int64_t begin, int64_t end) {
    const void *a = at(dtype, op->a, begin), *b = at(dtype, op->b, begin);
    void *out = at_mut(dtype, op->out, begin);
    OT_FOR_LANES(i, lanes, end - begin, {
        vec_store(dtype, out, i, lanes, vec_load(dtype, a, i, lanes) + vec_load(dtype, b, i, lanes));
    });
}

static void add_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct ot_add *op = context;
    WITH_DTYPE(op->dtype, add_span, op, begin, end);
}

static void run_add(struct ot_lane *lane, const void *args) {
    const struct ot_add *op = args;
    ot_pool_run(ot_cpu_lane_pool(lane), op->n, CHUNK_ELEMENTS, add_chunk, (void *)op);
}

static void cpu_add(struct ot_lane *lane, const struct ot_add *op) {
    ot_cpu_lane_push(lane, run_add, op, sizeof *op);
}

/* ---- dropout ---- */

/* ot_state_word of 16 elements. */
static OT_INLINE ot_vu random_words(struct ot_state_noise noise, int64_t index) {
    const ot_vu lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    ot_vu low = lane + (uint32_t)index;
    ot_vu high = (uint32_t)((uint64_t)index >> 32) - (ot_vu)(low < lane); /* + 1 where `low` wrapped around */
    ot_vu x = noise.begin + low * OT_NOISE_STEP + high * OT_NOISE_PAGE;
    x = (x ^ x >> 16) * OT_NOISE_MIX1;
    return (x ^ x >> 15 ^ noise.key) * OT_NOISE_MIX2;
}

static OT_INLINE void dropout_span(enum ot_dtype dtype, const struct ot_dropout *op, int64_t begin,
                                   int64_t end) {
    const void *x = at(dtype, op->x, begin), *addend = op->addend ? at(dtype, op->addend, begin) : NULL;
    void *out = at_mut(dtype, op->out, begin);
    uint32_t least = ot_dropout_least(op->drop);
    float factor = ot_dropout_factor(op->drop);
    OT_FOR_LANES(i, lanes, end - begin, {
        ot_vi dropped = random_words(op->noise, op->first + begin + i) < least;
        ot_vf value = vec_load(dtype, x, i, lanes), sum = addend ? vec_load(dtype, addend, i, lanes) : value;
        if (op->of_difference)
            value -= sum;
        value = vec_select(dropped, vec_set(0), value * factor);
        vec_store(dtype, out, i, lanes, addend ? sum + value : value);
    });
}

static void dropout_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct ot_dropout *op = context;
    WITH_DTYPE(op->dtype, dropout_span, op, begin, end);
}

static void run_dropout(struct ot_lane *lane, const void *args) {
    const struct ot_dropout *op = args;
    ot_pool_run(ot_cpu_lane_pool(lane), op->n, CHUNK_ELEMENTS, dropout_chunk, (void *)op);
}

static void cpu_dropout(struct ot_lane *lane, const struct ot_dropout *op) {
    assert(op->drop >= 0 && op->drop < 1 && (op->addend || !op->of_difference));
    ot_cpu_lane_push(lane, run_dropout, op, sizeof *op);
}

/* ---- join ---- */

static const void *join_part(const struct ot_join *op, int part, int64_t begin) {
    return part == op->own ? at(op->dtype, op->own_part, begin)
                           : at(op->dtype, op->parts, part * op->stride + begin);
}

/* Elements that are added at a time: they stay in the first cache while the parts are read one by one. */
enum { JOIN_ELEMENTS = 1024 };

static OT_INLINE void add_part(enum ot_dtype dtype, float *sum, const void *part, int64_t n) {
    OT_FOR_LANES(i, lanes, n, {
        vec_store(OT_F32, sum, i, lanes, vec_load(OT_F32, sum, i, lanes) + vec_load(dtype, part, i, lanes));
    });
}

static OT_INLINE void read_part(enum ot_dtype dtype, float *sum, const void *part, int64_t n) {
    OT_FOR_LANES(i, lanes, n, { vec_store(OT_F32, sum, i, lanes, vec_load(dtype, part, i, lanes)); });
}

/* One sum for each level of the tree: a binary counter of finished subtrees. Without a tree the first sum
 * gets every part. Writes out last, because out may be the rank's own part. */
static OT_INLINE void join_span(enum ot_dtype dtype, const struct ot_join *op, int64_t begin, int64_t n) {
    float sums[4][JOIN_ELEMENTS];
    int depth = 0;
    for (int p = 0; p < op->n_parts; p++) {
        if (!op->tree && p > 0) {
            add_part(dtype, sums[0], join_part(op, p, begin), n);
            continue;
        }
        read_part(dtype, sums[depth++], join_part(op, p, begin), n);
        for (int t = p; op->tree && (t & 1); t >>= 1, depth--)
            add_part(OT_F32, sums[depth - 2], sums[depth - 1], n);
    }
    read_part(OT_F32, op->out + begin, sums[0], n);
}

static void join_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct ot_join *op = context;
    for (int64_t i = begin; i < end; i += JOIN_ELEMENTS)
        WITH_DTYPE(op->dtype, join_span, op, i, ot_min(end - i, JOIN_ELEMENTS));
}

static void run_join(struct ot_lane *lane, const void *args) {
    const struct ot_join *op = args;
    ot_pool_run(ot_cpu_lane_pool(lane), op->n, CHUNK_ELEMENTS, join_chunk, (void *)op);
}

static void cpu_join(struct ot_lane *lane, const struct ot_join *op) {
    ot_cpu_lane_push(lane, run_join, op, sizeof *op);
}

/* ---- cast ---- */

static OT_INLINE void cast_span_from(enum ot_dtype from, enum ot_dtype to, const void *src, void *dst,
                                     int64_t n) {
    OT_FOR_LANES(i, lanes, n, { vec_store(to, dst, i, lanes, vec_load(from, src, i, lanes)); });
}

static OT_INLINE void cast_to(enum ot_dtype to, enum ot_dtype from, const void *src, void *dst, int64_t n) {
    WITH_DTYPE(from, cast_span_from, to, src, dst, n);
}

static void cast_span(enum ot_dtype from, enum ot_dtype to, const void *src, void *dst, int64_t n) {
    if (from == to)
        memcpy(dst, src, (size_t)n * ot_dtype_bytes(to));
    else
        WITH_DTYPE(to, cast_to, from, src, dst, n);
}

static void cast_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct ot_cast *op = context;
    cast_span(op->from, op->to, at(op->from, op->src, begin), at_mut(op->to, op->dst, begin), end - begin);
}

static void run_cast(struct ot_lane *lane, const void *args) {
    const struct ot_cast *op = args;
    ot_pool_run(ot_cpu_lane_pool(lane), op->n, CHUNK_ELEMENTS, cast_chunk, (void *)op);
}

static void cpu_cast(struct ot_lane *lane, const struct ot_cast *op) {
    ot_cpu_lane_push(lane, run_cast, op, sizeof *op);
}

/* ---- adamw ---- */

static void adamw_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    struct ot_adamw part = ot_adamw_chunk(context, begin, end);
    ot_adamw_run(&part);
}

static void run_adamw(struct ot_lane *lane, const void *args) {
    const struct ot_adamw *op = args;
    ot_pool_run(ot_cpu_lane_pool(lane), ot_adamw_places(op), CHUNK_ELEMENTS, adamw_chunk, (void *)op);
}

static void cpu_adamw(struct ot_lane *lane, const struct ot_adamw *op) {
    ot_cpu_lane_push(lane, run_adamw, op, sizeof *op);
}
