#include "src/plan/bench_setup.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/encoded.h"
#include "models/selection.h"
#include "offload/predict/calibrate.h"
#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/session/device.h"
#include "src/session/measure.h"
#include "src/session/open.h"
#include "src/session/plan_request.h"
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
    const struct ot_model_config *c = &s->session.model.config;
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
    int64_t given = s->options->seq_len, most = s->session.model.config.max_position;
    return given <= most
               ? 0
               : ot_fail(OT_E_USAGE, "--seq-len %lld is beyond the model's %lld positions; lower --seq-len",
                         (long long)given, (long long)most);
}

/* Chooses sequences as long as in training, or shorter ones if a step of one sequence would take too long. */
static int64_t choose_seq_len(const struct setup *s) {
    enum { MOST = 2048, LEAST = 128 };
    const struct ot_count_list *steps = &s->options->step_tokens_list;
    int64_t max_position = s->session.model.config.max_position, chosen = ot_min(max_position, MOST);
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
        .chain = ot_model_chain(s->session.model.built),
        .device = s->session.machine.device,
        .rates = &s->rates,
        .micro_tokens = micro < o->seq_len ? o->seq_len : micro / o->seq_len * o->seq_len,
        .sequence_tokens = o->seq_len,
        .device_bytes = s->session.machine.budget_bytes[OT_TIER_GPU] - s->session.machine.workspace_bytes,
        .seconds = fmin(o->minutes * 60 / 10, 5),
    };
    return ot_calibrate(&calibration, &s->out->costs);
}

static int make_grid(struct setup *s) {
    const struct ot_options *o = s->options;
    const size_t *budget = s->session.machine.budget_bytes;
    struct ot_bench_point points[OT_BENCH_MAX_POINTS];
    struct ot_bench_grid grid = {
        .plan = {.chain = ot_model_chain(s->session.model.built),
                 .budget_bytes = {budget[OT_TIER_GPU], budget[OT_TIER_HOST], budget[OT_TIER_NVME]},
                 .sequence_tokens = o->seq_len,
                 .train = true,
                 .clip = true,
                 .keep = OT_KEEP_CHOSEN,
                 .kept = OT_HOME_AUTO,
                 .grads = OT_HOME_AUTO,
                 .sums = OT_HOME_AUTO,
                 .extra_device_bytes = (int64_t)s->session.machine.workspace_bytes},
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
    snprintf(s->out->device, sizeof s->out->device, "%s", ot_device_name(s->session.machine.device));
    bench->model = s->options->model;
    bench->params = ot_model_param_count(&s->session.model.config);
    bench->device = s->out->device;
    bench->dtype = ot_dtype_name(s->session.model.dtype);
    bench->cores = s->session.machine.limits.cores;
    bench->ram_bytes = s->session.machine.limits.ram_bytes;
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
    OT_TRY_GOTO(ot_selection_count(&s.session.model.config, &selection, &bench->trained), rc, out);
    if (options->base_type != OT_BASE_AUTO)
        bench->base = ot_weight_format_name(
            ot_base_format((enum ot_base_type)options->base_type, s.session.model.dtype));
    choose_steps(&s);
    OT_TRY_GOTO(ot_plan_request_model(options, &s.session.model.config, s.session.model.dtype,
                                      options->seq_len, &s.session.model.built),
                rc, out);
    bench->frozen = ot_model_frozen_count(s.session.model.built);
    bench->flops_per_token = ot_model_flops_per_token(s.session.model.built, (double)options->seq_len);
    OT_TRY_GOTO(make_grid(&s), rc, out);
    rc = calibrate(&s);
out:
    ot_session_close(&s.session);
    return rc;
}

void ot_bench_setup_free(struct ot_bench_setup *setup) {
    ot_costs_free(&setup->costs);
}

/* ---- the grid ---- */

#define AUTO OT_HOME_AUTO
static const struct ot_bench_mix mixes[] = {
    {"all gpu", {OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, AUTO, AUTO, AUTO, AUTO}},
    {"state host", {OT_HOME_GPU, OT_HOME_HOST, AUTO, AUTO, AUTO, AUTO, AUTO}},
    {"weights+state host", {OT_HOME_HOST, OT_HOME_HOST, AUTO, AUTO, AUTO, AUTO, AUTO}},
    {"state nvme", {OT_HOME_GPU, OT_HOME_NVME, AUTO, AUTO, AUTO, AUTO, AUTO}},
    {"weights+state nvme", {OT_HOME_NVME, OT_HOME_NVME, AUTO, AUTO, AUTO, AUTO, AUTO}},
    {"planned", {AUTO, AUTO, AUTO, AUTO, AUTO, AUTO, AUTO}},
};
enum { N_MIXES = sizeof mixes / sizeof *mixes, ALL_GPU = 0, WEIGHTS_STATE_HOST = 2, PLANNED = N_MIXES - 1 };
_Static_assert((int)N_MIXES == (int)OT_BENCH_MIXES, "OT_BENCH_MIXES in bench.h is the number of mixes");

const struct ot_bench_mix *ot_bench_mix_at(int index) {
    return index >= 0 && index < N_MIXES ? &mixes[index] : NULL;
}

bool ot_bench_mix_needs_nvme(int index) {
    return mixes[index].home.state == OT_HOME_NVME;
}

static int find_mix(const char *name, size_t length) {
    int i = 0;
    while (i < N_MIXES && (strncmp(name, mixes[i].name, length) != 0 || mixes[i].name[length] != '\0'))
        i++;
    return i;
}

int ot_bench_mix_list_read(const char *text, struct ot_bench_mix_list *out) {
    *out = (struct ot_bench_mix_list){0};
    for (const char *name = text; name; name = strchr(name, ',') ? strchr(name, ',') + 1 : NULL) {
        size_t length = strcspn(name, ",");
        int index = find_mix(name, length);
        if (index == N_MIXES)
            return ot_fail(OT_E_USAGE,
                           "--mix: '%.*s' is not a mix; use all gpu, state host, weights+state host, state "
                           "nvme, weights+state nvme or planned",
                           (int)length, name);
        for (int i = 0; i < out->n; i++)
            if (out->indices[i] == index)
                return ot_fail(OT_E_USAGE, "--mix names '%s' twice; remove one of them", mixes[index].name);
        out->indices[out->n++] = index;
    }
    return 0;
}

const char *ot_bench_status_name(enum ot_bench_status status) {
    static const char *const names[OT_BENCH_STATUSES] = {"waiting", "done",    "unfit",
                                                         "same",    "no_time", "failed"};
    return names[status];
}

const char *ot_bench_label(const struct ot_bench_point *point, char text[OT_BENCH_LABEL_BYTES]) {
    char bytes[OT_TEXT_BYTES], tokens[OT_TEXT_BYTES];
    int n = snprintf(text, OT_BENCH_LABEL_BYTES, "%s · %s · %s tokens/step", mixes[point->mix].name,
                     ot_text_bytes(point->gpu_bytes, bytes), ot_text_count(point->step_tokens, tokens));
    if (point->micro_sequences)
        snprintf(text + n, OT_BENCH_LABEL_BYTES - (size_t)n, " in micro-batches of %lld",
                 (long long)(point->micro_sequences * point->sequence_tokens));
    return text;
}

const char *ot_bench_seconds(double seconds, char text[OT_TEXT_BYTES]) {
    bool small = seconds < 0.9995;
    double value = small ? seconds * 1e3 : seconds;
    int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
    snprintf(text, OT_TEXT_BYTES, "%.*f %s", decimals, value, small ? "ms" : "s");
    return text;
}

/* ---- the smallest budgets ---- */

static bool is_resident(const struct ot_plan *plan) {
    bool resident = plan->activations == OT_HOME_GPU && ot_plan_count_tiles(plan, OT_TILE_CPU) == 0 &&
                    ot_plan_count_tiles(plan, OT_TILE_STREAM) == 0;
    for (int s = 0; s < plan->n_slabs; s++)
        resident = resident && plan->slabs[s].weights == OT_HOME_GPU;
    return resident;
}

/* True if the budget is enough for a plan, or for a plan in which everything is resident. */
static bool is_enough(const struct ot_bench_grid *grid, bool resident, int64_t step_tokens,
                      size_t gpu_bytes) {
    struct ot_plan_request request = grid->plan;
    struct ot_plan plan;
    request.weights = request.state = request.activations = AUTO;
    request.step_sequences = step_tokens / request.sequence_tokens;
    request.micro_sequences = 0;
    request.budget_bytes[OT_TIER_GPU] = gpu_bytes;
    if (ot_plan_make(&request, &plan) < 0)
        return false;
    bool enough = !resident || is_resident(&plan);
    ot_plan_free(&plan);
    return enough;
}

/* Finds the budget to a thousandth; the memory of a plan is not known much better. */
enum { GRAINS = 1024 };

/* 0: even the largest budget is too small. */
static int64_t find_least(const struct ot_bench_grid *grid, bool resident, int64_t step_tokens) {
    size_t enough = grid->plan.budget_bytes[OT_TIER_GPU], less = 0;
    if (!is_enough(grid, resident, step_tokens, enough))
        return 0;
    while (enough - less > enough / GRAINS + 1) {
        size_t middle = less + (enough - less) / 2;
        *(is_enough(grid, resident, step_tokens, middle) ? &enough : &less) = middle;
    }
    return (int64_t)enough;
}

/* ---- points ---- */

struct maker {
    const struct ot_bench_grid *grid;
    struct ot_bench_point *points;
    int n;
    bool full; /* there were more points than fit in the table */
};

static bool is_equal(const struct ot_bench_point *a, const struct ot_bench_point *b) {
    return a->mix == b->mix && a->gpu_bytes == b->gpu_bytes && a->step_tokens == b->step_tokens &&
           a->sequence_tokens == b->sequence_tokens && a->micro_sequences == b->micro_sequences;
}

static void add(struct maker *m, int mix, int64_t gpu_bytes, int64_t step_tokens, int64_t micro_sequences) {
    struct ot_bench_point point = {.mix = mix,
                                   .gpu_bytes = gpu_bytes,
                                   .step_tokens = step_tokens,
                                   .sequence_tokens = m->grid->plan.sequence_tokens,
                                   .micro_sequences = micro_sequences};
    if (ot_bench_mix_needs_nvme(mix) && !m->grid->nvme)
        return;
    if (micro_sequences > step_tokens / point.sequence_tokens)
        return; /* larger than the step: the same as one micro-batch */
    for (int i = 0; i < m->n; i++)
        if (is_equal(&m->points[i], &point))
            return;
    m->full = m->full || m->n == OT_BENCH_MAX_POINTS;
    if (!m->full)
        m->points[m->n++] = point;
}

/* Adds a mix at a budget, once for each requested micro-batch. */
static void add_micros(struct maker *m, int mix, int64_t gpu_bytes, int64_t step_tokens) {
    const struct ot_count_list *micro = &m->grid->micro_sequences;
    if (!micro->n)
        add(m, mix, gpu_bytes, step_tokens, 0);
    for (int i = 0; i < micro->n; i++)
        add(m, mix, gpu_bytes, step_tokens, micro->values[i]);
}

/* Adds budgets from the smallest to the one that keeps everything resident, or to the largest allowed.
 */
static void add_planned(struct maker *m, int64_t step_tokens) {
    enum { PARTS = 4 };
    int64_t least = find_least(m->grid, false, step_tokens);
    int64_t all = find_least(m->grid, true, step_tokens);
    if (!all)
        all = (int64_t)m->grid->plan.budget_bytes[OT_TIER_GPU];
    if (!least || least > all)
        least = all;
    for (int64_t i = 0; i <= PARTS; i++)
        add_micros(m, PLANNED, least + (all - least) * i / PARTS, step_tokens);
}

/* Adds the requested mixes, or all mixes, at one budget. */
static void add_mixes(struct maker *m, int64_t gpu_bytes, int64_t step_tokens) {
    const struct ot_bench_mix_list *list = &m->grid->mixes;
    for (int i = 0; i < (list->n ? list->n : N_MIXES); i++)
        add_micros(m, list->n ? list->indices[i] : i, gpu_bytes, step_tokens);
}

static void add_step(struct maker *m, int64_t step_tokens) {
    const struct ot_bench_grid *grid = m->grid;
    for (int b = 0; b < grid->gpu_bytes.n; b++)
        add_mixes(m, grid->gpu_bytes.values[b], step_tokens);
    if (grid->gpu_bytes.n)
        return;
    if (grid->mixes.n) {
        add_mixes(m, (int64_t)grid->plan.budget_bytes[OT_TIER_GPU], step_tokens);
        return;
    }
    for (int mix = 0; mix < PLANNED; mix++)
        add_micros(m, mix, (int64_t)grid->plan.budget_bytes[OT_TIER_GPU], step_tokens);
    add_planned(m, step_tokens);
}

int ot_bench_grid_make(const struct ot_bench_grid *grid, struct ot_bench_point points[OT_BENCH_MAX_POINTS],
                       int *n) {
    struct maker m = {.grid = grid, .points = points};
    int64_t sequence = grid->plan.sequence_tokens, largest = 0;
    *n = 0;
    for (int i = 0; i < grid->step_tokens.n; i++) {
        int64_t whole = grid->step_tokens.values[i] / sequence * sequence;
        largest = ot_max(whole, largest);
        add_step(&m, whole);
    }
    if (!grid->gpu_bytes.n && !grid->mixes.n && !grid->micro_sequences.n && largest > sequence) {
        int64_t most = (int64_t)grid->plan.budget_bytes[OT_TIER_GPU];
        add(&m, ALL_GPU, most, largest, 1);
        add(&m, WEIGHTS_STATE_HOST, most, largest, 1);
    }
    if (m.full)
        return ot_fail(OT_E_USAGE,
                       "the bench has more than %d points; use fewer values in --tokens-per-step, --gpu-mem "
                       "or --micro-batch",
                       OT_BENCH_MAX_POINTS);
    if (m.n == 0)
        return ot_fail(OT_E_USAGE, "--micro-batch is more than the %lld sequences of the largest step",
                       (long long)(largest / sequence));
    *n = m.n;
    return 0;
}

/* ---- the Pareto front ---- */

bool ot_bench_is_on_front(const struct ot_bench *bench, int index) {
    const struct ot_bench_result *r = &bench->results[index];
    if (r->status != OT_BENCH_DONE)
        return false;
    for (int i = 0; i < bench->n; i++) {
        const struct ot_bench_result *other = &bench->results[i];
        if (i == index || other->status != OT_BENCH_DONE ||
            other->point.step_tokens != r->point.step_tokens || other->device_bytes > r->device_bytes ||
            other->step_seconds > r->step_seconds)
            continue;
        bool equal = other->device_bytes == r->device_bytes && other->step_seconds == r->step_seconds;
        if (!equal || i < index)
            return false;
    }
    return true;
}
