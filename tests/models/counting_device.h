/* A device that computes nothing: each op adds what it computes and moves, by its contract, to `counted`
 * (test_work.c). */
#ifndef OT_TESTS_COUNTING_DEVICE_H
#define OT_TESTS_COUNTING_DEVICE_H

#include "kernels/ops.h"
#include "tests/support/check.h"

enum { THIN = 16 };

static struct counts {
    double product_flops, group_flops, attention_flops, moved_bytes, filled_bytes;
} counted;

static void move(double rows, int64_t cols, enum ot_dtype dtype, double times) {
    counted.moved_bytes += times * rows * (double)cols * (double)ot_dtype_bytes(dtype);
}

/* An address that nothing reads: only ops would. Distinct arrays have distinct addresses, those of weights
 * and gradients the highest. */
enum { FIRST_TENSOR = 8 };
static void *somewhere(int number) {
    return (void *)((uintptr_t)(number + 1) << 40);
}

static void move_unless_tensor(const void *array, int64_t rows, int64_t cols, enum ot_dtype dtype,
                               double times) {
    if ((uintptr_t)array < (uintptr_t)somewhere(FIRST_TENSOR))
        move((double)rows, cols, dtype, times);
}

static void count_gemm(struct ot_lane *lane, const struct ot_gemm *op) {
    (void)lane;
    counted.product_flops += 2.0 * (double)op->m * (double)op->n * (double)op->k;
    if (op->m <= THIN || op->n <= THIN || op->k <= THIN) {
        bool whole_weight = op->m > THIN && op->k > THIN; /* DoRA's product of a weight with A */
        if (whole_weight)
            move((double)op->m, op->k, op->dtype, 1);
        else
            move_unless_tensor(op->a, op->m, op->k, op->dtype, 1);
        move_unless_tensor(op->b, op->k, op->n, op->dtype, 1);
        move_unless_tensor(op->c, op->m, op->n, op->c_dtype, op->addend ? 2 : 1);
    } else if (op->addend && op->addend != op->c)
        move((double)op->m, op->n, op->c_dtype, 1);
}

static void count_dora_factors(struct ot_lane *lane, const struct ot_dora_factors *op) {
    (void)lane;
    move((double)op->rows, op->cols, op->dtype, 1);
    move((double)op->rows, op->rank, OT_F32, 1);
}

static void count_dora(struct ot_lane *lane, const struct ot_dora *op) {
    (void)lane;
    move((double)op->rows, op->cols, op->dtype, 2 + !!op->less + !!op->addend);
}

static void count_dora_backward(struct ot_lane *lane, const struct ot_dora_backward *op) {
    (void)lane;
    move((double)op->rows, op->cols, op->dtype, op->du ? 2 : 1);
    if (op->dchange)
        move((double)op->rows, op->cols, op->u_dtype, 1);
}

static void count_dropout(struct ot_lane *lane, const struct ot_dropout *op) {
    (void)lane;
    move((double)op->n, 1, op->dtype, op->addend ? 3 : 2);
}

static void count_bias_backward(struct ot_lane *lane, const struct ot_bias_backward *op) {
    (void)lane;
    move((double)op->rows, op->cols, op->dtype, 1);
}

static void count_embed(struct ot_lane *lane, const struct ot_embed *op) {
    (void)lane;
    if (!op->partial) /* a table of few tokens */
        move((double)op->n, op->cols, op->dtype, 2);
}

static void count_embed_backward(struct ot_lane *lane, const struct ot_embed_backward *op) {
    (void)lane;
    if (op->partial)
        return;
    move((double)op->n, op->cols, op->dtype, 1);
    move((double)op->n, op->cols, OT_F32, 2);
}

static void count_norm(struct ot_lane *lane, const struct ot_norm *op) {
    (void)lane;
    move((double)op->rows, op->cols, op->dtype, 2);
}

static void count_norm_backward(struct ot_lane *lane, const struct ot_norm_backward *op) {
    (void)lane;
    move((double)op->rows, op->cols, op->dtype, op->dx_add ? 4 : 3);
}

static void count_rope(struct ot_lane *lane, const struct ot_rope *op) {
    (void)lane;
    move((double)(op->n * op->heads), op->rotary_dim, op->dtype, 2);
}

static double attention_of(const struct ot_attention *op, int products) {
    double pairs = 0;
    assert_int_equal(op->n_keys, op->n);
    for (int64_t i = 0; i < op->n; i++) {
        int64_t keys = i - op->row_start[i] + 1;
        pairs += (double)(op->window && keys > op->window ? op->window : keys);
    }
    return 2.0 * products * pairs * (double)(op->heads * op->head_dim);
}

static void count_attention(struct ot_lane *lane, const struct ot_attention *op) {
    (void)lane;
    counted.attention_flops += attention_of(op, 2);
}

static void count_attention_backward(struct ot_lane *lane, const struct ot_attention_backward *op) {
    (void)lane;
    counted.attention_flops += attention_of(&op->forward, 5);
}

static double spans_of(const struct ot_attend_spans *op, int products) {
    double pairs = 0;
    for (int64_t i = 0; i < op->n; i++)
        pairs += op->key_end[i] > op->key_first[i] ? op->key_end[i] - op->key_first[i] : 0;
    return 2.0 * products * pairs * (double)(op->heads * op->head_dim);
}

static void count_attend_spans(struct ot_lane *lane, const struct ot_attend_spans *op) {
    (void)lane;
    counted.attention_flops += spans_of(op, 2);
}

static void count_attend_spans_backward(struct ot_lane *lane, const struct ot_attend_spans_backward *op) {
    (void)lane;
    counted.attention_flops += spans_of(&op->forward, 5);
}

static void count_glu(struct ot_lane *lane, const struct ot_glu *op) {
    (void)lane;
    move((double)op->rows, op->cols, op->dtype, 3);
}

static void count_glu_backward(struct ot_lane *lane, const struct ot_glu_backward *op) {
    (void)lane;
    move((double)op->forward.rows, op->forward.cols, op->forward.dtype, 5);
}

static void count_add(struct ot_lane *lane, const struct ot_add *op) {
    (void)lane;
    move((double)op->n, 1, op->dtype, 3);
}

static void count_activate(struct ot_lane *lane, const struct ot_activate *op) {
    (void)lane;
    move((double)op->n, 1, op->dtype, 2);
}

static void count_activate_backward(struct ot_lane *lane, const struct ot_activate_backward *op) {
    (void)lane;
    move((double)op->n, 1, op->dtype, 3);
}

static void count_cross_entropy(struct ot_lane *lane, const struct ot_cross_entropy *op) {
    (void)lane;
    move((double)op->rows, op->vocab, OT_F32, op->grad ? 2 : 1);
    if (op->grad)
        move((double)op->rows, op->vocab, op->grad_dtype, 1);
}

static size_t tail_bytes; /* of boundaries: no array of tokens */

static void count_fill(struct ot_lane *lane, void *device_dst, int byte, size_t bytes) {
    (void)lane, (void)device_dst, (void)byte;
    counted.filled_bytes += bytes == tail_bytes ? 0 : (double)bytes;
}

/* ids and weights of the router are single numbers of a row, and so are the numbers of groups. */
static void count_router(struct ot_lane *lane, const struct ot_router *op) {
    (void)lane;
    move((double)op->n, op->experts, op->dtype, 1);
}

static void count_router_backward(struct ot_lane *lane, const struct ot_router_backward *op) {
    (void)lane;
    move((double)op->forward.n, op->forward.experts, op->forward.dtype, 2);
}

static void count_load(struct ot_lane *lane, const struct ot_load *op) {
    (void)lane;
    move((double)op->router.n, op->router.experts, op->router.dtype, 1);
}

static void count_balance(struct ot_lane *lane, const struct ot_balance *op) {
    (void)lane, (void)op;
}

static void count_neftune(struct ot_lane *lane, const struct ot_neftune *op) {
    (void)lane;
    move((double)op->n, op->cols, op->dtype, 2);
}

static void count_group(struct ot_lane *lane, const struct ot_group *op) {
    (void)lane, (void)op;
}

static void count_gather(struct ot_lane *lane, const struct ot_gather *op) {
    (void)lane;
    move((double)op->rows, op->cols, op->dtype, 2);
}

static void count_combine(struct ot_lane *lane, const struct ot_combine *op) {
    (void)lane;
    move((double)(op->n * op->top), op->cols, op->dtype, 1);
    move((double)op->n, op->cols, op->dtype, op->addend ? 2 : 1);
}

static void count_combine_backward(struct ot_lane *lane, const struct ot_combine_backward *op) {
    (void)lane;
    move((double)op->rows, op->cols, op->dtype, 3);
}

static void count_gemm_groups(struct ot_lane *lane, const struct ot_gemm_groups *op) {
    (void)lane;
    int64_t width = op->form == OT_GROUPS_ROWS ? op->k : op->m;
    if (width == 1) /* ones, and the rows that they add: the gradient of biases, which bytes alone bound */
        move((double)op->rows, op->n + 1, op->dtype, 1);
    else
        counted.group_flops += 2.0 * (double)op->rows * (double)op->n * (double)width;
    if (width > 1 && (op->n <= THIN || width <= THIN)) {
        move((double)op->rows, width, op->dtype, 1);
        move((double)op->rows, op->n, op->dtype, op->form == OT_GROUPS_ROWS && op->addend ? 2 : 1);
    }
}

static void count_copy(struct ot_lane *lane, enum ot_copy_kind kind, void *dst, const void *src,
                       size_t bytes) {
    (void)lane, (void)dst, (void)src;
    assert_int_equal(kind, OT_COPY_D2D);
    counted.moved_bytes += bytes == tail_bytes ? 0 : 2 * (double)bytes;
}

static void count_copy_rows(struct ot_lane *lane, const struct ot_copy_rows *copy) {
    (void)lane;
    counted.moved_bytes += 2 * (double)(copy->row_bytes * copy->rows);
}

/* An op that is not listed is NULL, so a block that begins to use it crashes this test. */
static const struct ot_ops counting_ops = {.gemm = count_gemm,
                                           .bias_backward = count_bias_backward,
                                           .dropout = count_dropout,
                                           .dora_factors = count_dora_factors,
                                           .dora = count_dora,
                                           .dora_backward = count_dora_backward,
                                           .embed = count_embed,
                                           .embed_backward = count_embed_backward,
                                           .norm = count_norm,
                                           .norm_backward = count_norm_backward,
                                           .rope = count_rope,
                                           .attention = count_attention,
                                           .attention_backward = count_attention_backward,
                                           .attend_spans = count_attend_spans,
                                           .attend_spans_backward = count_attend_spans_backward,
                                           .glu = count_glu,
                                           .glu_backward = count_glu_backward,
                                           .activate = count_activate,
                                           .activate_backward = count_activate_backward,
                                           .add = count_add,
                                           .router = count_router,
                                           .router_backward = count_router_backward,
                                           .load = count_load,
                                           .balance = count_balance,
                                           .neftune = count_neftune,
                                           .group = count_group,
                                           .gather = count_gather,
                                           .combine = count_combine,
                                           .combine_backward = count_combine_backward,
                                           .gemm_groups = count_gemm_groups,
                                           .cross_entropy = count_cross_entropy};
static const struct ot_device_api counting_api = {
    .fill = count_fill, .copy = count_copy, .copy_rows = count_copy_rows};
static struct ot_device counting_device = {.api = &counting_api, .ops = &counting_ops};
static struct ot_lane counting_lane = {.device = &counting_device};

#endif
