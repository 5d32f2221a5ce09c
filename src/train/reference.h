/* The log-probabilities of answers by the reference model (kernels/ops_compare.h), for objectives that need
 * them.
 *
 * The reference is the model before step 1: with new adapters that is the base. So it is never a second model
 * in memory. One pass over all rows, before step 1, computes what training and evaluations need: two numbers
 * a row. OUT/reference.bin keeps them, because a resumed run no longer has the weights.
 *
 * The rows are packed as for an evaluation, so the numbers do not depend on the plan, on the ranks, or on
 * where an earlier pass was stopped. The file has a record for each micro-batch, with a checksum, after a
 * header with the fingerprint of weights, rows, sequence length and micro-batch. A pass that was killed, also
 * by a request to stop, goes on after the last whole record. A run that goes on from a checkpoint of another
 * OUT takes the file from there. The file stays as long as there are checkpoints.
 *
 *     header   "OTREFER1", fingerprint u32, crc u32 of the 12 bytes before
 *     record   crc u32 of the rest, n u32, then 2 n fp32: of the micro-batch's comparisons in order
 *
 * All numbers are little-endian. All ranks call these functions together; rank 0 reads and writes.
 *
 * An evaluation by itself (eval) makes its references anew: by the base of the model's adapters, or by the
 * model of --reference, before it loads the model. Only one of the two is in memory at a time.
 */
#ifndef OT_TRAIN_REFERENCE_H
#define OT_TRAIN_REFERENCE_H

#include "src/train/rows.h"
#include "src/train/run_identity.h"

struct ot_references {
    float *data;     /* [rows of rows->data][2]; NULL: the objective has no reference */
    float *own_eval; /* [rows of rows->own_eval][2]; NULL likewise, or without --eval-data */
};

/* Makes or reads them, once the session is started. With --no-save nothing is kept. If the session was
 * restored from a checkpoint, all must be in the file. Errors: OT_E_INPUT
 * (the file of a restored run is missing or of another run), OT_E_IO, OT_E_BUDGET, OT_E_COMM, as
 * ot_engine_eval. `references` needs ot_references_free in either case. */
int ot_references_make(const struct ot_session *session, const struct ot_rows *rows,
                       const struct ot_run_identity *identity, struct ot_references *references);
/* For eval: opens the reference model, computes the numbers of rows->data, and closes it. session: open, but
 * not planned. Nothing without a reference. Errors: OT_E_USAGE (no model is the reference), OT_E_INPUT (it
 * has fewer tokens), as for a session. */
int ot_references_of_model(const struct ot_session *session, const struct ot_rows *rows,
                           struct ot_references *references);
/* Those of the rows that evaluations use. */
const float *ot_references_of_eval(const struct ot_references *references, const struct ot_rows *rows);
void ot_references_free(struct ot_references *references);
/* Once the run is finished: removes the file, unless `checkpoints` exists, from which a run may go on. */
void ot_references_forget(const char *out, const char *checkpoints);

#endif
