/* One case on two devices: `cuda`, and `cpu` as the reference.
 *
 * A case is a function of tests/kernels/ops_fixture.h: it uploads inputs, runs ops and collects results. It
 * knows nothing of devices. cuda_run runs it twice on the cuda device, which must give the same bits, and
 * once on the cpu device. Then each result is compared, by name:
 *
 *     struct cuda_pair p;
 *     cuda_run(&p, run_norm, &shape, OT_BF16, 0);
 *     cuda_check_bits(&p, "sum");
 *     cuda_check_close(&p, "y", &(struct cuda_bound){.relative = 40 * 0x1p-24});
 *     cuda_close(&p);
 *
 * A bound says how far the two devices' numbers may be apart in fp32, before they are stored: it follows from
 * the length of the sums and the functions in it. What rounding to the dtype of the result adds is known here
 * and added here. Elements that the case leaves alone are NaN on both sides (ops_fixture.h) and must stay so.
 *
 * The same source runs against the emulated CUDA library and against a real one. Only the latter may be
 * without a device: main() begins with cuda_skip_without_device().
 */
#ifndef OT_TESTS_CUDA_CUDA_FIXTURE_H
#define OT_TESTS_CUDA_CUDA_FIXTURE_H

#include "tests/kernels/ops_fixture.h"

struct cuda_pair {
    struct ops_fixture cuda, cpu;
};

/* |cuda - cpu| <= relative * |cpu| + absolute + each[i], and what rounding when stored adds. */
struct cuda_bound {
    double relative, absolute;
    const double *each; /* NULL: none */
};

/* Half an ulp of 1: 2^-24, 2^-8 (bf16), 2^-11 (fp16). */
double cuda_unit_roundoff(enum ot_dtype dtype);

/* Opens the device that all cases share, with every kernel trusted; exits 77 with the reason where there
 * is no GPU. The emulated device is always there. */
void cuda_skip_without_device(void);

/* A fixture on that device, for what is compared with something else. Closed by ops_close. */
void cuda_open(struct ops_fixture *f, enum ot_dtype dtype);

/* shift: elements by which all arrays of values lie off 256-byte alignment. */
void cuda_run(struct cuda_pair *p, ops_case run, const void *argument, enum ot_dtype dtype, int shift);
void cuda_close(struct cuda_pair *p);

/* cuda's bits are cpu's. */
void cuda_check_bits(const struct cuda_pair *p, const char *name);
void cuda_check_close(const struct cuda_pair *p, const char *name, const struct cuda_bound *bound);

#endif
