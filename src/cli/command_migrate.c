/* offload-train migrate: what the settings of another program become here, key by key, and the command line.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/minmax.h"
#include "src/cli/command.h"
#include "src/cli/launch.h"
#include "src/migrate/migrate.h"

/* Adds what a run needs and the files do not say. */
static const char *const placeholders[][2] = {{"model", "MODEL"}, {"data", "FILE"}};

static int make_request(const struct ot_options *o, struct ot_migrate_request *out) {
    int ranks;
    ot_options_migrate_request(o, out);
    OT_TRY(ot_launch_count(o, &ranks));
    out->ranks = ranks;
    enum ot_program program = (enum ot_program)o->from;
    if (!o->file)
        return 0;
    if (!ot_options_given(o, "from"))
        OT_TRY(ot_migrate_guess(o->file, &program));
    if (program == OT_PROGRAM_COUNT)
        return ot_fail(OT_E_INPUT,
                       "%s: its keys are those of no program that is known here; add --from deepspeed, hf, "
                       "llamafactory or axolotl",
                       o->file);
    bool is_alone =
        program == OT_PROGRAM_DEEPSPEED ? !o->deepspeed : !o->hf_args && !o->llamafactory && !o->axolotl;
    if (!is_alone)
        return ot_fail(OT_E_USAGE, "%s is for %s, and an option names such a file too; leave out one of them",
                       o->file, ot_program_name(program));
    out->files[program] = o->file;
    return 0;
}

/* ---- the command line ---- */

/* Writes a word for a POSIX shell: in single quotes if it needs them. */
static void quote(struct ot_string_builder *line, const char *word) {
    static const char safe[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,:/@%";
    if (*word && !word[strspn(word, safe)]) {
        ot_string_append_text(line, word);
        return;
    }
    ot_string_append_text(line, "'");
    for (; *word; word++)
        ot_string_append(line, *word == '\'' ? "'\\''" : word, *word == '\'' ? 4 : 1);
    ot_string_append_text(line, "'");
}

static bool is_refused(const struct ot_migration *migration, const struct ot_migrate_setting *setting) {
    for (size_t i = 0; i < migration->n_rows; i++)
        if (migration->rows[i].file == setting->file && migration->rows[i].key == setting->key &&
            migration->rows[i].verdict == OT_MIGRATE_REFUSED)
            return true;
    return false;
}

/* Calls put for each word behind "offload-train". */
static void put_words(const struct ot_migration *migration, const struct ot_options *options,
                      void (*put)(void *context, const char *word), void *context) {
    char name[64];
    for (size_t i = 0; i < sizeof placeholders / sizeof *placeholders; i++) {
        bool has = false;
        for (size_t k = 0; k < migration->n_settings; k++)
            has = has || strcmp(migration->settings[k].option, placeholders[i][0]) == 0;
        snprintf(name, sizeof name, "--%s", placeholders[i][0]);
        if (!has)
            put(context, name);
        if (!has)
            put(context, placeholders[i][1]);
    }
    snprintf(name, sizeof name, "%lld", (long long)options->seq_len);
    if (options->seq_len > 0) {
        put(context, "--seq-len");
        put(context, name);
    }
    if (options->gpus) {
        put(context, "--gpus");
        put(context, options->gpus);
    }
    for (size_t i = 0; i < migration->n_settings; i++) {
        const struct ot_migrate_setting *setting = &migration->settings[i];
        const struct ot_option *option =
            ot_option_at(ot_option_find(setting->option, strlen(setting->option), OT_COMMAND_TRAIN));
        bool is_flag = option->type == OT_OPTION_FLAG;
        if (options->seq_len > 0 && strcmp(setting->option, "seq-len") == 0)
            continue;
        if (is_refused(migration, setting) || (is_flag && strcmp(setting->value, "yes") != 0))
            continue;
        snprintf(name, sizeof name, "--%s", setting->option);
        put(context, name);
        if (!is_flag)
            put(context, setting->value);
    }
}

static void put_quoted(void *line, const char *word) {
    ot_string_append_text(line, " ");
    quote(line, word);
}

static void put_json(void *w, const char *word) {
    ot_json_put_text(w, NULL, word);
}

/* ---- printing ---- */

static const char *name_of_key(const struct ot_migrate_row *row, char name[256]) {
    snprintf(name, 256, "%.200s%s", row->key, row->is_default ? " (not in the file)" : "");
    return name;
}

static int print_text(const struct ot_migration *migration, const struct ot_options *options) {
    enum { WIDEST = 56 };
    size_t width = 0;
    char name[256];
    struct ot_string_builder line = {0};
    for (size_t i = 0; i < migration->n_rows; i++)
        width = ot_max(width, strlen(name_of_key(&migration->rows[i], name)));
    for (size_t i = 0; i < migration->n_rows; i++) {
        const struct ot_migrate_row *row = &migration->rows[i];
        if (i == 0 || migration->rows[i - 1].file != row->file)
            printf("%s%s:\n", i ? "\n" : "", row->file);
        printf("  %-*s  %s\n", (int)ot_min(width, (size_t)WIDEST), name_of_key(row, name),
               ot_migrate_row_text(migration, row));
    }
    put_words(migration, options, put_quoted, &line);
    if (line.failed)
        return ot_fail(OT_E_BUDGET, "no memory for the command line");
    printf("\noffload-train%s\n", line.text);
    free(line.text);
    return 0;
}

static int print_json(const struct ot_migration *migration, const struct ot_options *options) {
    static const char *const verdicts[] = {"used", "ignored", "refused"};
    struct ot_json_writer w = {.indent = -1};
    ot_json_begin_object(&w, NULL);
    ot_json_begin_array(&w, "keys");
    for (size_t i = 0; i < migration->n_rows; i++) {
        const struct ot_migrate_row *row = &migration->rows[i];
        ot_json_begin_object(&w, NULL);
        ot_json_put_text(&w, "file", row->file);
        ot_json_put_text(&w, "key", row->key);
        ot_json_put_bool(&w, "in_file", !row->is_default);
        ot_json_put_text(&w, "verdict", verdicts[row->verdict]);
        if (row->option && row->value)
            ot_json_put_text(&w, "option", row->option);
        if (row->option && row->value)
            ot_json_put_text(&w, "value", row->value);
        ot_json_put_text(&w, "says", ot_migrate_row_text(migration, row));
        ot_json_end_object(&w);
    }
    ot_json_end_array(&w);
    ot_json_begin_array(&w, "command");
    put_words(migration, options, put_json, &w);
    ot_json_end_array(&w);
    ot_json_end_object(&w);
    return ot_json_print(&w);
}

/* The options of migrate that train has too. */
static void take_given(const struct ot_options *options, struct ot_options *train) {
    train->seq_len = options->seq_len;
    train->gpus = options->gpus;
    if (options->seq_len > 0)
        train->source[ot_option_find("seq-len", strlen("seq-len"), OT_COMMAND_TRAIN)] = OT_FROM_COMMAND_LINE;
    if (options->gpus)
        train->source[ot_option_find("gpus", strlen("gpus"), OT_COMMAND_TRAIN)] = OT_FROM_COMMAND_LINE;
}

/* Checks that the options go together, as train would. */
static int check(struct ot_options *train) {
    for (size_t i = 0; i < sizeof placeholders / sizeof *placeholders; i++) {
        int index = ot_option_find(placeholders[i][0], strlen(placeholders[i][0]), OT_COMMAND_TRAIN);
        if (train->source[index] == OT_FROM_NOWHERE) {
            OT_TRY(ot_option_parse_value(ot_option_at(index), placeholders[i][0], placeholders[i][1], train));
            train->source[index] = OT_FROM_FILE;
        }
    }
    return ot_options_check(train);
}

static int refuse(const struct ot_migration *migration) {
    size_t n = ot_migrate_count(migration, OT_MIGRATE_REFUSED);
    return n == 0 ? 0
                  : ot_fail(OT_E_USAGE, "%zu key%s refused, and the command line is without %s", n,
                            n == 1 ? " is" : "s are", n == 1 ? "it" : "them");
}

int ot_command_migrate(const struct ot_options *options) {
    struct ot_options *train = calloc(1, sizeof *train);
    struct ot_migration migration = {0};
    struct ot_migrate_request request;
    if (!train)
        return ot_fail(OT_E_BUDGET, "no memory for the options");
    ot_options_reset(train, OT_COMMAND_TRAIN);
    int rc = make_request(options, &request);
    if (rc == 0)
        rc = ot_migrate(&request, &migration);
    take_given(options, train);
    if (rc == 0)
        rc = ot_options_take_migration(train, &migration);
    if (rc == 0)
        rc = options->json ? print_json(&migration, options) : print_text(&migration, options);
    if (rc == 0)
        rc = refuse(&migration);
    if (rc == 0)
        rc = check(train);
    ot_migration_close(&migration);
    ot_options_free(train);
    free(train);
    return rc;
}
