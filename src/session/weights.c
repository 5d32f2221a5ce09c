#include "src/session/weights.h"

#include <stdlib.h>

#include "models/selection.h"
#include "offload/plan/slabs.h"
#include "src/base/crc32.h"
#include "src/base/error.h"
#include "src/base/pool.h"
#include "src/checkpoint/reader.h"

/* Sets the part of the values that this rank holds. The checksum covers all values of frozen slabs. */
static int put_values(void *context, int slab, int64_t first, int64_t n, const float *values) {
    struct ot_session *s = context;
    if (ot_model_chain(s->model)->slabs[slab].frozen)
        s->frozen_crc = ot_crc32(s->frozen_crc, values, (size_t)n * sizeof *values);
    struct ot_shard_range held = ot_slab_holding(ot_model_chain(s->model), &s->plan, slab);
    int64_t from = first > held.first ? first : held.first, end = first + n, held_end = held.first + held.n;
    end = end < held_end ? end : held_end;
    return from >= end
               ? 0
               : ot_engine_set(s->engine, OT_SLAB_MASTER, slab, from, end - from, values + (from - first));
}

struct random_job {
    const struct ot_session *session;
    int slab;
    int64_t first;
    float *values;
};

static void fill_random(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    const struct random_job *job = context;
    (void)chunk, (void)worker;
    ot_model_init_values(job->session->model, (uint64_t)job->session->options->seed, job->slab,
                         job->first + begin, end - begin, job->values + begin);
}

/* Gives new adapters their initial values. */
static int init_adapters(struct ot_session *s) {
    enum { PIECE = 1 << 16 };
    float *values = malloc(PIECE * sizeof *values);
    int rc = values ? 0 : ot_fail(OT_E_BUDGET, "no memory for the adapters' initial values");
    for (int64_t i = 0; i < ot_model_tensor_count(s->model) && rc == 0; i++) {
        const struct ot_tensor *t = ot_model_tensor(s->model, i);
        int64_t count = t->rows * t->cols;
        if (!ot_lora_has_tensor(t->name) || ot_model_dir_is_adapted(s->dir, t->name))
            continue;
        for (int64_t at = 0, n; at < count && rc == 0; at += n) {
            n = count - at < PIECE ? count - at : PIECE;
            ot_model_init_values(s->model, (uint64_t)s->options->seed, t->slab, t->first + at, n, values);
            rc = put_values(s, t->slab, t->first + at, n, values);
        }
    }
    free(values);
    return rc;
}

/* Fills in a slab in pieces. With any_weights one piece is computed once and used for all pieces but the last
 * of each slab: the last piece has the norms. */
static int init_random(struct ot_session *s, bool frozen_only) {
    enum { PIECE = 1 << 20, CHUNK = 1 << 14 };
    const struct ot_chain *chain = ot_model_chain(s->model);
    float *values = malloc(2 * PIECE * sizeof *values), *any = values + PIECE;
    bool has_any = false;
    if (!values)
        return ot_fail(OT_E_BUDGET, "no memory for random weights");
    int rc = 0;
    for (int slab = 0; slab < chain->n_slabs && rc == 0; slab++) {
        struct ot_shard_range held = ot_slab_holding(chain, &s->plan, slab);
        if (frozen_only && !chain->slabs[slab].frozen)
            continue;
        for (int64_t first = held.first; first < held.first + held.n && rc == 0; first += PIECE) {
            int64_t left = held.first + held.n - first, n = left < PIECE ? left : PIECE;
            bool with_any = s->any_weights && n < left;
            struct random_job job = {s, slab, first, with_any ? any : values};
            if (!with_any || !has_any)
                ot_pool_run(s->pool, n, CHUNK, fill_random, &job);
            has_any = has_any || with_any;
            rc = ot_engine_set(s->engine, OT_SLAB_MASTER, slab, first, n, job.values);
        }
    }
    free(values);
    return rc;
}

/* ---- all, or the frozen ones ---- */

int ot_weights_fill(struct ot_session *s) {
    if (s->options->init == OT_CHOICE_INIT_RANDOM)
        return init_random(s, false);
    s->has_frozen_crc = ot_model_has_frozen(s->model);
    OT_TRY(ot_model_dir_load(s->dir, s->model, s->pool, put_values, s));
    return init_adapters(s);
}

int ot_weights_fill_frozen(struct ot_session *s) {
    const struct ot_checkpoint_record *record = ot_checkpoint_record(s->restored);
    if (!ot_model_has_frozen(s->model))
        return 0;
    if (s->options->init == OT_CHOICE_INIT_RANDOM)
        return init_random(s, true);
    s->has_frozen_crc = true;
    OT_TRY(ot_model_dir_load_frozen(s->dir, s->model, s->pool, put_values, s));
    if (record->has_frozen && record->frozen_crc == s->frozen_crc)
        return 0;
    return ot_fail(OT_E_INPUT,
                   "%s: the frozen weights are not those that this run was trained with (CRC-32 %08x, should "
                   "be %08x); give --model the model with which it began",
                   ot_model_dir_path(s->dir), s->frozen_crc, record->frozen_crc);
}

int ot_weights_get_frozen(const struct ot_session *s, int slab, int64_t first, int64_t n, float *values) {
    const struct ot_tensor *tensor;
    int64_t i = 0;
    if (s->options->init == OT_CHOICE_INIT_RANDOM) {
        ot_model_init_values(s->model, (uint64_t)s->options->seed, slab, first, n, values);
        return 0;
    }
    do
        tensor = ot_model_tensor(s->model, i++);
    while (tensor->slab != slab || first >= tensor->first + tensor->rows * tensor->cols);
    return ot_model_dir_get(s->dir, tensor, first - tensor->first, n, values);
}
