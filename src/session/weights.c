#include "src/session/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/encoded.h"
#include "models/selection.h"
#include "offload/comm/comm.h"
#include "offload/plan/slabs.h"
#include "src/base/clock.h"
#include "offload/plan/stages.h"
#include "src/base/error.h"
#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/base/minmax.h"
#include "src/base/thread.h"
#include "src/base/units.h"
#include "src/checkpoint/reader.h"
#include "src/files/model_dir.h"
#include "src/session/session_ranks.h"

/* The context of a sink of weights. */
struct filling {
    struct ot_session *session;
    struct ot_slab_encoder *encoder; /* NULL: no slab is encoded */
};

/* The part of [first, first + n) that this rank holds, in units of the slab. n 0: none. */
static struct ot_shard_range held_of(const struct ot_session *s, int slab, int64_t first, int64_t n) {
    struct ot_shard_range held = ot_slab_holding(ot_model_chain(s->model.built), &s->plan.chosen, slab);
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
    return ot_model_has_encoded(s->model.built)
               ? ot_slab_encoder_open(s->model.built, s->machine.pool, set_encoded, s, &out->encoder)
               : 0;
}

/* Every rank encodes the whole slab, because scales of scales depend on all of a matrix. */
static int set_values(const struct filling *f, int slab, int64_t first, int64_t n, const float *values) {
    const struct ot_session *s = f->session;
    if (!ot_slab_is_own(&s->plan.chosen, slab))
        return 0;
    if (ot_slab_is_encoded(ot_model_chain(s->model.built), slab))
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
        ot_pool_run(s->machine.pool, some, CRC_PIECE, take_crc, &job);
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
    uint32_t *crc =
        ot_model_chain(s->model.built)->slabs[slab].frozen ? &s->model.frozen_crc : &s->model.trained_crc;
    *crc = add_to_crc(s, *crc, n, values);
    return set_values(f, slab, first, n, values);
}

static int load(struct ot_session *s, bool frozen_only) {
    struct filling filling;
    OT_TRY(open_filling(s, &filling));
    s->model.has_frozen_crc = ot_model_has_frozen(s->model.built);
    int rc = (frozen_only ? ot_model_dir_load_frozen : ot_model_dir_load)(
        s->model.dir, s->model.built, s->machine.pool, put_values, &filling);
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
    ot_model_init_values(job->session->model.built, (uint64_t)job->session->options->seed, job->slab,
                         job->first + begin, end - begin, job->values + begin);
}

/* Gives new adapters their initial values. */
static int init_adapters(struct ot_session *s) {
    const struct filling filling = {.session = s}; /* adapters are never encoded */
    enum { PIECE = 1 << 16 };
    float *values = malloc(PIECE * sizeof *values);
    int rc = values ? 0 : ot_fail(OT_E_BUDGET, "no memory for the adapters' initial values");
    for (int64_t i = 0; i < ot_model_tensor_count(s->model.built) && rc == 0; i++) {
        const struct ot_tensor *t = ot_model_tensor(s->model.built, i);
        int64_t count = t->rows * t->cols;
        if (!ot_lora_has_tensor(t->name) || ot_model_dir_is_adapted(s->model.dir, t->name))
            continue;
        for (int64_t at = 0, n; at < count && rc == 0; at += n) {
            n = ot_min(count - at, PIECE);
            if (ot_lora_is_of_tokens(t->name))
                ot_model_dir_get_new_rows(s->model.dir, t, at, n, values);
            else
                ot_model_init_values(s->model.built, (uint64_t)s->options->seed, t->slab, t->first + at, n,
                                     values);
            rc = set_values(&filling, t->slab, t->first + at, n, values);
        }
    }
    free(values);
    return rc;
}

/* Returns the range to initialise: this rank's holding, or the whole slab if it is encoded. */
static struct ot_shard_range needed_of(const struct ot_session *s, int slab) {
    const struct ot_chain *chain = ot_model_chain(s->model.built);
    bool whole = ot_slab_is_encoded(chain, slab) && ot_slab_is_own(&s->plan.chosen, slab);
    return whole ? (struct ot_shard_range){0, chain->slabs[slab].n_params}
                 : ot_slab_holding(chain, &s->plan.chosen, slab);
}

/* Fills in the slabs in pieces. With any_weights one piece is computed once and used for all pieces but the
 * last of each slab: the last piece has the norms. values: memory of two pieces. */
static int fill_slabs(const struct filling *f, bool frozen_only, float *values, int64_t piece) {
    enum { CHUNK = 1 << 14 };
    const struct ot_session *s = f->session;
    const struct ot_chain *chain = ot_model_chain(s->model.built);
    float *any = values + piece;
    bool has_any = false;
    for (int slab = 0; slab < chain->n_slabs; slab++) {
        struct ot_shard_range needed = needed_of(s, slab);
        if (frozen_only && !chain->slabs[slab].frozen)
            continue;
        for (int64_t first = needed.first; first < needed.first + needed.n; first += piece) {
            int64_t left = needed.first + needed.n - first, n = ot_min(left, piece);
            bool with_any = s->model.any_weights && n < left;
            struct random_job job = {s, slab, first, with_any ? any : values};
            if (!with_any || !has_any)
                ot_pool_run(s->machine.pool, n, CHUNK, fill_random, &job);
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
    const struct ot_checkpoint_record *record = ot_checkpoint_record(s->model.restored);
    if (!ot_model_has_frozen(s->model.built))
        return 0;
    if (s->options->init == OT_CHOICE_INIT_RANDOM)
        return init_random(s, true);
    OT_TRY(load(s, true));
    if (record->has_frozen && record->frozen_crc == s->model.frozen_crc)
        return 0;
    return ot_fail(OT_E_INPUT,
                   "%s: the frozen weights are not those that this run was trained with (CRC-32 %08x, should "
                   "be %08x); give --model the model with which it began",
                   ot_model_dir_path(s->model.dir), s->model.frozen_crc, record->frozen_crc);
}

int ot_weights_get_frozen(const struct ot_session *s, int slab, int64_t first, int64_t n, float *values) {
    const struct ot_tensor *tensor;
    int64_t i = 0;
    if (s->options->init == OT_CHOICE_INIT_RANDOM) {
        ot_model_init_values(s->model.built, (uint64_t)s->options->seed, slab, first, n, values);
        return 0;
    }
    do
        tensor = ot_model_tensor(s->model.built, i++);
    while (tensor->slab != slab || first >= tensor->first + tensor->rows * tensor->cols);
    return ot_model_dir_get(s->model.dir, tensor, first - tensor->first, n, values);
}

/* ---- the fingerprint of a base ---- */

/* A part of a tensor begins at a multiple of UNIT. The number of pieces is limited, because each may be a
 * read of its own from a slow disk, and models of many experts have ten thousands of tensors. */
enum { UNIT = 256, PIECE = 4 * UNIT, MOST_PIECES = 4, ALL_PIECES = 4096 };

static int64_t count_pieces(const struct ot_model *model) {
    int64_t pieces = ALL_PIECES / ot_model_tensor_count(model);
    return ot_max(ot_min(pieces, MOST_PIECES), 1);
}

/* The first piece begins the tensor, and the last one ends it. A single piece lies in the middle. */
static int sample_tensor(const struct ot_model_dir *dir, const struct ot_tensor *tensor, int64_t pieces,
                         uint32_t *crc) {
    float values[PIECE + UNIT];
    int64_t count = tensor->rows * tensor->cols, last = count > PIECE ? (count - PIECE) / UNIT * UNIT : 0;
    *crc = ot_crc32(*crc, tensor->name, strlen(tensor->name) + 1);
    for (int64_t i = 0, end = 0; i < pieces && end < count; i++) {
        int64_t at = pieces == 1 ? last / 2 : last / (pieces - 1) * i;
        at = i > 0 && i == pieces - 1 ? last : at / UNIT * UNIT;
        int64_t n = count - at < PIECE + UNIT ? count - at : PIECE;
        OT_TRY(ot_model_dir_get(dir, tensor, at, n, values));
        *crc = ot_crc32(*crc, values, (size_t)n * sizeof *values);
        end = at + n;
    }
    return 0;
}

int ot_base_print_take(const struct ot_model_dir *dir, const struct ot_model_config *config,
                       struct ot_base_print *out) {
    static const struct ot_selection all = {0};
    struct ot_model *model;
    uint32_t crc = 0;
    int rc = 0;
    OT_TRY(ot_model_open_selected(config, OT_F32, 1, &all, &model));
    int64_t pieces = count_pieces(model);
    for (int64_t i = 0; i < ot_model_tensor_count(model) && rc == 0; i++)
        rc = sample_tensor(dir, ot_model_tensor(model, i), pieces, &crc);
    if (rc == -OT_E_INPUT) { /* the check says more: how many tensors do not fit */
        int checked = ot_model_dir_check(dir, model);
        rc = checked < 0 ? checked : rc;
    }
    ot_model_close(model);
    *out = (struct ot_base_print){.is_known = rc == 0, .sample = crc};
    return rc;
}

/* ---- gather ---- */

/* Rank 0 asks the others for a slab, or for one of these. */
enum { SAVED = -1, NOT_SAVED = -2 };

static int ask(struct ot_session *s, int32_t *wanted) {
    return s->ranks.comm ? ot_comm_broadcast_host(s->ranks.comm, wanted, sizeof *wanted, 0) : 0;
}

int64_t ot_gather_bytes(const struct ot_session *s) {
    const struct ot_chain *chain = ot_model_chain(s->model.built);
    int64_t most = 0;
    if (!s->ranks.comm || ot_comm_rank(s->ranks.comm) != 0)
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
    const struct ot_slab_spec *about = &ot_model_chain(c->session->model.built)->slabs[slab];
    int32_t wanted = slab;
    free(c->values);
    c->slab = slab;
    c->values = malloc((size_t)about->n_params * sizeof *c->values);
    if (!c->values)
        return ot_fail(OT_E_BUDGET, "no memory to gather the %lld parameters of %s",
                       (long long)about->n_params, about->name);
    OT_TRY(ask(c->session, &wanted));
    return ot_engine_gather_to_rank0(c->session->engine, OT_SLAB_MASTER, slab, c->values);
}

int ot_gather_values(void *gather, int slab, int64_t first, int64_t n, float *values) {
    struct ot_slab_gather *c = gather;
    if (ot_model_chain(c->session->model.built)->slabs[slab].frozen)
        return ot_weights_get_frozen(c->session, slab, first, n, values);
    if (!c->session->ranks.comm)
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

/* ---- restore ---- */

static int check_model(const struct ot_session *s) {
    const struct ot_chain *chain = ot_model_chain(s->model.built);
    const struct ot_manifest *manifest = ot_checkpoint_manifest(s->model.restored);
    const char *dir = ot_checkpoint_dir(s->model.restored);
    if (manifest->dtype != chain->dtype)
        return ot_fail(
            OT_E_INPUT, "%s: the checkpoint was trained in %s and this run uses %s. Give --dtype %s", dir,
            ot_dtype_name(manifest->dtype), ot_dtype_name(chain->dtype), ot_dtype_name(manifest->dtype));
    return ot_manifest_check_model(manifest, chain, dir);
}

/* The run goes on in another format of the moments only if the user asked for it. Warns of the effect. */
static int check_format(const struct ot_session *s, enum ot_state_format was) {
    enum ot_state_format is = ot_model_chain(s->model.built)->state;
    const char *dir = ot_checkpoint_dir(s->model.restored);
    if (was == is)
        return 0;
    if (s->options->exact)
        return ot_fail(OT_E_USAGE,
                       "%s has its optimizer state in %s, and this run uses --state %s: --exact resumes only "
                       "with the same format",
                       dir, ot_state_format_name(was), ot_state_format_name(is));
    ot_log(
        OT_LOG_WARN,
        "%s has its optimizer state in %s, which is converted to %s: from now on, losses and weights differ "
        "from those of a run that keeps %s",
        dir, ot_state_format_name(was), ot_state_format_name(is), ot_state_format_name(was));
    return 0;
}

/* The same for fp32 masters that the run gives up or takes up. */
static int check_masters(const struct ot_session *s, enum ot_masters was) {
    enum ot_masters is = ot_model_chain(s->model.built)->masters;
    const char *dir = ot_checkpoint_dir(s->model.restored);
    if (was == is)
        return 0;
    if (s->options->exact)
        return ot_fail(OT_E_USAGE,
                       "%s was made with --master-weights %s, and this run uses --master-weights %s: --exact "
                       "resumes only with the same",
                       dir, ot_masters_name(was), ot_masters_name(is));
    ot_log(OT_LOG_WARN,
           "%s has %s: from now on, losses and weights differ from those of a run that keeps "
           "--master-weights %s",
           dir,
           is == OT_MASTERS_NONE ? "fp32 master weights, which this run drops"
                                 : "no fp32 master weights, so they begin as its bf16 weights",
           ot_masters_name(was));
    return 0;
}

static int check_state(const struct ot_session *s) {
    struct ot_segment was = ot_manifest_state(ot_checkpoint_manifest(s->model.restored));
    if (!was.lacks_moments)
        OT_TRY(check_format(s, was.state));
    return check_masters(s, was.masters);
}

static bool wants_segment(void *context, const struct ot_segment *segment) {
    return ot_engine_holds(context, segment);
}

static int put_segment(void *context, const struct ot_segment *segment, const void *memory) {
    return ot_engine_put(context, segment, memory);
}

static void show_progress(void *context, int64_t bytes, int64_t total) {
    char line[160], so_far[OT_TEXT_BYTES], all[OT_TEXT_BYTES];
    snprintf(line, sizeof line, "reading the checkpoint: %s of %s", ot_text_bytes(bytes, so_far),
             ot_text_bytes(total, all));
    ot_log_set_status(line);
    (void)context;
}

/* The bytes of the segments that this rank reads. */
static int64_t count_bytes(const struct ot_session *s) {
    const struct ot_manifest *manifest = ot_checkpoint_manifest(s->model.restored);
    int64_t bytes = 0;
    for (int64_t i = 0; i < manifest->n_segments; i++) {
        const struct ot_manifest_segment *segment = &manifest->segments[i];
        if (segment->n_spans > 0 && ot_engine_holds(s->engine, &segment->segment))
            bytes += (int64_t)ot_segment_padded_bytes(manifest->dtype, &segment->segment);
    }
    return bytes;
}

static void print_time(const struct ot_session *s) {
    char size[OT_TEXT_BYTES], time[OT_TEXT_BYTES], rate[OT_TEXT_BYTES];
    int64_t bytes = count_bytes(s);
    ot_log(OT_LOG_INFO, "restore %s in %s (%s/s)", ot_text_bytes(bytes, size),
           ot_text_seconds(s->model.restore_seconds, time),
           ot_text_bytes((int64_t)((double)bytes / fmax(s->model.restore_seconds, 1e-6)), rate));
}

/* More threads do not make a restore faster: each takes checksums and copies at several GB/s. */
enum { MOST_THREADS = 4 };

int ot_session_restore(struct ot_session *s) {
    int threads = (int)s->options->threads;
    struct ot_checkpoint_read read = {.io_engine = (enum ot_io_choice)s->options->io_engine,
                                      .threads = threads < 2 ? 0 : ot_min(threads, MOST_THREADS),
                                      .sink = put_segment,
                                      .context = s->engine,
                                      .wants = wants_segment,
                                      .progress =
                                          s->options->quiet || !ot_is_rank0(s) ? NULL : show_progress};
    OT_TRY(check_model(s));
    OT_TRY(check_state(s));
    read.memory = ot_engine_snapshot_slots(s->engine, &read.n_slots);
    double begun = ot_clock_seconds();
    int rc = ot_checkpoint_read(s->model.restored, &read);
    if (rc == 0)
        rc = ot_engine_unstage(s->engine);
    s->model.restore_seconds = ot_clock_seconds() - begun;
    ot_log_set_status("");
    OT_TRY(rc);
    ot_engine_set_progress(s->engine, &ot_checkpoint_record(s->model.restored)->progress);
    print_time(s);
    return 0;
}
