/* The token arrays of a micro-batch (block.h, ot_chain_token_arrays). Rows of texts have tokens, targets,
 * position and row_start; rows of pairs have input_first, input_end and key_end too. Comparisons of rows are
 * behind the arrays.
 */
#ifndef OT_OFFLOAD_ROWS_H
#define OT_OFFLOAD_ROWS_H

#include "offload/block.h"

/* Host memory; rows and fields as in kernels/ops.h. If the plan cuts sequences into sections, this is a whole
 * sequence, and the engine cuts it. */
struct ot_micro_batch {
    int64_t n_tokens; /* 1..ot_plan_pass_tokens */
    const int32_t *tokens, *targets, *position, *row_start;
    /* Rows of pairs (block.h); else 0 and NULL. Both parts have a token or more. */
    int64_t n_inputs;
    const int32_t *input_first, *input_end;
    /* Rows that are compared (block.h); else 0 and NULL. */
    int64_t n_comparisons;
    const struct ot_comparison *comparisons; /* in order; token numbers count from this micro-batch's first */
};

/* Checks that a chain can run a micro-batch of at most `most` tokens. micro: its number, for the message.
 * Errors: OT_E_INPUT. */
int ot_rows_check(const struct ot_chain *chain, int64_t most, const struct ot_micro_batch *mb, int micro);

/* Only its number of tokens, and the fields that have no ranges: while a text is generated, ranges count from
 * the first token of the cache. */
int ot_rows_check_tokens(const struct ot_chain *chain, int64_t most, const struct ot_micro_batch *mb,
                         int micro);

/* Copies a micro-batch to its n_arrays arrays [n_tokens], one every `stride` elements, and pads it as
 * engine.h says (PADDING). past: tokens of earlier calls while a text is generated, or of the sequence before
 * this section. Does not copy comparisons. */
void ot_rows_copy(int n_arrays, const struct ot_micro_batch *mb, int64_t past, int64_t n_tokens,
                  int32_t *arrays, int64_t stride);

#endif
