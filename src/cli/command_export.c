/* offload-train export: makes a Hugging Face directory from a checkpoint, with the files that the run would
 * have saved at that step. With --gguf: makes a GGUF file from a checkpoint or a model. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/selection.h"
#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/base/minmax.h"
#include "src/base/units.h"
#include "src/checkpoint/catalog.h"
#include "src/checkpoint/reader.h"
#include "src/cli/command.h"
#include "src/files/out_lock.h"
#include "src/session/plan_request.h"
#include "src/session/weights.h"
#include "src/train/gguf_export.h"
#include "src/train/out_name.h"
#include "src/train/result.h"
#include "src/train/resume.h"

enum { FEED_VALUES = 1 << 20 };

struct export {
    struct ot_settings settings;
    const struct ot_options *options; /* in effect */
    struct ot_found found;
    const struct ot_checkpoint_list *from; /* found.list or found.best */
    int at;                                /* index of the checkpoint in it */
    struct ot_checkpoint *checkpoint;      /* NULL: the source is a model */
    const struct ot_checkpoint_record *record;
    struct ot_checkpoint_master *master;
    struct ot_session session;
    struct ot_result result;
    char *added, *added_special; /* the run's new tokens; NULL: none */
    bool as_gguf;
    struct ot_gguf_export gguf;
    struct ot_out_lock *lock;
    int64_t done, total; /* parameters */
};

/* Reading the checkpoint failed with rc. If there is an older checkpoint, adds its name to the error. */
static int advise(const struct export *e, int rc) {
    const struct ot_checkpoint_list *list = e->from;
    if ((rc != -OT_E_INPUT && rc != -OT_E_IO) || e->at + 1 >= list->n)
        return rc;
    return ot_fail((enum ot_error_code) - rc, "%s; you can export the checkpoint before it: %s",
                   ot_error_text(), list->entries[e->at + 1].dir);
}

/* With --best: chooses the best state, whose weights alone are saved or that a checkpoint has. finished: the
 * record of the finished run; NULL: none. *is_there: DIR has that model, or a better one. */
static int choose_best(struct export *e, const struct ot_checkpoint_record *finished, bool *is_there) {
    double best = NAN, whole = NAN, end = finished ? ot_checkpoint_record_cost(finished) : NAN;
    int at = ot_checkpoint_find_best(&e->found.best, &best);
    int at_whole = ot_checkpoint_find_best(&e->found.list, &whole);
    e->from = &e->found.best;
    if (at < 0 || whole < best) {
        e->from = &e->found.list;
        at = at_whole;
        best = whole;
    }
    *is_there = finished && finished->result_step > 0;
    if (at < 0 && isnan(end) && !*is_there)
        return ot_fail(OT_E_INPUT,
                       "%s: no checkpoint there is of a step that was evaluated; leave out --best",
                       e->options->dir);
    *is_there = *is_there || at < 0 || end <= best;
    e->at = ot_max(at, 0);
    return 0;
}

/* *is_there: DIR has the model of a finished run, which is the best one, or without --best newer than the
 * checkpoints or not that of its last step. */
static int find_result(struct export *e, bool *is_there) {
    struct ot_checkpoint_record finished;
    bool is_finished;
    OT_TRY(ot_finished_read(e->options->dir, &finished, &is_finished));
    int rc = 0;
    if (e->options->best)
        rc = choose_best(e, is_finished ? &finished : NULL, is_there);
    else
        *is_there = e->found.list.n == 0 ||
                    (is_finished &&
                     (finished.result_step > 0 || e->found.list.entries[0].step < finished.progress.step));
    if (is_finished)
        ot_checkpoint_record_free(&finished);
    return rc;
}

/* Finds the kind of DIR. *is_model: a model without checkpoints, or with --gguf, the result of a run. */
static int find_source(struct export *e, bool *is_model) {
    const char *dir = e->options->dir;
    OT_TRY(ot_find_checkpoints(dir, &e->found));
    bool has_any = e->found.list.n + e->found.best.n > 0;
    e->from = &e->found.list;
    *is_model = e->found.list.n == 0;
    if (!has_any && e->options->best)
        return ot_fail(OT_E_INPUT, "%s: has no checkpoints to find the best of; leave out --best", dir);
    if (*is_model && !e->found.is_model && !e->options->best)
        return ot_fail(OT_E_INPUT, "%s: has only the weights of its best evaluation: add --best", dir);
    if (has_any && (e->as_gguf || e->options->best))
        OT_TRY(find_result(e, is_model));
    if (*is_model && e->options->best && !e->as_gguf)
        return ot_fail(OT_E_INPUT, "%s: the model there is the best already", dir);
    if (*is_model && !e->as_gguf)
        return ot_fail(
            OT_E_INPUT,
            "%s is already an exported model, or adapters; it has no checkpoints (--gguf TYPE makes a GGUF "
            "file of it; offload-train merge adds adapters to their base)",
            dir);
    return 0;
}

static int open_checkpoint(struct export *e) {
    OT_TRY(advise(e, ot_checkpoint_open(e->from->entries[e->at].dir, &e->checkpoint)));
    e->record = ot_checkpoint_record(e->checkpoint);
    return ot_checkpoint_check_whole(e->checkpoint);
}

/* Takes the new tokens of the run, which its record has under a key of the model. *list: memory of the value.
 */
static int take_tokens(struct export *e, const char *key, const char *option, char **list) {
    const struct ot_json *tokens = ot_json_get(e->record->model, key);
    struct ot_json_writer w = {.indent = -1};
    size_t bytes;
    if (!tokens)
        return 0;
    ot_json_put_value(&w, NULL, tokens);
    OT_TRY(ot_json_writer_take(&w, list, &bytes));
    ot_settings_choose_text(&e->settings, option, *list);
    return 0;
}

/* Takes the options of the run that name its input files. */
static int take_options(struct export *e) {
    const struct ot_options *o = e->options;
    const struct ot_json *run = e->record->options;
    const char *model = ot_json_string(ot_json_get(run, "model"), NULL);
    const char *tokenizer = ot_json_string(ot_json_get(run, "tokenizer"), NULL);
    const char *init = ot_json_string(ot_json_get(run, "init"), NULL);
    const char *template = ot_json_string(ot_json_get(run, "template"), NULL);
    const char *rope = ot_json_string(ot_json_get(run, "rope-scaling"), NULL);
    const char *lora = ot_json_string(ot_json_get(run, "lora"), NULL);
    if (!o->model && model)
        ot_settings_choose_text(&e->settings, "model", model);
    if (!o->tokenizer && tokenizer)
        ot_settings_choose_text(&e->settings, "tokenizer", tokenizer);
    if (template)
        ot_settings_choose_text(&e->settings, "template", template);
    if (rope)
        ot_settings_choose_text(&e->settings, "rope-scaling", rope);
    if (lora)
        ot_settings_choose_text(&e->settings, "lora", lora);
    if (init && strcmp(init, "random") == 0)
        ot_settings_choose_word(&e->settings, "init", OT_CHOICE_INIT_RANDOM);
    ot_settings_choose_count(&e->settings, "seed", ot_json_int(ot_json_get(run, "seed"), 0));
    OT_TRY(take_tokens(e, "added_tokens", "add-tokens", &e->added));
    return take_tokens(e, "added_special_tokens", "add-special-tokens", &e->added_special);
}

static int write_config(const struct ot_model_config *config, char **text) {
    struct ot_config_file file = {.config = *config, .ids = {.bos = -1}};
    size_t bytes;
    return ot_model_config_write(&file, text, &bytes);
}

/* Checks that the model of --model is still the model of the checkpoint. */
static int check_config(struct export *e) {
    struct ot_session *s = &e->session;
    const char *dir = ot_checkpoint_dir(e->checkpoint);
    struct ot_config_file recorded;
    char *now = NULL, *then = NULL, *where = NULL;
    int rc;
    OT_TRY_GOTO(ot_string_format(&where, "%s/" OT_RECORD_NAME ": model", dir), rc, out);
    OT_TRY_GOTO(ot_model_config_parse(e->record->model, where, &recorded), rc, out);
    OT_TRY_GOTO(write_config(&s->model.config, &now), rc, out);
    OT_TRY_GOTO(write_config(&recorded.config, &then), rc, out);
    if (strcmp(now, then) != 0)
        rc = ot_fail(OT_E_INPUT, "%s: this checkpoint is not of the model that is now in --model %s", dir,
                     s->options->model);
out:
    free(now);
    free(then);
    free(where);
    return rc;
}

/* Parameters of the model, or of the adapters that are written in its place. */
static int64_t count_written(const struct ot_session *s) {
    return s->options->lora ? ot_model_trained_count(s->model.built) : ot_model_param_count(&s->model.config);
}

static int open_model(struct export *e) {
    struct ot_session *s = &e->session;
    const struct ot_manifest *manifest = ot_checkpoint_manifest(e->checkpoint);
    const char *dir = ot_checkpoint_dir(e->checkpoint);
    bool given = e->options->model != NULL;
    OT_TRY(take_options(e));
    if (!e->options->model)
        return ot_fail(OT_E_INPUT, "%s: the checkpoint does not name its model; add --model", dir);
    int rc = ot_session_open_files(&e->settings, manifest->dtype, s);
    if (rc == -OT_E_INPUT && !given)
        return ot_fail(OT_E_INPUT, "%s; if the model of this run has moved, add --model with its new place",
                       ot_error_text());
    OT_TRY(rc);
    OT_TRY(check_config(e));
    OT_TRY(ot_checkpoint_record_open_model(e->record, &s->model.config, manifest->dtype, &s->model.built));
    e->total = count_written(s);
    return ot_manifest_check_model(manifest, ot_model_chain(s->model.built), dir);
}

static int open_run(struct export *e) {
    OT_TRY(open_checkpoint(e));
    return open_model(e);
}

/* Opens DIR, a model directory or a GGUF file, as the model. */
static int open_source_model(struct export *e) {
    struct ot_session *s = &e->session;
    if (e->options->model)
        return ot_fail(OT_E_USAGE, "--model has no effect: %s is a model itself, not a run", e->options->dir);
    ot_settings_choose_text(&e->settings, "model", e->options->dir);
    OT_TRY(ot_session_open_files(&e->settings, OT_F32, s));
    const struct ot_selection selection = ot_plan_request_selection(s->options);
    OT_TRY(s->options->lora ? ot_model_open_selected(&s->model.config, OT_F32, 1, &selection, &s->model.built)
                            : ot_model_open(&s->model.config, OT_F32, 1, &s->model.built));
    e->total = count_written(s);
    return 0;
}

static void show_progress(struct export *e, int64_t n) {
    char line[96], done[OT_TEXT_BYTES], total[OT_TEXT_BYTES];
    e->done += n;
    snprintf(line, sizeof line, "exporting: %s of %s parameters", ot_text_short((double)e->done, done),
             ot_text_short((double)e->total, total));
    if (!e->options->quiet && ot_log_is_terminal())
        ot_log_set_status(line);
}

static int get_values(void *context, int slab, int64_t first, int64_t n, float *values) {
    struct export *e = context;
    if (!e->checkpoint || ot_model_chain(e->session.model.built)->slabs[slab].frozen)
        OT_TRY(ot_weights_get_frozen(&e->session, slab, first, n, values));
    else
        OT_TRY(advise(e, ot_checkpoint_master_get(e->master, slab, first, n, values)));
    show_progress(e, n);
    return 0;
}

/* ---- GGUF ---- */

/* A sink that reports its progress and passes values on. */
struct counted_sink {
    struct export *e;
    ot_param_sink sink;
    void *context;
};

static int count_values(void *context, int slab, int64_t first, int64_t n, const float *values) {
    struct counted_sink *counted = context;
    OT_TRY(counted->sink(counted->context, slab, first, n, values));
    show_progress(counted->e, n);
    return 0;
}

static int feed_from_model(void *context, ot_param_sink sink, void *sink_context) {
    struct export *e = context;
    struct counted_sink counted = {e, sink, sink_context};
    return ot_model_dir_load(e->session.model.dir, e->session.model.built, e->session.machine.pool,
                             count_values, &counted);
}

static int feed_tensor(struct export *e, const struct ot_tensor *tensor, float *values, ot_param_sink sink,
                       void *sink_context) {
    int64_t count = tensor->rows * tensor->cols;
    for (int64_t at = 0, n; at < count; at += n) {
        n = ot_min(count - at, FEED_VALUES);
        OT_TRY(get_values(e, tensor->slab, tensor->first + at, n, values));
        OT_TRY(sink(sink_context, tensor->slab, tensor->first + at, n, values));
    }
    return 0;
}

/* From a checkpoint, or the adapters of a model. */
static int feed_tensors(void *context, ot_param_sink sink, void *sink_context) {
    struct export *e = context;
    const struct ot_model *model = e->session.model.built;
    float *values = malloc(FEED_VALUES * sizeof *values);
    int rc = values ? 0 : ot_fail(OT_E_BUDGET, "no memory for a buffer of %d values", FEED_VALUES);
    for (int64_t i = 0; i < ot_model_tensor_count(model) && rc == 0; i++)
        if (!e->options->lora || ot_lora_has_tensor(ot_model_tensor(model, i)->name))
            rc = feed_tensor(e, ot_model_tensor(model, i), values, sink, sink_context);
    free(values);
    return rc;
}

static int write_gguf(struct export *e) {
    const struct ot_options *o = e->options;
    e->gguf = (struct ot_gguf_export){.session = &e->session,
                                      .source = o->dir,
                                      .out = o->out,
                                      .lock = e->lock,
                                      .mixture = ot_gguf_mixture_at(o->gguf),
                                      .modelfile = o->modelfile,
                                      .of_run = e->checkpoint != NULL};
    if (e->checkpoint)
        OT_TRY(ot_checkpoint_master_open(e->checkpoint, OT_IO_AUTO, NULL, &e->master));
    int rc = ot_gguf_export(&e->gguf, e->checkpoint || o->lora ? feed_tensors : feed_from_model, e);
    ot_log_set_status("");
    return rc;
}

/* ---- a directory ---- */

static int write_model(struct export *e) {
    OT_TRY(ot_result_open(&e->session, e->options->out, e->lock, NULL, &e->result));
    OT_TRY(ot_checkpoint_master_open(e->checkpoint, OT_IO_AUTO, NULL, &e->master));
    int rc = ot_result_write_from(&e->result, e->record, get_values, e);
    ot_log_set_status("");
    return rc;
}

static void print_line(const struct export *e, const char *dtype) {
    char count[OT_TEXT_BYTES], bytes[OT_TEXT_BYTES];
    printf("%s%s%s: ", e->options->out, e->as_gguf ? "/" : "", e->as_gguf ? e->gguf.name : "");
    if (e->checkpoint)
        printf("step %lld of %lld of %s", (long long)e->record->progress.step, (long long)e->record->steps,
               ot_checkpoint_dir(e->checkpoint));
    else
        printf("%s", e->options->dir);
    printf(", %s parameters as %s", ot_text_count(e->total, count), dtype);
    if (e->as_gguf)
        printf(", %s", ot_text_bytes(e->gguf.bytes, bytes));
    printf("\n");
}

static int print_result(const struct export *e) {
    const struct ot_options *o = e->options;
    const char *dtype = e->as_gguf ? e->gguf.mixture->name : ot_dtype_name(e->session.model.stored);
    if (!o->json) {
        print_line(e, dtype);
        return 0;
    }
    struct ot_json_writer w = {.indent = -1};
    ot_json_begin_object(&w, NULL);
    ot_json_put_text(&w, "out", o->out);
    if (e->as_gguf) {
        ot_json_put_text(&w, "file", e->gguf.name);
        ot_json_put_int(&w, "bytes", e->gguf.bytes);
    }
    if (e->checkpoint) {
        ot_json_put_text(&w, "checkpoint", ot_checkpoint_dir(e->checkpoint));
        ot_json_put_int(&w, "step", e->record->progress.step);
        ot_json_put_int(&w, "steps", e->record->steps);
    } else {
        ot_json_put_text(&w, "model", o->dir);
    }
    ot_json_put_int(&w, "parameters", e->total);
    ot_json_put_text(&w, "dtype", dtype);
    ot_json_end_object(&w);
    return ot_json_print(&w);
}

int ot_command_export(const struct ot_options *options) {
    struct export e = {.settings = {*options},
                       .options = &e.settings.in_effect,
                       .as_gguf = ot_options_given(options, "gguf")};
    bool is_model;
    int rc;
    OT_TRY_GOTO(ot_out_lock_await(options->out, &e.lock), rc, out);
    OT_TRY_GOTO(find_source(&e, &is_model), rc, out);
    OT_TRY_GOTO(is_model ? open_source_model(&e) : open_run(&e), rc, out);
    OT_TRY_GOTO(e.as_gguf ? write_gguf(&e) : write_model(&e), rc, out);
    rc = print_result(&e);
out:
    ot_result_close(&e.result);
    ot_session_close(&e.session);
    free(e.added);
    free(e.added_special);
    ot_checkpoint_master_close(e.master);
    ot_checkpoint_close(e.checkpoint);
    ot_found_free(&e.found);
    ot_out_lock_close(e.lock);
    return rc;
}
