/* Attention backward for sections of rows (kernels/ops.h): each section against a reference in double, and
 * rows that go backward in sections against the reference of the whole row. */
#include "src/base/dtype.h"
#include "tests/kernels/attention_fixture.h"

/* ---- one section ---- */

static void test_section(void **state) {
    (void)state;
    static const struct attention_shape shapes[] = {
        {70, 300, 4, 2, 40, 0, 0, .backward = true, .is_section = true},   /* borders inside of blocks */
        {129, 385, 2, 1, 64, 0, 0, .backward = true, .is_section = true},  /* borders of blocks */
        {1, 200, 2, 2, 24, 0, 0, .backward = true, .is_section = true},    /* one query */
        {90, 90, 4, 2, 32, 0, 0, .backward = true, .is_section = true},    /* the first section */
        {150, 650, 4, 4, 16, 50, 0, .backward = true, .is_section = true}, /* a window: unseen blocks */
        {200, 500, 2, 1, 128, 100, 171, .backward = true, .is_section = true, .softcap = 2, .sink = 1},
        {100, 356, 2, 1, 32, 0, 128, .backward = true,
         .is_section = true}, /* the row begins with the section */
        {64, 333, 4, 2, 32, 0, 150, .backward = true, .is_section = true}, /* rows begin before and in it */
        {130, 290, 8, 4, 16, 0, 0, .backward = true, .is_section = true, .slopes = true, .softcap = 1.5f},
        {140, 270, 8, 8, 16, 40, 67, .backward = true, .is_section = true, .slopes = true, .sink = -1},
        {80, 210, 4, 2, 24, 0, 0, .backward = true, .is_section = true, .drop = 0.25f},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i += tests_are_brief() ? 3 : 1)
        attention_check_shape(&shapes[i]);
}

/* ---- whole rows in sections ---- */

enum { MOST_SECTIONS = 4 };

struct row {
    struct attention_case whole;
    int64_t ends[MOST_SECTIONS + 1]; /* of the sections, in keys; the first is 0, the last is n */
};

static void *part_of(const struct ops_fixture *f, const void *array, int64_t elems) {
    return (char *)(uintptr_t)array + elems * (int64_t)ot_dtype_bytes(f->dtype);
}

/* The arguments of section i. */
static struct ot_attention_backward section_of(struct ops_fixture *f, const struct row *row, int i,
                                               const struct ot_attention_backward *whole) {
    int64_t first = row->ends[i], heads = row->whole.heads;
    struct ot_attention_backward op = *whole;
    struct ot_attention *forward = &op.forward;
    forward->n = row->ends[i + 1] - first;
    forward->n_keys = row->ends[i + 1];
    forward->row_start += first;
    forward->q = part_of(f, forward->q, first * forward->ldq);
    forward->out = part_of(f, forward->out, first * forward->ldo);
    forward->lse = ops_blank(f, (size_t)(forward->n * heads) * sizeof(float));
    op.dout = part_of(f, op.dout, first * forward->ldo);
    op.dq = part_of(f, op.dq, first * forward->ldq);
    op.dk = part_of(f, op.dk, first * op.lddk);
    op.dv = part_of(f, op.dv, first * op.lddv);
    return op;
}

static void run_in_sections(struct ops_fixture *f, const void *argument) {
    const struct row *row = argument;
    const struct attention_case *c = &row->whole;
    const struct ot_attention forward = attention_upload(f, c);
    const struct ot_attention_backward whole = attention_upload_backward(f, c, &forward);
    struct ot_attention_backward sections[MOST_SECTIONS];
    int n = 0;
    for (; n < MOST_SECTIONS && row->ends[n] < c->n; n++) {
        sections[n] = section_of(f, row, n, &whole);
        f->ops->attention(f->lane, &sections[n].forward);
    }
    while (n-- > 0)
        f->ops->attention_backward(f->lane, &sections[n]);
    ops_collect(f, "out", f->dtype, forward.out, c->n * forward.ldo);
    ops_collect(f, "dq", f->dtype, whole.dq, c->n * forward.ldq);
    ops_collect(f, "dk", f->dtype, whole.dk, c->n * whole.lddk);
    ops_collect(f, "dv", f->dtype, whole.dv, c->n * whole.lddv);
    if (c->sinks)
        ops_collect(f, "dsinks", OT_F32, whole.dsinks, c->heads);
}

/* The bounds are those of whole rows, because each section makes one fp32 addition more for each key. */
static void check_row(const struct attention_shape *shape, const int64_t ends[MOST_SECTIONS + 1]) {
    int32_t *row_start;
    float *values[ATTENTION_VALUES];
    double *in[ATTENTION_INPUTS];
    struct row row = {.whole = attention_make(shape, &row_start, values)};
    struct attention_case *c = &row.whole;
    memcpy(row.ends, ends, sizeof row.ends);
    memset(values[ATTENTION_DK_SUMS], 0, (size_t)(c->n * c->kv_heads * c->head_dim) * sizeof(float));
    memset(values[ATTENTION_DV_SUMS], 0, (size_t)(c->n * c->kv_heads * c->head_dim) * sizeof(float));
    c->pad = 5;
    attention_widen(c, in);
    struct attention_reference want = attention_reference_run(c, (const double *const *)in);
    struct ops_fixture f;
    ops_check_threads(&f, run_in_sections, &row, OT_F32);
    int64_t width = c->heads * c->head_dim, kv_width = c->kv_heads * c->head_dim;
    attention_compare(&f, "out", want.out, c->n, width, 0, ATTENTION_FP32_BOUND);
    attention_compare(&f, "dq", want.dq, c->n, width, c->pad, ATTENTION_FP32_BOUND);
    attention_compare(&f, "dk", want.dk, c->n, kv_width, 2 * c->pad, ATTENTION_FP32_BOUND);
    attention_compare(&f, "dv", want.dv, c->n, kv_width, 3 * c->pad, ATTENTION_FP32_BOUND);
    for (int64_t head = 0; head < c->heads; head++)
        want.dsinks[head] += attention_earlier_dsinks[head];
    if (c->sinks)
        attention_compare(&f, "dsinks", want.dsinks, 1, c->heads, 0, ATTENTION_FP32_BOUND);
    ops_close(&f);
    ops_check_threads(&f, run_in_sections, &row, OT_BF16);
    ops_close(&f);
    c->pad = 0;
    ops_check_half(run_in_sections, &row, ATTENTION_BF16_BOUND);
    attention_reference_free(&want);
    for (int i = 0; i < ATTENTION_INPUTS; i++)
        free(in[i]);
    attention_release(row_start, values);
}

static void test_rows(void **state) {
    (void)state;
    static const struct attention_shape
        one = {400, 400, 4, 2, 40, 0, 0, .backward = true, .is_section = true},
        packed = {
            384,          384,      4, 1, 16, 150, 210, .backward = true, .is_section = true, .slopes = true,
            .softcap = 2, .sink = 1};
    check_row(&one, (const int64_t[MOST_SECTIONS + 1]){0, 130, 131, 300, 400});
    check_row(&packed, (const int64_t[MOST_SECTIONS + 1]){0, 128, 256, 384, 384});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_section),
        cmocka_unit_test(test_rows),
    };
    return cmocka_run_group_tests_name("attention_sections", tests, NULL, NULL);
}
