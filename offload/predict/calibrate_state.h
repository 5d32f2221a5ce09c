/* Declarations that calibrate.c and calibrate_open.c share. Private to offload/predict. */
#ifndef OT_OFFLOAD_PREDICT_CALIBRATE_STATE_H
#define OT_OFFLOAD_PREDICT_CALIBRATE_STATE_H

#include "kernels/device.h"
#include "offload/predict/calibrate.h"

enum { AHEAD = 4 }; /* cycles of the load that are enqueued at once */

/* The device buffers of one block, cut from one allocation. */
struct memory {
    void *base;
    size_t bytes;
    void *weights[OT_MAX_USES];
    float *grads[OT_MAX_USES];
    void *x, *y, *dxy, *dxy_first; /* dxy_first: copied to dxy before each backward, which overwrites dxy */
    char *inside;                  /* `saved` of the level at hand, then its `work` */
    void *scratch, *constants;
    float *token_loss, *loss_scale;
    int32_t *batch; /* the token arrays (ot_chain_token_arrays): [n] each */
};

/* A middle block's forward, then its backward at OT_KEEP_ALL. */
struct cycle {
    int block;
    int64_t tokens, row;
    double seconds; /* time of a cycle after a pause; 0: unknown, the block does not fit */
};

struct bench {
    const struct ot_calibration *config;
    struct ot_lane *lane;
    struct ot_event *begin[AHEAD], *end[AHEAD]; /* begin[0] and end[0] serve single calls too */
    char *pinned; /* PATTERN_BYTES of random numbers, then room for the batch or the constants */
    size_t pinned_bytes;
    struct memory memory;
    struct cycle cycle;
};

int ot_calibrate_open(struct bench *b); /* b->config is set. Errors: OT_E_BUDGET, OT_E_DEVICE. */
void ot_calibrate_close(struct bench *b);

/* Bytes that measuring the block with n tokens takes. */
size_t ot_calibrate_bytes(const struct ot_chain *chain, int block, int64_t n_tokens);
/* Allocates memory for the block with at most n tokens, and fills the weights. Errors: OT_E_BUDGET. */
int ot_calibrate_alloc(struct bench *b, int block, int64_t n_tokens);
void ot_calibrate_free(struct bench *b); /* the lane is empty */
/* Weights and gradients have the same addresses for every number of tokens. */
void ot_calibrate_fill_weights(const struct bench *b, int block);
/* Cuts the buffers for n tokens in rows of `row`, and fills those whose size depends on n. Errors: those of
 * the lane. */
int ot_calibrate_fill_inputs(struct bench *b, int block, int64_t n, int64_t row);
/* A call of the block with the inputs filled last. */
struct ot_block_run ot_calibrate_run(const struct bench *b, int block, int64_t n);

#endif
