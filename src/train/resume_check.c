/* Resuming: checks that options, model, rows, length and arithmetic match the checkpoint's run. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/text.h"
#include "src/base/units.h"
#include "src/train/resume.h"

static const char cure[] = "Use the checkpoint's settings, --resume never, or another --out";

/* ---- options ---- */

struct taking {
    struct ot_resume *resume;
    struct ot_settings *settings;
    const struct ot_options *options; /* the options in effect */
    struct ot_options *then;          /* receives the recorded values, one option at a time */
    bool length_is_given;
    struct ot_string_builder differences;
    int n_differences;
};

/* True if the value that the user gives now leaves the recorded one: "auto", or bounds around it. */
static bool leaves_open(const struct taking *t, const struct ot_option *option, const char *is) {
    if (option->type != OT_OPTION_STEP)
        return strcmp(is, "auto") == 0;
    const struct ot_step_tokens *now = (const void *)((const char *)t->options + option->field);
    const struct ot_step_tokens *then = (const void *)((const char *)t->then + option->field);
    return now->most > 0 && now->least <= then->count && then->count <= now->most;
}

/* True if the user gives the option now, and its value must be the recorded one. */
static bool is_given_now(const struct taking *t, int index, const char *is) {
    return t->options->source[index] >= OT_FROM_FILE && !leaves_open(t, ot_option_at(index), is);
}

/* Adds the option to resume->taken if the user must have given it in the earlier run: the recorded value
 * differs from the default, and the program does not choose such options itself. Also if the user gives
 * bounds now. */
static void note_taken(struct taking *t, int index, const char *was, const char *is) {
    const struct ot_option *option = ot_option_at(index);
    char *taken = t->resume->taken;
    size_t used = strlen(taken), room = sizeof t->resume->taken - used;
    bool is_chosen = option->type != OT_OPTION_FLAG && option->type != OT_OPTION_TEXT && !option->fallback &&
                     t->options->source[index] < OT_FROM_FILE;
    if (strcmp(was, is) != 0 && strcmp(is, "auto") != 0 && !is_chosen)
        snprintf(taken + used, room, option->type == OT_OPTION_FLAG ? " --%s" : " --%s %.60s", option->name,
                 was);
}

static void note_difference(struct taking *t, const char *name, const char *was, const char *is) {
    enum { MOST = 5 };
    if (t->n_differences++ < MOST)
        ot_string_append_format(&t->differences, "%s--%s %.60s, you gave %.60s",
                                t->differences.bytes ? "; " : "", name, was, is);
    else if (t->n_differences == MOST + 1)
        ot_string_append_text(&t->differences, "; and more");
}

/* True if a named change excludes the recorded option, as eval-data=F excludes --eval-fraction. */
static bool is_replaced(const struct taking *t, const char *name) {
    return t->options->resume_with && ot_option_overruled(t->options, name);
}

/* True if the earlier run had the option's default. */
static bool was_default(const struct taking *t, const char *name) {
    const char *source = ot_json_string(ot_json_get(t->resume->record->sources, name), NULL);
    return source && strcmp(source, "default") == 0;
}

/* Takes over or compares one option that must stay the same. value: the recorded one; NULL: it was not
 * given. */
static int take_or_compare(struct taking *t, int index, const struct ot_json *value) {
    const struct ot_option *option = ot_option_at(index);
    char *was = NULL, *is = NULL;
    int rc;
    ot_option_reset(t->then, index);
    if (value)
        OT_TRY_GOTO(ot_option_parse_json(option, option->name, value, t->then), rc, out);
    OT_TRY_GOTO(ot_resume_write_value(option, t->then, value, &was), rc, out);
    bool has_value = t->options->source[index] != OT_FROM_NOWHERE;
    OT_TRY_GOTO(ot_resume_write_value(option, t->options, has_value, &is), rc, out);
    bool given = option->on_resume == OT_RESUME_LENGTH ? t->length_is_given : is_given_now(t, index, is);
    if (ot_resume_with_has(t->options, option->name)) {
        if (option->on_resume != OT_RESUME_CONTENT && strcmp(was, is) != 0)
            ot_resume_changes_note(&t->resume->changes, t->resume->record, option->name, was, is);
        goto out;
    }
    if (given && option->on_resume == OT_RESUME_SAME && strcmp(was, is) != 0)
        note_difference(t, option->name, was, is);
    if (!given && value && !is_replaced(t, option->name)) {
        note_taken(t, index, was, is);
        rc = ot_settings_take_recorded(t->settings, index, value, !was_default(t, option->name));
    }
out:
    free(was);
    free(is);
    return rc;
}

/* Refuses unknown options: a later version may have options that decide bits, and this version would ignore
 * them. */
static int check_known(const struct ot_json *recorded) {
    void *cursor = NULL;
    const char *key;
    struct ot_json *value;
    while (ot_json_next(recorded, &cursor, &key, &value)) {
        const struct ot_option *option = ot_option_at(ot_option_find(key, strlen(key), OT_COMMAND_TRAIN));
        if (!option || !(option->commands & OT_FOR_TRAIN))
            return ot_fail(OT_E_INPUT,
                           "this version does not know option '%.60s'; use the version that wrote the file",
                           key);
    }
    return 0;
}

static int take_all(struct taking *t) {
    const struct ot_json *recorded = t->resume->record->options;
    const struct ot_option *option;
    OT_TRY(check_known(recorded));
    for (int i = 0; (option = ot_option_at(i)); i++)
        if (option->on_resume != OT_RESUME_NOT_TRAIN && option->on_resume != OT_RESUME_FREE)
            OT_TRY(take_or_compare(t, i, ot_json_get(recorded, option->name)));
    return 0;
}

int ot_resume_take_over(struct ot_resume *resume, struct ot_settings *settings) {
    if (!resume->record)
        return 0;
    const char *dir = resume->dir;
    const struct ot_options *options = &settings->in_effect;
    struct taking t = {.resume = resume,
                       .settings = settings,
                       .options = options,
                       .then = calloc(1, sizeof *t.then),
                       .length_is_given =
                           ot_options_given(options, "steps") || ot_options_given(options, "epochs")};
    if (!t.then)
        return ot_fail(OT_E_BUDGET, "no memory to compare the checkpoint's options");
    int rc = take_all(&t);
    if (rc == -OT_E_USAGE || rc == -OT_E_INPUT)
        rc = ot_fail(OT_E_INPUT, "%s/%s: %s", dir, resume->record_name, ot_error_text());
    else if (rc == 0 && t.differences.failed)
        rc = ot_fail(OT_E_BUDGET, "no memory to compare the checkpoint's options");
    else if (rc == 0 && t.differences.bytes)
        rc = ot_fail(OT_E_USAGE, "%s was made with %s. %s", dir, t.differences.text, cure);
    free(t.differences.text);
    free(t.then);
    return rc;
}

/* ---- model and rows ---- */

static int write_json(const struct ot_json *value, char **text) {
    struct ot_json_writer w = {.indent = -1};
    *text = NULL;
    if (!value)
        return ot_string_format(text, "absent");
    ot_json_put_value(&w, NULL, value);
    return ot_json_writer_take(&w, text, NULL);
}

/* True for keys that may differ: the format of the result's files, and token ids that the rows contain. */
static bool is_of_the_files(const char *key) {
    return ot_words_have("torch_dtype bos_token_id eos_token_id", key);
}

/* Compares the values of all keys that `keys` has. */
static int compare_keys(const char *dir, const struct ot_json *keys, const struct ot_json *was,
                        const struct ot_json *is) {
    void *cursor = NULL;
    const char *key;
    struct ot_json *value;
    int rc = 0;
    while (rc == 0 && ot_json_next(keys, &cursor, &key, &value)) {
        char *old = NULL, *new = NULL;
        if (is_of_the_files(key))
            continue;
        rc = write_json(ot_json_get(was, key), &old);
        if (rc == 0)
            rc = write_json(ot_json_get(is, key), &new);
        if (rc == 0 && strcmp(old, new) != 0)
            rc = ot_fail(OT_E_INPUT,
                         "%s was made with another model: %.60s is %.80s in the checkpoint and %.80s now. %s",
                         dir, key, old, new, cure);
        free(old);
        free(new);
    }
    return rc;
}

static bool is_same_rows(const struct ot_data_fingerprint *was, const struct ot_data_fingerprint *is) {
    return was->rows == is->rows && was->tokens == is->tokens && was->trained_tokens == is->trained_tokens &&
           was->crc == is->crc;
}

static int refuse_rows(const char *dir, const char *path, const struct ot_data_fingerprint *was,
                       const struct ot_data_fingerprint *is) {
    char rows[2][OT_TEXT_BYTES], tokens[2][OT_TEXT_BYTES];
    if (was->rows == is->rows && was->tokens == is->tokens)
        return ot_fail(OT_E_INPUT, "%s: as many rows and tokens as %s was trained on, but other contents. %s",
                       path, dir, cure);
    return ot_fail(OT_E_INPUT,
                   "%s: has %s rows with %s tokens, but %s was trained on %s rows with %s tokens. %s", path,
                   ot_text_count(is->rows, rows[0]), ot_text_count(is->tokens, tokens[0]), dir,
                   ot_text_count(was->rows, rows[1]), ot_text_count(was->tokens, tokens[1]), cure);
}

/* True if --resume-with names an option of this kind, so that rows of this kind may be others. */
static bool names_kind(const struct ot_options *options, enum ot_resume_change kind) {
    const struct ot_option *option;
    for (int i = 0; (option = ot_option_at(i)); i++)
        if (ot_resume_with_kind(option->name) == kind && ot_resume_with_has(options, option->name))
            return true;
    return false;
}

static void note_rows(struct ot_resume *resume, const char *name, const struct ot_data_fingerprint *was,
                      const struct ot_data_fingerprint *is) {
    char texts[2][OT_TEXT_BYTES + 8], count[OT_TEXT_BYTES];
    snprintf(texts[0], sizeof texts[0], "%s rows", ot_text_count(was->rows, count));
    snprintf(texts[1], sizeof texts[1], "%s %srows", ot_text_count(is->rows, count),
             was->rows == is->rows ? "other " : "");
    ot_resume_changes_note(&resume->changes, resume->record, name, texts[0], texts[1]);
}

/* Other rows are a change if --resume-with names their option, or one that decides how they are read. */
static int compare_rows(struct ot_resume *resume, const struct ot_options *options, const char *path,
                        const struct ot_data_fingerprint *is) {
    const struct ot_data_fingerprint *was = &resume->record->data;
    if (is_same_rows(was, is))
        return 0;
    if (!names_kind(options, OT_CHANGE_ROWS))
        return refuse_rows(resume->dir, path, was, is);
    if (!resume->changes.rows)
        note_rows(resume, "data", was, is);
    return 0;
}

/* Evaluation rows that come from the rows are compared with those. */
static int compare_eval_rows(struct ot_resume *resume, const struct ot_options *options,
                             const struct ot_data_fingerprint *is) {
    const struct ot_data_fingerprint *was = &resume->record->eval_data;
    const char *path = options->eval_data;
    bool may_change = names_kind(options, OT_CHANGE_EVALS) || names_kind(options, OT_CHANGE_ROWS);
    if (is_same_rows(was, is) || (!path && !may_change))
        return 0;
    if (may_change) {
        if (path || !resume->changes.rows)
            note_rows(resume, "eval-data", was, is);
        return 0;
    }
    if (was->rows == 0)
        return ot_fail(OT_E_INPUT, "%s was made without --eval-data. %s", resume->dir, cure);
    return refuse_rows(resume->dir, path, was, is);
}

static int compare_base(const struct ot_resume *resume, const struct ot_options *options,
                        const struct ot_base_print *is) {
    const struct ot_checkpoint_record *r = resume->record;
    const char *then = ot_json_string(ot_json_get(r->options, "model"), NULL);
    if (!r->has_base || !is->is_known || r->base_sample == is->sample)
        return 0;
    return ot_fail(OT_E_INPUT,
                   "%s was made from other weights than --model %s has (fingerprint %08" PRIx32
                   ", now %08" PRIx32
                   "). Give the model with which the run began (--model %s, as it was then), "
                   "--resume never, or another --out",
                   resume->dir, options->model, r->base_sample, is->sample, then ? then : "?");
}

int ot_resume_check(struct ot_resume *resume, const struct ot_options *options,
                    const struct ot_run_identity *identity) {
    const struct ot_checkpoint_record *r = resume->record;
    if (!r)
        return 0;
    char name[OT_DATA_NAME_BYTES];
    const char *dir = resume->dir;
    OT_TRY(compare_keys(dir, r->model, r->model, identity->model));
    OT_TRY(compare_keys(dir, identity->model, r->model, identity->model));
    OT_TRY(compare_base(resume, options, &identity->base));
    OT_TRY(compare_rows(resume, options, ot_data_name(options, name), &identity->data));
    OT_TRY(compare_eval_rows(resume, options, &identity->eval_data));
    return ot_resume_changes_finish(&resume->changes, r, options);
}

/* ---- length ---- */

int ot_resume_check_length(const struct ot_resume *resume, const struct ot_options *options,
                           const struct ot_run_shape *shape) {
    const struct ot_checkpoint_record *r = resume->record;
    if (!r)
        return 0;
    const char *dir = resume->dir;
    struct ot_lr_schedule then;
    int64_t done = r->progress.step, steps = shape->lr.steps;
    if (steps < done)
        return ot_fail(OT_E_USAGE, "the run would end after %lld steps, but %lld are done already in %s. %s",
                       (long long)steps, (long long)done, dir, cure);
    if (steps == done && resume->changes.n > 0)
        return ot_fail(
            OT_E_USAGE,
            "--resume-with changes nothing: all %lld steps of the run are done in %s. Make it longer, "
            "with --resume-with steps=N or epochs=N",
            (long long)steps, dir);
    if (steps == r->steps || resume->changes.length || resume->changes.rows || resume->changes.step_rows)
        return 0;
    int rc = ot_shape_schedule(options, r->phase.lr_first, r->steps, &then);
    if (rc < 0)
        return ot_fail(OT_E_INPUT, "%s/%s: %s", dir, resume->record_name, ot_error_text());
    for (int64_t step = r->phase.lr_first + 1; step <= done; step++)
        if (ot_lr_at(&then, step) != ot_lr_at(&shape->lr, step))
            return ot_fail(
                OT_E_USAGE,
                "%s was made in a run of %lld steps; in a run of %lld steps, step %lld would have "
                "had another learning rate. Leave out --steps and --epochs, go on with the new rates "
                "from here (--resume-with steps=%lld), or start a new run with --resume never or another "
                "--out. A run with --schedule constant and --warmup in steps can be made longer",
                dir, (long long)r->steps, (long long)steps, (long long)step, (long long)steps);
    return 0;
}

int ot_resume_check_position(const struct ot_resume *resume, const struct ot_run_shape *shape) {
    const struct ot_checkpoint_record *r = resume->record;
    if (!r)
        return 0;
    if (resume->changes.phase.rows_first != r->phase.rows_first)
        return 0; /* the rows begin anew */
    int64_t step = r->progress.step;
    struct ot_data_position at = ot_shape_position(shape, step);
    if (r->position.epoch == at.epoch && r->position.sequence == at.sequence)
        return 0;
    return ot_fail_cause(
        OT_E_INPUT, OT_CAUSE_CHECKPOINT,
        "%s/%s: damaged: step %lld leads to sequence %lld of epoch %lld, but 'position' says sequence "
        "%lld of epoch %lld",
        resume->dir, resume->record_name, (long long)step, (long long)at.sequence, (long long)at.epoch,
        (long long)r->position.sequence, (long long)r->position.epoch);
}

/* ---- arithmetic ---- */

int ot_resume_check_arithmetic(const struct ot_resume *resume, const struct ot_options *options,
                               const char *arithmetic) {
    const char *was =
        resume->checkpoint ? resume->record->arithmetic : ""; /* a finished run computes nothing more */
    if (!*was || strcmp(was, arithmetic) == 0)
        return 0;
    if (options->exact)
        return ot_fail(
            OT_E_INPUT,
            "%s was computed with %s, but this machine computes with %s: --exact resumes only with the same "
            "libraries and instruction set; without --exact the run goes on, but the last digits of its "
            "results differ",
            resume->dir, was, arithmetic);
    ot_log(OT_LOG_WARN,
           "%s was computed with %s, and goes on with %s: from now on, the last digits of losses and weights "
           "differ from those of an uninterrupted run (--exact refuses this)",
           resume->dir, was, arithmetic);
    return 0;
}

/* ---- ranks ---- */

int ot_resume_check_ranks(const struct ot_resume *resume, const struct ot_options *options, int ranks) {
    if (!resume->checkpoint || resume->record->ranks == ranks ||
        options->deterministic == OT_CHOICE_DETERMINISTIC_WORLD)
        return 0;
    int was = resume->record->ranks;
    const char *s = was == 1 ? "" : "s";
    if (options->exact)
        return ot_fail(OT_E_USAGE,
                       "%s was computed by %d rank%s, and this run has %d: --exact resumes only with as many "
                       "ranks, unless the run began with --deterministic world",
                       resume->dir, was, s, ranks);
    ot_log(OT_LOG_WARN,
           "%s was computed by %d rank%s, and %d go%s on: from now on, the last digits of losses and weights "
           "differ from those of an uninterrupted run (--deterministic world avoids this)",
           resume->dir, was, s, ranks, ranks == 1 ? "es" : "");
    return 0;
}
