/* offload-train train: everything is read and planned, then tried, then done. Nothing is written before the
 * plan stands, and the output directory is touched only when the first step is about to run. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/stop.h"
#include "src/cli/command.h"
#include "src/files/out_dir.h"
#include "src/files/out_lock.h"
#include "src/report/sample_view.h"
#include "src/run/generator.h"
#include "src/run/run_identity.h"
#include "src/saving/finished.h"
#include "src/saving/out_name.h"
#include "src/saving/resume.h"
#include "src/saving/save.h"
#include "src/saving/saver.h"
#include "src/train/train_loop.h"

enum { SAMPLE_NEW_TOKENS = 96 };

struct train {
    struct ot_settings settings;
    struct ot_session session;
    struct ot_rows rows;
    struct ot_run_shape shape;
    struct ot_save save;
    struct ot_out_lock *lock; /* of OUT; NULL with --no-save and --dry-run */
    struct ot_report report;
    struct ot_session_need need;
    struct ot_run_log *log;
    struct ot_resume resume;
    struct ot_run_identity identity;
    struct ot_saver *saver; /* NULL with --no-save */
    struct ot_rescue rescue;
    char checkpoints[PATH_MAX]; /* OUT/checkpoints */
    int64_t sample_row;         /* of the evaluation rows, to show what was learnt; -1: none */
    char out[PATH_MAX];
};

/* The first held-out row that has a prompt: it is answered at the end. */
static int64_t find_sample_row(const struct train *t) {
    const struct ot_rows *rows = &t->rows;
    for (int64_t i = 0; rows->eval && i < ot_dataset_rows(rows->eval_set); i++) {
        if (rows->eval_set == rows->data && !rows->held_out[i])
            continue;
        struct ot_row row = ot_dataset_row(rows->eval_set, i);
        if (ot_row_prompt_tokens(&row) > 1 + t->session.specials.add_bos)
            return i;
    }
    return -1;
}

/* Room to answer the sample row is kept only where it is small beside the budget. */
static int64_t sample_tokens(const struct train *t) {
    if (t->sample_row < 0)
        return 0;
    struct ot_row row = ot_dataset_row(t->rows.eval_set, t->sample_row);
    int64_t tokens = ot_row_prompt_tokens(&row) + SAMPLE_NEW_TOKENS;
    return tokens < t->rows.seq_len ? tokens : t->rows.seq_len;
}

static int make_plan(struct train *t) {
    const struct ot_session *s = &t->session;
    const struct ot_options *o = s->options;
    t->sample_row = find_sample_row(t);
    t->need = (struct ot_session_need){.max_position = t->shape.seq_len,
                                       .sequence_tokens = t->shape.seq_len,
                                       .step_sequences = t->shape.step_sequences,
                                       .micro_sequences = o->micro_batch,
                                       .train = true,
                                       .clip = o->clip > 0,
                                       .cache_tokens = sample_tokens(t),
                                       .host_bytes = ot_rows_bytes(&t->rows)};
    if (!o->no_save || t->resume.checkpoint)
        t->need.snapshot_slots = ot_saver_slots(ot_model_param_count(&s->config), s->dtype);
    if (!o->no_save)
        t->need.kept_contents = ot_saver_kept_contents(s, t->checkpoints);
    return ot_session_plan(&t->session, &t->need);
}

/* What the run is a run of, and whether the checkpoint is of the same. */
static int read_inputs(struct train *t) {
    struct ot_session *s = &t->session;
    const struct ot_options *o = s->options;
    int64_t seq_len;
    OT_TRY(ot_shape_seq_len(&t->settings, s->config.max_position, &seq_len));
    const double *share = o->optimizer_engine.share;
    bool no_cpu = share[OT_TILE_CPU] == 0 && share[OT_TILE_GPU] + share[OT_TILE_STREAM] > 0;
    if (!o->optimizer_threads && !no_cpu)
        ot_settings_choose_count(&t->settings, "optimizer-threads", o->threads);
    OT_TRY(ot_rows_open(s, seq_len, &t->rows));
    OT_TRY(ot_shape_run(&t->settings, seq_len, ot_packing_sequences(t->rows.train),
                        ot_model_param_count(&s->config), &t->shape));
    OT_TRY(ot_run_identity_make(s, &t->rows, &t->identity));
    OT_TRY(ot_resume_check(&t->resume, o, &t->identity));
    OT_TRY(ot_resume_check_arithmetic(&t->resume, o, ot_device_arithmetic(s->device)));
    OT_TRY(ot_resume_check_length(&t->resume, o, &t->shape));
    return ot_resume_advise(&t->resume, ot_resume_check_position(&t->resume, &t->shape));
}

static int prepare(struct train *t) {
    struct ot_session *s = &t->session;
    const struct ot_options *o = s->options;
    OT_TRY(make_plan(t));
    t->report =
        (struct ot_report){.session = s, .rows = &t->rows, .shape = &t->shape, .resumed = t->resume.record};
    if (!o->no_save) {
        OT_TRY(ot_save_open(s, o->out, t->lock, &t->save));
        t->report.out = o->out;
        t->report.save_bytes = t->save.bytes;
        t->report.disk_free_bytes = ot_save_disk_free(o->out);
    }
    return 0;
}

/* Before step 1 rather than after the last. */
static int try_trace(const struct ot_options *options) {
    const char *path = options->trace;
    OT_TRY(ot_report_check_trace(options));
    FILE *file = path ? fopen(path, "a") : NULL;
    if (path && (!file || fclose(file) != 0))
        return ot_fail_errno(OT_E_IO, errno, "--trace %s: cannot write there", path);
    return 0;
}

/* Once nothing else can be wrong: it may take seconds. */
static int forecast(struct train *t) {
    struct ot_session *s = &t->session;
    const struct ot_packing *packing = t->rows.train;
    struct ot_forecast_rows rows = {.fill = ot_packing_fill(packing),
                                    .tokens = ot_packing_tokens(packing) / ot_packing_rows(packing)};
    if (!s->options->no_forecast)
        OT_TRY(ot_session_forecast(s, &t->need, &rows));
    if (!s->options->micro_batch)
        ot_settings_choose_count(&t->settings, "micro-batch", s->plan.micro_tokens / t->shape.seq_len);
    return ot_run_identity_take_options(&t->identity, s->options);
}

static int show_plan(struct train *t) {
    if (t->session.options->show_sample)
        OT_TRY(ot_sample_view_print(&t->session, &t->rows));
    ot_report_print(&t->report);
    ot_resume_print(&t->resume);
    return 0;
}

/* Greedy, from a row that was never trained on. */
static int show_sample(struct train *t, int64_t step) {
    struct ot_session *s = &t->session;
    struct ot_row row = ot_dataset_row(t->rows.eval_set, t->sample_row);
    int64_t n = ot_row_prompt_tokens(&row);
    int32_t *prompt = malloc((size_t)n * sizeof *prompt);
    char *prompt_text = NULL;
    struct ot_generated generated = {0};
    if (!prompt)
        return ot_fail(OT_E_BUDGET, "no memory for a prompt of %lld tokens", (long long)n);
    for (int64_t i = 0; i < n; i++)
        prompt[i] = ot_token_id(row.tokens[i]);
    struct ot_generation generation = {.prompt = prompt,
                                       .n_prompt = n,
                                       .max_new = SAMPLE_NEW_TOKENS,
                                       .top_p = 1,
                                       .stopped = ot_stop_requested};
    if (generation.max_new > t->rows.seq_len - n)
        generation.max_new = t->rows.seq_len - n;
    int rc;
    OT_TRY_GOTO(ot_tokenizer_decode(s->tokenizer, prompt, (size_t)n, true, &prompt_text, NULL), rc, out);
    OT_TRY_GOTO(ot_generate(s, &generation, &generated), rc, out);
    rc = ot_report_sample(t->log, step, prompt_text, generated.text ? generated.text : "");
out:
    ot_generated_free(&generated);
    free(prompt_text);
    free(prompt);
    return rc;
}

static struct ot_saver_config saver_config(struct train *t) {
    const struct ot_checkpoint_record *record = t->resume.record;
    return (struct ot_saver_config){.session = &t->session,
                                    .log = t->log,
                                    .parent = t->checkpoints,
                                    .steps_per_epoch = t->shape.steps_per_epoch,
                                    .model_bytes = t->save.bytes,
                                    .evaluates = t->rows.eval != NULL,
                                    .step = record ? record->progress.step : 0,
                                    .resumed = record ? ot_checkpoint_dir(t->resume.checkpoint) : NULL,
                                    .is_own = ot_resume_is_own(&t->resume, t->session.options->out)};
}

/* OUT is touched from here on. */
static int open_out(struct train *t) {
    const char *out = t->session.options->out;
    OT_TRY(ot_out_dir_claim(out, NULL, t->lock));
    t->lock->insists = true;
    if (!ot_resume_is_own(&t->resume, out))
        OT_TRY(ot_finished_keep_log(out));
    OT_TRY(ot_run_log_start_file(t->log, out, ot_resume_log_bytes(&t->resume, out)));
    OT_TRY(ot_resume_clear_newer(&t->resume, out));
    struct ot_saver_config config = saver_config(t);
    OT_TRY(ot_saver_open(&config, &t->saver));
    t->rescue = (struct ot_rescue){.saver = t->saver, .options = t->session.options, .lock = t->lock};
    return 0;
}

/* That there can be an output, before anything that takes long. */
static int try_out(struct train *t) {
    struct ot_saver_config config = saver_config(t);
    OT_TRY(ot_save_probe(&t->save));
    return ot_saver_check_space(&config);
}

static int start(struct train *t) {
    struct ot_session *s = &t->session;
    const struct ot_options *o = s->options;
    struct ot_optimizer_config optimizer = {.beta1 = (float)o->beta1,
                                            .beta2 = (float)o->beta2,
                                            .eps = (float)o->eps,
                                            .weight_decay = (float)o->weight_decay,
                                            .clip = (float)o->clip};
    s->restored = t->resume.checkpoint;
    int rc = ot_session_start(s, &optimizer);
    if (rc < 0)
        return s->restored ? ot_resume_advise(&t->resume, rc) : rc;
    ot_report_print_store(&t->report);
    OT_TRY(ot_report_record(&t->report, t->log));
    if (s->restored)
        OT_TRY(ot_run_log_resume(t->log, t->resume.record->progress.step, ot_checkpoint_dir(s->restored),
                                 ot_checkpoint_bytes(s->restored), s->restore_seconds));
    OT_TRY(ot_run_log_check(t->log)); /* before OUT is touched */
    return o->no_save ? 0 : open_out(t);
}

/* What the run leaves: the model, or where it was stopped a checkpoint, which is there already, or where
 * --grace has no time for that, the weights alone if they fit. */
static int keep_result(struct train *t, struct ot_outcome *outcome, const struct ot_checkpoint_record *end) {
    const struct ot_options *o = t->session.options;
    if (o->no_save)
        return 0;
    if (!outcome->interrupted) {
        ot_saver_make_room(t->saver);
        int rc = ot_save_write(&t->save, end);
        if (rc < 0)
            return ot_rescue_save(&t->rescue, end, rc);
        rc = ot_finished_drop_log(o->out);
        if (rc == 0)
            rc = ot_saver_complete(t->saver);
        return rc < 0 ? ot_fail_context(rc, "%s: the result is saved", o->out) : 0;
    }
    outcome->weights_alone = outcome->out_of_time &&
                             ot_stop_seconds() + ot_saver_model_seconds(t->saver, t->save.bytes) <= o->grace;
    if (outcome->weights_alone)
        ot_saver_make_room(t->saver);
    return outcome->weights_alone ? ot_save_write(&t->save, NULL) : 0;
}

static int run(struct train *t) {
    struct ot_session *s = &t->session;
    struct ot_outcome outcome;
    struct ot_checkpoint_record end;
    OT_TRY(start(t));
    struct ot_train_loop loop = {.session = s,
                                 .rows = &t->rows,
                                 .shape = &t->shape,
                                 .log = t->log,
                                 .identity = &t->identity,
                                 .saver = t->saver,
                                 .rescue = &t->rescue,
                                 .resume = t->resume.record};
    if (s->options->grace > 0)
        ot_stop_set_grace(s->options->grace);
    OT_TRY(ot_stop_install(
        t->saver
            ? "Stopping: finishing the step and saving. Press Ctrl-C again to quit without saving.\n"
            : "Stopping: finishing the step; nothing is saved (--no-save). Press Ctrl-C again to quit at "
              "once.\n"));
    OT_TRY(ot_train_loop_run(&loop, &outcome, &end));
    if (outcome.interrupted && outcome.steps == 0)
        return ot_fail(OT_E_INTERRUPT, "stopped before step 1: nothing was trained");
    OT_TRY(keep_result(t, &outcome, &end));
    if (t->sample_row >= 0 && !ot_stop_requested())
        OT_TRY(show_sample(t, outcome.steps));
    ot_stop_ignore();
    ot_report_done(&t->report, &outcome);
    OT_TRY(ot_report_trace(&t->report, t->log));
    OT_TRY(ot_report_record_done(&t->report, &outcome, t->log));
    if (outcome.out_of_time && !outcome.checkpoint && !outcome.weights_alone)
        return ot_fail(OT_E_INTERRUPT, "nothing is saved: --grace had no time for it, and no checkpoint was "
                                       "made before; give it more, or save more often (--save-every)");
    return outcome.interrupted ? -OT_E_STOPPED : 0;
}

/* What is to be gone on from is known before anything is opened: it says what the options were. */
static int find_checkpoint(struct train *t) {
    const struct ot_options *options = &t->settings.in_effect;
    if (!options->no_save) {
        OT_TRY(ot_out_name_choose(&t->settings, t->out, sizeof t->out));
        if (snprintf(t->checkpoints, sizeof t->checkpoints, "%s/checkpoints", options->out) >= PATH_MAX)
            return ot_fail(OT_E_USAGE, "--out %s: the name is too long", options->out);
        if (!options->dry_run) {
            OT_TRY(ot_out_lock_open(options->out, &t->lock));
            OT_TRY(ot_out_dir_settle(options->out, NULL, t->lock));
        }
    }
    OT_TRY(ot_resume_find(options, !options->dry_run, &t->resume));
    if (options->dry_run)
        ot_resume_forget_finished(&t->resume);
    return ot_resume_take_over(&t->resume, &t->settings);
}

static int prepare_and_run(struct train *t) {
    const struct ot_options *options = &t->settings.in_effect;
    OT_TRY(find_checkpoint(t));
    OT_TRY(ot_run_log_open(options->json, &t->log));
    OT_TRY(ot_session_open(&t->settings, &t->session));
    OT_TRY(read_inputs(t));
    if (ot_resume_is_finished(&t->resume))
        return ot_finished_confirm(options, t->resume.record, t->shape.lr.steps, t->log);
    OT_TRY(prepare(t));
    if (options->dry_run) {
        OT_TRY(forecast(t));
        OT_TRY(show_plan(t));
        return ot_report_record(&t->report, t->log);
    }
    OT_TRY(try_trace(options));
    if (!options->no_save)
        OT_TRY(try_out(t));
    OT_TRY(forecast(t));
    OT_TRY(show_plan(t));
    return run(t);
}

int ot_command_train(const struct ot_options *options) {
    struct train *t = calloc(1, sizeof *t);
    if (!t)
        return ot_fail(OT_E_BUDGET, "no memory");
    t->settings = (struct ot_settings){*options};
    int rc = ot_stop_install_early("error: stopped before step 1: nothing was trained\n");
    if (rc == 0)
        rc = prepare_and_run(t);
    struct ot_error why; /* what closing fails with after a failure is not what the user has to know */
    ot_error_save(&why, rc);
    bool is_stuck = t->session.engine && ot_engine_is_stuck(t->session.engine);
    if (!is_stuck)
        ot_saver_close(t->saver);
    int flushed = t->log ? ot_run_log_flush(t->log) : 0; /* however the run ended, its records are read */
    if (rc == 0)
        ot_error_save(&why, flushed);
    ot_run_log_close(t->log);
    if (is_stuck) /* its threads use the rest */
        return ot_error_load(&why);
    ot_save_close(&t->save);
    ot_rows_close(&t->rows);
    ot_run_identity_free(&t->identity);
    ot_session_close(&t->session);
    ot_resume_close(&t->resume);
    ot_out_lock_close(t->lock);
    free(t);
    return ot_error_load(&why);
}
