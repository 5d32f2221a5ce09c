/* The one option table: it drives parsing, --help, the refusal of what would have no
 * effect, the log's record of a run and --config, so that none of them can disagree.
 *
 * An option's value lies in a named field of struct ot_options; the table (option_table_*.c) says where.
 * Values come from the table's defaults, then from --config FILE (a JSON object with the options' names as
 * keys), then from the command line. Parsed options are const; what a command chooses where the user said
 * nothing goes into settings.h.
 *
 * Strings are borrowed: from argv, from the table, or from the config tree that the struct owns. No
 * environment variable changes an option. Single-threaded.
 */
#ifndef OT_OPTIONS_OPTIONS_H
#define OT_OPTIONS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offload/plan/plan.h"
#include "offload/store/io_engine.h"
#include "src/base/json.h"

enum ot_command {
    OT_COMMAND_TRAIN,
    OT_COMMAND_GENERATE,
    OT_COMMAND_EVAL,
    OT_COMMAND_TOKENIZE,
    OT_COMMAND_PROBE,
    OT_COMMAND_PLAN,
    OT_COMMAND_BENCH,
    OT_COMMAND_VERIFY,
    OT_COMMAND_EXPORT,
    OT_COMMAND_COUNT
};
const char *ot_command_name(enum ot_command command);

/* Which commands an option belongs to. */
enum {
    OT_FOR_TRAIN = 1 << OT_COMMAND_TRAIN,
    OT_FOR_GENERATE = 1 << OT_COMMAND_GENERATE,
    OT_FOR_EVAL = 1 << OT_COMMAND_EVAL,
    OT_FOR_TOKENIZE = 1 << OT_COMMAND_TOKENIZE,
    OT_FOR_PROBE = 1 << OT_COMMAND_PROBE,
    OT_FOR_PLAN = 1 << OT_COMMAND_PLAN,
    OT_FOR_BENCH = 1 << OT_COMMAND_BENCH,
    OT_FOR_VERIFY = 1 << OT_COMMAND_VERIFY,
    OT_FOR_EXPORT = 1 << OT_COMMAND_EXPORT,
    OT_FOR_ALL = (1 << OT_COMMAND_COUNT) - 1
};

enum ot_option_type {
    OT_OPTION_FLAG,    /* bool: present or not; true or false in a config file */
    OT_OPTION_YES_NO,  /* bool */
    OT_OPTION_TEXT,    /* const char * */
    OT_OPTION_CHOICE,  /* int: index into `choices` */
    OT_OPTION_COUNT,   /* int64_t; k, M, G = 10^3.., of tokens 2^10..; Ki, Mi, Gi = 2^10.. */
    OT_OPTION_BYTES,   /* int64_t; K, M, G, T (or KiB..) = 2^10.., KB, MB, GB, TB = 10^3.. */
    OT_OPTION_RATE,    /* double: bytes a second; K, M, G, T and KB.. = 10^3.., KiB.. = 2^10.. */
    OT_OPTION_REAL,    /* double */
    OT_OPTION_SHARE,   /* double: 0.02 or 2% */
    OT_OPTION_WARMUP,  /* struct ot_warmup: 100 (steps) or 3% (of the run) */
    OT_OPTION_EVERY,   /* struct ot_every: 100 (steps), 30s, 5m or 1h, or a word of `choices` */
    OT_OPTION_TIME,    /* double: seconds; 30s, 5m or 1h */
    OT_OPTION_DEVICE,  /* struct ot_device_choice: auto, cpu, cuda or cuda:1 */
    OT_OPTION_HOMES,   /* struct ot_homes: weights=gpu|host|nvme|auto,state=...,activations=... or one word
                          for all */
    OT_OPTION_ENGINES, /* struct ot_engine_shares: auto, one of gpu, stream, cpu, or cpu:0.6,gpu:0.4 */
    OT_OPTION_COUNTS,  /* struct ot_count_list: 2k,8k */
    OT_OPTION_SIZES,   /* struct ot_count_list, of bytes: 8G,16G */
    OT_OPTION_NVME,    /* struct ot_nvme_dirs: DIR or DIR:SIZE; given again, or in an array, one more */
    OT_OPTION_TYPE_COUNT
};

struct ot_warmup {
    int64_t steps;
    double share; /* of all steps, where steps is 0 */
};
struct ot_every { /* at most one is set; none: never, or not said */
    int64_t steps;
    double seconds;
    bool epoch;
};
struct ot_device_choice {
    enum { OT_DEVICE_AUTO, OT_DEVICE_CPU, OT_DEVICE_CUDA } kind;
    int index; /* cuda: which of the visible GPUs */
};
struct ot_homes {
    enum ot_home weights, state, activations;
};

struct ot_engine_shares { /* by enum ot_tile_engine; they add up to 1, or are all 0: auto */
    double share[OT_TILE_ENGINES];
};

enum { OT_LIST_MAX = 8 };
struct ot_count_list {
    int n;
    int64_t values[OT_LIST_MAX];
};

enum { OT_NVME_MAX_DIRS = 16, OT_NVME_PATH_BYTES = 4096 };
struct ot_nvme_dirs {
    int n;
    struct ot_nvme_dir {
        char path[OT_NVME_PATH_BYTES];
        int64_t bytes; /* that may be used there; 0: what is free, less a reserve */
    } dirs[OT_NVME_MAX_DIRS];
};

enum ot_option_section {
    OT_SECTION_INPUT,
    OT_SECTION_DATA,
    OT_SECTION_STEP,
    OT_SECTION_OPTIMIZER,
    OT_SECTION_MEMORY,
    OT_SECTION_SAFETY,
    OT_SECTION_DESCRIBED,
    OT_SECTION_TEXT,
    OT_SECTION_REPORT,
    OT_SECTION_COUNT
};

/* Whether a run may go on from its checkpoint with another value (resume.h). Each option of train says so. */
enum ot_option_on_resume {
    OT_RESUME_NOT_TRAIN,
    OT_RESUME_FREE,    /* it fixes no bit of the result */
    OT_RESUME_SAME,    /* it does: only as recorded, which is taken where nothing is given */
    OT_RESUME_CONTENT, /* what it names must have the same content, under whatever name; else as SAME */
    OT_RESUME_LENGTH   /* of the run: if no step so far would have had another learning rate; else as SAME */
};

struct ot_option {
    const char *name; /* without the dashes; also the key in a config file */
    char letter;      /* -p; '\0': none */
    enum ot_option_type type;
    const char *argument; /* what help calls the value; NULL for flags and choices */
    const char *choices;  /* "auto|bf16" */
    double min, max;      /* inclusive; of numbers */
    bool of_tokens;       /* k, M and G are powers of 2, as in sizes of memory */
    const char *fallback; /* default, parsed like any value; NULL: unset */
    const char *chosen;   /* for help: how the program chooses where the option is unset */
    unsigned commands;
    enum ot_option_on_resume on_resume;
    enum ot_option_section section;
    size_t field;          /* offset in struct ot_options */
    const char *help;      /* one or two sentences */
    const char *elsewhere; /* what other programs call it, separated by spaces: for sentences alone */
};

/* NULL past the last. Two commands may call different things by one name: then the table has a row for each.
 */
const struct ot_option *ot_option_at(int index);
/* The row of that name which the command has, else one of another command; -1: no such name. */
int ot_option_find(const char *name, size_t bytes, enum ot_command command);
const char *ot_option_section_title(enum ot_option_section section);

enum ot_option_source {
    OT_FROM_NOWHERE,
    OT_FROM_DEFAULT,
    OT_FROM_PROGRAM,    /* settings.h */
    OT_FROM_CHECKPOINT, /* as the run that is resumed has it */
    OT_FROM_FILE,
    OT_FROM_COMMAND_LINE
};
enum { OT_OPTIONS_MAX = 128 };

enum { OT_CHOICE_DTYPE_AUTO, OT_CHOICE_DTYPE_BF16, OT_CHOICE_DTYPE_FP32, OT_CHOICE_DTYPE_FP16 };
enum { OT_CHOICE_INIT_FILES, OT_CHOICE_INIT_RANDOM };
enum ot_sweep { OT_SWEEP_NONE, OT_SWEEP_TOKENS };
enum { OT_CHOICE_RECOMPUTE_AUTO, OT_CHOICE_RECOMPUTE_ALL, OT_CHOICE_RECOMPUTE_NONE };

struct ot_options {
    enum ot_command command;
    bool help, version;

    const char *dir; /* of verify and export: what they are about */
    const char *model, *data, *eval_data, *out, *tokenizer, *config;
    int init;

    const char *template_name, *prompt_format, *columns;
    bool pack, train_on_prompt, no_eos, skip_bad, show_sample;
    double eval_fraction;

    int64_t seq_len, tokens_per_step, micro_batch, epochs, steps, seed;

    double lr, weight_decay, beta1, beta2, eps, clip;
    int schedule; /* enum ot_schedule_kind */
    struct ot_warmup warmup;

    struct ot_device_choice device;
    const char *cublaslt;        /* NULL: one is looked for */
    int dtype, recompute, order; /* order: enum ot_order */
    int64_t gpu_mem, host_mem, slots, threads, optimizer_threads;
    struct ot_nvme_dirs nvme;
    int io_engine; /* enum ot_io_choice */
    bool no_io_verify;
    struct ot_homes home;
    struct ot_engine_shares optimizer_engine;

    const char *gpu; /* of described machines */
    double host_bw, pcie, nvme_read, nvme_write, price;
    int64_t ram, tokens, rows;
    bool explain, minimum, markdown;
    int sweep; /* enum ot_sweep */

    /* of bench */
    struct ot_count_list step_tokens_list, micro_batch_list, gpu_mem_list;
    const char *mix; /* names, with commas between; NULL: all */
    double minutes, time_per_point;

    const char *prompt;
    bool row, decode, no_special;
    int64_t max_new_tokens;
    double temperature, top_p;

    struct ot_every save_every;
    const char *resume; /* "auto", "never", or a directory */
    bool exact;
    int64_t keep, max_skips, max_shard_size;
    double grace, stall_limit; /* seconds; grace 0: as long as it takes */
    double skip_spikes;        /* standard deviations; 0: none are skipped */

    struct ot_every eval_every, log_every;
    const char *trace;
    bool force, no_save, no_forecast, dry_run, json, quiet;

    enum ot_option_source source[OT_OPTIONS_MAX]; /* by index in the table */
    bool repeated[OT_OPTIONS_MAX];                /* on the command line; the last one counts */
    struct ot_json *config_tree;
};

/* Parses the words after the program's name, reads --config, and refuses what contradicts or would have no
 * effect. Logs which options are given twice. With --help or --version the rest is not looked at. Errors:
 * OT_E_USAGE, or as the config file failed; `out` needs ot_options_free in either case. */
int ot_options_parse(int argc, char *const *argv, struct ot_options *out);
void ot_options_free(struct ot_options *options);

/* Said by the user, on the command line or in the config file, now or to the run that is resumed. `name` must
 * be in the table. */
bool ot_options_given(const struct ot_options *options, const char *name);

/* An object with the value of every option of the command that has one, but those that only say how it is
 * called (--config, --resume, --force, --help). As a --config FILE it repeats the run. */
void ot_options_put_json(const struct ot_options *options, const char *key, struct ot_json_writer *w);
/* Beside it, the object of who gave each of them, by the names of the options: "default", "program" (it chose
 * the value), "checkpoint", "config" or "command line". */
void ot_options_put_sources(const struct ot_options *options, const char *key, struct ot_json_writer *w);
/* run.json: the values, and in "sources" who gave them. Also a --config FILE that repeats the run. */
void ot_options_put_run(const struct ot_options *options, struct ot_json_writer *w);

/* ---- for those that work on the table itself ---- */

/* Parses `text` into the option's field. Errors: OT_E_USAGE, naming the option as `spelled`. */
int ot_option_parse_value(const struct ot_option *option, const char *spelled, const char *text,
                          struct ot_options *out);
/* The same for a value as a config file or a record has it; `key` is what sentences call it. */
int ot_option_parse_json(const struct ot_option *option, const char *key, const struct ot_json *value,
                         struct ot_options *out);
void ot_option_put_value(const struct ot_option *option, const struct ot_options *options,
                         struct ot_json_writer *w);
/* "500G" as options of bytes read it; false where it is no size. */
bool ot_option_read_size(const char *text, int64_t *bytes);
/* Back to the default, or to nothing. */
void ot_option_reset(struct ot_options *options, int index);
/* Errors: OT_E_USAGE: what the options say together cannot be, or some of it would have no effect. What the
 * command line overrules in the config file is reset. */
int ot_options_check(struct ot_options *options);
/* Without effect beside what was given: another option says the same thing in another way, or the one that it
 * is for is not there. */
bool ot_option_overruled(const struct ot_options *options, const char *name);
/* What an option of another program is here: what takes its place, or that it is not available. NULL: no such
 * option is known. */
const char *ot_option_foreign(const char *word, enum ot_command command);
/* The option that other programs call `word`, one of the command first; NULL if none. */
const struct ot_option *ot_option_called(const char *word, enum ot_command command);
/* The best guess at what was meant among n names, NULL if none is near: by edit distance, transposition
 * counting one. */
const char *ot_nearest_name(const char *word, const char *const *names, int n);
/* The table's name nearest to `word` among the options of the command (names of other programs count); NULL
 * if none. */
const char *ot_option_nearest(const char *word, enum ot_command command);

#endif
