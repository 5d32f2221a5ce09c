/* Softmax cross-entropy, row by row. */
#include "kernels/cpu/op_parts.h"

static OT_INLINE float cross_entropy_max(const float *logits, int64_t vocab) {
    ot_vf largest = vec_set(-INFINITY);
    OT_FOR_LANES(i, lanes, vocab, {
        ot_vf x = vec_select(vec_first(lanes), vec_load(OT_F32, logits, i, lanes), vec_set(-INFINITY));
        largest = vec_max(x, largest);
    });
    return vec_largest(largest);
}

/* The sum of exp(logit - max) in fp32. Each of 16 partial sums has vocab / 16 positive terms, so the relative
 * error is about vocab / 16 ulps at worst, and far less on average. */
static OT_INLINE float cross_entropy_sum(const float *logits, int64_t vocab, float max) {
    ot_vf sum = {0};
    OT_FOR_LANES(i, lanes, vocab, {
        ot_vf e = vec_exp(vec_load(OT_F32, logits, i, lanes) - max);
        sum += vec_select(vec_first(lanes), e, vec_set(0.0f));
    });
    return vec_sum(sum);
}

static OT_INLINE void cross_entropy_gradient(enum ot_dtype dtype, const float *logits, void *grad,
                                             int64_t vocab, float max, float factor) {
    OT_FOR_LANES(i, lanes, vocab, {
        ot_vf e = vec_exp(vec_load(OT_F32, logits, i, lanes) - max);
        vec_store(dtype, grad, i, lanes, e * factor);
    });
}

static void cross_entropy_row(const struct ot_cross_entropy *op, int64_t row) {
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
    float max = cross_entropy_max(logits, op->vocab);
    float sum = cross_entropy_sum(logits, op->vocab, max), hit = logits[target];
    op->loss[row] = logf(sum) + (max - hit);
    if (!grad)
        return;
    float scale = op->loss_scale ? op->grad_scale * *op->loss_scale : op->grad_scale;
    WITH_DTYPE(op->grad_dtype, cross_entropy_gradient, logits, grad, op->vocab, max, scale / sum);
    float slope = (expf(hit - max) / sum - 1.0f) * scale;
    ot_dtype_write(op->grad_dtype, grad, target, slope);
}

static void cross_entropy_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    for (int64_t row = begin; row < end; row++)
        cross_entropy_row(context, row);
}

static void run_cross_entropy(struct ot_lane *lane, const void *args) {
    const struct ot_cross_entropy *op = args;
    ot_pool_run(ot_cpu_lane_pool(lane), op->rows, rows_per_chunk(op->vocab), cross_entropy_chunk, (void *)op);
}

static void cpu_cross_entropy(struct ot_lane *lane, const struct ot_cross_entropy *op) {
    ot_cpu_lane_push(lane, run_cross_entropy, op, sizeof *op);
}
