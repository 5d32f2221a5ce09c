#include "src/plan/bench_setup.h"

#include <math.h>
#include <stdio.h>

#include "models/encoded.h"
#include "models/selection.h"
#include "offload/predict/calibrate.h"
#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/plan/bench_grid.h"
#include "src/session/plan_request.h"
#include "src/session/rates_cache.h"
#include "src/session/session.h"
#include "src/session/store.h"
#include "src/train/out_name.h"

struct setup {
    struct ot_settings *settings;
    const struct ot_options *options; /* in effect */
    struct ot_bench *bench;
    struct ot_bench_setup *out;
    struct ot_session session;
    struct ot_rates rates;
    struct ot_bench_mix_list mixes;
};

/* ---- steps ---- */

/* A rough time of a step with everything resident and all layers recomputed; it only serves to choose sizes.
 */
static double guess_step(const struct setup *s, int64_t sequence, int64_t tokens) {
    const struct ot_model_config *c = &s->session.config;
    double forward_again = 4.0 / 3;
    double attention = 6.0 * (double)(c->n_layers * c->n_heads * c->head_dim * sequence);
    double products = 4.0 * (double)s->bench->params + 2.0 * (double)s->bench->trained;
    double flops = forward_again * (products + attention);
    double rate = s->rates.adamw_bytes[OT_STATE_F32];
    double update = rate > 0 ? 26 * (double)s->bench->trained / rate : 0;
    return flops * (double)tokens / s->rates.product_flops + update;
}

/* The longest time of a step: for about 20 points with 8 steps each, warm-up included. */
static double good_step_seconds(const struct ot_options *o) {
    double of_point = fmin(o->minutes * 60 / 20, 10);
    return (o->time_per_point > 0 ? o->time_per_point : of_point) / 8;
}

static int check_seq_len(const struct setup *s) {
    int64_t given = s->options->seq_len, most = s->session.config.max_position;
    return given <= most
               ? 0
               : ot_fail(OT_E_USAGE, "--seq-len %lld is beyond the model's %lld positions; lower --seq-len",
                         (long long)given, (long long)most);
}

/* Chooses sequences as long as in training, or shorter ones if a step of one sequence would take too long. */
static int64_t choose_seq_len(const struct setup *s) {
    enum { MOST = 2048, LEAST = 128 };
    const struct ot_count_list *steps = &s->options->step_tokens_list;
    int64_t max_position = s->session.config.max_position, chosen = ot_min(max_position, MOST);
    for (int i = 0; i < steps->n; i++)
        chosen = ot_min(steps->values[i], chosen);
    while (!steps->n && chosen / 2 >= LEAST && guess_step(s, chosen, chosen) > good_step_seconds(s->options))
        chosen /= 2;
    return chosen;
}

/* Chooses the largest step that is short enough, up to 32 sequences, and a quarter of that step. */
static struct ot_count_list choose_step_tokens(const struct setup *s, int64_t sequence) {
    enum { MOST_SEQUENCES = 32 };
    int64_t sequences = 2;
    while (sequences < MOST_SEQUENCES &&
           guess_step(s, sequence, 2 * sequences * sequence) <= good_step_seconds(s->options))
        sequences *= 2;
    int64_t quarter = sequences / 4 > 0 ? sequences / 4 : 1;
    return (struct ot_count_list){2, {quarter * sequence, sequences * sequence}};
}

static void choose_steps(struct setup *s) {
    const struct ot_options *o = s->options;
    if (!o->seq_len)
        ot_settings_choose_count(s->settings, "seq-len", choose_seq_len(s));
    if (!o->step_tokens_list.n)
        ot_settings_choose_list(s->settings, "tokens-per-step", choose_step_tokens(s, o->seq_len));
}

/* ---- costs and grid ---- */

static int64_t largest(const struct ot_count_list *list) {
    int64_t most = 0;
    for (int i = 0; i < list->n; i++)
        most = ot_max(list->values[i], most);
    return most;
}

/* A line through the costs of two sizes gives the costs of smaller micro-batches too. */
static int calibrate(struct setup *s) {
    enum { MICRO_TOKENS = 4096 };
    const struct ot_options *o = s->options;
    int64_t most = largest(&o->step_tokens_list), micro = ot_min(most, MICRO_TOKENS);
    struct ot_calibration calibration = {
        .chain = ot_model_chain(s->session.model),
        .device = s->session.device,
        .rates = &s->rates,
        .micro_tokens = micro < o->seq_len ? o->seq_len : micro / o->seq_len * o->seq_len,
        .sequence_tokens = o->seq_len,
        .device_bytes = s->session.budget_bytes[OT_TIER_GPU] - s->session.workspace_bytes,
        .seconds = fmin(o->minutes * 60 / 10, 5),
    };
    return ot_calibrate(&calibration, &s->out->costs);
}

static int make_grid(struct setup *s) {
    const struct ot_options *o = s->options;
    const size_t *budget = s->session.budget_bytes;
    struct ot_bench_point points[OT_BENCH_MAX_POINTS];
    struct ot_bench_grid grid = {
        .plan = {.chain = ot_model_chain(s->session.model),
                 .budget_bytes = {budget[OT_TIER_GPU], budget[OT_TIER_HOST], budget[OT_TIER_NVME]},
                 .sequence_tokens = o->seq_len,
                 .train = true,
                 .clip = true,
                 .keep = OT_KEEP_CHOSEN,
                 .kept = OT_HOME_AUTO,
                 .grads = OT_HOME_AUTO,
                 .sums = OT_HOME_AUTO,
                 .extra_device_bytes = (int64_t)s->session.workspace_bytes},
        .step_tokens = o->step_tokens_list,
        .gpu_bytes = o->gpu_mem_list,
        .micro_sequences = o->micro_batch_list,
        .mixes = s->mixes,
        .nvme = o->nvme.n > 0,
    };
    OT_TRY(ot_bench_grid_make(&grid, points, &s->bench->n));
    for (int i = 0; i < s->bench->n; i++)
        s->bench->results[i] = (struct ot_bench_result){.point = points[i]};
    return 0;
}

static int choose_mixes(struct setup *s) {
    const struct ot_options *o = s->options;
    OT_TRY(ot_bench_mix_list_read(o->mix, &s->mixes));
    for (int i = 0; i < s->mixes.n; i++)
        if (ot_bench_mix_needs_nvme(s->mixes.indices[i]) && o->nvme.n == 0)
            return ot_fail(OT_E_USAGE, "--mix '%s' needs --nvme DIR, a directory on a local disk",
                           ot_bench_mix_at(s->mixes.indices[i])->name);
    return 0;
}

static void describe(struct setup *s) {
    struct ot_bench *bench = s->bench;
    snprintf(s->out->device, sizeof s->out->device, "%s", ot_device_name(s->session.device));
    bench->model = s->options->model;
    bench->params = ot_model_param_count(&s->session.config);
    bench->device = s->out->device;
    bench->dtype = ot_dtype_name(s->session.dtype);
    bench->cores = s->session.machine.cores;
    bench->ram_bytes = s->session.machine.ram_bytes;
    bench->began = time(NULL);
}

int ot_bench_setup_make(const struct ot_options *asked, struct ot_settings *settings, struct ot_bench *bench,
                        struct ot_bench_setup *out) {
    const struct ot_options *options = &settings->in_effect;
    struct setup s = {.settings = settings, .options = options, .bench = bench, .out = out};
    int rc;
    *out = (struct ot_bench_setup){0};
    *settings = (struct ot_settings){*asked};
    settings->in_effect.gpu_mem = largest(&asked->gpu_mem_list); /* the same device for all points */
    OT_TRY_GOTO(choose_mixes(&s), rc, out);
    OT_TRY_GOTO(ot_session_open_model(settings, &s.session), rc, out);
    if (!options->optimizer_threads)
        ot_settings_choose_count(settings, "optimizer-threads", options->threads);
    describe(&s);
    ot_session_warn_disks(&s.session);
    OT_TRY_GOTO(ot_out_name_choose(settings, s.out->out, sizeof s.out->out), rc, out);
    OT_TRY_GOTO(check_seq_len(&s), rc, out);
    OT_TRY_GOTO(ot_rates_obtain(&s.session, true, &s.rates), rc, out);
    const struct ot_selection selection = ot_plan_request_selection(options);
    OT_TRY_GOTO(ot_selection_count(&s.session.config, &selection, &bench->trained), rc, out);
    if (options->base_type != OT_BASE_AUTO)
        bench->base =
            ot_weight_format_name(ot_base_format((enum ot_base_type)options->base_type, s.session.dtype));
    choose_steps(&s);
    OT_TRY_GOTO(ot_plan_request_model(options, &s.session.config, s.session.dtype, options->seq_len,
                                      &s.session.model),
                rc, out);
    bench->frozen = ot_model_frozen_count(s.session.model);
    bench->flops_per_token = ot_model_flops_per_token(s.session.model, (double)options->seq_len);
    OT_TRY_GOTO(make_grid(&s), rc, out);
    rc = calibrate(&s);
out:
    ot_session_close(&s.session);
    return rc;
}

void ot_bench_setup_free(struct ot_bench_setup *setup) {
    ot_costs_free(&setup->costs);
}
