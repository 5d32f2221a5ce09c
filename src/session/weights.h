/* The weights of a session's engine: filled in from files or at random, gathered for a save, restored.
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

#include "src/session/session.h"

/* All weights. Errors: OT_E_INPUT (a weight is not finite), OT_E_IO, OT_E_BUDGET. */
int ot_weights_fill(struct ot_session *session);
/* The frozen ones, which no checkpoint has, before session->model.restored is read. Errors: as
 * ot_weights_fill; OT_E_INPUT if they are not those that the checkpoint was trained with. */
int ot_weights_fill_frozen(struct ot_session *session);
/* The exact values of a part of one frozen tensor, where ot_weights_fill takes them from; the engine may have
 * rounded them. Needs no engine. Errors: as ot_model_dir_get. */
int ot_weights_get_frozen(const struct ot_session *session, int slab, int64_t first, int64_t n,
                          float *values);

/* ---- the fingerprint of a base ---- */

/* The fingerprint of a base: tells the weights of --model apart from those of another model of the same
 * shape.
 *
 * It is a CRC-32 of a sample of the values: of every tensor some pieces, from its first values to its last.
 * The sample takes a second at most, so a run has it before it reads the weights. Two revisions of a model
 * differ in nearly all values, so in the sample too. If only few values of a model were changed, the sample
 * may miss the change. Where all values are read anyway, a CRC-32 of all of them is compared as well:
 * between the ranks at the start of a run, and of frozen weights whenever a run resumes.
 *
 * The fingerprint depends only on values and on the names of the model's tensors. It is the same for a copy,
 * for other shards, and for another dtype that holds the same values. */

struct ot_model_config;
struct ot_model_dir;

/* Reads the sample. dir: with weights, and without adapters. Errors: as ot_model_dir_check; OT_E_INPUT. */
int ot_base_print_take(const struct ot_model_dir *dir, const struct ot_model_config *config,
                       struct ot_base_print *out);

/* ---- gather ---- */

/* Brings the weights of all ranks to rank 0 for saving, one slab at a time.
 *
 * Rank 0 saves: its gather is the source of the weights. Every other rank serves meanwhile: it takes part
 * in the gathering of each slab that rank 0 asks for, until rank 0 closes its gather. So no rank ever
 * holds more than its own share and one slab. With one rank a gather just reads the engine.
 *
 * The engine's driver thread.
 */

struct ot_slab_gather {
    struct ot_session *session; /* has a drained engine */
    int slab;                   /* the slab in `values`; undefined while `values` is NULL */
    float *values;              /* [n_params] of the slab; NULL: none yet */
};

/* Bytes of the slab that rank 0 holds at a time: the largest, in fp32. 0 on other ranks and with one rank. */
int64_t ot_gather_bytes(const struct ot_session *session);

/* On rank 0. `gather` is the context of ot_gather_values, an ot_param_source (model_dir.h). It frees and
 * gathers a slab whenever another slab is asked for. Errors: OT_E_BUDGET; as ot_engine_gather_to_rank0. */
void ot_gather_open(struct ot_session *session, struct ot_slab_gather *out);
int ot_gather_values(void *gather, int slab, int64_t first, int64_t n, float *values);
/* Ends the serving of the other ranks. rc: the result of the save; the other ranks learn an error. Returns
 * rc, or the error that kept the others from hearing it. */
int ot_gather_close(struct ot_slab_gather *gather, int rc);
/* For a run that saves nothing after all: opens a gather and closes it. Errors: OT_E_COMM. */
int ot_gather_nothing(struct ot_session *session);

/* On every other rank, while rank 0 has a gather: serves until rank 0 closes it. *saved: rank 0 could
 * save. Errors: OT_E_COMM; as ot_engine_gather_to_rank0. */
int ot_gather_serve(struct ot_session *session, bool *saved);
/* The error of a rank that has served in vain: rank 0 knows why. Returns -OT_E_COMM. */
int ot_gather_fail(void);

/* ---- restore ---- */

/* Loads a checkpoint into a session's engine. */

/* Loads session->model.restored through the plan's slots for checkpoints, so that loading takes no more
 * memory than training. Shows its progress on a terminal. Errors: OT_E_INPUT (of another model or dtype;
 * damaged), OT_E_IO, OT_E_DEVICE. */
int ot_session_restore(struct ot_session *session);

#endif
