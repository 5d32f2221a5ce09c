#include "src/session/plan_request.h"

#include <stdio.h>
#include <string.h>

#include "models/encoded.h"
#include "models/selection.h"
#include "offload/plan/stages.h"
#include "offload/plan/used_parts.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

static int keep_of(const struct ot_options *o) {
    static const int levels[] = {[OT_CHOICE_RECOMPUTE_AUTO] = OT_KEEP_CHOSEN,
                                 [OT_CHOICE_RECOMPUTE_ALL] = OT_KEEP_NONE,
                                 [OT_CHOICE_RECOMPUTE_PRODUCTS] = OT_KEEP_ATTENTION,
                                 [OT_CHOICE_RECOMPUTE_ELEMENTWISE] = OT_KEEP_PRODUCTS,
                                 [OT_CHOICE_RECOMPUTE_NONE] = OT_KEEP_ALL};
    return levels[o->recompute];
}

struct ot_plan_request ot_plan_request_of(const struct ot_options *o) {
    struct ot_plan_request request = {
        .clip = o->clip > 0,
        .weights = o->home.weights,
        .state = o->home.state,
        .grads = o->home.grads,
        .sums = o->home.sums,
        .activations = o->home.activations,
        .slots = (int)o->slots,
        .keep = keep_of(o),
        .kept = o->home.kept,
        .cache = o->home.cache,
        .rounds = (int)o->rounds,
        .shadows = OT_SHADOWS_CHOSEN,
        .fetch = (enum ot_fetch_choice)o->fetch_experts,
    };
    if (ot_options_given(o, "shadow")) {
        request.shadows = o->shadow > 0;
        request.shadow_bytes = (size_t)o->shadow;
    }
    memcpy(request.fractions, o->optimizer_engine.share, sizeof request.fractions);
    return request;
}

struct ot_selection ot_plan_request_selection(const struct ot_options *o) {
    bool trains = o->command != OT_COMMAND_EVAL && o->command != OT_COMMAND_GENERATE;
    bool selects = o->train || o->freeze || o->lora;
    return (struct ot_selection){.train = o->train,
                                 .freeze = o->freeze,
                                 .lora = o->lora,
                                 .trains_nothing = !trains && !selects && o->base_type != OT_BASE_AUTO,
                                 .base = (enum ot_base_type)o->base_type};
}

/* Checks --base-type against the dtype of the run. */
static int check_base(const struct ot_options *o, enum ot_dtype dtype) {
    enum ot_weight_format base = ot_base_format((enum ot_base_type)o->base_type, dtype);
    bool smaller = !ot_weight_is_plain(base) || ot_dtype_bytes((enum ot_dtype)base) < ot_dtype_bytes(dtype);
    return smaller || base == (enum ot_weight_format)dtype
               ? 0
               : ot_fail(OT_E_USAGE,
                         "--base-type %s: weights are computed in %s here, which is no larger; leave out "
                         "--base-type, or add --dtype fp32",
                         ot_weight_format_name(base), ot_dtype_name(dtype));
}

/* Refuses a choice of --fetch-experts that changes nothing. */
static int check_experts(const struct ot_options *o, const struct ot_model *model) {
    if (o->fetch_experts != OT_FETCH_CHOSEN && ot_model_get_config(model)->n_experts == 0)
        return ot_fail(OT_E_USAGE, "--fetch-experts has no effect here: the model has no experts");
    return 0;
}

int ot_plan_request_check_fetch(const struct ot_options *o, const struct ot_chain *chain,
                                const struct ot_plan *plan) {
    static const char *const cures[OT_WHOLE_CAUSES] = {
        [OT_WHOLE_GATHERED] =
            "ranks gather whole layers from each other; add --share-weights yes or --shard none",
        [OT_WHOLE_STREAMED] =
            "the stream engine updates a part of every layer of experts; add --optimizer-engine cpu",
        [OT_WHOLE_KEPT] = "what layers keep for backward leaves the GPU through fewer buffers than there are "
                          "micro-batches; add --recompute all",
    };
    enum ot_whole_cause cause = ot_plan_whole_cause(chain, plan);
    return o->fetch_experts == OT_FETCH_USED_PARTS && cause != OT_WHOLE_NOT
               ? ot_fail(OT_E_USAGE,
                         "--fetch-experts used has no effect here: %s, or leave out --fetch-experts",
                         cures[cause])
               : 0;
}

/* Refuses a --base-type that changes nothing, because no matrix of a layer is frozen. The patterns of a run
 * that is resumed are known only now, so this is no rule of the options. */
static int check_effect(const struct ot_options *o, const struct ot_model *model) {
    enum ot_dtype dtype = ot_model_chain(model)->dtype;
    bool same = ot_base_format((enum ot_base_type)o->base_type, dtype) == (enum ot_weight_format)dtype;
    if (o->base_type == OT_BASE_AUTO)
        return 0;
    if (!ot_model_has_frozen(model))
        return ot_fail(OT_E_USAGE,
                       "--base-type is the format of frozen weights, and nothing is frozen here; add "
                       "--lora, --train WHAT or --freeze WHAT");
    return same || ot_model_has_encoded(model)
               ? 0
               : ot_fail(OT_E_USAGE, "--base-type has no effect here: it is the format of the layers' frozen "
                                     "matrices, and --train and --freeze leave none frozen");
}

static int check_dropout(const struct ot_options *o, const struct ot_model_config *c) {
    float most = ot_model_most_dropout(c);
    if (o->config_dropout && most == 0)
        return ot_fail(OT_E_USAGE, "--config-dropout has no effect here: the model's config has no dropout");
    if (o->config_dropout && most > 0.999f)
        return ot_fail(OT_E_USAGE,
                       "--config-dropout: the model's config has a dropout of %g, which leaves "
                       "nothing to learn; the most is 0.999",
                       (double)most);
    return 0;
}

int ot_plan_request_regular(const struct ot_options *o, const struct ot_model_config *config,
                            struct ot_regular *out) {
    double balance;
    OT_TRY(ot_options_router_aux(o, config->router_aux, &balance));
    int64_t layers = 0;
    for (int64_t l = 0; l < config->n_layers; l++)
        layers += ot_model_layer_has_experts(config, l);
    if (o->router_aux_loss && layers == 0)
        return ot_fail(OT_E_USAGE, "--router-aux-loss has no effect here: the model has no experts");
    if (config->asks_balance && !o->router_aux_loss && o->command == OT_COMMAND_TRAIN)
        return ot_fail(OT_E_USAGE,
                       "output_router_logits of config.json is true, so transformers trains with a "
                       "balancing loss: add --router-aux-loss, or --router-aux-loss 0 for none");
    if (o->router_aux_loss && balance == 0 && !config->asks_balance)
        return ot_fail(OT_E_USAGE, "--router-aux-loss has no effect here: its coefficient is 0; give one, "
                                   "such as --router-aux-loss 0.001");
    if (o->neftune > 0 && ot_model_has_pairs(config))
        return ot_fail(OT_E_USAGE, "--neftune is not available for an encoder-decoder: transformers adds the "
                                   "noise to a module that neither of its stacks reads");
    OT_TRY(check_dropout(o, config));
    *out = (struct ot_regular){.neftune = (float)o->neftune, .z_loss = (float)o->z_loss};
    out->label_smoothing = o->objective == OT_OBJECTIVE_SFT ? (float)o->label_smoothing : 0;
    out->balance = (float)balance;
    out->dropout = o->config_dropout;
    return 0;
}

int ot_plan_request_model(const struct ot_options *o, const struct ot_model_config *config,
                          enum ot_dtype dtype, int64_t max_position, struct ot_model **out) {
    const struct ot_selection selection = ot_plan_request_selection(o);
    struct ot_regular regular;
    OT_TRY(ot_plan_request_regular(o, config, &regular));
    OT_TRY(check_base(o, dtype));
    if (o->master_weights == OT_MASTERS_NONE && dtype != OT_BF16)
        return ot_fail(
            OT_E_USAGE,
            "--master-weights none: weights are %s here, and only bf16 weights are trained without "
            "masters; add --dtype bf16, or leave out --master-weights",
            ot_dtype_name(dtype));
    OT_TRY(ot_model_open_selected(config, dtype, max_position, &selection, out));
    int rc = check_effect(o, *out);
    if (rc >= 0)
        rc = check_experts(o, *out);
    if (rc < 0) {
        ot_model_close(*out);
        *out = NULL;
        return rc;
    }
    ot_model_set_state(*out, (enum ot_state_format)o->state, (enum ot_masters)o->master_weights);
    ot_model_set_compares(*out, o->objective != OT_OBJECTIVE_SFT);
    ot_model_set_regular(*out, &regular);
    return 0;
}

struct ot_objective ot_plan_request_objective(const struct ot_options *o) {
    return (struct ot_objective){.kind = (enum ot_objective_kind)o->objective,
                                 .beta = o->beta,
                                 .smoothing = o->label_smoothing,
                                 .gamma = o->gamma,
                                 .sft_weight = o->sft_weight,
                                 .weights = {o->desirable_weight, o->undesirable_weight}};
}

enum ot_shard_mode ot_plan_request_mode(const struct ot_options *o) {
    static const enum ot_shard_mode modes[] = {[OT_CHOICE_SHARD_AUTO] = OT_SHARD_FULL,
                                               [OT_CHOICE_SHARD_NONE] = OT_SHARD_NONE,
                                               [OT_CHOICE_SHARD_STATE] = OT_SHARD_STATE,
                                               [OT_CHOICE_SHARD_FULL] = OT_SHARD_FULL,
                                               [OT_CHOICE_SHARD_STAGES] = OT_SHARD_STAGES};
    return modes[o->shard];
}

bool ot_plan_request_may_one_copy(const struct ot_options *o) {
    return o->share_weights == OT_CHOICE_SHARE_WEIGHTS_AUTO && ot_plan_request_mode(o) == OT_SHARD_FULL &&
           (o->home.weights == OT_HOME_AUTO || o->home.weights == OT_HOME_HOST);
}

/* ---- cures ---- */

enum { MOST_CURES = 3, CURE_BYTES = 160 };
static const size_t MIB = (size_t)1 << 20, GIB = (size_t)1 << 30;

struct cures {
    const struct ot_cure *about;
    int n;
    char text[MOST_CURES][CURE_BYTES];
};

/* Returns whether the request's rank has a plan. used (or NULL) gets at least the bytes of the plan on each
 * tier. */
static bool rank_fits(struct ot_plan_request *trial, size_t used[OT_TIER_COUNT]) {
    struct ot_plan plan;
    if (ot_plan_make(trial, &plan) < 0)
        return false;
    for (int t = 0; used && t < OT_TIER_COUNT; t++)
        used[t] = ot_max(used[t], ot_ledger_total(&plan.ledger, (enum ot_tier)t));
    ot_plan_free(&plan);
    return true;
}

/* True if a stage needs no more than the one before it, whose plan fits: it has layers alone, and no more. */
static bool is_like_before(const struct ot_plan_request *trial, int stage) {
    struct ot_shard before = trial->shard;
    before.rank = ot_shard_rank_of(&before, 0, stage - 1);
    return stage > 1 && stage < ot_shard_stages(&before) - 1 &&
           ot_shard_layers(trial->chain, &trial->shard) <= ot_shard_layers(trial->chain, &before);
}

/* Returns whether the request has a plan: for every stage of a pipeline, the last one first. used (or NULL)
 * gets the most bytes of a rank on each tier. */
static bool fits(const struct ot_plan_request *request, size_t used[OT_TIER_COUNT]) {
    struct ot_plan_request trial = *request;
    int stages = ot_shard_stages(&trial.shard);
    trial.is_trial = true; /* a shortage takes long to find, and is not needed */
    if (used)
        memset(used, 0, OT_TIER_COUNT * sizeof *used);
    if (stages == 1)
        return rank_fits(&trial, used);
    for (int i = 0; i < stages; i++) {
        int stage = (i + stages - 1) % stages;
        trial.shard.rank = ot_shard_rank_of(&trial.shard, 0, stage);
        if (!is_like_before(&trial, stage) && !rank_fits(&trial, used))
            return false;
    }
    return true;
}

static char *next(struct cures *c) {
    return c->n < MOST_CURES ? c->text[c->n++] : NULL;
}

/* "63G", "512M": rounded up, in the form that options take. */
static const char *size_option(size_t bytes, char text[24]) {
    size_t unit = bytes >= 10 * GIB ? GIB : MIB;
    snprintf(text, 24, "%zu%c", bytes / unit + (bytes % unit != 0), unit == GIB ? 'G' : 'M');
    return text;
}

static void let_home(struct ot_plan_request *rq) {
    rq->weights = rq->state = rq->grads = rq->sums = rq->activations = rq->kept = rq->cache = OT_HOME_AUTO;
}
static void let_shares(struct ot_plan_request *rq) {
    memset(rq->fractions, 0, sizeof rq->fractions);
}
static void let_slots(struct ot_plan_request *rq) {
    rq->slots = 0;
}
static void let_recompute(struct ot_plan_request *rq) {
    rq->keep = OT_KEEP_CHOSEN;
}
static void let_rounds(struct ot_plan_request *rq) {
    rq->rounds = 0;
}
static void let_micro(struct ot_plan_request *rq) {
    rq->micro_sequences = 0;
}
static void let_sections(struct ot_plan_request *rq) {
    rq->sections = 0;
}
static void let_stages(struct ot_plan_request *rq) {
    rq->shard.stages = 0;
}

static const struct {
    const char *name;
    void (*let)(struct ot_plan_request *);
} forces[] = {{"home", let_home},           {"optimizer-engine", let_shares}, {"micro-batch", let_micro},
              {"recompute", let_recompute}, {"rounds", let_rounds},           {"slots", let_slots},
              {"stages", let_stages},       {"row-sections", let_sections}};
enum { FORCES = sizeof forces / sizeof *forces };

static void try_without_forces(struct cures *c) {
    const struct ot_options *o = c->about->options;
    struct ot_plan_request all = *c->about->request;
    char names[CURE_BYTES - 16] = "", *text;
    int given = 0, before = c->n;
    for (int i = 0; i < FORCES; i++) {
        struct ot_plan_request one = *c->about->request;
        if (ot_option_find(forces[i].name, strlen(forces[i].name), o->command) < 0 ||
            !ot_options_given(o, forces[i].name))
            continue;
        forces[i].let(&one);
        forces[i].let(&all);
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s--%s", given++ ? ", " : "", forces[i].name);
        if (fits(&one, NULL) && (text = next(c)))
            snprintf(text, CURE_BYTES, "leave out --%s", forces[i].name);
    }
    if (given > 1 && c->n == before && fits(&all, NULL) && (text = next(c)))
        snprintf(text, CURE_BYTES, "leave out %s", names);
}

/* Tries shares in place of stages. Returns true if each stage has a plan alone, and only all of them together
 * have none: then the cures below, which try the stages one by one, say nothing. */
static bool try_shares(struct cures *c) {
    struct ot_plan_request full = *c->about->request;
    char *text;
    if (ot_shard_stages(&full.shard) == 1)
        return false;
    full.shard.mode = OT_SHARD_FULL;
    full.shard.stages = 0;
    if (fits(&full, NULL) && (text = next(c)))
        snprintf(text, CURE_BYTES, "--shard auto");
    return fits(c->about->request, NULL);
}

/* ---- more memory ---- */

/* A shortage is of one rank. Returns whether that much memory is enough for the other stages too. */
static bool is_enough(const struct cures *c, enum ot_tier tier, size_t bytes) {
    struct ot_plan_request with = *c->about->request;
    with.budget_bytes[tier] = bytes;
    return ot_shard_stages(&with.shard) == 1 || fits(&with, NULL);
}

static void try_gpu(struct cures *c, const struct ot_shortage *shortage) {
    char size[24], *text;
    size_t need = shortage->alone[OT_TIER_GPU], most = c->about->most_gpu_bytes;
    if (!need || need > most || !is_enough(c, OT_TIER_GPU, need) || !(text = next(c)))
        return;
    if ((need + GIB - 1) / GIB * GIB <= most) /* else the rounded size is more than the device has */
        snprintf(text, CURE_BYTES, "--gpu-mem %s", size_option(need, size));
    else
        snprintf(text, CURE_BYTES, "--gpu-mem %zuM", (need + MIB - 1) / MIB);
}

/* The options of a described machine name the RAM and the disks of a host, which its ranks share. */
static size_t ranks_of(const struct cures *c) {
    return c->about->host_ranks > 1 ? (size_t)c->about->host_ranks : 1;
}

/* The option that gives the host tier `need` bytes: --ram for a described machine without --host-mem, with a
 * tenth added for the system; otherwise --host-mem. Returns false if the machine cannot have that much. */
static bool host_option(const struct cures *c, size_t need, char text[CURE_BYTES]) {
    char size[24];
    bool by_ram = c->about->is_described && !ot_options_given(c->about->options, "host-mem");
    if (!need || need > c->about->most_host_bytes)
        return false;
    if (by_ram)
        snprintf(text, CURE_BYTES, "--ram %s", size_option((need + need / 9 + MIB) * ranks_of(c), size));
    else
        snprintf(text, CURE_BYTES, "--host-mem %s", size_option(need, size));
    return true;
}

static void try_host(struct cures *c, const struct ot_shortage *shortage) {
    char option[CURE_BYTES], *text;
    if (host_option(c, shortage->alone[OT_TIER_HOST], option) &&
        is_enough(c, OT_TIER_HOST, shortage->alone[OT_TIER_HOST]) && (text = next(c)))
        snprintf(text, CURE_BYTES, "%s", option);
}

/* Tries more of two tiers, where more of one does not end the shortage. */
static void try_both(struct cures *c, const struct ot_shortage *shortage) {
    size_t gpu = shortage->together[OT_TIER_GPU], nvme = shortage->together[OT_TIER_NVME];
    const size_t *have = c->about->request->budget_bytes;
    char host[CURE_BYTES], gpu_size[24], *text;
    bool more_gpu = gpu > have[OT_TIER_GPU];
    if (!gpu || gpu > c->about->most_gpu_bytes || nvme > have[OT_TIER_NVME] ||
        !host_option(c, shortage->together[OT_TIER_HOST], host) || !(text = next(c)))
        return;
    if (more_gpu)
        snprintf(text, CURE_BYTES, "--gpu-mem %s with %.100s", size_option(gpu, gpu_size), host);
    else
        snprintf(text, CURE_BYTES, "%s", host);
}

/* Tries a smaller --gpu-mem where the device uses RAM: the host tier then gets more of it. */
static void try_less_gpu(struct cures *c) {
    const struct ot_options *o = c->about->options;
    struct ot_plan_request with = *c->about->request;
    if (!c->about->shared || !ot_options_given(o, "gpu-mem"))
        return;
    const int64_t ram = c->about->shared->free_bytes, most = ot_min(o->gpu_mem, ram);
    for (int tenths = 9; tenths > 0; tenths--) {
        size_t bytes = (size_t)most / 10 * (size_t)tenths, unit = bytes >= 10 * GIB ? GIB : MIB;
        char size[24], *text;
        bytes -= bytes % unit;
        ot_machine_budgets(c->about->shared, (int64_t)bytes, o->host_mem, with.budget_bytes);
        with.budget_bytes[OT_TIER_NVME] = c->about->request->budget_bytes[OT_TIER_NVME];
        if (bytes == 0 || !fits(&with, NULL))
            continue;
        if ((text = next(c)))
            snprintf(text, CURE_BYTES, "--gpu-mem %s", size_option(bytes, size));
        return;
    }
}

/* Larger than any disk. The plan takes only the bytes that it needs. */
static const size_t ANY_DISK = (size_t)1 << 50;

/* "63G" for a described machine, "DIR:63G" for this one: a disk for so many bytes of each rank. */
static const char *disk_option(const struct cures *c, size_t bytes, char text[32]) {
    char size[24];
    snprintf(text, 32, "%s%s", c->about->is_described ? "" : "DIR:", size_option(bytes * ranks_of(c), size));
    return text;
}

static bool try_disk(struct cures *c, const struct ot_shortage *shortage) {
    struct ot_plan_request with = *c->about->request;
    size_t used[OT_TIER_COUNT];
    char disk[32], *text;
    bool have = with.budget_bytes[OT_TIER_NVME] > 0;
    with.budget_bytes[OT_TIER_NVME] = ANY_DISK;
    if (have && !shortage->alone[OT_TIER_NVME])
        return false;
    if (!fits(&with, used))
        return false;
    if ((text = next(c)))
        snprintf(text, CURE_BYTES, "--nvme %s%s", disk_option(c, used[OT_TIER_NVME], disk),
                 have ? " in total" : "");
    return true;
}

/* A disk takes a part of the state, and the host tier must grow for the rest. */
static void try_disk_and_host(struct cures *c) {
    struct ot_plan_request with = *c->about->request;
    struct ot_plan plan;
    size_t used[OT_TIER_COUNT];
    char option[CURE_BYTES], disk[32], *text;
    if (with.budget_bytes[OT_TIER_NVME] > 0)
        return;
    with.budget_bytes[OT_TIER_NVME] = ANY_DISK;
    if (ot_plan_make(&with, &plan) == 0) {
        ot_plan_free(&plan);
        return;
    }
    with.budget_bytes[OT_TIER_HOST] = plan.shortage.alone[OT_TIER_HOST];
    if (host_option(c, with.budget_bytes[OT_TIER_HOST], option) && fits(&with, used) &&
        used[OT_TIER_NVME] > 0 && (text = next(c)))
        snprintf(text, CURE_BYTES, "%.100s with --nvme %s", option, disk_option(c, used[OT_TIER_NVME], disk));
}

/* ---- less work ---- */

static const char *tokens_option(int64_t tokens, char text[24]) {
    bool k = tokens % 1024 == 0;
    snprintf(text, 24, "%lld%s", (long long)(k ? tokens / 1024 : tokens), k ? "k" : "");
    return text;
}

/* The largest count in [low, high) with which `set` gives a request that has a plan, or 0. Halves the count
 * until there is a plan, and bisects above it: nearly always, all counts below the largest one fit. */
static int64_t most_that_fits(const struct cures *c, int64_t low, int64_t high,
                              void (*set)(const struct cures *, int64_t, struct ot_plan_request *)) {
    int64_t fitting = high / 2 > low ? high / 2 : low;
    struct ot_plan_request less;
    if (low >= high)
        return 0;
    for (set(c, fitting, &less); !fits(&less, NULL); set(c, fitting, &less)) {
        if (fitting == low)
            return 0;
        high = fitting;
        fitting = high / 2 > low ? high / 2 : low;
    }
    while (high - fitting > 1) {
        int64_t middle = fitting + (high - fitting) / 2;
        set(c, middle, &less);
        if (fits(&less, NULL))
            fitting = middle;
        else
            high = middle;
    }
    return fitting;
}

static void set_step(const struct cures *c, int64_t sequences, struct ot_plan_request *less) {
    *less = *c->about->request;
    less->step_sequences = sequences;
}

static void try_smaller_step(struct cures *c) {
    const struct ot_plan_request *given = c->about->request;
    int64_t least = given->micro_sequences > 0 ? given->micro_sequences : 1;
    int64_t most = given->train ? most_that_fits(c, least, given->step_sequences, set_step) : 0;
    char tokens[24], *text = most > 0 ? next(c) : NULL;
    if (text)
        snprintf(text, CURE_BYTES, "--tokens-per-step %s",
                 tokens_option(most * given->sequence_tokens, tokens));
}

/* Rows become shorter in steps of ROW_STEP tokens, to no fewer. A step keeps its tokens, and at least one
 * sequence; so does a micro-batch. */
enum { ROW_STEP = 128, COARSE_STEPS = 64 };

static bool generates(const struct cures *c) {
    return c->about->options->command == OT_COMMAND_GENERATE;
}

/* A text that is generated passes in pieces, and has its length in the cache alone. */
static int64_t row_tokens(const struct cures *c) {
    const struct ot_plan_request *given = c->about->request;
    return generates(c) ? ot_max(given->sequence_tokens, given->cache_rows) : given->sequence_tokens;
}

static int64_t row_step(const struct cures *c) {
    int64_t step = ROW_STEP; /* for long rows a rounder number */
    while (row_tokens(c) / step > 2 * COARSE_STEPS)
        step *= 2;
    return step;
}

static void set_rows(const struct cures *c, int64_t steps, struct ot_plan_request *less) {
    const struct ot_plan_request *given = c->about->request;
    *less = *given;
    less->sequence_tokens = ot_min(steps * row_step(c), given->sequence_tokens);
    less->cache_rows = generates(c) ? ot_min(given->cache_rows, steps * row_step(c)) : given->cache_rows;
    int64_t times = given->sequence_tokens / less->sequence_tokens;
    less->step_sequences *= given->train && times > 0 ? times : 1;
    less->micro_sequences *= times > 0 ? times : 1;
}

/* The tokens of the longest rows with which there is a plan; 0: none. */
static int64_t most_row_tokens(const struct cures *c) {
    int64_t step = row_step(c), steps = (row_tokens(c) + step - 1) / step;
    return steps > 1 ? step * most_that_fits(c, 1, steps, set_rows) : 0;
}

static const char *rows_option(const struct cures *c) {
    return generates(c) ? "texts of at most this many tokens:" : "--seq-len";
}

static void try_shorter_rows(struct cures *c) {
    int64_t most = most_row_tokens(c);
    char tokens[24], *text = most > 0 ? next(c) : NULL;
    if (text)
        snprintf(text, CURE_BYTES, "%s %s", rows_option(c), tokens_option(most, tokens));
}

/* Tries a disk and shorter rows together, where no cure before is enough. */
static void try_disk_and_rows(struct cures *c) {
    struct ot_plan_request with = *c->about->request, less;
    struct ot_cure about = *c->about;
    const struct cures together = {.about = &about};
    size_t used[OT_TIER_COUNT];
    char tokens[24], disk[32], *text;
    about.request = &with;
    with.budget_bytes[OT_TIER_NVME] = ANY_DISK;
    int64_t most = c->n == 0 ? most_row_tokens(&together) : 0;
    if (most == 0)
        return;
    set_rows(&together, most / row_step(&together), &less);
    if (fits(&less, used) && (text = next(c)))
        snprintf(text, CURE_BYTES, "%s %s with --nvme %s", rows_option(c), tokens_option(most, tokens),
                 disk_option(c, used[OT_TIER_NVME], disk));
}

static void try_memory_and_rows(struct cures *c, const struct ot_shortage *shortage) {
    try_less_gpu(c);
    if (!try_disk(c, shortage))
        try_disk_and_host(c);
    try_gpu(c, shortage);
    try_host(c, shortage);
    try_both(c, shortage);
    try_smaller_step(c);
    try_shorter_rows(c);
    try_disk_and_rows(c);
}

int ot_plan_cure(const struct ot_cure *cure, const struct ot_shortage *shortage) {
    struct cures c = {.about = cure};
    char all[MOST_CURES * CURE_BYTES] = "";
    struct ot_error refusal;
    bool is_short = false;
    for (int t = 0; t < OT_TIER_COUNT; t++)
        is_short = is_short || shortage->alone[t] || shortage->together[t];
    if (!is_short)
        return -OT_E_BUDGET;
    ot_error_save(&refusal, -OT_E_BUDGET);
    try_without_forces(&c);
    if (!try_shares(&c))
        try_memory_and_rows(&c, shortage);
    for (int i = 0; i < c.n; i++)
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? "; or " : "", c.text[i]);
    int rc = ot_error_load(&refusal);
    return c.n ? ot_fail_add_cures(rc, ". What helps: ", all)
               : ot_fail_add_cures(rc, ". No option helps: the machine is too small for this model", "");
}
