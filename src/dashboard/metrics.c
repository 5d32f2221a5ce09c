#include "src/dashboard/metrics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/file_io.h"

/* A metric has the last value of a key of an event, or the sum of all of them: then it is a counter. */
static const struct {
    const char *name, *help, *event, *key;
    bool sums;
} metrics[] = {
    {"step", "Optimizer steps done.", "step", "step", false},
    {"epoch", "Passes over the rows.", "step", "epoch", false},
    {"loss_nats", "Training loss of the last step, the mean over its trained tokens.", "step", "loss", false},
    {"grad_norm", "Norm of the gradient of the last step, before clipping.", "step", "grad_norm", false},
    {"learning_rate", "Learning rate of the last step.", "step", "lr", false},
    {"tokens_total", "Tokens trained by this process.", "step", "tokens", true},
    {"tokens_per_second", "Tokens a second in the last step.", "step", "tokens_per_s", false},
    {"step_seconds", "Time of the last step.", "step", "seconds", false},
    {"roof_share", "FLOP/s of the last step as a share of the measured rate of matrix products.", "step",
     "roof_share", false},
    {"gpu_bytes", "Device memory in use.", "step", "gpu_bytes", false},
    {"host_bytes", "Pinned host memory in use.", "step", "host_bytes", false},
    {"nvme_read_bytes_total", "Bytes read from NVMe by steps.", "step", "nvme_read_bytes", true},
    {"nvme_written_bytes_total", "Bytes written to NVMe by steps.", "step", "nvme_written_bytes", true},
    {"eval_step", "Step of the last evaluation.", "eval", "step", false},
    {"eval_loss_nats", "Loss of the last evaluation.", "eval", "loss", false},
    {"eval_accuracy", "Share of right tokens in the last evaluation, 0 to 1.", "eval", "accuracy", false},
    {"checkpoint_step", "Step of the newest checkpoint.", "checkpoint", "step", false},
};
enum { METRICS = sizeof metrics / sizeof *metrics };

struct ot_metrics {
    char *path;
    char *label;            /* {out="..."} */
    double values[METRICS]; /* NaN: none */
    bool is_finished;
    double written; /* when the file was written */
};

/* ---- taking events ---- */

int ot_metrics_open(const char *path, struct ot_metrics **out) {
    struct ot_metrics *m = *out = calloc(1, sizeof *m);
    if (!m)
        return ot_fail(OT_E_BUDGET, "%s: no memory for metrics", path);
    for (int i = 0; i < METRICS; i++)
        m->values[i] = NAN;
    m->written = -INFINITY;
    return ot_string_format(&m->path, "%s", path);
}

void ot_metrics_close(struct ot_metrics *m) {
    if (!m)
        return;
    free(m->path);
    free(m->label);
    free(m);
}

/* A label's value: backslashes, quotes and newlines are escaped. out NULL: the run has no output. */
static void take_label(struct ot_metrics *m, const char *out) {
    struct ot_string_builder b = {0};
    ot_string_append_text(&b, "{out=\"");
    for (const char *at = out; at && *at; at++) {
        if (*at == '\\' || *at == '"')
            ot_string_append(&b, "\\", 1);
        ot_string_append(&b, *at == '\n' ? "\\n" : at, *at == '\n' ? 2 : 1);
    }
    ot_string_append_text(&b, "\"}");
    free(m->label);
    m->label = b.text;
}

void ot_metrics_take(struct ot_metrics *m, const struct ot_json *event) {
    const char *name = ot_json_string(ot_json_get(event, "event"), NULL);
    if (!name)
        return;
    if (strcmp(name, "run") == 0)
        take_label(m, ot_json_string(ot_json_get(event, "out"), NULL));
    if (strcmp(name, "done") == 0)
        m->is_finished = !ot_json_bool(ot_json_get(event, "interrupted"), false);
    for (int i = 0; i < METRICS; i++) {
        double value =
            strcmp(name, metrics[i].event) == 0 ? ot_json_real(ot_json_get(event, metrics[i].key), NAN) : NAN;
        if (!isnan(value))
            m->values[i] = metrics[i].sums && !isnan(m->values[i]) ? m->values[i] + value : value;
    }
}

/* ---- writing the file ---- */

/* Whole numbers have all their digits. */
static void put_metric(const struct ot_metrics *m, struct ot_string_builder *b, const char *name,
                       const char *help, bool counts, double value) {
    const char *label = m->label ? m->label : "";
    ot_string_append_format(b, "# HELP offload_train_%s %s\n# TYPE offload_train_%s %s\n", name, help, name,
                            counts ? "counter" : "gauge");
    ot_string_append_format(b, "offload_train_%s%s %.*g\n", name, label, value == floor(value) ? 17 : 9,
                            value);
}

int ot_metrics_write(struct ot_metrics *m, bool now) {
    struct ot_string_builder b = {0};
    if (!now && ot_clock_seconds() - m->written < 1)
        return 0;
    m->written = ot_clock_seconds();
    for (int i = 0; i < METRICS; i++)
        if (!isnan(m->values[i]))
            put_metric(m, &b, metrics[i].name, metrics[i].help, metrics[i].sums, m->values[i]);
    put_metric(m, &b, "finished", "1 if the run has reached its end.", false, m->is_finished);
    put_metric(m, &b, "updated_timestamp_seconds", "When this file was written, in Unix time.", false,
               (double)time(NULL));
    int rc = b.failed ? ot_fail(OT_E_BUDGET, "%s: no memory for metrics", m->path)
                      : ot_replace_file(m->path, b.text, b.bytes);
    free(b.text);
    return rc;
}
