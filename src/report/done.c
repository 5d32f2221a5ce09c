/* Prints the report after a run: the summary, the lanes, a sample. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/selection.h"
#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/base/text.h"
#include "src/base/units.h"
#include "src/checkpoint/record.h"
#include "src/data/format.h"
#include "src/machine/process.h"
#include "src/report/forecast.h"
#include "src/report/report.h"
#include "src/train/saver.h"

/* ---- the next command, which asks the model for an answer ---- */

static void put_turn(struct ot_json_writer *w, const char *list, const char *role, const char *user,
                     const char *text) {
    ot_json_begin_array(w, list);
    ot_json_begin_object(w, NULL);
    ot_json_put_text(w, role, user);
    ot_json_put_text(w, text, "...");
    ot_json_end_object(w);
    ot_json_end_array(w);
}

static int put_fields(struct ot_json_writer *w, const char *prompt_format) {
    struct ot_prompt_format *format;
    OT_TRY(ot_prompt_format_open(prompt_format, &format));
    for (size_t i = 0; i < ot_prompt_format_fields(format); i++)
        ot_json_put_text(w, ot_prompt_format_field(format, i), "...");
    ot_prompt_format_close(format);
    return 0;
}

/* Writes a row in the form of the training data, without its answer. */
static int put_row(struct ot_json_writer *w, enum ot_row_kind kind, const char *prompt_format) {
    switch (kind) {
    case OT_ROW_MESSAGES:
        put_turn(w, "messages", "role", "user", "content");
        return 0;
    case OT_ROW_SHAREGPT:
        put_turn(w, "conversations", "from", "human", "value");
        return 0;
    case OT_ROW_ALPACA:
        ot_json_put_text(w, "instruction", "...");
        return 0;
    case OT_ROW_SQL:
        ot_json_put_text(w, "question", "...");
        ot_json_put_text(w, "context", "...");
        return 0;
    case OT_ROW_PROMPT:
        ot_json_put_text(w, "prompt", "...");
        return 0;
    case OT_ROW_PAIR:
        ot_json_put_text(w, "input", "...");
        return 0;
    case OT_ROW_CUSTOM:
        return put_fields(w, prompt_format);
    case OT_ROW_TEXT:
    case OT_ROW_UNKNOWN:
        break;
    }
    return 0;
}

/* The words that follow `generate OUT` for a model trained on rows of this kind: -p TEXT, or --row -p with a
 * row without its answer, quoted for a shell. prompt_format: for rows of kind custom. The caller frees
 * *words. Errors: OT_E_BUDGET. */
static int report_next_words(enum ot_row_kind kind, const char *prompt_format, char **words) {
    struct ot_json_writer w = {.indent = -1};
    char *row = NULL, *quoted = NULL;
    size_t bytes;
    int rc;
    *words = NULL;
    if (kind == OT_ROW_TEXT || kind == OT_ROW_UNKNOWN)
        return ot_string_format(words, "-p \"...\"");
    ot_json_begin_object(&w, NULL);
    OT_TRY_GOTO(put_row(&w, kind, prompt_format), rc, out);
    ot_json_end_object(&w);
    OT_TRY_GOTO(ot_json_writer_take(&w, &row, &bytes), rc, out);
    OT_TRY_GOTO(ot_process_quote(row, &quoted), rc, out);
    rc = ot_string_format(words, "--row -p %s", quoted);
out:
    free(w.out.text);
    free(quoted);
    free(row);
    return rc;
}

/* ---- done ---- */

struct memory_use { /* in bytes */
    int64_t planned[OT_TIER_COUNT], used[OT_TIER_COUNT], resident;
};

/* The tiers' totals equal the plan table's. The host's peak covers pinned memory; the table's other bytes
 * (rows, a slab that is saved) are allocated exactly as planned. */
static struct memory_use measure_memory(const struct ot_report *r) {
    const struct ot_ledger *pinned = &r->session->plan.chosen.ledger, whole = ot_report_ledger(r);
    struct memory_use m = {0};
    struct ot_device_usage usage;
    struct ot_store_usage store;
    ot_device_usage(r->session->machine.device, &usage);
    ot_engine_store_usage(r->session->engine, &store);
    for (int t = 0; t < OT_TIER_COUNT; t++)
        m.planned[t] = (int64_t)ot_ledger_total(&whole, (enum ot_tier)t);
    m.used[OT_TIER_GPU] = (int64_t)usage.peak_bytes;
    m.used[OT_TIER_HOST] = (int64_t)usage.pinned_peak_bytes + m.planned[OT_TIER_HOST] -
                           (int64_t)ot_ledger_total(pinned, OT_TIER_HOST);
    m.used[OT_TIER_NVME] = store.file_bytes;
    m.resident = ot_process_peak();
    return m;
}

static double flops_per_second(const struct ot_report *r, const struct ot_outcome *outcome) {
    double per_token = ot_rows_flops_per_token(r->rows, r->session->model.built);
    return outcome->whole_seconds > 0 ? per_token * (double)outcome->tokens / outcome->whole_seconds : 0;
}

/* A share of the machine's rate of matrix products; 0: unknown. */
static double roof_share(const struct ot_report *r, const struct ot_outcome *outcome) {
    double roof = ot_forecast_roof(r->session);
    return roof > 0 ? flops_per_second(r, outcome) / roof : 0;
}

/* Seconds of a step in the middle of the run; 0: the run was too short to have such a step. */
static double measured_step(const struct ot_outcome *outcome) {
    return outcome->timed_steps ? outcome->timed_seconds / (double)outcome->timed_steps : 0;
}

/* "; predicted again after step 4: 760 ms, +1.2 %"; empty if the second prediction was not told. */
static const char *put_again(const struct ot_session *s, double measured, char text[OT_FORECAST_LINE_BYTES]) {
    const struct ot_forecast *f = &s->plan.forecast;
    double seconds = f->again.step_seconds;
    char step[OT_TEXT_BYTES];
    if (seconds > 0 && ot_report_again(&s->plan.prediction, &f->again, f->again_from, f->again_to, text))
        snprintf(text, OT_FORECAST_LINE_BYTES, "; predicted again after step %lld: %s, %+.1f %%",
                 (long long)f->again_to, ot_text_seconds(seconds, step), 100 * (seconds / measured - 1));
    else
        text[0] = '\0';
    return text;
}

static void print_speed(const struct ot_report *r, const struct ot_outcome *outcome) {
    double predicted = r->session->plan.prediction.step_seconds, measured = measured_step(outcome);
    char text[2][OT_TEXT_BYTES], again[OT_FORECAST_LINE_BYTES];
    ot_text_seconds(predicted, text[0]);
    if (r->session->options->no_forecast && measured > 0)
        ot_log(OT_LOG_INFO, "speed   %s a step, measured over %lld", ot_text_seconds(measured, text[1]),
               (long long)outcome->timed_steps);
    if (r->session->options->no_forecast)
        return;
    if (measured > 0)
        ot_log(OT_LOG_INFO, "speed   %s a step predicted, %s measured over %lld steps (off by %+.1f %%%s)",
               text[0], ot_text_seconds(measured, text[1]), (long long)outcome->timed_steps,
               100 * (predicted / measured - 1), put_again(r->session, measured, again));
    else
        ot_log(OT_LOG_INFO, "speed   %s a step predicted; too few steps in a row to measure one", text[0]);
}

/* Prints the bytes moved and their rates. The schedule counts copies, and the store counts disk transfers.
 * Lanes that move only token ids and losses are left out: they stay below OT_MOVED_LEAST. */
static void print_traffic(const struct ot_report *r, const struct ot_outcome *outcome) {
    const struct ot_prediction *p = &r->session->plan.prediction;
    double measured = measured_step(outcome), step = measured > 0 ? measured : p->step_seconds,
           run = outcome->seconds;
    char line[OT_TABLE_LINE_BYTES];
    const struct ot_moved moved[] = {
        {"h2d", "a step", p->bytes[OT_LANE_H2D], step},
        {"d2h", "a step", p->bytes[OT_LANE_D2H], step},
        {"nvme", "read", (double)outcome->nvme_read_bytes, run},
        {"nvme", "written", (double)outcome->nvme_written_bytes, run},
    };
    if (*ot_report_moved(moved, sizeof moved / sizeof *moved, line))
        ot_log(OT_LOG_INFO, "moved   %s", line);
}

static void print_shadows(const struct ot_report *r) {
    struct ot_shadow_usage usage;
    ot_engine_shadow_usage(r->session->engine, &usage);
    if (r->session->plan.chosen.shadow_frames > 0)
        ot_log(OT_LOG_INFO, "ahead   shadow updates of %d tiles a step: %lld committed, %lld dropped",
               r->session->plan.chosen.shadow_frames, (long long)usage.committed, (long long)usage.dropped);
}

static void print_memory(const struct ot_report *r) {
    struct memory_use m = measure_memory(r);
    char line[256] = "", planned[OT_TEXT_BYTES], size[OT_TEXT_BYTES];
    size_t used = 0;
    for (int t = 0; t < OT_TIER_COUNT; t++)
        if (t != OT_TIER_NVME || m.planned[t] > 0)
            used += (size_t)snprintf(line + used, sizeof line - used, "%s %s planned, %s used · ",
                                     ot_tier_name((enum ot_tier)t), ot_text_bytes(m.planned[t], planned),
                                     ot_text_bytes(m.used[t], size));
    ot_log(OT_LOG_INFO, "memory  %sprocess peak %s", line, ot_text_bytes(m.resident, size));
}

/* Returns true if --resume auto finds the checkpoint. */
static bool lies_in_out(const struct ot_report *r, const char *checkpoint) {
    size_t out = r->out ? strlen(r->out) : 0;
    return out && checkpoint && strncmp(checkpoint, r->out, out) == 0 && checkpoint[out] == '/';
}

/* Prints how the run ended and the command that resumes it. If this process was started with another
 * --resume, that option must become --resume auto. */
static void print_stopped(const struct ot_report *r, const struct ot_outcome *outcome) {
    const char *resume = r->session->options->resume;
    bool begins_otherwise = strcmp(resume, "auto") != 0 && lies_in_out(r, outcome->checkpoint);
    char *command = NULL, *quoted = NULL;
    if (ot_process_command(begins_otherwise ? "--resume" : NULL, &command) < 0)
        command = NULL;
    if (outcome->weights_alone)
        ot_log(OT_LOG_WARN,
               "stopped by a signal after step %lld: --grace left time to save only the weights, in %s",
               (long long)outcome->steps, r->out);
    else if (outcome->out_of_time)
        ot_log(OT_LOG_WARN, "stopped by a signal after step %lld: --grace left no time to save it",
               (long long)outcome->steps);
    else
        ot_log(OT_LOG_INFO, "stopped by a signal after step %lld", (long long)outcome->steps);
    if (outcome->checkpoint) {
        ot_log(OT_LOG_INFO, "saved   %s · step %lld of %lld%s", outcome->checkpoint,
               (long long)outcome->checkpoint_step, (long long)r->shape->lr.steps,
               ot_report_is_local(r) ? " · each host has the parts of its own ranks" : "");
        ot_log(OT_LOG_INFO, "resume  %s%s", command ? command : "run the same command again",
               begins_otherwise ? " --resume auto" : "");
        if (ot_report_is_local(r))
            ot_log(OT_LOG_INFO, "export  copy the checkpoint's directory of every host into one first");
        else if (ot_process_quote(outcome->checkpoint, &quoted) == 0)
            ot_log(OT_LOG_INFO,
                   "export  offload-train export %s --out DIR writes it as a Hugging Face directory", quoted);
    }
    free(command);
    free(quoted);
}

/* How good the state after the last step is. NaN: it was not evaluated. */
static double end_cost(const struct ot_outcome *outcome) {
    return ot_eval_history_cost(&outcome->history, outcome->steps);
}

/* True if a checkpoint is better than the run's last state. */
static bool has_better(const struct ot_report *r, const struct ot_outcome *outcome) {
    bool is_end = outcome->saved_best_step == outcome->steps && !outcome->interrupted;
    return r->out && outcome->saved_best_step > 0 && !is_end &&
           !(end_cost(outcome) <= outcome->saved_best_cost);
}

/* Writes the command, or the way, to a model of the state that OUT does not have. */
static void put_way(const struct ot_report *r, const struct ot_outcome *outcome, char *text, size_t bytes) {
    bool last = outcome->result_step > 0;
    char *quoted = NULL;
    if (ot_report_is_local(r))
        snprintf(text, bytes, "copy that checkpoint's directory of every host into one, then export it");
    else if (ot_process_quote(r->out, &quoted) == 0)
        snprintf(text, bytes, "offload-train export %s%s --out DIR%s", quoted, last ? "" : " --best",
                 last ? " makes the last model" : "");
    free(quoted);
}

/* Prints the best and the last evaluation, which of the two OUT has, and the command that makes a model of
 * the other one. */
static void print_best(const struct ot_report *r, const struct ot_outcome *outcome) {
    enum ot_eval_metric metric = outcome->history.metric;
    double cost = end_cost(outcome), best_cost = ot_eval_cost(metric, &outcome->history.best);
    char best[OT_EVAL_TEXT_BYTES], last[OT_EVAL_TEXT_BYTES], end[96] = "", way[PATH_MAX + 64] = "";
    bool better = has_better(r, outcome);
    if (!isnan(cost))
        snprintf(end, sizeof end, "; after the last step, %lld, it is %s", (long long)outcome->steps,
                 ot_eval_cost_text(metric, cost, last) + strcspn(last, " ") + 1);
    if (better) {
        put_way(r, outcome, way, sizeof way);
        ot_log(OT_LOG_INFO, "best    %s at step %lld%s%s · %s",
               ot_eval_cost_text(metric, outcome->saved_best_cost, best), (long long)outcome->saved_best_step,
               outcome->result_step > 0 ? ", the result" : "", end, way);
    }
    bool is_kept = (better && outcome->saved_best_cost <= best_cost) || cost <= best_cost;
    if (outcome->history.best_step > 0 && !is_kept)
        ot_log(OT_LOG_WARN, "the best evaluation, %s after step %lld, is not kept%s",
               ot_eval_cost_text(metric, best_cost, best) + (metric == OT_EVAL_LOSS ? strlen("eval ") : 0),
               (long long)outcome->history.best_step,
               !r->out                                    ? ": --no-save"
               : ot_saver_is_regular(r->session->options) ? ": its checkpoint could not be saved, or is in "
                                                            "another directory"
                                                          : ": --save-every never");
}

static void print_saved(const struct ot_report *r, const struct ot_outcome *outcome) {
    char size[OT_TEXT_BYTES], *quoted = NULL, *words = NULL;
    const struct ot_session *s = r->session;
    bool adapters = s->options->lora != NULL;
    enum ot_dtype dtype = adapters ? OT_F32 : s->model.stored;
    int64_t n = adapters ? ot_model_trained_count(s->model.built) : ot_model_param_count(&s->model.config);
    ot_log(OT_LOG_INFO, "saved   %s · %s, %s of %s weights · log.jsonl · run.json", r->out,
           adapters ? "adapters for PEFT" : "Hugging Face directory",
           ot_text_bytes(n * (int64_t)ot_dtype_bytes(dtype), size), ot_dtype_name(dtype));
    if (outcome->checkpoint || has_better(r, outcome))
        ot_log(OT_LOG_INFO, "note    Checkpoints kept in %s/checkpoints%s; you can delete them%s.", r->out,
               ot_report_is_local(r) ? " of each host" : "",
               outcome->result_step > 0 ? " unless you want the model of the last step"
               : has_better(r, outcome) ? " once you have exported the best"
                                        : "");
    if (ot_process_quote(r->out, &quoted) == 0 &&
        report_next_words(ot_dataset_stats(r->rows->data)->kind, r->session->options->prompt_format,
                          &words) == 0)
        ot_log(OT_LOG_INFO, "next    offload-train generate %s %s · offload-train eval %s --data FILE%s%s%s",
               quoted, words, quoted, adapters ? " · offload-train merge " : "", adapters ? quoted : "",
               adapters ? " --out DIR" : "");
    free(words);
    free(quoted);
}

static size_t put_spent(char *line, size_t used, const char *what, double seconds) {
    char time[OT_TEXT_BYTES];
    return used + (size_t)snprintf(line + used, OT_TABLE_LINE_BYTES - used, "%s%s %s",
                                   strstr(line, " = ") ? " + " : " = ", what,
                                   ot_text_duration(seconds, time));
}

/* Leaves out times below half of the last digit. */
const char *ot_report_spent(const struct ot_outcome *o, char line[OT_TABLE_LINE_BYTES]) {
    const double least = 0.05, saving = o->save_seconds + o->result_seconds;
    double other = o->whole_seconds - o->step_seconds - o->eval_seconds - saving - o->sample_seconds;
    char count[OT_TEXT_BYTES], what[2 * OT_TEXT_BYTES];
    int64_t steps = o->steps - o->first_step;
    size_t used =
        (size_t)snprintf(line, OT_TABLE_LINE_BYTES, "%s", ot_text_duration(o->whole_seconds, count));
    snprintf(what, sizeof what, "%s step%s", ot_text_count(steps, count), ot_plural(steps));
    used = put_spent(line, used, what, o->step_seconds);
    snprintf(what, sizeof what, "%s evaluation%s", ot_text_count(o->evals, count), ot_plural(o->evals));
    if (o->eval_seconds >= least)
        used = put_spent(line, used, what, o->eval_seconds);
    if (saving >= least)
        used = put_spent(line, used, "saving", saving);
    if (o->sample_seconds >= least)
        used = put_spent(line, used, "sample", o->sample_seconds);
    if (other >= least)
        put_spent(line, used, "other work", other);
    return line;
}

void ot_report_done(const struct ot_report *r, const struct ot_outcome *outcome) {
    char tokens[OT_TEXT_BYTES], time[OT_TEXT_BYTES], rate[OT_TEXT_BYTES], eval[64] = "";
    if (!isnan(end_cost(outcome)))
        snprintf(eval, sizeof eval, " · eval %.4f -> %.4f", outcome->history.first.loss,
                 outcome->history.last.loss);
    double seconds = outcome->whole_seconds > 0 ? outcome->whole_seconds : 1;
    char since[64] = "", share[32] = "";
    if (roof_share(r, outcome) > 0)
        snprintf(share, sizeof share, ", roof %.0f %%", 100 * roof_share(r, outcome));
    if (r->resumed)
        snprintf(since, sizeof since, "since step %lld: ", (long long)outcome->first_step);
    ot_log(OT_LOG_INFO,
           "done    %lld of %lld step%s · loss %.4f%s · %s%s tokens in %s · %s tok/s · %.1f GFLOP/s%s",
           (long long)outcome->steps, (long long)r->shape->lr.steps, ot_plural(r->shape->lr.steps),
           outcome->last_loss, eval, since, ot_text_short((double)outcome->tokens, tokens),
           ot_text_duration(outcome->whole_seconds, time),
           ot_text_count((int64_t)((double)outcome->tokens / seconds), rate),
           flops_per_second(r, outcome) * 1e-9, share);
    if (r->resumed)
        ot_log(OT_LOG_INFO, "        whole run: %lld steps, %s tokens in %s", (long long)outcome->steps,
               ot_text_short((double)(r->resumed->tokens + outcome->tokens), tokens),
               ot_text_duration(r->resumed->seconds + outcome->whole_seconds, time));
    if (outcome->stopped_early)
        ot_log(OT_LOG_INFO, "        stopped early: %lld evaluation%s in a row without a gain (--stop-early)",
               (long long)outcome->history.without_gain, ot_plural(outcome->history.without_gain));
    if (outcome->history.has_any)
        print_best(r, outcome);
    char counts[OT_LOSS_GUARD_TEXT_BYTES];
    if (*ot_loss_guard_summary(&outcome->counts, counts))
        ot_log(OT_LOG_INFO, "guard   %s", counts);
    char spent[OT_TABLE_LINE_BYTES];
    ot_log(OT_LOG_INFO, "time    %s", ot_report_spent(outcome, spent));
    print_speed(r, outcome);
    print_traffic(r, outcome);
    print_shadows(r);
    print_memory(r);
    if (r->out && outcome->interrupted)
        print_stopped(r, outcome);
    if (r->out && !outcome->interrupted)
        print_saved(r, outcome);
}

/* Writes the shares of judged answers that were measured. */
static void put_answers(const struct ot_eval_score *score, const char *match, const char *execution,
                        struct ot_json_writer *w) {
    if (!isnan(score->match))
        ot_json_put_real(w, match, score->match);
    if (!isnan(score->execution))
        ot_json_put_real(w, execution, score->execution);
}

int ot_report_record_done(const struct ot_report *r, const struct ot_outcome *outcome,
                          struct ot_run_log *log) {
    struct memory_use m = measure_memory(r);
    struct ot_shadow_usage shadows;
    ot_engine_shadow_usage(r->session->engine, &shadows);
    struct ot_json_writer *w = ot_run_log_begin(log, "done");
    ot_json_put_int(w, "steps", outcome->steps);
    ot_json_put_int(w, "tokens", outcome->tokens);
    ot_json_put_real(w, "seconds", outcome->whole_seconds);
    ot_json_put_real(w, "step_seconds", outcome->step_seconds);
    ot_json_put_real(w, "eval_seconds", outcome->eval_seconds);
    ot_json_put_real(w, "save_seconds", outcome->save_seconds);
    ot_json_put_real(w, "result_seconds", outcome->result_seconds);
    ot_json_put_real(w, "sample_seconds", outcome->sample_seconds);
    ot_json_put_real(w, "loss", outcome->last_loss);
    ot_json_put_real(w, "flops_per_s", flops_per_second(r, outcome));
    if (roof_share(r, outcome) > 0)
        ot_json_put_real(w, "roof_share", roof_share(r, outcome));
    ot_json_put_int(w, "skipped", ot_loss_guard_skipped(&outcome->counts));
    ot_json_put_int(w, "spikes", outcome->counts.spikes);
    ot_json_put_bool(w, "interrupted", outcome->interrupted);
    if (outcome->first_step)
        ot_json_put_int(w, "resumed_after", outcome->first_step);
    if (outcome->checkpoint)
        ot_json_put_text(w, "checkpoint", outcome->checkpoint);
    if (outcome->stopped_early)
        ot_json_put_bool(w, "stopped_early", true);
    if (outcome->history.has_any) {
        const struct ot_eval_history *h = &outcome->history;
        ot_json_put_int(w, "last_eval_step", h->last_step);
        ot_json_put_real(w, "last_eval", h->last.loss);
        ot_json_put_real(w, "last_accuracy", h->last.accuracy);
        put_answers(&h->last, "last_match", "last_execution", w);
        ot_json_put_int(w, "best_eval_step", h->best_step);
        ot_json_put_real(w, "best_eval", h->best.loss);
        ot_json_put_real(w, "best_accuracy", h->best.accuracy);
        put_answers(&h->best, "best_match", "best_execution", w);
    }
    if (outcome->result_step > 0)
        ot_json_put_int(w, "result_step", outcome->result_step);
    if (has_better(r, outcome))
        ot_json_put_int(w, "best_checkpoint_step", outcome->saved_best_step);
    if (!r->session->options->no_forecast)
        ot_json_put_real(w, "predicted_step_seconds", r->session->plan.prediction.step_seconds);
    if (r->session->plan.forecast.again.step_seconds > 0)
        ot_json_put_real(w, "predicted_again_step_seconds", r->session->plan.forecast.again.step_seconds);
    ot_json_put_int(w, "measured_steps", outcome->timed_steps);
    if (outcome->timed_steps)
        ot_json_put_real(w, "measured_step_seconds", measured_step(outcome));
    ot_json_put_int(w, "nvme_read_bytes", outcome->nvme_read_bytes);
    ot_json_put_int(w, "nvme_written_bytes", outcome->nvme_written_bytes);
    ot_json_put_int(w, "shadow_committed", shadows.committed);
    ot_json_put_int(w, "shadow_dropped", shadows.dropped);
    for (int t = 0; t < OT_TIER_COUNT; t++) {
        char key[32];
        snprintf(key, sizeof key, "%s_planned_bytes", ot_tier_name((enum ot_tier)t));
        ot_json_put_int(w, key, m.planned[t]);
        snprintf(key, sizeof key, "%s_used_bytes", ot_tier_name((enum ot_tier)t));
        ot_json_put_int(w, key, m.used[t]);
    }
    ot_json_put_int(w, "process_peak_bytes", m.resident);
    if (r->out)
        ot_json_put_text(w, "out", r->out);
    return ot_run_log_end(log);
}

/* all: the whole trace; full: without the beginning of the first step and the end of the last. */
static void print_trace(const struct ot_report *r, const char *path, const struct ot_trace_summary *all,
                        const struct ot_trace_summary *full) {
    char lines[OT_LANE_TABLE_LINES][OT_FORECAST_LINE_BYTES], left[64] = "";
    const struct ot_prediction *p = &r->session->plan.prediction;
    const struct ot_lane_times times[] = {
        {"predicted", p->step_seconds, p->busy, p->exposed, p->exposed_host},
        {"measured", full->seconds, full->busy, full->exposed, full->exposed_host}};
    int first = r->session->options->no_forecast, n = ot_report_lanes(times + first, 2 - first, lines);
    for (int i = 0; i < n; i++)
        ot_log(OT_LOG_INFO, i ? "        %s" : "lanes   %s", lines[i]);
    if (all->left_out)
        snprintf(left, sizeof left, " (%lld later steps did not fit)", (long long)all->left_out);
    ot_log(OT_LOG_INFO, "trace   %s · %lld steps%s · open it in Perfetto or chrome://tracing", path,
           (long long)all->steps, left);
}

int ot_report_check_trace(const struct ot_options *o) {
    if (!o->trace || o->force)
        return 0;
    int rc = ot_trace_check_file(o->trace);
    return rc == -OT_E_INPUT
               ? ot_fail(OT_E_INPUT, "--trace %s, or give --force to replace it", ot_error_text())
               : ot_fail_context(rc, "--trace");
}

int ot_report_trace(const struct ot_report *r, struct ot_run_log *log) {
    const struct ot_session_ranks *ranks = &r->session->ranks;
    const char *path = r->session->options->trace;
    struct ot_trace_summary all, full;
    if (!path)
        return 0;
    OT_TRY(ot_report_check_trace(r->session->options)); /* the run itself may have created this file */
    OT_TRY(ot_trace_write_ranks(r->session->trace, r->session->plan.forecast.trace, ranks->traces,
                                ranks->n_traces, path));
    OT_TRY(ot_trace_summarise(r->session->trace, &all));
    OT_TRY(ot_trace_summarise_full(r->session->trace, &full));
    print_trace(r, path, &all, &full);
    struct ot_json_writer *w = ot_run_log_begin(log, "trace");
    ot_json_put_text(w, "file", path);
    ot_json_put_int(w, "steps", all.steps);
    ot_json_put_int(w, "left_out", all.left_out);
    ot_json_put_real(w, "seconds", full.seconds);
    ot_report_put_lanes("busy_seconds", full.busy, w);
    ot_report_put_lanes("exposed_seconds", full.exposed, w);
    ot_json_put_real(w, "exposed_host_seconds", full.exposed_host);
    return ot_run_log_end(log);
}

/* Keeps the end of the text: the answer belongs to the last words of a prompt. */
static const char *shorten(const char *text, size_t most) {
    size_t length = strlen(text);
    if (length <= most)
        return text;
    text += length - most;
    while ((*text & 0xc0) == 0x80) /* do not cut inside a character */
        text++;
    return text;
}

int ot_report_sample(struct ot_run_log *log, int64_t step, const char *prompt, const char *text) {
    const char *end = shorten(prompt, 72);
    ot_log(OT_LOG_INFO, "sample  \"%s%s\" -> %s", end == prompt ? "" : "...", end, text);
    struct ot_json_writer *w = ot_run_log_begin(log, "sample");
    ot_json_put_int(w, "step", step);
    ot_json_put_text(w, "prompt", prompt);
    ot_json_put_text(w, "text", text);
    return ot_run_log_end(log);
}
