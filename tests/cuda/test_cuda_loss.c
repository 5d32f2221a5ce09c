/* Softmax cross-entropy on the cuda device against the cpu device: vocabularies from one entry to more
 * entries than a block reads at once, rows at any alignment, gradients of every dtype (fp32 gradients
 * overwrite their own logits), ignored rows, logits of -infinity and +infinity, softcaps.
 *
 * Bounds. u is 2^-24. Both devices have the same exp; its argument logit - max is off by u of its size. The
 * sum has only positive terms. Each term goes through at most vocab / 512 + 14 additions on the cuda device
 * and vocab / 16 + 4 on the cpu device, and through as many rescalings as the maximum of its thread grew.
 * Each rescaling has the error of one exp. The distances of label smoothing have as many additions; a row's
 * z enters z-loss with the error of the sum. Capped logits, and their slopes, have the same bits on both
 * devices. */
#include <math.h>
#include <stdlib.h>

#include "src/base/random.h"
#include "tests/cuda/cuda_fixture.h"
#include "tests/kernels/compare_case.h"
#include "tests/support/check.h"

struct loss_shape {
    int64_t rows, vocab, ld;
    float spread; /* of the logits */
    int shift;
    float softcap, smoothing, z_weight;
};

struct loss_input {
    const struct loss_shape *shape;
    float *logits; /* with NaN between rows */
    int32_t *targets;
};

static const float GRAD_SCALE = 0.125f;

static struct loss_input make_input(const struct loss_shape *s) {
    struct loss_input in = {s, ops_random(1, s->rows * s->ld, s->spread), NULL};
    in.targets = malloc((size_t)s->rows * sizeof *in.targets);
    assert_non_null(in.targets);
    for (int64_t i = 0; i < s->rows * s->ld; i++)
        if (i % s->ld >= s->vocab)
            in.logits[i] = NAN;
    for (int64_t row = 0; row < s->rows; row++)
        in.targets[row] = row == 1 ? -100 : (int32_t)ot_random_below(2, 0, (uint64_t)row, (uint64_t)s->vocab);
    in.targets[0] = (int32_t)s->vocab - 1;
    for (int64_t i = 0, row = s->rows - 1; i < s->vocab && row > 1; i++) /* the last row is a hit */
        if (i == 0 || in.logits[row * s->ld + i] > in.logits[row * s->ld + in.targets[row]])
            in.targets[row] = (int32_t)i;
    return in;
}

static void free_input(struct loss_input *in) {
    free(in->logits);
    free(in->targets);
}

static const char *const gradient_names[] = {"gradient 0", "gradient 1", "gradient 2", "gradient 3",
                                             "gradient 4"};
static const char *const gap_names[] = {"gap 0", "gap 1", "gap 2", "gap 3", "gap 4"};

/* The gradient has the run's dtype, and the stride of the logits. */
static void run_loss(struct ops_fixture *f, const void *argument) {
    const struct loss_input *in = argument;
    const struct loss_shape *s = in->shape;
    struct ot_cross_entropy op = {.rows = s->rows,
                                  .vocab = s->vocab,
                                  .ld = s->ld,
                                  .grad_dtype = f->dtype,
                                  .softcap = s->softcap,
                                  .smoothing = s->smoothing,
                                  .z_weight = s->z_weight,
                                  .marks_hits = true,
                                  .grad_scale = GRAD_SCALE};
    op.targets = ops_upload_ids(f, in->targets, s->rows);
    op.logits = ops_upload(f, OT_F32, in->logits, s->rows * s->ld);
    op.loss = ops_blank_values(f, OT_F32, s->rows);
    f->ops->cross_entropy(f->lane, &op);
    ops_collect(f, "loss alone", OT_F32, op.loss, s->rows);
    ops_collect(f, "logits kept", OT_F32, op.logits, s->rows * s->ld);
    op.marks_hits = false;
    op.loss = ops_blank_values(f, OT_F32, s->rows);
    op.ld_grad = s->ld;
    op.weights = s->rows > 2 ? ops_upload(f, OT_F32, (const float[]){1, 3, -0.5f, 1, -1}, s->rows) : NULL;
    op.grad =
        f->dtype == OT_F32 ? (void *)(uintptr_t)op.logits : ops_blank_values(f, f->dtype, s->rows * s->ld);
    f->ops->cross_entropy(f->lane, &op);
    ops_collect(f, "loss", OT_F32, op.loss, s->rows);
    for (int64_t row = 0; row < s->rows; row++) {
        const char *grad = (const char *)op.grad + (size_t)(row * s->ld) * ot_dtype_bytes(f->dtype);
        ops_collect(f, gradient_names[row], f->dtype, grad, s->vocab);
        if (s->ld > s->vocab)
            ops_collect(f, gap_names[row], f->dtype, grad + (size_t)s->vocab * ot_dtype_bytes(f->dtype),
                        s->ld - s->vocab);
    }
}

/* The softmax of a row in double, and the largest difference between the devices' sums. */
struct row_numbers {
    double max, sum, range, sum_error;
    double by_z, by_z_error; /* the derivative by z, with the z-loss */
};

/* The logit that enters the softmax. *slope: its derivative, 1 / cosh^2, which the devices do not let fall
 * below 2^-125. */
static double capped(const struct loss_shape *s, double logit, double *slope) {
    *slope = s->softcap != 0 ? fmax(pow(cosh(logit / s->softcap), -2), 0x1p-125) : 1;
    return s->softcap != 0 ? s->softcap * tanh(logit / s->softcap) : logit;
}

static struct row_numbers measure_row(const struct loss_shape *s, const float *logits) {
    int64_t vocab = s->vocab;
    struct row_numbers row = {-INFINITY, 0, 0, 0, 0, 0};
    double smallest = INFINITY, terms = (double)vocab, slope;
    for (int64_t i = 0; i < vocab; i++) {
        double logit = capped(s, logits[i], &slope);
        row.max = fmax(row.max, logit);
        smallest = isinf(logit) ? smallest : fmin(smallest, logit);
    }
    for (int64_t i = 0; i < vocab; i++)
        row.sum += exp(capped(s, logits[i], &slope) - row.max);
    row.range = row.max - smallest;
    double additions = terms / 16 + terms / 512 + 18, rescalings = terms / 2048 + 2;
    row.sum_error = (additions + 3 * rescalings + 4 * row.range) * 0x1p-24;
    double z = log(row.sum) + row.max, c = 2 * (double)s->z_weight;
    row.by_z = 1 + c * z;
    row.by_z_error = c * (row.sum_error + 4 * 0x1p-24 * (fabs(log(row.sum)) + fabs(row.max)));
    return row;
}

static void check_row(const struct cuda_pair *p, const struct loss_input *in, int64_t index) {
    const struct loss_shape *s = in->shape;
    const float *logits = in->logits + index * s->ld;
    int32_t target = in->targets[index];
    if (target < 0) {
        cuda_check_bits(p, gradient_names[index]);
        return;
    }
    struct row_numbers row = measure_row(s, logits);
    double *each = malloc((size_t)s->vocab * sizeof *each);
    assert_non_null(each);
    for (int64_t i = 0; i < s->vocab; i++) {
        double slope, probability = exp(capped(s, logits[i], &slope) - row.max) / row.sum;
        double error = ((row.sum_error + 14 * 0x1p-24) * fabs(row.by_z) + row.by_z_error) * probability;
        error += (i == target ? 6 : 4 * s->smoothing / (double)s->vocab) * 0x1p-24;
        each[i] = GRAD_SCALE * slope * error;
        each[i] += 0x1p-149;
    }
    cuda_check_close(p, gradient_names[index], &(struct cuda_bound){.each = each});
    free(each);
}

static void check_losses(const struct cuda_pair *p, const struct loss_input *in) {
    const struct loss_shape *s = in->shape;
    double *each = calloc((size_t)s->rows, sizeof *each);
    assert_non_null(each);
    for (int64_t i = 0; i < s->rows; i++) {
        struct row_numbers row = measure_row(s, in->logits + i * s->ld);
        each[i] = row.sum_error + 8 * 0x1p-24 * (fabs(log(row.sum)) + row.range);
        each[i] += (double)s->smoothing * row.range * ((double)s->vocab / 16 + 24) * 0x1p-24;
        each[i] += row.by_z_error * fabs(row.by_z - 1) / 2 / fmax((double)s->z_weight, 1e-9);
    }
    cuda_check_close(p, "loss", &(struct cuda_bound){.each = each});
    cuda_check_close(p, "loss alone", &(struct cuda_bound){.each = each});
    free(each);
    const float *marked = ops_result(&p->cuda, "loss alone", NULL),
                *cpu = ops_result(&p->cpu, "loss alone", NULL);
    for (int64_t i = 0; i < s->rows; i++)
        assert_int_equal(signbit(marked[i]) != 0, signbit(cpu[i]) != 0);
    assert_true(s->rows <= 2 || signbit(marked[s->rows - 1]));
}

static void check_loss(const struct loss_input *in, enum ot_dtype dtype) {
    const struct loss_shape *s = in->shape;
    struct cuda_pair p;
    cuda_run(&p, run_loss, in, dtype, s->shift);
    check_losses(&p, in);
    cuda_check_bits(&p, "logits kept");
    for (int64_t row = 0; row < s->rows; row++) {
        check_row(&p, in, row);
        if (s->ld > s->vocab)
            cuda_check_bits(&p, gap_names[row]);
    }
    cuda_close(&p);
}

static void test_shapes(void **state) {
    (void)state;
    static const struct loss_shape shapes[] = {
        {3, 1, 1, 1, 0, 0, 0, 0},
        {5, 7, 7, 1, 0, 0, 0, 0},
        {2, 2048, 2048, 3, 0, 0, 0, 0},
        {4, 2053, 2056, 3, 0, 0, 0, 0},
        {5, 3001, 3001, 30, 0, 0, 0, 0}, /* every alignment; probabilities from 0 to 1 */
        {3, 4104, 4112, 1, 1, 0, 0, 0},
        {2, 8200, 8203, 3, 0, 0, 0, 0},
        {2, 20011, 20012, 3, 0, 0, 0, 0},
        {3, 64, 64, 3, 2, 0, 0, 0},
        {3, 64, 66, 3, 0, 0, 0, 0}, /* half the alignment of packs */
        {3, 1, 1, 1, 0, 2, 0, 0},
        {5, 3001, 3001, 30, 0, 30, 0, 0},
        {3, 4104, 4112, 100, 1, 5, 0, 0}, /* softcaps */
        /* label smoothing, z-loss, and both with a softcap */
        {5, 3001, 3001, 3, 0, 0, 0.1f, 0},
        {3, 4104, 4112, 3, 1, 0, 0, 1e-2f},
        {3, 64, 66, 30, 0, 5, 0.4f, 1e-3f},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct loss_input in = make_input(&shapes[i]);
        for (int dtype = OT_F32; dtype <= OT_F16; dtype++)
            check_loss(&in, (enum ot_dtype)dtype);
        free_input(&in);
    }
}

/* A logit of -infinity is an impossible token: here the first logits of a thread, all logits of a thread, or
 * nearly the whole row. */
static void test_impossible(void **state) {
    (void)state;
    struct loss_shape shape = {3, 4500, 4500, 2, 0, 0, 0, 0};
    struct loss_input in = make_input(&shape);
    for (int64_t i = 0; i < shape.vocab; i++) {
        if (i < 2048)
            in.logits[i] = -INFINITY;
        if (i != 2 * shape.vocab / 3)
            in.logits[2 * shape.vocab + i] = -INFINITY;
    }
    in.targets[2] = (int32_t)(2 * shape.vocab / 3);
    check_loss(&in, OT_F32);
    check_loss(&in, OT_BF16);
    free_input(&in);
}

/* A row with an infinite logit or a NaN has no finite loss. Other rows are not affected. */
static void test_not_finite(void **state) {
    (void)state;
    static const float bad[] = {INFINITY, NAN, -INFINITY};
    for (int b = 0; b < 3; b++) {
        struct loss_shape shape = {4, 700, 704, 1, 0, 0, 0, 0};
        struct loss_input in = make_input(&shape);
        for (int64_t i = 0; i < shape.vocab; i++)
            if (i == 600 || bad[b] == -INFINITY) /* no token of the row is possible */
                in.logits[2 * shape.ld + i] = bad[b];
        struct cuda_pair p;
        cuda_run(&p, run_loss, &in, OT_F32, 0);
        const float *loss = ops_result(&p.cuda, "loss", NULL);
        assert_true(isfinite(loss[0]) && isfinite(loss[3]));
        assert_false(isfinite(loss[2]));
        assert_false(isfinite(ops_result(&p.cpu, "loss", NULL)[2]));
        check_row(&p, &in, 0);
        check_row(&p, &in, 3);
        cuda_close(&p);
        free_input(&in);
    }
}

/* The loss of capped logits is the loss of the logits that ot_softcap wrote, bit for bit. */
static void test_capped_logits(void **state) {
    (void)state;
    enum { ROWS = 2, VOCAB = 3003 };
    static const int32_t targets[ROWS] = {3002, 17};
    float *logits = ops_random(1, ROWS * VOCAB, 40);
    struct ops_fixture f;
    cuda_open(&f, OT_F32);
    struct ot_cross_entropy op = {.rows = ROWS,
                                  .vocab = VOCAB,
                                  .ld = VOCAB,
                                  .softcap = 30,
                                  .targets = ops_upload_ids(&f, targets, ROWS)};
    float *device = ops_upload(&f, OT_F32, logits, ROWS * VOCAB);
    op.logits = device;
    op.loss = ops_blank_values(&f, OT_F32, ROWS);
    f.ops->cross_entropy(f.lane, &op);
    ops_collect(&f, "inside", OT_F32, op.loss, ROWS);
    f.ops->softcap(f.lane, &(struct ot_softcap){ROWS * VOCAB, op.softcap, device});
    op.softcap = 0;
    f.ops->cross_entropy(f.lane, &op);
    ops_collect(&f, "after", OT_F32, op.loss, ROWS);
    assert_memory_equal(ops_result(&f, "inside", NULL), ops_result(&f, "after", NULL), ROWS * sizeof(float));
    ops_close(&f);
    free(logits);
}

/* Comparisons. The devices add an answer's losses in another order, in double: errors of some 60 u with u =
 * 2^-53. The objective multiplies them by its second derivative, which is below 1 here. */
static void test_comparisons(void **state) {
    (void)state;
    for (int kind = OT_OBJECTIVE_DPO; kind < OT_OBJECTIVES; kind++) {
        struct compare_case c = compare_case_make((enum ot_objective_kind)kind);
        struct cuda_pair p;
        cuda_run(&p, compare_case_run, &c, OT_F32, 0);
        cuda_check_close(&p, "weights", &(struct cuda_bound){.relative = 0x1p-23});
        for (int i = 0; i < OT_COMPARE_SUMS; i++)
            assert_true(fabs(compare_double(&p.cuda, "sums", i) - compare_double(&p.cpu, "sums", i)) < 1e-10);
        cuda_close(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),      cmocka_unit_test(test_impossible),
        cmocka_unit_test(test_not_finite),  cmocka_unit_test(test_capped_logits),
        cmocka_unit_test(test_comparisons),
    };
    cuda_skip_without_device();
    return cmocka_run_group_tests_name("cuda_loss", tests, NULL, NULL);
}
