/* Attention over spans of keys on the cuda device against the cpu device: the same bits, forward and
 * backward, in every dtype. */
#include "tests/cuda/cuda_fixture.h"
#include "tests/kernels/spans_fixture.h"

static void check_shape(const struct spans_shape *s, enum ot_dtype dtype, int shift) {
    struct spans_case c = spans_make(s);
    struct cuda_pair p;
    cuda_run(&p, spans_run, &c, dtype, shift);
    for (int i = 0; i < spans_result_count(s); i++)
        cuda_check_bits(&p, spans_results[i]);
    cuda_close(&p);
    spans_free(&c);
}

static void test_shapes(void **state) {
    (void)state;
    for (int i = 0; i < SPANS_SHAPES; i++)
        for (int dtype = OT_F32; dtype <= OT_F16; dtype++)
            check_shape(&spans_shapes[i], (enum ot_dtype)dtype, i % 2);
}

/* Random numbers of tokens, heads, elements and buckets, and random kinds. */
static void test_random_shapes(void **state) {
    (void)state;
    for (uint64_t i = 0; i < (tests_are_brief() ? 4 : 12); i++) {
        uint64_t draw = 0;
#define DRAW(below) (int64_t) ot_random_below(8, i, draw++, below)
        struct spans_shape s = {.kind = (enum spans_kind)DRAW(6), .n = 1 + DRAW(100), .backward = true};
        s.n_keys = s.kind == SPANS_OTHER || s.kind == SPANS_RANDOM ? 1 + DRAW(100) : s.n;
        s.heads = 1 + DRAW(3);
        s.head_dim = 1 + DRAW(OT_SPAN_MOST_DIM);
        s.row = 1 + DRAW((uint64_t)s.n);
        s.buckets = DRAW(2) ? 1 + DRAW(OT_SPAN_MOST_BUCKETS) : 0;
        s.reach = DRAW(60);
        s.pad = DRAW(4);
        s.scale = (float)(1 + DRAW(8)) / 8;
#undef DRAW
        check_shape(&s, (enum ot_dtype)(i % 3), (int)(i % 2));
    }
}

/* One row in the middle is all NaN, and so is the last target of another. Both devices let them reach the
 * same results. (tests/kernels/test_ops_spans.c shows for the cpu device that no other row is reached.) */
static void test_nans(void **state) {
    (void)state;
    static const struct spans_shape shapes[] = {
        {SPANS_ENCODER, 100, 100, 2, 24, 37, .scale = 1, .backward = true},
        {SPANS_DECODER, 100, 100, 2, 70, 37, 32, 20, .scale = 1, .backward = true},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct spans_case c = spans_make(&shapes[i]);
        int64_t width = spans_width(&shapes[i]), row = shapes[i].row;
        for (int input = 0; input < SPANS_INPUTS; input++)
            for (int64_t token = 0; token < shapes[i].n; token++)
                for (int64_t d = 0; (token / row == 1 || token == row - 1) && d < width; d++)
                    c.in[input][token * width + d] = NAN;
        struct cuda_pair p;
        cuda_run(&p, spans_run, &c, OT_BF16, 0);
        for (int result = 0; result < spans_result_count(&shapes[i]); result++)
            cuda_check_bits(&p, spans_results[result]);
        assert_true(isfinite(ops_result(&p.cuda, "dv", NULL)[0])); /* row 0 has a result */
        cuda_close(&p);
        spans_free(&c);
    }
}

int main(void) {
    cuda_choose_card();
    cuda_skip_without_device();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shapes), cmocka_unit_test(test_random_shapes),
                                       cmocka_unit_test(test_nans)};
    return cmocka_run_group_tests_name("spans of keys on the cuda device", tests, NULL, NULL);
}
