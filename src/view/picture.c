#include "src/view/picture.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "src/base/minmax.h"
#include "src/base/units.h"
#include "src/base/utf8.h"
#include "src/view/facts.h"

/* Rows of the picture besides the lines: title, progress, losses; the hint. A curve is drawn from LEAST_CURVE
 * rows on, and a second one if there are rows for both. */
enum { HEAD_ROWS = 3, HINT_ROWS = 1, LEAST_CURVE = 4, TWO_CURVES = 13, LABEL = 8, AXIS = 8 };

/* ---- lines ---- */

enum { MOST_LINES = 24, LINE_BYTES = 512 };

struct line {
    int priority; /* 0: the most important one */
    enum ot_style style;
    const char *label;
    char text[LINE_BYTES];
    int width, most; /* columns of the text */
    bool is_full;    /* a part did not fit, so later ones are left out */
};

struct lines {
    struct line line[MOST_LINES];
    int n, columns;
};

static struct line *add_line(struct lines *lines, int priority, const char *label) {
    static struct line none;
    if (lines->n == MOST_LINES)
        return none = (struct line){.is_full = true}, &none;
    struct line *line = &lines->line[lines->n++];
    *line = (struct line){.priority = priority, .label = label, .most = lines->columns - LABEL};
    return line;
}

/* Appends a part after " · ", if it fits. */
__attribute__((format(printf, 2, 3))) static void part(struct line *line, const char *format, ...) {
    char text[LINE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    int dots = line->width > 0 ? 3 : 0, width = ot_screen_width(text);
    size_t used = strlen(line->text);
    line->is_full = line->is_full || line->width + dots + width > line->most ||
                    used + strlen(text) + 5 > sizeof line->text;
    if (line->is_full)
        return;
    snprintf(line->text + used, sizeof line->text - used, "%s%s", dots ? " · " : "", text);
    line->width += dots + width;
}

/* Adds lines with the words of a text, at most `most`. */
static void add_words(struct lines *lines, int priority, const char *label, enum ot_style style,
                      const char *text, int most) {
    for (int i = 0; i < most && *text; i++) {
        struct line *line = add_line(lines, priority, i ? "" : label);
        size_t taken = 0;
        line->style = style;
        while (text[taken] && !line->is_full) {
            size_t word = taken + strspn(text + taken, " ");
            word += strcspn(text + word, " ");
            char words[LINE_BYTES];
            snprintf(words, sizeof words, "%.*s", (int)ot_min(word, sizeof words - 1), text);
            if (ot_screen_width(words) > line->most || word >= sizeof words)
                break;
            snprintf(line->text, sizeof line->text, "%s", words);
            taken = word;
        }
        if (taken == 0) { /* a word longer than a line: the screen cuts it */
            snprintf(line->text, sizeof line->text, "%.*s", LINE_BYTES - 1, text);
            return;
        }
        text += taken + strspn(text + taken, " ");
    }
}

static void add_speed(const struct ot_picture *f, struct lines *lines) {
    const struct ot_history *h = f->history;
    char rate[OT_TEXT_BYTES], step[OT_TEXT_BYTES], predicted[OT_TEXT_BYTES];
    double forecast = ot_history_number(h, OT_HISTORY_RUN, "prediction.step_seconds");
    if (h->step.step == 0)
        return;
    struct line *line = add_line(lines, 1, "speed");
    if (h->step.tokens_per_s > 0)
        part(line, "%s tok/s", ot_text_rate(h->step.tokens_per_s, rate));
    if (ot_fact_step_seconds(h) > 0)
        part(line, "%s a step", ot_text_seconds(ot_fact_step_seconds(h), step));
    if (h->step.roof_share > 0)
        part(line, "roof %.0f %%", 100 * h->step.roof_share);
    if (forecast > 0)
        part(line, "%s a step predicted", ot_text_seconds(forecast, predicted));
    if (h->step.grad_norm >= 0)
        part(line, "|g| %.3g", h->step.grad_norm);
    if (h->step.lr >= 0)
        part(line, "lr %.2e", h->step.lr);
}

static void add_lanes(const struct ot_picture *f, struct lines *lines) {
    int from = OT_FACT_LANES - 1;
    while (from > 0 && ot_fact_lanes(f->history, from).seconds <= 0)
        from--;
    struct ot_fact_lanes lanes = ot_fact_lanes(f->history, from);
    if (lanes.seconds <= 0)
        return;
    struct line *line = add_line(lines, 4, "lanes");
    part(line, "%s", lanes.name);
    for (;;) { /* the busiest first */
        int most = 0;
        for (int l = 1; l < OT_LANE_COUNT; l++)
            most = lanes.busy[l] > lanes.busy[most] ? l : most;
        if (lanes.busy[most] < 0.005 * lanes.seconds)
            return;
        part(line, "%s %.0f %%", ot_lane_name((enum ot_lane_id)most), 100 * lanes.busy[most] / lanes.seconds);
        lanes.busy[most] = 0;
    }
}

static void put_bar(char *text, int width, double share) {
    int done = (int)(width * fmin(fmax(share, 0), 1));
    for (int i = 0; i < width; i++)
        text[i] = i < done ? '#' : '.';
    text[width] = '\0';
}

static void add_tiers(const struct ot_picture *f, struct lines *lines) {
    static const char *const labels[OT_TIER_COUNT] = {"gpu", "host", "nvme"};
    char bar[24], used[OT_TEXT_BYTES], budget[OT_TEXT_BYTES], planned[OT_TEXT_BYTES];
    for (int t = 0; t < OT_TIER_COUNT; t++) {
        struct ot_fact_memory m = ot_fact_memory(f->history, t);
        double now = isnan(m.used) ? m.planned : m.used;
        if (!(now > 0))
            continue;
        struct line *line = add_line(lines, 5, labels[t]);
        put_bar(bar, lines->columns >= 72 ? 20 : 10, m.budget > 0 ? now / m.budget : 0);
        if (m.budget > 0)
            part(line, "[%s] %s of %s", bar, ot_text_bytes((int64_t)now, used),
                 ot_text_bytes((int64_t)m.budget, budget));
        else
            part(line, "%s", ot_text_bytes((int64_t)now, used));
        if (m.planned > 0 && !isnan(m.used))
            part(line, "%s planned", ot_text_bytes((int64_t)m.planned, planned));
        else if (m.planned > 0)
            part(line, "as planned");
    }
}

static void add_disks(const struct ot_picture *f, struct lines *lines) {
    const struct ot_history_step *s = &f->history->step;
    if (!(s->nvme_read_bytes + s->nvme_written_bytes > 0) || !(s->seconds > 0))
        return;
    double most = fmax(s->nvme_read_bytes, s->nvme_written_bytes), unit = most < 1e8 ? 1e6 : 1e9;
    const char *name = most < 1e8 ? "MB" : "GB";
    double read = s->nvme_read_bytes / unit, written = s->nvme_written_bytes / unit;
    struct line *line = add_line(lines, 6, "disks");
    part(line, "read %.3g %s/s", read / s->seconds, name);
    part(line, "write %.3g %s/s", written / s->seconds, name);
    part(line, "a step %.3g %s read, %.3g %s written", read, name, written, name);
}

static void add_gpus(const struct ot_picture *f, struct lines *lines) {
    static const char *const labels[OT_GPUS_MAX] = {"gpu 0", "gpu 1", "gpu 2", "gpu 3",
                                                    "gpu 4", "gpu 5", "gpu 6", "gpu 7"};
    char used[OT_TEXT_BYTES], all[OT_TEXT_BYTES];
    for (int i = 0; i < f->n_gpus; i++) {
        const struct ot_gpu_reading *g = &f->gpus[i];
        struct line *line = add_line(lines, i ? 9 : 3, labels[i]);
        if (!isnan(g->celsius))
            part(line, "%.0f C", g->celsius);
        if (!isnan(g->watts) && g->most_watts > 0)
            part(line, "%.0f of %.0f W", g->watts, g->most_watts);
        else if (!isnan(g->watts))
            part(line, "%.0f W", g->watts);
        if (!isnan(g->busy))
            part(line, "%.0f %% busy", 100 * g->busy);
        if (!isnan(g->used_bytes))
            part(line, "%s of %s", ot_text_bytes((int64_t)g->used_bytes, used),
                 ot_text_bytes((int64_t)g->bytes, all));
        part(line, "%s", g->name);
    }
}

static void add_saved(const struct ot_picture *f, struct lines *lines) {
    const struct ot_history *h = f->history;
    char error[OT_FACT_BYTES];
    double saved = ot_history_number(h, OT_HISTORY_CHECKPOINT, "step");
    double best = ot_history_number(h, OT_HISTORY_BEST, "step");
    struct line *line = isnan(saved) && isnan(best) ? NULL : add_line(lines, 7, "saved");
    if (!isnan(saved))
        part(line, "checkpoint of step %.0f", saved);
    if (!isnan(best))
        part(line, "best state, step %.0f", best);
    if (h->last[OT_HISTORY_LOST]) {
        ot_fact_text(ot_json_get(h->last[OT_HISTORY_LOST], "error"), error, sizeof error);
        add_words(lines, 2, "lost", OT_STYLE_BAD, error, 1);
    }
    if (*ot_fact_guard(h, error))
        add_words(lines, 2, "guard", OT_STYLE_BAD, error, 1);
}

/* The prompt's last words and the answer, in one text. */
static void add_sample(const struct ot_picture *f, struct lines *lines) {
    const struct ot_history *h = f->history;
    char prompt[96], answer[OT_FACT_BYTES], text[sizeof prompt + sizeof answer];
    if (h->n_samples == 0)
        return;
    const struct ot_json *sample = h->samples[h->n_samples - 1];
    const char *whole = ot_json_string(ot_json_get(sample, "prompt"), NULL);
    size_t n = whole ? strlen(whole) : 0, skip = n > 72 ? n - 72 : 0;
    while (skip > 0 && skip < n && (whole[skip] & 0xc0) == 0x80)
        skip++;
    snprintf(prompt, sizeof prompt, "%s", whole ? whole + skip : "");
    ot_utf8_keep_line(prompt);
    ot_fact_text(ot_json_get(sample, "text"), answer, sizeof answer);
    snprintf(text, sizeof text, "%.3s\"%.80s\" -> %s", skip ? "..." : "", prompt, answer);
    add_words(lines, 8, "sample", OT_STYLE_PLAIN, text, 2);
}

static void add_about(const struct ot_picture *f, struct lines *lines) {
    char text[OT_FACT_BYTES];
    if (*ot_fact_model(f->history, text))
        add_words(lines, 10, "model", OT_STYLE_DIM, text, 1);
    if (*ot_fact_machine(f->history, text))
        add_words(lines, 11, "machine", OT_STYLE_DIM, text, 1);
}

/* Removes the least important lines until `most` are left. */
static void keep_lines(struct lines *lines, int most) {
    while (lines->n > ot_max(most, 0)) {
        int worst = 0;
        for (int i = 1; i < lines->n; i++)
            worst = lines->line[i].priority >= lines->line[worst].priority ? i : worst;
        lines->n--;
        memmove(&lines->line[worst], &lines->line[worst + 1],
                (size_t)(lines->n - worst) * sizeof lines->line[0]);
    }
}

/* ---- the head ---- */

static bool is_over(const struct ot_picture *f) {
    return f->state != OT_RUN_RUNS && f->state != OT_RUN_WAITS;
}

static void put_title(const struct ot_picture *f, struct ot_screen *s) {
    static const enum ot_style styles[] = {
        [OT_RUN_WAITS] = OT_STYLE_DIM,    [OT_RUN_RUNS] = OT_STYLE_GOOD,  [OT_RUN_DONE] = OT_STYLE_GOOD,
        [OT_RUN_STOPPED] = OT_STYLE_MARK, [OT_RUN_FAILED] = OT_STYLE_BAD, [OT_RUN_GONE] = OT_STYLE_BAD};
    const char *state =
        f->state == OT_RUN_RUNS && !f->history->step.step ? "before step 1" : ot_fact_state_name(f->state);
    int width = ot_screen_width(state), name = ot_screen_width(f->history->name);
    int room = s->columns - width - 1;
    if (name > room && room > 8) { /* the end of a path says more than its begin */
        const char *end = f->history->name;
        while (ot_screen_width(end) > room - 3)
            for (end++; (*end & 0xc0) == 0x80; end++)
                ;
        ot_screen_put(s, 0, ot_screen_put(s, 0, 0, 3, OT_STYLE_BOLD, "..."), room - 3, OT_STYLE_BOLD, end);
    } else {
        ot_screen_put(s, 0, 0, ot_max(room, 0), OT_STYLE_BOLD, f->history->name);
    }
    ot_screen_put(s, 0, ot_max(s->columns - width, 0), s->columns, styles[f->state], state);
}

static void put_progress(const struct ot_picture *f, struct ot_screen *s) {
    const struct ot_history *h = f->history;
    struct lines one = {.columns = s->columns + LABEL};
    struct line *line = add_line(&one, 0, "");
    char bar[24], count[OT_TEXT_BYTES], all[OT_TEXT_BYTES], time[OT_TEXT_BYTES];
    int64_t steps = ot_history_steps(h);
    double share = steps > 0 ? (double)h->step.step / (double)steps : 0, left = ot_history_left(h, f->now);
    double end = f->state == OT_RUN_RUNS ? f->now : h->last_step_time;
    bool is_wide = s->columns >= 56;
    put_bar(bar, s->columns >= 72 ? 20 : 10, share);
    ot_text_count(h->step.step, count);
    ot_text_count(steps, all);
    if (is_wide)
        part(line, "[%s] step %s of %s, %.0f %%", bar, count, all, floor(100 * share));
    else
        part(line, "step %s/%s", count, all);
    if (f->state == OT_RUN_RUNS && !isnan(left) && h->step.step < steps)
        part(line, "ETA %s", ot_text_duration(left, time));
    if (!is_wide)
        part(line, "%.0f %%", floor(100 * share));
    if (h->began > 0 && end > h->began)
        part(line, "%s %s", ot_text_duration(end - h->began, time), is_over(f) ? "in all" : "so far");
    if (h->step.epoch > 0)
        part(line, "epoch %.2f", h->step.epoch);
    ot_screen_put(s, 1, 0, s->columns, OT_STYLE_PLAIN, line->text);
}

static void put_losses(const struct ot_picture *f, struct ot_screen *s, int row) {
    const struct ot_history *h = f->history;
    struct lines one = {.columns = s->columns};
    struct line *line = add_line(&one, 0, "loss");
    const struct ot_history_eval *best = ot_history_best(h);
    const struct ot_history_eval *last = h->n_evals ? &h->evals[h->n_evals - 1] : NULL;
    if (h->step.step)
        isnan(h->step.loss) ? part(line, "not finite") : part(line, "%.4f", h->step.loss);
    if (last && !isnan(last->loss))
        part(line, "eval %.4f after step %lld", last->loss, (long long)last->step);
    if (last && last->accuracy >= 0)
        part(line, "accuracy %.1f %%", 100 * last->accuracy);
    if (best && best != last)
        part(line, "best %.4f after %lld", best->loss, (long long)best->step);
    ot_screen_put(s, row, 0, LABEL, OT_STYLE_BOLD, "loss");
    ot_screen_put(s, row, LABEL, s->columns - LABEL, OT_STYLE_PLAIN, *line->text ? line->text : "none yet");
}

/* ---- curves ---- */

struct view { /* of a curve: values to dots */
    struct ot_dots dots;
    double low, high; /* of the values, or of their logarithms */
    int64_t first, last;
    bool is_logarithmic;
};

static int x_of(const struct view *v, double step) {
    double share = v->last > v->first ? (step - (double)v->first) / (double)(v->last - v->first) : 0;
    return (int)lround(share * (ot_dots_across(&v->dots) - 1));
}

static int y_of(const struct view *v, double value) {
    value = v->is_logarithmic ? log(fmax(value, 1e-300)) : value;
    double share = v->high > v->low ? (value - v->low) / (v->high - v->low) : 0.5;
    return (int)lround((1 - fmin(fmax(share, 0), 1)) * (ot_dots_down(&v->dots) - 1));
}

/* The value at a share of the height; 0 is the bottom. */
static double value_at(const struct view *v, double share) {
    double value = v->low + share * (v->high - v->low);
    return v->is_logarithmic ? exp(value) : value;
}

/* Draws a line to a dot from the dot (*x, *y), if *x >= 0. Each column of dots begins beside the one before,
 * so that the line has no gap. */
static void put_line(const struct view *v, int *x, int *y, int to_x, int to_y, enum ot_style style) {
    int from_x = *x, from_y = *y;
    if (from_x < 0)
        ot_dots_put(&v->dots, to_x, to_y, to_y, style);
    for (int at = from_x + 1; from_x >= 0 && at <= to_x; at++) {
        int next = from_y + (int)lround((double)(to_y - from_y) * (at - from_x) / (to_x - from_x));
        ot_dots_put(&v->dots, at, next == *y ? next : *y + (next > *y ? 1 : -1), next, style);
        *y = next;
    }
    *x = to_x;
    *y = to_y;
}

/* Draws the curve as a connected line. Points that share a column of dots become their mean. */
static void put_curve(const struct view *v, const struct ot_curve *c, enum ot_style style) {
    int at_x = -1, at_y = 0;
    for (int i = 0; i < c->n;) {
        int x = x_of(v, ot_curve_middle(&c->points[i]));
        double sum = 0, n = 0;
        for (; i < c->n && x_of(v, ot_curve_middle(&c->points[i])) == x; i++) {
            sum += c->points[i].sum;
            n += (double)c->points[i].n;
        }
        put_line(v, &at_x, &at_y, x, y_of(v, sum / n), style);
    }
}

/* Marks evaluations by a character each. */
static void put_marks(const struct view *v, const struct ot_curve *c) {
    const struct ot_dots *d = &v->dots;
    int across = d->screen->is_ascii ? 1 : 2, down = d->screen->is_ascii ? 1 : 4;
    for (int i = 0; i < c->n; i++)
        ot_screen_put(d->screen, d->row + y_of(v, ot_curve_mean(&c->points[i])) / down,
                      d->column + x_of(v, ot_curve_middle(&c->points[i])) / across, 1, OT_STYLE_MARK, "o");
}

static void find_range(const struct ot_curve *c, double *low, double *high) {
    for (int i = 0; i < c->n; i++) {
        *low = fmin(*low, ot_curve_mean(&c->points[i]));
        *high = fmax(*high, ot_curve_mean(&c->points[i]));
    }
}

static const char *axis_text(double value, char text[OT_TEXT_BYTES]) {
    if (fabs(value) >= 1e6)
        return ot_text_short(value, text);
    if (fabs(value) >= 1000)
        return ot_text_count((int64_t)llround(value), text);
    snprintf(text, OT_TEXT_BYTES, "%.3g", value);
    return text;
}

/* Numbers at the left: top, middle, bottom; below, the first and the last step. */
static void put_axes(const struct view *v) {
    const struct ot_dots *d = &v->dots;
    char text[OT_TEXT_BYTES];
    for (int i = 0; i < 3; i++) {
        int row = d->row + i * (d->rows - 1) / 2;
        if (i == 1 && d->rows < 5)
            continue;
        axis_text(value_at(v, 1 - (double)(row - d->row) / (d->rows - 1)), text);
        ot_screen_put(d->screen, row, ot_max(AXIS - 1 - ot_screen_width(text), 0), AXIS - 1, OT_STYLE_DIM,
                      text);
    }
    ot_text_count(v->first, text);
    ot_screen_put(d->screen, d->row + d->rows, d->column, d->columns, OT_STYLE_DIM, text);
    ot_text_count(v->last, text);
    ot_screen_put(d->screen, d->row + d->rows, ot_max(d->column + d->columns - ot_screen_width(text), 0),
                  d->columns, OT_STYLE_DIM, text);
}

/* Draws a curve into rows of the screen, the last of which has the steps. marks: NULL: none. */
static void put_plot(struct ot_screen *s, int row, int rows, const struct ot_curve *c,
                     const struct ot_curve *marks) {
    struct view v = {.dots = {s, row, AXIS, rows - 1, s->columns - AXIS}, .low = INFINITY, .high = -INFINITY};
    const struct ot_curve *first = c->n ? c : marks;
    if (v.dots.columns < 4 || rows < 3 || !first || first->n == 0)
        return;
    find_range(c, &v.low, &v.high);
    v.first = first->points[0].first;
    v.last = ot_max(c->step, marks ? marks->step : 0);
    if (marks && marks->n) {
        find_range(marks, &v.low, &v.high);
        v.first = ot_min(v.first, marks->points[0].first);
    }
    if (v.low == v.high) { /* a level line in the middle */
        v.low -= fmax(0.05 * fabs(v.low), 1e-9);
        v.high += fmax(0.05 * fabs(v.high), 1e-9);
    }
    v.is_logarithmic = v.low > 0 && v.high > 4 * v.low;
    v.low = v.is_logarithmic ? log(v.low) : v.low;
    v.high = v.is_logarithmic ? log(v.high) : v.high;
    put_curve(&v, c, OT_STYLE_CURVE);
    if (marks)
        put_marks(&v, marks);
    put_axes(&v);
}

/* ---- the picture ---- */

static void put_hint(const struct ot_picture *f, struct ot_screen *s) {
    char text[96] = "", ago[OT_TEXT_BYTES];
    double since = f->history->last_step_time;
    if (since > 0 && !is_over(f))
        snprintf(text, sizeof text, "last step %s ago", ot_text_duration(fmax(f->now - since, 0), ago));
    int end = ot_screen_put(s, s->rows - 1, 0, s->columns, OT_STYLE_DIM, f->hint);
    int column = s->columns - ot_screen_width(text);
    if (column > end + 1)
        ot_screen_put(s, s->rows - 1, column, s->columns, OT_STYLE_DIM, text);
}

static void put_lines(const struct lines *lines, struct ot_screen *s, int row) {
    for (int i = 0; i < lines->n; i++) {
        const struct line *line = &lines->line[i];
        ot_screen_put(s, row + i, 0, LABEL - 1, OT_STYLE_BOLD, line->label);
        ot_screen_put(s, row + i, LABEL, s->columns - LABEL, line->style, line->text);
    }
}

void ot_picture_draw(const struct ot_picture *f, struct ot_screen *s) {
    struct lines lines = {.columns = s->columns};
    const struct ot_history *h = f->history;
    char state[OT_FACT_BYTES];
    put_title(f, s);
    if (f->state == OT_RUN_WAITS) {
        snprintf(state, sizeof state, "waiting for %.400s/log.jsonl", h->name);
        ot_screen_put(s, 1, 0, s->columns, OT_STYLE_PLAIN, state);
        put_hint(f, s);
        return;
    }
    put_progress(f, s);
    if (f->state == OT_RUN_FAILED || f->state == OT_RUN_STOPPED || f->state == OT_RUN_GONE)
        add_words(&lines, 0, "end", f->state == OT_RUN_STOPPED ? OT_STYLE_MARK : OT_STYLE_BAD,
                  ot_fact_state(h, f->state, state), 3);
    add_speed(f, &lines);
    add_lanes(f, &lines);
    add_tiers(f, &lines);
    add_disks(f, &lines);
    add_gpus(f, &lines);
    add_saved(f, &lines);
    add_sample(f, &lines);
    add_about(f, &lines);
    int free_rows = s->rows - HEAD_ROWS - HINT_ROWS;
    bool has_curve = (h->loss.n > 0 || h->eval_loss.n > 0) && free_rows > LEAST_CURVE;
    keep_lines(&lines, free_rows - (has_curve ? LEAST_CURVE + (free_rows > 12 ? 5 : 0) : 0));
    int rest = free_rows - lines.n, second = rest >= TWO_CURVES && h->rate.n > 0 ? rest / 3 + 1 : 0;
    put_losses(f, s, 2);
    put_plot(s, HEAD_ROWS, rest - second, &h->loss, &h->eval_loss);
    if (second > 0) {
        ot_screen_put(s, HEAD_ROWS + rest - second, 0, s->columns, OT_STYLE_BOLD, "tokens a second");
        put_plot(s, HEAD_ROWS + rest - second + 1, second - 1, &h->rate, NULL);
    }
    put_lines(&lines, s, HEAD_ROWS + rest);
    put_hint(f, s);
}
