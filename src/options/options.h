/* The option table. Parsing, --help, --config, the record of a run and the check for options without effect
 * all use this one table, so they cannot disagree.
 *
 * The value of an option is a named field of struct ot_options; the table (table_*.c) names the field. Values
 * come from the table's defaults, then from the settings of other programs (src/migrate), then from --config
 * FILE (an object with the options' names as keys, in JSON or YAML), then from the command line. Parsed
 * options are const. Values that a command chooses for the user go into struct ot_settings (settings.h).
 *
 * Strings are borrowed from argv, from the table, or from the config tree and the migration that the
 * struct owns. No
 * environment variable changes an option. One thread.
 */
#ifndef OT_OPTIONS_OPTIONS_H
#define OT_OPTIONS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offload/plan/plan.h"
#include "offload/store/io_engine.h"
#include "src/base/error.h"
#include "src/base/json.h"
#include "src/migrate/migrate.h"

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
    OT_COMMAND_MERGE,
    OT_COMMAND_QUANTIZE,
    OT_COMMAND_COMM_TEST,
    OT_COMMAND_DOWNLOAD,
    OT_COMMAND_MIGRATE,
    OT_COMMAND_WATCH,
    OT_COMMAND_REPORT,
    OT_COMMAND_COUNT
};
const char *ot_command_name(enum ot_command command);
/* Writes the names of the commands in the mask (OT_FOR_...): "train, eval". */
enum { OT_COMMAND_LIST_BYTES = 128 };
const char *ot_command_list(unsigned commands, char list[OT_COMMAND_LIST_BYTES]);

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
    OT_FOR_MERGE = 1 << OT_COMMAND_MERGE,
    OT_FOR_QUANTIZE = 1 << OT_COMMAND_QUANTIZE,
    OT_FOR_COMM_TEST = 1 << OT_COMMAND_COMM_TEST,
    OT_FOR_DOWNLOAD = 1 << OT_COMMAND_DOWNLOAD,
    OT_FOR_MIGRATE = 1 << OT_COMMAND_MIGRATE,
    OT_FOR_WATCH = 1 << OT_COMMAND_WATCH,
    OT_FOR_REPORT = 1 << OT_COMMAND_REPORT,
    OT_FOR_ALL = (1 << OT_COMMAND_COUNT) - 1
};

enum ot_option_type {
    OT_OPTION_FLAG,     /* bool: present or not; true or false in a config file */
    OT_OPTION_YES_NO,   /* bool */
    OT_OPTION_TEXT,     /* const char * */
    OT_OPTION_CHOICE,   /* int: index into `choices` */
    OT_OPTION_COUNT,    /* int64_t; k, M, G = 10^3.. (of tokens 2^10..); Ki, Mi, Gi = 2^10.. */
    OT_OPTION_BYTES,    /* int64_t; K, M, G, T (or KiB..) = 2^10.., KB, MB, GB, TB = 10^3.. */
    OT_OPTION_RATE,     /* double: bytes a second; K, M, G, T and KB.. = 10^3.., KiB.. = 2^10.. */
    OT_OPTION_REAL,     /* double */
    OT_OPTION_SHARE,    /* double: 0.02 or 2% */
    OT_OPTION_WARMUP,   /* struct ot_warmup: 100 (steps) or 3% (of the run) */
    OT_OPTION_EVERY,    /* struct ot_every: 100 (steps), 30s, 5m or 1h, or a word of `choices` */
    OT_OPTION_PATIENCE, /* struct ot_patience: 3 (evaluations), or 3,0.01 (that gain at most 0.01) */
    OT_OPTION_TIME,     /* double: seconds; 30s, 5m or 1h */
    OT_OPTION_DEVICE,   /* struct ot_device_choice: auto, cpu, cuda or cuda:1 */
    OT_OPTION_HOMES,    /* struct ot_homes: weights=gpu|host|nvme|auto,state=.., or one word for all */
    OT_OPTION_ENGINES,  /* struct ot_engine_fractions: auto, one of gpu, stream, cpu, or cpu:0.6,gpu:0.4 */
    OT_OPTION_STEP,     /* struct ot_step_tokens: 16k, or auto:8k..64k */
    OT_OPTION_COUNTS,   /* struct ot_count_list: 2k,8k */
    OT_OPTION_SIZES,    /* struct ot_count_list, of bytes: 8G,16G */
    OT_OPTION_TEXTS,    /* struct ot_texts; each repetition, or array item, adds one */
    OT_OPTION_NVME,     /* struct ot_nvme_dirs: DIR or DIR:SIZE; each repetition, or array item, adds one */
    OT_OPTION_TYPE_COUNT
};

struct ot_warmup {
    int64_t steps;
    double share; /* of all steps, where steps is 0 */
};
struct ot_every { /* at most one field is set; none: never, or not given */
    int64_t steps;
    double seconds;
    bool epoch;
};
struct ot_patience {
    int64_t evaluations; /* 0: unlimited */
    double delta;
};
struct ot_device_choice {
    enum { OT_DEVICE_AUTO, OT_DEVICE_CPU, OT_DEVICE_CUDA } kind;
    int index; /* cuda: which of the visible GPUs */
};
struct ot_homes {
    enum ot_home weights, state, activations, kept, grads, sums, cache;
};

struct ot_engine_fractions { /* by enum ot_tile_engine; the shares add up to 1; all 0: auto */
    double share[OT_TILE_ENGINES];
};

struct ot_step_tokens {
    int64_t count;       /* 0: not given; with bounds: not chosen yet */
    int64_t least, most; /* of auto:LEAST..MOST; 0: a number was given, or nothing */
};
enum { OT_STEP_MOST_RATIO = 64 }; /* of the bounds; so few candidates lie between them (run_shape.h) */

enum { OT_LIST_MAX = 8 };
struct ot_count_list {
    int n;
    int64_t values[OT_LIST_MAX];
};

enum { OT_TEXTS_MAX = 16 };
struct ot_texts {
    int n;
    const char *items[OT_TEXTS_MAX];
};

enum { OT_NVME_MAX_DIRS = 16, OT_NVME_PATH_BYTES = 4096 };
struct ot_nvme_dirs {
    int n;
    struct ot_nvme_dir {
        char path[OT_NVME_PATH_BYTES];
        int64_t bytes; /* the budget there; 0: the free space less a reserve */
    } dirs[OT_NVME_MAX_DIRS];
};

enum ot_option_section {
    OT_SECTION_INPUT,
    OT_SECTION_DATA,
    OT_SECTION_STEP,
    OT_SECTION_OBJECTIVE,
    OT_SECTION_OPTIMIZER,
    OT_SECTION_MEMORY,
    OT_SECTION_RANKS,
    OT_SECTION_SAFETY,
    OT_SECTION_DESCRIBED,
    OT_SECTION_TEXT,
    OT_SECTION_REPORT,
    OT_SECTION_COUNT
};

/* Says if a run may resume with another value (resume.h). Each option of train has such an entry.
 */
enum ot_option_on_resume {
    OT_RESUME_NOT_TRAIN,
    OT_RESUME_FREE,    /* any value: the option changes no bit of the result */
    OT_RESUME_SAME,    /* the recorded value only, which is the default on resume */
    OT_RESUME_CONTENT, /* names a file, whose content must be the same; its name may differ; else as SAME */
    OT_RESUME_CONVERT, /* another value may be given: the run goes on with it; else as SAME */
    OT_RESUME_LENGTH /* the run's length: may grow if all learning rates so far stay the same; else as SAME */
};

/* A row of the table gives the first members in this order, and then by name those that it needs. */
struct ot_option {
    const char *name; /* without the dashes; also the key in a config file */
    enum ot_option_type type;
    enum ot_option_section section;
    size_t field; /* offset in struct ot_options */
    unsigned commands;

    char letter;          /* -p; '\0': none */
    const char *argument; /* placeholder of the value in help; NULL for flags and choices */
    const char *choices;  /* "auto|bf16" */
    double min, max;      /* inclusive; for numbers */
    bool takes_number;    /* a text that a config file may give as an integer */
    bool takes_real;      /* ... and as any number */
    bool of_tokens;       /* k, M and G are powers of 1024, as in sizes of memory */
    const char *bare;     /* the value if the command line gives none; NULL: it must give one */
    const char *fallback; /* the default, parsed like any value; NULL: none */
    const char *chosen;   /* text for help: how the program chooses if the option is not given */
    enum ot_option_on_resume on_resume;
    const char *elsewhere; /* names in other programs, separated by spaces: for error sentences only */
};

/* True if each repetition on the command line, and each item of an array in a file, adds a value. */
static inline bool ot_option_repeats(const struct ot_option *option) {
    return option->type == OT_OPTION_TEXTS || option->type == OT_OPTION_NVME;
}
/* NULL past the last. If one name means different things in two commands, the table has a row for each. */
const struct ot_option *ot_option_at(int index);
/* The index of the command's row with this name, else of another command's row; -1: no such name. A '_' of
 * the name counts as '-', as other programs spell their options. */
int ot_option_find(const char *name, size_t bytes, enum ot_command command);
const char *ot_option_section_title(enum ot_option_section section);

enum ot_option_source {
    OT_FROM_NOWHERE,
    OT_FROM_DEFAULT,
    OT_FROM_PROGRAM,    /* settings.h */
    OT_FROM_CHECKPOINT, /* recorded by the run that is resumed */
    OT_FROM_FILE,
    OT_FROM_COMMAND_LINE
};
enum { OT_OPTIONS_MAX = 192 };

enum { OT_CHOICE_DTYPE_AUTO, OT_CHOICE_DTYPE_BF16, OT_CHOICE_DTYPE_FP32, OT_CHOICE_DTYPE_FP16 };
enum { OT_CHOICE_INIT_FILES, OT_CHOICE_INIT_RANDOM };
enum { OT_CHOICE_RESULT_BEST, OT_CHOICE_RESULT_LAST };
enum { OT_CHOICE_METRIC_MATCH, OT_CHOICE_METRIC_EXECUTION };
enum { OT_CHOICE_EVAL_LOSS, OT_CHOICE_EVAL_ACCURACY, OT_CHOICE_EVAL_MATCH, OT_CHOICE_EVAL_EXECUTION };
enum ot_sweep { OT_SWEEP_NONE, OT_SWEEP_TOKENS };
enum ot_sort { OT_SORT_AUTO, OT_SORT_PRICE, OT_SORT_TIME, OT_SORT_NONE };
enum {
    OT_CHOICE_TO_GPTQ4,
    OT_CHOICE_TO_GPTQ8,
    OT_CHOICE_TO_GPTQ3,
    OT_CHOICE_TO_GPTQ2,
    OT_CHOICE_TO_NF4,
    OT_CHOICE_TO_NF4_DOUBLE,
    OT_CHOICE_TO_INT8,
    OT_CHOICE_TO_MXFP4
};
enum { OT_CHOICE_MIX_BY_ROWS, OT_CHOICE_MIX_BY_TOKENS };
enum { OT_CHOICE_P2P_AUTO, OT_CHOICE_P2P_YES, OT_CHOICE_P2P_NO };
enum {
    OT_CHOICE_SHARD_AUTO,
    OT_CHOICE_SHARD_NONE,
    OT_CHOICE_SHARD_STATE,
    OT_CHOICE_SHARD_FULL,
    OT_CHOICE_SHARD_STAGES
};
enum { OT_CHOICE_SHARE_WEIGHTS_AUTO, OT_CHOICE_SHARE_WEIGHTS_YES, OT_CHOICE_SHARE_WEIGHTS_NO };
enum { OT_CHOICE_EXCHANGE_FP32, OT_CHOICE_EXCHANGE_DTYPE };
enum { OT_CHOICE_DETERMINISTIC_RUN, OT_CHOICE_DETERMINISTIC_WORLD };
enum { OT_CHOICE_FETCH_EXPERTS_AUTO, OT_CHOICE_FETCH_EXPERTS_USED, OT_CHOICE_FETCH_EXPERTS_ALL };
enum {
    OT_CHOICE_RECOMPUTE_AUTO,
    OT_CHOICE_RECOMPUTE_ALL,
    OT_CHOICE_RECOMPUTE_PRODUCTS,
    OT_CHOICE_RECOMPUTE_ELEMENTWISE,
    OT_CHOICE_RECOMPUTE_NONE
};

struct ot_options {
    enum ot_command command;
    const char *help; /* "brief", "all" or a topic; NULL: not given */
    bool version;

    const char *dir;      /* of verify, export and watch: the checkpoint, run or model directory */
    struct ot_texts data; /* files, directories, patterns: with a share, PATH:SHARE (data/mixture.h) */
    const char *model, *eval_data, *out, *tokenizer, *config;
    const char *deepspeed, *hf_args, *llamafactory, *axolotl; /* files of other programs; NULL: none */
    const char *file;                                         /* of migrate */
    int from;                                                 /* the same: enum ot_program */
    int init;
    const char *train, *freeze; /* patterns of tensors (models/selection.h); NULL: not given */
    const char *lora;           /* adapters (models/lora_spec.h); NULL: none */
    const char *add_tokens, *add_special_tokens; /* src/tokenizer/new_tokens.h; NULL: none */
    const char *reference;    /* eval: the model that an objective compares with; NULL: the base */
    const char *rope_scaling; /* models/family.h; NULL: the model's own */
    const char *adapter;      /* a directory of adapters; NULL: none */
    int base_type;            /* enum ot_base_type */

    int mix_by;
    int64_t max_rows; /* of each source; 0: all */
    int text_by;      /* enum ot_text_by */
    const char *template_name, *prompt_format, *columns;
    const char *cache; /* "auto", "never", or a directory */
    bool pack, train_on_prompt, no_eos, skip_bad, show_sample, dedup;
    double eval_fraction;

    int64_t seq_len, micro_batch, row_sections, epochs, steps, seed;
    struct ot_step_tokens tokens_per_step;

    int objective; /* enum ot_objective_kind */
    double beta, gamma, label_smoothing, sft_weight, desirable_weight, undesirable_weight;
    double z_loss, neftune;
    bool config_dropout;
    const char *router_aux_loss; /* ot_options_router_aux reads it */

    double lr, weight_decay, beta1, beta2, eps, clip;
    int schedule;       /* enum ot_schedule_kind */
    int state;          /* enum ot_state_format */
    int master_weights; /* enum ot_masters */
    struct ot_warmup warmup;

    struct ot_device_choice device;
    const char *cublaslt; /* NULL: the program searches for one */
    int dtype, recompute, fetch_experts;
    int64_t rounds; /* 0: chosen */
    int64_t shadow; /* bytes; counts only if it is given */
    int64_t gpu_mem, host_mem, slots, threads, optimizer_threads;
    struct ot_nvme_dirs nvme;
    int io_engine; /* enum ot_io_choice */
    bool no_io_verify;
    struct ot_homes home;
    struct ot_engine_fractions optimizer_engine;

    const char *gpus, *master; /* "4" or "all"; "HOST", "HOST:PORT" or ":PORT"; NULL: not given */
    int64_t nodes, node_rank;  /* nodes 0: not given; node_rank counts only if it is given */

    const char *gpu; /* plan: a described machine */
    double host_bw, pcie, nvme_read, nvme_write;
    const char *price; /* a number, "CARD=NUMBER,.." or a file; NULL: not given */
    double within;     /* seconds; 0: not given */
    int sort;          /* enum ot_sort */
    double nic;        /* bits/s */
    int p2p;
    int64_t ram, tokens, rows;
    bool explain, minimum, methods, markdown;
    int sweep; /* enum ot_sweep */

    /* of bench */
    struct ot_count_list step_tokens_list, micro_batch_list, gpu_mem_list;
    const char *mix; /* names, separated by commas; NULL: all */
    double minutes, time_per_point;

    const char *comm; /* of several ranks: "auto", a name or a path */
    double comm_timeout;
    int64_t stages; /* 0: one for each rank */
    int shard, share_weights, exchange, deterministic;
    struct ot_count_list sizes; /* of comm-test */

    const char *prompt;
    bool row, chat, decode, no_special;
    const char *system;
    int64_t max_new_tokens;
    double temperature, top_p;

    struct ot_every save_every;
    const char *resume;      /* "auto", "never", or a directory */
    const char *resume_with; /* resume_with.h; NULL: not given */
    bool exact, save_end;
    int64_t keep, max_skips, max_shard_size;
    int gguf; /* of export: index of struct ot_gguf_mixture; counts only if it is given */
    bool modelfile;
    bool best; /* of export */
    /* of quantize */
    int to;                 /* OT_CHOICE_TO_... */
    const char *group_size; /* a number, or "none" */
    bool act_order, symmetric;
    double damping;
    int64_t calibration_rows;  /* sequences */
    double grace, stall_limit; /* seconds; grace 0: no limit */
    double skip_spikes;        /* standard deviations; 0: none are skipped */

    struct ot_every eval_every, log_every;
    int eval_metric, result; /* eval_metric: as enum ot_eval_metric (src/checkpoint/eval_history.h) */
    /* --eval-generate of train, --generate of eval: rows that each evaluation answers; 0: none */
    int64_t eval_generate;
    int metric; /* OT_CHOICE_METRIC_... */
    const char *databases, *failures;
    struct ot_patience stop_early;
    const char *tensorboard, *metrics;
    struct ot_texts runs; /* of report: directories */
    double every;         /* of watch: seconds */
    bool once;            /* of watch */
    const char *trace;
    bool force, no_save, save_local, no_forecast, dry_run, json, quiet;

    enum ot_option_source source[OT_OPTIONS_MAX]; /* by index in the table */
    bool repeated[OT_OPTIONS_MAX]; /* given more than once on the command line; the last value counts */
    struct ot_json *config_tree;
    char *number_text;             /* owned: the text of an option with takes_number */
    char *changes_text;            /* owned: the values in resume_with */
    struct ot_migration migration; /* of --deepspeed, --hf-args, --llamafactory, --axolotl */
};

/* Parses the words after the program's name and reads --config. Refuses options that contradict each other or
 * would have no effect. Logs which options are given more than once. Stops at --help and --version. Errors:
 * OT_E_USAGE, or the error of the config file. Call ot_options_free on `out` also after an error. */
int ot_options_parse(int argc, char *const *argv, struct ot_options *out);
/* Finds the number of ranks of the run that the options are for; 0: nobody says it, so there is one. */
typedef int (*ot_rank_counter)(const struct ot_options *options, int *ranks);
/* The same. The files of other programs count their batches with the ranks that `count` finds. Errors: also
 * those of count. */
int ot_options_parse_ranked(int argc, char *const *argv, ot_rank_counter count, struct ot_options *out);
/* After ot_options_parse has failed: takes the options that say which rank this process is, wherever they are
 * among the words, and ignores all that is wrong. */
void ot_options_find_rank(int argc, char *const *argv, struct ot_options *out);
/* The name of the rows of --data in messages: "a.jsonl", or "a.jsonl and 2 more", which is written to text.
 * */
enum { OT_DATA_NAME_BYTES = 240 };
const char *ot_data_name(const struct ot_options *options, char text[OT_DATA_NAME_BYTES]);
void ot_options_free(struct ot_options *options);

/* True if the user gave the option: on the command line, in the config file, or to the run that is resumed.
 * `name` must be in the table. */
bool ot_options_given(const struct ot_options *options, const char *name);
/* The same, but not if only the run that is resumed was given it. */
bool ot_options_given_now(const struct ot_options *options, const char *name);

/* Writes an object with the value of every option of the command that has a value and an effect. Leaves out
 * the options that are about one call only (--config, --resume, --resume-with, --force, --help, --version).
 * As a --config FILE the object repeats the run. */
void ot_options_put_json(const struct ot_options *options, const char *key, struct ot_json_writer *w);
/* Writes an object with the source of each of these values, by option name: "command line", "config"
 * (--config FILE, or a file of another program), "checkpoint" (the run that is resumed), "program" (the
 * program chose the value) or "default". */
void ot_options_put_sources(const struct ot_options *options, const char *key, struct ot_json_writer *w);
/* Writes the members of run.json, into an object of the caller: the values, and their sources in "sources".
 * As a --config FILE it repeats the run; its members OT_RUN_RANKS and
 * OT_RUN_HISTORY, if any, are for people. */
#define OT_RUN_RANKS   "ranks"
#define OT_RUN_HISTORY "history"
void ot_options_put_run(const struct ot_options *options, struct ot_json_writer *w);

/* Logs what the settings of other programs became, in some lines: `migrate` says it for each key. */
void ot_options_note_migration(const struct ot_options *options);

/* ---- for the files of src/options, resuming, bench and migrate ---- */

/* Reads the files of other programs that the options name into options->migration, and takes its settings.
 * count: NULL: nobody says how many ranks there are. Errors: of ot_migrate, of count; OT_E_USAGE: a key is
 * refused. */
int ot_options_take_files(struct ot_options *options, ot_rank_counter count);
/* Makes the request for ot_migrate from the options: files, the length of a sequence. */
void ot_options_migrate_request(const struct ot_options *options, struct ot_migrate_request *out);
/* Takes the settings of a migration that the user does not give elsewhere. A value that its option refuses
 * makes its row a refusal. Marks rows that the user overrules. Errors: OT_E_BUDGET. */
int ot_options_take_migration(struct ot_options *options, struct ot_migration *migration);
/* Sets all options to their defaults, for a command. */
void ot_options_reset(struct ot_options *options, enum ot_command command);

/* Parses `text` into the option's field. Errors: OT_E_USAGE, naming the option as `spelled`. */
int ot_option_parse_value(const struct ot_option *option, const char *spelled, const char *text,
                          struct ot_options *out);
/* The same for a JSON value of a config file or a checkpoint's record. `key` names the value in errors. */
int ot_option_parse_json(const struct ot_option *option, const char *key, const struct ot_json *value,
                         struct ot_options *out);
void ot_option_put_value(const struct ot_option *option, const struct ot_options *options,
                         struct ot_json_writer *w);
/* Parses a size such as "500G", as OT_OPTION_BYTES does. False: not a size. */
bool ot_option_read_size(const char *text, int64_t *bytes);
/* Sets the option back to its default, or to unset if it has none. */
void ot_option_reset(struct ot_options *options, int index);
/* Checks the options against each other. Resets values of the config file that the command line overrules.
 * Errors: OT_E_USAGE: two options contradict each other, a required option is missing, or an option would
 * have no effect. */
int ot_options_check(struct ot_options *options);
/* Takes the values in --resume-with as if the command line had given them. They replace values given
 * otherwise, so that a command goes on with other values if --resume-with is added to it. Does nothing
 * without --resume-with. Errors: OT_E_USAGE (an unknown option, one that cannot change, no value),
 * OT_E_BUDGET. */
int ot_resume_with_parse(struct ot_options *options);
/* The coefficient of --router-aux-loss; 0: it is not given. of_config: that of the model's config. Errors:
 * OT_E_USAGE. */
int ot_options_router_aux(const struct ot_options *options, double of_config, double *out);
/* True if the option has no effect: an option that excludes it is given, or the option that it depends on is
 * missing. */
bool ot_option_overruled(const struct ot_options *options, const char *name);
/* The answer to the option `word` of another program: the option to use instead, or why none is needed or
 * available. NULL: the name is not known. */
const char *ot_option_foreign(const char *word);
/* The option that other programs call `word`; an option of the command wins over others. NULL if none. */
const struct ot_option *ot_option_called(const char *word, enum ot_command command);
/* The name nearest to `word` among n names, NULL if none is near. The measure is the edit distance; a swap of
 * neighbours counts as one edit. */
const char *ot_nearest_name(const char *word, const char *const *names, int n);
/* The option name nearest to `word`, options of the command first; NULL if none is near. Names of other
 * programs count too. */
const char *ot_option_nearest(const char *word, enum ot_command command);

/* ---- cures ---- */

/* Names the options that cure a failure. The engine and the kernels name its cause (src/base/error.h). */

/* The calling thread's last error sentence, followed by the cure of its cause. Valid until the thread's next
 * call. */
const char *ot_cure_text(void);

#endif
