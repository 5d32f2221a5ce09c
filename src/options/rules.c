/* Checks options against each other. Options that contradict each other, or would have no effect, are errors;
 * the program never ignores an option. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ops_compare.h"
#include "offload/plan/plan_search.h"
#include "src/base/error.h"
#include "src/base/text.h"
#include "src/options/options.h"

/* A rule between each option of `these` and each of `others`; both are names separated by spaces. */
struct rule {
    unsigned commands;
    const char *these, *others;
};

/* At most one option of each pair may be given. */
static const struct rule exclusive[] = {
    {OT_FOR_TRAIN | OT_FOR_PLAN, "steps", "epochs"},
    {OT_FOR_TRAIN | OT_FOR_QUANTIZE, "eval-data", "eval-fraction"},
    {OT_FOR_TRAIN | OT_FOR_GENERATE | OT_FOR_EVAL | OT_FOR_PLAN | OT_FOR_QUANTIZE, "template",
     "prompt-format"},
    {OT_FOR_TRAIN, "quiet", "log-every"},
    {OT_FOR_TRAIN, "no-save", "out dry-run save-every save-end keep result resume resume-with grace"},
    {OT_FOR_TRAIN, "no-forecast", "explain"},
    {OT_FOR_TOKENIZE, "model", "tokenizer"},
    {OT_FOR_GENERATE, "row", "no-special"},
    {OT_FOR_GENERATE, "chat", "row prompt json no-special"},
    {OT_FOR_PLAN, "gpu", "device"},
    {OT_FOR_PLAN, "steps", "tokens rows"},
    {OT_FOR_PLAN, "tokens", "rows"},
    {OT_FOR_PLAN, "data", "tokens rows"},
    {OT_FOR_PLAN, "ram", "host-mem"},
    {OT_FOR_PLAN, "minimum", "sweep ram gpus nodes host-mem gpu-mem nvme device home explain trace"},
    {OT_FOR_PLAN, "sweep", "tokens-per-step explain trace"},
    {OT_FOR_PLAN, "methods", "minimum sweep train freeze base-type explain trace"},
    {OT_FOR_PLAN, "markdown", "json"},
    {OT_FOR_EXPORT, "gguf", "max-shard-size"},
    {OT_FOR_MIGRATE, "hf-args", "llamafactory axolotl"}, /* train: src/options/migration.c */
    {OT_FOR_MIGRATE, "llamafactory", "axolotl"},
    {0, NULL, NULL},
};

/* Each of the first options has no effect without the second. */
static const struct rule dependent[] = {
    {OT_FOR_EVAL, "metric databases failures max-new-tokens", "generate"},
    {OT_FOR_EVAL, "reference", "objective"},
    {OT_FOR_TRAIN, "metric databases max-new-tokens", "eval-generate"},
    {OT_FOR_GENERATE, "template", "row"}, /* or --chat, see is_met */
    {OT_FOR_GENERATE, "system", "chat"},
    {OT_FOR_GENERATE, "prompt-format columns", "row"},
    {OT_FOR_GENERATE, "top-p seed", "temperature"},
    {OT_FOR_TRAIN | OT_FOR_PLAN, "force", "trace"},
    {OT_FOR_TRAIN | OT_FOR_EVAL | OT_FOR_GENERATE | OT_FOR_COMM_TEST | OT_FOR_PROBE, "node-rank", "nodes"},
    {OT_FOR_PLAN, "host-bw gpus nodes", "gpu"},
    {OT_FOR_PLAN, "p2p", "gpus"},
    {OT_FOR_PLAN, "nic", "nodes"},
    {OT_FOR_PLAN, "pcie ram", "gpu"},
    {OT_FOR_PLAN,
     "tokenizer template prompt-format columns mix-by text-by max-rows dedup pack train-on-prompt no-eos "
     "skip-bad eval-fraction eval-every seed",
     "data"},
    {OT_FOR_PLAN, "nvme-read nvme-write", "nvme"},
    {OT_FOR_EXPORT, "modelfile", "gguf"},
    {OT_FOR_MIGRATE, "from", "file"},
    {OT_FOR_QUANTIZE,
     "eval-data eval-fraction tokenizer template prompt-format columns seq-len pack train-on-prompt no-eos "
     "skip-bad text-by max-rows dedup seed calibration-rows",
     "data"},
    {OT_FOR_GENERATE | OT_FOR_EVAL | OT_FOR_BENCH, "io-engine", "nvme"},
    {OT_FOR_TRAIN | OT_FOR_GENERATE | OT_FOR_EVAL | OT_FOR_BENCH, "no-io-verify", "nvme"},
    {0, NULL, NULL},
};

enum { NAME_BYTES = 32 };

/* A walk over the pairs of options that the rules of a table name for a command. */
struct walk {
    const struct rule *rule; /* of the next pair */
    int i, j;                /* the next pair: indexes in `these` and `others` */
    char a[NAME_BYTES], b[NAME_BYTES];
};

static bool next_pair(struct walk *w, enum ot_command command) {
    const char *a, *b;
    size_t a_bytes, b_bytes;
    for (; w->rule->these; w->rule++, w->i = w->j = 0) {
        if (!(w->rule->commands & (1u << command)))
            continue;
        for (; (a = ot_words_at(w->rule->these, w->i, &a_bytes)); w->i++, w->j = 0)
            if ((b = ot_words_at(w->rule->others, w->j, &b_bytes))) {
                snprintf(w->a, sizeof w->a, "%.*s", (int)a_bytes, a);
                snprintf(w->b, sizeof w->b, "%.*s", (int)b_bytes, b);
                w->j++;
                return true;
            }
    }
    return false;
}

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

/* Options that have an effect with these objectives alone. */
static const struct {
    const char *option, *objectives;
} of_objectives[] = {{"beta", "dpo ipo simpo orpo kto"},
                     {"gamma", "simpo"},
                     {"label-smoothing", "sft dpo simpo"},
                     {"sft-weight", "dpo ipo simpo"},
                     {"desirable-weight", "kto"},
                     {"undesirable-weight", "kto"},
                     {"z-loss", "sft"},
                     {"router-aux-loss", "sft"}};
enum { N_OF_OBJECTIVES = sizeof of_objectives / sizeof *of_objectives };

static bool has_another_objective(const struct ot_options *o, const char *option) {
    for (size_t i = 0; i < N_OF_OBJECTIVES; i++)
        if (strcmp(of_objectives[i].option, option) == 0)
            return !ot_words_have(of_objectives[i].objectives,
                                  ot_objective_name((enum ot_objective_kind)o->objective));
    return false;
}

/* True if the user gave the option and did not turn it off. */
static bool is_active(const struct ot_options *options, const char *name) {
    const struct ot_option *option;
    find_option(options, name, &option);
    return ot_options_given(options, name) && !is_off(option, (const char *)options + option->field);
}

/* True if the option `a` has the option `b` that it needs. A conversation has a template too. */
static bool is_met(const struct ot_options *options, const char *a, const char *b) {
    bool template = options->command == OT_COMMAND_GENERATE && strcmp(a, "template") == 0;
    return is_active(options, b) || (template && is_active(options, "chat"));
}

/* Temperature 0 always takes the most likely token, without random numbers. */
static bool is_greedy(const struct ot_options *options) {
    return options->command == OT_COMMAND_GENERATE && options->temperature == 0;
}

static bool evaluates(const struct ot_options *options) {
    return options->eval_data || options->eval_fraction > 0;
}

bool ot_option_overruled(const struct ot_options *options, const char *name) {
    if (is_greedy(options) && (strcmp(name, "top-p") == 0 || strcmp(name, "seed") == 0))
        return true;
    if (has_another_objective(options, name))
        return true;
    if (options->command == OT_COMMAND_TRAIN && strcmp(name, "eval-metric") == 0 && !evaluates(options))
        return true;
    for (struct walk w = {.rule = dependent}; next_pair(&w, options->command);)
        if (strcmp(w.a, name) == 0 && !is_met(options, w.a, w.b))
            return true;
    for (struct walk w = {.rule = exclusive}; next_pair(&w, options->command);) {
        const char *other = strcmp(w.a, name) == 0 ? w.b : strcmp(w.b, name) == 0 ? w.a : NULL;
        if (other && !ot_options_given(options, name) && is_active(options, other))
            return true;
    }
    return false;
}

/* The command line wins over the config file: if each has one option of the pair, the file's option is
 * reset. */
static void drop_overruled(struct ot_options *options, const struct walk *pair) {
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
    for (struct walk w = {.rule = exclusive}; next_pair(&w, options->command);) {
        drop_overruled(options, &w);
        if (is_active(options, w.a) && is_active(options, w.b))
            return ot_fail(OT_E_USAGE, "--%s and --%s contradict each other; use one of them", w.a, w.b);
    }
    for (struct walk w = {.rule = dependent}; next_pair(&w, options->command);)
        if (is_active(options, w.a) && !is_met(options, w.a, w.b))
            return ot_fail(OT_E_USAGE, "--%s has no effect without --%s", w.a, w.b);
    return 0;
}

static int require(const struct ot_options *options, const char *name, const char *example) {
    if (ot_options_given(options, name))
        return 0;
    const char *command = ot_command_name(options->command);
    return ot_fail(OT_E_USAGE, "%s needs --%s, such as --%s %s (offload-train %s --help all lists options)",
                   command, name, name, example, command);
}

static int require_dir(const struct ot_options *options) {
    const char *command = ot_command_name(options->command);
    return ot_options_given(options, "dir")
               ? 0
               : ot_fail(
                     OT_E_USAGE,
                     "%s needs a directory, such as offload-train %s out/my-run (--help all lists options)",
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
    case OT_COMMAND_WATCH:
        return require_dir(options);
    case OT_COMMAND_MERGE:
        OT_TRY(require(options, "model", "out/my-adapters"));
        return require(options, "out", "my-model");
    case OT_COMMAND_EXPORT:
        OT_TRY(require_dir(options));
        return require(options, "out", "my-model");
    case OT_COMMAND_REPORT:
        OT_TRY(require_dir(options));
        return options->runs.n > 1 ? require(options, "out", "runs.html") : 0;
    case OT_COMMAND_DOWNLOAD:
        return ot_options_given(options, "data") || ot_options_given(options, "adapter")
                   ? 0
                   : require(options, "model", "Qwen/Qwen3-8B");
    case OT_COMMAND_MIGRATE:
        return options->deepspeed || options->hf_args || options->llamafactory || options->axolotl
                   ? 0
                   : require(options, "file", "ds_config.json");
    case OT_COMMAND_QUANTIZE:
        OT_TRY(require(options, "model", "out/my-model"));
        OT_TRY(require(options, "to", "gptq:4"));
        OT_TRY(require(options, "out", "my-model-gptq"));
        return options->to < OT_CHOICE_TO_NF4 ? require(options, "data", "rows.jsonl") : 0;
    default:
        return ot_options_given(options, "tokenizer") ? 0 : require(options, "model", "out/my-model");
    }
}

/* One word for all homes names them also where a command has no use for them. */
static int check_homes(const struct ot_options *o) {
    const bool trains = o->command == OT_COMMAND_TRAIN || o->command == OT_COMMAND_PLAN;
    const bool writes = o->command == OT_COMMAND_GENERATE || o->eval_generate > 0 ||
                        (o->command == OT_COMMAND_TRAIN && evaluates(o));
    const struct {
        const char *name;
        enum ot_home home;
        bool has_use;
    } all[] = {{"weights", o->home.weights, true},
               {"state", o->home.state, trains},
               {"activations", o->home.activations, trains},
               {"kept", o->home.kept, trains},
               {"grads", o->home.grads, trains},
               {"sums", o->home.sums, trains},
               {"cache", o->home.cache, writes}};
    enum { HOMES = sizeof all / sizeof *all };
    bool alike = true;
    for (int i = 0; i < HOMES; i++) {
        alike = alike && all[i].home == all[0].home;
        if (o->nvme.n == 0 && all[i].home == OT_HOME_NVME)
            return ot_fail(OT_E_USAGE, "--home %s=nvme needs --nvme DIR; DIR is a directory on a local disk",
                           all[i].name);
    }
    for (int i = 0; i < HOMES && !alike; i++)
        if (!all[i].has_use && all[i].home != OT_HOME_AUTO)
            return ot_fail(OT_E_USAGE, "--home %s=%s has no effect here: %s", all[i].name,
                           ot_tier_name((enum ot_tier)all[i].home),
                           i == HOMES - 1 ? "no text is generated" : "nothing is trained");
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
    if (o->stages > 0 && o->shard != OT_CHOICE_SHARD_STAGES)
        return ot_fail(OT_E_USAGE, "--stages has no effect without --shard stages");
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

/* Checks the step and the updates, for train and plan. */
static int check_step(const struct ot_options *o) {
    OT_TRY(check_step_tokens(o));
    if (ot_options_given(o, "slots") && o->home.weights == OT_HOME_GPU)
        return ot_fail(OT_E_USAGE, "--slots has no effect with --home weights=gpu: no weights are streamed");
    if (ot_options_given(o, "shadow") && o->shadow > 0 && o->clip == 0)
        return ot_fail(OT_E_USAGE, "--shadow has no effect with --clip 0: updates do not wait for the norm");
    return check_shares(o);
}

/* For train and eval. */
static int check_answers(const struct ot_options *o) {
    bool executes = o->metric == OT_CHOICE_METRIC_EXECUTION;
    if (o->databases && !executes)
        return ot_fail(OT_E_USAGE, "--databases has no effect without --metric execution");
    if (o->command == OT_COMMAND_EVAL)
        return 0;
    if (o->eval_metric >= OT_CHOICE_EVAL_MATCH && o->eval_generate == 0)
        return ot_fail(OT_E_USAGE, "--eval-metric %s judges answers: add --eval-generate N",
                       o->eval_metric == OT_CHOICE_EVAL_MATCH ? "match" : "execution");
    if (o->eval_metric == OT_CHOICE_EVAL_EXECUTION && !executes)
        return ot_fail(OT_E_USAGE, "--eval-metric execution needs answers that are executed: add --metric "
                                   "execution");
    return 0;
}

static int check_evaluations(const struct ot_options *o) {
    static const char *const names[] = {"eval-every", "eval-metric", "stop-early", "eval-generate"};
    bool best = o->result == OT_CHOICE_RESULT_BEST;
    for (size_t i = 0; i < sizeof names / sizeof *names && !evaluates(o); i++)
        if (ot_options_given(o, names[i]))
            return ot_fail(OT_E_USAGE, "--%s has no effect with --eval-fraction 0; add --eval-data FILE",
                           names[i]);
    if (!ot_options_given(o, "result") || !best)
        return 0;
    if (!evaluates(o))
        return ot_fail(OT_E_USAGE,
                       "--result best needs evaluations: with --eval-fraction 0, add --eval-data FILE");
    if (!o->save_every.steps && o->save_every.seconds == 0 && !o->save_every.epoch && !o->save_end)
        return ot_fail(OT_E_USAGE, "--result best needs checkpoints: leave out --save-every never");
    return 0;
}

/* Objectives that compare with a reference, which eval must be given. */
static int check_reference(const struct ot_options *o) {
    bool has = ot_objective_has_reference((enum ot_objective_kind)o->objective);
    return has || !o->reference
               ? 0
               : ot_fail(OT_E_USAGE, "--reference has no effect with --objective %s, which has none",
                         ot_objective_name((enum ot_objective_kind)o->objective));
}

static int check_objective(const struct ot_options *o) {
    const char *name = ot_objective_name((enum ot_objective_kind)o->objective);
    for (size_t i = 0; i < N_OF_OBJECTIVES; i++)
        if (ot_options_given(o, of_objectives[i].option) && !ot_words_have(of_objectives[i].objectives, name))
            return ot_fail(OT_E_USAGE, "--%s has no effect with --objective %s; it is for %s",
                           of_objectives[i].option, name, of_objectives[i].objectives);
    if (o->objective != OT_OBJECTIVE_SFT && o->label_smoothing > 0.5)
        return ot_fail(
            OT_E_USAGE,
            "--label-smoothing is %g, and at most 0.5 with --objective %s: with more, most answers "
            "would count as exchanged",
            o->label_smoothing, name);
    if (o->objective != OT_OBJECTIVE_SFT && o->train_on_prompt)
        return ot_fail(
            OT_E_USAGE,
            "--train-on-prompt and --objective %s contradict each other: answers are compared, not "
            "prompts",
            name);
    return 0;
}

int ot_options_router_aux(const struct ot_options *o, double of_config, double *out) {
    const char *text = o->router_aux_loss;
    char *end;
    *out = !text ? 0 : strcmp(text, "config") == 0 ? of_config : strtod(text, &end);
    if (!text || strcmp(text, "config") == 0)
        return 0;
    if (end == text || *end || !(*out >= 0 && *out <= 1e3))
        return ot_fail(OT_E_USAGE,
                       "--router-aux-loss is '%s'; it takes a number from 0 to 1000, or none for that of the "
                       "model's config",
                       text);
    return 0;
}

static int check_eval(const struct ot_options *o) {
    OT_TRY(check_objective(o));
    if (o->objective == OT_OBJECTIVE_SFT && o->label_smoothing > 0)
        return ot_fail(OT_E_USAGE, "--label-smoothing has no effect here: evaluations of sft use none");
    OT_TRY(check_reference(o));
    return check_answers(o);
}

static int check_train(const struct ot_options *o) {
    double router_aux;
    OT_TRY(check_objective(o));
    OT_TRY(ot_options_router_aux(o, 0, &router_aux));
    if (o->steps > 0 && o->warmup.steps > o->steps)
        return ot_fail(OT_E_USAGE, "--warmup %lld is longer than the run (--steps %lld)",
                       (long long)o->warmup.steps, (long long)o->steps);
    OT_TRY(check_evaluations(o));
    OT_TRY(check_answers(o));
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
    if (ot_options_given(o, "epochs") && !o->tokens && !o->rows && !o->data.n)
        return ot_fail(
            OT_E_USAGE,
            "--epochs has no effect without --data, --tokens or --rows, which give the length of an epoch");
    if (ot_options_given(o, "eval-every") && o->eval_fraction == 0)
        return ot_fail(OT_E_USAGE, "--eval-every has no effect with --eval-fraction 0");
    if (o->within > 0 && !o->steps && !o->tokens && !o->rows && !o->data.n)
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
    OT_TRY(check_sharing(options));
    OT_TRY(check_homes(options));
    if (options->command == OT_COMMAND_TRAIN)
        return check_train(options);
    if (options->command == OT_COMMAND_EVAL)
        return check_eval(options);
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
