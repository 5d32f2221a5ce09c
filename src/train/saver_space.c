/* The saver's requirements (slots and kept data of the plan, disk space, time), and the parts of ranks. */
#include <math.h>
#include <stdlib.h>

#include "offload/engine/snapshot.h"
#include "offload/plan/stages.h"
#include "src/base/log.h"
#include "src/base/minmax.h"
#include "src/base/units.h"
#include "src/checkpoint/catalog.h"
#include "src/checkpoint/writer.h"
#include "src/files/safetensors.h"
#include "src/session/session_ranks.h"
#include "src/train/disk_reserve.h"
#include "src/train/out_name.h"
#include "src/train/saver_state.h"

/* Enough slots that the disk always has queued writes while a segment is copied. Fewer for a model that is
 * small compared with the slots. */
enum { MOST_SLOTS = 16, LEAST_SLOTS = 2, STATE_SHARE = 32 };
/* Flushes of a checkpoint, one after the other: record, state, manifest, its directory, the parent directory.
 * And flushes of a model with one shard and seven small files. */
enum { CHECKPOINT_FLUSHES = 5, MODEL_FLUSHES = 11 };
/* ---- needs of a plan ---- */

int ot_saver_slots(int64_t params, enum ot_dtype dtype) {
    struct ot_segment all = {.n = params, .has_state = true, .has_weights = true};
    size_t slots = ot_segment_bytes(dtype, &all) / STATE_SHARE / ot_segment_slot_bytes(dtype);
    return slots < LEAST_SLOTS ? LEAST_SLOTS : slots > MOST_SLOTS ? MOST_SLOTS : (int)slots;
}

/* The complete checkpoints that stay, and the one being made. */
int ot_saver_pinned_contents(const struct ot_session *s, const char *parent) {
    int64_t contents = s->options->keep + 1;
    if (s->machine.store.n_dirs == 0 || s->machine.store.no_verify || contents > OT_PLAN_MAX_PINNED_CONTENTS)
        return 0;
    for (int i = 0; i < s->machine.store.n_dirs; i++)
        if (!ot_checkpoint_can_refer(parent, s->machine.store.dirs[i].path))
            return 0;
    return (int)contents;
}

void ot_saver_own_bytes(const struct ot_session *s, int64_t *copied, int64_t *referred) {
    const struct ot_chain *chain = ot_model_chain(s->model.built);
    *copied = *referred = 0;
    for (int i = 0; i < chain->n_slabs; i++) {
        if (chain->slabs[i].frozen)
            continue;
        bool refers = s->plan.chosen.pinned_contents > 0;
        bool state = refers && s->plan.chosen.slabs[i].state == OT_HOME_NVME; /* off the GPU */
        bool weights = refers && s->plan.chosen.slabs[i].weights == OT_HOME_NVME;
        int64_t held = ot_slab_holding(chain, &s->plan.chosen, i).n;
        int64_t off = ot_slab_state_off_gpu(chain, &s->plan.chosen, i).n;
        const struct ot_segment segments[] = {ot_segment_of(chain, true, false, state ? off : 0),
                                              ot_segment_of(chain, false, true, weights ? held : 0),
                                              ot_segment_of(chain, true, false, state ? held - off : 0),
                                              ot_segment_of(chain, !state, !weights, held)};
        for (int segment = 0; segment < 4; segment++)
            *(segment < 2 ? referred : copied) +=
                (int64_t)ot_segment_padded_bytes(chain->dtype, &segments[segment]);
    }
}

int64_t ot_saver_own_best_bytes(const struct ot_session *s) {
    const struct ot_chain *chain = ot_model_chain(s->model.built);
    int64_t bytes = 0;
    for (int i = 0; i < chain->n_slabs; i++) {
        struct ot_segment held =
            ot_segment_of(chain, true, true, ot_slab_holding(chain, &s->plan.chosen, i).n);
        held.lacks_moments = true;
        bytes += chain->slabs[i].frozen ? 0 : (int64_t)ot_segment_padded_bytes(chain->dtype, &held);
    }
    return bytes;
}

/* The ranks that write a part of each checkpoint. */
static int count_writers(const struct ot_session *s) {
    return ot_plan_is_divided(&s->plan.chosen) ? ot_shard_ranks(&s->plan.chosen.shard) : 1;
}

int64_t ot_saver_best_bytes(const struct ot_session *s) {
    return ot_saver_own_best_bytes(s) * count_writers(s);
}

void ot_saver_bytes(const struct ot_session *s, int64_t *copied, int64_t *referred) {
    ot_saver_own_bytes(s, copied, referred);
    *copied *= count_writers(s);
    *referred *= count_writers(s);
}

/* ---- space ---- */

/* Without regular saves no space is reserved: a checkpoint may never be made. */
bool ot_saver_is_regular(const struct ot_options *o) {
    return o->save_every.seconds > 0 || o->save_every.steps > 0 || o->save_every.epoch || o->save_end;
}

/* What a directory has, or still needs. */
struct contents {
    int64_t whole, best; /* checkpoints, and best states */
};

/* Finds what is still to come: all that stays and the next checkpoint, less what is there. A best state that
 * is being made takes the place of that checkpoint. Adds up the bytes of it and of the model. */
static struct contents find_wanted(const struct ot_saver *sv, struct contents there, int64_t *bytes) {
    const struct ot_session *s = sv->config.session;
    int64_t copied, referred;
    ot_saver_own_bytes(s, &copied, &referred);
    int64_t best = ot_saver_own_best_bytes(s);
    int parts = !ot_plan_is_divided(&s->plan.chosen) ? 1
                : sv->config.sharing->is_local       ? sv->config.sharing->sharers
                                                     : count_writers(s);
    bool best_under_way = sv->under_way && sv->is_best_under_way;
    struct contents wanted = {
        .whole = ot_max(s->options->keep + 1 - there.whole - (sv->under_way && !best_under_way), 0),
        .best = sv->keeps_best - there.best - best_under_way};
    *bytes = ot_max(wanted.whole * copied + wanted.best * best, 0) * parts + sv->config.model_bytes;
    return wanted;
}

static int count_in(const char *parent, int64_t *n) {
    struct ot_checkpoint_list list;
    OT_TRY(ot_checkpoint_list_make(parent, &list));
    *n = list.n;
    ot_checkpoint_list_free(&list);
    return 0;
}

static int count_contents(const char *parent, struct contents *out) {
    char *best;
    OT_TRY(count_in(parent, &out->whole));
    OT_TRY(ot_checkpoint_best_parent(parent, &best));
    int rc = count_in(best, &out->best);
    free(best);
    return rc;
}

static int fail_space(const struct ot_saver *sv, struct contents wanted, int64_t bytes, int64_t have) {
    char need[OT_TEXT_BYTES], left[OT_TEXT_BYTES];
    return ot_fail(OT_E_IO,
                   "%s: %s are needed for the model%s %lld checkpoint%s at a time%s, but only %s are free: "
                   "make room, choose another --out, or use --save-every never",
                   sv->parent, ot_text_bytes(bytes, need), wanted.best > 0 ? "," : " and",
                   (long long)wanted.whole, wanted.whole == 1 ? "" : "s",
                   wanted.best > 0 ? " and the best state" : "", ot_text_bytes(have, left));
}

int ot_saver_check_space(const struct ot_saver_config *config) {
    int64_t copied, referred;
    ot_saver_bytes(config->session, &copied, &referred);
    OT_TRY(ot_disk_check_file_size("a checkpoint of this run", copied + referred));
    OT_TRY(ot_disk_check_file_size("the model", ot_min(config->model_bytes, OT_SHARD_BYTES)));
    struct ot_saver sv = {.config = *config, .parent = (char *)config->parent}; /* only read */
    struct contents there = {0};
    int64_t bytes, have = ot_disk_free(config->parent);
    if (have < 0 || !ot_saver_is_regular(config->session->options))
        return 0;
    if (config->is_own) /* another run's checkpoints stay until this run has its first one */
        OT_TRY(count_contents(config->parent, &there));
    have += ot_disk_reserved(config->parent);
    struct contents wanted = find_wanted(&sv, there, &bytes);
    return have < bytes ? fail_space(&sv, wanted, bytes, have) : 0;
}

int ot_saver_hold_space(struct ot_saver *sv) {
    struct contents there;
    int64_t bytes;
    if (!ot_saver_is_regular(sv->config.session->options))
        return 0;
    OT_TRY(count_contents(sv->parent, &there));
    struct contents wanted = find_wanted(sv, there, &bytes);
    int rc = ot_disk_reserve(sv->parent, bytes);
    return rc == 1 ? fail_space(sv, wanted, bytes, ot_disk_free(sv->parent)) : rc;
}

int ot_saver_hold_first_space(struct ot_saver *sv) {
    const struct ot_options *options = sv->config.session->options;
    sv->keeps_best = sv->config.evaluates || sv->best_step >= 0;
    int rc = ot_saver_hold_space(sv);
    if (rc == 0 || !sv->keeps_best)
        return rc;
    if (ot_options_given_now(options, "result") && options->result == OT_CHOICE_RESULT_BEST)
        return ot_fail_context(rc, "--result best");
    sv->keeps_best = false;
    OT_TRY(ot_saver_hold_space(sv));
    ot_log(
        OT_LOG_WARN,
        "%s: there is no room to keep the best state beside the newest checkpoint, so the result will be the "
        "model of the last step",
        sv->parent);
    return 0;
}

void ot_saver_release_space(const char *parent) {
    (void)ot_disk_reserve(parent, 0);
}

/* ---- time ---- */

double ot_saver_seconds(const struct ot_saver *sv) {
    return fmax(sv->seconds, CHECKPOINT_FLUSHES * sv->flush_seconds);
}

double ot_saver_model_seconds(const struct ot_saver *sv, int64_t bytes) {
    int64_t copied, referred;
    ot_saver_own_bytes(sv->config.session, &copied, &referred);
    double writing = copied > 0 ? sv->seconds * (double)bytes / (double)copied : sv->seconds;
    return writing + MODEL_FLUSHES * sv->flush_seconds;
}

/* ---- joining the parts of a checkpoint that the ranks have written ---- */

/* Brings the parts of one rank to rank 0. `rc`: rank 0's error so far; it still takes part. */
static int join_rank(struct ot_saver *sv, int from, unsigned char *local, size_t own_bytes, int *rc) {
    unsigned char *bytes = local;
    size_t n = own_bytes;
    int handed = ot_session_ranks_hand(sv->config.session, from, &bytes, &n);
    if (handed == 0 && sv->is_rank0 && *rc == 0)
        *rc = ot_checkpoint_writer_add(sv->writer, bytes, n);
    if (bytes != local)
        free(bytes);
    return handed;
}

/* Hands the manifest of all parts to the ranks that lead in other directories. `rc`: as above. */
static int spread(struct ot_saver *sv, int *rc) {
    unsigned char *bytes = NULL;
    size_t n = 0;
    if (sv->is_rank0 && *rc == 0)
        *rc = ot_checkpoint_writer_share(sv->writer, &bytes, &n);
    int handed = ot_session_ranks_hand(sv->config.session, 0, &bytes, &n);
    if (handed == 0 && n > 0 && sv->leads && !sv->is_rank0)
        *rc = ot_checkpoint_writer_take(sv->writer, bytes, n);
    free(bytes);
    return handed;
}

int ot_saver_join(struct ot_saver *sv, int rc) {
    struct ot_session *s = sv->config.session;
    unsigned char *local = NULL;
    size_t n = 0;
    if (!ot_plan_is_divided(&s->plan.chosen)) /* each leader has written everything */
        return ot_session_ranks_agree(s, rc);
    if (rc == 0 && !sv->is_rank0)
        rc = ot_checkpoint_writer_share(sv->writer, &local, &n);
    OT_TRY_GOTO(ot_session_ranks_agree(s, rc), rc, out);
    int joined = 0;
    for (int from = 1; from < s->plan.chosen.shard.ranks; from++)
        OT_TRY_GOTO(join_rank(sv, from, local, n, &joined), rc, out);
    if (sv->is_local) {
        OT_TRY_GOTO(spread(sv, &joined), rc, out);
        OT_TRY_GOTO(ot_session_ranks_agree(s, joined), rc,
                    out); /* before the first directory has the checkpoint */
    }
    if (sv->leads && joined == 0)
        joined = ot_checkpoint_writer_seal(sv->writer);
    rc = ot_session_ranks_agree(s, joined);
out:
    free(local);
    return rc;
}
