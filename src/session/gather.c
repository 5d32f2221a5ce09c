#include "src/session/gather.h"

#include <stdlib.h>
#include <string.h>

#include "offload/comm/comm.h"
#include "src/base/error.h"
#include "src/session/weights.h"

/* Rank 0 asks the others for a slab, or for one of these. */
enum { SAVED = -1, NOT_SAVED = -2 };

static int ask(struct ot_session *s, int32_t *wanted) {
    return s->comm ? ot_comm_broadcast_host(s->comm, wanted, sizeof *wanted, 0) : 0;
}

int64_t ot_gather_bytes(const struct ot_session *s) {
    const struct ot_chain *chain = ot_model_chain(s->model);
    int64_t most = 0;
    if (!s->comm || ot_comm_rank(s->comm) != 0)
        return 0;
    for (int i = 0; i < chain->n_slabs; i++)
        if (!chain->slabs[i].frozen && chain->slabs[i].n_params > most)
            most = chain->slabs[i].n_params;
    return most * (int64_t)sizeof(float);
}

void ot_gather_open(struct ot_session *session, struct ot_slab_gather *out) {
    *out = (struct ot_slab_gather){.session = session};
}

static int gather_slab(struct ot_slab_gather *c, int slab) {
    const struct ot_slab_spec *about = &ot_model_chain(c->session->model)->slabs[slab];
    int32_t wanted = slab;
    free(c->values);
    c->slab = slab;
    c->values = malloc((size_t)about->n_params * sizeof *c->values);
    if (!c->values)
        return ot_fail(OT_E_BUDGET, "no memory to collect the %lld parameters of %s",
                       (long long)about->n_params, about->name);
    OT_TRY(ask(c->session, &wanted));
    return ot_engine_gather_to_rank0(c->session->engine, OT_SLAB_MASTER, slab, c->values);
}

int ot_gather_values(void *gather, int slab, int64_t first, int64_t n, float *values) {
    struct ot_slab_gather *c = gather;
    if (ot_model_chain(c->session->model)->slabs[slab].frozen)
        return ot_weights_get_frozen(c->session, slab, first, n, values);
    if (!c->session->comm)
        return ot_engine_get(c->session->engine, OT_SLAB_MASTER, slab, first, n, values);
    if (!c->values || c->slab != slab)
        OT_TRY(gather_slab(c, slab));
    memcpy(values, c->values + first, (size_t)n * sizeof *values);
    return 0;
}

int ot_gather_close(struct ot_slab_gather *c, int rc) {
    struct ot_error why;
    int32_t last = rc < 0 ? NOT_SAVED : SAVED;
    free(c->values);
    c->values = NULL;
    ot_error_save(&why, rc);
    int told = ask(c->session, &last);
    return rc < 0 ? ot_error_load(&why) : told;
}

int ot_gather_nothing(struct ot_session *session) {
    struct ot_slab_gather none = {.session = session};
    return ot_gather_close(&none, 0);
}

int ot_gather_serve(struct ot_session *s, bool *saved) {
    int32_t wanted = SAVED;
    do {
        OT_TRY(ask(s, &wanted));
        if (wanted >= 0)
            OT_TRY(ot_engine_gather_to_rank0(s->engine, OT_SLAB_MASTER, wanted, NULL));
    } while (wanted >= 0);
    *saved = wanted == SAVED;
    return 0;
}

int ot_gather_fail(void) {
    return ot_fail(OT_E_COMM, "rank 0 could not save the model");
}
