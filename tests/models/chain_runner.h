/* Runs a model's chain without the engine: everything lies on a cpu device, one lane, blocks in order. For
 * tests of models/. A failing call fails the test.
 *
 * Between calls scratch is filled with garbage, and so is what the contract lets be garbage, so that a block
 * that relies on it shows.
 */
#ifndef OT_TESTS_CHAIN_RUNNER_H
#define OT_TESTS_CHAIN_RUNNER_H

#include <stdbool.h>
#include <stdint.h>

#include "models/model.h"

struct runner;

struct runner_batch { /* host memory */
    int64_t n;
    const int32_t *tokens, *targets, *position, *row_start;
    float grad_scale;
};

/* max_tokens: of the largest batch. */
struct runner *runner_open(const struct ot_model_config *config, enum ot_dtype dtype, int64_t max_tokens,
                           int threads);
void runner_close(struct runner *runner);
struct ot_model *runner_model(struct runner *runner);

/* Weights are rounded to the runner's dtype. */
void runner_set_tensor(struct runner *runner, const struct ot_tensor *tensor, const float *values);
void runner_init_weights(struct runner *runner, uint64_t seed);

void runner_zero_grads(struct runner *runner);
/* Forward and backward; gradients are added to those there are. keep: backward finds what forward saved,
 * otherwise it computes it again. token_loss [n] may be NULL. */
void runner_train(struct runner *runner, const struct runner_batch *batch, bool keep, float *token_loss);
void runner_eval(struct runner *runner, const struct runner_batch *batch, float *token_loss);

/* Appends n tokens to the cache, at positions from 0 on, and returns the logits [vocab] after the last. */
void runner_decode_begin(struct runner *runner, int64_t capacity);
void runner_decode(struct runner *runner, const int32_t *tokens, int64_t n, float *logits);
void runner_decode_end(struct runner *runner);

/* The gradient of a slab, the uses added in block order. The caller frees it. */
float *runner_slab_grad(struct runner *runner, int slab);

#endif
