#include "src/plan/case.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "offload/plan/stages.h"
#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/checkpoint/writer.h"
#include "src/files/model_dir.h"
#include "src/options/options.h"
#include "src/plan/machines.h"
#include "src/session/add_tokens.h"
#include "src/session/chat_choice.h"
#include "src/session/open.h"
#include "src/session/plan_request.h"
#include "src/train/rows.h"
#include "src/train/run_shape.h"
#include "src/train/saver.h"

/* ---- rows ---- */

/* Counts the rows of `plan --data FILE`, tokenized and packed as a run does it. If the model's tokenizer
 * is not on this machine, their bytes are packed instead, into sequences of as many bytes as the tokens
 * usually have. */

struct ot_plan_rows {
    int64_t rows, sequences, tokens; /* in an epoch of training, without held-out rows */
    int64_t eval_sequences;
};

/* Bytes a token, of vocabularies up to most_tokens. English questions, and SQL with its tables: Llama 2
 * (32,000) has 3.3 and 2.8 bytes a token, CodeGen (50,295) 4.0 and 3.1 (measured on rows of WikiSQL). Llama 3
 * (128,256) has a quarter more than Llama 2 (Dubey et al., "The Llama 3 Herd of Models", 2024: 3.94
 * characters against 3.17). Texts in other languages have fewer. */
static const struct {
    int64_t most_tokens;
    double bytes;
} KINDS[] = {{1000, 1}, {40000, 3.0}, {99999, 3.5}, {INT64_MAX, 3.7}};

/* Bytes of text a token, for a tokenizer with `vocab` tokens. */
static double plan_rows_bytes_per_token(int64_t vocab) {
    int i = 0;
    while (vocab > KINDS[i].most_tokens)
        i++;
    return KINDS[i].bytes;
}

static int count(struct ot_options *as_run, int64_t seq_len, struct ot_plan_rows *out) {
    struct ot_session session;
    struct ot_rows rows = {0};
    int rc;
    as_run->command = OT_COMMAND_TRAIN;
    as_run->init = OT_CHOICE_INIT_RANDOM; /* weights are not needed */
    /* --threads describes the other machine; this machine reads the rows. */
    ot_option_reset(as_run, ot_option_find("threads", strlen("threads"), as_run->command));
    struct ot_settings settings = {*as_run};
    OT_TRY_GOTO(ot_session_open_files(&settings, OT_BF16, &session), rc, out);
    OT_TRY_GOTO(ot_chat_choice_open(&session), rc, out);
    OT_TRY_GOTO(ot_rows_open(&session, seq_len, &rows), rc, out);
    *out =
        (struct ot_plan_rows){ot_packing_rows(rows.train), ot_packing_sequences(rows.train),
                              ot_packing_tokens(rows.train), rows.eval ? ot_packing_sequences(rows.eval) : 0};
out:
    ot_rows_close(&rows);
    ot_session_close(&session);
    return rc;
}

/* options: those of a case. The model's tokenizer must be on this machine. Errors: as ot_session_open_files
 * and ot_rows_open. */
static int plan_rows_count(const struct ot_options *options, int64_t seq_len, struct ot_plan_rows *out) {
    struct ot_options as_run = *options;
    return count(&as_run, seq_len, out);
}

/* A preset of this program's own has a tokenizer whose tokens are bytes. */
/* The same without a tokenizer. Errors: as above. */
static int plan_rows_estimate(const struct ot_options *options, double bytes_per_token, int64_t seq_len,
                              struct ot_plan_rows *out) {
    struct ot_options as_run = *options;
    as_run.model = "tiny-sql";
    as_run.adapter = NULL;
    OT_TRY(count(&as_run, (int64_t)((double)seq_len * bytes_per_token), out));
    out->tokens = (int64_t)((double)out->tokens / bytes_per_token);
    return 0;
}

/* ---- the model ---- */

static int read_config_file(const char *path, struct ot_model_config *out) {
    struct ot_json *root;
    struct ot_config_file file;
    OT_TRY(ot_json_read_file(path, OT_CONFIG_MAX_BYTES, &root));
    int rc = ot_model_config_parse(root, path, &file);
    if (rc == 0)
        *out = file.config;
    ot_json_free(root);
    return rc;
}

/* --model is a config.json, a directory with one, or a name. A name stands for its files if they are on this
 * machine, else for the preset. */
static int read_model(struct ot_plan_case *c) {
    const char *name = c->options->model, *dot = strrchr(name, '.');
    const char *tokenizer = c->options->tokenizer;
    if (dot && strcmp(dot, ".json") == 0) {
        OT_TRY(read_config_file(name, &c->config));
        return ot_added_tokens_count(c->options, tokenizer, &c->config);
    }
    OT_TRY(ot_model_resolve_shape(name, &c->resolved));
    if (!c->resolved.path) {
        c->config = c->resolved.preset->config;
        c->has_tokenizer = !c->resolved.preset->hub_id; /* the byte-level one */
        return ot_added_tokens_count(c->options, tokenizer, &c->config);
    }
    struct ot_model_dir *dir;
    OT_TRY(ot_model_dir_open(c->resolved.path, &dir));
    c->config = ot_model_dir_facts(dir)->config;
    c->has_tokenizer = ot_model_dir_facts(dir)->tokenizer_path != NULL;
    if (!tokenizer)
        tokenizer = ot_model_dir_facts(dir)->tokenizer_path;
    int rc = ot_added_tokens_count(c->options, tokenizer, &c->config);
    ot_model_dir_close(dir);
    return rc;
}

const char *ot_plan_case_model(const struct ot_plan_case *c) {
    return c->resolved.found ? c->resolved.found : c->options->model;
}

/* ---- the step and the run ---- */

/* The options for reading rows. --model is what a run would open: a directory in place of its config.json,
 * and a preset in place of another model of its shape. */
static struct ot_options options_of_rows(const struct ot_plan_case *c, char directory[PATH_MAX]) {
    struct ot_options as_run = *c->options;
    const char *slash = strrchr(as_run.model, '/');
    bool is_file = !c->resolved.preset && !c->resolved.path;
    if (is_file) {
        snprintf(directory, PATH_MAX, "%.*s", slash ? (int)(slash - as_run.model) : 1,
                 slash ? as_run.model : ".");
        as_run.model = directory;
    } else if (!c->resolved.path) {
        as_run.model = c->resolved.preset->name;
    }
    return as_run;
}

static int count_sequences(struct ot_plan_case *c) {
    const struct ot_options *o = c->options;
    struct ot_plan_rows rows;
    char directory[PATH_MAX];
    c->sequences = o->tokens ? (o->tokens + c->seq_len - 1) / c->seq_len : o->rows;
    if (o->data.n == 0)
        return 0;
    c->bytes_per_token = c->has_tokenizer || o->tokenizer ? 0 : plan_rows_bytes_per_token(c->config.vocab);
    const struct ot_options as_run = options_of_rows(c, directory);
    OT_TRY(c->bytes_per_token > 0 ? plan_rows_estimate(&as_run, c->bytes_per_token, c->seq_len, &rows)
                                  : plan_rows_count(&as_run, c->seq_len, &rows));
    c->rows = rows.rows;
    c->sequences = rows.sequences;
    c->row_tokens = rows.tokens;
    c->eval_sequences = rows.eval_sequences;
    return 0;
}

static void set_step(struct ot_plan_case *c, int64_t step_sequences) {
    c->step_sequences = c->request.step_sequences = step_sequences;
    c->steps = ot_shape_steps(c->options, c->sequences, step_sequences);
}

/* A step that is open counts as the largest one until it is chosen. */
static int shape_run(struct ot_plan_case *c) {
    const struct ot_options *o = c->options;
    OT_TRY(ot_shape_seq_len(&c->settings, ot_model_longest_row(&c->config), &c->seq_len));
    OT_TRY(count_sequences(c));
    if (c->sequences && !o->epochs && !o->steps)
        ot_settings_choose_count(&c->settings, "epochs", OT_DEFAULT_EPOCHS);
    if (ot_step_is_open(o)) {
        set_step(c, o->tokens_per_step.most / c->seq_len);
        return 0;
    }
    set_step(c, ot_shape_step_sequences(o, c->seq_len, o->data.n ? c->sequences : INT64_MAX));
    if (!o->tokens_per_step.count)
        ot_settings_choose_step(&c->settings, c->step_sequences * c->seq_len);
    return o->micro_batch <= c->step_sequences
               ? 0
               : ot_fail(OT_E_USAGE,
                         "--micro-batch %lld is more than the %lld sequences of a step; raise "
                         "--tokens-per-step",
                         (long long)o->micro_batch, (long long)c->step_sequences);
}

/* 1 for this machine: only one of its GPUs is measured. */
static int ranks_of(const struct ot_plan_case *c) {
    return c->machine.card ? c->machine.described.ranks : 1;
}

static void make_request(struct ot_plan_case *c) {
    struct ot_plan_request *rq = &c->request;
    *rq = ot_plan_request_of(c->options);
    rq->chain = ot_model_chain(c->model);
    memcpy(rq->budget_bytes, c->machine.budget_bytes, sizeof rq->budget_bytes);
    rq->sequence_tokens = c->seq_len;
    rq->step_sequences = c->step_sequences;
    rq->micro_sequences = c->options->micro_batch;
    rq->sections = (int)c->options->row_sections;
    rq->train = true;
    rq->extra_device_bytes = (int64_t)c->machine.workspace_bytes;
    rq->snapshot_slots = ot_saver_slots(ot_model_param_count(&c->config), rq->chain->dtype);
    rq->shard = (struct ot_shard){.ranks = ranks_of(c),
                                  .mode = ot_plan_request_mode(c->options),
                                  .stages = (int)c->options->stages,
                                  .world = c->options->deterministic == OT_CHOICE_DETERMINISTIC_WORLD,
                                  .narrow = c->options->exchange == OT_CHOICE_EXCHANGE_DTYPE,
                                  .one_copy = c->options->share_weights == OT_CHOICE_SHARE_WEIGHTS_YES};
    rq->weights = rq->shard.one_copy ? OT_HOME_HOST : rq->weights;
    rq->memo = ot_plan_memo_open(); /* for the choice, its explanation, and the cures of a refusal */
}

static bool is_one_host(const struct ot_plan_case *c) {
    return ranks_of(c) == c->machine.described.local_ranks;
}

static int check_sharing(const struct ot_plan_case *c) {
    if (!c->request.shard.one_copy || (ranks_of(c) > 1 && is_one_host(c)))
        return 0;
    return ot_fail(OT_E_USAGE, "--share-weights yes needs several GPUs in one host");
}

static int find_price(struct ot_plan_case *c) {
    struct ot_prices prices;
    const struct ot_described *m = &c->machine.described;
    OT_TRY(ot_prices_read(c->options->price, &prices));
    if (ot_prices_are_named(&prices) && !c->options->gpu)
        return ot_fail(OT_E_USAGE, "--price/h with the names of machines has no effect without --gpu");
    c->price = m->ranks > 0 ? ot_price_of(&prices, c->options->gpu, m->ranks, m->ranks / m->local_ranks)
                            : prices.any;
    c->is_price_missing = ot_prices_are_named(&prices) && c->price == 0;
    return 0;
}

int ot_plan_case_open(const struct ot_options *options, const char *model, const char *gpu,
                      struct ot_plan_case *c) {
    memset(c, 0, sizeof *c);
    struct ot_options asked = *options;
    asked.model = model;
    asked.gpu = gpu;
    c->settings = (struct ot_settings){asked};
    c->options = &c->settings.in_effect;
    c->wants_cures = true;
    OT_TRY(read_model(c));
    OT_TRY(ot_session_scale_rope(c->options, &c->config));
    OT_TRY(ot_plan_machine_open(&c->settings, &c->machine));
    OT_TRY(find_price(c));
    OT_TRY(shape_run(c));
    OT_TRY(ot_plan_request_model(c->options, &c->config, c->machine.dtype, c->seq_len, &c->model));
    make_request(c);
    OT_TRY(ot_shard_check(&c->request.shard));
    OT_TRY(check_sharing(c));
    return ot_plan_machine_cost(&c->machine, c->request.chain, c->seq_len, c->seq_len * c->step_sequences,
                                &c->costs);
}

void ot_plan_case_close(struct ot_plan_case *c) {
    ot_plan_free(&c->chosen.plan);
    ot_plan_memo_close(c->request.memo);
    ot_costs_free(&c->costs);
    ot_model_close(c->model);
    ot_plan_machine_close(&c->machine);
    ot_resolved_free(&c->resolved);
    memset(c, 0, sizeof *c);
}

/* ---- predicting ---- */

static int simulate_at(const struct ot_plan_case *c, int end, double *seconds) {
    struct ot_costs costs;
    struct ot_prediction p;
    OT_TRY(ot_plan_machine_cost_at(&c->machine, end, c->request.chain, c->seq_len,
                                   c->seq_len * c->request.step_sequences, &costs));
    int rc = ot_simulate_plan(c->request.chain, &c->chosen.plan, &costs, &p);
    ot_costs_free(&costs);
    *seconds = p.step_seconds;
    return rc;
}

/* Finds the times of a step at both ends of the rates' errors. The prediction is always between them: a list
 * schedule can be slightly slower on a faster machine, so the ends are clamped. */
static int find_range(struct ot_plan_case *c) {
    double step = c->chosen.prediction.step_seconds, alone;
    c->slow_seconds = c->fast_seconds = step;
    if (!c->machine.card)
        return 0;
    OT_TRY(simulate_at(c, -1, &c->slow_seconds));
    OT_TRY(simulate_at(c, 1, &c->fast_seconds));
    if (ot_plan_has_stages(&c->chosen.plan)) { /* one rank stands for all: their step changes as much */
        OT_TRY(simulate_at(c, 0, &alone));
        c->slow_seconds *= step / alone;
        c->fast_seconds *= step / alone;
    }
    c->slow_seconds = ot_max(c->slow_seconds, step);
    c->fast_seconds = ot_min(c->fast_seconds, step);
    return 0;
}

static int refuse(const struct ot_plan_case *c) {
    struct ot_plan_request refused = c->request;
    refused.shard = c->chosen.forced.shard;
    struct ot_cure cure = {.options = c->options,
                           .request = &refused,
                           .most_gpu_bytes = c->machine.most_bytes[OT_TIER_GPU],
                           .most_host_bytes = c->machine.most_bytes[OT_TIER_HOST],
                           .host_ranks = c->machine.described.local_ranks,
                           .is_described = c->machine.card != NULL};
    return ot_plan_cure(&cure, &c->chosen.plan.shortage);
}

static int choose_plan(struct ot_plan_case *c) {
    struct ot_plan_request *rq = &c->request;
    bool several = rq->shard.ranks > 1;
    bool any_mode = several && c->options->shard == OT_CHOICE_SHARD_AUTO && !rq->shard.one_copy;
    struct ot_shard_open open = {.mode = any_mode,
                                 .stages = any_mode,
                                 .one_copy =
                                     several && is_one_host(c) && ot_plan_request_may_one_copy(c->options)};
    ot_plan_free(&c->chosen.plan);
    int rc = ot_planner_choose_shard(rq, &c->costs, open, &c->chosen, &c->shards);
    c->tried += c->chosen.tried;
    return rc;
}

static int predict_step(void *context, struct ot_step_candidate *candidate) {
    struct ot_plan_case *c = context;
    c->request.step_sequences = candidate->sequences;
    OT_TRY(choose_plan(c));
    candidate->step_seconds = c->chosen.prediction.step_seconds;
    candidate->tokens_per_second = (double)candidate->tokens / candidate->step_seconds;
    return 0;
}

/* Chooses the step, and its plan. */
static int choose_step(struct ot_plan_case *c) {
    struct ot_step_choice *choice = &c->choice;
    OT_TRY(ot_step_choice_make(c->options, c->seq_len, c->sequences, predict_step, c, choice));
    const struct ot_step_candidate *chosen = &choice->candidates[choice->chosen];
    set_step(c, chosen->sequences);
    ot_settings_choose_step(&c->settings, chosen->tokens);
    bool has_plan = choice->chosen == 0 && chosen->step_seconds > 0; /* the smallest was tried last */
    return has_plan ? 0 : choose_plan(c);
}

/* Predicts the times besides steps as a run does. */
static int predict_times(struct ot_plan_case *c) {
    const struct ot_chain *chain = c->request.chain;
    struct ot_run_shape shape = {.seq_len = c->seq_len,
                                 .sequences = c->sequences,
                                 .step_sequences = c->step_sequences,
                                 .steps_per_epoch =
                                     (c->sequences + c->step_sequences - 1) / c->step_sequences,
                                 .lr.steps = c->steps};
    struct ot_run_work work = {.options = c->options,
                               .shape = &shape,
                               .checkpoint_bytes = ot_checkpoint_state_bytes(chain),
                               .eval_sequences = c->eval_sequences,
                               .sample_tokens = c->eval_sequences > 0 ? OT_SAMPLE_TOKENS : 0};
    for (int i = 0; i < chain->n_slabs; i++)
        if (!c->options->lora || !chain->slabs[i].frozen)
            work.result_bytes += chain->slabs[i].n_params * (int64_t)ot_dtype_bytes(chain->dtype);
    return c->steps ? ot_run_times_predict(&work, chain, &c->chosen.plan, &c->costs,
                                           c->chosen.prediction.step_seconds, &c->times)
                    : 0;
}

int ot_plan_case_predict(struct ot_plan_case *c) {
    struct ot_plan_request *rq = &c->request;
    int rc = ot_step_is_open(c->options) ? choose_step(c) : choose_plan(c);
    if (rc < 0)
        return rc == -OT_E_BUDGET && c->wants_cures ? refuse(c) : rc;
    OT_TRY(ot_plan_request_check_fetch(c->options, rq->chain, &c->chosen.plan));
    struct ot_plan_request settled = *rq;
    settled.shard = c->chosen.plan.shard;
    settled.weights = settled.shard.one_copy ? OT_HOME_HOST : rq->weights;
    OT_TRY(find_range(c));
    OT_TRY(predict_times(c));
    return c->options->explain ? ot_planner_explain(&settled, &c->costs, &c->chosen, &c->explanation) : 0;
}

struct ot_plan_answer ot_plan_case_answer(const struct ot_plan_case *c) {
    const struct ot_prediction *p = &c->chosen.prediction;
    const struct ot_card *card = c->machine.card;
    struct ot_plan_answer a = {.peak = card ? card->peak_tflops * 1e12 : c->costs.rates.product_flops};
    /* A prediction assumes full micro-batches. If the last one is short, the step takes no longer. */
    double tokens = (double)(c->request.step_sequences * c->seq_len);
    a.ranks = ranks_of(c);
    a.peak *= a.ranks;
    a.model_flops = p->model_flops * tokens / p->tokens;
    a.tokens_per_second = tokens / p->step_seconds;
    a.slow_rate = tokens / c->slow_seconds;
    a.fast_rate = tokens / c->fast_seconds;
    a.mfu = a.peak > 0 ? a.model_flops / p->step_seconds / a.peak : 0;
    a.run_tokens = (double)c->steps * tokens;
    a.run_seconds = (double)c->steps * p->step_seconds + ot_run_times_sum(&c->times);
    a.run_price = a.run_seconds / 3600 * c->price;
    a.million_price = 1e6 / a.tokens_per_second / 3600 * c->price;
    int local_ranks = a.ranks > 1 ? c->machine.described.local_ranks : 1;
    a.written = local_ranks * p->bytes[OT_LANE_NVME_WRITE];
    a.read = local_ranks * p->bytes[OT_LANE_NVME_READ];
    a.link =
        p->bytes[OT_LANE_H2D] + p->bytes[OT_LANE_D2H] + c->costs.rates.comm_link * p->bytes[OT_LANE_COMM];
    a.network = local_ranks * p->bytes[OT_LANE_COMM] * c->machine.described.fabric.remote_share;
    return a;
}
