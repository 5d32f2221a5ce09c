#include "offload/block.h"

struct ot_block_run ot_block_run_make(const struct ot_block_caller *caller, int block,
                                      const int32_t *token_arrays, int64_t stride, int64_t n_tokens,
                                      int64_t n_inputs) {
    const struct ot_chain *chain = caller->chain;
    struct ot_block_run run = {
        .lane = caller->lane,
        .dtype = chain->dtype,
        .pass = caller->pass,
        .batch = {.n_tokens = n_tokens, .n_inputs = n_inputs},
        .constants = caller->constants,
        .x = block > 0 ? caller->x : NULL,
        .y = block < chain->n_blocks - 1 ? caller->y : NULL,
        .work = caller->work,
        .scratch = caller->scratch,
        .token_loss = caller->token_loss,
        .logits = caller->logits,
    };
    const int32_t **const arrays[OT_MOST_TOKEN_ARRAYS] = {
        &run.batch.tokens,      &run.batch.targets,   &run.batch.position, &run.batch.row_start,
        &run.batch.input_first, &run.batch.input_end, &run.batch.key_end};
    for (int f = 0; f < ot_token_arrays(chain->has_pairs); f++)
        *arrays[f] = token_arrays + f * stride;
    return run;
}
