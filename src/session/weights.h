/* Fills in the weights of a session's engine, from the model's files or at random.
 *
 * The session's threads encode frozen slabs of a base type (models/encoded.h) while they load: besides the
 * engine's memory this takes one matrix at a time (ot_slab_encoder_bytes).
 *
 * FROZEN WEIGHTS OF A RESULT are exactly those of the base's files, in any form of the engine: a result of
 * bf16 training has an fp32 base's fp32 weights, and one that was trained over an NF4 base has the weights
 * before quantisation. Opening such a result with the same base type gives the run's codes, and so the
 * trained function, bit for bit. */
#ifndef OT_SESSION_WEIGHTS_H
#define OT_SESSION_WEIGHTS_H

#include "src/session/parts.h"

/* All weights. Errors: OT_E_INPUT (a weight is not finite), OT_E_IO, OT_E_BUDGET. */
int ot_weights_fill(struct ot_session *session);
/* The frozen ones, which no checkpoint has, before session->restored is read. Errors: as ot_weights_fill;
 * OT_E_INPUT if they are not those that the checkpoint was trained with. */
int ot_weights_fill_frozen(struct ot_session *session);
/* The exact values of a part of one frozen tensor, where ot_weights_fill takes them from; the engine may have
 * rounded them. Needs no engine. Errors: as ot_model_dir_get. */
int ot_weights_get_frozen(const struct ot_session *session, int slab, int64_t first, int64_t n,
                          float *values);

#endif
