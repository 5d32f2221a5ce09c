/* Micro-batches of one sequence each, in host memory, that a quantization passes through every layer: rows of
 * calibration, or held-out rows. They are padded as the engine pads them (offload/engine/engine.h); a pad
 * token is a row of its own. Of an encoder-decoder, it is a target of the first row.
 */
#ifndef OT_QUANTIZE_BATCHES_H
#define OT_QUANTIZE_BATCHES_H

#include <stdint.h>

struct ot_dataset;
struct ot_packing;

struct ot_sequence {
    int64_t n_tokens;      /* with padding */
    int64_t n_rows;        /* tokens of rows: what calibration counts */
    int64_t first;         /* tokens of the sequences before it, with padding */
    int64_t n_inputs;      /* of an encoder-decoder (offload/block.h, ROWS OF PAIRS); else 0 */
    const int32_t *arrays; /* the token arrays (ot_chain_token_arrays), one every `stride` elements */
    int64_t stride;
};

struct ot_sequences {
    int64_t n, tokens, row_tokens, most_tokens; /* sums, and the longest */
    struct ot_sequence *list;
    int32_t *memory;
};

/* The first `most` sequences of the packing's first epoch. multiple: of tokens, for the padding. Errors:
 * OT_E_BUDGET. Call ot_sequences_free also after an error. */
int ot_sequences_open(struct ot_packing *packing, const struct ot_dataset *dataset, int64_t seq_len,
                      int64_t most, int64_t multiple, struct ot_sequences *out);
void ot_sequences_free(struct ot_sequences *sequences);

#endif
