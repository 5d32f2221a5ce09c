/* The ops of the cuda device: check preconditions, mark, launch. A launcher's error sticks to the lane. */
#include <assert.h>
#include <math.h>

#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/cuda_gemm.h"
#include "kernels/cuda/cuda_guard.h"
#include "kernels/cuda/cuda_state.h"
#include "kernels/cuda/gemm_plain.h"

/* ---- preconditions of the contract (ops.h) that the host can check ---- */

static bool is_sound_norm(const struct ot_norm *op) {
    return (op->kind == OT_NORM_RMS || (op->bias && op->mean)) && op->group >= 1;
}

static bool is_sound_norm_backward(const struct ot_norm_backward *op) {
    return (op->kind == OT_NORM_RMS || op->mean) && op->group >= 1;
}

static bool is_sound_rope(const struct ot_rope *op) {
    return op->rotary_dim % 2 == 0 && op->rotary_dim <= op->head_dim;
}

static bool is_sound_attention(const struct ot_attention *op) {
    return op->heads % op->kv_heads == 0 && op->n_keys >= op->n && op->window >= 0 && op->softcap >= 0;
}

static bool is_sound_attention_backward(const struct ot_attention_backward *op) {
    const struct ot_attention *f = &op->forward;
    return is_sound_attention(f) && (op->dk_sums || f->n_keys == f->n) && !op->dk_sums == !op->dv_sums &&
           (uintptr_t)op->dk_sums % 16 == 0 && (uintptr_t)op->dv_sums % 16 == 0 && f->lse &&
           (f->sinks || !op->dsinks);
}

static bool is_sound_gemm(const struct ot_gemm *op) {
    return op->m >= 1 && op->n >= 1 && op->k >= 1 && (op->scale == 0 || op->scale == 1 || !op->bias);
}

static bool is_sound_decode(const struct ot_decode *op) {
    return ot_weight_is_range(&op->weight, op->first, op->n) && (uintptr_t)op->encoded % OT_WEIGHT_ALIGN == 0;
}

static bool is_sound_glu(const struct ot_glu *op) {
    return op->limit == 0 || (op->limit > 0 && isfinite(op->limit) && op->ld_in % 2 == 0);
}

static bool is_sound_router(const struct ot_router *op) {
    return op->top >= 1 && op->top <= op->experts && op->top <= OT_MOST_TOP && op->experts <= OT_MOST_EXPERTS;
}

static bool is_sound_gemm_groups(const struct ot_gemm_groups *op) {
    if (op->form == OT_GROUPS_SUMS)
        return op->m >= 1 && op->n >= 1 && !op->trans_b && !op->bias;
    return op->k >= 1 && op->n >= 1 && (op->scale == 0 || op->scale == 1 || !op->bias);
}

static bool is_sound_group(const struct ot_group *op) {
    return op->multiple >= 1 && op->experts >= 1 && op->experts <= OT_MOST_EXPERTS &&
           ot_group_rows(op->n, op->top, op->experts, op->multiple) <= INT32_MAX - OT_GROUP_CHUNK;
}

static bool is_sound_attend_spans(const struct ot_attend_spans *op) {
    return op->head_dim <= OT_SPAN_MOST_DIM &&
           (!op->bias || (op->bucket_of && op->reach >= 0 && op->buckets <= OT_SPAN_MOST_BUCKETS));
}

static bool is_sound_attend_spans_backward(const struct ot_attend_spans_backward *op) {
    const struct ot_attend_spans *f = &op->forward;
    return is_sound_attend_spans(f) && (f->softmax || f->n == 0) && (f->bias || !op->dbias);
}

/* ---- the ops ---- */

/* empty: the op has nothing to do. CUDA would return an error for a grid without blocks. */
#define DEFINE_OP(name, sound, empty)                                                                        \
    static void cuda_##name(struct ot_lane *base, const struct ot_##name *op) {                              \
        struct ot_cuda_lane *lane = (struct ot_cuda_lane *)base;                                             \
        assert(sound);                                                                                       \
        if (!(empty) && ot_cuda_lane_begin_op(lane))                                                         \
            ot_cuda_lane_check(lane, ot_cuda_##name(op, &ot_cuda_device_of(base->device)->on));              \
    }

DEFINE_OP(bias_backward, true, op->rows == 0 || op->cols == 0)
DEFINE_OP(embed, true, op->n == 0)
DEFINE_OP(embed_backward, true, op->n == 0)
DEFINE_OP(norm, is_sound_norm(op), op->rows == 0)
DEFINE_OP(norm_backward, is_sound_norm_backward(op), op->rows == 0)
DEFINE_OP(rope, is_sound_rope(op), op->n == 0 || op->rotary_dim == 0)
DEFINE_OP(glu, is_sound_glu(op), op->rows == 0 || op->cols == 0)
DEFINE_OP(glu_backward, is_sound_glu(&op->forward), op->forward.rows == 0 || op->forward.cols == 0)
DEFINE_OP(activate, true, op->n == 0)
DEFINE_OP(activate_backward, true, op->n == 0)
DEFINE_OP(add, true, op->n == 0)
DEFINE_OP(dropout, op->drop >= 0 && op->drop < 1 && (op->addend || !op->of_difference), op->n == 0)
DEFINE_OP(neftune, op->alpha >= 0 && isfinite(op->alpha), op->n == 0 || op->cols == 0)
DEFINE_OP(dora_factors, op->rank >= 1, op->rows == 0)
DEFINE_OP(dora, true, op->rows == 0 || op->cols == 0)
DEFINE_OP(dora_backward, op->u_dtype == op->dtype || op->u_dtype == OT_F32, op->rows == 0 || op->cols == 0)
DEFINE_OP(join, true, op->n == 0)
DEFINE_OP(softcap, op->cap > 0 && isfinite(op->cap), op->n == 0)
DEFINE_OP(cross_entropy,
          op->softcap >= 0 && isfinite(op->softcap) && op->smoothing >= 0 && op->smoothing < 1 &&
              op->z_weight >= 0 && isfinite(op->z_weight),
          op->rows == 0)
DEFINE_OP(compare, op->n >= 0, false)
DEFINE_OP(reduce, true, op->n == 0 && op->accumulate)
DEFINE_OP(cast, true, op->n == 0)
DEFINE_OP(decode, is_sound_decode(op), op->n == 0)
DEFINE_OP(adamw, true, op->n == 0)
DEFINE_OP(router, is_sound_router(op), op->n == 0)
DEFINE_OP(router_backward, is_sound_router(&op->forward), op->forward.n == 0)
DEFINE_OP(load, is_sound_router(&op->router), false)
DEFINE_OP(balance, op->rows > 0 && op->experts <= OT_MOST_EXPERTS, false)
DEFINE_OP(group, is_sound_group(op), false)
DEFINE_OP(gather, true, op->rows == 0 || op->cols == 0)
DEFINE_OP(combine, op->top >= 1, op->n == 0 || op->cols == 0)
DEFINE_OP(combine_backward, true, op->rows == 0 || op->cols == 0)

static void cuda_attention(struct ot_lane *base, const struct ot_attention *op) {
    struct ot_cuda_lane *lane = (struct ot_cuda_lane *)base;
    const struct ot_cuda_device *device = ot_cuda_device_of(base->device);
    assert(is_sound_attention(op));
    if (op->n == 0 || !ot_cuda_lane_begin_op(lane))
        return;
    struct ot_cuda_stream on = device->on;
    ot_cuda_guard_attention(device->guard, op, &on);
    ot_cuda_lane_check(lane, ot_cuda_attention(op, &on));
}

static void cuda_attention_backward(struct ot_lane *base, const struct ot_attention_backward *op) {
    struct ot_cuda_lane *lane = (struct ot_cuda_lane *)base;
    const struct ot_cuda_device *device = ot_cuda_device_of(base->device);
    assert(is_sound_attention_backward(op));
    if (op->forward.n == 0 || !ot_cuda_lane_begin_op(lane))
        return;
    struct ot_cuda_stream on = device->on;
    ot_cuda_guard_attention_backward(device->guard, op, &on);
    ot_cuda_lane_check(lane, ot_cuda_attention_backward(op, &on));
}

static void cuda_attend_spans(struct ot_lane *base, const struct ot_attend_spans *op) {
    struct ot_cuda_lane *lane = (struct ot_cuda_lane *)base;
    const struct ot_cuda_device *device = ot_cuda_device_of(base->device);
    assert(is_sound_attend_spans(op));
    if (op->n == 0 || !ot_cuda_lane_begin_op(lane))
        return;
    struct ot_cuda_stream on = device->on;
    ot_cuda_guard_spans(device->guard, op, &on);
    ot_cuda_lane_check(lane, ot_cuda_attend_spans(op, &on));
}

static void cuda_attend_spans_backward(struct ot_lane *base, const struct ot_attend_spans_backward *op) {
    struct ot_cuda_lane *lane = (struct ot_cuda_lane *)base;
    const struct ot_cuda_device *device = ot_cuda_device_of(base->device);
    assert(is_sound_attend_spans_backward(op));
    if ((op->forward.n == 0 && op->forward.n_keys == 0) || !ot_cuda_lane_begin_op(lane))
        return;
    struct ot_cuda_stream on = device->on;
    ot_cuda_guard_spans_backward(device->guard, op, &on);
    ot_cuda_lane_check(lane, ot_cuda_attend_spans_backward(op, &on));
}

static void cuda_gemm_groups(struct ot_lane *base, const struct ot_gemm_groups *op) {
    struct ot_cuda_lane *lane = (struct ot_cuda_lane *)base;
    const struct ot_cuda_device *device = ot_cuda_device_of(base->device);
    assert(is_sound_gemm_groups(op));
    if (!ot_cuda_lane_begin_op(lane))
        return;
    struct ot_cuda_stream on = device->on;
    ot_cuda_guard_gemm_groups(device->guard, op, &on);
    ot_cuda_lane_check(lane, ot_cuda_gemm_groups(op, &on));
}

static void cuda_gemm(struct ot_lane *base, const struct ot_gemm *op);

static const void *gemm_row(const void *matrix, enum ot_dtype dtype, int64_t elems) {
    return matrix ? (const char *)matrix + (size_t)elems * ot_dtype_bytes(dtype) : NULL;
}

/* by_rows. The products by groups need nothing: their kernels compute every row alike. */
static void cuda_gemm_by_rows(struct ot_lane *base, const struct ot_gemm *op) {
    for (int64_t row = 0; row < op->m; row++) {
        struct ot_gemm one = *op;
        one.m = 1;
        one.a = gemm_row(op->a, op->dtype, row * op->lda);
        one.addend = gemm_row(op->addend, op->c_dtype, row * op->ldc);
        one.c = (void *)gemm_row(op->c, op->c_dtype, row * op->ldc);
        cuda_gemm(base, &one);
    }
}

static void cuda_gemm(struct ot_lane *base, const struct ot_gemm *op) {
    struct ot_cuda_lane *lane = (struct ot_cuda_lane *)base;
    const struct ot_cuda_device *device = ot_cuda_device_of(base->device);
    assert(is_sound_gemm(op));
    if (op->by_rows && op->m > 1) {
        cuda_gemm_by_rows(base, op);
        return;
    }
    if (!ot_cuda_lane_begin_op(lane))
        return;
    if (!ot_cuda_guard_gemm(device->guard, device->gemm, op, &device->on)) {
        ot_cuda_lane_check(lane, ot_cuda_gemm_plain(op, &device->on));
        return;
    }
    int rc = ot_cuda_gemm(device->gemm, op, &device->on);
    if (rc < 0 &&
        /* an earlier kernel failed: this shape is not the cause */
        ot_cuda_error_is_fault(cudaPeekAtLastError()))
        ot_cuda_lane_check(lane, cudaGetLastError());
    else if (rc < 0)
        ot_cuda_lane_fail(lane, rc);
}

const struct ot_ops ot_cuda_ops = {
    .gemm = cuda_gemm,
    .bias_backward = cuda_bias_backward,
    .embed = cuda_embed,
    .embed_backward = cuda_embed_backward,
    .norm = cuda_norm,
    .norm_backward = cuda_norm_backward,
    .rope = cuda_rope,
    .attention = cuda_attention,
    .attention_backward = cuda_attention_backward,
    .glu = cuda_glu,
    .glu_backward = cuda_glu_backward,
    .activate = cuda_activate,
    .activate_backward = cuda_activate_backward,
    .add = cuda_add,
    .dropout = cuda_dropout,
    .neftune = cuda_neftune,
    .dora_factors = cuda_dora_factors,
    .dora = cuda_dora,
    .dora_backward = cuda_dora_backward,
    .join = cuda_join,
    .softcap = cuda_softcap,
    .cross_entropy = cuda_cross_entropy,
    .compare = cuda_compare,
    .reduce = cuda_reduce,
    .cast = cuda_cast,
    .decode = cuda_decode,
    .adamw = cuda_adamw,
    .router = cuda_router,
    .router_backward = cuda_router_backward,
    .load = cuda_load,
    .balance = cuda_balance,
    .group = cuda_group,
    .gather = cuda_gather,
    .combine = cuda_combine,
    .combine_backward = cuda_combine_backward,
    .gemm_groups = cuda_gemm_groups,
    .attend_spans = cuda_attend_spans,
    .attend_spans_backward = cuda_attend_spans_backward,
};
