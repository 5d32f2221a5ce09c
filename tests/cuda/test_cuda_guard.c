/* Fast paths that check themselves at first use: right ones are trusted, wrong ones give way to the plain
 * kernels, and both verdicts are saved for the next run. On the emulated device alone, because only its
 * kernels can be broken on purpose. */
#include "tests/support/check.h"

#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cuda/cuda_guard_checks.h"
#include "kernels/cuda/cuda_state.h"
#include "kernels/ops.h"
#include "tests/cuda/guard_work.h"
#include "tests/emu/emu_faults.h"
#include "tests/fakes/fake_cublaslt.h"

/* Counts the kernel launches of the work in this process and in the next one, which reads the saved
 * verdicts. */
static void check_kept(int64_t *first, int64_t *second) {
    struct work w;
    for (int i = 0; i < 2; i++) {
        open_work(&w);
        int64_t before = launches();
        run_attention(&w);
        *(i == 0 ? first : second) = launches() - before;
        close_work(&w);
    }
}

static void test_right_kernels_are_trusted(void **state) {
    (void)state;
    struct work w;
    uint16_t trusted[8 * N * DIM];
    int64_t first, second;
    check_kept(&first, &second);
    assert_true(first > second && second == 4); /* forward 1; backward 3: dots, queries, keys */
    open_work(&w);
    run_attention(&w);
    memcpy(trusted, w.host, sizeof trusted);
    close_work(&w);
    setenv("OFFLOAD_TRAIN_KERNEL_CHECKS", "off", 1);
    open_work(&w);
    run_attention(&w);
    assert_memory_equal(w.host, trusted, sizeof trusted);
    close_work(&w);
}

/* Launches of one op with sinks, with or without a softcap. */
static int64_t run_with_sinks(const struct work *w, float softcap) {
    struct ot_attention_backward op = attention(w);
    op.forward.softcap = softcap;
    op.forward.sinks = part(w, 0); /* any numbers */
    op.dsinks = w->dsinks;
    int64_t before = launches();
    ot_device_ops(w->device)->attention(w->lane, &op.forward);
    ot_device_ops(w->device)->attention_backward(w->lane, &op);
    check_ok(ot_lane_sync(w->lane));
    return launches() - before;
}

/* A verdict on one kind of scores says nothing about another kind. */
static void test_softcaps_and_sinks_have_their_own_checks(void **state) {
    (void)state;
    for (int run = 0; run < 2; run++) { /* the second run reads the saved verdicts */
        struct work w;
        open_work(&w);
        run_attention(&w);
        for (int i = 0; i < 4; i++) {
            int64_t count = run_with_sinks(&w, i % 2 ? 0.75f : 0); /* 5 without a check: dsinks is one more */
            assert_true(run == 0 && i < 2 ? count > 5 : count == 5);
        }
        close_work(&w);
    }
}

enum { OUT = N * DIM, GRADIENTS = 3 * N * DIM, RESULTS = 5 * N * DIM };

/* The results on a card: out, dout, dq, dk, dv. broken: kernels, or NULL. checks:
 * OFFLOAD_TRAIN_KERNEL_CHECKS, or NULL. */
static void run_on_card(void **state, int compute_capability, const char *broken, const char *checks,
                        uint16_t *results) {
    struct work w;
    assert_int_equal(guard_teardown(state), 0);
    guard_setup(state);
    choose_card(compute_capability);
    if (checks)
        setenv("OFFLOAD_TRAIN_KERNEL_CHECKS", checks, 1);
    ot_emu_break_kernels(broken);
    open_work(&w);
    run_attention(&w);
    memcpy(results, w.host + 3 * N * DIM, RESULTS * sizeof *results);
    close_work(&w);
}

/* On compute capability 9.0 forward and backward have kernels of their own. If both fail their checks, the
 * tiled kernels compute the same bits as on other cards. If backward alone fails, forward stays. */
static void test_hopper_gives_way_to_tiled(void **state) {
    uint16_t hopper[RESULTS], other[RESULTS], tiled[RESULTS];
    const uint16_t *gradients = hopper + 2 * N * DIM, *others = other + 2 * N * DIM;
    run_on_card(state, 90, NULL, NULL, hopper);
    run_on_card(state, 90, "attention_forward", "off", other); /* not needed */
    assert_memory_equal(hopper, other, sizeof hopper);
    run_on_card(state, 90, "attention_backward_", "off", other); /* not needed */
    assert_memory_equal(hopper, other, sizeof hopper);
    run_on_card(state, 90, "attention_hopper<", "off", other); /* needed by forward */
    assert_memory_not_equal(hopper, other, OUT * sizeof *other);
    run_on_card(state, 90, "attention_hopper_backward", "off", other); /* needed by backward */
    assert_memory_equal(hopper, other, OUT * sizeof *other);
    assert_memory_not_equal(gradients, others, GRADIENTS * sizeof *others);
    run_on_card(state, 90, "attention_hopper_backward", NULL, other);
    assert_memory_equal(hopper, other, OUT * sizeof *other);
    run_on_card(state, 80, NULL, "off", tiled);
    run_on_card(state, 90, "attention_hopper", NULL, other); /* both */
    assert_memory_equal(tiled, other, sizeof tiled);
}

static void check_broken(const char *kernel, const uint16_t *want) {
    struct work w;
    ot_emu_break_kernels(kernel);
    for (int run = 0; run < 2; run++) { /* the second run reads the saved verdict */
        open_work(&w);
        run_attention(&w);
        check_near(w.host + 3 * N * DIM, want + 3 * N * DIM, N * DIM);
        check_near(w.host + 5 * N * DIM, want + 5 * N * DIM, 3 * N * DIM);
        close_work(&w);
    }
}

enum { BACKWARD_KEYS = 2, HOPPER_BACKWARD = 4 }; /* they read stored sums */

/* A kernel that is wrong on a card. */
static const struct wrong {
    const char *kernel;
    int compute_capability;
} WRONG[] = {{"attention_forward", 80},
             {"attention_backward_queries", 80},
             [BACKWARD_KEYS] = {"attention_backward_keys", 80},
             {"attention_hopper<", 90},
             [HOPPER_BACKWARD] = {"attention_hopper_backward", 90}};

static void test_wrong_kernels_give_way(void **state) {
    struct work w;
    uint16_t want[8 * N * DIM];
    setenv("OFFLOAD_TRAIN_KERNEL_CHECKS", "off", 1);
    open_work(&w);
    run_attention(&w);
    memcpy(want, w.host, sizeof want);
    close_work(&w);
    for (size_t i = 0; i < sizeof WRONG / sizeof *WRONG; i++) {
        guard_teardown(state);
        guard_setup(state);
        choose_card(WRONG[i].compute_capability);
        check_broken(WRONG[i].kernel, want);
    }
}

/* ---- errors under a feature ---- */

/* Each changes what a kernel reads, as a wrong kernel would: its first argument begins with those of
 * forward. */
static void lose_slopes(void *first) {
    ((struct ot_attention *)first)->slopes = NULL;
}

static void widen_window(void *first) {
    struct ot_attention *op = first;
    op->window += op->window > 0;
}

static void forget_past(void *first) {
    struct ot_attention *op = first;
    op->n_keys = op->n;
}

static void lose_sums(void *first) {
    struct ot_attention_backward *op = first;
    op->dk_sums = op->dv_sums = NULL;
}

enum { WINDOW = 8, PAST = 30 };

static void run_with(const struct work *w, void (*change)(void *)) {
    struct ot_attention_backward op = attention(w);
    static const float slope = 0.25f;
    memcpy(w->host, &slope, sizeof slope);
    ot_lane_copy(w->lane, OT_COPY_H2D, w->dsinks, w->host, sizeof slope);
    op.forward.slopes = change == lose_slopes ? w->dsinks : NULL;
    op.forward.window = change == widen_window ? WINDOW : 0;
    op.forward.n = change == forget_past ? N - PAST : N;
    op.dk_sums = change == forget_past || change == lose_sums ? w->sums : NULL;
    op.dv_sums = op.dk_sums ? w->sums + N * DIM : NULL;
    ot_device_ops(w->device)->attention(w->lane, &op.forward);
    ot_device_ops(w->device)->attention_backward(w->lane, &op);
    ot_lane_copy(w->lane, OT_COPY_D2H, w->host, w->memory, 8 * N * DIM * 2);
    check_ok(ot_lane_sync(w->lane));
}

static const struct {
    void (*change)(void *first);
    const char *words;
} PLANTED[] = {{lose_slopes, "slopes (ALiBi)"},
               {widen_window, "a window"},
               {forget_past, "keys before the queries"},
               {lose_sums, "keys before the queries"}}; /* in the first section of a row, which has none */

/* A kernel that is right without a feature and wrong with it is found, by a check that has the feature. */
static void check_planted(void **state, int planted, const struct wrong *wrong) {
    struct work w;
    uint16_t want[8 * N * DIM];
    char text[4096];
    guard_teardown(state);
    guard_setup(state);
    setenv("OFFLOAD_TRAIN_KERNELS", "plain", 1);
    open_work(&w);
    run_with(&w, PLANTED[planted].change);
    memcpy(want, w.host, sizeof want);
    close_work(&w);
    unsetenv("OFFLOAD_TRAIN_KERNELS");
    choose_card(wrong->compute_capability);
    ot_emu_change_arguments(wrong->kernel, PLANTED[planted].change);
    listen();
    open_work(&w);
    run_attention(&w); /* has none of the features, so it is trusted */
    run_with(&w, PLANTED[planted].change);
    heard(text);
    int rows = PLANTED[planted].change == forget_past ? N - PAST : N;
    static const int results[] = {3, 5, 6, 7}; /* out, dq, dk, dv */
    for (int i = 0; i < 4; i++)
        check_near(w.host + results[i] * N * DIM, want + results[i] * N * DIM, rows * DIM);
    close_work(&w);
    const char *said = strstr(text, "the results of attention");
    if (!said || !strstr(said, PLANTED[planted].words) || strstr(said + 1, "the results of"))
        fail_msg("%s with %s: the log is '%s'", wrong->kernel, PLANTED[planted].words, text);
}

static void test_errors_under_a_feature(void **state) {
    for (size_t i = 0; i < sizeof WRONG / sizeof *WRONG; i++)
        for (int planted = 0; planted < 4; planted++)
            if (PLANTED[planted].change != lose_sums || i == BACKWARD_KEYS || i == HOPPER_BACKWARD)
                check_planted(state, planted, &WRONG[i]);
}

/* ---- products ---- */

static void test_right_products_are_trusted(void **state) {
    (void)state;
    for (int run = 0; run < 2; run++) {
        struct work w;
        open_work(&w);
        struct ot_gemm op = product(&w, true);
        run_product(&w, &op);
        int checked = ot_fake_cublaslt.matmuls;
        /* The product of the check and the product itself; with a verdict, the product alone. */
        assert_int_equal(checked, run == 0 ? 2 : 1);
        op.m = N / 2;
        run_product(&w, &op); /* another shape of the same kind */
        assert_int_equal(ot_fake_cublaslt.matmuls, checked + 1);
        close_work(&w);
        ot_fake_cublaslt_reset();
    }
}

/* If the library adds a wrong bias, it gets no more products with a bias. It still gets the others. */
static void test_a_wrong_epilogue_gives_way(void **state) {
    (void)state;
    struct work w;
    uint16_t want[N * N];
    open_work(&w);
    struct ot_gemm op = product(&w, true), plain = product(&w, false);
    run_product(&w, &op);
    memcpy(want, w.host + 3 * N * DIM, sizeof want);
    close_work(&w);
    guard_teardown(state);
    guard_setup(state);
    ot_fake_cublaslt.loses_bias = true;
    for (int run = 0; run < 2; run++) {
        open_work(&w);
        op = product(&w, true);
        plain = product(&w, false);
        int before = ot_fake_cublaslt.matmuls;
        run_product(&w, &op);
        assert_memory_equal(w.host + 3 * N * DIM, want,
                            sizeof want); /* products are exact and are added in the same order */
        assert_int_equal(ot_fake_cublaslt.matmuls - before, run == 0 ? 1 : 0);
        run_product(&w, &plain);
        assert_true(ot_fake_cublaslt.matmuls > before + (run == 0));
        close_work(&w);
    }
}

/* A library that ignores the scale gets no more products without a bias, whether they have a scale or not:
 * the check is the same for both. */
static void test_a_lost_scale_gives_way(void **state) {
    static const float scales[] = {0, -0.25f};
    for (int i = 0; i < 4; i++) {
        bool loses = i % 2;
        struct work w;
        uint16_t want[N * N];
        guard_teardown(state);
        guard_setup(state);
        ot_fake_cublaslt.loses_scale = loses;
        open_work(&w);
        struct ot_gemm op = product(&w, false);
        op.scale = scales[i / 2];
        int before = ot_fake_cublaslt.matmuls;
        run_product(&w, &op);
        run_product(&w, &op);
        assert_int_equal(ot_fake_cublaslt.matmuls - before, loses ? 1 : 3); /* the check; the products */
        if (loses)
            assert_memory_equal(w.host + 3 * N * DIM, want, sizeof want); /* products are exact */
        memcpy(want, w.host + 3 * N * DIM, sizeof want);
        close_work(&w);
    }
}

/* ---- products by groups ---- */

enum { GROUP_ROWS = 24, WIDE = 136, INNER = 64 };

/* bf16 [GROUP_ROWS,WIDE] = [GROUP_ROWS,INNER] [WIDE,INNER]^T of one expert, or [INNER,WIDE] =
 * [GROUP_ROWS,INNER]^T [GROUP_ROWS,WIDE]. Wide enough for the kernel of compute capability 9.0. Returns the
 * launches. */
static int64_t run_wide_groups(const struct work *w, enum ot_groups_form form, uint16_t *results) {
    const int32_t ends[2] = {0, GROUP_ROWS};
    bool sums = form == OT_GROUPS_SUMS;
    struct ot_gemm_groups op = {.dtype = OT_BF16,
                                .c_dtype = OT_BF16,
                                .form = form,
                                .trans_b = !sums,
                                .experts = 1,
                                .rows = GROUP_ROWS,
                                .m = INNER,
                                .n = WIDE,
                                .k = INNER,
                                .offsets = w->row_start,
                                .a = part(w, 0),
                                .b = part(w, 0) + GROUP_ROWS * INNER,
                                .c = part(w, 4),
                                .lda = INNER,
                                .ldb = sums ? WIDE : INNER,
                                .ldc = WIDE,
                                .stride = INNER * WIDE};
    memcpy(w->host, ends, sizeof ends);
    ot_lane_copy(w->lane, OT_COPY_H2D, w->row_start, w->host, sizeof ends);
    int64_t before = launches();
    ot_device_ops(w->device)->gemm_groups(w->lane, &op);
    int64_t after = launches();
    ot_lane_copy(w->lane, OT_COPY_D2H, w->host, w->memory, 8 * N * DIM * 2);
    check_ok(ot_lane_sync(w->lane));
    memcpy(results, w->host + 4 * N * DIM, (size_t)(sums ? INNER : GROUP_ROWS) * WIDE * 2);
    return after - before;
}

/* Each form has a check of its own, whose verdict the next run reads. If the kernels are broken, the results
 * are those of a slower kernel. Compute capability 9.0 has two kernels with tensor cores. */
static void test_products_by_groups(void **state) {
    static const struct {
        const char *broken;
        int compute_capability;
    } cases[] = {{NULL, 80},   {"groups_tiled", 80}, {NULL, 90}, {"groups_tiled", 90}, {"groups_hopper", 90},
                 {"false", 90} /* a template argument of both */};
    static uint16_t want[2][INNER * WIDE], got[INNER * WIDE];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        choose_card(cases[i].compute_capability);
        ot_emu_break_kernels(cases[i].broken);
        for (int run = 0; run < 2; run++)
            for (int form = 0; form < 2; form++) {
                struct work w;
                open_work(&w);
                int64_t count = run_wide_groups(&w, (enum ot_groups_form)form, i ? got : want[form]);
                assert_true(run == 0 ? count > 1 : count == 1);
                for (int at = 0; i > 0 && at < (form ? INNER : GROUP_ROWS) * WIDE; at++) {
                    float g = ot_bf16_to_f32(got[at]), v = ot_bf16_to_f32(want[form][at]);
                    assert_true(g - v <= 0.1f && v - g <= 0.1f); /* a unit of numbers below 16 */
                }
                close_work(&w);
            }
        guard_teardown(state);
        guard_setup(state);
    }
}

/* After a check, a run trusts the saved verdict: a kernel that breaks later shows. So the check has found the
 * kernel right. */
static void test_right_products_by_groups_are_trusted(void **state) {
    static const char *const kernels[] = {"groups_tiled", "groups_hopper"};
    static uint16_t want[INNER * WIDE], got[INNER * WIDE];
    for (int i = 0; i < 2 * 2; i++) {
        enum ot_groups_form form = (enum ot_groups_form)(i % 2);
        guard_teardown(state);
        guard_setup(state);
        choose_card(i / 2 ? 90 : 80);
        for (int run = 0; run < 2; run++) {
            struct work w;
            ot_emu_break_kernels(run ? kernels[i / 2] : NULL);
            open_work(&w);
            run_wide_groups(&w, form, run ? got : want);
            close_work(&w);
        }
        assert_memory_not_equal(got, want, GROUP_ROWS * WIDE * 2);
    }
}

/* Of two broken kernels, the one that an unchecked product needs shows. */
static void test_products_by_groups_choose_their_kernel(void **state) {
    static const char *const broken[] = {NULL, "groups_tiled", "groups_hopper"};
    static uint16_t want[INNER * WIDE], got[INNER * WIDE];
    for (int i = 0; i < 2 * 3; i++) {
        int card = i / 3 ? 90 : 80;
        struct work w;
        guard_teardown(state);
        guard_setup(state);
        choose_card(card);
        setenv("OFFLOAD_TRAIN_KERNEL_CHECKS", "off", 1);
        ot_emu_break_kernels(broken[i % 3]);
        open_work(&w);
        run_wide_groups(&w, OT_GROUPS_ROWS, i ? got : want);
        close_work(&w);
        bool needed = broken[i % 3] && i % 3 == (card == 90 ? 2 : 1);
        if (i)
            assert_int_equal(memcmp(got, want, GROUP_ROWS * WIDE * 2) != 0, needed);
    }
}

/* ---- the comparison ---- */

/* A difference of exactly the bound still agrees. Zeros and NaN never do: a kernel that computes nothing is
 * wrong, and so is one that leaves an element out. */
static void test_the_bound_of_a_comparison(void **state) {
    (void)state;
    static const struct {
        float fast[2], plain[2];
        bool agree;
    } cases[] = {
        {{1, -2}, {1, -2}, true},     {{1, -2.25f}, {1, -2}, true}, {{1, -2.2500002f}, {1, -2}, false},
        {{0.75f, -2}, {1, -2}, true}, {{0, 0}, {0, 0}, false},      {{NAN, -2}, {1, -2}, false}};
    enum { BYTES = 4096 };
    struct ot_guard_pinned *pinned;
    struct ot_guard_room room = {.bytes = BYTES};
    struct ot_cuda_stream on = {.sm_count = 8, .shared_bytes = 99 << 10, .arch = 80};
    float *values;
    assert_int_equal(cudaStreamCreateWithFlags(&on.stream, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(cudaMalloc((void **)&room.memory, BYTES), cudaSuccess);
    assert_int_equal(cudaHostAlloc((void **)&pinned, sizeof *pinned, cudaHostAllocPortable), cudaSuccess);
    assert_int_equal(cudaHostAlloc((void **)&values, sizeof cases, cudaHostAllocPortable), cudaSuccess);
    const struct ot_guard_pair pair = ot_guard_make_pair(&room, OT_F32, 2, 0.125);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool agree;
        memcpy(values, cases[i].fast, 2 * sizeof *values);
        memcpy(values + 2, cases[i].plain, 2 * sizeof *values);
        cudaMemcpyAsync(pair.fast, values, 2 * sizeof *values, cudaMemcpyHostToDevice, on.stream);
        cudaMemcpyAsync(pair.plain, values + 2, 2 * sizeof *values, cudaMemcpyHostToDevice, on.stream);
        assert_int_equal(ot_guard_compare(pinned, &pair, 1, room, &on, &agree), cudaSuccess);
        if (agree != cases[i].agree)
            fail_msg("case %zu: the two %s", i, agree ? "agree" : "differ");
    }
    assert_int_equal(cudaFreeHost(values) | cudaFreeHost(pinned) | cudaFree(room.memory), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(on.stream), cudaSuccess);
}

/* ---- the file, and checks that cannot be made ---- */

enum { MOST_FILE_BYTES = 1 << 16 };

/* Without commands of a shell: gpu-check runs this test where few are. */
static void damage_file(const char *path, int kind) {
    static char text[MOST_FILE_BYTES];
    FILE *file = fopen(path, "r+");
    assert_non_null(file);
    size_t n = fread(text, 1, sizeof text - 1, file);
    text[n] = '\0';
    assert_true(n > 1 && n < sizeof text - 1);
    char *driver = strstr(text, "driver"), *line = strchr(text, '\n'),
         *plus = line ? strchr(line, '+') : NULL;
    assert_true(driver && plus);
    if (kind == 1)
        memcpy(driver, "drivel", 6);
    if (kind == 2)
        *plus = 'z';
    rewind(file);
    assert_int_equal(fwrite(text, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
    if (kind == 0)
        assert_int_equal(truncate(path, (off_t)n - 1), 0);
    if (kind == 3)
        assert_int_equal(unlink(path), 0);
}

static void test_damaged_file(void **state) {
    char pattern[512];
    int64_t first = 0, second = 0;
    glob_t found;
    check_kept(&first, &second);
    snprintf(pattern, sizeof pattern, "%s/offload-train/guard-*", (char *)*state);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    for (int kind = 0; kind < 4; kind++) {
        damage_file(found.gl_pathv[0], kind);
        int64_t again, then;
        check_kept(&again, &then);
        assert_true(again == first && then == second);
    }
    globfree(&found);
}

static void test_a_check_that_fails_decides_nothing(void **state) {
    (void)state;
    int64_t first, second;
    struct work w;
    open_work(&w);
    /* This copy brings the row starts of the first check. */
    ot_emu_fail_call("cudaMemcpyAsync", 1, cudaErrorInvalidValue);
    run_attention(&w);
    close_work(&w);
    check_kept(&first, &second);
    assert_true(first > second); /* the failed check has left no verdict on the forward path */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_right_kernels_are_trusted, guard_setup, guard_teardown),
        cmocka_unit_test_setup_teardown(test_softcaps_and_sinks_have_their_own_checks, guard_setup,
                                        guard_teardown),
        cmocka_unit_test_setup_teardown(test_hopper_gives_way_to_tiled, guard_setup, guard_teardown),
        cmocka_unit_test_setup_teardown(test_wrong_kernels_give_way, guard_setup, guard_teardown),
        cmocka_unit_test_setup_teardown(test_errors_under_a_feature, guard_setup, guard_teardown),
        cmocka_unit_test_setup_teardown(test_right_products_are_trusted, guard_setup, guard_teardown),
        cmocka_unit_test_setup_teardown(test_a_wrong_epilogue_gives_way, guard_setup, guard_teardown),
        cmocka_unit_test_setup_teardown(test_a_lost_scale_gives_way, guard_setup, guard_teardown),
        cmocka_unit_test_setup_teardown(test_products_by_groups, guard_setup, guard_teardown),
        cmocka_unit_test_setup_teardown(test_right_products_by_groups_are_trusted, guard_setup,
                                        guard_teardown),
        cmocka_unit_test_setup_teardown(test_products_by_groups_choose_their_kernel, guard_setup,
                                        guard_teardown),
        cmocka_unit_test_setup_teardown(test_the_bound_of_a_comparison, guard_setup, guard_teardown),
        cmocka_unit_test_setup_teardown(test_damaged_file, guard_setup, guard_teardown),
        cmocka_unit_test_setup_teardown(test_a_check_that_fails_decides_nothing, guard_setup, guard_teardown),
    };
    return cmocka_run_group_tests_name("guard", tests, NULL, NULL);
}
