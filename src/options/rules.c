/* Checks options against each other. Options that contradict each other, or would have no effect, are errors;
 * the program never ignores an option. */
#include <stdio.h>
#include <string.h>

#include "offload/plan/plan_search.h"
#include "src/base/error.h"
#include "src/base/text.h"
#include "src/options/options.h"

struct pair {
    unsigned commands;
    const char *a, *b;
};

/* At most one option of each pair may be given. */
static const struct pair exclusive[] = {
    {OT_FOR_TRAIN | OT_FOR_PLAN, "steps", "epochs"},
    {OT_FOR_TRAIN | OT_FOR_QUANTIZE, "eval-data", "eval-fraction"},
    {OT_FOR_TRAIN | OT_FOR_GENERATE | OT_FOR_EVAL | OT_FOR_PLAN | OT_FOR_QUANTIZE, "template",
     "prompt-format"},
    {OT_FOR_TRAIN, "quiet", "log-every"},
    {OT_FOR_TRAIN, "no-save", "out"},
    {OT_FOR_TRAIN, "no-save", "dry-run"},
    {OT_FOR_TRAIN, "no-save", "save-every"},
    {OT_FOR_TRAIN, "no-save", "keep"},
    {OT_FOR_TRAIN, "no-save", "result"},
    {OT_FOR_TRAIN, "no-save", "resume"},
    {OT_FOR_TRAIN, "no-save", "grace"},
    {OT_FOR_TRAIN, "no-forecast", "explain"},
    {OT_FOR_TOKENIZE, "model", "tokenizer"},
    {OT_FOR_GENERATE, "row", "no-special"},
    {OT_FOR_GENERATE, "chat", "row"},
    {OT_FOR_GENERATE, "chat", "prompt"},
    {OT_FOR_GENERATE, "chat", "json"},
    {OT_FOR_GENERATE, "chat", "no-special"},
    {OT_FOR_PLAN, "gpu", "device"},
    {OT_FOR_PLAN, "steps", "tokens"},
    {OT_FOR_PLAN, "steps", "rows"},
    {OT_FOR_PLAN, "tokens", "rows"},
    {OT_FOR_PLAN, "data", "tokens"},
    {OT_FOR_PLAN, "data", "rows"},
    {OT_FOR_PLAN, "ram", "host-mem"},
    {OT_FOR_PLAN, "minimum", "sweep"},
    {OT_FOR_PLAN, "minimum", "ram"},
    {OT_FOR_PLAN, "minimum", "gpus"},
    {OT_FOR_PLAN, "minimum", "nodes"},
    {OT_FOR_PLAN, "minimum", "host-mem"},
    {OT_FOR_PLAN, "minimum", "gpu-mem"},
    {OT_FOR_PLAN, "minimum", "nvme"},
    {OT_FOR_PLAN, "minimum", "device"},
    {OT_FOR_PLAN, "minimum", "home"},
    {OT_FOR_PLAN, "minimum", "explain"},
    {OT_FOR_PLAN, "minimum", "trace"},
    {OT_FOR_PLAN, "sweep", "tokens-per-step"},
    {OT_FOR_PLAN, "sweep", "explain"},
    {OT_FOR_PLAN, "sweep", "trace"},
    {OT_FOR_PLAN, "methods", "minimum"},
    {OT_FOR_PLAN, "methods", "sweep"},
    {OT_FOR_PLAN, "methods", "train"},
    {OT_FOR_PLAN, "methods", "freeze"},
    {OT_FOR_PLAN, "methods", "base-type"},
    {OT_FOR_PLAN, "methods", "explain"},
    {OT_FOR_PLAN, "methods", "trace"},
    {OT_FOR_PLAN, "markdown", "json"},
    {OT_FOR_EXPORT, "gguf", "max-shard-size"},
};

/* `a` has no effect without `b`. */
static const struct pair dependent[] = {
    {OT_FOR_GENERATE, "template", "row"}, /* or --chat, see is_met */
    {OT_FOR_GENERATE, "system", "chat"},
    {OT_FOR_GENERATE, "prompt-format", "row"},
    {OT_FOR_GENERATE, "columns", "row"},
    {OT_FOR_GENERATE, "top-p", "temperature"},
    {OT_FOR_GENERATE, "seed", "temperature"},
    {OT_FOR_TRAIN | OT_FOR_PLAN, "force", "trace"},
    {OT_FOR_TRAIN | OT_FOR_COMM_TEST | OT_FOR_PROBE, "node-rank", "nodes"},
    {OT_FOR_PLAN, "host-bw", "gpu"},
    {OT_FOR_PLAN, "gpus", "gpu"},
    {OT_FOR_PLAN, "nodes", "gpu"},
    {OT_FOR_PLAN, "p2p", "gpus"},
    {OT_FOR_PLAN, "nic", "nodes"},
    {OT_FOR_PLAN, "pcie", "gpu"},
    {OT_FOR_PLAN, "ram", "gpu"},
    {OT_FOR_PLAN, "tokenizer", "data"},
    {OT_FOR_PLAN, "template", "data"},
    {OT_FOR_PLAN, "prompt-format", "data"},
    {OT_FOR_PLAN, "columns", "data"},
    {OT_FOR_PLAN, "pack", "data"},
    {OT_FOR_PLAN, "train-on-prompt", "data"},
    {OT_FOR_PLAN, "no-eos", "data"},
    {OT_FOR_PLAN, "skip-bad", "data"},
    {OT_FOR_PLAN, "eval-fraction", "data"},
    {OT_FOR_PLAN, "seed", "data"},
    {OT_FOR_PLAN, "nvme-read", "nvme"},
    {OT_FOR_PLAN, "nvme-write", "nvme"},
    {OT_FOR_EXPORT, "modelfile", "gguf"},
    {OT_FOR_QUANTIZE, "eval-data", "data"},
    {OT_FOR_QUANTIZE, "eval-fraction", "data"},
    {OT_FOR_QUANTIZE, "tokenizer", "data"},
    {OT_FOR_QUANTIZE, "template", "data"},
    {OT_FOR_QUANTIZE, "prompt-format", "data"},
    {OT_FOR_QUANTIZE, "columns", "data"},
    {OT_FOR_QUANTIZE, "seq-len", "data"},
    {OT_FOR_QUANTIZE, "pack", "data"},
    {OT_FOR_QUANTIZE, "train-on-prompt", "data"},
    {OT_FOR_QUANTIZE, "no-eos", "data"},
    {OT_FOR_QUANTIZE, "skip-bad", "data"},
    {OT_FOR_QUANTIZE, "seed", "data"},
    {OT_FOR_QUANTIZE, "calibration-rows", "data"},
    {OT_FOR_GENERATE | OT_FOR_EVAL | OT_FOR_BENCH, "io-engine", "nvme"},
    {OT_FOR_TRAIN | OT_FOR_GENERATE | OT_FOR_EVAL | OT_FOR_BENCH, "no-io-verify", "nvme"},
};

enum {
    EXCLUSIVE_PAIRS = sizeof exclusive / sizeof *exclusive,
    DEPENDENT_PAIRS = sizeof dependent / sizeof *dependent
};

static int find_option(const struct ot_options *options, const char *name, const struct ot_option **out) {
    int index = ot_option_find(name, strlen(name), options->command);
    *out = ot_option_at(index);
    return index;
}

/* True if the value turns the option off: a flag with "no", an interval of "never", a share of 0. */
static bool is_off(const struct ot_option *option, const void *field) {
    const struct ot_every *every = field;
    switch (option->type) {
    case OT_OPTION_FLAG:
        return !*(const bool *)field;
    case OT_OPTION_EVERY:
        return every->steps == 0 && every->seconds == 0 && !every->epoch;
    case OT_OPTION_SHARE:
        return *(const double *)field == 0;
    case OT_OPTION_CHOICE:
        return strcmp(option->name, "sweep") == 0 && *(const int *)field == OT_SWEEP_NONE;
    case OT_OPTION_TEXT:
        return strcmp(option->name, "resume") == 0 && strcmp(*(const char *const *)field, "never") == 0;
    default:
        return false;
    }
}

/* True if the user gave the option and did not turn it off. */
static bool is_active(const struct ot_options *options, const char *name) {
    const struct ot_option *option;
    find_option(options, name, &option);
    return ot_options_given(options, name) && !is_off(option, (const char *)options + option->field);
}

/* A conversation has a template too. */
static bool is_met(const struct ot_options *options, const struct pair *pair) {
    bool template = options->command == OT_COMMAND_GENERATE && strcmp(pair->a, "template") == 0;
    return is_active(options, pair->b) || (template && is_active(options, "chat"));
}

/* Temperature 0 always takes the most likely token, without random numbers. */
static bool is_greedy(const struct ot_options *options) {
    return options->command == OT_COMMAND_GENERATE && options->temperature == 0;
}

bool ot_option_overruled(const struct ot_options *options, const char *name) {
    if (is_greedy(options) && (strcmp(name, "top-p") == 0 || strcmp(name, "seed") == 0))
        return true;
    for (int i = 0; i < DEPENDENT_PAIRS; i++)
        if (strcmp(dependent[i].a, name) == 0 && (dependent[i].commands & (1u << options->command)) &&
            !is_met(options, &dependent[i]))
            return true;
    for (int i = 0; i < EXCLUSIVE_PAIRS; i++) {
        const char *other = strcmp(exclusive[i].a, name) == 0   ? exclusive[i].b
                            : strcmp(exclusive[i].b, name) == 0 ? exclusive[i].a
                                                                : NULL;
        if (other && (exclusive[i].commands & (1u << options->command)) && !ot_options_given(options, name) &&
            is_active(options, other))
            return true;
    }
    return false;
}

/* The command line wins over the config file: if each has one option of the pair, the file's option is
 * reset. */
static void drop_overruled(struct ot_options *options, const struct pair *pair) {
    const struct ot_option *a, *b;
    int a_index = find_option(options, pair->a, &a), b_index = find_option(options, pair->b, &b);
    bool a_wins =
        options->source[a_index] == OT_FROM_COMMAND_LINE && options->source[b_index] == OT_FROM_FILE;
    bool b_wins =
        options->source[b_index] == OT_FROM_COMMAND_LINE && options->source[a_index] == OT_FROM_FILE;
    if (a_wins)
        ot_option_reset(options, b_index);
    if (b_wins)
        ot_option_reset(options, a_index);
}

static int check_pairs(struct ot_options *options) {
    for (int i = 0; i < EXCLUSIVE_PAIRS; i++) {
        const struct pair *pair = &exclusive[i];
        if (!(pair->commands & (1u << options->command)))
            continue;
        drop_overruled(options, pair);
        if (is_active(options, pair->a) && is_active(options, pair->b))
            return ot_fail(OT_E_USAGE, "--%s and --%s contradict each other; use one of them", pair->a,
                           pair->b);
    }
    for (int i = 0; i < DEPENDENT_PAIRS; i++) {
        const struct pair *pair = &dependent[i];
        if ((pair->commands & (1u << options->command)) && is_active(options, pair->a) &&
            !is_met(options, pair))
            return ot_fail(OT_E_USAGE, "--%s has no effect without --%s", pair->a, pair->b);
    }
    return 0;
}

static int require(const struct ot_options *options, const char *name, const char *example) {
    if (ot_options_given(options, name))
        return 0;
    const char *command = ot_command_name(options->command);
    return ot_fail(OT_E_USAGE, "%s needs --%s, such as --%s %s (offload-train %s --help lists all options)",
                   command, name, name, example, command);
}

static int require_dir(const struct ot_options *options) {
    const char *command = ot_command_name(options->command);
    return ot_options_given(options, "dir")
               ? 0
               : ot_fail(
                     OT_E_USAGE,
                     "%s needs a directory, such as offload-train %s out/my-run (--help lists all options)",
                     command, command);
}

/* plan --gpu list */
static bool is_list(const struct ot_options *options) {
    return options->gpu && strcmp(options->gpu, "list") == 0;
}

static int check_required(const struct ot_options *options) {
    switch (options->command) {
    case OT_COMMAND_TRAIN:
        OT_TRY(require(options, "model", "tinyllama-1.1b"));
        return require(options, "data", "rows.jsonl");
    case OT_COMMAND_EVAL:
        OT_TRY(require(options, "model", "out/my-model"));
        return require(options, "data", "rows.jsonl");
    case OT_COMMAND_GENERATE:
        return require(options, "model", "out/my-model");
    case OT_COMMAND_PROBE:
    case OT_COMMAND_COMM_TEST:
        return 0;
    case OT_COMMAND_PLAN:
        return is_list(options) ? 0 : require(options, "model", "llama-7b");
    case OT_COMMAND_BENCH:
        return require(options, "model", "tinyllama-1.1b");
    case OT_COMMAND_VERIFY:
        return require_dir(options);
    case OT_COMMAND_MERGE:
        OT_TRY(require(options, "model", "out/my-adapters"));
        return require(options, "out", "my-model");
    case OT_COMMAND_EXPORT:
        OT_TRY(require_dir(options));
        return require(options, "out", "my-model");
    case OT_COMMAND_QUANTIZE:
        OT_TRY(require(options, "model", "out/my-model"));
        OT_TRY(require(options, "to", "gptq:4"));
        OT_TRY(require(options, "out", "my-model-gptq"));
        return options->to < OT_CHOICE_TO_NF4 ? require(options, "data", "rows.jsonl") : 0;
    default:
        return ot_options_given(options, "tokenizer") ? 0 : require(options, "model", "out/my-model");
    }
}

static int check_homes(const struct ot_options *o) {
    const struct {
        const char *name;
        enum ot_home home;
    } all[] = {{"weights", o->home.weights}, {"state", o->home.state}, {"activations", o->home.activations},
               {"kept", o->home.kept},       {"grads", o->home.grads}, {"sums", o->home.sums}};
    for (size_t i = 0; o->nvme.n == 0 && i < sizeof all / sizeof *all; i++)
        if (all[i].home == OT_HOME_NVME)
            return ot_fail(OT_E_USAGE, "--home %s=nvme needs --nvme DIR; DIR is a directory on a local disk",
                           all[i].name);
    return 0;
}

/* Parsing has checked that the shares add up to 1. Here only the home of the state can be wrong. */
static int check_shares(const struct ot_options *o) {
    int rc = ot_plan_check_fractions(o->optimizer_engine.share, o->home.state);
    return rc < 0 ? ot_fail(OT_E_USAGE,
                            "--optimizer-engine and --home contradict each other: %s; use one of them",
                            ot_error_text())
                  : 0;
}

static int check_sharing(const struct ot_options *o) {
    if (o->share_weights != OT_CHOICE_SHARE_WEIGHTS_YES)
        return 0;
    static const char *const others[] = {[OT_CHOICE_SHARD_NONE] = "none",
                                         [OT_CHOICE_SHARD_STATE] = "state",
                                         [OT_CHOICE_SHARD_FULL] = NULL,
                                         [OT_CHOICE_SHARD_STAGES] = "stages"};
    if (others[o->shard])
        return ot_fail(OT_E_USAGE,
                       "--share-weights yes and --shard %s contradict each other; use --shard full",
                       others[o->shard]);
    if (o->home.weights == OT_HOME_GPU || o->home.weights == OT_HOME_NVME)
        return ot_fail(OT_E_USAGE,
                       "--share-weights yes and --home weights=%s contradict each other; ranks share "
                       "weights in RAM",
                       ot_tier_name((enum ot_tier)o->home.weights));
    return 0;
}

static int check_step_tokens(const struct ot_options *o) {
    const struct ot_step_tokens *step = &o->tokens_per_step;
    int64_t most = step->count > 0 ? step->count : step->most;
    if (most > 0 && most < o->seq_len)
        return ot_fail(OT_E_USAGE, "--tokens-per-step %s%lld is less than one sequence (--seq-len %lld)",
                       step->count > 0 ? "" : "auto: MAX ", (long long)most, (long long)o->seq_len);
    if (step->most == 0)
        return 0;
    if (o->no_forecast)
        return ot_fail(OT_E_USAGE, "--tokens-per-step auto needs the forecast; give a number, or leave out "
                                   "--no-forecast");
    if (o->minimum)
        return ot_fail(OT_E_USAGE, "--minimum needs one step; give --tokens-per-step a number");
    if (o->deterministic == OT_CHOICE_DETERMINISTIC_WORLD)
        return ot_fail(OT_E_USAGE,
                       "--tokens-per-step auto and --deterministic world contradict each other: the choice "
                       "depends on the number of ranks; give a number");
    return 0;
}

/* Checks the step and the homes, for train and plan. */
static int check_step(const struct ot_options *o) {
    OT_TRY(check_step_tokens(o));
    if (ot_options_given(o, "slots") && o->home.weights == OT_HOME_GPU)
        return ot_fail(OT_E_USAGE, "--slots has no effect with --home weights=gpu: no weights are streamed");
    if (ot_options_given(o, "shadow") && o->shadow > 0 && o->clip == 0)
        return ot_fail(OT_E_USAGE, "--shadow has no effect with --clip 0: updates do not wait for the norm");
    OT_TRY(check_homes(o));
    OT_TRY(check_sharing(o));
    return check_shares(o);
}

static int check_evaluations(const struct ot_options *o) {
    static const char *const names[] = {"eval-every", "eval-metric", "stop-early"};
    bool evaluates = o->eval_data || o->eval_fraction > 0, best = o->result == OT_CHOICE_RESULT_BEST;
    for (size_t i = 0; i < sizeof names / sizeof *names && !evaluates; i++)
        if (ot_options_given(o, names[i]))
            return ot_fail(OT_E_USAGE, "--%s has no effect with --eval-fraction 0; add --eval-data FILE",
                           names[i]);
    if (!ot_options_given(o, "result") || !best)
        return 0;
    if (!evaluates)
        return ot_fail(OT_E_USAGE,
                       "--result best needs evaluations: with --eval-fraction 0, add --eval-data FILE");
    if (!o->save_every.steps && o->save_every.seconds == 0 && !o->save_every.epoch)
        return ot_fail(OT_E_USAGE, "--result best needs checkpoints: leave out --save-every never");
    return 0;
}

static int check_train(const struct ot_options *o) {
    if (o->steps > 0 && o->warmup.steps > o->steps)
        return ot_fail(OT_E_USAGE, "--warmup %lld is longer than the run (--steps %lld)",
                       (long long)o->warmup.steps, (long long)o->steps);
    OT_TRY(check_evaluations(o));
    if (o->master && strcmp(o->master, "none") == 0)
        return ot_fail(OT_E_USAGE, "--master is the address of rank 0; to train bf16 weights without fp32 "
                                   "masters, give --master-weights none");
    if (o->lora && o->init == OT_CHOICE_INIT_RANDOM && !o->no_save)
        return ot_fail(OT_E_USAGE,
                       "--lora saves adapters alone, and --init random makes a base that no other run "
                       "has; leave out one of them, or add --no-save");
    if (o->skip_spikes > 0 && o->clip == 0)
        return ot_fail(OT_E_USAGE,
                       "--skip-spikes needs clipping; with --clip 0, updates begin before the loss is known");
    OT_TRY(check_step(o));
    const double *share = o->optimizer_engine.share;
    if (ot_options_given(o, "optimizer-threads") && share[OT_TILE_GPU] + share[OT_TILE_STREAM] > 0 &&
        share[OT_TILE_CPU] == 0)
        return ot_fail(OT_E_USAGE,
                       "--optimizer-threads has no effect if --optimizer-engine does not include cpu");
    return 0;
}

static int check_plan(const struct ot_options *o) {
    const struct ot_option *option;
    for (int i = 0; is_list(o) && (option = ot_option_at(i)); i++)
        if (!ot_words_have("gpu json config quiet", option->name) && ot_options_given(o, option->name))
            return ot_fail(OT_E_USAGE, "--gpu list shows the cards and plans nothing; remove --%s",
                           option->name);
    if (ot_options_given(o, "epochs") && !o->tokens && !o->rows && !o->data)
        return ot_fail(
            OT_E_USAGE,
            "--epochs has no effect without --data, --tokens or --rows, which give the length of an epoch");
    if (o->within > 0 && !o->steps && !o->tokens && !o->rows && !o->data)
        return ot_fail(OT_E_USAGE,
                       "--within needs the length of the run: --steps, or --tokens, --rows or --data");
    return check_step(o);
}

static int check_bench(const struct ot_options *o) {
    for (int i = 0; i < o->step_tokens_list.n; i++)
        if (o->step_tokens_list.values[i] < o->seq_len)
            return ot_fail(OT_E_USAGE, "--tokens-per-step %lld is less than one sequence (--seq-len %lld)",
                           (long long)o->step_tokens_list.values[i], (long long)o->seq_len);
    if (o->time_per_point > o->minutes * 60)
        return ot_fail(OT_E_USAGE, "--time-per-point %g s is longer than the whole bench (--minutes %g)",
                       o->time_per_point, o->minutes);
    return 0;
}

/* nf4, int8 and mxfp4 take each weight by itself. */
static int check_quantize(const struct ot_options *o) {
    static const char *const of_gptq[] = {"group-size", "act-order", "damping", "symmetric"};
    for (size_t i = 0; o->to >= OT_CHOICE_TO_NF4 && i < sizeof of_gptq / sizeof *of_gptq; i++)
        if (ot_options_given(o, of_gptq[i]))
            return ot_fail(OT_E_USAGE, "--%s has an effect with --to gptq:BITS only", of_gptq[i]);
    return 0;
}

int ot_options_check(struct ot_options *options) {
    OT_TRY(check_pairs(options));
    OT_TRY(check_required(options));
    if (options->command == OT_COMMAND_TRAIN)
        return check_train(options);
    if (options->command == OT_COMMAND_PLAN)
        return check_plan(options);
    if (options->command == OT_COMMAND_BENCH)
        return check_bench(options);
    if (options->command == OT_COMMAND_QUANTIZE)
        return check_quantize(options);
    if (is_greedy(options) && ot_options_given(options, "temperature") &&
        (ot_options_given(options, "top-p") || ot_options_given(options, "seed")))
        return ot_fail(OT_E_USAGE, "--top-p and --seed have no effect with --temperature 0, which always "
                                   "takes the most likely token");
    return 0;
}
