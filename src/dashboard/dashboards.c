#include "src/dashboard/dashboards.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/dashboard/event_file.h"
#include "src/dashboard/metrics.h"

struct ot_dashboards {
    char *dir;                  /* of TensorBoard; NULL: not wanted, or it has failed */
    struct ot_event_file *file; /* NULL: not made yet */
    struct ot_json *run;        /* the event "run", whose options wait for the file; NULL: none yet */
    struct ot_metrics *metrics; /* NULL: not wanted, or it has failed */
};

/* The scalars, by the names of transformers' and TRL's callbacks as far as these have one. */
static const struct {
    const char *event, *key, *tag;
} scalars[] = {
    {"step", "loss", "train/loss"},
    {"step", "lr", "train/learning_rate"},
    {"step", "grad_norm", "train/grad_norm"},
    {"step", "epoch", "train/epoch"},
    {"step", "reward_chosen", "train/rewards/chosen"},
    {"step", "reward_rejected", "train/rewards/rejected"},
    {"step", "reward_margin", "train/rewards/margins"},
    {"step", "reward_accuracy", "train/rewards/accuracies"},
    {"step", "loss_scale", "train/loss_scale"},
    {"step", "tokens_per_s", "speed/tokens_per_second"},
    {"step", "seconds", "speed/step_seconds"},
    {"step", "roof_share", "speed/roof_share"},
    {"step", "gpu_bytes", "memory/gpu_bytes"},
    {"step", "host_bytes", "memory/host_bytes"},
    {"eval", "loss", "eval/loss"},
    {"eval", "perplexity", "eval/perplexity"},
    {"eval", "accuracy", "eval/accuracy"},
    {"eval", "reward_chosen", "eval/rewards/chosen"},
    {"eval", "reward_rejected", "eval/rewards/rejected"},
    {"eval", "reward_margin", "eval/rewards/margins"},
    {"eval", "exact_match", "eval/exact_match"},
    {"eval", "normalised_match", "eval/normalised_match"},
    {"eval", "valid_sql", "eval/valid_sql"},
    {"eval", "equal_results", "eval/equal_results"},
};

/* ---- opening ---- */

static int open_tensorboard(struct ot_dashboards *d, const char *dir) {
    OT_TRY(ot_string_format(&d->dir, "%s", dir));
    int error = ot_path_make_dirs(d->dir, NULL);
    if (error < 0)
        return ot_fail_errno(OT_E_IO, -error, "--tensorboard %s: cannot make the directory", dir);
    return access(dir, W_OK) == 0
               ? 0
               : ot_fail_errno(OT_E_IO, errno, "--tensorboard %s: cannot write there", dir);
}

static int open_metrics(struct ot_dashboards *d, const char *path) {
    char parent[PATH_MAX];
    if (!ot_path_has_extension(path, ".prom"))
        return ot_fail(OT_E_USAGE,
                       "--metrics %.200s: the name must end with .prom, because the collector reads no other "
                       "files (--metric chooses how answers are judged)",
                       path);
    const char *slash = strrchr(path, '/');
    int n = !slash ? snprintf(parent, sizeof parent, ".")
                   : snprintf(parent, sizeof parent, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    if (n < 0 || (size_t)n >= sizeof parent)
        return ot_fail(OT_E_USAGE, "--metrics %.200s...: the path is too long", path);
    if (access(parent, W_OK) < 0)
        return ot_fail_errno(OT_E_IO, errno, "--metrics %s: cannot write into the directory %s", path,
                             parent);
    return ot_metrics_open(path, &d->metrics);
}

int ot_dashboards_open(const char *tensorboard, const char *metrics, struct ot_dashboards **out) {
    struct ot_dashboards *d = *out = calloc(1, sizeof *d);
    if (!d)
        return ot_fail(OT_E_BUDGET, "no memory for dashboards");
    if (tensorboard)
        OT_TRY(open_tensorboard(d, tensorboard));
    return metrics ? open_metrics(d, metrics) : 0;
}

void ot_dashboards_close(struct ot_dashboards *d) {
    if (!d)
        return;
    ot_event_file_close(d->file);
    ot_metrics_close(d->metrics);
    ot_json_free(d->run);
    free(d->dir);
    free(d);
}

/* ---- TensorBoard ---- */

/* Lines that begin with four spaces are code in Markdown, whatever they have. */
static void put_code(struct ot_string_builder *b, const char *title, const struct ot_json *text) {
    size_t bytes = 0;
    const char *at = ot_json_string(text, &bytes), *end = at ? at + bytes : at;
    ot_string_append_format(b, "**%s**\n\n", title);
    while (at && at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t n = newline ? (size_t)(newline - at) : (size_t)(end - at);
        ot_string_append_text(b, "    ");
        ot_string_append(b, at, n);
        ot_string_append_text(b, "\n");
        at += n + 1;
    }
    ot_string_append_text(b, "\n");
}

static void add_sample(struct ot_dashboards *d, const struct ot_json *event) {
    struct ot_string_builder b = {0};
    put_code(&b, "prompt", ot_json_get(event, "prompt"));
    put_code(&b, "answer", ot_json_get(event, "text"));
    if (!b.failed)
        ot_event_add_text(d->file, "sample/answer", b.text, b.bytes);
    free(b.text);
}

static void add_scalars(struct ot_dashboards *d, const char *name, const struct ot_json *event) {
    for (size_t i = 0; i < sizeof scalars / sizeof *scalars; i++) {
        const struct ot_json *value =
            strcmp(name, scalars[i].event) == 0 ? ot_json_get(event, scalars[i].key) : NULL;
        if (ot_json_type(value) == OT_JSON_INT || ot_json_type(value) == OT_JSON_REAL)
            ot_event_add_scalar(d->file, scalars[i].tag, ot_json_real(value, NAN));
    }
}

/* The event file begins with the first event of a step, whose number is then known. */
static int begin_file(struct ot_dashboards *d, int64_t step) {
    OT_TRY(ot_event_file_open(d->dir, step, &d->file));
    const struct ot_json *options = ot_json_get(d->run, "options");
    if (!options)
        return 0;
    ot_event_begin(d->file, 0);
    ot_event_add_hparams(d->file, options);
    return ot_event_end(d->file);
}

/* Keeps the event "run", and then sets *event to NULL. */
static int show(struct ot_dashboards *d, const char *name, struct ot_json **event) {
    if (strcmp(name, "run") == 0) {
        ot_json_free(d->run);
        d->run = *event;
        *event = NULL;
        return 0;
    }
    bool is_step = strcmp(name, "step") == 0 || strcmp(name, "eval") == 0;
    bool is_done = strcmp(name, "done") == 0, is_sample = strcmp(name, "sample") == 0;
    if (!is_step && !is_sample && !is_done)
        return 0;
    int64_t step = ot_json_int(ot_json_get(*event, is_done ? "steps" : "step"), 0);
    if (!d->file)
        OT_TRY(begin_file(d, step));
    if (is_done && ot_json_bool(ot_json_get(*event, "interrupted"), false))
        return 0;
    ot_event_begin(d->file, step);
    if (is_done)
        ot_event_add_success(d->file);
    else if (is_sample)
        add_sample(d, *event);
    else
        add_scalars(d, name, *event);
    return ot_event_end(d->file);
}

/* ---- lines ---- */

static void drop_tensorboard(struct ot_dashboards *d) {
    ot_log(OT_LOG_WARN, "--tensorboard gets no more steps: %s", ot_error_text());
    free(d->dir);
    d->dir = NULL;
}

static void drop_metrics(struct ot_dashboards *d) {
    ot_log(OT_LOG_WARN, "--metrics gets no more steps: %s", ot_error_text());
    ot_metrics_close(d->metrics);
    d->metrics = NULL;
}

void ot_dashboards_take(void *me, const char *line, size_t bytes) {
    struct ot_dashboards *d = me;
    struct ot_json *event = NULL;
    if (ot_json_parse(line, bytes, "log.jsonl", &event) < 0)
        return; /* there is no memory for this line; the next one is tried again */
    const char *name = ot_json_string(ot_json_get(event, "event"), NULL);
    if (name && d->metrics) {
        ot_metrics_take(d->metrics, event);
        if (ot_metrics_write(d->metrics, strcmp(name, "step") != 0) < 0)
            drop_metrics(d);
    }
    if (name && d->dir && show(d, name, &event) < 0)
        drop_tensorboard(d);
    ot_json_free(event);
}
