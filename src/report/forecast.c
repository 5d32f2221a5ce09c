#include "src/report/forecast.h"

#include <math.h>
#include <stdio.h>

#include "src/base/units.h"

static double tokens_per_second(const struct ot_prediction *p) {
    return p->step_seconds > 0 ? p->tokens / p->step_seconds : 0;
}

/* A smaller share of the whole time is not printed. */
static const double LEAST_SHARE = 0.01;

const char *ot_report_others(const struct ot_run_times *t, double all, const char *before,
                             char line[OT_FORECAST_LINE_BYTES]) {
    const double evals = (double)t->counts.evals * t->eval;
    char count[OT_TEXT_BYTES], what[2 * OT_TEXT_BYTES];
    snprintf(what, sizeof what, "%s evaluation%s of", ot_text_count(t->counts.evals, count),
             ot_plural(t->counts.evals));
    const struct {
        const char *what;
        double all, shown;
    } parts[] = {{what, evals, t->eval},
                 {"sample", t->sample, t->sample},
                 {"saving", (double)t->counts.saves * t->save + t->result,
                  (double)t->counts.saves * t->save + t->result}};
    int n = 0;
    line[0] = 0;
    for (int i = 0; i < 3; i++) {
        char time[OT_TEXT_BYTES];
        if (parts[i].all > LEAST_SHARE * all)
            n += snprintf(line + n, OT_FORECAST_LINE_BYTES - (size_t)n, "%s%s %s", n ? ", " : before,
                          parts[i].what, ot_text_duration(parts[i].shown, time));
    }
    return line;
}

/* " · in all 6m10s, 11,710 tok/s: 3 evaluations of 12s, sample 2.0s, saving 4.0s" */
static void put_whole(const struct ot_prediction *p, int64_t steps, const struct ot_run_times *t, char *line,
                      size_t bytes) {
    double others = ot_run_times_sum(t), all = p->step_seconds * (double)steps + others;
    char time[OT_TEXT_BYTES], rate[OT_TEXT_BYTES], parts[OT_FORECAST_LINE_BYTES];
    if (others > LEAST_SHARE * all)
        snprintf(line, bytes, " · in all %s, %s tok/s%s", ot_text_duration(all, time),
                 ot_text_count((int64_t)(p->tokens * (double)steps / all), rate),
                 ot_report_others(t, all, ": ", parts));
}

const char *ot_report_prediction(const struct ot_prediction *p, int64_t done, int64_t steps,
                                 const struct ot_run_times *times, char line[OT_FORECAST_LINE_BYTES]) {
    char step[OT_TEXT_BYTES], rate[OT_TEXT_BYTES], count[OT_TEXT_BYTES], run[OT_TEXT_BYTES];
    int n =
        snprintf(line, OT_FORECAST_LINE_BYTES, "%s a step, %s tok/s · ",
                 ot_text_seconds(p->step_seconds, step), ot_text_count((int64_t)tokens_per_second(p), rate));
    if (done > 0)
        n += snprintf(line + n, OT_FORECAST_LINE_BYTES - (size_t)n, "remaining %s step%s in %s · all ",
                      ot_text_count(steps - done, count), ot_plural(steps - done),
                      ot_text_duration(p->step_seconds * (double)(steps - done), run));
    n +=
        snprintf(line + n, OT_FORECAST_LINE_BYTES - (size_t)n, "%s step%s in %s", ot_text_count(steps, count),
                 ot_plural(steps), ot_text_duration(p->step_seconds * (double)steps, run));
    put_whole(p, steps - done, times, line + n, OT_FORECAST_LINE_BYTES - (size_t)n);
    return line;
}

/* A lane whose time changes by less than this share of the step does not explain why the step changes. */
static const double LEAST_CHANGE = 0.05;
static const double MOST_TIMES = 9999; /* fits the line */

static int put_changes(const struct ot_prediction *first, const struct ot_prediction *second, char *line,
                       size_t bytes) {
    int n = 0;
    for (int l = 0; l < OT_LANE_COUNT; l++) {
        double before = first->busy[l], change = second->busy[l] - before;
        if (before > 0 && fabs(change) > LEAST_CHANGE * first->step_seconds)
            n += snprintf(line + n, bytes - (size_t)n, change < 0 ? "%s%s%s %.2gx" : "%s%s%s %.1fx",
                          n ? ", " : " (", ot_lane_name((enum ot_lane_id)l), n ? "" : " takes",
                          fmin(second->busy[l] / before, MOST_TIMES));
    }
    return n + snprintf(line + n, bytes - (size_t)n, n ? " of the predicted time)" : "");
}

bool ot_report_again(const struct ot_prediction *first, const struct ot_prediction *second, int64_t from_step,
                     int64_t to_step, char line[OT_FORECAST_LINE_BYTES]) {
    char before[OT_TEXT_BYTES], now[OT_TEXT_BYTES];
    line[0] = '\0';
    if (!(fabs(second->step_seconds / first->step_seconds - 1) > OT_FORECAST_TOLD))
        return false;
    int n =
        snprintf(line, OT_FORECAST_LINE_BYTES, "%s a step, not %s: predicted again from steps %lld and %lld",
                 ot_text_seconds(second->step_seconds, now), ot_text_seconds(first->step_seconds, before),
                 (long long)from_step, (long long)to_step);
    put_changes(first, second, line + n, OT_FORECAST_LINE_BYTES - (size_t)n);
    return true;
}

/* ---- lanes ---- */

struct row {
    char *line;
    int used;
};

static void put_cell(struct row *row, const char *text) {
    row->used += snprintf(row->line + row->used, OT_FORECAST_LINE_BYTES - (size_t)row->used, " %10s", text);
}

static void put_share(struct row *row, double seconds, double all) {
    char text[16];
    snprintf(text, sizeof text, "%.1f %%", all > 0 ? 100 * seconds / all : 0);
    put_cell(row, text);
}

static bool is_used(const struct ot_lane_times *times, int n, int lane) {
    for (int i = 0; i < n; i++)
        if (times[i].busy[lane] > 0)
            return true;
    return false;
}

static struct row begin_row(char line[OT_FORECAST_LINE_BYTES], const char *what, const char *name) {
    return (struct row){line, snprintf(line, OT_FORECAST_LINE_BYTES, "%-10s %-9s", what, name)};
}

int ot_report_lanes(const struct ot_lane_times *times, int n,
                    char lines[OT_LANE_TABLE_LINES][OT_FORECAST_LINE_BYTES]) {
    int made = 0;
    struct row row = begin_row(lines[made++], "", "");
    for (int l = 0; l < OT_LANE_COUNT; l++)
        if (is_used(times, n, l))
            put_cell(&row, ot_lane_name((enum ot_lane_id)l));
    put_cell(&row, "host");
    for (int i = 0; i < n; i++) {
        row = begin_row(lines[made++], "busy", times[i].name);
        for (int l = 0; l < OT_LANE_COUNT; l++)
            if (is_used(times, n, l))
                put_share(&row, times[i].busy[l], times[i].seconds);
    }
    for (int i = 0; i < n; i++) {
        row = begin_row(lines[made++], "stalled on", times[i].name);
        for (int l = 0; l < OT_LANE_COUNT; l++)
            if (is_used(times, n, l))
                put_share(&row, times[i].exposed[l], times[i].seconds);
        put_share(&row, times[i].exposed_host, times[i].seconds);
    }
    return made;
}

/* ---- the explanation ---- */

/* "computing, 80.2 % of the step", "h2d, compute stalls on it for 16.1 %" */
static int put_limit(char *line, size_t bytes, enum ot_lane_id lane, double share, const char *of) {
    return lane == OT_LANE_COMPUTE ? snprintf(line, bytes, "computing, %.1f %%%s", 100 * share, of)
                                   : snprintf(line, bytes, "%s, compute stalls on it for %.1f %%%s",
                                              ot_lane_name(lane), 100 * share, of);
}

const char *ot_report_bound(const struct ot_explanation *e, char line[OT_FORECAST_LINE_BYTES]) {
    int n = put_limit(line, OT_FORECAST_LINE_BYTES, e->bound, e->bound_share, " of the step");
    if (e->second != e->bound && e->second_share >= 0.001) {
        n += snprintf(line + n, OT_FORECAST_LINE_BYTES - (size_t)n, "; next ");
        put_limit(line + n, OT_FORECAST_LINE_BYTES - (size_t)n, e->second, e->second_share, "");
    }
    return line;
}

const char *ot_report_gain(double gain, char text[OT_TEXT_BYTES]) {
    if (gain == 0)
        snprintf(text, OT_TEXT_BYTES, "no gain");
    else
        snprintf(text, OT_TEXT_BYTES, "%+.0f %%", 100 * gain);
    return text;
}

const char *ot_report_instead(const struct ot_what_if *answer, int64_t steps, int64_t half,
                              char text[OT_FORECAST_LINE_BYTES]) {
    char now[OT_TEXT_BYTES], then[OT_TEXT_BYTES];
    *text = '\0';
    if (answer->is_longer_step && steps > 0)
        snprintf(text, OT_FORECAST_LINE_BYTES, " · %s steps instead of %s", ot_text_count(half, then),
                 ot_text_count(steps, now));
    return text;
}

int ot_report_explanation(const struct ot_explanation *e, int64_t steps, int64_t half,
                          char lines[OT_EXPLANATION_LINES][OT_FORECAST_LINE_BYTES]) {
    int made = 0;
    ot_report_bound(e, lines[made++]);
    for (int i = 0; i < e->n_ifs && i < OT_WHAT_IFS; i++) {
        char step[OT_TEXT_BYTES], rate[OT_TEXT_BYTES], gain[OT_TEXT_BYTES], instead[OT_FORECAST_LINE_BYTES];
        snprintf(lines[made++], OT_FORECAST_LINE_BYTES, "%-32s %10s a step %12s tok/s %8s%s", e->ifs[i].what,
                 ot_text_seconds(e->ifs[i].step_seconds, step),
                 ot_text_count((int64_t)e->ifs[i].tokens_per_second, rate),
                 ot_report_gain(e->ifs[i].gain, gain), ot_report_instead(&e->ifs[i], steps, half, instead));
    }
    return made;
}

/* ---- the choice of a step ---- */

/* ", 1,428 with 8,192" */
static int put_other(char *line, size_t bytes, const struct ot_step_candidate *other) {
    char rate[OT_TEXT_BYTES], tokens[OT_TEXT_BYTES];
    ot_text_count(other->tokens, tokens);
    return other->tokens_per_second > 0
               ? snprintf(line, bytes, ", %s with %s", ot_text_count((int64_t)other->tokens_per_second, rate),
                          tokens)
               : snprintf(line, bytes, ", %s does not fit", tokens);
}

const char *ot_report_choice(const struct ot_step_choice *c, char line[OT_FORECAST_LINE_BYTES]) {
    const struct ot_step_candidate *least = &c->candidates[0], *most = &c->candidates[c->n - 1],
                                   *chosen = &c->candidates[c->chosen];
    char tokens[OT_TEXT_BYTES], from[OT_TEXT_BYTES], to[OT_TEXT_BYTES], text[OT_TEXT_BYTES];
    int n =
        snprintf(line, OT_FORECAST_LINE_BYTES, "%s a step, chosen from %s to %s: %s tok/s predicted",
                 ot_text_count(chosen->tokens, tokens), ot_text_count(least->tokens, from),
                 ot_text_count(most->tokens, to), ot_text_count((int64_t)chosen->tokens_per_second, text));
    if (chosen != least)
        n += put_other(line + n, OT_FORECAST_LINE_BYTES - (size_t)n, least);
    if (chosen != most)
        n += put_other(line + n, OT_FORECAST_LINE_BYTES - (size_t)n, most);
    if (chosen->steps != least->steps)
        snprintf(line + n, OT_FORECAST_LINE_BYTES - (size_t)n, " · %s steps instead of %s",
                 ot_text_count(chosen->steps, text), ot_text_count(least->steps, to));
    return line;
}

/* ---- JSON ---- */

void ot_report_put_choice(const struct ot_step_choice *c, struct ot_json_writer *w) {
    if (c->n == 0)
        return;
    ot_json_begin_array(w, "step_choice");
    for (int i = 0; i < c->n; i++) {
        const struct ot_step_candidate *one = &c->candidates[i];
        ot_json_begin_object(w, NULL);
        ot_json_put_int(w, "tokens", one->tokens);
        ot_json_put_bool(w, "chosen", i == c->chosen);
        ot_json_put_bool(w, "fits", one->tokens_per_second > 0);
        if (one->tokens_per_second > 0) {
            ot_json_put_real(w, "step_seconds", one->step_seconds);
            ot_json_put_real(w, "tokens_per_s", one->tokens_per_second);
        }
        if (one->steps > 0)
            ot_json_put_int(w, "steps", one->steps);
        ot_json_end_object(w);
    }
    ot_json_end_array(w);
}

void ot_report_put_lanes(const char *key, const double values[OT_LANE_COUNT], struct ot_json_writer *w) {
    ot_json_begin_object(w, key);
    for (int l = 0; l < OT_LANE_COUNT; l++)
        ot_json_put_real(w, ot_lane_name((enum ot_lane_id)l), values[l]);
    ot_json_end_object(w);
}

void ot_report_put_prediction(const struct ot_prediction *p, int64_t steps, struct ot_json_writer *w) {
    ot_json_put_real(w, "step_seconds", p->step_seconds);
    ot_json_put_real(w, "tokens_per_s", tokens_per_second(p));
    ot_json_put_real(w, "run_seconds", p->step_seconds * (double)steps);
    ot_report_put_lanes("busy_seconds", p->busy, w);
    ot_report_put_lanes("exposed_seconds", p->exposed, w);
    ot_json_put_real(w, "exposed_host_seconds", p->exposed_host);
    ot_report_put_lanes("bytes", p->bytes, w);
    ot_json_put_real(w, "flops", p->flops);
    ot_json_put_real(w, "model_flops", p->model_flops);
}

void ot_report_put_times(const struct ot_prediction *p, int64_t done, int64_t steps,
                         const struct ot_run_times *t, struct ot_json_writer *w) {
    ot_json_put_int(w, "evals", t->counts.evals);
    ot_json_put_real(w, "eval_seconds", t->eval);
    ot_json_put_int(w, "saves", t->counts.saves);
    ot_json_put_real(w, "save_seconds", t->save);
    ot_json_put_real(w, "sample_seconds", t->sample);
    ot_json_put_real(w, "result_seconds", t->result);
    ot_json_put_real(w, "whole_seconds", p->step_seconds * (double)(steps - done) + ot_run_times_sum(t));
}

void ot_report_put_explanation(const struct ot_explanation *e, struct ot_json_writer *w) {
    ot_json_put_text(w, "bound", ot_lane_name(e->bound));
    ot_json_put_real(w, "bound_share", e->bound_share);
    if (e->second != e->bound) {
        ot_json_put_text(w, "second", ot_lane_name(e->second));
        ot_json_put_real(w, "second_share", e->second_share);
    }
    ot_json_begin_array(w, "if");
    for (int i = 0; i < e->n_ifs; i++) {
        ot_json_begin_object(w, NULL);
        ot_json_put_text(w, "what", e->ifs[i].what);
        ot_json_put_real(w, "step_seconds", e->ifs[i].step_seconds);
        ot_json_put_real(w, "tokens_per_s", e->ifs[i].tokens_per_second);
        ot_json_put_real(w, "gain", e->ifs[i].gain);
        ot_json_end_object(w);
    }
    ot_json_end_array(w);
}

/* ---- the mode of several ranks ---- */

const char *ot_report_shards(const struct ot_shard_choice *choice, enum ot_shard_mode chosen,
                             char line[OT_FORECAST_LINE_BYTES]) {
    int other = ot_shard_runner_up(choice, chosen), used = 0;
    char step[OT_TEXT_BYTES];
    *line = '\0';
    if (other >= 0)
        used = snprintf(line, OT_FORECAST_LINE_BYTES, "%s would take %s a step",
                        ot_shard_mode_name((enum ot_shard_mode)other),
                        ot_text_seconds(choice->step_seconds[other], step));
    if (*choice->no_stages)
        snprintf(line + used, OT_FORECAST_LINE_BYTES - (size_t)used, "%sno stages: %s", used > 0 ? " · " : "",
                 choice->no_stages);
    return line;
}

const char *ot_report_division(const struct ot_shard *shard, char text[OT_DIVISION_BYTES]) {
    snprintf(text, OT_DIVISION_BYTES, "%s", ot_shard_mode_name(shard->mode));
    if (shard->mode == OT_SHARD_STAGES && ot_shard_holders(shard) > 1)
        snprintf(text, OT_DIVISION_BYTES, "stages, %d replicas of %d", ot_shard_holders(shard),
                 ot_shard_stages(shard));
    return text;
}

void ot_report_put_shards(const struct ot_shard_choice *choice, enum ot_shard_mode chosen,
                          struct ot_json_writer *w) {
    if (ot_shard_runner_up(choice, chosen) < 0)
        return;
    ot_json_begin_object(w, "shard_step_seconds");
    for (int mode = 0; mode <= OT_SHARD_STAGES; mode++)
        if (choice->step_seconds[mode] > 0)
            ot_json_put_real(w, ot_shard_mode_name((enum ot_shard_mode)mode), choice->step_seconds[mode]);
    ot_json_end_object(w);
}
