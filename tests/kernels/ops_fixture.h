/* Runs ops under test: a device with a lane, memory that the fixture frees at the end, and results with
 * names.
 *
 * A case is a function that uploads its inputs, runs ops and collects their results as fp32. It is written
 * once and runs in every dtype, on any number of threads and on any device (tests/cuda/cuda_fixture.h
 * compares two devices). The test chooses what it compares. Inputs are numbers that bf16 and fp16 both
 * represent, so that all dtypes begin with the same numbers.
 *
 * The cpu device itself poisons memory and guards its ends. On other devices the fixture does this from
 * outside: new memory is full of NaNs, and so are the bytes after each allocation, which must be unchanged at
 * the end. */
#ifndef OT_TESTS_KERNELS_OPS_FIXTURE_H
#define OT_TESTS_KERNELS_OPS_FIXTURE_H

#include <stdint.h>

#include "kernels/device.h"
#include "kernels/ops.h"

enum { OPS_MEMORIES = 64, OPS_RESULTS = 24 };

struct ops_memory {
    void *device;
    size_t bytes; /* without the guard after it */
};

struct ops_result {
    const char *name;
    float *values;
    int64_t n;
    enum ot_dtype dtype; /* the dtype of the stored values */
};

struct ops_fixture {
    struct ot_device *device;
    struct ot_lane *lane;
    bool owns_device; /* and the lane */
    const struct ot_ops *ops;
    enum ot_dtype dtype; /* dtype of activations and weights in this run */
    size_t guard_bytes;  /* after each allocation; 0 if the device itself guards */
    int shift; /* number of elements by which uploaded and blank arrays are off alignment; 0 at first */
    struct ops_memory memories[OPS_MEMORIES];
    int n_memories;
    struct ops_result results[OPS_RESULTS];
    int n_results;
};

void ops_open(struct ops_fixture *f, int threads, enum ot_dtype dtype); /* opens the cpu device */
/* Runs on a lane that is already open and stays open. guards: the lane's device guards the ends of memory
 * itself. */
void ops_open_on(struct ops_fixture *f, struct ot_lane *lane, bool guards, enum ot_dtype dtype);
void ops_close(struct ops_fixture *f); /* also frees the results */

/* Device memory. ops_blank returns it as the device allocates it, which means poisoned. */
void *ops_blank(struct ops_fixture *f, size_t bytes);
void *ops_blank_values(struct ops_fixture *f, enum ot_dtype dtype, int64_t n);
void *ops_upload(struct ops_fixture *f, enum ot_dtype dtype, const float *values, int64_t n);
int32_t *ops_upload_ids(struct ops_fixture *f, const int32_t *ids, int64_t n);

/* Waits for the lane and copies n values to the host under `name`, which must stay valid. */
void ops_collect(struct ops_fixture *f, const char *name, enum ot_dtype dtype, const void *device, int64_t n);
const float *ops_result(const struct ops_fixture *f, const char *name, int64_t *n); /* n may be NULL */

/* Normally distributed numbers that bf16 and fp16 both represent; they depend on the seed. The caller frees
 * them. */
float *ops_random(uint64_t seed, int64_t n, float scale);

typedef void (*ops_case)(struct ops_fixture *f, const void *argument);

/* Runs the case in dtype on 1, 2, 3 and 5 threads. All runs must give the same bits. The results of the first
 * run stay in f. */
void ops_check_threads(struct ops_fixture *f, ops_case run, const void *argument, enum ot_dtype dtype);
/* Runs the case in fp32, bf16 and fp16. The relative error of each result (norm over norm) must be below
 * `bound` in bf16 and below bound / 8 in fp16. */
void ops_check_half(ops_case run, const void *argument, double bound);
/* The cpu device's ops for the instruction set `build`, which this CPU must have, must give the bits of those
 * that the device chooses. */
void ops_check_build(ops_case run, const void *argument, const char *build, enum ot_dtype dtype);

#endif
