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

int main(void) {
    cuda_choose_card();
    cuda_skip_without_device();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shapes), cmocka_unit_test(test_random_shapes)};
    return cmocka_run_group_tests_name("spans of keys on the cuda device", tests, NULL, NULL);
}
