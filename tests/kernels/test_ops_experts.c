/* Router, grouping, gather and combine: PyTorch's values, ties and NaNs, exact places, the same bits on any
 * number of threads and with any instruction set. */
#include <math.h>
#include <stdio.h>

#include "kernels/cpu/cpu_ops.h"
#include "src/base/dtype.h"
#include "tests/kernels/experts_products.h"

/* ---- router ---- */

static void check_router_golden(struct ot_golden *golden, const char *kind, bool over_all) {
    char array[64];
#define ARRAY(field) (snprintf(array, sizeof array, "router.%s.%s", kind, field), array)
    struct router_case c = {.over_all = over_all};
    c.logits = golden_f32(golden, ARRAY("logits"), NULL);
    c.n = golden_dim(golden, array, 0);
    c.experts = c.ld = golden_dim(golden, array, 1);
    c.dweights = golden_f32(golden, ARRAY("dweights"), NULL);
    c.top = golden_dim(golden, array, 1);
    struct ops_fixture f;
    ops_check_threads(&f, router_run, &c, OT_F32);
    const int32_t *ids = golden_i32(golden, ARRAY("ids"), NULL);
    for (int64_t i = 0; i < c.n * c.top; i++)
        assert_int_equal(experts_id(&f, "ids", i), ids[i]);
    /* exp, a sum of 40 terms, a quotient; the gradient cancels two numbers below 4 */
    check_close("weights", ops_result(&f, "weights", NULL), golden_f32(golden, ARRAY("weights"), NULL),
                c.n * c.top, 0, 1e-6);
    const float *want = golden_f32(golden, ARRAY("dlogits"), NULL);
    check_close("dlogits", ops_result(&f, "dlogits", NULL), want, c.n * c.experts, 1e-6, 1e-6);
    check_close("in place", ops_result(&f, "dlogits in place", NULL), want, c.n * c.experts, 1e-6, 1e-6);
    ops_close(&f);
#undef ARRAY
}

static void test_router_golden(void **state) {
    (void)state;
    struct ot_golden *golden = golden_open("ops.bin");
    check_router_golden(golden, "mixtral", false);
    check_router_golden(golden, "gpt_oss", false);
    check_router_golden(golden, "qwen3_moe", true);
    golden_close(golden);
}

/* True if logit a of expert i stands before logit b of expert j. */
static bool stands_before(float a, int64_t i, float b, int64_t j) {
    if (isnan(a) != isnan(b))
        return isnan(a);
    return a > b || (!(a < b) && i < j);
}

/* A logit that is chosen has as many before it as its slot says. */
static void check_choice(const struct router_case *c, const struct ops_fixture *f) {
    for (int64_t t = 0; t < c->n; t++)
        for (int64_t s = 0; s < c->top; s++) {
            const float *logits = c->logits + t * c->ld;
            int64_t id = experts_id(f, "ids", t * c->top + s), before = 0;
            assert_in_range(id, 0, c->experts - 1);
            for (int64_t e = 0; e < c->experts; e++)
                before += stands_before(logits[e], e, logits[id], id);
            assert_int_equal(before, s);
        }
}

/* Few different logits, so most are ties; some are infinite or NaN. */
static void test_router_order(void **state) {
    (void)state;
    static const float logits[] = {1, 2, -0.0f, 0, 2, -3, 1, 0.5f};
    static const int64_t shapes[][3] = {{600, 129, 16}, {50, 16, 16}, {3, 1, 1}, {90, 8, 2}, {40, 1024, 4}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct router_case c = {.n = shapes[i][0], .experts = shapes[i][1], .top = shapes[i][2]};
        c.ld = c.experts + 3;
        float *values = ops_random(i, c.n * c.ld, 1), *dweights = ops_random(9, c.n * c.top, 1);
        for (int64_t j = 0; j < c.n * c.ld; j++) {
            uint64_t draw = mix_bits((uint64_t)j);
            values[j] = draw % 97 == 0 ? NAN : draw % 89 == 0 ? -INFINITY : logits[draw % 8];
        }
        c.logits = values;
        c.dweights = dweights;
        for (int dtype = OT_F32; dtype <= OT_F16; dtype++) {
            struct ops_fixture f;
            ops_check_threads(&f, router_run, &c, (enum ot_dtype)dtype);
            check_choice(&c, &f);
            ops_close(&f);
        }
        free(values);
        free(dweights);
    }
}

/* A NaN is chosen and shows in every weight of its token. */
static void test_router_nan(void **state) {
    (void)state;
    float logits[] = {1, NAN, 5, 2, 3, 4}, dweights[4] = {1, 1, 1, 1};
    struct router_case c = {.n = 2, .experts = 3, .top = 2, .ld = 3, .logits = logits, .dweights = dweights};
    struct ops_fixture f;
    ops_open(&f, 1, OT_F32);
    router_run(&f, &c);
    const float *weights = ops_result(&f, "weights", NULL);
    assert_int_equal(experts_id(&f, "ids", 0), 1);
    assert_int_equal(experts_id(&f, "ids", 1), 2);
    assert_true(isnan(weights[0]) && isnan(weights[1]) && weights[2] > weights[3]);
    ops_close(&f);
}

/* Sums over many experts against double; half types round the gradients alone. */
static void test_router_sums(void **state) {
    (void)state;
    struct router_case c = {.n = 300, .experts = 515, .top = 8, .ld = 515, .over_all = true};
    float *logits = ops_random(1, c.n * c.ld, 2), *dweights = ops_random(2, c.n * c.top, 1);
    c.logits = logits;
    c.dweights = dweights;
    struct ops_fixture f;
    ops_check_threads(&f, router_run, &c, OT_F32);
    for (int64_t t = 0; t < c.n; t++) {
        double sum = 0;
        for (int64_t e = 0; e < c.experts; e++)
            sum += exp((double)logits[t * c.ld + e]);
        for (int64_t i = t * c.top; i < (t + 1) * c.top; i++) {
            float want = (float)(exp((double)logits[t * c.ld + experts_id(&f, "ids", i)]) / sum);
            check_close("weights", ops_result(&f, "weights", NULL) + i, &want, 1, 0, 2e-6);
        }
    }
    ops_close(&f);
    free(logits);
    free(dweights);
}

/* ---- group ---- */

static void check_group(const struct group_case *c) {
    struct ops_fixture f;
    ops_check_threads(&f, group_run, c, OT_F32);
    int64_t row = 0, capacity = group_capacity(c);
    for (int64_t e = 0; e < c->experts; e++) {
        assert_int_equal(experts_id(&f, "offsets", e), row);
        int64_t first = row;
        for (int64_t a = 0; a < c->n * c->top; a++)
            if (c->ids[a] == e) {
                assert_int_equal(experts_id(&f, "rows", a), row);
                assert_int_equal(experts_id(&f, "assignments", row), a);
                row++;
            }
        assert_int_equal(experts_id(&f, "counts", e), row - first);
        assert_int_equal(experts_id(&f, "used", e), row > first || e % 3 == 0);
        for (; (row - first) % c->multiple; row++)
            assert_int_equal(experts_id(&f, "assignments", row), -1);
    }
    assert_int_equal(experts_id(&f, "offsets", c->experts), row);
    assert_true(row <= capacity);
    for (; row < capacity; row++)
        assert_int_equal(experts_id(&f, "assignments", row), -1);
    ops_close(&f);
}

static void test_group(void **state) {
    (void)state;
    /* n, top, experts, multiple; one token takes the capacity as a whole */
    static const int64_t shapes[][4] = {{700, 2, 8, 1}, {700, 2, 8, 16}, {333, 8, 128, 1}, {5, 4, 64, 8},
                                        {1, 3, 7, 32},  {900, 1, 1, 64}, {3, 16, 1024, 2}, {0, 2, 4, 8}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct group_case c = {shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3], NULL};
        int32_t *ids = experts_ids(i, c.n, c.top, c.experts, c.experts > 4 ? 3 : -1);
        c.ids = ids;
        check_group(&c);
        free(ids);
    }
}

/* ---- gather and combine ---- */

/* n, top, experts, multiple, cols, pad */
static const int64_t packed_shapes[][6] = {
    {130, 2, 8, 1, 96, 0}, {61, 4, 16, 8, 37, 5}, {9, 3, 5, 4, 1000, 8}, {2, 1, 3, 1, 1, 0}};
enum { PACKED_SHAPES = sizeof packed_shapes / sizeof *packed_shapes };

/* packed[row] is the token's row of x, or zeros, in every dtype: inputs are numbers that all types have. */
static void check_gathered(const struct packed_case *c, const struct ops_fixture *f, const int32_t *tokens) {
    int64_t ld = c->cols + c->pad;
    const float *got = ops_result(f, "gathered", NULL);
    for (int64_t r = 0; r < group_capacity(&c->group); r++)
        for (int64_t i = 0; i < ld; i++)
            if (i >= c->cols)
                assert_true(isnan(got[r * ld + i]));
            else
                assert_true(got[r * ld + i] == (tokens[r] < 0 ? 0 : c->x[tokens[r] * ld + i]));
}

/* The rows of the assignments, and the tokens of the rows (-1: none). */
struct places {
    int32_t *rows, *tokens;
};

static struct places find_places(const struct group_case *c) {
    struct ops_fixture f;
    int64_t n = c->n * c->top, capacity = group_capacity(c);
    struct places p = {malloc((size_t)n * sizeof(int32_t)), malloc((size_t)capacity * sizeof(int32_t))};
    assert_true(p.rows && p.tokens);
    ops_open(&f, 1, OT_F32);
    group_run(&f, c);
    for (int64_t a = 0; a < n; a++)
        p.rows[a] = experts_id(&f, "rows", a);
    for (int64_t r = 0; r < capacity; r++)
        p.tokens[r] = experts_id(&f, "assignments", r);
    for (int64_t r = 0; r < capacity; r++)
        p.tokens[r] = p.tokens[r] < 0 ? -1 : p.tokens[r] / (int32_t)c->top;
    ops_close(&f);
    return p;
}

static void check_combined(const struct packed_case *c, const struct ops_fixture *f, const int32_t *rows) {
    int64_t ld = c->cols + c->pad, top = c->group.top;
    for (int64_t t = 0; t < c->group.n; t++)
        for (int64_t i = 0; i < c->cols; i++) {
            double sum = 0, weighted = c->y[t * ld + i];
            for (int64_t s = 0; s < top; s++) {
                double x = c->packed[rows[t * top + s] * ld + i];
                sum += x;
                weighted += c->weights[t * top + s] * x;
            }
            float want[2] = {(float)sum, (float)weighted};
            check_close("sum", ops_result(f, "sum", NULL) + t * ld + i, &want[0], 1, 2e-6, 2e-6);
            check_close("combined", ops_result(f, "combined", NULL) + t * ld + i, &want[1], 1, 2e-6, 2e-6);
        }
}

static void test_gather_and_combine(void **state) {
    (void)state;
    for (int s = 0; s < PACKED_SHAPES; s++) {
        struct packed_case c;
        packed_open(&c, packed_shapes[s], 1);
        struct places places = find_places(&c.group);
        for (int dtype = OT_F32; dtype <= OT_F16; dtype++) {
            struct ops_fixture f;
            ops_check_threads(&f, packed_run_forward, &c, (enum ot_dtype)dtype);
            check_gathered(&c, &f, places.tokens);
            if (dtype == OT_F32)
                check_combined(&c, &f, places.rows);
            ops_close(&f);
        }
        if (c.pad == 0) /* sums are rounded once */
            ops_check_half(packed_run_forward, &c, 0x1p-8);
        free(places.rows);
        free(places.tokens);
        packed_close(&c);
    }
}

static void check_combine_gradients(const struct packed_case *c, const struct ops_fixture *f,
                                    const struct places *places) {
    int64_t ld = c->cols + c->pad, top = c->group.top;
    const float *dpacked = ops_result(f, "dpacked", NULL), *alone = ops_result(f, "dpacked alone", NULL);
    for (int64_t r = 0; r < group_capacity(&c->group); r++)
        for (int64_t i = 0; i < c->cols && places->tokens[r] < 0; i++)
            assert_true(dpacked[r * ld + i] == 0 && alone[r * ld + i] == 0);
    for (int64_t a = 0; a < c->group.n * top; a++) {
        double bound, want = packed_dot(c, places->rows[a], a / top, &bound);
        float got = ops_result(f, "dweights", NULL)[a];
        if (!(fabs((double)got - want) <= bound))
            fail_msg("dweights[%d] = %.9g, want %.9g", (int)a, (double)got, want);
        for (int64_t i = 0; i < c->cols; i++) {
            float product = c->weights[a] * c->y[a / top * ld + i];
            assert_true(dpacked[places->rows[a] * ld + i] == product);
            assert_true(alone[places->rows[a] * ld + i] == product);
        }
    }
}

static void test_combine_backward(void **state) {
    (void)state;
    for (int s = 0; s < PACKED_SHAPES; s++) {
        struct packed_case c;
        struct ops_fixture f;
        packed_open(&c, packed_shapes[s], 1);
        struct places places = find_places(&c.group);
        ops_check_threads(&f, packed_run_backward, &c, OT_F32);
        check_combine_gradients(&c, &f, &places);
        ops_close(&f);
        if (c.pad == 0)
            ops_check_half(packed_run_backward, &c, 0x1p-8);
        free(places.rows);
        free(places.tokens);
        packed_close(&c);
    }
}

/* ---- products by groups ---- */

static const struct groups_shape groups_shapes[] = {{136, 152, 8, 0, {40, 0, 130, 5}},
                                                    {37, 21, 3, 0, {3, 1, 0, 20}},
                                                    {33, 1, 0, 0, {0, 0, 0, 2}},
                                                    {8, 300, 0, 0, {0, 17, 0, 0}},
                                                    {5, 7, 1, 0, {0, 0, 0, 0}}};
enum { GROUPS_SHAPES = sizeof groups_shapes / sizeof *groups_shapes };

static void visit_element(int64_t place, double want, double bound, void *context) {
    const struct ops_fixture *f = context;
    double got = ops_result(f, "c", NULL)[place];
    if (!(fabs(got - want) <= bound))
        fail_msg("element %d: %.9g, want %.9g", (int)place, got, want);
}

/* What no group names keeps its bytes. */
static void check_untouched(const struct groups_case *c, const struct ops_fixture *f) {
    int64_t written = 0, numbers = 0;
    const float *got = ops_result(f, "c", NULL);
    bool sums = c->form == OT_GROUPS_SUMS;
    written = (sums ? GROUPS_EXPERTS * c->at.inner : c->offsets[GROUPS_EXPERTS]) * c->at.n;
    for (int64_t i = 0; i < c->n_c; i++)
        numbers += !isnan(got[i]);
    assert_int_equal(numbers, written);
}

static void test_gemm_groups(void **state) {
    (void)state;
    for (int s = 0; s < GROUPS_SHAPES * 3; s++) {
        struct groups_case c;
        groups_open(&c, &groups_shapes[s / 3], s % 3);
        for (int variant = 0; variant < GROUPS_VARIANTS; variant++) {
            struct ops_fixture f;
            c.variant = (enum groups_variant)variant;
            if (!groups_takes(&c))
                continue;
            ops_check_threads(&f, groups_run, &c, OT_F32);
            groups_visit(&c, visit_element, &f);
            check_untouched(&c, &f);
            ops_close(&f);
            c.wide = true; /* operands are exact in bf16 and fp16 */
            ops_check_threads(&f, groups_run, &c, variant % 2 ? OT_F16 : OT_BF16);
            if (variant != GROUPS_BIAS)
                groups_visit(&c, visit_element, &f);
            ops_close(&f);
            c.wide = false;
        }
        groups_close(&c);
    }
}

static void test_block(void **state) {
    (void)state;
    static const char *const kinds[] = {"mixtral", "gpt_oss"};
    struct ot_golden *golden = golden_open("ops.bin");
    for (int i = 0; i < 2; i++) {
        struct block_case c = block_open(golden, kinds[i]);
        struct ops_fixture f;
        ops_check_threads(&f, block_run, &c, OT_F32);
        block_check(golden, kinds[i], &f);
        ops_close(&f);
    }
    golden_close(golden);
}

/* ---- instruction sets ---- */

static void test_builds(void **state) {
    (void)state;
    static const char *const builds[] = {"baseline", "avx2", "avx512"};
    static const int64_t shape[6] = {33, 3, 9, 2, 77, 0};
    struct router_case router = {.n = 40, .experts = 67, .top = 9, .ld = 67, .over_all = true};
    float *logits = ops_random(1, router.n * router.ld, 1), *dweights = ops_random(2, router.n * 9, 1);
    router.logits = logits;
    router.dweights = dweights;
    struct packed_case packed;
    packed_open(&packed, shape, -1);
    for (int b = 0; b < 3; b++) {
        if (!ot_cpu_ops_named(builds[b]))
            continue;
        ops_check_build(router_run, &router, builds[b], OT_F32);
        ops_check_build(packed_run_forward, &packed, builds[b], OT_BF16);
        ops_check_build(packed_run_backward, &packed, builds[b], OT_BF16);
    }
    packed_close(&packed);
    free(logits);
    free(dweights);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_router_golden),
        cmocka_unit_test(test_router_order),
        cmocka_unit_test(test_router_nan),
        cmocka_unit_test(test_router_sums),
        cmocka_unit_test(test_group),
        cmocka_unit_test(test_gather_and_combine),
        cmocka_unit_test(test_combine_backward),
        cmocka_unit_test(test_gemm_groups),
        cmocka_unit_test(test_block),
        cmocka_unit_test(test_builds),
    };
    return cmocka_run_group_tests_name("experts", tests, NULL, NULL);
}
