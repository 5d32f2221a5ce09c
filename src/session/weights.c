#include "src/session/weights.h"

#include <stdlib.h>

#include "models/encoded.h"
#include "models/selection.h"
#include "offload/plan/slabs.h"
#include "src/base/crc32.h"
#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/pool.h"
#include "src/checkpoint/reader.h"

/* The context of a sink of weights. */
struct filling {
    struct ot_session *session;
    struct ot_slab_encoder *encoder; /* NULL: no slab is encoded */
};

/* The part of [first, first + n) that this rank holds, in units of the slab. n 0: none. */
static struct ot_shard_range held_of(const struct ot_session *s, int slab, int64_t first, int64_t n) {
    struct ot_shard_range held = ot_slab_holding(ot_model_chain(s->model), &s->plan, slab);
    int64_t from = ot_max(first, held.first), end = first + n, held_end = held.first + held.n;
    end = ot_min(end, held_end);
    return (struct ot_shard_range){from, end > from ? end - from : 0};
}

static int set_encoded(void *context, int slab, int64_t first, int64_t n, const void *bytes) {
    const struct ot_session *s = context;
    struct ot_shard_range held = held_of(s, slab, first, n);
    const char *from = (const char *)bytes + (held.first - first) * OT_ENCODED_UNIT;
    return held.n > 0 ? ot_engine_set_encoded(s->engine, slab, held.first, held.n, from) : 0;
}

static int open_filling(struct ot_session *s, struct filling *out) {
    *out = (struct filling){.session = s};
    return ot_model_has_encoded(s->model)
               ? ot_slab_encoder_open(s->model, s->pool, set_encoded, s, &out->encoder)
               : 0;
}

/* Every rank encodes the whole slab, because scales of scales depend on all of a matrix. */
static int set_values(const struct filling *f, int slab, int64_t first, int64_t n, const float *values) {
    const struct ot_session *s = f->session;
    if (ot_slab_is_encoded(ot_model_chain(s->model), slab))
        return ot_slab_encoder_put(f->encoder, slab, first, n, values);
    struct ot_shard_range held = held_of(s, slab, first, n);
    return held.n > 0 ? ot_engine_set(s->engine, OT_SLAB_MASTER, slab, held.first, held.n,
                                      values + (held.first - first))
                      : 0;
}

/* ---- from files ---- */

enum { CRC_PIECE = 1 << 16, CRC_PIECES = 32 };

struct crc_job {
    const float *values;
    uint32_t crcs[CRC_PIECES];
};

static void take_crc(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    struct crc_job *job = context;
    (void)worker;
    job->crcs[chunk] = ot_crc32(0, job->values + begin, (size_t)(end - begin) * sizeof(float));
}

/* The checksum continued with values, on the session's threads: a single thread is slower than a good disk.
 */
static uint32_t add_to_crc(const struct ot_session *s, uint32_t crc, int64_t n, const float *values) {
    for (int64_t at = 0, some; at < n; at += some) {
        struct crc_job job = {.values = values + at};
        some = ot_min(n - at, CRC_PIECE * CRC_PIECES);
        ot_pool_run(s->pool, some, CRC_PIECE, take_crc, &job);
        for (int64_t i = 0, left = some; left > 0; i++, left -= CRC_PIECE)
            crc = ot_crc32_combine(crc, job.crcs[i], (size_t)ot_min(left, CRC_PIECE) * sizeof(float));
    }
    return crc;
}

/* The checksums cover all values of frozen and of trained slabs, as the files have them. Every rank reads all
 * values, and keeps its holding. */
static int put_values(void *context, int slab, int64_t first, int64_t n, const float *values) {
    const struct filling *f = context;
    struct ot_session *s = f->session;
    uint32_t *crc = ot_model_chain(s->model)->slabs[slab].frozen ? &s->frozen_crc : &s->trained_crc;
    *crc = add_to_crc(s, *crc, n, values);
    return set_values(f, slab, first, n, values);
}

static int load(struct ot_session *s, bool frozen_only) {
    struct filling filling;
    OT_TRY(open_filling(s, &filling));
    s->has_frozen_crc = ot_model_has_frozen(s->model);
    int rc = (frozen_only ? ot_model_dir_load_frozen : ot_model_dir_load)(s->dir, s->model, s->pool,
                                                                          put_values, &filling);
    ot_slab_encoder_close(filling.encoder);
    return rc;
}

/* ---- at random ---- */

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
    const struct filling filling = {.session = s}; /* adapters are never encoded */
    enum { PIECE = 1 << 16 };
    float *values = malloc(PIECE * sizeof *values);
    int rc = values ? 0 : ot_fail(OT_E_BUDGET, "no memory for the adapters' initial values");
    for (int64_t i = 0; i < ot_model_tensor_count(s->model) && rc == 0; i++) {
        const struct ot_tensor *t = ot_model_tensor(s->model, i);
        int64_t count = t->rows * t->cols;
        if (!ot_lora_has_tensor(t->name) || ot_model_dir_is_adapted(s->dir, t->name))
            continue;
        for (int64_t at = 0, n; at < count && rc == 0; at += n) {
            n = ot_min(count - at, PIECE);
            ot_model_init_values(s->model, (uint64_t)s->options->seed, t->slab, t->first + at, n, values);
            rc = set_values(&filling, t->slab, t->first + at, n, values);
        }
    }
    free(values);
    return rc;
}

/* Returns the range to initialise: this rank's holding, or the whole slab if it is encoded. */
static struct ot_shard_range needed_of(const struct ot_session *s, int slab) {
    const struct ot_chain *chain = ot_model_chain(s->model);
    return ot_slab_is_encoded(chain, slab) ? (struct ot_shard_range){0, chain->slabs[slab].n_params}
                                           : ot_slab_holding(chain, &s->plan, slab);
}

/* Fills in the slabs in pieces. With any_weights one piece is computed once and used for all pieces but the
 * last of each slab: the last piece has the norms. values: memory of two pieces. */
static int fill_slabs(const struct filling *f, bool frozen_only, float *values, int64_t piece) {
    enum { CHUNK = 1 << 14 };
    const struct ot_session *s = f->session;
    const struct ot_chain *chain = ot_model_chain(s->model);
    float *any = values + piece;
    bool has_any = false;
    for (int slab = 0; slab < chain->n_slabs; slab++) {
        struct ot_shard_range needed = needed_of(s, slab);
        if (frozen_only && !chain->slabs[slab].frozen)
            continue;
        for (int64_t first = needed.first; first < needed.first + needed.n; first += piece) {
            int64_t left = needed.first + needed.n - first, n = ot_min(left, piece);
            bool with_any = s->any_weights && n < left;
            struct random_job job = {s, slab, first, with_any ? any : values};
            if (!with_any || !has_any)
                ot_pool_run(s->pool, n, CHUNK, fill_random, &job);
            has_any = has_any || with_any;
            OT_TRY(set_values(f, slab, first, n, job.values));
        }
    }
    return 0;
}

static int init_random(struct ot_session *s, bool frozen_only) {
    enum { PIECE = 1 << 20 };
    struct filling filling = {0};
    float *values = malloc(2 * PIECE * sizeof *values);
    int rc;
    if (!values)
        return ot_fail(OT_E_BUDGET, "no memory for random weights");
    OT_TRY_GOTO(open_filling(s, &filling), rc, out);
    rc = fill_slabs(&filling, frozen_only, values, PIECE);
out:
    ot_slab_encoder_close(filling.encoder);
    free(values);
    return rc;
}

/* ---- all, or the frozen ones ---- */

int ot_weights_fill(struct ot_session *s) {
    if (s->options->init == OT_CHOICE_INIT_RANDOM)
        return init_random(s, false);
    OT_TRY(load(s, false));
    return init_adapters(s);
}

int ot_weights_fill_frozen(struct ot_session *s) {
    const struct ot_checkpoint_record *record = ot_checkpoint_record(s->restored);
    if (!ot_model_has_frozen(s->model))
        return 0;
    if (s->options->init == OT_CHOICE_INIT_RANDOM)
        return init_random(s, true);
    OT_TRY(load(s, true));
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
