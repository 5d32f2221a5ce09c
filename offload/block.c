#include "offload/block.h"

struct ot_block_run ot_block_run_make(const struct ot_block_caller *caller, int block,
                                      const int32_t *token_arrays, int64_t stride, int64_t n_tokens,
                                      int64_t n_inputs) {
    const struct ot_chain *chain = caller->chain;
    struct ot_block_run run = {
        .lane = caller->lane,
        .dtype = chain->dtype,
        .pass = caller->pass,
        .batch = {.n_tokens = n_tokens,
                  .tokens = token_arrays,
                  .targets = token_arrays + stride,
                  .position = token_arrays + 2 * stride,
                  .row_start = token_arrays + 3 * stride,
                  .n_inputs = n_inputs},
        .constants = caller->constants,
        .x = block > 0 ? caller->x : NULL,
        .y = block < chain->n_blocks - 1 ? caller->y : NULL,
        .work = caller->work,
        .scratch = caller->scratch,
        .token_loss = caller->token_loss,
        .logits = caller->logits,
    };
    if (chain->has_pairs) {
        run.batch.input_first = token_arrays + 4 * stride;
        run.batch.input_end = token_arrays + 5 * stride;
        run.batch.key_end = token_arrays + 6 * stride;
    }
    return run;
}
