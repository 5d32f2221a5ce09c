/* Runs a model's chain without the engine: everything lies on one device (tiny_run.h), with one lane, and
 * blocks run in order. For the tests of models/. A call that fails fails the test.
 *
 * Between calls the runner overwrites the scratch, and all memory whose content the contract leaves
 * undefined, with NaNs. A block that relies on such content then fails its test. */
#ifndef OT_TESTS_CHAIN_RUNNER_H
#define OT_TESTS_CHAIN_RUNNER_H

#include <stdbool.h>
#include <stdint.h>

#include "models/model.h"
#include "offload/block.h"

struct runner;

struct runner_batch { /* in host memory */
    int64_t n;
    const int32_t *tokens, *targets, *position, *row_start;
    float grad_scale;
    /* Rows of pairs (offload/block.h); else 0 and NULL. */
    int64_t n_inputs;
    const int32_t *input_first, *input_end;
};

/* parts: NULL, or as for ot_model_open_setup. max_tokens: the tokens of the largest batch. */
struct runner *runner_open(const struct ot_model_config *config, const struct ot_model_setup *parts,
                           enum ot_dtype dtype, int64_t max_tokens, int threads);
void runner_close(struct runner *runner);
struct ot_model *runner_model(struct runner *runner);
/* Before gradients are computed. */
void runner_set_regular(struct runner *runner, const struct ot_regular *regular);
/* The tokens of a chunk (ot_model_set_chunk). */
void runner_set_chunk(struct runner *runner, int64_t tokens);

/* Rounds the weights to the runner's dtype. */
void runner_set_tensor(struct runner *runner, const struct ot_tensor *tensor, const float *values);
void runner_init_weights(struct runner *runner, uint64_t seed);

/* From now on, forward of blocks with parts runs in halves (offload/block.h), with NaNs in place of the parts
 * that may not be read. */
void runner_use_halves(struct runner *runner);

void runner_zero_grads(struct runner *runner);
/* Makes the next runner_train overwrite the gradients (ot_block_run.first), which hold NaNs until then. */
void runner_begin_grads(struct runner *runner);
/* Runs forward and backward, and adds to the gradients. level: what forward keeps for backward. token_loss
 * [n] may be NULL. */
void runner_train(struct runner *runner, const struct runner_batch *batch, enum ot_keep_level level,
                  float *token_loss);
/* The same in sections of so many tokens (offload/block.h, SECTIONS), with their keys in so many groups (KEY
 * GROUPS; 1: in whole calls). token_loss: [n]. */
void runner_train_sections(struct runner *runner, const struct runner_batch *batch, enum ot_keep_level level,
                           int64_t tokens, int groups, float *token_loss);
/* The losses of an evaluation in sections. */
void runner_eval_sections(struct runner *runner, const struct runner_batch *batch, int64_t tokens, int groups,
                          float *token_loss);
/* Runs forward up to a layer. Returns what it keeps of that layer; the caller frees it. */
void *runner_forward_saved(struct runner *runner, const struct runner_batch *batch, enum ot_keep_level level,
                           int last_block);
/* The gradient of a boundary of the last training pass, of n tokens, in the compute dtype. The caller frees
 * it. Of the boundaries before the first block with a trained slab: undefined. */
void *runner_boundary_grad(struct runner *runner, int boundary, int64_t n);
/* The level of the following runner_eval and runner_decode; OT_KEEP_NONE at first. */
void runner_keep(struct runner *runner, enum ot_keep_level level);
void runner_eval(struct runner *runner, const struct runner_batch *batch, float *token_loss);
/* The logits [n, vocab] of the head after each token of the batch of the last runner_eval, as of texts that
 * continue side by side. */
void runner_text_logits(struct runner *runner, const struct runner_batch *batch, float *logits);

/* Appends n tokens to the cache, at positions from 0 on. Returns the logits [vocab] after the last token. */
void runner_decode_begin(struct runner *runner, int64_t capacity);
/* The same for a model with pairs: the first n_inputs tokens are inputs, all in the first call. */
void runner_decode_begin_pair(struct runner *runner, int64_t n_inputs, int64_t capacity);
void runner_decode(struct runner *runner, const int32_t *tokens, int64_t n, float *logits);
void runner_decode_end(struct runner *runner);

/* The gradient of a trained slab: the sum over its uses, in block order. The caller frees it. */
float *runner_slab_grad(struct runner *runner, int slab);

#endif
