#include "tests/support/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/random.h"
#include "tests/kernels/adamw_kernel_list.h"

/* ---- parameters with their state, and extreme inputs ---- */

enum { LARGEST = 1037, ROOM = LARGEST + 64 };

struct params {
    float weight[ROOM], m[ROOM], v[ROOM], grad[ROOM]; /* weight: also the fp32 master of fp16 */
    uint16_t hi[ROOM], half_grad[ROOM];
    uint16_t half[ROOM], f16_grad[ROOM];
    int16_t low[ROOM];
};

/* A finite number of any magnitude; v must not be negative. */
static float any_size(uint64_t stream, int64_t i) {
    uint32_t bits = ot_random_u32(7, stream, (uint64_t)i);
    if ((bits & 0x7f800000u) == 0x7f800000u)
        bits ^= 0x40000000u;
    return ot_f32_from_bits(bits);
}

enum inputs { ORDINARY, ANY_SIZE, EDGES, N_INPUTS };

static const float edges[] = {0.0f,      -0.0f,   0x1p-149f, -0x1p-149f,      0x1.fffffcp-127f,
                              0x1p-126f, 1.0f,    -1.0f,     0x1.fffffep127f, -0x1.fffffep127f,
                              0x1p-75f,  0x1p64f, 0x1.01p0f, 0x1.ffp0f};
enum { N_EDGES = sizeof edges / sizeof *edges };

static float input(enum inputs inputs, uint64_t stream, int64_t i, float scale) {
    switch (inputs) {
    case ORDINARY:
        return ot_random_normal(7, stream, (uint64_t)i) * scale;
    case ANY_SIZE:
        return any_size(stream, i);
    default:
        return edges[ot_random_below(7, stream, (uint64_t)i, N_EDGES)];
    }
}

static void fill(struct params *x, enum inputs inputs) {
    for (int64_t i = 0; i < ROOM; i++) {
        x->weight[i] = input(inputs, 1, i, 0.02f);
        x->m[i] = input(inputs, 2, i, 1e-3f);
        x->v[i] = fabsf(input(inputs, 3, i, 1e-3f));
        x->grad[i] = input(inputs, 4, i, 1e-2f);
        ot_split_f32(x->weight[i], &x->hi[i], &x->low[i]);
        uint16_t half = ot_bf16_from_f32(x->grad[i]);
        x->half_grad[i] = (half & 0x7f80u) == 0x7f80u ? (uint16_t)(half ^ 0x4000u) : half;
        x->half[i] = ot_f16_from_f32(x->weight[i]);
        x->f16_grad[i] = ot_f16_from_f32(x->grad[i]);
        if ((x->f16_grad[i] & 0x7c00u) == 0x7c00u)
            x->f16_grad[i] ^= 0x4000u;
    }
}

static struct ot_adamw args_for(struct params *x, enum ot_dtype dtype, int64_t first, int64_t n, bool decay,
                                const struct ot_adamw_step *step) {
    struct ot_adamw args = {
        .dtype = dtype, .n = n, .decay = decay, .step = step, .m = x->m + first, .v = x->v + first};
    if (dtype == OT_F32) {
        args.weight = x->weight + first;
        args.grad = x->grad + first;
    } else if (dtype == OT_BF16) {
        args.weight = x->hi + first;
        args.low = x->low + first;
        args.grad = x->half_grad + first;
    } else {
        args.weight = x->half + first;
        args.master = x->weight + first;
        args.grad = x->f16_grad + first;
    }
    return args;
}

static struct ot_adamw_step step_number(int t) {
    return (struct ot_adamw_step){.lr = 3e-4f,
                                  .beta1 = 0.9f,
                                  .beta2 = 0.95f,
                                  .eps = 1e-8f,
                                  .weight_decay = 0.1f,
                                  .bias1 = (float)(1 - pow(0.9, t)),
                                  .bias2_sqrt = (float)sqrt(1 - pow(0.95, t)),
                                  .grad_scale = 0.73f};
}

/* ---- every kernel, bit for bit ---- */

/* NaNs (from infinities among the extreme inputs) may differ in sign and payload, which depend on the
 * instructions. */
static void check_same_floats(const float *got, const float *want) {
    for (int64_t i = 0; i < ROOM; i++)
        if (ot_f32_bits(got[i]) != ot_f32_bits(want[i]) && !(isnan(got[i]) && isnan(want[i])))
            fail_msg("element %d: %a, not %a", (int)i, (double)got[i], (double)want[i]);
}

static void check_same_params(const struct params *got, const struct params *want) {
    check_same_floats(got->weight, want->weight);
    check_same_floats(got->m, want->m);
    check_same_floats(got->v, want->v);
    for (int64_t i = 0; i < ROOM; i++)
        if (got->half[i] != want->half[i] &&
            !(isnan(ot_f16_to_f32(got->half[i])) && isnan(ot_f16_to_f32(want->half[i]))))
            fail_msg("element %d: fp16 %04x, not %04x", (int)i, got->half[i], want->half[i]);
    for (int64_t i = 0; i < ROOM; i++) {
        float joined = ot_join_f32(want->hi[i], want->low[i]), mine = ot_join_f32(got->hi[i], got->low[i]);
        if ((got->hi[i] != want->hi[i] || got->low[i] != want->low[i]) && !(isnan(joined) && isnan(mine)))
            fail_msg("element %d: %04x %d, not %04x %d", (int)i, got->hi[i], got->low[i], want->hi[i],
                     want->low[i]);
    }
}

static void check_kernel(ot_adamw_fn kernel, enum inputs inputs, enum ot_dtype dtype, int64_t first,
                         int64_t n, bool decay) {
    static struct params got,
        want; /* elements outside [first, first + n) must not change, so they are compared too */
    fill(&got, inputs);
    fill(&want, inputs);
    for (int t = 1; t <= 3; t++) {
        struct ot_adamw_step step = step_number(t);
        struct ot_adamw mine = args_for(&got, dtype, first, n, decay, &step);
        struct ot_adamw reference = args_for(&want, dtype, first, n, decay, &step);
        kernel(&mine);
        ot_adamw_kernel("scalar")(&reference);
    }
    check_same_params(&got, &want);
}

static void check_against_scalar(const char *name) {
    static const int64_t sizes[] = {0, 1, 7, 8, 9, 15, 16, 17, 31, 33, 100, LARGEST};
    ot_adamw_fn kernel = find_adamw_kernel(name);
    if (!kernel) {
        print_message("this CPU has no %s\n", name);
        skip();
    }
    for (int inputs = 0; inputs < N_INPUTS; inputs++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (int64_t first = 0; first < 4; first++)
                for (int variant = 0; variant < 6; variant++)
                    check_kernel(kernel, (enum inputs)inputs, (enum ot_dtype)(variant / 2), first, sizes[s],
                                 variant & 1);
}

static void test_avx2_has_the_bits_of_scalar(void **state) {
    (void)state;
    check_against_scalar("avx2");
}

static void test_avx512_has_the_bits_of_scalar(void **state) {
    (void)state;
    check_against_scalar("avx512");
}

static void test_emulated_avx512_has_the_bits_of_scalar(void **state) {
    (void)state;
    check_against_scalar("emulated avx512");
}

/* A cut at any element, as tiles and threads make it, changes no bit. */
static void test_slices_have_the_bits_of_the_whole(void **state) {
    (void)state;
    static struct params cut, whole;
    for (int dtype = OT_F32; dtype <= OT_F16; dtype++) {
        struct ot_adamw_step step = step_number(2);
        fill(&cut, ORDINARY);
        fill(&whole, ORDINARY);
        struct ot_adamw args = args_for(&whole, (enum ot_dtype)dtype, 0, LARGEST, true, &step);
        ot_adamw_run(&args);
        args = args_for(&cut, (enum ot_dtype)dtype, 0, LARGEST, true, &step);
        for (int64_t first = 0, n = 1; first < LARGEST; first += n, n = n * 2 + 3) {
            struct ot_adamw part = ot_adamw_slice(&args, first, n < LARGEST - first ? n : LARGEST - first);
            ot_adamw_run(&part);
        }
        check_same_params(&cut, &whole);
    }
}

static void test_split_has_the_bits_of_fp32(void **state) {
    (void)state;
    static struct params split, full;
    fill(&split, ORDINARY);
    fill(&full, ORDINARY);
    for (int t = 1; t <= 20; t++) {
        struct ot_adamw_step step = step_number(t);
        for (int i = 0; i < ROOM; i++)
            full.grad[i] = ot_bf16_to_f32(split.half_grad[i]);
        struct ot_adamw a = args_for(&split, OT_BF16, 0, LARGEST, true, &step);
        struct ot_adamw b = args_for(&full, OT_F32, 0, LARGEST, true, &step);
        ot_adamw_run(&a);
        ot_adamw_run(&b);
    }
    for (int i = 0; i < LARGEST; i++)
        assert_int_equal(ot_f32_bits(ot_join_f32(split.hi[i], split.low[i])), ot_f32_bits(full.weight[i]));
}

/* The master of fp16 gets the update of an fp32 parameter, and the weight is the rounded master. */
static void test_f16_follows_its_master(void **state) {
    (void)state;
    static struct params half, full;
    fill(&half, ORDINARY);
    fill(&full, ORDINARY);
    for (int t = 1; t <= 20; t++) {
        struct ot_adamw_step step = step_number(t);
        for (int i = 0; i < ROOM; i++)
            full.grad[i] = ot_f16_to_f32(half.f16_grad[i]);
        struct ot_adamw a = args_for(&half, OT_F16, 0, LARGEST, true, &step);
        struct ot_adamw b = args_for(&full, OT_F32, 0, LARGEST, true, &step);
        ot_adamw_run(&a);
        ot_adamw_run(&b);
    }
    for (int i = 0; i < LARGEST; i++) {
        assert_int_equal(ot_f32_bits(half.weight[i]), ot_f32_bits(full.weight[i]));
        assert_int_equal(half.half[i], ot_f16_from_f32(full.weight[i]));
    }
}

/* ---- against double precision ---- */

/* torch.optim.AdamW, in double. The fp32 result may be off by one rounding of p itself (2^-24 relative) and
 * by the few roundings of the update: m has 3 and v has 4 over t steps, which decay geometrically; sqrt, the
 * reciprocal, fma, / and the rate have one each. 2^-24 * (10 + 10) of the update's size bounds them. */
static void test_follows_double_precision(void **state) {
    (void)state;
    static struct params x;
    static double p[LARGEST], m[LARGEST], v[LARGEST], moved[LARGEST];
    static const char *const names[] = {"scalar", "avx2", "avx512"};
    for (int k = 0; k < 3; k++) {
        ot_adamw_fn kernel = ot_adamw_kernel(names[k]);
        if (!kernel)
            continue;
        fill(&x, ORDINARY);
        for (int i = 0; i < LARGEST; i++) {
            p[i] = (double)x.weight[i], moved[i] = 0;
            m[i] = x.m[i] = 0;
            v[i] = x.v[i] = 0;
        }
        for (int t = 1; t <= 20; t++) {
            struct ot_adamw_step step = step_number(t);
            struct ot_adamw args = args_for(&x, OT_F32, 0, LARGEST, true, &step);
            kernel(&args);
            for (int i = 0; i < LARGEST; i++) {
                double g = (double)x.grad[i] * (double)step.grad_scale;
                double beta1 = (double)step.beta1, beta2 = (double)step.beta2, lr = (double)step.lr;
                m[i] = beta1 * m[i] + (1 - beta1) * g;
                v[i] = beta2 * v[i] + (1 - beta2) * g * g;
                p[i] -= lr * (double)step.weight_decay * p[i];
                double update = lr / (double)step.bias1 * m[i] /
                                (sqrt(v[i]) / (double)step.bias2_sqrt + (double)step.eps);
                p[i] -= update;
                moved[i] += fabs(update);
                double tolerance = 0x1p-24 * (2.0 * t * fabs(p[i]) + 20 * moved[i]);
                if (!(fabs((double)x.weight[i] - p[i]) <= tolerance))
                    fail_msg("%s, step %d, element %d: %.9g, not %.9g", names[k], t, i, (double)x.weight[i],
                             p[i]);
            }
        }
    }
}

/* ---- parameters that must not change ---- */

static void test_skip_changes_nothing(void **state) {
    (void)state;
    static const char *const names[] = {"scalar", "avx2", "avx512"};
    static struct params x, before;
    struct ot_adamw_step step = step_number(1);
    step.skip = 1;
    step.grad_scale = NAN;
    for (int k = 0; k < 3; k++)
        for (int dtype = OT_F32; dtype <= OT_F16; dtype++) {
            ot_adamw_fn kernel = ot_adamw_kernel(names[k]);
            fill(&x, ORDINARY);
            fill(&before, ORDINARY);
            struct ot_adamw args = args_for(&x, (enum ot_dtype)dtype, 0, LARGEST, true, &step);
            if (kernel)
                kernel(&args);
            assert_memory_equal(&x, &before, sizeof x);
        }
}

/* With no gradient, no moments and no decay a parameter keeps its bits. Subnormal numbers and -0 keep theirs
 * too: nothing flushes to zero. */
static void test_still_parameters_keep_their_bits(void **state) {
    (void)state;
    static const char *const names[] = {"scalar", "avx2", "avx512"};
    static struct params x;
    struct ot_adamw_step step = step_number(1);
    for (int k = 0; k < 3; k++)
        for (int dtype = OT_F32; dtype <= OT_F16; dtype++) {
            ot_adamw_fn kernel = ot_adamw_kernel(names[k]);
            fill(&x, EDGES);
            memset(x.m, 0, sizeof x.m);
            memset(x.v, 0, sizeof x.v);
            memset(x.grad, 0, sizeof x.grad);
            memset(x.half_grad, 0, sizeof x.half_grad);
            memset(x.f16_grad, 0, sizeof x.f16_grad);
            struct ot_adamw args = args_for(&x, (enum ot_dtype)dtype, 0, LARGEST, false, &step);
            if (kernel)
                kernel(&args);
            for (int64_t i = 0; i < LARGEST; i++) {
                float now = dtype == OT_BF16 ? ot_join_f32(x.hi[i], x.low[i]) : x.weight[i],
                      was = input(EDGES, 1, i, 0);
                /* -0 plus an update of -0 stays -0; -0 plus +0 becomes +0 (IEEE 754) */
                if (ot_f32_bits(now) != ot_f32_bits(was) && !(now == 0 && was == 0))
                    fail_msg("%s: %a became %a", names[k], (double)was, (double)now);
            }
        }
}

/* Moments below the smallest normal number are kept and not flushed: the floating-point environment is the
 * IEEE default. */
static void test_subnormal_moments_survive(void **state) {
    (void)state;
    static const char *const names[] = {"scalar", "avx2", "avx512"};
    static struct params x;
    struct ot_adamw_step step = step_number(1);
    for (int k = 0; k < 3; k++) {
        ot_adamw_fn kernel = ot_adamw_kernel(names[k]);
        fill(&x, ORDINARY);
        memset(x.grad, 0, sizeof x.grad);
        for (int i = 0; i < ROOM; i++)
            x.m[i] = x.v[i] = 0x1p-130f;
        struct ot_adamw args = args_for(&x, OT_F32, 0, LARGEST, true, &step);
        if (!kernel)
            continue;
        kernel(&args);
        for (int i = 0; i < LARGEST; i++) {
            assert_true(x.m[i] == 0.9f * 0x1p-130f && x.m[i] > 0);
            assert_true(x.v[i] == 0.95f * 0x1p-130f && x.v[i] > 0);
        }
    }
}

static void test_names(void **state) {
    (void)state;
    assert_non_null(ot_adamw_kernel("scalar"));
    assert_null(ot_adamw_kernel("mmx"));
    assert_non_null(ot_adamw_kernel(ot_adamw_kernel_name()));
}

/* forced_name NULL: no kernel is forced; expected_name NULL: any kernel but scalar. */
static const char *forced_name, *expected_name;

static int check_choice(void) {
    if (forced_name)
        setenv("OFFLOAD_TRAIN_ADAMW", forced_name, 1);
    else
        unsetenv("OFFLOAD_TRAIN_ADAMW");
    const char *name = ot_adamw_kernel_name();
    return expected_name ? strcmp(name, expected_name) != 0 : strcmp(name, "scalar") == 0;
}

/* By default a timing chooses among the vector kernels; the environment variable forces any kernel that the
 * CPU has. A process chooses once, so each case runs in a new process, and this test is the first. */
static void test_choice(void **state) {
    (void)state;
    bool any_vector = false;
    for (const char *const *name = ot_adamw_kernel_names; *name; name++) {
        bool there = ot_adamw_kernel(*name) != NULL;
        forced_name = *name;
        expected_name = there ? *name : "scalar";
        check_in_child(check_choice);
        any_vector = any_vector || (there && strcmp(*name, "scalar") != 0);
    }
    forced_name = "mmx";
    expected_name = "scalar";
    check_in_child(check_choice);
    forced_name = NULL;
    expected_name = any_vector ? NULL : "scalar";
    check_in_child(check_choice);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_avx2_has_the_bits_of_scalar),
        cmocka_unit_test(test_avx512_has_the_bits_of_scalar),
        cmocka_unit_test(test_emulated_avx512_has_the_bits_of_scalar),
        cmocka_unit_test(test_slices_have_the_bits_of_the_whole),
        cmocka_unit_test(test_split_has_the_bits_of_fp32),
        cmocka_unit_test(test_f16_follows_its_master),
        cmocka_unit_test(test_follows_double_precision),
        cmocka_unit_test(test_skip_changes_nothing),
        cmocka_unit_test(test_still_parameters_keep_their_bits),
        cmocka_unit_test(test_subnormal_moments_survive),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
