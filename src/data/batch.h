/* Batches: sequences to steps of micro-batches, as the engine takes them.
 *
 * A step has `step_sequences` sequences (the last one of an epoch may have fewer), cut into micro-batches of
 * `micro_sequences`. A micro-batch is flat (kernels/ops.h): rows end to end, each isolated by row_start,
 * positions from 0; there are no pad tokens. targets[i] is the id of token i+1 if that belongs to the same
 * row and trains, else -1.
 *
 * The position (epoch, sequence) is exact: seeking to it and going on equals never having stopped.
 * One thread at a time.
 */
#ifndef OT_DATA_BATCH_H
#define OT_DATA_BATCH_H

#include <stddef.h>
#include <stdint.h>

#include "offload/engine/engine.h"
#include "src/data/packing.h"

struct ot_batcher;

struct ot_batch_config {
    struct ot_packing *packing; /* the batcher sets its epoch: no two batchers share one */
    const struct ot_dataset *dataset;
    int64_t seq_len;
    int64_t step_sequences;  /* tokens per step / seq_len, >= 1 */
    int64_t micro_sequences; /* micro-batch: tokens / seq_len, >= 1 */
};

struct ot_data_position {
    int64_t epoch, sequence; /* the next sequence to train on; sequence < sequences of an epoch */
};

struct ot_step_batch {
    struct ot_step_input input;       /* lr is 0: the caller's; arrays are valid until the next call */
    struct ot_data_position position; /* where this step began */
    int64_t sequences, rows, tokens;
};

/* Errors: OT_E_BUDGET; OT_E_INPUT if the packing has no sequence. */
int ot_batcher_open(const struct ot_batch_config *config, struct ot_batcher **out);
void ot_batcher_close(struct ot_batcher *batcher); /* NULL is fine */

int64_t ot_batcher_steps_per_epoch(const struct ot_batcher *batcher);
int64_t ot_batcher_max_micro(const struct ot_batcher *batcher); /* micro-batches of a full step */
size_t ot_batcher_bytes(const struct ot_batcher *batcher);

/* The next step; after the last of an epoch comes the first of the next, without end. */
void ot_batcher_next(struct ot_batcher *batcher, struct ot_step_batch *out);

struct ot_data_position ot_batcher_position(const struct ot_batcher *batcher);
/* Errors: OT_E_INPUT if the data has no such position (a checkpoint of other data). */
int ot_batcher_seek(struct ot_batcher *batcher, struct ot_data_position position);

#endif
