/* The settings of other programs (src/migrate) as values of options. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/memory.h"
#include "src/base/utf8.h"
#include "src/options/options.h"

/* ---- taking settings ---- */

/* The value in effect, as JSON has it, without its quotes; in memory of the migration. */
static const char *effective(const struct ot_options *options, const struct ot_option *option,
                             struct ot_migration *migration) {
    struct ot_json_writer w = {.indent = -1};
    struct ot_json *tree = NULL;
    char *text = NULL;
    size_t bytes;
    ot_json_begin_object(&w, NULL);
    ot_option_put_value(option, options, &w);
    ot_json_end_object(&w);
    if (ot_json_writer_take(&w, &text, &bytes) < 0)
        return NULL;
    const char *value = NULL, *kept = NULL;
    if (ot_json_parse(text, bytes, "an option", &tree) == 0) {
        const struct ot_json *found = ot_json_get(tree, option->name);
        value = ot_json_string(found, NULL);
        size_t name = strlen(option->name) + 4; /* {"NAME": */
        name += text[name] == ' ';
        kept = value ? ot_arena_strdup(migration->arena, value, strlen(value))
                     : ot_arena_strdup(migration->arena, text + name, bytes - name - 1);
    }
    ot_json_free(tree);
    free(text);
    return kept;
}

/* The rows that say this option say instead who overrules them. */
static int mark_overruled(const struct ot_options *options, const struct ot_option *option, bool by_config,
                          struct ot_migration *migration) {
    for (size_t i = 0; i < migration->n_rows; i++) {
        struct ot_migrate_row *row = &migration->rows[i];
        if (!row->option || strcmp(row->option, option->name) != 0 || row->overruled)
            continue;
        bool is_given = ot_options_given(options, option->name);
        const char *value = is_given ? effective(options, option, migration) : NULL;
        char *text = NULL;
        OT_TRY(ot_string_format(&text, "%s says --%s %s", by_config ? "--config" : "the command line",
                                is_given ? option->name : "eval-fraction", is_given && value ? value : "0"));
        ot_utf8_keep_line(text);
        row->overruled = ot_arena_strdup(migration->arena, text, strlen(text));
        free(text);
        if (!row->overruled)
            return -OT_E_BUDGET;
    }
    return 0;
}

static int refuse_row(struct ot_migration *migration, const struct ot_migrate_setting *setting) {
    for (size_t i = 0; i < migration->n_rows; i++) {
        struct ot_migrate_row *row = &migration->rows[i];
        if (row->file != setting->file || row->key != setting->key)
            continue;
        row->verdict = OT_MIGRATE_REFUSED;
        row->text = ot_arena_strdup(migration->arena, ot_error_text(), strlen(ot_error_text()));
        if (!row->text)
            return -OT_E_BUDGET;
    }
    return 0;
}

/* The user turns evaluations off, so what a file says of them is off too, as if the user said it. */
static void silence_evaluations(const struct ot_options *options, enum ot_option_source *given) {
    static const char *const names[] = {"eval-every", "eval-metric", "stop-early", "result"};
    int fraction = ot_option_find("eval-fraction", strlen("eval-fraction"), options->command);
    int data = ot_option_find("eval-data", strlen("eval-data"), options->command);
    bool is_off =
        given[fraction] >= OT_FROM_FILE && options->eval_fraction == 0 && given[data] < OT_FROM_FILE;
    for (size_t i = 0; i < sizeof names / sizeof *names && is_off; i++) {
        int index = ot_option_find(names[i], strlen(names[i]), options->command);
        given[index] = given[index] < OT_FROM_FILE ? given[fraction] : given[index];
    }
}

int ot_options_take_migration(struct ot_options *options, struct ot_migration *migration) {
    enum ot_option_source given[OT_OPTIONS_MAX];
    memcpy(given, options->source, sizeof given);
    silence_evaluations(options, given);
    const struct ot_option *option;
    for (int i = 0; (option = ot_option_at(i)); i++)
        if ((option->commands & (1u << options->command)) && given[i] >= OT_FROM_FILE)
            OT_TRY(mark_overruled(options, option, given[i] == OT_FROM_FILE, migration));
    for (size_t i = 0; i < migration->n_settings; i++) {
        const struct ot_migrate_setting *setting = &migration->settings[i];
        int index = ot_option_find(setting->option, strlen(setting->option), options->command);
        option = ot_option_at(index);
        if (!option)
            return ot_fail(OT_E_INTERNAL, "a map names the option --%s, which does not exist",
                           setting->option);
        if (given[index] >= OT_FROM_FILE)
            continue;
        char spelled[64];
        snprintf(spelled, sizeof spelled, "--%s", option->name);
        if (ot_option_parse_value(option, spelled, setting->value, options) < 0) {
            OT_TRY(refuse_row(migration, setting));
            ot_option_reset(options, index);
        } else {
            options->source[index] = OT_FROM_FILE;
        }
    }
    return 0;
}

/* ---- the files of a run ---- */

static int refuse(const struct ot_migration *migration) {
    const struct ot_migrate_row *first = NULL;
    size_t n = 0;
    for (size_t i = 0; i < migration->n_rows; i++)
        if (migration->rows[i].verdict == OT_MIGRATE_REFUSED && !migration->rows[i].overruled) {
            first = first ? first : &migration->rows[i];
            n++;
        }
    if (n == 0)
        return 0;
    char more[64] = "";
    if (n > 1)
        snprintf(more, sizeof more, "; %zu more keys are refused", n - 1);
    return ot_fail(OT_E_USAGE, "%.200s: %.200s: %.400s%s (offload-train migrate says it for each key)",
                   first->file, first->key, first->text, more);
}

void ot_options_migrate_request(const struct ot_options *options, struct ot_migrate_request *out) {
    *out = (struct ot_migrate_request){.files = {[OT_PROGRAM_DEEPSPEED] = options->deepspeed,
                                                 [OT_PROGRAM_TRAINER] = options->hf_args,
                                                 [OT_PROGRAM_LLAMAFACTORY] = options->llamafactory,
                                                 [OT_PROGRAM_AXOLOTL] = options->axolotl},
                                       .seq_len = options->seq_len};
}

int ot_options_take_files(struct ot_options *options, ot_rank_counter count) {
    static const char *const names[OT_PROGRAM_COUNT] = {"deepspeed", "hf-args", "llamafactory", "axolotl"};
    struct ot_migrate_request request;
    int other = 0; /* the program whose file is read beside a ds_config; 0: none */
    ot_options_migrate_request(options, &request);
    for (int i = 1; i < OT_PROGRAM_COUNT; i++) {
        if (request.files[i] && other)
            return ot_fail(OT_E_USAGE, "--%s and --%s contradict each other; use one of them", names[other],
                           names[i]);
        other = request.files[i] ? i : other;
    }
    if (!other && !request.files[OT_PROGRAM_DEEPSPEED])
        return 0;
    int ranks = 0;
    OT_TRY(count ? count(options, &ranks) : 0);
    request.ranks = ranks;
    OT_TRY(ot_migrate(&request, &options->migration));
    OT_TRY(ot_options_take_migration(options, &options->migration));
    return refuse(&options->migration);
}

/* ---- what a run says of them ---- */

static void note_file(const struct ot_migration *migration, const char *file) {
    size_t used = 0, ignored = 0, overruled = 0;
    for (size_t i = 0; i < migration->n_rows; i++) {
        const struct ot_migrate_row *row = &migration->rows[i];
        if (row->file != file)
            continue;
        used += row->verdict == OT_MIGRATE_USED && !row->overruled;
        ignored += row->verdict == OT_MIGRATE_IGNORED && !row->overruled;
        overruled += row->overruled != NULL;
    }
    ot_log(OT_LOG_INFO,
           "from    %s · %zu keys used, %zu ignored, %zu overruled · offload-train migrate shows each", file,
           used, ignored, overruled);
    bool step_is_said = false; /* it says for how many GPUs */
    for (size_t i = 0; i < migration->n_rows; i++) {
        const struct ot_migrate_row *row = &migration->rows[i];
        if (row->file != file)
            continue;
        bool is_step = row->option && strcmp(row->option, "tokens-per-step") == 0 && !step_is_said;
        step_is_said |= is_step;
        if (row->differs || row->overruled || is_step)
            ot_log(OT_LOG_INFO, "        %s: %s", row->key, ot_migrate_row_text(migration, row));
    }
}

void ot_options_note_migration(const struct ot_options *options) {
    const struct ot_migration *migration = &options->migration;
    for (size_t i = 0; i < migration->n_rows; i++) {
        bool is_first = true;
        for (size_t k = 0; k < i && is_first; k++)
            is_first = migration->rows[k].file != migration->rows[i].file;
        if (is_first)
            note_file(migration, migration->rows[i].file);
    }
}
