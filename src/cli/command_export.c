/* offload-train export: makes a Hugging Face directory from a checkpoint, with the files that the run would
 * have saved at that step. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/units.h"
#include "src/checkpoint/reader.h"
#include "src/cli/command.h"
#include "src/files/out_lock.h"
#include "src/report/lines.h"
#include "src/saving/find_checkpoints.h"
#include "src/saving/result.h"

struct export {
    struct ot_settings settings;
    const struct ot_options *options; /* in effect */
    struct ot_found found;
    struct ot_checkpoint *checkpoint;
    const struct ot_checkpoint_record *record;
    struct ot_checkpoint_master *master;
    struct ot_session session;
    struct ot_result result;
    struct ot_out_lock *lock;
    int64_t done, total; /* parameters */
};

/* Reading the checkpoint failed with rc. If there is an older checkpoint, adds its name to the error. */
static int advise(const struct export *e, int rc) {
    const struct ot_checkpoint_list *list = &e->found.list;
    if ((rc != -OT_E_INPUT && rc != -OT_E_IO) || list->n < 2)
        return rc;
    return ot_fail((enum ot_error_code) - rc, "%s; you can export the checkpoint before it: %s",
                   ot_error_text(), list->entries[1].dir);
}

static int open_checkpoint(struct export *e) {
    const char *dir = e->options->dir;
    OT_TRY(ot_find_checkpoints(dir, &e->found));
    if (e->found.list.n == 0)
        return ot_fail(OT_E_INPUT, "%s is already an exported model; it has no checkpoints", dir);
    OT_TRY(advise(e, ot_checkpoint_open(e->found.list.entries[0].dir, &e->checkpoint)));
    e->record = ot_checkpoint_record(e->checkpoint);
    return ot_checkpoint_check_whole(e->checkpoint);
}

/* Takes the options of the run that name its input files. */
static void take_options(struct export *e) {
    const struct ot_options *o = e->options;
    const struct ot_json *run = e->record->options;
    const char *model = ot_json_string(ot_json_get(run, "model"), NULL);
    const char *tokenizer = ot_json_string(ot_json_get(run, "tokenizer"), NULL);
    const char *init = ot_json_string(ot_json_get(run, "init"), NULL);
    const char *template = ot_json_string(ot_json_get(run, "template"), NULL);
    if (!o->model && model)
        ot_settings_choose_text(&e->settings, "model", model);
    if (!o->tokenizer && tokenizer)
        ot_settings_choose_text(&e->settings, "tokenizer", tokenizer);
    if (template)
        ot_settings_choose_text(&e->settings, "template", template);
    if (init && strcmp(init, "random") == 0)
        ot_settings_choose_word(&e->settings, "init", OT_CHOICE_INIT_RANDOM);
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
    OT_TRY_GOTO(write_config(&s->config, &now), rc, out);
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

static int open_model(struct export *e) {
    struct ot_session *s = &e->session;
    const struct ot_manifest *manifest = ot_checkpoint_manifest(e->checkpoint);
    const char *dir = ot_checkpoint_dir(e->checkpoint);
    bool given = e->options->model != NULL;
    take_options(e);
    if (!e->options->model)
        return ot_fail(OT_E_INPUT, "%s: the checkpoint does not name its model; add --model", dir);
    int rc = ot_session_open_files(&e->settings, manifest->dtype, s);
    if (rc == -OT_E_INPUT && !given)
        return ot_fail(OT_E_INPUT, "%s; if the model of this run has moved, add --model with its new place",
                       ot_error_text());
    OT_TRY(rc);
    OT_TRY(check_config(e));
    OT_TRY(ot_model_open(&s->config, manifest->dtype, 1, &s->model));
    const struct ot_chain *chain = ot_model_chain(s->model);
    bool same = chain->n_slabs == manifest->n_slabs;
    for (int i = 0; i < chain->n_slabs && same; i++) {
        same = chain->slabs[i].n_params == manifest->slab_params[i];
        e->total += chain->slabs[i].n_params;
    }
    return same ? 0 : ot_fail(OT_E_INPUT, "%s: the slabs of the checkpoint do not match its model", dir);
}

static int get_values(void *context, int slab, int64_t first, int64_t n, float *values) {
    struct export *e = context;
    char line[96], done[OT_TEXT_BYTES], total[OT_TEXT_BYTES];
    OT_TRY(advise(e, ot_checkpoint_master_get(e->master, slab, first, n, values)));
    e->done += n;
    snprintf(line, sizeof line, "exporting: %s of %s parameters", ot_text_short((double)e->done, done),
             ot_text_short((double)e->total, total));
    if (!e->options->quiet && ot_log_is_terminal())
        ot_log_set_status(line);
    return 0;
}

static int write_model(struct export *e) {
    OT_TRY(ot_result_open(&e->session, e->options->out, e->lock, &e->result));
    OT_TRY(ot_checkpoint_master_open(e->checkpoint, OT_IO_AUTO, NULL, &e->master));
    int rc = ot_result_write_from(&e->result, e->record, get_values, e);
    ot_log_set_status("");
    return rc;
}

static int print_result(const struct export *e) {
    const struct ot_options *o = e->options;
    int64_t params = ot_model_param_count(&e->session.config);
    const char *dtype = ot_dtype_name(e->session.stored);
    if (!o->json) {
        char count[OT_TEXT_BYTES];
        printf("%s: step %lld of %lld of %s, %s parameters as %s\n", o->out,
               (long long)e->record->progress.step, (long long)e->record->steps,
               ot_checkpoint_dir(e->checkpoint), ot_text_count(params, count), dtype);
        return 0;
    }
    struct ot_json_writer w = {.indent = -1};
    ot_json_begin_object(&w, NULL);
    ot_json_put_text(&w, "out", o->out);
    ot_json_put_text(&w, "checkpoint", ot_checkpoint_dir(e->checkpoint));
    ot_json_put_int(&w, "step", e->record->progress.step);
    ot_json_put_int(&w, "steps", e->record->steps);
    ot_json_put_int(&w, "parameters", params);
    ot_json_put_text(&w, "dtype", dtype);
    ot_json_end_object(&w);
    return ot_lines_print_json(&w);
}

int ot_command_export(const struct ot_options *options) {
    struct export e = {.settings = {*options}, .options = &e.settings.in_effect};
    int rc;
    OT_TRY_GOTO(ot_out_lock_open(options->out, &e.lock), rc, out);
    OT_TRY_GOTO(open_checkpoint(&e), rc, out);
    OT_TRY_GOTO(open_model(&e), rc, out);
    OT_TRY_GOTO(write_model(&e), rc, out);
    rc = print_result(&e);
out:
    ot_result_close(&e.result);
    ot_session_close(&e.session);
    ot_checkpoint_master_close(e.master);
    ot_checkpoint_close(e.checkpoint);
    ot_found_free(&e.found);
    ot_out_lock_close(e.lock);
    return rc;
}
