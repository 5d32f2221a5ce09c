#include "src/checkpoint/record.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "models/selection.h"
#include "src/base/error.h"
#include "src/base/utf8.h"

/* JSON readers of any language hold such a count exactly, and the sum of a few does not overflow. */
#define COUNT_MAX (INT64_C(1) << 53)

/* ---- writing ---- */

static void put_progress(const struct ot_checkpoint_record *r, struct ot_json_writer *w) {
    ot_json_begin_object(w, "progress");
    ot_json_put_int(w, "step", r->progress.step);
    ot_json_put_int(w, "adam_step", r->progress.adam_step);
    ot_json_put_exact(w, "loss_scale", (double)r->progress.loss_scale);
    ot_json_put_int(w, "scaled_steps", r->progress.scaled_steps);
    ot_json_put_exact(w, "loss_mean", r->progress.losses.mean);
    ot_json_put_exact(w, "loss_variance", r->progress.losses.variance);
    ot_json_put_int(w, "losses", r->progress.losses.n);
    ot_json_end_object(w);
    ot_json_begin_object(w, "position");
    ot_json_put_int(w, "epoch", r->position.epoch);
    ot_json_put_int(w, "sequence", r->position.sequence);
    ot_json_end_object(w);
    ot_json_begin_object(w, "run");
    ot_json_put_int(w, "steps", r->steps);
    ot_json_put_int(w, "tokens", r->tokens);
    ot_json_put_exact(w, "seconds", r->seconds);
    ot_json_put_int(w, "log_bytes", r->log_bytes);
    if (r->ranks > 1)
        ot_json_put_int(w, "ranks", r->ranks);
    if (r->hosts)
        ot_json_put_text(w, "hosts", r->hosts);
    if (r->result_step > 0)
        ot_json_put_int(w, "result_step", r->result_step);
    if (r->phase.lr_first > 0)
        ot_json_put_int(w, "lr_first", r->phase.lr_first);
    if (r->phase.evals_first > 0)
        ot_json_put_int(w, "evals_first", r->phase.evals_first);
    if (r->phase.rows_first > 0) {
        ot_json_put_int(w, "rows_first", r->phase.rows_first);
        ot_json_put_int(w, "rows_epoch", r->phase.rows_at.epoch);
        ot_json_put_int(w, "rows_sequence", r->phase.rows_at.sequence);
    }
    ot_json_end_object(w);
}

void ot_checkpoint_record_stamp(struct ot_checkpoint_record *record, const struct ot_device *device) {
    time_t now = time(NULL);
    struct tm utc;
    snprintf(record->library, sizeof record->library, "%s", OT_VERSION);
    snprintf(record->device, sizeof record->device, "%s", ot_device_name(device));
    snprintf(record->arithmetic, sizeof record->arithmetic, "%s", ot_device_arithmetic(device));
    if (gmtime_r(&now, &utc))
        strftime(record->made, sizeof record->made, "%Y-%m-%dT%H:%M:%SZ", &utc);
}

double ot_checkpoint_record_cost(const struct ot_checkpoint_record *r) {
    return ot_eval_history_cost(&r->evals, r->progress.step);
}

enum { KEY_BYTES = 40 };

static const char *score_key(const char *which, enum ot_eval_metric metric, char key[KEY_BYTES]) {
    snprintf(key, KEY_BYTES, "%s_%s", which, ot_eval_metric_name(metric));
    return key;
}

/* Scores that were not measured are left out. */
static void put_score(const char *which, const struct ot_eval_score *score, struct ot_json_writer *w) {
    char key[KEY_BYTES];
    ot_json_put_exact(w, score_key(which, OT_EVAL_LOSS, key), score->loss);
    ot_json_put_exact(w, score_key(which, OT_EVAL_ACCURACY, key), score->accuracy);
    if (!isnan(score->match))
        ot_json_put_exact(w, score_key(which, OT_EVAL_MATCH, key), score->match);
    if (!isnan(score->execution))
        ot_json_put_exact(w, score_key(which, OT_EVAL_EXECUTION, key), score->execution);
}

static void put_eval(const struct ot_eval_history *h, struct ot_json_writer *w) {
    if (!h->has_any)
        return;
    ot_json_begin_object(w, "eval");
    ot_json_put_text(w, "metric", ot_eval_metric_name(h->metric));
    put_score("first", &h->first, w);
    ot_json_put_int(w, "last_step", h->last_step);
    put_score("last", &h->last, w);
    ot_json_put_int(w, "best_step", h->best_step);
    put_score("best", &h->best, w);
    ot_json_put_int(w, "without_gain", h->without_gain);
    ot_json_end_object(w);
}

static void put_print(const char *key, const struct ot_data_fingerprint *print, struct ot_json_writer *w) {
    ot_json_begin_object(w, key);
    ot_json_put_int(w, "rows", print->rows);
    ot_json_put_int(w, "tokens", print->tokens);
    ot_json_put_int(w, "trained_tokens", print->trained_tokens);
    ot_json_put_int(w, "crc", print->crc);
    ot_json_end_object(w);
}

static void put_object(const char *key, const struct ot_json *object, struct ot_json_writer *w) {
    if (object) {
        ot_json_put_value(w, key, object);
        return;
    }
    ot_json_begin_object(w, key);
    ot_json_end_object(w);
}

int ot_checkpoint_record_encode(const struct ot_checkpoint_record *record, char **text, size_t *bytes) {
    struct ot_json_writer w = {.indent = 0};
    ot_json_begin_object(&w, NULL);
    ot_json_put_int(&w, "format", OT_CHECKPOINT_FORMAT);
    ot_json_put_text(&w, "library", record->library);
    ot_json_put_text(&w, "made", record->made);
    ot_json_put_text(&w, "device", record->device);
    ot_json_put_text(&w, "arithmetic", record->arithmetic);
    put_progress(record, &w);
    put_eval(&record->evals, &w);
    put_print("data", &record->data, &w);
    put_print("eval_data", &record->eval_data, &w);
    if (record->has_base) {
        ot_json_begin_object(&w, "base");
        ot_json_put_int(&w, "sample", record->base_sample);
        ot_json_end_object(&w);
    }
    if (record->has_frozen) {
        ot_json_begin_object(&w, "frozen");
        ot_json_put_int(&w, "crc", record->frozen_crc);
        ot_json_end_object(&w);
    }
    put_object("options", record->options, &w);
    if (record->sources)
        ot_json_put_value(&w, "sources", record->sources);
    if (record->history)
        ot_json_put_value(&w, "history", record->history);
    put_object("model", record->model, &w);
    ot_json_end_object(&w);
    return ot_json_writer_take(&w, text, bytes);
}

/* ---- reading ---- */

static int need_object(const struct ot_json *parent, const char *where, const char *key,
                       const struct ot_json **out) {
    *out = ot_json_get(parent, key);
    if (ot_json_type(*out) == OT_JSON_OBJECT)
        return 0;
    return ot_fail(OT_E_INPUT, "%s: '%s' is %s, not an object", where, key,
                   *out ? ot_json_type_name(ot_json_type(*out)) : "missing");
}

static int need_count(const struct ot_json *object, const char *where, const char *key, int64_t *out) {
    return ot_json_need_int(object, where, key, true, 0, COUNT_MAX, out);
}

/* A key is null or absent if the number was not finite or not measured. */
static int need_score(const struct ot_json *object, const char *where, const char *which,
                      struct ot_eval_score *out) {
    double *const shares[OT_EVAL_METRICS] = {[OT_EVAL_ACCURACY] = &out->accuracy,
                                             [OT_EVAL_MATCH] = &out->match,
                                             [OT_EVAL_EXECUTION] = &out->execution};
    char key[KEY_BYTES];
    *out = (struct ot_eval_score){NAN, NAN, NAN, NAN};
    OT_TRY(ot_json_need_real(object, where, score_key(which, OT_EVAL_LOSS, key), false, -DBL_MAX, DBL_MAX,
                             &out->loss));
    for (int i = OT_EVAL_ACCURACY; i < OT_EVAL_METRICS; i++)
        OT_TRY(ot_json_need_real(object, where, score_key(which, (enum ot_eval_metric)i, key), false, 0, 1,
                                 shares[i]));
    return 0;
}

/* These texts are shown to people: control characters that would steer a terminal are removed. */
static int need_line(const struct ot_json *object, const char *where, const char *key, char *out,
                     size_t capacity) {
    const char *text;
    OT_TRY(ot_json_need_string(object, where, key, true, &text));
    size_t bytes = strlen(text);
    if (bytes >= capacity)
        return ot_fail(OT_E_INPUT, "%s: '%s' has %zu bytes, at most %zu are allowed", where, key, bytes,
                       capacity - 1);
    memcpy(out, text, bytes + 1);
    ot_utf8_keep_line(out);
    return 0;
}

static int take_format(const struct ot_json *tree, const char *where, struct ot_checkpoint_record *out) {
    int64_t format;
    OT_TRY(ot_json_need_int(tree, where, "format", true, 1, INT32_MAX, &format));
    OT_TRY(need_line(tree, where, "library", out->library, sizeof out->library));
    if (format > OT_CHECKPOINT_FORMAT)
        return ot_fail(
            OT_E_INPUT,
            "%s: has format %lld, written by offload-train %s, but this is version %s, which reads "
            "formats up to %d; use a newer version",
            where, (long long)format, out->library, OT_VERSION, OT_CHECKPOINT_FORMAT);
    OT_TRY(need_line(tree, where, "made", out->made, sizeof out->made));
    OT_TRY(need_line(tree, where, "device", out->device, sizeof out->device));
    return ot_json_get(tree, "arithmetic")
               ? need_line(tree, where, "arithmetic", out->arithmetic, sizeof out->arithmetic)
               : 0;
}

static int take_progress(const struct ot_json *tree, const char *where, struct ot_engine_progress *out) {
    const struct ot_json *object;
    double scale;
    OT_TRY(need_object(tree, where, "progress", &object));
    OT_TRY(need_count(object, where, "step", &out->step));
    OT_TRY(ot_json_need_int(object, where, "adam_step", true, 0, out->step, &out->adam_step));
    OT_TRY(ot_json_need_real(object, where, "loss_scale", true, FLT_MIN, FLT_MAX, &scale));
    out->loss_scale = (float)scale;
    OT_TRY(ot_json_need_int(object, where, "scaled_steps", true, 0, out->step, &out->scaled_steps));
    struct ot_loss_stats *losses = &out->losses;
    OT_TRY(ot_json_need_real(object, where, "loss_mean", true, -DBL_MAX, DBL_MAX, &losses->mean));
    OT_TRY(ot_json_need_real(object, where, "loss_variance", true, 0, DBL_MAX, &losses->variance));
    return ot_json_need_int(object, where, "losses", true, 0, out->step, &losses->n);
}

/* Records of runs that never changed have none of these. */
static int take_phase(const struct ot_json *run, const char *where, struct ot_checkpoint_record *out) {
    struct ot_run_phase *phase = &out->phase;
    int64_t step = out->progress.step;
    OT_TRY(ot_json_need_int(run, where, "lr_first", false, 0, step, &phase->lr_first));
    OT_TRY(ot_json_need_int(run, where, "evals_first", false, 0, step, &phase->evals_first));
    OT_TRY(ot_json_need_int(run, where, "rows_first", false, 0, step, &phase->rows_first));
    OT_TRY(ot_json_need_int(run, where, "rows_epoch", false, 0, COUNT_MAX, &phase->rows_at.epoch));
    return ot_json_need_int(run, where, "rows_sequence", false, 0, COUNT_MAX, &phase->rows_at.sequence);
}

static int take_run(const struct ot_json *tree, const char *where, struct ot_checkpoint_record *out) {
    const struct ot_json *object;
    OT_TRY(need_object(tree, where, "position", &object));
    OT_TRY(need_count(object, where, "epoch", &out->position.epoch));
    OT_TRY(need_count(object, where, "sequence", &out->position.sequence));
    OT_TRY(need_object(tree, where, "run", &object));
    OT_TRY(need_count(object, where, "steps", &out->steps));
    OT_TRY(need_count(object, where, "tokens", &out->tokens));
    OT_TRY(ot_json_need_real(object, where, "seconds", true, 0, DBL_MAX, &out->seconds));
    int64_t ranks = 1; /* records of one rank do not say so */
    OT_TRY(ot_json_need_int(object, where, "ranks", false, 1, INT32_MAX, &ranks));
    out->ranks = (int)ranks;
    OT_TRY(ot_json_need_string(object, where, "hosts", false, &out->hosts));
    OT_TRY(ot_json_need_int(object, where, "result_step", false, 0, out->progress.step, &out->result_step));
    OT_TRY(take_phase(object, where, out));
    return need_count(object, where, "log_bytes", &out->log_bytes);
}

/* Records of older versions have no metric: it was the loss. */
static int take_metric(const struct ot_json *object, const char *where, enum ot_eval_metric *out) {
    const char *name = ot_eval_metric_name(OT_EVAL_LOSS);
    OT_TRY(ot_json_need_string(object, where, "metric", false, &name));
    for (int i = 0; i < OT_EVAL_METRICS; i++)
        if (strcmp(name, ot_eval_metric_name((enum ot_eval_metric)i)) == 0) {
            *out = (enum ot_eval_metric)i;
            return 0;
        }
    return ot_fail(OT_E_INPUT, "%s: unknown metric '%.40s'; use the version that wrote the file", where,
                   name);
}

static int take_eval(const struct ot_json *tree, const char *where, struct ot_eval_history *out) {
    const struct ot_json *object;
    out->has_any = ot_json_get(tree, "eval") != NULL;
    if (!out->has_any)
        return 0;
    OT_TRY(need_object(tree, where, "eval", &object));
    OT_TRY(take_metric(object, where, &out->metric));
    OT_TRY(need_score(object, where, "first", &out->first));
    OT_TRY(need_count(object, where, "last_step", &out->last_step));
    OT_TRY(need_score(object, where, "last", &out->last));
    OT_TRY(need_count(object, where, "best_step", &out->best_step));
    OT_TRY(need_score(object, where, "best", &out->best));
    return ot_json_need_int(object, where, "without_gain", false, 0, COUNT_MAX, &out->without_gain);
}

static int take_print(const struct ot_json *tree, const char *where, const char *key,
                      struct ot_data_fingerprint *out) {
    const struct ot_json *object;
    int64_t crc;
    OT_TRY(need_object(tree, where, key, &object));
    OT_TRY(need_count(object, where, "rows", &out->rows));
    OT_TRY(need_count(object, where, "tokens", &out->tokens));
    OT_TRY(ot_json_need_int(object, where, "trained_tokens", true, 0, out->tokens, &out->trained_tokens));
    OT_TRY(ot_json_need_int(object, where, "crc", true, 0, UINT32_MAX, &crc));
    out->crc = (uint32_t)crc;
    return 0;
}

/* Reads the checksum in an object, if the record has the object. */
static int take_crc(const struct ot_json *tree, const char *where, const char *key, const char *member,
                    bool *is_there, uint32_t *out) {
    const struct ot_json *object;
    int64_t crc;
    *is_there = ot_json_get(tree, key) != NULL;
    if (!*is_there)
        return 0;
    OT_TRY(need_object(tree, where, key, &object));
    OT_TRY(ot_json_need_int(object, where, member, true, 0, UINT32_MAX, &crc));
    *out = (uint32_t)crc;
    return 0;
}

static int take_all(const char *where, struct ot_checkpoint_record *out) {
    const struct ot_json *tree = out->tree;
    if (ot_json_type(tree) != OT_JSON_OBJECT)
        return ot_fail(OT_E_INPUT, "%s: is %s, not an object", where, ot_json_type_name(ot_json_type(tree)));
    OT_TRY(take_format(tree, where, out));
    OT_TRY(take_progress(tree, where, &out->progress));
    OT_TRY(take_run(tree, where, out));
    OT_TRY(take_eval(tree, where, &out->evals));
    OT_TRY(take_print(tree, where, "data", &out->data));
    OT_TRY(take_print(tree, where, "eval_data", &out->eval_data));
    OT_TRY(take_crc(tree, where, "base", "sample", &out->has_base, &out->base_sample));
    OT_TRY(take_crc(tree, where, "frozen", "crc", &out->has_frozen, &out->frozen_crc));
    OT_TRY(need_object(tree, where, "options", &out->options));
    if (ot_json_get(tree, "sources"))
        OT_TRY(need_object(tree, where, "sources", &out->sources));
    out->history = ot_json_get(tree, "history");
    if (out->history && ot_json_type(out->history) != OT_JSON_ARRAY)
        return ot_fail(OT_E_INPUT, "%s: 'history' is %s, not an array", where,
                       ot_json_type_name(ot_json_type(out->history)));
    return need_object(tree, where, "model", &out->model);
}

int ot_checkpoint_record_take(struct ot_json *tree, const char *where, struct ot_checkpoint_record *out) {
    *out = (struct ot_checkpoint_record){.tree = tree};
    int rc = take_all(where, out);
    if (rc < 0)
        ot_checkpoint_record_free(out);
    return rc;
}

int ot_checkpoint_record_decode(const char *text, size_t bytes, const char *where,
                                struct ot_checkpoint_record *out) {
    struct ot_json *tree;
    *out = (struct ot_checkpoint_record){0};
    if (bytes > OT_RECORD_MAX_BYTES)
        return ot_fail(OT_E_INPUT, "%s: larger than %d bytes, the most that a record may have", where,
                       OT_RECORD_MAX_BYTES);
    OT_TRY(ot_json_parse(text, bytes, where, &tree));
    return ot_checkpoint_record_take(tree, where, out);
}

const char *ot_checkpoint_record_host(const struct ot_checkpoint_record *record, int rank,
                                      char host[OT_RECORD_HOST_BYTES]) {
    const char *at = record->hosts ? record->hosts : "";
    for (; rank > 0 && *at; rank--) {
        at += strcspn(at, " ");
        at += *at == ' ';
    }
    int length = (int)strcspn(at, " ");
    snprintf(host, OT_RECORD_HOST_BYTES, "%.*s", length ? length : 1, length ? at : "?");
    ot_utf8_keep_line(host);
    return host;
}

void ot_checkpoint_record_free(struct ot_checkpoint_record *record) {
    ot_json_free(record->tree);
    *record = (struct ot_checkpoint_record){0};
}

int ot_checkpoint_record_open_model(const struct ot_checkpoint_record *record,
                                    const struct ot_model_config *config, enum ot_dtype dtype,
                                    struct ot_model **out) {
    const struct ot_selection selection = {
        .train = ot_json_string(ot_json_get(record->options, "train"), NULL),
        .freeze = ot_json_string(ot_json_get(record->options, "freeze"), NULL),
        .lora = ot_json_string(ot_json_get(record->options, "lora"), NULL)};
    return ot_model_open_selected(config, dtype, 1, &selection, out);
}
