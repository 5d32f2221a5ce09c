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

/* ---- opening ---- */

static int remove_checkpoints(const char *parent) {
    ot_saver_release_space(parent);
    OT_TRY(ot_checkpoint_clear(parent));
    return rmdir(parent) == 0 || errno == ENOENT
               ? 0
               : ot_fail_errno(OT_E_IO, errno, "%s: cannot remove the directory", parent);
}

/* A mount point, or a directory of an overlay's lower layer, cannot be renamed. If the run there is complete,
 * its checkpoints are removed instead: its result stays. */
static int rename_aside(const char *parent, const char *aside) {
    if (rename(parent, aside) == 0)
        return 0;
    if ((errno == EBUSY || errno == EXDEV) && ot_checkpoint_is_complete(parent))
        return ot_checkpoint_clear(parent);
    return ot_fail_errno(OT_E_IO, errno,
                         "%s: has checkpoints of another run and cannot be renamed to %s; remove them, or "
                         "choose another --out",
                         parent, aside);
}

/* True if the run resumes from a checkpoint that an earlier run set aside. That checkpoint must then stay. */
static bool is_from(const struct ot_saver *sv, const char *aside) {
    char *name = NULL;
    struct stat there, here;
    const char *resumed = sv->config.resumed, *slash = resumed ? strrchr(resumed, '/') : NULL;
    if (!slash || ot_string_format(&name, "%s%s", aside, slash) < 0)
        return false;
    bool is = stat(name, &there) == 0 && stat(resumed, &here) == 0 && there.st_ino == here.st_ino &&
              there.st_dev == here.st_dev;
    free(name);
    return is;
}

/* Prepares for a new run: existing checkpoints get another name until the new run has its own. */
static int set_aside(struct ot_saver *sv) {
    struct ot_checkpoint_list old;
    char *aside = NULL;
    int rc;
    OT_TRY(ot_checkpoint_list_make(sv->parent, &old));
    OT_TRY_GOTO(ot_string_format(&aside, "%s.old", sv->parent), rc, out);
    if (old.n > 0 && is_from(sv, aside)) {
        rc = remove_checkpoints(sv->parent);
    } else if (old.n > 0) {
        OT_TRY_GOTO(remove_checkpoints(aside), rc, out);
        rc = rename_aside(sv->parent, aside);
    }
    sv->old_run = access(aside, F_OK) == 0;
out:
    free(aside);
    ot_checkpoint_list_free(&old);
    return rc;
}

/* Takes over the checkpoints of the run that is resumed. Prunes them: the run may have been killed before it
 * did. */
static int take_over(struct ot_saver *sv) {
    OT_TRY(ot_saver_rate_earlier(sv));
    return ot_checkpoint_prune(sv->parent, (int)sv->config.session->options->keep, sv->best_step);
}

int ot_saver_make_dir(struct ot_saver *sv) {
    return mkdir(sv->parent, 0777) == 0 || errno == EEXIST
               ? 0
               : ot_fail_errno(OT_E_IO, errno, "%s: cannot make the directory", sv->parent);
}

static int open_parent(struct ot_saver *sv) {
    OT_TRY(sv->config.is_own ? take_over(sv) : set_aside(sv));
    OT_TRY(ot_saver_make_dir(sv));
    struct stat info;
    if (lstat(sv->parent, &info) < 0 || !S_ISDIR(info.st_mode))
        return ot_fail(OT_E_IO, "%s: checkpoints need this name, but it is not a directory; move it away",
                       sv->parent);
    OT_TRY(ot_checkpoint_clear_complete(sv->parent));
    if (sv->config.session->options->grace > 0)
        sv->flush_seconds = ot_disk_time_flush(sv->parent);
    return ot_saver_hold_first_space(sv);
}

int ot_saver_open(const struct ot_saver_config *config, struct ot_saver **out) {
    struct ot_saver *sv = *out = calloc(1, sizeof *sv);
    if (!sv)
        return ot_fail(OT_E_BUDGET, "no memory for checkpoints");
    sv->config = *config;
    sv->is_rank0 = ot_is_rank0(config->session);
    sv->leads = config->sharing->leads;
    sv->is_local = config->sharing->is_local;
    sv->writes = sv->leads || ot_plan_is_divided(&config->session->plan.chosen);
    sv->last_step = config->step > 0 ? config->step : -1;
    sv->last_is_rated = config->is_rated;
    sv->best_step = -1;
    sv->last_begun = ot_clock_seconds();
    OT_TRY(ot_string_format(&sv->parent, "%s", config->parent));
    if (config->resumed)
        OT_TRY(ot_string_format(&sv->last_dir, "%s", config->resumed));
    return sv->leads ? open_parent(sv) : 0;
}

void ot_saver_close(struct ot_saver *sv) {
    if (!sv)
        return;
    struct ot_pins *pins = NULL;
    ot_engine_snapshot_give_up(sv->config.session->engine);
    (void)ot_engine_snapshot_finish(sv->config.session->engine, &pins);
    ot_pins_free(pins);
    ot_checkpoint_writer_close(sv->writer);
    for (int i = 0; i < sv->n_held; i++)
        ot_pins_free(sv->pins[i]);
    if (sv->parent && sv->leads) {
        ot_saver_release_space(sv->parent);
        rmdir(sv->parent); /* only if it is empty */
    }
    free(sv->pins);
    free(sv->pins_step);
    free(sv->last_dir);
    free(sv->parent);
    free(sv);
}

/* ---- when ---- */

int64_t ot_saver_next_step(const struct ot_saver *sv, int64_t done) {
    const struct ot_every *every = &sv->config.session->options->save_every;
    int64_t steps = every->epoch ? sv->config.steps_per_epoch : every->steps;
    return steps > 0 ? (done / steps + 1) * steps : INT64_MAX;
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
    int rc = remove_checkpoints(aside);
    free(aside);
    sv->old_run = false;
    return rc;
}

static int remove_old(struct ot_saver *sv) {
    if (sv->keeps_all || !sv->leads)
        return 0;
    if (sv->old_run)
        OT_TRY(remove_old_run(sv));
    return ot_checkpoint_prune(sv->parent, (int)sv->config.session->options->keep,
                               sv->keeps_best ? sv->best_step : -1);
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
    ot_log(OT_LOG_WARN, "could not save the checkpoint of step %lld: %s", (long long)step, ot_error_text());
    struct ot_json_writer *w = ot_run_log_begin(sv->config.log, "checkpoint_failed");
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

static int open_writer(struct ot_saver *sv, const struct ot_checkpoint_record *record,
                       const struct record_text *text, bool refers) {
    struct ot_session *s = sv->config.session;
    struct ot_checkpoint_writer_config config = {.parent = sv->parent,
                                                 .chain = ot_model_chain(s->model.built),
                                                 .record = record,
                                                 .io_engine = (enum ot_io_choice)s->options->io_engine,
                                                 .store = refers ? ot_engine_store(s->engine) : NULL};
    int64_t referred;
    ot_saver_own_bytes(s, &config.state_bytes, &referred);
    config.state_bytes += refers ? 0 : referred;
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
    bool refers = can_refer(sv);
    OT_TRY(make_room_for_pins(sv));
    if (refers && sv->n_held >= most) /* the store cannot keep the data of one more checkpoint */
        return ot_fail(
            OT_E_IO, "%s: older checkpoints could not be removed, so the NVMe store cannot keep another one",
            sv->parent);
    return open_writer(sv, record, text, refers);
}

static int start_snapshot(struct ot_saver *sv, double step_seconds) {
    int64_t copied, referred;
    ot_saver_own_bytes(sv->config.session, &copied, &referred);
    struct ot_snapshot_config config = {
        .sink = ot_checkpoint_writer_sink(sv->writer),
        .bytes_per_second = step_seconds > 0 ? (double)copied / (paced_share * step_seconds) : 0};
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
    if (sv->is_local && sv->leads && ot_checkpoint_name(sv->parent, step, &dir) == 0)
        (void)ot_checkpoint_remove(dir);
    free(dir);
    return logged;
}

int ot_saver_begin(struct ot_saver *sv, const struct ot_checkpoint_record *record, double step_seconds) {
    int64_t step = record->progress.step;
    OT_TRY(ot_saver_poll(sv, true));
    sv->last_begun = ot_clock_seconds();
    sv->step_under_way = step;
    sv->cost_under_way = ot_checkpoint_record_cost(record);
    /* A checkpoint that was made before its state was evaluated is made again: its record lacks the loss. */
    int has = ot_saver_has(sv, step) && (sv->last_is_rated || isnan(sv->cost_under_way));
    OT_TRY(ot_session_ranks_choose(sv->config.session, &has));
    if (has)
        return 0;
    /* Else the store's room for kept checkpoints might be full for the rest of the run. */
    if (sv->removal_failed)
        OT_TRY(make_place(sv));
    int rc = begin(sv, record, step_seconds);
    return rc < 0 && rc != -OT_E_COMM ? give_up(sv, step, rc) : rc;
}

/* ---- completing a checkpoint ---- */

static int report_success(struct ot_saver *sv, double seconds) {
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
    ot_log(OT_LOG_INFO, "checkpoint %s: %s, in %s", sv->last_dir, line, ot_text_seconds(seconds, time));
    struct ot_json_writer *w = ot_run_log_begin(sv->config.log, "checkpoint");
    ot_json_put_int(w, "step", sv->last_step);
    ot_json_put_text(w, "dir", sv->last_dir);
    ot_json_put_int(w, "written_bytes", written);
    ot_json_put_int(w, "referred_bytes", referred);
    ot_json_put_real(w, "seconds", seconds);
    return ot_run_log_end(sv->config.log);
}

static int complete(struct ot_saver *sv, struct ot_pins *pins) {
    double seconds = ot_engine_snapshot_seconds(sv->config.session->engine);
    if (sv->writes) {
        sv->pins[sv->n_held] = pins;
        sv->pins_step[sv->n_held++] = sv->step_under_way;
    }
    sv->last_step = sv->step_under_way;
    sv->seconds = seconds;
    sv->last_is_rated = !isnan(sv->cost_under_way);
    ot_saver_rate(sv, sv->step_under_way, sv->cost_under_way);
    free(sv->last_dir);
    sv->last_dir = NULL;
    OT_TRY(ot_checkpoint_name(sv->parent, sv->last_step, &sv->last_dir));
    struct ot_error logged;
    ot_error_save(&logged, sv->is_rank0 ? report_success(sv, seconds) : 0);
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
    char *parent_before = sv->parent;
    int rc = ot_string_format(&sv->parent, "%s", parent);
    if (rc < 0) {
        sv->parent = parent_before;
        return rc;
    }
    if (sv->leads)
        rmdir(parent_before); /* only if it is empty */
    free(parent_before);
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
        rmdir(sv->parent); /* only if it is empty */
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
    struct ot_checkpoint_list list;
    OT_TRY(ot_checkpoint_list_make(sv->parent, &list));
    int rc = list.n > 0 ? ot_checkpoint_mark_complete(sv->parent) : 0;
    ot_checkpoint_list_free(&list);
    return rc == 0 && sv->old_run ? remove_old_run(sv) : rc;
}
