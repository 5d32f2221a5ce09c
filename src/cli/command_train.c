/* offload-train train: reads all inputs and makes the plan, then checks the outputs, then trains. It writes
 * nothing before the plan is made, and changes the output directory only just before the first step. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "models/selection.h"
#include "src/base/clock.h"
#include "offload/plan/stages.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/minmax.h"
#include "src/base/signals.h"
#include "src/base/units.h"
#include "src/cli/command.h"
#include "src/cli/launch.h"
#include "src/dashboard/dashboards.h"
#include "src/files/out_dir.h"
#include "src/files/out_lock.h"
#include "src/report/report.h"
#include "src/session/plan_request.h"
#include "src/session/session_ranks.h"
#include "src/session/weights.h"
#include "src/train/disk_reserve.h"
#include "src/train/generator.h"
#include "src/train/out_name.h"
#include "src/train/result.h"
#include "src/train/resume.h"
#include "src/train/rows.h"
#include "src/train/run_identity.h"
#include "src/train/run_shape.h"
#include "src/train/saver.h"
#include "src/train/train_loop.h"

struct train {
    struct ot_settings settings;
    struct ot_world *world; /* NULL: one rank */
    struct ot_session session;
    struct ot_stop_save_requests requests;
    struct ot_rows rows;
    struct ot_answers *answers; /* NULL: evaluations answer no rows */
    struct ot_run_shape shape;
    struct ot_step_choice choice; /* of --tokens-per-step auto */
    struct ot_result result;
    struct ot_out_sharing sharing;
    struct ot_out_lock *lock; /* lock of OUT; NULL with --no-save and --dry-run, or if another rank leads */
    struct ot_report report;
    struct ot_run_times times; /* predicted times of the work besides steps */
    struct ot_session_need need;
    struct ot_run_log *log;
    struct ot_dashboards *dashboards; /* NULL: none are wanted, or another rank has them */
    struct ot_resume resume;
    struct ot_run_identity identity;
    struct ot_references references; /* of the objective */
    struct ot_saver *saver;          /* NULL with --no-save */
    struct ot_rescue rescue;
    char checkpoints[PATH_MAX]; /* OUT/checkpoints */
    int64_t finished_steps;     /* with --dry-run: of the finished run in OUT; 0: none */
    int64_t sample_row;         /* index of the evaluation row to answer at the end; -1: none */
    char out[PATH_MAX];
};

/* True on the rank that writes OUT. */
static bool writes_out(const struct train *t) {
    return !t->settings.in_effect.no_save && ot_is_rank0(&t->session);
}

static int resumed_stages(const struct train *t) {
    return t->resume.checkpoint ? (int)ot_json_int(ot_json_get(t->resume.record->options, "stages"), 0) : 0;
}

/* A run from before there were sections has whole rows. */
static int sections_of(const struct train *t) {
    int64_t given = t->session.options->row_sections;
    return given == 0 && t->resume.checkpoint ? 1 : (int)given;
}

/* All but the length of a step. */
static void find_need(struct train *t) {
    const struct ot_session *s = &t->session;
    const struct ot_options *o = s->options;
    t->sample_row = ot_sample_row_find(s, &t->rows);
    t->need = (struct ot_session_need){.max_position =
                                           ot_min(t->rows.seq_len, ot_model_longest_row(&s->model.config)),
                                       .sequence_tokens = t->rows.seq_len,
                                       .micro_sequences = o->micro_batch,
                                       .sections = sections_of(t),
                                       .train = true,
                                       .clip = o->clip > 0,
                                       .cache_tokens = ot_sample_row_tokens(s, &t->rows, t->sample_row),
                                       .resumed_ranks = t->resume.checkpoint ? t->resume.record->ranks : 0,
                                       .resumed_stages = resumed_stages(t),
                                       .gathers = !o->no_save,
                                       .host_bytes = ot_rows_bytes(&t->rows)};
    ot_answers_need(t->answers, s, &t->need);
    if (!o->no_save || t->resume.checkpoint)
        t->need.snapshot_slots = ot_saver_slots(ot_model_param_count(&s->model.config), s->model.dtype);
    if (!o->no_save)
        t->need.pinned_contents = ot_saver_pinned_contents(s, t->checkpoints);
}

static int find_shape(struct train *t) {
    OT_TRY(ot_shape_run(&t->settings, t->rows.seq_len, ot_packing_sequences(t->rows.train),
                        &t->resume.changes.phase, &t->shape));
    OT_TRY(ot_resume_check_length(&t->resume, t->session.options, &t->shape));
    return ot_resume_advise(&t->resume, ot_resume_check_position(&t->resume, &t->shape));
}

/* Reads the inputs, and checks that the checkpoint is of the same run. Finds the run's length, unless the
 * step is still to be chosen. */
static int read_inputs(struct train *t) {
    struct ot_session *s = &t->session;
    const struct ot_options *o = s->options;
    int64_t seq_len, trained;
    OT_TRY(ot_shape_seq_len(&t->settings, ot_model_longest_row(&s->model.config), &seq_len));
    const double *share = o->optimizer_engine.share;
    bool no_cpu = share[OT_TILE_CPU] == 0 && share[OT_TILE_GPU] + share[OT_TILE_STREAM] > 0;
    if (!o->optimizer_threads && !no_cpu)
        ot_settings_choose_count(&t->settings, "optimizer-threads", o->threads);
    OT_TRY(ot_rows_open(s, seq_len, &t->rows));
    OT_TRY(ot_answers_open(s, &t->rows, &t->answers));
    OT_TRY(ot_run_identity_make(s, &t->rows, &t->identity));
    OT_TRY(ot_resume_check(&t->resume, o, &t->identity));
    OT_TRY(ot_resume_check_arithmetic(&t->resume, o, ot_device_arithmetic(s->machine.device)));
    const struct ot_selection selection = ot_plan_request_selection(o);
    OT_TRY(ot_selection_count(&s->model.config, &selection, &trained));
    ot_shape_choose(&t->settings, trained);
    OT_TRY(ot_saver_choose_result(&t->settings, t->rows.eval != NULL));
    return ot_step_is_open(o) ? 0 : find_shape(t);
}

/* The shape of a run is not known while --tokens-per-step auto is chosen. */
static struct ot_forecast_rows forecast_rows(const struct train *t) {
    const struct ot_packing *packing = t->rows.train;
    int64_t done = t->resume.record ? t->resume.record->progress.step : 0;
    int64_t sequences = (t->shape.lr.steps - done) * t->shape.step_sequences;
    return (struct ot_forecast_rows){.fill = ot_packing_fill(packing),
                                     .tokens = ot_packing_tokens(packing) / ot_packing_rows(packing),
                                     .run_tokens =
                                         t->shape.lr.steps > done ? sequences * t->rows.seq_len : 0};
}

static int predict_step(void *context, struct ot_step_candidate *candidate) {
    struct train *t = context;
    struct ot_forecast_rows rows = forecast_rows(t);
    struct ot_prediction prediction;
    char tokens[OT_TEXT_BYTES], status[64];
    snprintf(status, sizeof status, "predicting a step of %s tokens",
             ot_text_count(candidate->tokens, tokens));
    if (!t->session.options->quiet && ot_is_rank0(&t->session))
        ot_log_set_status(status);
    t->need.step_sequences = candidate->sequences;
    OT_TRY(ot_session_predict(&t->session, &t->need, &rows, &prediction));
    candidate->step_seconds = prediction.step_seconds;
    candidate->tokens_per_second = prediction.tokens / prediction.step_seconds;
    return 0;
}

/* Chooses the step of --tokens-per-step auto, which takes seconds, and finds the run's length. */
static int choose_step(struct train *t) {
    struct ot_step_choice *choice = &t->choice;
    int rc = ot_step_choice_make(t->session.options, t->rows.seq_len, ot_packing_sequences(t->rows.train),
                                 predict_step, t, choice);
    ot_log_set_status("");
    OT_TRY(rc);
    OT_TRY(ot_session_ranks_choose(&t->session, &choice->chosen));
    ot_settings_choose_step(&t->settings, choice->candidates[choice->chosen].tokens);
    return find_shape(t);
}

static int prepare(struct train *t) {
    struct ot_session *s = &t->session;
    const struct ot_options *o = s->options;
    t->need.step_sequences = t->shape.step_sequences;
    OT_TRY(ot_session_plan(s, &t->need));
    OT_TRY(ot_resume_check_ranks(&t->resume, o, ot_shard_holders(&s->ranks.shard)));
    t->report = (struct ot_report){.session = s,
                                   .rows = &t->rows,
                                   .shape = &t->shape,
                                   .times = &t->times,
                                   .choice = &t->choice,
                                   .resumed = t->resume.record,
                                   .has_places = t->sharing.hosts != NULL};
    if (writes_out(t)) {
        OT_TRY(ot_result_open(s, o->out, t->lock, t->resume.changes.history, &t->result));
        t->report.out = o->out;
        t->report.save_bytes = t->result.bytes;
        t->report.disk_free_bytes = ot_disk_free(o->out);
    }
    return 0;
}

/* Checks that --trace can be written: an error is better before step 1 than after the last step. */
static int try_trace(const struct ot_options *options) {
    const char *path = options->trace;
    OT_TRY(ot_report_check_trace(options));
    FILE *file = path ? fopen(path, "a") : NULL;
    if (path && (!file || fclose(file) != 0))
        return ot_fail_errno(OT_E_IO, errno, "--trace %s: cannot write there", path);
    return 0;
}

static int predict_times(struct train *t) {
    const struct ot_session *s = &t->session;
    struct ot_run_work work = {.options = s->options,
                               .shape = &t->shape,
                               .first = t->resume.record ? t->resume.record->progress.step : 0,
                               .result_bytes = t->report.save_bytes,
                               .eval_sequences = t->rows.eval ? ot_packing_sequences(t->rows.eval) : 0,
                               .sample_tokens = t->sample_row >= 0 ? OT_SAMPLE_TOKENS : 0};
    int64_t referred;
    ot_answers_work(t->answers, &work);
    if (s->options->no_forecast)
        return 0;
    if (!s->options->no_save)
        ot_saver_bytes(s, &work.checkpoint_bytes, &referred);
    return ot_run_times_predict(&work, ot_model_chain(s->model.built), &s->plan.chosen,
                                &s->plan.forecast.costs, s->plan.prediction.step_seconds, &t->times);
}

/* The chosen mode, and of replicas the number of stages, become options of the run. */
static void keep_division(struct train *t) {
    const struct ot_shard *shard = &t->session.plan.chosen.shard;
    ot_settings_choose_word(&t->settings, "shard", OT_CHOICE_SHARD_NONE + (int)shard->mode);
    if (shard->mode == OT_SHARD_STAGES && ot_shard_holders(shard) > 1)
        ot_settings_choose_count(&t->settings, "stages", ot_shard_stages(shard));
}

/* May take seconds, so call it after all other checks. */
static int forecast(struct train *t) {
    struct ot_session *s = &t->session;
    struct ot_forecast_rows rows = forecast_rows(t);
    if (!s->options->no_forecast)
        OT_TRY(ot_session_forecast(s, &t->need, &rows));
    OT_TRY(predict_times(t));
    if (!s->options->micro_batch)
        ot_settings_choose_count(&t->settings, "micro-batch",
                                 ot_plan_micro_sequences(&s->plan.chosen, t->shape.seq_len));
    if (!s->options->row_sections)
        ot_settings_choose_count(&t->settings, "row-sections", ot_plan_sections(&s->plan.chosen));
    if (s->ranks.comm && s->options->shard == OT_CHOICE_SHARD_AUTO)
        keep_division(t);
    return ot_run_identity_take_options(&t->identity, s->options);
}

static int show_plan(struct train *t) {
    if (!ot_is_rank0(&t->session))
        return 0;
    if (t->session.options->show_sample)
        OT_TRY(ot_sample_view_print(&t->session, &t->rows));
    ot_options_note_migration(t->session.options);
    ot_report_print(&t->report);
    ot_resume_print(&t->resume);
    return 0;
}

/* Prints the model's greedy answer to a row that was not trained on. */
static int show_sample(struct train *t, int64_t step) {
    struct ot_session *s = &t->session;
    struct ot_generated generated = {0};
    char *prompt = NULL;
    int rc = ot_sample_row_answer(s, &t->rows, t->sample_row, s->ranks.comm ? NULL : ot_stop_requested,
                                  &prompt, &generated);
    if (rc == 0 && ot_is_rank0(s))
        rc = ot_report_sample(t->log, step, prompt, generated.text ? generated.text : "");
    ot_generated_free(&generated);
    free(prompt);
    return rc;
}

static struct ot_saver_config saver_config(struct train *t) {
    const struct ot_checkpoint_record *record = t->resume.record;
    return (struct ot_saver_config){.session = &t->session,
                                    .log = t->log,
                                    .parent = t->checkpoints,
                                    .shape = &t->shape,
                                    .model_bytes = t->result.bytes,
                                    .evaluates = t->rows.eval != NULL,
                                    .sharing = &t->sharing,
                                    .step = record ? record->progress.step : 0,
                                    .resumed = record ? ot_checkpoint_dir(t->resume.checkpoint) : NULL,
                                    .begins_evals = record && t->resume.changes.phase.evals_first >
                                                                  record->phase.evals_first,
                                    .is_own = ot_resume_is_own(&t->resume, t->session.options->out)};
}

static int open_saver(struct train *t) {
    struct ot_saver_config config = saver_config(t);
    OT_TRY(ot_saver_open(&config, &t->saver));
    t->rescue = (struct ot_rescue){.saver = t->saver,
                                   .session = &t->session,
                                   .options = t->session.options,
                                   .only_in_out = t->sharing.is_local,
                                   .lock = t->lock};
    return 0;
}

/* Prepares OUT, on a rank that leads there. Nothing before this call changes OUT. */
static int open_out(struct train *t) {
    const char *out = t->session.options->out;
    OT_TRY(ot_out_dir_claim(out, NULL, t->lock));
    t->lock->insists = true;
    if (ot_is_rank0(&t->session)) {
        if (!ot_resume_is_own(&t->resume, out))
            OT_TRY(ot_finished_keep_log(out));
        OT_TRY(ot_run_log_start_file(t->log, out, ot_resume_log_bytes(&t->resume, out)));
    }
    OT_TRY(ot_resume_clear_newer(&t->resume, out, t->shape.lr.steps));
    return open_saver(t);
}

/* On the other ranks. */
static int join_out(struct train *t) {
    if (t->session.options->no_save)
        return 0;
    return t->sharing.leads ? open_out(t) : open_saver(t);
}

/* Checks that OUT can be written and has the space, before any long work. */
static int try_out(struct train *t) {
    struct ot_saver_config config = saver_config(t);
    if (ot_is_rank0(&t->session))
        OT_TRY(ot_result_try(&t->result));
    return ot_saver_check_space(&config);
}

static int start(struct train *t) {
    struct ot_session *s = &t->session;
    const struct ot_options *o = s->options;
    struct ot_optimizer_config optimizer = {.beta1 = (float)o->beta1,
                                            .beta2 = (float)o->beta2,
                                            .eps = (float)o->eps,
                                            .weight_decay = (float)o->weight_decay,
                                            .clip = (float)o->clip,
                                            .seed = (uint64_t)o->seed};
    s->model.restored = t->resume.checkpoint;
    s->requests = ot_stop_save_requests_tell;
    s->requests_context = &t->requests;
    int rc = ot_session_start(s, &optimizer);
    if (rc < 0)
        return s->model.restored ? ot_resume_advise(&t->resume, rc) : rc;
    OT_TRY(ot_agree_on_weights(s));
    if (!ot_is_rank0(s))
        return join_out(t);
    ot_report_print_store(&t->report);
    OT_TRY(ot_report_record(&t->report, t->log));
    if (s->model.restored)
        OT_TRY(ot_run_log_resume(t->log, t->resume.record->progress.step,
                                 ot_checkpoint_dir(s->model.restored), ot_checkpoint_bytes(s->model.restored),
                                 s->model.restore_seconds, t->resume.changes.history));
    OT_TRY(ot_run_log_check(t->log)); /* before OUT is changed */
    return o->no_save ? 0 : open_out(t);
}

/* With --result best: goes back to the best state of a finished run. */
static int choose_state(struct train *t, struct ot_outcome *outcome, struct ot_checkpoint_record *end) {
    if (outcome->interrupted || t->session.options->result != OT_CHOICE_RESULT_BEST)
        return 0;
    int rc = ot_saver_restore_best(t->saver, end, &outcome->result_step);
    if (rc < 0)
        return ot_rescue_save(&t->rescue, NULL, rc);
    end->result_step = outcome->result_step;
    outcome->checkpoint = ot_saver_last_dir(t->saver);
    outcome->checkpoint_step = ot_saver_last_step(t->saver);
    return 0;
}

/* What a run whose model cannot be saved rescues: its last state, if the engine has it. Else that state has a
 * checkpoint. */
static const struct ot_checkpoint_record *rescued(const struct ot_checkpoint_record *end) {
    return end->result_step > 0 ? NULL : end;
}

/* Saves the model of a finished run. */
static int keep_model(struct train *t, const struct ot_checkpoint_record *end) {
    const char *out = t->session.options->out;
    ot_saver_make_room(t->saver);
    int rc = ot_result_write(&t->result, end);
    if (rc < 0)
        return ot_rescue_save(&t->rescue, rc == -OT_E_COMM ? NULL : rescued(end), rc);
    rc = ot_finished_drop_log(out);
    if (rc == 0)
        rc = ot_saver_complete(t->saver);
    return rc < 0 ? ot_fail_context(rc, "%s: the result is saved", out) : 0;
}

/* On the other ranks. If rank 0 cannot save the model, all save their state together. */
static int serve_model(struct train *t, const struct ot_checkpoint_record *end, bool interrupted) {
    bool saved;
    OT_TRY(ot_gather_serve(&t->session, &saved));
    if (!saved)
        return interrupted ? ot_gather_fail() : ot_rescue_save(&t->rescue, rescued(end), ot_gather_fail());
    return t->sharing.leads && !interrupted ? ot_saver_complete(t->saver) : 0;
}

/* Saves the result of the run. A finished run saves the model. A stopped run has already saved a checkpoint.
 * If --grace left no time for it, saves only the weights, if there is time for them. Rank 0 decides and
 * writes; the other ranks serve until it is done. */
static int keep_result(struct train *t, struct ot_outcome *outcome, struct ot_checkpoint_record *end) {
    struct ot_session *s = &t->session;
    if (s->options->no_save)
        return 0;
    OT_TRY(choose_state(t, outcome, end));
    if (!ot_is_rank0(s))
        return serve_model(t, end, outcome->interrupted);
    if (!outcome->interrupted)
        return keep_model(t, end);
    outcome->weights_alone =
        outcome->out_of_time &&
        ot_stop_seconds() + ot_saver_model_seconds(t->saver, t->result.bytes) <= s->options->grace;
    if (!outcome->weights_alone)
        return ot_gather_nothing(s);
    ot_saver_make_room(t->saver);
    return ot_result_write(&t->result, NULL);
}

static int run(struct train *t) {
    struct ot_session *s = &t->session;
    struct ot_outcome outcome;
    struct ot_checkpoint_record end;
    OT_TRY(start(t));
    OT_TRY(ot_references_make(s, &t->rows, &t->identity, &t->references));
    struct ot_train_loop loop = {.session = s,
                                 .rows = &t->rows,
                                 .references = &t->references,
                                 .answers = t->answers,
                                 .shape = &t->shape,
                                 .times = &t->times,
                                 .log = t->log,
                                 .identity = &t->identity,
                                 .saver = t->saver,
                                 .rescue = &t->rescue,
                                 .hosts = ot_plan_is_divided(&s->plan.chosen) ? t->sharing.hosts : NULL,
                                 .requests = &t->requests,
                                 .resume = t->resume.record,
                                 .history = t->resume.changes.history,
                                 .report_again = ot_report_forecast_again};
    if (s->options->grace > 0)
        ot_stop_set_grace(s->options->grace);
    OT_TRY(ot_stop_install(
        t->saver
            ? "Stopping: finishing the step and saving. Press Ctrl-C again to quit without saving.\n"
            : "Stopping: finishing the step; nothing is saved (--no-save). Press Ctrl-C again to quit at "
              "once.\n"));
    double began = ot_clock_seconds();
    OT_TRY(ot_train_loop_run(&loop, &outcome, &end));
    if (outcome.interrupted && outcome.steps == 0)
        return ot_fail(OT_E_INTERRUPT, "stopped before step 1: nothing was trained");
    double trained = ot_clock_seconds();
    OT_TRY(keep_result(t, &outcome, &end));
    double kept = ot_clock_seconds();
    if (t->sample_row >= 0 && !(s->ranks.comm ? outcome.interrupted : ot_stop_requested()))
        OT_TRY(show_sample(t, outcome.result_step > 0 ? outcome.result_step : outcome.steps));
    double shown = ot_clock_seconds();
    outcome.result_seconds = kept - trained;
    outcome.sample_seconds = shown - kept;
    outcome.whole_seconds = shown - began;
    ot_stop_ignore();
    if (ot_is_rank0(s))
        ot_report_done(&t->report, &outcome);
    OT_TRY(ot_session_ranks_gather_traces(s));
    if (!ot_is_rank0(s))
        return outcome.interrupted ? -OT_E_STOPPED : 0;
    OT_TRY(ot_report_trace(&t->report, t->log));
    OT_TRY(ot_report_record_done(&t->report, &outcome, t->log));
    if (outcome.out_of_time && !outcome.checkpoint && !outcome.weights_alone)
        return ot_fail(
            OT_E_INTERRUPT,
            "nothing is saved: --grace was too short for a save, and there is no earlier checkpoint; use a "
            "longer --grace, or save more often (--save-every)");
    return outcome.interrupted ? -OT_E_STOPPED : 0;
}

/* --dry-run of a finished run: refuses the options that the command without it refuses, then plans as for a
 * new run. */
static int check_finished(struct train *t) {
    struct ot_settings settings = t->settings;
    OT_TRY(ot_resume_take_over(&t->resume, &settings));
    t->finished_steps = t->resume.record ? t->resume.record->steps : 0;
    ot_resume_forget_finished(&t->resume);
    return 0;
}

/* Finds the checkpoint to resume from. This comes before all inputs are opened, because the checkpoint has
 * the options of the run. */
static int find_checkpoint(struct train *t) {
    const struct ot_options *options = &t->settings.in_effect;
    OT_TRY(ot_out_name_find(&t->settings, t->world, t->out, sizeof t->out));
    if (!options->no_save &&
        snprintf(t->checkpoints, sizeof t->checkpoints, "%s/checkpoints", options->out) >= PATH_MAX)
        return ot_fail(OT_E_USAGE, "--out %s: the path is too long", options->out);
    OT_TRY(ot_out_sharing_find(options, t->world, &t->sharing));
    if (!options->no_save && !options->dry_run && t->sharing.leads) {
        OT_TRY(ot_out_lock_await(options->out, &t->lock));
        OT_TRY(ot_out_dir_settle(options->out, NULL, t->lock));
    }
    OT_TRY(ot_resume_find_together(options, !options->dry_run, t->world, &t->sharing, &t->resume));
    if (options->dry_run && ot_resume_is_finished(&t->resume))
        OT_TRY(check_finished(t));
    return ot_resume_take_over(&t->resume, &t->settings);
}

/* Compares the ranks before the step is chosen and the plan is made, because errors there do not name the
 * difference. */
static int agree(struct train *t) {
    OT_TRY(ot_run_identity_take_options(&t->identity, &t->settings.in_effect));
    return ot_agree_on_run(&t->session, &t->identity);
}

static int open_dashboards(struct train *t) {
    const struct ot_options *o = t->session.options;
    if (!ot_is_rank0(&t->session) || !(o->tensorboard || o->metrics))
        return 0;
    OT_TRY(ot_dashboards_open(o->tensorboard, o->metrics, &t->dashboards));
    ot_run_log_follow(t->log, !o->no_save, ot_dashboards_take, t->dashboards);
    return 0;
}

static int prepare_and_run(struct train *t) {
    const struct ot_options *options = &t->settings.in_effect;
    OT_TRY(ot_launch_join(options, &t->world));
    t->session.ranks.world = t->world;
    OT_TRY(find_checkpoint(t));
    OT_TRY(ot_run_log_open(options->json && ot_is_rank0(&t->session), &t->log));
    OT_TRY(ot_session_open(&t->settings, &t->session));
    OT_TRY(read_inputs(t));
    if (ot_resume_is_finished(&t->resume))
        return ot_is_rank0(&t->session)
                   ? ot_finished_confirm(options, t->resume.record, t->shape.lr.steps, t->log)
                   : 0;
    OT_TRY(agree(t));
    find_need(t);
    if (ot_step_is_open(options))
        OT_TRY(choose_step(t));
    OT_TRY(prepare(t));
    if (options->dry_run && t->finished_steps > 0)
        OT_TRY(ot_finished_check_length(options, t->finished_steps, t->shape.lr.steps));
    if (options->dry_run) {
        OT_TRY(forecast(t));
        OT_TRY(show_plan(t));
        return ot_report_record(&t->report, t->log);
    }
    OT_TRY(try_trace(options));
    OT_TRY(open_dashboards(t));
    if (t->lock)
        OT_TRY(try_out(t));
    OT_TRY(forecast(t));
    OT_TRY(show_plan(t));
    return run(t);
}

/* Tells the other ranks why this one ends. A rank that ends because of another one learns the true reason,
 * and rank 0 then names the last checkpoint, unless that reason is its own and names it already. */
static int tell_ranks(struct train *t, const struct ot_error *why) {
    int rc = ot_world_fail(t->world, why);
    bool names = t->saver && rc == -OT_E_COMM && ot_is_rank0(&t->session);
    return names ? ot_rescue_save(&t->rescue, NULL, rc) : rc;
}

int ot_command_train(const struct ot_options *options) {
    struct train *t = calloc(1, sizeof *t);
    if (!t)
        return ot_fail(OT_E_BUDGET, "no memory");
    t->settings = (struct ot_settings){*options};
    int rc = ot_stop_install_early("error: stopped before step 1: nothing was trained\n");
    if (rc == 0)
        rc = prepare_and_run(t);
    struct ot_error why; /* after a failure, errors of closing are not reported */
    ot_error_save(&why, rc);
    if (t->world && rc < 0 && rc != -OT_E_STOPPED)
        ot_error_save(&why, tell_ranks(t, &why));
    bool is_stuck = t->session.engine && ot_engine_is_stuck(t->session.engine);
    if (why.code && why.code != OT_E_STOPPED && t->log && !is_stuck)
        ot_run_log_fail(t->log, &why);
    if (!is_stuck)
        ot_saver_close(t->saver);
    if (rc == 0 && t->references.data && writes_out(t))
        ot_references_forget(t->session.options->out, t->checkpoints);
    int flushed = t->log ? ot_run_log_flush(t->log) : 0; /* also after a failure: the log has all records */
    if (rc == 0)
        ot_error_save(&why, flushed);
    ot_run_log_close(t->log);
    ot_dashboards_close(t->dashboards);
    if (is_stuck) /* its threads still use the rest */
        return ot_error_load(&why);
    ot_result_close(&t->result);
    ot_references_free(&t->references);
    ot_answers_close(t->answers);
    ot_rows_close(&t->rows);
    ot_run_identity_free(&t->identity);
    ot_session_close(&t->session);
    ot_world_close(t->world);
    ot_resume_close(&t->resume);
    ot_out_lock_close(t->lock);
    ot_out_sharing_free(&t->sharing);
    free(t);
    return ot_error_load(&why);
}
