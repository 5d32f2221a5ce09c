/* AdamW: every kernel has the bits of the scalar one for all kinds of masters and moments, wherever an update
 * is cut; and the numbers that these bits mean. */
#include <stdlib.h>

#include "tests/kernels/adamw_fixture.h"

static const char *const kernel_names[] = {"scalar", "avx2", "avx512"};
enum { KERNELS = sizeof kernel_names / sizeof *kernel_names };

/* ---- every kernel, bit for bit ---- */

/* Runs four steps, each with other gradients. */
static void check_kernel(ot_adamw_fn kernel, const struct params *begin, int64_t first, int64_t n,
                         bool decay) {
    static struct params got, want;
    got = want = *begin;
    for (int t = 1; t <= 4; t++) {
        struct ot_adamw_step step = step_number(t);
        struct ot_adamw mine = args_for(&got, first, n, decay, &step);
        struct ot_adamw reference = args_for(&want, first, n, decay, &step);
        mine.rate = reference.rate = n % 2 ? 2.5f : 0;
        kernel(&mine);
        ot_adamw_kernel("scalar")(&reference);
        for (int i = 0; i < ROOM; i++) {
            float grad = -begin->grad[(i + 7 * t) % ROOM];
            set_gradient(&got, i, grad);
            set_gradient(&want, i, grad);
        }
    }
    check_same_params(&got, &want);
}

static void check_against_scalar(const char *name) {
    static const int64_t sizes[] = {0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 100, 8 * GROUP, ROOM - 40};
    static const int64_t firsts[] = {0, 1, 2, 3, 8, 31, 32, 40};
    enum { SIZES = sizeof sizes / sizeof *sizes, FIRSTS = sizeof firsts / sizeof *firsts };
    static struct params begin;
    ot_adamw_fn kernel = find_adamw_kernel(name);
    if (!kernel) {
        print_message("this CPU has no %s\n", name);
        skip();
    }
    /* The values do not change which bytes are read and written. */
    for (int inputs = 0; inputs < (tests_are_few() ? 1 : N_INPUTS); inputs++)
        for (int kind = 0; kind < KINDS; kind++) {
            fill(&begin, (enum inputs)inputs, kind_at(kind));
            for (int s = 0; s < SIZES; s++)
                for (int f = 0; f < FIRSTS; f++)
                    check_kernel(kernel, &begin, firsts[f], sizes[s], (s + f) % 2);
        }
}

/* A rate is a step with that learning rate; 0 is 1. */
static void test_rate_multiplies_the_learning_rate(void **state) {
    (void)state;
    static struct params got, want;
    for (int i = 0; i < 3 * KINDS; i++) {
        static const float rates[] = {0, 1, 7.3f};
        float rate = rates[i % 3];
        struct ot_adamw_step step = step_number(2), faster = step;
        fill(&got, ORDINARY, kind_at(i / 3));
        want = got;
        faster.lr *= i % 3 ? rate : 1;
        struct ot_adamw mine = args_for(&got, 0, ROOM, true, &step),
                        reference = args_for(&want, 0, ROOM, true, &faster);
        mine.rate = rate;
        ot_adamw_run(&mine);
        ot_adamw_kernel("scalar")(&reference);
        check_same_params(&got, &want);
    }
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

/* A cut changes no bit: at any element, as between groups of parameters, if the moments are fp32; at groups,
 * as between threads, if they are compact. */
static void test_cuts_have_the_bits_of_the_whole(void **state) {
    (void)state;
    static struct params cut, whole;
    struct ot_adamw_step step = step_number(2);
    for (int kind = 0; kind < KINDS; kind++)
        for (int64_t first = 0; first < 40; first += 13) {
            fill(&cut, ORDINARY, kind_at(kind));
            whole = cut;
            struct ot_adamw all = args_for(&whole, first, ROOM - 50, true, &step);
            ot_adamw_run(&all);
            all = args_for(&cut, first, ROOM - 50, true, &step);
            for (int64_t begin = 0, n = 1; begin < all.n && kind < KINDS_F32; begin += n, n = n * 2 + 3) {
                struct ot_adamw part = ot_adamw_slice(&all, begin, n < all.n - begin ? n : all.n - begin);
                ot_adamw_run(&part);
            }
            int64_t end = kind < KINDS_F32 ? 0 : ot_adamw_places(&all);
            for (int64_t begin = 0, next; begin < end; begin = next) {
                next = begin + 3 * GROUP < end ? begin + 3 * GROUP : end;
                struct ot_adamw part = ot_adamw_chunk(&all, begin, next);
                ot_adamw_run(&part);
            }
            check_same_params(&cut, &whole);
        }
}

/* ---- masters ---- */

/* Runs 20 steps with the gradients of x in fp32 as well. */
static void run_beside_fp32(struct params *x, struct params *full, struct kind kind) {
    fill(x, ORDINARY, kind);
    fill(full, ORDINARY, kind_at(0));
    for (int i = 0; i < ROOM; i++)
        full->grad[i] = ot_dtype_read(kind.dtype, x->half_grad, i);
    for (int t = 1; t <= 20; t++) {
        struct ot_adamw_step step = step_number(t);
        struct ot_adamw a = args_for(x, 0, ROOM, true, &step), b = args_for(full, 0, ROOM, true, &step);
        ot_adamw_run(&a);
        ot_adamw_run(&b);
    }
}

static void test_split_has_the_bits_of_fp32(void **state) {
    (void)state;
    static struct params split, full;
    run_beside_fp32(&split, &full, kind_at(1));
    for (int i = 0; i < ROOM; i++)
        assert_int_equal(ot_f32_bits(half_value(&split, i)), ot_f32_bits(full.weight[i]));
}

/* The master of fp16 gets the update of an fp32 parameter, and the weight is the rounded master. */
static void test_f16_follows_its_master(void **state) {
    (void)state;
    static struct params half, full;
    run_beside_fp32(&half, &full, kind_at(2));
    for (int i = 0; i < ROOM; i++) {
        assert_int_equal(ot_f32_bits(half.weight[i]), ot_f32_bits(full.weight[i]));
        assert_int_equal(half.half[i], ot_f16_from_f32(full.weight[i]));
    }
}

/* Without masters, an update has the exact result of an fp32 parameter that begins at the bf16 weight. It is
 * rounded to one of the two bf16 numbers around it: up as often as its place between them says, so the mean
 * is the exact result. That holds for all results together, and for those above and below the middle (nearest
 * rounding fails there). The weights have every mantissa and both signs. */
static void test_no_master_is_rounded_without_bias(void **state) {
    (void)state;
    enum { UPDATES = 400 };
    static struct params bare, full;
    double bias = 0, variance = 0, tilt = 0, tilt_variance = 0;
    for (int t = 1; t <= UPDATES; t++) {
        struct ot_adamw_step step = step_number(t);
        fill(&bare, ORDINARY, kind_at(3));
        fill(&full, ORDINARY, kind_at(0));
        for (int i = 0; i < ROOM; i++) {
            bare.half[i] = (uint16_t)(0x3c00 + (i & 0x7f) + ((i & 0x80) << 8) + ((i + t) % 3 << 7));
            full.weight[i] = ot_bf16_to_f32(bare.half[i]);
            full.grad[i] = ot_bf16_to_f32(bare.half_grad[i]);
        }
        struct ot_adamw a = args_for(&bare, 0, ROOM, true, &step);
        struct ot_adamw b = args_for(&full, 0, ROOM, true, &step);
        ot_adamw_run(&a);
        ot_adamw_run(&b);
        assert_memory_equal(bare.m, full.m, sizeof bare.m);
        for (int i = 0; i < ROOM; i++) {
            uint32_t exact = ot_f32_bits(full.weight[i]), low = exact >> 16;
            assert_in_range(bare.half[i], low, low + ((exact & 0xffff) > 0));
            double place = (exact & 0xffff) / 65536.0, side = place - 0.5;
            double error = bare.half[i] - low - place;
            bias += error;
            tilt += error * side;
            variance += place * (1 - place);
            tilt_variance += place * (1 - place) * side * side;
        }
    }
    assert_true(variance > 1000); /* the updates move weights to places between bf16 numbers */
    assert_true(fabs(bias) < 4 * sqrt(variance) && fabs(tilt) < 4 * sqrt(tilt_variance));
}

/* ---- against double precision ---- */

/* torch.optim.AdamW, in double. The fp32 result may be off by one rounding of p itself (2^-24 relative) and
 * by the few roundings of the update: m has 3 and v has 4 over t steps, which decay geometrically; sqrt, the
 * reciprocal, fma, / and the rate have one each. 2^-24 * (10 + 10) of the update's size bounds them. */
static void test_follows_double_precision(void **state) {
    (void)state;
    static struct params x;
    static double p[ROOM], m[ROOM], v[ROOM], moved[ROOM];
    for (int k = 0; k < KERNELS; k++) {
        ot_adamw_fn kernel = ot_adamw_kernel(kernel_names[k]);
        if (!kernel)
            continue;
        fill(&x, ORDINARY, kind_at(0));
        for (int i = 0; i < ROOM; i++) {
            p[i] = (double)x.weight[i], moved[i] = 0;
            m[i] = x.m[i] = 0;
            v[i] = x.v[i] = 0;
        }
        for (int t = 1; t <= 20; t++) {
            struct ot_adamw_step step = step_number(t);
            struct ot_adamw args = args_for(&x, 0, ROOM, true, &step);
            kernel(&args);
            for (int i = 0; i < ROOM; i++) {
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
                    fail_msg("%s, step %d, element %d: %.9g, not %.9g", kernel_names[k], t, i,
                             (double)x.weight[i], p[i]);
            }
        }
    }
}

/* 400 steps with a steady gradient, then 2000 without: v follows beta2^t and does not stall, as it would with
 * rounding to nearest. The mean over the parameters may differ by 5 %: stochastic rounding makes v a random
 * walk, whose spread over 1024 parameters is below 1 %, and 8 bits raise v by up to u^2 / 4. */
static void test_moments_decay(void **state) {
    (void)state;
    for (int kind = KINDS_F32; kind < KINDS; kind++) {
        static struct params x;
        static float m[ROOM], v[ROOM];
        const struct ot_state_arrays full = {OT_STATE_F32, m, v, NULL};
        fill(&x, ORDINARY, kind_at(kind));
        double want = 0, got = 0;
        for (int i = 0; i < ROOM; i++)
            set_gradient(&x, i, 0.01f * (float)(1 + i % 4));
        for (int t = 1; t <= 1600; t++) {
            struct ot_adamw_step step = step_number(t);
            step.beta2 = 0.999f;
            step.lr = 0;
            if (t == 401)
                memset(x.grad, 0, sizeof x.grad), memset(x.half_grad, 0, sizeof x.half_grad);
            struct ot_adamw args = args_for(&x, 0, ROOM, true, &step);
            ot_adamw_run(&args);
        }
        struct ot_state_arrays compact = {x.kind.state, x.m, x.v, x.scales};
        ot_state_convert(ot_state_view_of(&compact), &full, FIRST, ROOM, 0, 0);
        for (int i = 0; i < ROOM; i++) {
            double g = 0.73 * 0.01 * (1 + i % 4);
            want += g * g * (1 - pow(0.999, 400)) * pow(0.999, 1200);
            got += (double)v[i];
            assert_true(fabsf(m[i]) < 1e-6f);
        }
        assert_true(fabs(got / want - 1) < 0.05);
    }
}

/* ---- parameters that must not change ---- */

static void test_skip_changes_nothing(void **state) {
    (void)state;
    static struct params x, before;
    struct ot_adamw_step step = step_number(1);
    step.skip = 1;
    step.grad_scale = NAN;
    for (int k = 0; k < KERNELS; k++)
        for (int kind = 0; kind < KINDS; kind++) {
            ot_adamw_fn kernel = ot_adamw_kernel(kernel_names[k]);
            fill(&x, ORDINARY, kind_at(kind));
            if (kind >= KINDS_F32)
                memset(x.m, 0x11, sizeof x.m);
            before = x;
            struct ot_adamw args = args_for(&x, 3, ROOM - 9, true, &step);
            if (kernel)
                kernel(&args);
            assert_memory_equal(&x, &before, sizeof x);
        }
}

/* With no gradient, no moments and no decay a parameter keeps its bits, also beside others of its group, and
 * also if it is rounded. Subnormal numbers and -0 keep theirs too: nothing flushes to zero. */
static void test_still_parameters_keep_their_bits(void **state) {
    (void)state;
    static struct params x, before;
    struct ot_adamw_step step = step_number(1);
    for (int k = 0; k < KERNELS; k++)
        for (int kind = 0; kind < KINDS; kind++) {
            ot_adamw_fn kernel = ot_adamw_kernel(kernel_names[k]);
            fill(&x, EDGES, kind_at(kind));
            memset(x.m, 0, sizeof x.m);
            memset(x.v, 0, sizeof x.v);
            memset(x.grad, 0, sizeof x.grad);
            memset(x.half_grad, 0, sizeof x.half_grad);
            before = x;
            struct ot_adamw args = args_for(&x, 3, ROOM - 9, false, &step);
            if (kernel)
                kernel(&args);
            check_same_params(&x, &before);
        }
}

/* Moments below the smallest normal number are kept and not flushed: the floating-point environment is the
 * IEEE default. */
static void test_subnormal_moments_survive(void **state) {
    (void)state;
    static struct params x;
    struct ot_adamw_step step = step_number(1);
    for (int k = 0; k < KERNELS; k++) {
        ot_adamw_fn kernel = ot_adamw_kernel(kernel_names[k]);
        fill(&x, ORDINARY, kind_at(0));
        memset(x.grad, 0, sizeof x.grad);
        for (int i = 0; i < ROOM; i++)
            x.m[i] = x.v[i] = 0x1p-130f;
        struct ot_adamw args = args_for(&x, 0, ROOM, true, &step);
        if (!kernel)
            continue;
        kernel(&args);
        for (int i = 0; i < ROOM; i++) {
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
        cmocka_unit_test(test_cuts_have_the_bits_of_the_whole),
        cmocka_unit_test(test_split_has_the_bits_of_fp32),
        cmocka_unit_test(test_f16_follows_its_master),
        cmocka_unit_test(test_no_master_is_rounded_without_bias),
        cmocka_unit_test(test_follows_double_precision),
        cmocka_unit_test(test_moments_decay),
        cmocka_unit_test(test_rate_multiplies_the_learning_rate),
        cmocka_unit_test(test_skip_changes_nothing),
        cmocka_unit_test(test_still_parameters_keep_their_bits),
        cmocka_unit_test(test_subnormal_moments_survive),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
