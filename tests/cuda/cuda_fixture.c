#include "tests/cuda/cuda_fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/check.h"
#ifdef OT_TEST_EMULATED
#include "tests/emu/emu.h"
#endif

enum { CPU_THREADS = 2 };

double cuda_unit_roundoff(enum ot_dtype dtype) {
    static const double units[] = {0x1p-24, 0x1p-8, 0x1p-11};
    return units[dtype];
}

/* All cases share this device, because opening a device takes longer than most cases. */
static struct ot_device *shared_device;
static struct ot_lane *shared_lane;

/* If a test failed in a case, the case's memory is still allocated. The device then stays open too: closing
 * it would fail on that memory and hide the real failure. */
static void close_shared_device(void) {
    struct ot_device_usage usage;
    ot_device_usage(shared_device, &usage);
    if (usage.used_bytes != usage.scratch_bytes)
        return;
    ot_lane_close(shared_lane);
    ot_device_close(shared_device);
}

static int open_shared_device(void) {
    struct ot_device_config config = {.kind = "cuda", .threads = 1};
    OT_TRY(ot_device_open(&config, &shared_device));
    return ot_lane_open(shared_device, "compute", &shared_lane);
}

void cuda_skip_without_device(void) {
    setenv("OFFLOAD_TRAIN_KERNEL_CHECKS", "off",
           1); /* no checks: a check would replace a wrong kernel by a right one and hide the error */
    if (open_shared_device() < 0) {
#ifdef OT_TEST_EMULATED
        fprintf(stderr, "the emulated device does not open: %s\n", ot_error_text());
        exit(1);
#else
        fprintf(stderr, "SKIP: no CUDA device: %s\n", ot_error_text());
        exit(77);
#endif
    }
    atexit(close_shared_device);
}

void cuda_open(struct ops_fixture *f, enum ot_dtype dtype) {
    ops_open_on(f, shared_lane, false, dtype);
}

static void run_on_cuda(struct ops_fixture *f, ops_case run, const void *argument, enum ot_dtype dtype,
                        int shift) {
    cuda_open(f, dtype);
    f->shift = shift;
    run(f, argument);
}

/* Of blocks and threads on the emulated device, unless the environment sets it. 0: the usual order. */
static void set_order(uint64_t seed) {
#ifdef OT_TEST_EMULATED
    if (!getenv("OT_EMU_SEED"))
        ot_emu_set_order(seed);
#endif
    (void)seed;
}

/* On the emulated device every third case, and all cases with OT_TEST_SLOW. */
static bool runs_again(void) {
#ifdef OT_TEST_EMULATED
    static int cases;
    return cases++ % 3 == 0 || getenv("OT_TEST_SLOW");
#else
    return true;
#endif
}

static void check_same_again(const struct ops_fixture *first, ops_case run, const void *argument,
                             enum ot_dtype dtype, int shift) {
    struct ops_fixture again;
    set_order(7);
    run_on_cuda(&again, run, argument, dtype, shift);
    set_order(0);
    assert_int_equal(again.n_results, first->n_results);
    for (int i = 0; i < again.n_results; i++)
        if (memcmp(again.results[i].values, first->results[i].values,
                   (size_t)again.results[i].n * sizeof(float)) != 0)
            fail_msg("%s differs from run to run (%s)", again.results[i].name, ot_dtype_name(dtype));
    ops_close(&again);
}

void cuda_run(struct cuda_pair *p, ops_case run, const void *argument, enum ot_dtype dtype, int shift) {
    run_on_cuda(&p->cuda, run, argument, dtype, shift);
    if (runs_again())
        check_same_again(&p->cuda, run, argument, dtype, shift);
    ops_open(&p->cpu, CPU_THREADS, dtype);
    p->cpu.shift = shift;
    run(&p->cpu, argument);
    assert_int_equal(p->cpu.n_results, p->cuda.n_results);
}

void cuda_close(struct cuda_pair *p) {
    ops_close(&p->cuda);
    ops_close(&p->cpu);
}

static const struct ops_result *find_result(const struct ops_fixture *f, const char *name) {
    for (int i = 0; i < f->n_results; i++)
        if (strcmp(f->results[i].name, name) == 0)
            return &f->results[i];
    fail_msg("the case collected no '%s'", name);
    return NULL;
}

static void fail_at(const struct ops_result *got, const struct ops_result *want, int64_t i, double bound) {
    fail_msg("%s[%lld of %lld] in %s = %.9g, cpu device %.9g: they differ by %.3g, allowed %.3g", got->name,
             (long long)i, (long long)got->n, ot_dtype_name(got->dtype), (double)got->values[i],
             (double)want->values[i], fabs((double)got->values[i] - want->values[i]), bound);
}

void cuda_check_bits(const struct cuda_pair *p, const char *name) {
    const struct ops_result *got = find_result(&p->cuda, name), *want = find_result(&p->cpu, name);
    assert_int_equal(got->n, want->n);
    for (int64_t i = 0; i < got->n; i++) {
        float g = got->values[i], w = want->values[i];
        if (ot_f32_bits(g) != ot_f32_bits(w) && !(isnan(g) && isnan(w)))
            fail_at(got, want, i, 0);
    }
}

/* The error that storing adds: one rounding of a result that is not fp32, and half of the smallest step near
 * 0. */
static double storing_error(const struct ops_result *result, double magnitude) {
    if (result->dtype == OT_F32)
        return 0;
    return cuda_unit_roundoff(result->dtype) * magnitude + (result->dtype == OT_F16 ? 0x1p-25 : 0x1p-134);
}

void cuda_check_close(const struct cuda_pair *p, const char *name, const struct cuda_bound *bound) {
    const struct ops_result *got = find_result(&p->cuda, name), *want = find_result(&p->cpu, name);
    assert_int_equal(got->n, want->n);
    int64_t worst = -1;
    double worst_excess = 0, worst_bound = 0;
    for (int64_t i = 0; i < got->n; i++) {
        double g = got->values[i], w = want->values[i];
        if (g == w || (isnan(g) && isnan(w))) /* also true for equal infinities */
            continue;
        double error = bound->relative * fabs(w) + bound->absolute + (bound->each ? bound->each[i] : 0);
        error += storing_error(got, fabs(w) + error) + storing_error(want, fabs(w) + error);
        double excess = fabs(g - w) - error;
        if (!(excess <= 0) && (worst < 0 || excess > worst_excess || isnan(excess))) {
            worst = i;
            worst_excess = excess;
            worst_bound = error;
        }
    }
    if (worst >= 0)
        fail_at(got, want, worst, worst_bound);
}
