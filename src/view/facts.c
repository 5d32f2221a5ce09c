#include "src/view/facts.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "src/base/units.h"
#include "src/base/utf8.h"

/* Cuts a text that filled its buffer at the end of a character, and removes control characters. */
static const char *tidy(char *text) {
    size_t n = strlen(text), at = n;
    while (at > 0 && n - at < 4 && (text[at - 1] & 0xc0) == 0x80)
        at--;
    if (at > 0 && (text[at - 1] & 0x80) && ot_utf8_character(text + at - 1, n - at + 1) == 0)
        text[at - 1] = '\0';
    ot_utf8_keep_line(text);
    return text;
}

const char *ot_fact_text(const struct ot_json *value, char *text, size_t bytes) {
    const char *from = ot_json_string(value, NULL);
    snprintf(text, bytes, "%s", from ? from : "");
    return tidy(text);
}

const char *ot_fact_value(const struct ot_json *value, char text[OT_FACT_BYTES]) {
    char item[OT_FACT_BYTES];
    text[0] = '\0';
    switch (ot_json_type(value)) {
    case OT_JSON_BOOL:
        return strcpy(text, ot_json_bool(value, false) ? "yes" : "no");
    case OT_JSON_INT:
        snprintf(text, OT_FACT_BYTES, "%lld", (long long)ot_json_int(value, 0));
        return text;
    case OT_JSON_REAL:
        snprintf(text, OT_FACT_BYTES, "%.9g", ot_json_real(value, 0));
        return text;
    case OT_JSON_STRING:
        return ot_fact_text(value, text, OT_FACT_BYTES);
    case OT_JSON_ARRAY:
        for (size_t i = 0, used = 0; i < ot_json_length(value) && used < OT_FACT_BYTES; i++) {
            const struct ot_json *at = ot_json_at(value, i);
            if (ot_json_type(at) != OT_JSON_ARRAY)
                used += (size_t)snprintf(text + used, OT_FACT_BYTES - used, "%s%s", i ? ", " : "",
                                         ot_fact_value(at, item));
        }
        return tidy(text);
    default:
        return text;
    }
}

/* ---- sentences ---- */

const char *ot_fact_state_name(enum ot_run_state state) {
    static const char *const names[] = {
        [OT_RUN_WAITS] = "no log yet", [OT_RUN_RUNS] = "running",  [OT_RUN_DONE] = "finished",
        [OT_RUN_STOPPED] = "stopped",  [OT_RUN_FAILED] = "failed", [OT_RUN_GONE] = "not running"};
    return names[state];
}

static const char *of_steps(const struct ot_history *h, char text[64]) {
    int64_t steps = ot_history_steps(h);
    if (steps > h->step.step)
        snprintf(text, 64, "step %lld of %lld", (long long)h->step.step, (long long)steps);
    else
        snprintf(text, 64, "step %lld", (long long)h->step.step);
    return text;
}

const char *ot_fact_state(const struct ot_history *h, enum ot_run_state state, char text[OT_FACT_BYTES]) {
    char where[64], error[OT_FACT_BYTES - 16];
    switch (state) {
    case OT_RUN_WAITS:
        return strcpy(text, ot_fact_state_name(state));
    case OT_RUN_RUNS:
        return strcpy(text, h->step.step ? "running" : "before step 1");
    case OT_RUN_DONE:
        return strcpy(text, ot_json_bool(ot_json_get(h->last[OT_HISTORY_DONE], "stopped_early"), false)
                                ? "finished, stopped early (--stop-early)"
                                : "finished");
    case OT_RUN_STOPPED:
        snprintf(text, OT_FACT_BYTES, "stopped by a signal after %s", of_steps(h, where));
        return text;
    case OT_RUN_FAILED:
        ot_fact_text(ot_json_get(h->last[OT_HISTORY_FAILED], "error"), error, sizeof error);
        snprintf(text, OT_FACT_BYTES, "failed: %s", error);
        return text;
    case OT_RUN_GONE:
        break;
    }
    snprintf(text, OT_FACT_BYTES, "not running: its log ends after %s", of_steps(h, where));
    return text;
}

struct words { /* a text of parts with " · " between them */
    char *text;
    size_t used;
};

__attribute__((format(printf, 2, 3))) static void add(struct words *w, const char *format, ...) {
    va_list args;
    if (w->used >= OT_FACT_BYTES)
        return;
    va_start(args, format);
    w->used += (size_t)snprintf(w->text + w->used, OT_FACT_BYTES - w->used, "%s", w->used ? " · " : "");
    if (w->used < OT_FACT_BYTES)
        w->used += (size_t)vsnprintf(w->text + w->used, OT_FACT_BYTES - w->used, format, args);
    va_end(args);
}

static int64_t whole(const struct ot_json *object, const char *key) {
    return ot_json_int(ot_json_get(object, key), 0);
}

const char *ot_fact_model(const struct ot_history *h, char text[OT_FACT_BYTES]) {
    const struct ot_json *model = ot_json_get(h->last[OT_HISTORY_RUN], "model");
    char part[160], type[32], count[OT_PARAMS_TEXT_BYTES];
    struct words w = {text, 0};
    text[0] = '\0';
    if (*ot_fact_text(ot_json_get(ot_history_options(h), "model"), part, sizeof part))
        add(&w, "%s", part);
    if (*ot_fact_text(ot_json_get(model, "family"), part, sizeof part))
        add(&w, "%s", part);
    int64_t all = whole(model, "parameters"), frozen = whole(model, "frozen_parameters");
    int64_t trained = whole(model, "trained_parameters");
    ot_fact_text(ot_json_get(model, "computed"), type, sizeof type);
    if (all > 0)
        add(&w, "%s, %s", ot_text_params(frozen, trained ? trained : all, count), type);
    return tidy(text);
}

const char *ot_fact_machine(const struct ot_history *h, char text[OT_FACT_BYTES]) {
    const struct ot_json *run = h->last[OT_HISTORY_RUN], *machine = ot_json_get(run, "machine");
    char part[256], size[OT_TEXT_BYTES];
    struct words w = {text, 0};
    text[0] = '\0';
    int64_t ranks = whole(ot_json_get(run, "ranks"), "ranks");
    if (*ot_fact_text(ot_json_get(machine, "device"), part, sizeof part))
        add(&w, "%s", part);
    if (whole(machine, "cores") > 0)
        add(&w, "%lld core%s", (long long)whole(machine, "cores"), ot_plural(whole(machine, "cores")));
    if (whole(machine, "ram_bytes") > 0)
        add(&w, "RAM %s", ot_text_bytes(whole(machine, "ram_bytes"), size));
    if (ranks > 1)
        add(&w, "%lld ranks", (long long)ranks);
    return tidy(text);
}

const char *ot_fact_data(const struct ot_history *h, char text[OT_FACT_BYTES]) {
    const struct ot_json *data = ot_json_get(h->last[OT_HISTORY_RUN], "data");
    char files[OT_FACT_BYTES], rows[OT_TEXT_BYTES], evals[OT_TEXT_BYTES];
    struct words w = {text, 0};
    text[0] = '\0';
    if (*ot_fact_value(ot_json_get(ot_history_options(h), "data"), files))
        add(&w, "%.200s", files);
    if (data)
        add(&w, "%s train / %s eval rows", ot_text_count(whole(data, "train_rows"), rows),
            ot_text_count(whole(data, "eval_rows"), evals));
    if (whole(data, "tokens") > 0)
        add(&w, "%s tokens", ot_text_short((double)whole(data, "tokens"), rows));
    return tidy(text);
}

/* "weights: 4 slabs on gpu, 28 on host". unit: "slab". */
static void add_places(struct words *w, const char *what, const char *unit, const char *where,
                       const struct ot_json *counts) {
    char list[160] = "", name[32];
    size_t used = 0;
    const char *key;
    struct ot_json *value;
    for (void *cursor = NULL; ot_json_next(counts, &cursor, &key, &value) && used < sizeof list;) {
        snprintf(name, sizeof name, "%s", key);
        long long n = (long long)ot_json_int(value, 0);
        if (n > 0 && used == 0)
            used += (size_t)snprintf(list, sizeof list, "%lld %s%s %s %s", n, unit, ot_plural(n), where,
                                     tidy(name));
        else if (n > 0)
            used += (size_t)snprintf(list + used, sizeof list - used, ", %lld %s %s", n, where, tidy(name));
    }
    if (used > 0)
        add(w, "%s: %s", what, list);
}

const char *ot_fact_plan(const struct ot_history *h, char text[OT_FACT_BYTES]) {
    const struct ot_json *plan = ot_json_get(h->last[OT_HISTORY_RUN], "plan");
    struct words w = {text, 0};
    text[0] = '\0';
    add_places(&w, "weights", "slab", "on", ot_json_get(plan, "weights"));
    add_places(&w, "optimizer state", "tile", "on", ot_json_get(plan, "state_tiles"));
    add_places(&w, "updates", "tile", "by", ot_json_get(plan, "optimizer_tiles"));
    return tidy(text);
}

const char *ot_fact_guard(const struct ot_history *h, char text[OT_FACT_BYTES]) {
    struct words w = {text, 0};
    text[0] = '\0';
    if (h->skipped > 0)
        add(&w, "%lld step%s skipped", (long long)h->skipped, ot_plural(h->skipped));
    if (h->not_finite > 0)
        add(&w, "%lld loss%s not finite", (long long)h->not_finite, h->not_finite == 1 ? "" : "es");
    if (h->spikes > 0)
        add(&w, "%lld loss spike%s", (long long)h->spikes, ot_plural(h->spikes));
    return text;
}

/* ---- numbers ---- */

double ot_fact_step_seconds(const struct ot_history *h) {
    double measured = ot_history_number(h, OT_HISTORY_DONE, "measured_step_seconds");
    return !isnan(measured) ? measured : h->mean_seconds > 0 ? h->mean_seconds : NAN;
}

struct ot_fact_memory ot_fact_memory(const struct ot_history *h, int tier) {
    const char *name = ot_tier_name((enum ot_tier)tier);
    const struct ot_json *ledger = ot_json_get(ot_json_get(h->last[OT_HISTORY_RUN], "plan"), "ledger");
    struct ot_fact_memory m = {NAN, NAN, NAN};
    char key[64];
    snprintf(key, sizeof key, "plan.%s_budget_bytes", name);
    m.budget = ot_history_number(h, OT_HISTORY_RUN, key);
    snprintf(key, sizeof key, "%s_used_bytes", name);
    m.used = ot_history_number(h, OT_HISTORY_DONE, key);
    if (isnan(m.used) && tier == OT_TIER_GPU)
        m.used = h->step.step ? h->step.gpu_bytes : NAN;
    if (isnan(m.used) && tier == OT_TIER_HOST)
        m.used = h->step.step ? h->step.host_bytes : NAN;
    for (size_t i = 0; i < ot_json_length(ledger); i++) {
        const struct ot_json *row = ot_json_at(ledger, i);
        const char *of = ot_json_string(ot_json_get(row, "tier"), NULL);
        double bytes = ot_json_real(ot_json_get(row, "bytes"), 0);
        if (of && strcmp(of, name) == 0)
            m.planned = (isnan(m.planned) ? 0 : m.planned) + bytes;
    }
    m.planned = m.planned <= OT_HISTORY_MOST ? m.planned : NAN;
    return m;
}

struct ot_fact_lanes ot_fact_lanes(const struct ot_history *h, int index) {
    static const struct {
        enum ot_history_event event;
        const char *name, *seconds, *prefix;
    } of[OT_FACT_LANES] = {{OT_HISTORY_RUN, "predicted", "prediction.step_seconds", "prediction."},
                           {OT_HISTORY_AGAIN, "predicted again", "step_seconds", ""},
                           {OT_HISTORY_TRACE, "measured", "seconds", ""}};
    struct ot_fact_lanes lanes = {.name = of[index].name};
    double seconds = ot_history_number(h, of[index].event, of[index].seconds);
    char key[64];
    lanes.seconds = seconds > 0 ? seconds : 0;
    for (int l = 0; l < OT_LANE_COUNT; l++) {
        double *const into[] = {&lanes.busy[l], &lanes.exposed[l]};
        for (int k = 0; k < 2; k++) {
            snprintf(key, sizeof key, "%s%s.%s", of[index].prefix, k ? "exposed_seconds" : "busy_seconds",
                     ot_lane_name((enum ot_lane_id)l));
            double value = ot_history_number(h, of[index].event, key);
            *into[k] = value > 0 ? value : 0;
        }
    }
    snprintf(key, sizeof key, "%sexposed_host_seconds", of[index].prefix);
    double host = ot_history_number(h, of[index].event, key);
    lanes.exposed_host = host > 0 ? host : 0;
    return lanes;
}
