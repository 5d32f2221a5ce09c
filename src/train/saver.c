/* The saver's states and transitions (saver.h). */
#include "src/train/saver_state.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "offload/engine/snapshot.h"
#include "src/base/clock.h"
#include "offload/plan/stages.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/memory.h"
#include "src/base/signals.h"
#include "src/base/minmax.h"
#include "src/base/text.h"
#include "src/base/units.h"
#include "src/checkpoint/catalog.h"
#include "src/checkpoint/writer.h"
#include "src/session/session_ranks.h"
#include "src/train/disk_reserve.h"
#include "src/train/out_name.h"

/* A paced checkpoint is copied during this share of a step: forward and backward. Updates come afterwards and
 * would have to wait for the copying. */
static const double paced_share = 0.6;

/* ---- when ---- */

int64_t ot_saver_next_step(const struct ot_saver *sv, int64_t done) {
    const struct ot_every *every = &sv->config.session->options->save_every;
    const struct ot_run_shape *shape = sv->config.shape;
    int64_t next = every->epoch       ? ot_shape_epoch_end(shape, done)
                   : every->steps > 0 ? (done / every->steps + 1) * every->steps
                                      : INT64_MAX;
    bool is_last = sv->config.session->options->save_end && done < shape->lr.steps;
    return is_last ? ot_min(next, shape->lr.steps) : next;
}

bool ot_saver_is_due(struct ot_saver *sv) {
    const struct ot_every *every = &sv->config.session->options->save_every;
    bool asked = ot_stop_take_save_request();
    return asked || (every->seconds > 0 && ot_clock_seconds() - sv->last_begun >= every->seconds);
}

/* ---- removing older checkpoints ---- */

/* Reserves space again in the middle of a run, and warns if that fails. Space of a removed file may become
 * free a moment later: an io_uring that wrote the file holds it until the kernel has destroyed the ring. So
 * retry. */
static void warn_of_space(struct ot_saver *sv) {
    if (sv->keeps_all || !sv->leads)
        return;
    int rc = ot_saver_hold_space(sv);
    for (int i = 0; i < 10 && rc < 0; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        rc = ot_saver_hold_space(sv);
    }
    if (rc < 0)
        ot_log(OT_LOG_WARN, "%s", ot_error_text());
}

/* Releases NVMe data that only removed checkpoints referred to. */
static int release_pins(struct ot_saver *sv) {
    struct ot_checkpoint_list list;
    OT_TRY(ot_checkpoint_list_make(sv->parent, &list));
    int n = 0;
    for (int i = 0; i < sv->n_held; i++) {
        bool kept = false;
        for (int k = 0; k < list.n; k++)
            kept = kept || list.entries[k].step == sv->pins_step[i];
        if (kept) {
            sv->pins[n] = sv->pins[i];
            sv->pins_step[n++] = sv->pins_step[i];
        } else {
            ot_engine_release(sv->config.session->engine, sv->pins[i]);
        }
    }
    sv->n_held = n;
    ot_checkpoint_list_free(&list);
    return 0;
}

static int remove_old_run(struct ot_saver *sv) {
    char *aside;
    OT_TRY(ot_string_format(&aside, "%s.old", sv->parent));
    int rc = ot_saver_remove_all(aside);
    free(aside);
    sv->old_run = false;
    return rc;
}

static int remove_old(struct ot_saver *sv) {
    if (sv->keeps_all || !sv->leads)
        return 0;
    if (sv->old_run)
        OT_TRY(remove_old_run(sv));
    return ot_saver_prune(sv);
}

/* Several ranks: an error is one of the communicator. */
static int make_place(struct ot_saver *sv) {
    int rc = ot_session_ranks_agree(sv->config.session, remove_old(sv));
    sv->removal_failed = rc < 0;
    if (rc == 0 && !sv->keeps_all)
        rc = release_pins(sv);
    if (rc < 0 && rc != -OT_E_COMM && sv->leads)
        ot_log(OT_LOG_WARN, "%s", ot_error_text());
    if (rc == 0)
        warn_of_space(sv);
    return rc == -OT_E_COMM ? rc : 0;
}

/* ---- beginning a checkpoint ---- */

static int make_room_for_pins(struct ot_saver *sv) {
    size_t same = sv->capacity, n = (size_t)sv->n_held + 1;
    OT_TRY(ot_grow(&sv->pins, &same, n, sizeof *sv->pins, "checkpoints"));
    return ot_grow(&sv->pins_step, &sv->capacity, n, sizeof *sv->pins_step, "checkpoints");
}

/* Logs a failed save. The run goes on. */
static int report_failure(struct ot_saver *sv, int64_t step, int rc) {
    ot_error_save(&sv->failure, rc);
    if (!sv->is_rank0)
        return 0;
    ot_log(OT_LOG_WARN, "could not save %s of step %lld: %s",
           sv->is_best_under_way ? "the best state, that" : "the checkpoint", (long long)step,
           ot_error_text());
    struct ot_json_writer *w =
        ot_run_log_begin(sv->config.log, sv->is_best_under_way ? "best_failed" : "checkpoint_failed");
    ot_json_put_int(w, "step", step);
    ot_json_put_text(w, "error", ot_error_text());
    return ot_run_log_end(sv->config.log);
}

/* True if a checkpoint can refer to the store's files now. If a file has lost its name, or is on another
 * mount than the checkpoints, the file's data is copied. */
static bool can_refer(const struct ot_saver *sv) {
    const struct ot_session *s = sv->config.session;
    if (s->plan.chosen.pinned_contents == 0 || !ot_store_has_names(ot_engine_store(s->engine)))
        return false;
    for (int i = 0; i < s->machine.store.n_dirs; i++)
        if (!ot_checkpoint_can_refer(sv->parent, s->machine.store.dirs[i].path))
            return false;
    return true;
}

/* checkpoint.json of rank 0. bytes NULL: each leader encodes it itself. */
struct record_text {
    char *bytes;
    size_t n;
};

static const char *parent_under_way(const struct ot_saver *sv) {
    return sv->is_best_under_way ? sv->best_parent : sv->parent;
}

/* Bytes that this rank copies for the checkpoint under way. */
static int64_t copied_bytes(const struct ot_saver *sv, bool refers) {
    int64_t copied, referred;
    if (sv->is_best_under_way)
        return ot_saver_own_best_bytes(sv->config.session);
    ot_saver_own_bytes(sv->config.session, &copied, &referred);
    return copied + (refers ? 0 : referred);
}

static int open_writer(struct ot_saver *sv, const struct ot_checkpoint_record *record,
                       const struct record_text *text, bool refers) {
    struct ot_session *s = sv->config.session;
    struct ot_checkpoint_writer_config config = {.parent = parent_under_way(sv),
                                                 .chain = ot_model_chain(s->model.built),
                                                 .record = record,
                                                 .io_engine = (enum ot_io_choice)s->options->io_engine,
                                                 .store = refers ? ot_engine_store(s->engine) : NULL};
    config.state_bytes = copied_bytes(sv, refers);
    config.memory = ot_engine_snapshot_slots(s->engine, &config.n_slots);
    if (ot_plan_is_divided(&s->plan.chosen)) {
        config.rank = s->plan.chosen.shard.rank;
        config.ranks = s->plan.chosen.shard.ranks;
    }
    config.joins = !sv->leads;
    if (sv->leads)
        ot_saver_release_space(sv->parent);
    config.record_text = text->bytes;
    config.record_bytes = text->n;
    return ot_checkpoint_writer_open(&config, &sv->writer);
}

static int prepare(struct ot_saver *sv, const struct ot_checkpoint_record *record,
                   const struct record_text *text) {
    int most = sv->config.session->plan.chosen.pinned_contents;
    bool refers = !sv->is_best_under_way && can_refer(sv);
    OT_TRY(make_room_for_pins(sv));
    if (sv->leads && sv->is_best_under_way)
        OT_TRY(ot_saver_make_path(sv->best_parent));
    if (refers && sv->n_held >= most) /* the store cannot keep the data of one more checkpoint */
        return ot_fail(
            OT_E_IO, "%s: older checkpoints could not be removed, so the NVMe store cannot keep another one",
            sv->parent);
    return open_writer(sv, record, text, refers);
}

static int start_snapshot(struct ot_saver *sv, double step_seconds) {
    double copied = (double)copied_bytes(sv, true);
    struct ot_snapshot_config config = {.sink = ot_checkpoint_writer_sink(sv->writer),
                                        .bytes_per_second =
                                            step_seconds > 0 ? copied / (paced_share * step_seconds) : 0,
                                        .weights_alone = sv->is_best_under_way};
    return ot_engine_snapshot(sv->config.session->engine, &config);
}

/* Several directories: all get the record of rank 0. */
static int hand_record(struct ot_saver *sv, const struct ot_checkpoint_record *record,
                       struct record_text *text) {
    struct ot_session *s = sv->config.session;
    unsigned char *bytes;
    if (!sv->is_local)
        return 0;
    OT_TRY(ot_session_ranks_agree(
        s, sv->is_rank0 ? ot_checkpoint_record_encode(record, &text->bytes, &text->n) : 0));
    bytes = (unsigned char *)text->bytes;
    int rc = ot_session_ranks_hand(s, 0, &bytes, &text->n);
    text->bytes = (char *)bytes;
    return rc;
}

/* The leaders make the directories first. Then the others open their files there. */
static int begin_with(struct ot_saver *sv, const struct ot_checkpoint_record *record,
                      const struct record_text *text, double step_seconds) {
    struct ot_session *s = sv->config.session;
    OT_TRY(ot_session_ranks_agree(s, sv->leads ? prepare(sv, record, text) : 0));
    int rc = sv->leads || !sv->writes ? 0 : prepare(sv, record, text);
    if (rc == 0 && sv->writes)
        rc = start_snapshot(sv, step_seconds);
    OT_TRY(ot_session_ranks_agree(s, rc));
    sv->under_way = true;
    warn_of_space(sv); /* for the files still to come */
    return 0;
}

static int begin(struct ot_saver *sv, const struct ot_checkpoint_record *record, double step_seconds) {
    struct record_text text = {0};
    int rc = hand_record(sv, record, &text);
    if (rc == 0)
        rc = begin_with(sv, record, &text, step_seconds);
    free(text.bytes);
    return rc;
}

/* Ends this rank's part of a checkpoint that is not kept. */
static void drop_writer(struct ot_saver *sv) {
    struct ot_engine *engine = sv->config.session->engine;
    struct ot_pins *pins = NULL;
    ot_engine_snapshot_give_up(engine);
    (void)ot_engine_snapshot_finish(engine, &pins); /* the reason is reported already */
    ot_engine_release(engine, pins);
    ot_checkpoint_writer_close(sv->writer);
    sv->writer = NULL;
    sv->under_way = false;
    warn_of_space(sv);
}

/* rc: the reason why there is no checkpoint of that step. */
static int give_up(struct ot_saver *sv, int64_t step, int rc) {
    char *dir = NULL;
    int logged = report_failure(sv, step, rc);
    drop_writer(sv);
    /* Other directories may have it already. A checkpoint that remains does no harm: the next run does not
     * resume from it. */
    if (sv->is_local && sv->leads && ot_checkpoint_name(parent_under_way(sv), step, &dir) == 0)
        (void)ot_checkpoint_remove(dir);
    free(dir);
    return logged;
}

/* No checkpoint is under way. */
static int begin_kind(struct ot_saver *sv, const struct ot_checkpoint_record *record, double step_seconds,
                      bool is_best) {
    sv->step_under_way = record->progress.step;
    sv->cost_under_way = ot_checkpoint_record_cost(record);
    sv->is_best_under_way = is_best;
    /* Else the store's room for kept checkpoints might be full for the rest of the run. */
    if (sv->removal_failed)
        OT_TRY(make_place(sv));
    int rc = begin(sv, record, step_seconds);
    return rc < 0 && rc != -OT_E_COMM ? give_up(sv, sv->step_under_way, rc) : rc;
}

int ot_saver_begin(struct ot_saver *sv, const struct ot_checkpoint_record *record, double step_seconds) {
    OT_TRY(ot_saver_poll(sv, true));
    sv->last_begun = ot_clock_seconds();
    int has = ot_saver_has(sv, record->progress.step);
    OT_TRY(ot_session_ranks_choose(sv->config.session, &has));
    return has ? 0 : begin_kind(sv, record, step_seconds, false);
}

int ot_saver_begin_best(struct ot_saver *sv, const struct ot_checkpoint_record *record, double step_seconds) {
    OT_TRY(ot_saver_poll(sv, true));
    return begin_kind(sv, record, step_seconds, true);
}

/* ---- completing a checkpoint ---- */

static int report_success(struct ot_saver *sv, const char *dir, double seconds) {
    int64_t written, referred;
    char line[128], size[OT_TEXT_BYTES], rate[OT_TEXT_BYTES], time[OT_TEXT_BYTES];
    ot_checkpoint_writer_count(sv->writer, &written, &referred);
    size_t used = 0;
    if (written > 0 || referred == 0)
        used = (size_t)snprintf(line, sizeof line, "%s written (%s/s)", ot_text_bytes(written, size),
                                ot_text_bytes((int64_t)((double)written / fmax(seconds, 1e-3)), rate));
    if (referred > 0)
        snprintf(line + used, sizeof line - used, "%s%s referred to on NVMe", used ? ", " : "",
                 ot_text_bytes(referred, size));
    ot_log(OT_LOG_INFO, "%s %s: %s, in %s", sv->is_best_under_way ? "best state" : "checkpoint", dir, line,
           ot_text_seconds(seconds, time));
    struct ot_json_writer *w =
        ot_run_log_begin(sv->config.log, sv->is_best_under_way ? "best" : "checkpoint");
    ot_json_put_int(w, "step", sv->step_under_way);
    ot_json_put_text(w, "dir", dir);
    ot_json_put_int(w, "written_bytes", written);
    ot_json_put_int(w, "referred_bytes", referred);
    ot_json_put_real(w, "seconds", seconds);
    return ot_run_log_end(sv->config.log);
}

/* The whole checkpoint under way becomes the last one. Takes ownership of pins and dir. */
static void become_last(struct ot_saver *sv, struct ot_pins *pins, char *dir, double seconds) {
    if (sv->writes) {
        sv->pins[sv->n_held] = pins;
        sv->pins_step[sv->n_held++] = sv->step_under_way;
    }
    sv->last_step = sv->step_under_way;
    sv->seconds = seconds;
    free(sv->last_dir);
    sv->last_dir = dir;
}

static int complete(struct ot_saver *sv, struct ot_pins *pins) {
    double seconds = ot_engine_snapshot_seconds(sv->config.session->engine);
    struct ot_error logged;
    char *dir;
    int rc = ot_checkpoint_name(parent_under_way(sv), sv->step_under_way, &dir);
    if (rc < 0) {
        ot_engine_release(sv->config.session->engine, pins);
        return rc;
    }
    ot_saver_rate(sv, sv->step_under_way, sv->cost_under_way, !sv->is_best_under_way);
    ot_error_save(&logged, sv->is_rank0 ? report_success(sv, dir, seconds) : 0);
    if (sv->is_best_under_way) {
        ot_pins_free(pins); /* none */
        free(dir);
    } else {
        become_last(sv, pins, dir, seconds);
    }
    ot_checkpoint_writer_close(sv->writer);
    sv->writer = NULL;
    sv->under_way = false;
    OT_TRY(make_place(sv));
    return ot_error_load(&logged);
}

bool ot_saver_is_busy(const struct ot_saver *sv) {
    return ot_engine_snapshot_busy(sv->config.session->engine);
}

bool ot_saver_is_under_way(const struct ot_saver *sv) {
    return sv->under_way;
}

int ot_saver_poll(struct ot_saver *sv, bool wait) {
    struct ot_engine *engine = sv->config.session->engine;
    struct ot_pins *pins = NULL;
    if (!sv->under_way || (!wait && ot_engine_snapshot_busy(engine)))
        return 0;
    int rc = ot_saver_join(sv, sv->writes ? ot_engine_snapshot_finish(engine, &pins) : 0);
    if (rc == 0)
        return complete(sv, pins);
    int given_up = rc == -OT_E_COMM ? rc : give_up(sv, sv->step_under_way, rc);
    ot_engine_release(engine, pins);
    return given_up;
}

bool ot_saver_wait(struct ot_saver *sv, double seconds) {
    const struct ot_engine *engine = sv->config.session->engine;
    double until = ot_clock_seconds() + seconds;
    while (ot_engine_snapshot_busy(engine) && ot_clock_seconds() < until)
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    return !ot_engine_snapshot_busy(engine) && ot_saver_poll(sv, false) == 0;
}

bool ot_saver_has(const struct ot_saver *sv, int64_t step) {
    return sv->last_dir && sv->last_step == step && (!sv->leads || access(sv->last_dir, F_OK) == 0);
}

static int move_to(struct ot_saver *sv, const char *parent) {
    char *moved;
    OT_TRY(ot_string_format(&moved, "%s", parent));
    if (sv->leads)
        ot_saver_remove_empty(sv);
    free(sv->parent);
    sv->parent = moved;
    return 0;
}

int ot_saver_save_in(struct ot_saver *sv, const char *parent, const struct ot_checkpoint_record *record) {
    struct ot_session *s = sv->config.session;
    (void)ot_saver_poll(sv, true); /* its failure is logged already */
    int has = ot_saver_has(sv, record->progress.step);
    OT_TRY(ot_session_ranks_choose(s, &has));
    if (has)
        return 0;
    sv->keeps_all = true;
    sv->last_step = -1;
    if (sv->leads)
        ot_saver_release_space(sv->parent);
    if (parent)
        OT_TRY(move_to(sv, parent));
    OT_TRY(ot_session_ranks_agree(s, sv->leads ? ot_saver_make_dir(sv) : 0));
    (void)ot_saver_begin(sv, record, 0); /* a failure to write the log does not matter now */
    (void)ot_saver_poll(sv, true);
    has = ot_saver_has(sv, record->progress.step);
    OT_TRY(ot_session_ranks_choose(s, &has));
    if (has)
        return 0;
    if (sv->leads)
        ot_saver_remove_empty(sv);
    return ot_saver_failure(sv);
}

int ot_saver_failure(const struct ot_saver *sv) {
    return ot_error_load(&sv->failure);
}

/* ---- present state ---- */

int64_t ot_saver_last_step(const struct ot_saver *sv) {
    return sv->last_step;
}

const char *ot_saver_last_dir(const struct ot_saver *sv) {
    return sv->last_dir;
}

void ot_saver_make_room(struct ot_saver *sv) {
    ot_saver_release_space(sv->parent);
}

int ot_saver_complete(struct ot_saver *sv) {
    bool has = false;
    OT_TRY(ot_saver_find_any(sv->parent, &has));
    int rc = has ? ot_checkpoint_mark_complete(sv->parent) : 0;
    return rc == 0 && sv->old_run ? remove_old_run(sv) : rc;
}
