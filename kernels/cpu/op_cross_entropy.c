/* Softmax cross-entropy, row by row, and the softcap of logits. Each pass over a row with a softcap caps the
 * logits again, because the op has no memory for capped ones and must keep the logits as they are. */
#include "kernels/cpu/op_parts.h"

/* Logits [first, first + count) of a row, capped if `caps` is set, which is a constant where this is
 * inlined. If slope is not NULL, *slope becomes the derivative of the cap. */
static OT_INLINE ot_vf loss_logits(const float *logits, bool caps, float cap, int64_t first, int64_t count,
                                   ot_vf *slope) {
    ot_vf x = vec_load(OT_F32, logits, first, count), y = x;
    ot_vf derivative = caps ? vec_softcap_slope(cap, x, &y) : vec_set(1.0f);
    if (slope)
        *slope = derivative;
    return y;
}

static OT_INLINE float cross_entropy_max(bool caps, const float *logits, int64_t vocab, float cap) {
    ot_vf largest = vec_set(-INFINITY);
    OT_FOR_LANES(i, lanes, vocab, {
        ot_vf x = loss_logits(logits, caps, cap, i, lanes, NULL);
        x = vec_select(vec_first(lanes), x, vec_set(-INFINITY));
        largest = vec_max(x, largest);
    });
    return vec_largest(largest);
}

/* The sum of exp(logit - max) in fp32. Each of 16 partial sums has vocab / 16 positive terms, so the relative
 * error is about vocab / 16 ulps at worst, and far less on average. */
static OT_INLINE float cross_entropy_sum(bool caps, const float *logits, int64_t vocab, float cap,
                                         float max) {
    ot_vf sum = {0};
    OT_FOR_LANES(i, lanes, vocab, {
        ot_vf e = vec_exp(loss_logits(logits, caps, cap, i, lanes, NULL) - max);
        sum += vec_select(vec_first(lanes), e, vec_set(0.0f));
    });
    return vec_sum(sum);
}

static OT_INLINE void cross_entropy_gradient(enum ot_dtype dtype, bool caps, const float *logits, void *grad,
                                             int64_t vocab, float cap, float max, float factor) {
    OT_FOR_LANES(i, lanes, vocab, {
        ot_vf slope, e = vec_exp(loss_logits(logits, caps, cap, i, lanes, &slope) - max) * factor;
        vec_store(dtype, grad, i, lanes, caps ? e * slope : e);
    });
}

static OT_INLINE void cross_entropy_row(bool caps, const struct ot_cross_entropy *op, int64_t row) {
    const float *logits = op->logits + row * op->ld;
    void *grad = op->grad ? at_mut(op->grad_dtype, op->grad, row * op->ld_grad) : NULL;
    int32_t target = op->targets[row];
    assert(target < op->vocab);
    if (target < 0) {
        op->loss[row] = 0;
        if (grad)
            memset(grad, 0, (size_t)op->vocab * ot_dtype_bytes(op->grad_dtype));
        return;
    }
    ot_vf hit_slope;
    float max = cross_entropy_max(caps, logits, op->vocab, op->softcap);
    float sum = cross_entropy_sum(caps, logits, op->vocab, op->softcap, max);
    float hit = loss_logits(logits + target, caps, op->softcap, 0, 1, &hit_slope)[0];
    op->loss[row] = logf(sum) + (max - hit);
    if (!grad)
        return;
    float scale = op->loss_scale ? op->grad_scale * *op->loss_scale : op->grad_scale;
    WITH_DTYPE(op->grad_dtype, cross_entropy_gradient, caps, logits, grad, op->vocab, op->softcap, max,
               scale / sum);
    float slope = (expf(hit - max) / sum - 1.0f) * scale;
    ot_dtype_write(op->grad_dtype, grad, target, caps ? slope * hit_slope[0] : slope);
}

static void cross_entropy_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct ot_cross_entropy *op = context;
    for (int64_t row = begin; row < end; row++)
        if (op->softcap != 0)
            cross_entropy_row(true, op, row);
        else
            cross_entropy_row(false, op, row);
}

static void run_cross_entropy(struct ot_lane *lane, const void *args) {
    const struct ot_cross_entropy *op = args;
    ot_pool_run(ot_cpu_lane_pool(lane), op->rows, rows_per_chunk(op->vocab), cross_entropy_chunk, (void *)op);
}

static void cpu_cross_entropy(struct ot_lane *lane, const struct ot_cross_entropy *op) {
    assert(op->softcap >= 0 && isfinite(op->softcap));
    ot_cpu_lane_push(lane, run_cross_entropy, op, sizeof *op);
}

/* ---- softcap ---- */

static void softcap_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct ot_softcap *op = context;
    float *x = op->x + begin;
    OT_FOR_LANES(i, lanes, end - begin,
                 { vec_store(OT_F32, x, i, lanes, loss_logits(x, true, op->cap, i, lanes, NULL)); });
}

static void run_softcap(struct ot_lane *lane, const void *args) {
    const struct ot_softcap *op = args;
    ot_pool_run(ot_cpu_lane_pool(lane), op->n, CHUNK_ELEMENTS, softcap_chunk, (void *)op);
}

static void cpu_softcap(struct ot_lane *lane, const struct ot_softcap *op) {
    assert(op->cap > 0 && isfinite(op->cap));
    ot_cpu_lane_push(lane, run_softcap, op, sizeof *op);
}
