/* Cuts sequences into the steps and micro-batches that the engine takes.
 *
 * A step has `step_sequences` sequences (the last step of an epoch may have fewer), cut into micro-batches of
 * `micro_sequences`. A micro-batch is flat (kernels/ops.h): its rows follow each other without padding,
 * row_start separates them, and positions begin at 0 in each row. targets[i] is the id of token i+1 if that
 * token is in the same row and trains; otherwise -1.
 *
 * PAIRS (offload/block.h). The inputs of all rows of a micro-batch come first, then their targets. The
 * decoder reads the start token (models/config.h), then the row's target without its last token; targets[i]
 * is the token of the target at that place.
 *
 * COMPARISONS (dataset.h). Both answers of a row are rows of the micro-batch, one behind the other. A step's
 * losses are its comparisons.
 *
 * The position (epoch, sequence) is exact: seeking to it and going on gives the same steps as an
 * uninterrupted run. One thread at a time.
 */
#ifndef OT_DATA_BATCH_H
#define OT_DATA_BATCH_H

#include <stddef.h>
#include <stdint.h>

#include "offload/engine/engine.h"
#include "src/data/packing.h"

struct ot_batcher;

struct ot_data_position {
    int64_t epoch, sequence; /* the next sequence to train on; less than the sequences of an epoch */
};

struct ot_batch_config {
    struct ot_packing *packing; /* the batcher sets its epoch, so two batchers cannot share a packing */
    const struct ot_dataset *dataset;
    int64_t seq_len;
    int64_t step_sequences;  /* tokens per step / seq_len, >= 1 */
    int64_t micro_sequences; /* micro-batch: tokens / seq_len, >= 1 */
    /* [rows of the dataset][2]: the log-probabilities of both answers by the reference model; outlives the
     * batcher. NULL: zeros. */
    const float *references;
    struct ot_data_position position; /* where it begins */
};

struct ot_step_batch {
    struct ot_step_input input;       /* the caller sets lr; arrays are valid until the next call */
    struct ot_data_position position; /* where this step began */
    int64_t sequences, rows, tokens, trained_tokens;
};

/* Draws the order of the epoch. Errors: those of ot_packing_set_epoch and ot_batcher_seek; OT_E_BUDGET;
 * OT_E_INPUT if the packing has no sequence. */
int ot_batcher_open(const struct ot_batch_config *config, struct ot_batcher **out);
void ot_batcher_close(struct ot_batcher *batcher); /* NULL is fine */

int64_t ot_batcher_steps_per_epoch(const struct ot_batcher *batcher);
int64_t ot_batcher_max_micro(const struct ot_batcher *batcher); /* in a full step */
size_t ot_batcher_bytes(const struct ot_batcher *batcher);

/* The next step. After the last step of an epoch comes the first step of the next epoch, without end. Errors:
 * OT_E_INPUT (the cache of rows is damaged), and those of ot_packing_set_epoch. */
int ot_batcher_next(struct ot_batcher *batcher, struct ot_step_batch *out);

struct ot_data_position ot_batcher_position(const struct ot_batcher *batcher);
/* Errors: OT_E_INPUT if the data has no such position (the checkpoint is of other data). */
int ot_batcher_seek(struct ot_batcher *batcher, struct ot_data_position position);

#endif
