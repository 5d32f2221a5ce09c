/* The log of a run: one JSON object on each line, in OUT/log.jsonl and, with --json, also on stdout.
 *
 * Each line has "event", which names one of the events below, "time" (the wall clock in UTC, such as
 * 2026-01-31T23:59:59.125Z), and the keys listed after it. Durations are in seconds. Losses are in nats, the
 * mean over trained tokens. A key in [brackets] is present only if it applies.
 *
 *   run         version, [out], options, sources (who gave each option: src/options/options.h), machine,
 *               model, data, plan, [prediction]: before step 1
 *   resume      step, checkpoint, read_bytes, read_seconds, [history] (the changes by --resume-with so far:
 *               checkpoint/record.h): the run goes on with the next step
 *   step        step, epoch, loss, [reward_chosen, reward_rejected, reward_margin, reward_accuracy]
 *               (objectives that compare answers: kernels/ops_compare.h), grad_norm, clipped_norm, lr,
 *               tokens, trained_tokens, tokens_per_s,
 *               seconds, [roof_share] (FLOP/s as a share of the machine's matrix products: help
 *               dashboards), gpu_bytes, host_bytes (in use), [nvme_read_bytes], [nvme_written_bytes] (since
 *               the step before), [loss_scale] (fp16), [skipped] (why), [spike]
 *   predicted_again   from_step, to_step (measured), first_step_seconds (predicted before step 1),
 *               step_seconds, busy_seconds, exposed_seconds, exposed_host_seconds
 *   eval        step, loss, [reward_chosen, ...] or perplexity, accuracy, trained_tokens, rows, seconds; with
 *               --eval-generate (answers.h): [answered], [exact_match], [normalised_match], [answer_seconds],
 *               [valid_sql], [equal_results], [by_kind], [not_judged], [variants], [variants_told_apart]
 *   checkpoint  step, dir, written_bytes, referred_bytes, seconds
 *   best        step, dir, written_bytes, referred_bytes, seconds: of the best state (saver.h). After a
 *               failed save the event is checkpoint_failed or best_failed: step, error
 *   sample      step, prompt, text: an answer to a held-out row, at the end
 *   trace       file, steps, left_out, seconds, busy_seconds, exposed_seconds, exposed_host_seconds
 *   done        steps, tokens, seconds (all: step_seconds, eval_seconds, save_seconds, result_seconds,
 *               sample_seconds and the rest), loss, flops_per_s, [roof_share], skipped, spikes,
 *               interrupted,
 *               [stopped_early], [resumed_after], [checkpoint], [last_eval_step], [last_eval],
 *               [last_accuracy], [best_eval_step], [best_eval], [best_accuracy] (by --eval-metric),
 *               [last_match], [last_execution], [best_match], [best_execution] (--eval-generate),
 *               [best_checkpoint_step], [result_step] (if OUT has the model of the best evaluation),
 *               [predicted_step_seconds], [predicted_again_step_seconds], measured_steps,
 *               [measured_step_seconds], nvme_read_bytes, nvme_written_bytes,
 *               shadow_committed, shadow_dropped (tiles, of this rank), gpu_planned_bytes, gpu_used_bytes,
 *               host_planned_bytes, host_used_bytes, nvme_planned_bytes, nvme_used_bytes,
 *               process_peak_bytes, [out]
 *   failed      error, exit_code: the run ended without "done"
 *
 * Every line is flushed, so that the log of a killed run ends with its last step.
 *
 * A resumed run keeps the records up to its checkpoint and cuts later ones, because it makes those steps
 * again, bit for bit: the log has each step once. It writes "run" again, since plan and machine may be
 * different, and then "resume".
 *
 * A follower gets each line when it is in the file: dashboards (src/dashboard/dashboards.h).
 *
 * Training never waits for the reader of stdout (src/base/log.h). For a slow reader "step" events are left
 * out, and {"event": "left_out", "records": N} takes their place. The file has every event.
 */
#ifndef OT_TRAIN_RUN_LOG_H
#define OT_TRAIN_RUN_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offload/engine/engine.h"
#include "src/base/error.h"
#include "src/base/json.h"

struct ot_run_log;

/* mirror: writes to stdout as well. No file is open yet. Errors: OT_E_BUDGET, OT_E_IO (a thread cannot be
 * started). */
int ot_run_log_open(bool mirror, struct ot_run_log **out);
/* Opens DIR/log.jsonl and locks it until close. Keeps the whole lines among the file's first keep_bytes (0:
 * none; the file may be shorter), then writes every line made so far. Errors: OT_E_IO, OT_E_INPUT (another
 * run has locked the file, or it is a symbolic link, which is not followed). */
int ot_run_log_start_file(struct ot_run_log *log, const char *dir, int64_t keep_bytes);
int64_t ot_run_log_bytes(const struct ot_run_log *log); /* size of the file; 0: none is open */
/* Checks that stdout accepts records, without waiting for a slow reader. Errors: OT_E_IO (a write failed). */
int ot_run_log_check(struct ot_run_log *log);
/* Waits until the reader of stdout has every line. Gives up on a reader that reads nothing. Errors: OT_E_IO
 * (a write to stdout failed). */
int ot_run_log_flush(struct ot_run_log *log);
void ot_run_log_close(struct ot_run_log *log); /* NULL is fine */

/* Lets `follow` have each line, without its newline, once it is in the file, also the lines that wait for the
 * file; has_file false: there will be none, so at once. Call it before the first event. */
void ot_run_log_follow(struct ot_run_log *log, bool has_file,
                       void (*follow)(void *context, const char *line, size_t bytes), void *context);

/* Writes "failed", for the error that ends the run, unless no file is open. */
void ot_run_log_fail(struct ot_run_log *log, const struct ot_error *why);

/* To write an event: begin it, fill it through the returned writer, end it. One event at a time.
 * ot_run_log_end writes the line. Errors: OT_E_IO (the disk is full; an earlier write to stdout failed),
 * OT_E_BUDGET. */
struct ot_json_writer *ot_run_log_begin(struct ot_run_log *log, const char *event);
int ot_run_log_end(struct ot_run_log *log);

/* Writes "resume". bytes, seconds: size of the checkpoint, and time that reading it took. */
int ot_run_log_resume(struct ot_run_log *log, int64_t step, const char *checkpoint, int64_t bytes,
                      double seconds, const struct ot_json *history);

struct ot_step_report {
    int64_t step, tokens, trained_tokens;
    double epoch; /* passes over the data so far */
    double loss, grad_norm, clipped_norm, lr, seconds;
    double roof_share; /* 0: unknown */
    bool compares;     /* the objective compares answers */
    struct ot_compare_means compared;
    size_t gpu_bytes, host_bytes;                /* in use */
    int64_t nvme_read_bytes, nvme_written_bytes; /* since the step before */
    float loss_scale;                            /* 1: the loss is not scaled */
    enum ot_skip skipped;                        /* written with its reason if the step was skipped */
    bool spike;
};
/* The members of comparisons in a step, in an evaluation, and in the result of eval. */
void ot_run_log_put_means(struct ot_json_writer *w, const struct ot_compare_means *means);
int ot_run_log_step(struct ot_run_log *log, const struct ot_step_report *report);

struct ot_answer_score; /* answers.h */

struct ot_eval_report {
    int64_t step, steps; /* step 0: before the first step; steps: of the run */
    bool is_best;
    double loss, accuracy;
    bool compares;
    struct ot_compare_means compared;
    int64_t trained_tokens, rows;
    double seconds;
    const struct ot_answer_score *answers; /* NULL, or without rows: none were judged */
};
void ot_run_log_show_eval(const struct ot_eval_report *report); /* a line for people */
int ot_run_log_eval(struct ot_run_log *log, const struct ot_eval_report *report);

#endif
