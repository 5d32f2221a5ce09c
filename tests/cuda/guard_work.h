/* Ops with fast paths, for tests of the guard (kernels/cuda/cuda_guard.h) on the emulated device. */
#ifndef OT_TESTS_GUARD_WORK_H
#define OT_TESTS_GUARD_WORK_H

#include <stdint.h>

#include "kernels/ops.h"

enum { N = 40, DIM = 64 };

struct work {
    struct ot_device *device;
    struct ot_lane *lane;
    uint16_t *memory,
        *host; /* arrays of N * DIM elements: q, k, v, out, dout, dq, dk, dv; the host has the last four */
    float *lse, *scratch, *dsinks;
    float *sums; /* 2 N * DIM zeros */
    int32_t *row_start;
};

uint16_t *part(const struct work *w, int number);
int64_t launches(void);
void open_work(struct work *w);
void close_work(struct work *w);
struct ot_attention_backward attention(const struct work *w);
/* Runs forward and backward, and leaves all results in host memory. */
void run_attention(const struct work *w);
int guard_setup(void **state);
int guard_teardown(void **state);
void choose_card(int compute_capability);
/* Each element must be near the right result. The plain kernels compute the same result in another order. */
void check_near(const uint16_t *got, const uint16_t *want, int n);
void run_product(const struct work *w, const struct ot_gemm *op);
/* bf16 [N,N] = [N,DIM] [N,DIM]^T + bias */
struct ot_gemm product(const struct work *w, bool with_bias);
/* bf16 [N,N] = [N,DIM] [N,DIM]^T of one expert, or [DIM,DIM] = [N,DIM]^T [N,DIM]. */
struct ot_gemm_groups groups(const struct work *w, enum ot_groups_form form);
/* Returns the launches. */
int64_t run_groups(const struct work *w, enum ot_groups_form form);

/* Collects on stderr what is logged until heard() copies it. */
void listen(void);
void heard(char text[4096]);

#endif
