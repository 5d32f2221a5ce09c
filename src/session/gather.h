/* Brings the weights of all ranks to rank 0 for saving, one slab at a time.
 *
 * Rank 0 saves: its gather is the source of the weights. Every other rank serves meanwhile: it takes part
 * in the gathering of each slab that rank 0 asks for, until rank 0 closes its gather. So no rank ever
 * holds more than its own share and one slab. With one rank a gather just reads the engine.
 *
 * The engine's driver thread.
 */
#ifndef OT_SESSION_GATHER_H
#define OT_SESSION_GATHER_H

#include "src/session/parts.h"

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

#endif
