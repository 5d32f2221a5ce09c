#include "src/options/options.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/minmax.h"
#include "src/base/text.h"
#include "src/migrate/settings_file.h"

enum { CONFIG_MAX_BYTES = 1 << 20 };

/* Options that name the settings of other programs. A record has what these say, not them. */
static const char files_of_others[] = "deepspeed hf-args llamafactory axolotl";

/* The key of run.json whose object has the source of each option. A --config FILE may have the key; it has no
 * effect there. */
static const char sources_key[] = "sources";

static int index_of(const struct ot_options *options, const char *name) {
    int index = ot_option_find(name, strlen(name), options->command);
    assert(index >= 0);
    return index;
}

bool ot_options_given(const struct ot_options *options, const char *name) {
    return options->source[index_of(options, name)] >= OT_FROM_CHECKPOINT;
}

bool ot_options_given_now(const struct ot_options *options, const char *name) {
    return options->source[index_of(options, name)] >= OT_FROM_FILE;
}

void ot_option_reset(struct ot_options *options, int index) {
    static const size_t bytes[OT_OPTION_TYPE_COUNT] = {
        [OT_OPTION_FLAG] = sizeof(bool),
        [OT_OPTION_YES_NO] = sizeof(bool),
        [OT_OPTION_TEXT] = sizeof(char *),
        [OT_OPTION_CHOICE] = sizeof(int),
        [OT_OPTION_COUNT] = sizeof(int64_t),
        [OT_OPTION_BYTES] = sizeof(int64_t),
        [OT_OPTION_RATE] = sizeof(double),
        [OT_OPTION_REAL] = sizeof(double),
        [OT_OPTION_SHARE] = sizeof(double),
        [OT_OPTION_WARMUP] = sizeof(struct ot_warmup),
        [OT_OPTION_PATIENCE] = sizeof(struct ot_patience),
        [OT_OPTION_EVERY] = sizeof(struct ot_every),
        [OT_OPTION_TIME] = sizeof(double),
        [OT_OPTION_DEVICE] = sizeof(struct ot_device_choice),
        [OT_OPTION_HOMES] = sizeof(struct ot_homes),
        [OT_OPTION_ENGINES] = sizeof(struct ot_engine_fractions),
        [OT_OPTION_STEP] = sizeof(struct ot_step_tokens),
        [OT_OPTION_COUNTS] = sizeof(struct ot_count_list),
        [OT_OPTION_SIZES] = sizeof(struct ot_count_list),
        [OT_OPTION_TEXTS] = sizeof(struct ot_texts),
        [OT_OPTION_NVME] = sizeof(struct ot_nvme_dirs),
    };
    const struct ot_option *option = ot_option_at(index);
    memset((char *)options + option->field, 0, bytes[option->type]);
    options->source[index] = option->fallback ? OT_FROM_DEFAULT : OT_FROM_NOWHERE;
    if (option->fallback && ot_option_parse_value(option, option->name, option->fallback, options) < 0)
        assert(!"a default that its own option refuses");
}

/* ---- options that the command does not have ---- */

static const char *list_owners(const char *name, size_t bytes, char list[OT_COMMAND_LIST_BYTES]) {
    unsigned commands = 0;
    const struct ot_option *option;
    for (int i = 0; (option = ot_option_at(i)); i++)
        if (strlen(option->name) == bytes && memcmp(option->name, name, bytes) == 0)
            commands |= option->commands;
    return ot_command_list(commands, list);
}

/* "; --chat belongs to generate" if the command lacks the first option that `text` names; else "". */
enum { OWNERS_BYTES = OT_COMMAND_LIST_BYTES + 64 };
static const char *note_owners(const char *text, enum ot_command command, char note[OWNERS_BYTES]) {
    const char *dashes = strstr(text, "--");
    int bytes = dashes ? 2 + (int)strspn(dashes + 2, "abcdefghijklmnopqrstuvwxyz0123456789-/") : 0;
    int index = dashes ? ot_option_find(dashes + 2, (size_t)bytes - 2, command) : -1;
    note[0] = '\0';
    if (index >= 0 && !(ot_option_at(index)->commands & (1u << command))) {
        char list[OT_COMMAND_LIST_BYTES];
        snprintf(note, OWNERS_BYTES, "; %.*s belongs to %s", bytes, dashes,
                 list_owners(dashes + 2, (size_t)bytes - 2, list));
    }
    return note;
}

static int refuse_unknown(const char *dashes, const char *name, enum ot_command command) {
    const char *answer = ot_option_foreign(name);
    const struct ot_option *called = answer ? NULL : ot_option_called(name, command);
    const char *nearest = answer || called ? NULL : ot_option_nearest(name, command);
    char guess[96] = "", note[OWNERS_BYTES];
    if (called)
        snprintf(guess, sizeof guess, "; its name here is %s%s", *dashes ? "--" : "", called->name);
    if (nearest)
        snprintf(guess, sizeof guess, "; did you mean %s%s?", *dashes ? "--" : "", nearest);
    note_owners(answer ? answer : called ? guess : "", command, note);
    if (answer)
        return ot_fail(OT_E_USAGE, "%s%.60s: %s%s (offload-train %s --help all lists options)", dashes, name,
                       answer, note, ot_command_name(command));
    return ot_fail(OT_E_USAGE, "unknown option %s%.60s%s%s (offload-train %s --help all lists options)",
                   dashes, name, guess, note, ot_command_name(command));
}

static int check_command(const struct ot_option *option, const char *spelled, enum ot_command command) {
    char owners[OT_COMMAND_LIST_BYTES];
    if (option->commands & (1u << command))
        return 0;
    return ot_fail(OT_E_USAGE, "%s has no effect with %s; it belongs to %s", spelled,
                   ot_command_name(command), list_owners(option->name, strlen(option->name), owners));
}

/* ---- the command line ---- */

static const struct ot_option *find_letter(char letter, int *index) {
    const struct ot_option *option;
    for (int i = 0; letter && (option = ot_option_at(i)); i++)
        if (option->letter == letter) {
            *index = i;
            return option;
        }
    return NULL;
}

/* Parses the option argv[*at] and, if it needs a value, the value in argv[*at + 1]. Moves *at to the last
 * word used. */
static int take_option(int argc, char *const *argv, int *at, struct ot_options *out) {
    const char *word = argv[*at], *value = NULL;
    const struct ot_option *option = NULL;
    int index = -1;
    if (word[1] == '-') {
        size_t length = strcspn(word + 2, "=");
        index = ot_option_find(word + 2, length, out->command);
        option = ot_option_at(index);
        value = word[2 + length] == '=' ? word + 3 + length : NULL;
    } else if (word[1] && !word[2]) {
        option = find_letter(word[1], &index);
    }
    if (!option) {
        char name[64];
        const char *bare = word + strspn(word, "-");
        snprintf(name, sizeof name, "%.*s", (int)strcspn(bare, "="), bare);
        return refuse_unknown(word[1] == '-' ? "--" : "-", name, out->command);
    }
    char spelled[64];
    snprintf(spelled, sizeof spelled, "--%s", option->name);
    OT_TRY(check_command(option, spelled, out->command));
    if (out->source[index] == OT_FROM_COMMAND_LINE && !ot_option_repeats(option))
        out->repeated[index] = true;
    out->source[index] = OT_FROM_COMMAND_LINE;
    if (option->type == OT_OPTION_FLAG) {
        if (value)
            return ot_fail(OT_E_USAGE, "%s takes no value; leave out '=%.40s'", spelled, value);
        return ot_option_parse_value(option, spelled, "yes", out);
    }
    bool is_last = *at + 1 >= argc || argv[*at + 1][0] == '-';
    if (!value && option->bare && is_last)
        value = option->bare;
    if (!value) {
        if (*at + 1 >= argc || strncmp(argv[*at + 1], "--", 2) == 0)
            return ot_fail(OT_E_USAGE, "%s needs a value; if the value begins with dashes, write %s=VALUE",
                           spelled, spelled);
        value = argv[++*at];
    }
    return ot_option_parse_value(option, spelled, value, out);
}

static int take_command(const char *word, enum ot_command *out) {
    const char *names[OT_COMMAND_COUNT];
    for (int c = 0; c < OT_COMMAND_COUNT; c++) {
        names[c] = ot_command_name((enum ot_command)c);
        if (strcmp(word, names[c]) == 0) {
            *out = (enum ot_command)c;
            return 0;
        }
    }
    const char *nearest = ot_nearest_name(word, names, OT_COMMAND_COUNT);
    return ot_fail(
        OT_E_USAGE, "unknown command '%.60s'; %s%s%s (offload-train help lists commands and topics)", word,
        nearest ? "did you mean " : "the commands are ",
        nearest ? nearest
                : "train, generate, eval, tokenize, probe, plan, bench, verify, export, merge, quantize, "
                  "comm-test, download, migrate, watch and report",
        nearest ? "?" : "");
}

static bool is_on_command_line(const struct ot_options *options, const char *name) {
    return options->source[index_of(options, name)] == OT_FROM_COMMAND_LINE;
}

static int take_subject(struct ot_options *out, const char *name, const char *value) {
    int index = index_of(out, name);
    out->source[index] = OT_FROM_COMMAND_LINE;
    return ot_option_parse_value(ot_option_at(index), name, value, out);
}

/* DeepSpeed's launcher and torch.distributed.launch put this word before all others. The environment says the
 * same (src/cli/ranks.h). */
static bool is_of_launcher(const char *word) {
    return strncmp(word, "--local_rank=", 13) == 0 || strncmp(word, "--local-rank=", 13) == 0;
}

static int take_command_line(int argc, char *const *argv, struct ot_options *out) {
    int at = 0;
    if (argc > 0 && argv[0][0] != '-')
        OT_TRY(take_command(argv[at++], &out->command));
    bool named = at > 0;
    bool is_of_files = (1u << out->command) & (OT_FOR_VERIFY | OT_FOR_EXPORT | OT_FOR_WATCH | OT_FOR_REPORT);
    bool repeats = out->command == OT_COMMAND_REPORT;
    /* The options whose values may stand alone: offload-train merge BASE ADAPTER */
    bool migrates = out->command == OT_COMMAND_MIGRATE;
    const char *const subjects[] = {migrates      ? "file"
                                    : is_of_files ? "dir"
                                                  : "model",
                                    out->command == OT_COMMAND_MERGE ? "adapter" : NULL, NULL};
    int n = 0;
    for (; at < argc && !out->help && !out->version; at++) {
        if (argv[at][0] == '-' && argv[at][1]) {
            OT_TRY(take_option(argc, argv, &at, out));
        } else if (named && subjects[n] && (repeats || !is_on_command_line(out, subjects[n])) &&
                   argv[at][0]) {
            OT_TRY(take_subject(out, subjects[n], argv[at]));
            n += !repeats;
        } else {
            return ot_fail(OT_E_USAGE,
                           "unexpected argument '%.60s'; an option takes one value, and a value with spaces "
                           "needs quotes",
                           argv[at]);
        }
    }
    if (out->version && at < argc && strcmp(argv[at], "--json") == 0)
        out->json = true;
    return 0;
}

void ot_options_find_rank(int argc, char *const *argv, struct ot_options *out) {
    static const char *const names[] = {"gpus", "nodes", "node-rank", "master", "device", "comm-timeout"};
    for (int at = 0; at < argc; at++) {
        size_t length = strncmp(argv[at], "--", 2) == 0 ? strcspn(argv[at] + 2, "=") : 0;
        int index = length ? ot_option_find(argv[at] + 2, length, out->command) : -1;
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (index == ot_option_find(names[i], strlen(names[i]), out->command)) {
                (void)take_option(argc, argv, &at, out);
                break;
            }
    }
}

/* ---- the config file ---- */

/* Options borrow texts, so the text of a number is kept. NULL: no memory. */
static const char *keep_number(const struct ot_json *value, struct ot_options *out) {
    free(out->number_text);
    int rc = ot_json_type(value) == OT_JSON_INT
                 ? ot_string_format(&out->number_text, "%lld", (long long)ot_json_int(value, 0))
                 : ot_string_format(&out->number_text, "%.17g", ot_json_real(value, 0));
    return rc < 0 ? NULL : out->number_text;
}

/* The value as text, as on the command line. NULL: its JSON type does not fit the option. */
static const char *config_text(const struct ot_option *option, const struct ot_json *value, char number[40],
                               struct ot_options *out) {
    enum ot_json_type type = ot_json_type(value);
    bool is_switch = option->type == OT_OPTION_FLAG || option->type == OT_OPTION_YES_NO;
    if (type == OT_JSON_BOOL && (is_switch || option->type == OT_OPTION_CHOICE)) /* yes is true in YAML */
        return ot_json_bool(value, false) ? "yes" : "no";
    /* borrowed: a number in the tree has no text to lend */
    bool is_text = option->type == OT_OPTION_TEXT || option->type == OT_OPTION_TEXTS;
    if ((type == OT_JSON_INT && option->takes_number) || (type == OT_JSON_REAL && option->takes_real))
        return keep_number(value, out);
    if (type == OT_JSON_INT && !is_switch && !is_text)
        snprintf(number, 40, "%lld", (long long)ot_json_int(value, 0));
    else if (type == OT_JSON_REAL && !is_switch && !is_text)
        snprintf(number, 40, "%.17g", ot_json_real(value, 0));
    else
        return type == OT_JSON_STRING ? ot_json_string(value, NULL) : NULL;
    return number;
}

static int parse_json_value(const struct ot_option *option, const char *key, const struct ot_json *value,
                            struct ot_options *out) {
    char number[40];
    size_t bytes;
    const char *text = config_text(option, value, number, out);
    if (!text)
        return ot_fail(OT_E_USAGE, "%s: %s is not a valid value of this option", key,
                       ot_json_type_name(ot_json_type(value)));
    if (ot_json_type(value) == OT_JSON_STRING && strlen(ot_json_string(value, &bytes)) != bytes)
        return ot_fail(OT_E_USAGE, "%s: a NUL character is not allowed in the text", key);
    return ot_option_parse_value(option, key, text, out);
}

int ot_option_parse_json(const struct ot_option *option, const char *key, const struct ot_json *value,
                         struct ot_options *out) {
    if (ot_json_type(value) != OT_JSON_ARRAY || !ot_option_repeats(option))
        return parse_json_value(option, key, value, out);
    for (size_t i = 0; i < ot_json_length(value); i++)
        OT_TRY(parse_json_value(option, key, ot_json_at(value, i), out));
    return 0;
}

static int take_config_value(struct ot_options *out, const char *key, const struct ot_json *value) {
    int index = ot_option_find(key, strlen(key), out->command);
    const struct ot_option *option = ot_option_at(index);
    bool is_note = strcmp(key, sources_key) == 0 || strcmp(key, OT_RUN_RANKS) == 0;
    if ((is_note && ot_json_type(value) == OT_JSON_OBJECT) ||
        (strcmp(key, OT_RUN_HISTORY) == 0 && ot_json_type(value) == OT_JSON_ARRAY))
        return 0;
    if (!option)
        return refuse_unknown("", key, out->command);
    OT_TRY(check_command(option, key, out->command));
    if (out->source[index] == OT_FROM_FILE)
        return ot_fail(OT_E_USAGE, "%s is given twice; remove one of them", key);
    if (option->field == offsetof(struct ot_options, config) ||
        ot_words_have(files_of_others, option->name) || option->field == offsetof(struct ot_options, help) ||
        option->field == offsetof(struct ot_options, version))
        return ot_fail(OT_E_USAGE, "%s works only on the command line; remove it from the file", key);
    enum ot_json_type type = ot_json_type(value);
    if (out->source[index] == OT_FROM_COMMAND_LINE || type == OT_JSON_NULL)
        return 0;
    bool is_empty = type == OT_JSON_ARRAY && ot_option_repeats(option) && ot_json_length(value) == 0;
    out->source[index] = is_empty ? OT_FROM_NOWHERE : OT_FROM_FILE;
    return ot_option_parse_json(option, key, value, out);
}

static int take_config(struct ot_options *out) {
    OT_TRY(ot_settings_are_yaml(out->config)
               ? ot_settings_read(out->config, &out->config_tree)
               : ot_json_read_file(out->config, CONFIG_MAX_BYTES, &out->config_tree));
    if (ot_json_type(out->config_tree) != OT_JSON_OBJECT)
        return ot_fail(OT_E_USAGE, "%s: must be a JSON object, such as {\"lr\": 1e-5}, not %s", out->config,
                       ot_json_type_name(ot_json_type(out->config_tree)));
    void *cursor = NULL;
    const char *key;
    struct ot_json *value;
    while (ot_json_next(out->config_tree, &cursor, &key, &value)) {
        int rc = take_config_value(out, key, value);
        if (rc < 0)
            return ot_fail_context(rc, "%s", out->config);
    }
    return 0;
}

static void note_repeated(const struct ot_options *options) {
    const struct ot_option *option;
    for (int i = 0; (option = ot_option_at(i)); i++)
        if (options->repeated[i] && option->type != OT_OPTION_FLAG && !options->quiet)
            ot_log(OT_LOG_INFO, "note    --%s is given more than once; the last value is used", option->name);
}

void ot_options_reset(struct ot_options *options, enum ot_command command) {
    *options = (struct ot_options){.command = command};
    for (int i = 0; ot_option_at(i); i++)
        ot_option_reset(options, i);
}

int ot_options_parse(int argc, char *const *argv, struct ot_options *out) {
    return ot_options_parse_ranked(argc, argv, NULL, out);
}

int ot_options_parse_ranked(int argc, char *const *argv, ot_rank_counter count, struct ot_options *out) {
    ot_options_reset(out, OT_COMMAND_TRAIN);
    int skipped = argc > 0 && is_of_launcher(argv[0]) ? 1 : 0;
    OT_TRY(take_command_line(argc - skipped, argv + skipped, out));
    if (out->help || out->version)
        return 0;
    if (out->config)
        OT_TRY(take_config(out));
    if (out->command == OT_COMMAND_TRAIN)
        OT_TRY(ot_options_take_files(out, count));
    OT_TRY(ot_resume_with_parse(out));
    OT_TRY(ot_options_check(out));
    note_repeated(out);
    return 0;
}

const char *ot_data_name(const struct ot_options *options, char text[OT_DATA_NAME_BYTES]) {
    const struct ot_texts *data = &options->data;
    const char *first = data->n > 0 ? data->items[0] : "", *colon = strrchr(first, ':');
    bool has_share = data->n > 1 && colon && colon[1] && colon[1 + strspn(colon + 1, "0123456789.")] == '\0';
    if (strcmp(first, "-") == 0)
        first = "standard input";
    if (data->n <= 1)
        return first;
    snprintf(text, OT_DATA_NAME_BYTES, "%.*s and %d more",
             (int)ot_min(has_share ? (size_t)(colon - first) : strlen(first), (size_t)200), first,
             data->n - 1);
    return text;
}

void ot_options_free(struct ot_options *options) {
    ot_json_free(options->config_tree);
    free(options->number_text);
    free(options->changes_text);
    ot_migration_close(&options->migration);
    *options = (struct ot_options){0};
}

/* True if the record of a run has the option: the command has it, it has a value and an effect, and it is not
 * about this one call only. */
static bool is_recorded(const struct ot_options *options, int index) {
    const struct ot_option *option = ot_option_at(index);
    bool of_command_line = option->field == offsetof(struct ot_options, config) ||
                           ot_words_have(files_of_others, option->name) ||
                           option->field == offsetof(struct ot_options, resume) ||
                           option->field == offsetof(struct ot_options, resume_with) ||
                           option->field == offsetof(struct ot_options, force) ||
                           option->field == offsetof(struct ot_options, help) ||
                           option->field == offsetof(struct ot_options, version);
    return !of_command_line && (option->commands & (1u << options->command)) &&
           options->source[index] != OT_FROM_NOWHERE && !ot_option_overruled(options, option->name);
}

static void put_values(const struct ot_options *options, struct ot_json_writer *w) {
    const struct ot_option *option;
    for (int i = 0; (option = ot_option_at(i)); i++)
        if (is_recorded(options, i))
            ot_option_put_value(option, options, w);
}

void ot_options_put_json(const struct ot_options *options, const char *key, struct ot_json_writer *w) {
    ot_json_begin_object(w, key);
    put_values(options, w);
    ot_json_end_object(w);
}

void ot_options_put_sources(const struct ot_options *options, const char *key, struct ot_json_writer *w) {
    static const char *const names[] = {[OT_FROM_DEFAULT] = "default",
                                        [OT_FROM_PROGRAM] = "program",
                                        [OT_FROM_CHECKPOINT] = "checkpoint",
                                        [OT_FROM_FILE] = "config",
                                        [OT_FROM_COMMAND_LINE] = "command line"};
    const struct ot_option *option;
    ot_json_begin_object(w, key);
    for (int i = 0; (option = ot_option_at(i)); i++)
        if (is_recorded(options, i))
            ot_json_put_text(w, option->name, names[options->source[i]]);
    ot_json_end_object(w);
}

void ot_options_put_run(const struct ot_options *options, struct ot_json_writer *w) {
    put_values(options, w);
    ot_options_put_sources(options, sources_key, w);
}

/* ---- cures ---- */

static const char *const cures[OT_CAUSE_COUNT] = {
    [OT_CAUSE_NO_DRIVER] = "in a container, start it with --gpus all; without a GPU, use --device cpu",
    [OT_CAUSE_NO_GPU] = "use --device cpu to run without a GPU",
    [OT_CAUSE_GPU_BUSY] = "wait until it is free, or choose another GPU with --device cuda:N",
    [OT_CAUSE_DEVICE_BUDGET] = "raise --gpu-mem, or lower --micro-batch or --seq-len",
    [OT_CAUSE_DEVICE_MEMORY] = "lower --gpu-mem or --micro-batch",
    [OT_CAUSE_PINNED_MEMORY] = "lower --host-mem, or raise the system's limit on locked memory (ulimit -l)",
    [OT_CAUSE_UNCLIPPED] = "start again with --clip 1.0",
    [OT_CAUSE_UNCLIPPED_FP16] = "use --clip 1.0 or --dtype bf16",
    [OT_CAUSE_MICRO_BATCHES] = "lower --tokens-per-step, or raise --micro-batch",
    [OT_CAUSE_STEP_TOKENS] = "lower --tokens-per-step",
    [OT_CAUSE_OPTIMIZER_SHARE] = "raise the engine's share in --optimizer-engine, or leave that engine out",
    [OT_CAUSE_WEIGHT_SLOTS] = "use --slots 2",
    [OT_CAUSE_WORLD_RANKS] = "use --deterministic run, or another number of --gpus",
    [OT_CAUSE_SMALL_SHARES] = "use --shard none, or lower --gpus",
    [OT_CAUSE_SECTIONS] = "use another --row-sections, or leave it out",
    [OT_CAUSE_STAGES] = "use --shard full, or fewer ranks",
    [OT_CAUSE_STATE_SHARDS] = "use --shard full, or leave out --home weights",
    [OT_CAUSE_SLOTS_IN_USE] = "raise --slots",
};

const char *ot_cure_text(void) {
    enum { CURE_BYTES = 128 };
    static _Thread_local char text[OT_ERROR_TEXT_BYTES + CURE_BYTES];
    const char *cure = cures[ot_error_cause()];
    snprintf(text, sizeof text, cure ? "%s; %s" : "%s", ot_error_text(), cure);
    return text;
}

/* ---- the name that a misspelled one was meant to be ---- */

/* The largest edit distance of a guess: one third of a long word, two edits in a shorter one, one in a very
 * short one. */
static int worst_distance(size_t length) {
    return length < 4 ? 1 : length < 9 ? 2 : (int)(length / 3);
}

/* Optimal string alignment distance: insertions, deletions, substitutions and swaps of neighbours. If the
 * lengths differ too much for a guess, returns LONGEST. */
static int edit_distance(const char *a, size_t a_length, const char *b, size_t b_length) {
    enum { LONGEST = 48 };
    size_t apart = a_length > b_length ? a_length - b_length : b_length - a_length;
    if (a_length > LONGEST || b_length > LONGEST || apart > (size_t)worst_distance(a_length))
        return LONGEST;
    int rows[3][LONGEST + 1];
    for (size_t j = 0; j <= b_length; j++)
        rows[0][j] = (int)j;
    for (size_t i = 1; i <= a_length; i++) {
        int *row = rows[i % 3];
        const int *last = rows[(i - 1) % 3], *before = rows[(i + 1) % 3];
        row[0] = (int)i;
        for (size_t j = 1; j <= b_length; j++) {
            int best = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < best)
                best = last[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            row[j] = best;
        }
    }
    return rows[a_length % 3][b_length];
}

const char *ot_nearest_name(const char *word, const char *const *names, int n) {
    const char *nearest = NULL;
    int best = worst_distance(strlen(word)) + 1;
    for (int i = 0; i < n; i++) {
        int distance = edit_distance(word, strlen(word), names[i], strlen(names[i]));
        if (distance < best) {
            best = distance;
            nearest = names[i];
        }
    }
    return nearest;
}

/* Our own names win over names of other programs; options of this command win over options of other commands.
 */
const char *ot_option_nearest(const char *word, enum ot_command command) {
    const char *nearest = NULL;
    int best = 4 * (worst_distance(strlen(word)) + 1);
    const struct ot_option *option;
    for (int i = 0; (option = ot_option_at(i)); i++) {
        int rank = option->commands & (1u << command) ? 0 : 2;
        int distance = 4 * edit_distance(word, strlen(word), option->name, strlen(option->name)) + rank;
        const char *other;
        size_t length;
        for (int k = 0; option->elsewhere && (other = ot_words_at(option->elsewhere, k, &length)); k++) {
            int far = 4 * edit_distance(word, strlen(word), other, length) + rank + 1;
            distance = ot_min(far, distance);
        }
        if (distance < best) {
            best = distance;
            nearest = option->name;
        }
    }
    return nearest;
}
