/* Attention against PyTorch on small cases; against a plain double-precision reference on cases that span
 * several blocks (finite differences check the reference itself). Also: the same bits on any number of
 * threads, bf16, and memory linear in the tokens. */
#include <stdio.h>
#include <sys/resource.h>

#include "tests/kernels/attention_fixture.h"
#include "tests/support/golden.h"

/* ---- against PyTorch ---- */

static void check_golden(const char *name, bool backward) {
    struct ot_golden *golden = golden_open("ops.bin");
    char array[64];
#define ARRAY(field) (snprintf(array, sizeof array, "attention.%s.%s", name, field), array)
    struct attention_case c = {.backward = backward, .pad = 3};
    c.q = golden_f32(golden, ARRAY("q"), NULL);
    c.n = golden_dim(golden, array, 0);
    c.heads = golden_dim(golden, array, 1);
    c.head_dim = golden_dim(golden, array, 2);
    c.k = golden_f32(golden, ARRAY("k"), NULL);
    c.n_keys = golden_dim(golden, array, 0);
    c.kv_heads = golden_dim(golden, array, 1);
    c.v = golden_f32(golden, ARRAY("v"), NULL);
    c.dout = golden_f32(golden, ARRAY("dout"), NULL);
    c.row_start = golden_i32(golden, ARRAY("row_start"), NULL);
    c.window = golden_i32(golden, ARRAY("window"), NULL)[0];
    if (golden_has(golden, ARRAY("softcap")))
        c.softcap = golden_f32(golden, array, NULL)[0];
    if (golden_has(golden, ARRAY("sinks")))
        c.sinks = golden_f32(golden, array, NULL);
    struct ops_fixture f;
    ops_check_threads(&f, attention_run, &c, OT_F32);
    static const char *const names[] = {"out", "lse", "dq", "dk", "dv", "dsinks"};
    int64_t widths[] = {c.heads * c.head_dim,    1,      c.heads * c.head_dim, c.kv_heads * c.head_dim,
                        c.kv_heads * c.head_dim, c.heads},
            pads[] = {0, 0, c.pad, 2 * c.pad, 3 * c.pad, 0};
    for (int i = 0; i < (backward ? c.sinks ? 6 : 5 : 2); i++) {
        int64_t count;
        const float *want = golden_f32(golden, ARRAY(names[i]), &count);
        double *wide = attention_zeros(count);
        for (int64_t j = 0; j < count; j++)
            wide[j] = (i == 5 ? attention_earlier_dsinks[j] : 0) + want[j];
        attention_compare(&f, names[i], wide, count / widths[i], widths[i], pads[i], 2e-6);
        free(wide);
    }
#undef ARRAY
    ops_close(&f);
    c.pad = 0;
    ops_check_half(attention_run, &c, ATTENTION_BF16_BOUND);
    golden_close(golden);
}

static void test_golden(void **state) {
    (void)state;
    check_golden("plain", true);
    check_golden("grouped", true);
    check_golden("window", true);
    check_golden("decode", false);
    check_golden("capped", true);
    check_golden("sinks", true);
    check_golden("capped_sinks", true);
    check_golden("saturated", true);
    check_golden("capped_decode", false);
}

/* ---- against the reference ---- */

static void test_blocks(void **state) {
    (void)state;
    static const struct attention_shape shapes[] = {
        {1, 1, 1, 1, 1, 0, 0, .backward = true},           /* the smallest case */
        {129, 129, 3, 1, 24, 0, 0, .backward = true},      /* one key past two blocks */
        {300, 300, 4, 2, 64, 0, 0, .backward = true},      /* several blocks of queries and of keys */
        {280, 280, 2, 2, 32, 0, 37, .backward = true},     /* rows that straddle blocks */
        {333, 333, 4, 4, 16, 50, 0, .backward = true},     /* a window that leaves whole blocks unseen */
        {290, 290, 2, 1, 128, 100, 171, .backward = true}, /* rows and a window */
        {1, 600, 8, 2, 64, .row = 0},                      /* one token of decoding */
        {70, 523, 4, 2, 40, .window = 90},                 /* a prompt after a past, with a window */
        {300, 300, 8, 4, 16, 0, 0, .backward = true, .slopes = true},   /* ALiBi over several blocks */
        {70, 523, 4, 2, 24, 90, 0, .slopes = true},                     /* after a past, with a window */
        {280, 280, 8, 8, 16, 40, 67, .backward = true, .slopes = true}, /* and with rows */
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i += tests_are_brief() ? 3 : 1)
        attention_check_shape(&shapes[i]);
}

/* Softcaps and sinks. */
static void test_caps_and_sinks(void **state) {
    (void)state;
    static const struct attention_shape shapes[] = {
        {300, 300, 4, 2, 64, 0, 0, .backward = true, .softcap = 2},
        {300, 300, 8, 4, 16, 0, 0, .backward = true, .slopes = true, .softcap = 1.5f}, /* before ALiBi */
        {290, 290, 2, 1, 128, 100, 171, .backward = true, .softcap = 2, .sink = 1},    /* rows and a window */
        {280, 280, 8, 8, 16, 40, 67, .backward = true, .slopes = true, .softcap = 3, .sink = -1},
        {200, 200, 4, 2, 32, 0, 0, .backward = true, .softcap = 4,
         .q_size = 40},                                    /* scores far beyond the cap */
        {1, 600, 8, 2, 64, 0, 0, .softcap = 2, .sink = 2}, /* one token of decoding */
        {70, 523, 4, 2, 40, 90, 0, .slopes = true, .softcap = 2, .sink = 2},
        {1, 1, 1, 1, 8, 0, 0, .backward = true, .sink = 0.5f},     /* one key and a sink */
        {40, 40, 2, 1, 8, 1, 0, .backward = true, .sink = 0.5f},   /* the same by a window */
        {150, 150, 4, 2, 24, 0, 0, .backward = true, .sink = 12},  /* much larger than the scores */
        {150, 150, 4, 2, 24, 0, 0, .backward = true, .sink = -12}, /* much smaller */
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i += tests_are_for_races() ? 4
                                                                : tests_are_brief()   ? 2
                                                                                      : 1)
        attention_check_shape(&shapes[i]);
}

/* Checks the reference's gradient: the directional derivative of sum(out * dout) along a random direction, by
 * central differences in double. */
static void check_reference(const struct attention_shape *shape) {
    int32_t *row_start;
    float *values[ATTENTION_VALUES];
    double *in[ATTENTION_INPUTS];
    struct attention_case c = attention_make(shape, &row_start, values);
    attention_widen(&c, in);
    struct attention_reference want = attention_reference_run(&c, (const double *const *)in);
    const double *grads[ATTENTION_INPUTS] = {want.dq, want.dk, want.dv, NULL, want.dsinks};
    for (int which = 0; which < ATTENTION_INPUTS; which++) {
        if (!grads[which])
            continue;
        int64_t n = (which ? c.n_keys * c.kv_heads : c.n * c.heads) * c.head_dim;
        n = which == ATTENTION_SINKS ? c.heads : n;
        float *direction = ops_random(50 + (uint64_t)which, n, 1);
        double loss[2], step = 1e-5, slope = 0;
        for (int side = 0; side < 2; side++) {
            for (int64_t i = 0; i < n; i++)
                in[which][i] += (side ? -2 : 1) * step * direction[i];
            struct attention_reference moved = attention_reference_run(&c, (const double *const *)in);
            loss[side] = attention_dot(moved.out, in[3], c.n * c.heads * c.head_dim);
            attention_reference_free(&moved);
        }
        for (int64_t i = 0; i < n; i++) {
            in[which][i] += step * direction[i];
            slope += grads[which][i] * direction[i];
        }
        double measured = (loss[0] - loss[1]) / (2 * step);
        assert_true(fabs(measured - slope) < 1e-7 * fmax(1, fabs(slope)));
        free(direction);
    }
    attention_reference_free(&want);
    for (int i = 0; i < ATTENTION_INPUTS; i++)
        free(in[i]);
    attention_release(row_start, values);
}

static void test_reference(void **state) {
    (void)state;
    static const struct attention_shape shapes[] = {
        {24, 24, 4, 2, 6, 7, 15, .backward = true, .slopes = true, .softcap = 2, .sink = 1},
        {11, 24, 4, 2, 6, 9, 15, .backward = true, .slopes = true, .softcap = 2, .sink = 1, .drop = 0.3f}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check_reference(&shapes[i]);
}

/* ---- memory ---- */

static long resident_peak_bytes(void) {
    struct rusage usage;
    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_maxrss * 1024;
}

/* 8192 tokens: a T x T matrix of a single head would take 256 MiB. Forward and backward together may take 32
 * MiB beside their own arrays, which are allocated before. */
static void test_linear_memory(void **state) {
    (void)state;
    if (tests_are_brief()) /* the memory of a sanitizer would count too */
        skip();
    struct ops_fixture f;
    ops_open(&f, 2, OT_F32);
    static const struct attention_shape shape = {8192, 8192, 1, 1, 16, 0, 0, .backward = true};
    int32_t *row_start;
    float *values[ATTENTION_VALUES];
    struct attention_case c = attention_make(&shape, &row_start, values);
    const struct ot_attention op = attention_upload(&f, &c);
    const struct ot_attention_backward back = attention_upload_backward(&f, &c, &op);
    int64_t elems = c.n * c.head_dim;
    struct ot_device_usage before, after;
    ot_device_usage(f.device, &before);
    long resident = resident_peak_bytes();
    f.ops->attention(f.lane, &op);
    f.ops->attention_backward(f.lane, &back);
    check_ok(ot_lane_sync(f.lane));
    ot_device_usage(f.device, &after);
    assert_int_equal(after.peak_bytes, before.peak_bytes);
    assert_true(resident_peak_bytes() - resident < 32l << 20);
    ops_collect(&f, "dv", OT_F32, back.dv, elems);
    for (int64_t i = 0; i < elems; i++)
        assert_true(isfinite(ops_result(&f, "dv", NULL)[i]));
    ops_close(&f);
    attention_release(row_start, values);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_blocks),        cmocka_unit_test(test_caps_and_sinks),
        cmocka_unit_test(test_linear_memory),
    };
    return cmocka_run_group_tests_name("attention", tests, NULL, NULL);
}
