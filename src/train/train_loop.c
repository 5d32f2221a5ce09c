#include "src/train/train_loop.h"

#include <stdatomic.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/minmax.h"
#include "src/base/signals.h"
#include "src/session/forecast.h"
#include "src/session/plan_request.h"
#include "src/session/session_ranks.h"
#include "src/train/progress.h"

enum { IN_FLIGHT = 2 };

/* The device is tuned once: after the first steps, which show it all shapes, and only if the run has enough
 * steps or enough time left to gain from it. */
enum { TUNE_AFTER = 2, TUNE_FOR_STEPS = 20 };
static const double tune_seconds = 3, tune_for_seconds = 30;

enum { FILLING_STEPS = 2 }; /* later the pipeline is full, and one-time work of the device is over */

struct flight { /* the loop's notes on a submitted step */
    int64_t tokens, trained_tokens, sequences;
    double lr, epoch;
    struct ot_data_position position; /* where its batch begins */
};

struct loop {
    const struct ot_train_loop *of;
    struct ot_outcome *out;
    struct ot_batcher *batcher;
    struct ot_run_calendar calendar;
    struct ot_progress progress;
    struct flight flights[IN_FLIGHT];
    struct ot_loss_guard guard;
    struct ot_forecast_again again;
    int64_t submitted, done;
    int64_t eval_at;           /* the loop evaluates after this step, and submits no later step before that */
    int64_t tune_at;           /* the loop tunes after this step, likewise; 0: never, or done */
    int64_t save_at;           /* the loop begins a checkpoint after this step, likewise */
    int64_t best_at;           /* the loop begins to save the best state after this step, likewise */
    double last_eval, started; /* times of the last evaluation, and of the loop's begin */
    double step_seconds;       /* of the last step */
    int64_t filled_from;       /* the step after which the engine was last drained */
    double at_roof;            /* seconds of a token (rows.h); 0: unknown */
    struct ot_store_usage moved; /* total up to the last step */
    unsigned found_requests;     /* of all ranks, from the results of steps; not acted on yet */
    struct ot_error log_error;   /* the log could not be written: all save and stop, then it is returned */
    bool log_is_told;            /* log_error ends the run, and everything is saved */
    bool fails_together;         /* all ranks have the error that ends the run, at the same step */
    bool others_save;            /* a rank was still saving in the last step, or no step has said so yet */
};

/* ASKS_WAIT: this rank has not yet written its parts of the checkpoint under way. */
enum { ASKS_STOP = 1, ASKS_EVAL = 2, ASKS_SAVE = 4, ASKS_WAIT = 8 };

static bool has_ranks(const struct loop *l) {
    return l->of->session->ranks.comm != NULL;
}

unsigned ot_stop_save_requests_tell(void *me) {
    return atomic_load(&((struct ot_stop_save_requests *)me)->bits) | (ot_stop_requested() ? ASKS_STOP : 0);
}

/* True if the run is to stop. One rank need not wait for a step to know. */
static bool stops(const struct loop *l) {
    return has_ranks(l) ? l->found_requests & ASKS_STOP : ot_stop_requested();
}

/* True once after all ranks have found the request. With one rank: if it is asked. */
static bool take_request(struct loop *l, unsigned request, bool asked) {
    if (!has_ranks(l))
        return asked;
    if (asked && ot_is_rank0(l->of->session)) /* the clock of rank 0 counts */
        atomic_fetch_or(&l->of->requests->bits, request);
    bool found = l->found_requests & request;
    l->found_requests &= ~request;
    if (found)
        atomic_fetch_and(&l->of->requests->bits, ~request);
    return found;
}

/* rc: of writing the log, which only rank 0 does. With several ranks its failure asks all to save and
 * stop. */
static int log_result(struct loop *l, int rc) {
    if (rc != -OT_E_IO || !has_ranks(l))
        return rc;
    if (l->log_error.code == 0)
        ot_error_save(&l->log_error, rc);
    atomic_fetch_or(&l->of->requests->bits, ASKS_STOP);
    return 0;
}

static int submit_step(struct loop *l) {
    const struct ot_run_shape *shape = l->of->shape;
    struct ot_step_batch batch;
    OT_TRY(ot_batcher_next(l->batcher, &batch));
    double lr = ot_lr_at(&shape->lr, l->submitted + 1);
    batch.input.lr = (float)lr;
    const struct ot_shard *shard = &l->of->session->ranks.shard;
    batch.input.micro += ot_shard_micro(shard, batch.input.n_micro, shard->rank).first;
    ot_forecast_again_submit(&l->again, l->submitted + 1);
    OT_TRY(ot_engine_submit(l->of->session->engine, &batch.input));
    double passed = (double)(batch.position.sequence + batch.sequences) / (double)shape->sequences;
    l->flights[l->submitted % IN_FLIGHT] = (struct flight){
        batch.tokens,  batch.trained_tokens, batch.sequences, lr, (double)batch.position.epoch + passed,
        batch.position};
    l->submitted++;
    int made = ot_forecast_again_make(&l->again, l->submitted);
    return made > 0 ? log_result(l, l->of->report_again(l->of->session, l->of->log)) : made;
}

static int record_step(struct loop *l, const struct flight *flight, const struct ot_step_result *result) {
    struct ot_device_usage usage;
    struct ot_store_usage moved;
    ot_device_usage(l->of->session->machine.device, &usage);
    ot_engine_store_usage(l->of->session->engine, &moved);
    struct ot_step_report report = {.step = l->done,
                                    .tokens = flight->tokens,
                                    .trained_tokens = flight->trained_tokens,
                                    .epoch = flight->epoch,
                                    .loss = result->loss,
                                    .compares = l->of->session->options->objective != OT_OBJECTIVE_SFT,
                                    .compared = ot_step_means(l->of->session->options, result),
                                    .grad_norm = result->grad_norm,
                                    .clipped_norm = result->clipped_norm,
                                    .lr = flight->lr,
                                    .seconds = result->seconds,
                                    .roof_share = l->at_roof * (double)flight->tokens / result->seconds,
                                    .gpu_bytes = usage.used_bytes,
                                    .host_bytes = usage.pinned_bytes + (size_t)ot_rows_bytes(l->of->rows),
                                    .nvme_read_bytes = moved.read_bytes - l->moved.read_bytes,
                                    .nvme_written_bytes = moved.written_bytes - l->moved.written_bytes,
                                    .loss_scale = result->loss_scale,
                                    .skipped = result->skipped,
                                    .spike = result->spike};
    l->moved = moved;
    if (!ot_is_rank0(l->of->session))
        return 0;
    if (!l->of->session->options->quiet)
        ot_progress_show(&l->progress, &report, &l->calendar);
    return ot_run_log_step(l->of->log, &report);
}

/* Times a step in the middle of a run. The forecast predicts such steps. */
static void time_step(struct loop *l, const struct flight *flight, const struct ot_step_result *result) {
    bool is_full = flight->sequences == l->of->shape->step_sequences;
    l->step_seconds = result->seconds;
    ot_forecast_again_finish(&l->again, l->done, is_full && !result->skipped);
    if (l->done - l->filled_from <= FILLING_STEPS || !is_full)
        return;
    l->out->timed_steps++;
    l->out->timed_seconds += result->seconds;
}

/* After a stop request that took too long: forgets this step, which has changed nothing, and the step behind
 * it, as if neither had been submitted. */
static int drop_steps(struct loop *l) {
    struct ot_engine *engine = l->of->session->engine;
    struct ot_engine_progress progress;
    struct ot_step_result behind;
    if (l->submitted - l->done == IN_FLIGHT)
        OT_TRY(ot_engine_result(engine, &behind));
    OT_TRY(ot_engine_drain(engine));
    ot_engine_get_progress(engine, &progress);
    progress.step = l->done;
    ot_engine_set_progress(engine, &progress);
    OT_TRY(ot_batcher_seek(l->batcher, l->flights[l->done % IN_FLIGHT].position));
    l->submitted = l->done;
    return 0;
}

/* Too many steps in a row were skipped. The step behind the last one, if any, is dropped too. */
static int give_up(struct loop *l, const struct flight *flight, const struct ot_step_result *result) {
    struct ot_step_result behind;
    struct ot_step_batch batch;
    struct ot_loss_guard_step step = {result, &batch, l->of->session->options->micro_batch};
    if (l->done < l->submitted)
        OT_TRY(ot_engine_result(l->of->session->engine, &behind));
    OT_TRY(ot_engine_drain(l->of->session->engine));
    OT_TRY(ot_batcher_seek(l->batcher, flight->position));
    OT_TRY(ot_batcher_next(l->batcher, &batch));
    return ot_loss_guard_explain(&l->guard, l->of->session, l->of->rows, &step);
}

static void count_step(struct loop *l, const struct flight *flight, const struct ot_step_result *result) {
    l->done++;
    l->out->steps = l->done;
    l->out->tokens += flight->tokens;
    l->out->last_loss = result->loss;
}

static int finish_step(struct loop *l) {
    struct ot_step_result result;
    OT_TRY(ot_engine_result(l->of->session->engine, &result));
    l->found_requests |= result.requests & ~ASKS_WAIT;
    l->others_save = result.requests & ASKS_WAIT;
    if (result.skipped == OT_SKIP_GIVEN_UP) {
        l->others_save = true; /* nobody has said anything */
        l->found_requests |= ASKS_STOP;
        return drop_steps(l);
    }
    const struct flight *flight = &l->flights[l->done % IN_FLIGHT];
    count_step(l, flight, &result);
    time_step(l, flight, &result);
    OT_TRY(log_result(l, record_step(l, flight, &result)));
    return ot_loss_guard_add(&l->guard, &result) ? give_up(l, flight, &result) : 0;
}

/* ---- evaluation ---- */

/* Evaluation by the clock: as soon as the submitted steps have finished. */
static void call_eval_by_time(struct loop *l) {
    double seconds = l->of->session->options->eval_every.seconds;
    bool due = l->of->rows->eval && seconds > 0 && ot_clock_seconds() - l->last_eval >= seconds &&
               l->eval_at > l->submitted;
    if (take_request(l, ASKS_EVAL, due) && l->eval_at > l->submitted)
        l->eval_at = l->submitted;
}

/* True after the last step, or after the evaluation with which --stop-early ends the run. */
static bool is_over(const struct loop *l) {
    return l->done == l->of->shape->lr.steps || l->out->stopped_early;
}

static void find_early_stop(struct loop *l) {
    int64_t patience = l->of->session->options->stop_early.evaluations;
    l->out->stopped_early =
        l->done < l->of->shape->lr.steps && ot_eval_history_stops(&l->out->history, l->done, patience);
    if (l->out->stopped_early && l->of->session->options->save_end)
        l->save_at = l->done;
}

/* Lets the present state be saved now if it was evaluated, and nothing that is saved is as good. The state
 * after the last step is the result itself. */
static int call_save_of_best(struct loop *l) {
    if (!l->of->saver || l->done == 0 || is_over(l))
        return 0;
    double cost = ot_eval_history_cost(&l->out->history, l->done);
    int wants = ot_saver_wants_best(l->of->saver, l->done, cost);
    OT_TRY(ot_session_ranks_choose(l->of->session, &wants));
    if (wants)
        l->best_at = l->done;
    return 0;
}

static int evaluate(struct loop *l) {
    struct ot_session *s = l->of->session;
    struct ot_evaluation evaluation = {.dataset = l->of->rows->eval_set,
                                       .packing = l->of->rows->eval,
                                       .seq_len = l->of->rows->seq_len,
                                       .micro_sequences = s->options->micro_batch,
                                       .objective = ot_plan_request_objective(s->options),
                                       .references = ot_references_of_eval(l->of->references, l->of->rows),
                                       .comm = s->ranks.comm,
                                       .stopped = ot_stop_requested};
    struct ot_eval_result result;
    struct ot_answer_score answers = {0};
    l->filled_from = l->done;
    OT_TRY(ot_engine_drain(s->engine));
    OT_TRY(ot_evaluate(s->engine, &evaluation, &result));
    if (l->of->answers && !result.stopped) {
        OT_TRY(ot_answers_run(l->of->answers, s, ot_stop_requested, &answers));
        result.stopped = !s->ranks.comm && answers.rows == 0;
    }
    if (result.stopped) {
        l->found_requests |= ASKS_STOP;
        return 0;
    }
    struct ot_eval_score score = {result.loss, result.accuracy, ot_answer_match(&answers),
                                  ot_answer_execution(&answers)};
    bool best = ot_eval_history_add(&l->out->history, l->done, &score, s->options->stop_early.delta);
    l->last_eval = ot_clock_seconds();
    find_early_stop(l);
    struct ot_eval_report report = {.step = l->done,
                                    .steps = l->of->shape->lr.steps,
                                    .is_best = best,
                                    .loss = result.loss,
                                    .accuracy = result.accuracy,
                                    .compares = s->options->objective != OT_OBJECTIVE_SFT,
                                    .compared = result.compared,
                                    .trained_tokens = result.trained_tokens,
                                    .rows = result.rows,
                                    .seconds = result.seconds,
                                    .answers = &answers};
    ot_run_log_show_eval(&report);
    OT_TRY(log_result(l, ot_is_rank0(s) ? ot_run_log_eval(l->of->log, &report) : 0));
    return call_save_of_best(l);
}

/* ---- tuning ---- */

static int tune(struct loop *l) {
    struct ot_device_tuning tuning;
    int64_t left = l->of->shape->lr.steps - l->done;
    if (left < TUNE_FOR_STEPS && (double)left * l->step_seconds < tune_for_seconds) {
        l->tune_at = 0;
        return 0;
    }
    l->filled_from = l->done;
    OT_TRY(ot_engine_tune(l->of->session->engine, tune_seconds, &tuning));
    l->tune_at = 0;
    if (tuning.timed > 0)
        ot_log(
            tuning.replaced > 0 ? OT_LOG_INFO : OT_LOG_DEBUG,
            "tuning: %d of %d shapes of matrix products now use a faster algorithm than the library's first "
            "choice",
            tuning.replaced, tuning.shapes);
    return 0;
}

/* ---- checkpoints ---- */

/* Describes the run after the last step whose result was collected. */
static struct ot_checkpoint_record make_record(const struct loop *l) {
    const struct ot_train_loop *of = l->of;
    struct ot_checkpoint_record record = {
        .position = l->submitted > l->done ? l->flights[l->done % IN_FLIGHT].position
                                           : ot_batcher_position(l->batcher),
        .steps = of->shape->lr.steps,
        .phase = of->shape->phase,
        .history = of->history,
        .tokens = l->out->tokens + (of->resume ? of->resume->tokens : 0),
        .seconds = ot_clock_seconds() - l->started + (of->resume ? of->resume->seconds : 0),
        .ranks = ot_shard_holders(&of->session->ranks.shard),
        .hosts = of->hosts,
        .log_bytes = of->log ? ot_run_log_bytes(of->log) : 0,
        .evals = l->out->history,
        .has_frozen = of->session->model.has_frozen_crc,
        .frozen_crc = of->session->model.frozen_crc,
    };
    ot_run_identity_put(of->identity, &record);
    ot_engine_get_progress(of->session->engine, &record.progress);
    ot_checkpoint_record_stamp(&record, of->session->machine.device);
    return record;
}

static int64_t next_save_step(const struct loop *l) {
    return l->of->saver ? ot_saver_next_step(l->of->saver, l->done) : INT64_MAX;
}

static void call_save_by_time(struct loop *l) {
    bool due = l->of->saver && ot_saver_is_due(l->of->saver) && l->save_at > l->submitted;
    if (take_request(l, ASKS_SAVE, due) && l->save_at > l->submitted)
        l->save_at = l->submitted;
}

/* Begins what is due after this step: to save the best state, a checkpoint, or one after the other. */
static int save(struct loop *l) {
    l->filled_from = l->done;
    OT_TRY(ot_engine_drain(l->of->session->engine));
    struct ot_checkpoint_record record = make_record(l);
    if (has_ranks(l))
        atomic_fetch_or(&l->of->requests->bits, ASKS_WAIT);
    l->others_save = true;
    if (l->done == l->best_at)
        OT_TRY(log_result(l, ot_saver_begin_best(l->of->saver, &record, l->step_seconds)));
    l->best_at = INT64_MAX;
    if (l->done != l->save_at)
        return 0;
    l->save_at = next_save_step(l);
    return log_result(l, ot_saver_begin(l->of->saver, &record, l->step_seconds));
}

/* Completes a checkpoint that has been written. Several ranks complete it after the first step in which none
 * was still busy. */
static int poll_saver(struct loop *l) {
    struct ot_saver *saver = l->of->saver;
    if (!saver)
        return 0;
    if (!has_ranks(l))
        return ot_saver_poll(saver, false);
    if (!ot_saver_is_busy(saver))
        atomic_fetch_and(&l->of->requests->bits, ~(unsigned)ASKS_WAIT);
    return ot_saver_is_under_way(saver) && !l->others_save ? log_result(l, ot_saver_poll(saver, true)) : 0;
}

/* Saves the newest state if --grace leaves time for it. Does nothing if the last checkpoint already has this
 * state. */
static int save_at_stop(struct loop *l) {
    struct ot_saver *saver = l->of->saver;
    struct ot_session *s = l->of->session;
    double grace = s->options->grace;
    if (!saver || l->done == 0)
        return 0;
    OT_TRY(log_result(l, ot_saver_poll(saver, true)));
    int has = ot_saver_has(saver, l->done);
    OT_TRY(ot_session_ranks_choose(s, &has));
    if (has)
        return 0;
    int late = grace > 0 && ot_stop_seconds() + ot_saver_seconds(saver) > grace;
    OT_TRY(ot_session_ranks_choose(s, &late));
    l->out->out_of_time = late;
    if (late)
        return 0;
    l->fails_together = true;
    OT_TRY(ot_session_ranks_agree(s, l->of->rescue->lock ? ot_rescue_restore_out(l->of->rescue) : 0));
    struct ot_checkpoint_record record = make_record(l);
    OT_TRY(log_result(l, ot_saver_begin(saver, &record, 0)));
    OT_TRY(log_result(l, ot_saver_poll(saver, true)));
    has = ot_saver_has(saver, l->done);
    OT_TRY(ot_session_ranks_choose(s, &has));
    return has ? 0 : ot_saver_failure(saver);
}

/* Call this when a lane hangs. Saves the engine's state if it is still the state after the last step. Waits
 * for each save no longer than --stall-limit, since the save may hang too. Returns rc. */
static int save_at_stall(struct loop *l, int rc) {
    struct ot_saver *saver = l->of->saver;
    struct ot_error why;
    ot_error_save(&why, rc);
    double limit = l->of->session->options->stall_limit;
    if (saver && !has_ranks(l) && l->done > 0 && ot_saver_wait(saver, limit) &&
        ot_saver_last_step(saver) != l->done && ot_engine_is_consistent(l->of->session->engine)) {
        struct ot_checkpoint_record record = make_record(l);
        if (ot_saver_begin(saver, &record, 0) == 0)
            (void)ot_saver_wait(saver, limit);
    }
    rc = ot_error_load(&why);
    bool tells = saver && l->done > 0 && ot_is_rank0(l->of->session);
    return tells ? ot_rescue_save(l->of->rescue, NULL, rc) : rc;
}

/* Collects the steps in flight after a failure outside the engine: their results still count. */
static int settle(struct loop *l) {
    struct ot_step_result result;
    while (l->done < l->submitted) {
        OT_TRY(ot_engine_result(l->of->session->engine, &result));
        if (result.skipped == OT_SKIP_GIVEN_UP)
            return drop_steps(l);
        const struct flight *flight = &l->flights[l->done % IN_FLIGHT];
        count_step(l, flight, &result);
        (void)record_step(l, flight, &result); /* if the log fails again, the record waits in the log */
    }
    return ot_engine_drain(l->of->session->engine);
}

/* Saves the run's state after a failure. Returns rc, the error that ended the run. */
static int save_at_failure(struct loop *l, int rc) {
    struct ot_error why;
    ot_error_save(&why, rc);
    if (!l->of->saver || l->log_is_told)
        return rc;
    /* The other ranks may have no error, or another one, so they would not take part. */
    bool together = l->fails_together || rc == -OT_E_NUMERIC; /* all ranks have the same results of steps */
    if (has_ranks(l) && (!together || rc == -OT_E_COMM))
        return ot_is_rank0(l->of->session) ? ot_rescue_save(l->of->rescue, NULL, rc) : rc;
    if (rc == -OT_E_NUMERIC) {
        /* Lets a save that has already begun finish: its state predates the failure, so it is valid. */
        (void)ot_saver_poll(l->of->saver, true);
        return ot_error_load(&why);
    }
    bool is_whole = settle(l) == 0;
    if (!is_whole)
        (void)ot_saver_poll(l->of->saver, true);
    (void)ot_error_load(&why);
    if (l->done == 0)
        return rc;
    struct ot_checkpoint_record record = make_record(l);
    return ot_rescue_save(l->of->rescue, is_whole ? &record : NULL, rc);
}

/* ---- the loop ---- */

/* The last step to submit before the engine must be drained. */
static int64_t next_stop(const struct loop *l) {
    int64_t stop = ot_min(l->eval_at, ot_min(l->save_at, l->best_at));
    return l->tune_at > 0 ? ot_min(stop, l->tune_at) : stop;
}

/* Does something in place of steps, and counts its time. */
static int pause_for(struct loop *l, enum ot_pause kind, int (*work)(struct loop *l)) {
    double since = ot_clock_seconds();
    int rc = work(l);
    ot_progress_pause(&l->progress, kind, ot_clock_seconds() - since);
    return rc;
}

/* Does the work due after the last finished step. No step is in flight. */
static int between_steps(struct loop *l) {
    if (l->done == l->tune_at)
        OT_TRY(pause_for(l, OT_PAUSE_OTHER, tune));
    if (l->done == l->eval_at) {
        if (l->of->rows->eval)
            OT_TRY(pause_for(l, OT_PAUSE_EVAL, evaluate));
        l->eval_at = ot_calendar_next_eval(&l->calendar, l->done);
    }
    if ((l->done == l->best_at || l->done == l->save_at) && !stops(l))
        OT_TRY(pause_for(l, OT_PAUSE_SAVE, save));
    return 0;
}

/* The run is interrupted: because it was asked to stop, or because rank 0 could not write the log. */
static int end_interrupted(struct loop *l) {
    struct ot_saver *saver = l->of->saver;
    int rc = save_at_stop(l);
    if (l->log_error.code == 0)
        return rc;
    if (rc < 0) /* all ranks go on to save elsewhere */
        return rc == -OT_E_COMM ? rc : ot_error_load(&l->log_error);
    rc = ot_error_load(&l->log_error);
    l->log_is_told = true;
    return saver && ot_saver_has(saver, l->done) ? ot_rescue_tell(l->of->rescue, rc) : rc;
}

static int run_steps(struct loop *l) {
    while (!is_over(l) && !l->out->interrupted) {
        while (l->submitted < next_stop(l) && l->submitted - l->done < IN_FLIGHT && !stops(l))
            OT_TRY(submit_step(l));
        if (l->done < l->submitted)
            OT_TRY(finish_step(l));
        OT_TRY(poll_saver(l));
        call_eval_by_time(l);
        call_save_by_time(l);
        if (l->done < l->submitted)
            continue;
        l->out->interrupted = stops(l) && !is_over(l);
        if (!l->out->interrupted)
            OT_TRY(between_steps(l));
    }
    OT_TRY(ot_engine_drain(l->of->session->engine));
    if (l->out->interrupted)
        return end_interrupted(l);
    return l->of->saver ? ot_saver_poll(l->of->saver, true) : 0;
}

/* Sets the loop to the beginning of the run, or to the state of the checkpoint. */
static int enter(struct loop *l) {
    const struct ot_checkpoint_record *r = l->of->resume;
    struct ot_outcome *out = l->out;
    enum ot_eval_metric metric = (enum ot_eval_metric)l->of->session->options->eval_metric;
    *out = (struct ot_outcome){.checkpoint_step = -1, .saved_best_step = -1, .history.metric = metric};
    if (r)
        l->submitted = l->done = out->steps = out->first_step = r->progress.step;
    if (!r || l->of->shape->phase.evals_first > r->phase.evals_first)
        return l->of->rows->eval ? pause_for(l, OT_PAUSE_EVAL, evaluate) : 0;
    out->history = r->evals;
    out->history.metric = metric;
    find_early_stop(l);
    /* an evaluation was due at this step and a stop prevented it */
    int64_t due = ot_calendar_next_eval(&l->calendar, l->done - 1);
    return l->of->rows->eval && l->done == due && r->evals.last_step < l->done
               ? pause_for(l, OT_PAUSE_EVAL, evaluate)
               : call_save_of_best(l);
}

int ot_train_loop_run(const struct ot_train_loop *of, struct ot_outcome *out,
                      struct ot_checkpoint_record *end) {
    struct loop l = {.of = of, .out = out, .started = ot_clock_seconds()};
    const struct ot_options *o = of->session->options;
    struct ot_batch_config config = {.packing = of->rows->train,
                                     .dataset = of->rows->data,
                                     .seq_len = of->shape->seq_len,
                                     .step_sequences = of->shape->step_sequences,
                                     .micro_sequences = o->micro_batch,
                                     .references = of->references->data};
    int rc;
    if (of->resume)
        config.position = ot_shape_position(of->shape, of->resume->progress.step);
    OT_TRY_GOTO(ot_batcher_open(&config, &l.batcher), rc, out);
    l.best_at = INT64_MAX;
    l.at_roof = ot_rows_at_roof(of->rows, of->session);
    l.calendar = (struct ot_run_calendar){o, of->shape, of->rows->eval != NULL, of->saver != NULL};
    ot_progress_open(&l.progress, of->shape->lr.steps, o->log_every, ot_log_is_terminal(), of->times);
    OT_TRY_GOTO(enter(&l), rc, out);
    l.guard = (struct ot_loss_guard){.most = o->max_skips, .counts = &out->counts};
    l.eval_at = ot_calendar_next_eval(&l.calendar, l.done);
    l.save_at = next_save_step(&l);
    l.filled_from = l.done;
    ot_forecast_again_open(of->session, l.done, &l.again);
    l.tune_at = l.done + TUNE_AFTER;
    struct ot_store_usage before, after;
    ot_engine_store_usage(of->session->engine, &before);
    l.moved = before;
    double started = ot_clock_seconds(), before_steps = ot_progress_paused(&l.progress);
    ot_progress_start(&l.progress, started);
    rc = run_steps(&l);
    if (rc < 0)
        rc = rc == -OT_E_STALL ? save_at_stall(&l, rc) : save_at_failure(&l, rc);
    out->seconds = ot_clock_seconds() - started;
    out->step_seconds = out->seconds - (ot_progress_paused(&l.progress) - before_steps);
    out->evals = l.progress.pauses[OT_PAUSE_EVAL].n;
    out->eval_seconds = l.progress.pauses[OT_PAUSE_EVAL].seconds;
    out->save_seconds = l.progress.pauses[OT_PAUSE_SAVE].seconds;
    ot_engine_store_usage(of->session->engine, &after);
    out->nvme_read_bytes = after.read_bytes - before.read_bytes;
    out->nvme_written_bytes = after.written_bytes - before.written_bytes;
    if (of->saver) {
        out->checkpoint = ot_saver_last_dir(of->saver);
        out->checkpoint_step = ot_saver_last_step(of->saver);
        out->saved_best_step = ot_saver_best(of->saver, &out->saved_best_cost);
    }
    *end = make_record(&l);
out:
    ot_log_set_status("");
    ot_batcher_close(l.batcher);
    return rc;
}
