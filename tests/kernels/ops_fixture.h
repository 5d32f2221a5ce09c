/* Ops under test: a device with a lane, memory that is forgotten at the end, and results under names.
 *
 * A case is a function that uploads its inputs, runs ops and collects their results as fp32. Written once, it
 * runs in every dtype, on any number of threads and on any device (tests/cuda/cuda_fixture.h compares two);
 * what is compared is up to the test. Inputs lie on the grids of bf16 and fp16, so that all dtypes start from
 * the same numbers.
 *
 * The cpu device itself poisons memory and guards its ends. On others the fixture does what it can from
 * outside: fresh memory is full of NaNs, and so are the bytes behind each allocation, which must be untouched
 * at the end.
 */
#ifndef OT_TESTS_KERNELS_OPS_FIXTURE_H
#define OT_TESTS_KERNELS_OPS_FIXTURE_H

#include <stdint.h>

#include "kernels/device.h"
#include "kernels/ops.h"

enum { OPS_MEMORIES = 64, OPS_RESULTS = 16 };

struct ops_memory {
    void *device;
    size_t bytes; /* without the guard behind it */
};

struct ops_result {
    const char *name;
    float *values;
    int64_t n;
    enum ot_dtype dtype; /* that the values were stored in */
};

struct ops_fixture {
    struct ot_device *device;
    struct ot_lane *lane;
    bool owns_device; /* and lane */
    const struct ot_ops *ops;
    enum ot_dtype dtype; /* of activations and weights in this run */
    size_t guard_bytes;  /* behind each memory: 0 where the device itself guards */
    int shift; /* elements by which uploaded and blank values lie off the alignment of memory; 0 at first */
    struct ops_memory memories[OPS_MEMORIES];
    int n_memories;
    struct ops_result results[OPS_RESULTS];
    int n_results;
};

void ops_open(struct ops_fixture *f, int threads, enum ot_dtype dtype); /* the cpu device */
/* On a lane that is open already and stays so. guards: its device guards the ends of memory itself. */
void ops_open_on(struct ops_fixture *f, struct ot_lane *lane, bool guards, enum ot_dtype dtype);
void ops_close(struct ops_fixture *f); /* forgets results too */

/* Device memory. blank: as the device hands it out, that is, poisoned. */
void *ops_blank(struct ops_fixture *f, size_t bytes);
void *ops_blank_values(struct ops_fixture *f, enum ot_dtype dtype, int64_t n);
void *ops_upload(struct ops_fixture *f, enum ot_dtype dtype, const float *values, int64_t n);
int32_t *ops_upload_ids(struct ops_fixture *f, const int32_t *ids, int64_t n);

/* Waits for the lane and keeps n values under a name that stays valid. */
void ops_collect(struct ops_fixture *f, const char *name, enum ot_dtype dtype, const void *device, int64_t n);
const float *ops_result(const struct ops_fixture *f, const char *name, int64_t *n); /* n may be NULL */

/* Normal numbers on the bf16 and fp16 grids, a function of the seed; the caller frees them. */
float *ops_random(uint64_t seed, int64_t n, float scale);

typedef void (*ops_case)(struct ops_fixture *f, const void *argument);

/* Runs the case in dtype on 1, 2, 3 and 5 threads; the results must be the same bits. Leaves the first run in
 * f. */
void ops_check_threads(struct ops_fixture *f, ops_case run, const void *argument, enum ot_dtype dtype);
/* Runs the case in fp32, bf16 and fp16; each result's relative error (norm over norm) must be below
 * `bound` in bf16, an eighth of it in fp16. */
void ops_check_half(ops_case run, const void *argument, double bound);

#endif
