/* Runs one case on two devices: `cuda`, and `cpu` as the reference.
 *
 * A case is a function of tests/kernels/ops_fixture.h: it uploads inputs, runs ops and collects results. It
 * does not know its device. cuda_run runs the case twice on the cuda device, which must give the same bits
 * both times, and once on the cpu device. The emulated device runs blocks and threads in another order the
 * second time; it does so in every third case, and in all with OT_TEST_SLOW. The test then compares each
 * result, by name:
 *
 *     struct cuda_pair p;
 *     cuda_run(&p, run_norm, &shape, OT_BF16, 0);
 *     cuda_check_bits(&p, "sum");
 *     cuda_check_close(&p, "y", &(struct cuda_bound){.relative = 40 * 0x1p-24});
 *     cuda_close(&p);
 *
 * A bound says how far the two devices' numbers may be apart in fp32, before they are stored. It follows from
 * the length of the sums and the functions in them. The fixture itself adds the rounding to the dtype of the
 * result. Elements that the case does not write are NaN on both sides (ops_fixture.h) and must stay NaN.
 *
 * The same source runs against the emulated CUDA library and against a real one. Only the real one may lack a
 * device, so main() begins with cuda_skip_without_device(). */
#ifndef OT_TESTS_CUDA_CUDA_FIXTURE_H
#define OT_TESTS_CUDA_CUDA_FIXTURE_H

#include "tests/kernels/ops_fixture.h"
#ifdef OT_TEST_SM
#include "tests/emu/emu_faults.h"
#endif

struct cuda_pair {
    struct ops_fixture cuda, cpu;
};

/* |cuda - cpu| <= relative * |cpu| + absolute + each[i] + the rounding of storing. */
struct cuda_bound {
    double relative, absolute;
    const double *each; /* NULL: none */
};

/* Half an ulp of 1: 2^-24, 2^-8 (bf16), 2^-11 (fp16). */
double cuda_unit_roundoff(enum ot_dtype dtype);

/* The emulated card has the architecture and the shared memory for which the test was built. */
static inline void cuda_choose_card(void) {
#ifdef OT_TEST_SM
    struct ot_emu_card card = ot_emu_default_card();
    card.compute_capability = OT_TEST_SM;
    card.shared_bytes = OT_TEST_SHARED_BYTES;
    ot_emu_set_card(&card);
#endif
}

/* Opens the device that all cases share, and trusts every kernel (no checks of first use). If there is no
 * GPU, prints the reason and exits with 77 (skipped). The emulated device always exists. */
void cuda_skip_without_device(void);

/* Opens a fixture on that device, for results that are not compared with the cpu device. Close it with
 * ops_close. */
void cuda_open(struct ops_fixture *f, enum ot_dtype dtype);

/* shift: the number of elements by which all arrays of values lie off 256-byte alignment. */
void cuda_run(struct cuda_pair *p, ops_case run, const void *argument, enum ot_dtype dtype, int shift);
void cuda_close(struct cuda_pair *p);

/* The results of both devices must have the same bits. */
void cuda_check_bits(const struct cuda_pair *p, const char *name);
void cuda_check_close(const struct cuda_pair *p, const char *name, const struct cuda_bound *bound);

#endif
