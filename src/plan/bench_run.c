#include "src/plan/bench_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/hash.h"
#include "src/base/minmax.h"
#include "src/base/random.h"
#include "src/base/signals.h"
#include "src/machine/process.h"
#include "src/options/options.h"
#include "src/session/open.h"

/* LEAST_STEPS is 1 because there may be time for only one step. More than MOST_STEPS tell nothing new. Before
 * the measured steps come the warm-up step and the step that starts on an idle machine. */
enum {
    LEAST_STEPS = 1,
    MOST_STEPS = 40,
    ALL_STEPS = LEAST_STEPS + 2,
    IN_FLIGHT = 2,
    ARRAYS = 4, /* of the tokens of a step: those of struct rows */
    ARRAYS_OF_PAIRS = 6,
    MAX_TRACED_TASKS = 1 << 20
};

struct bench_run {
    const struct ot_bench_pace *pace;
    struct ot_bench_result *result;
    struct ot_settings settings; /* of this point */
    struct ot_session session;
    double began, step_estimate;
    int32_t *rows; /* struct rows points here */
    struct ot_micro_batch *micro;
    struct ot_step_input input;
    struct ot_store_usage before;
};

/* ---- plan ---- */

static int make_plan(struct bench_run *b) {
    const struct ot_bench_point *point = &b->result->point;
    int arrays = ot_model_has_pairs(&b->session.model.config) ? ARRAYS_OF_PAIRS : ARRAYS;
    struct ot_session_need need = {.max_position = point->sequence_tokens,
                                   .sequence_tokens = point->sequence_tokens,
                                   .step_sequences = point->step_tokens / point->sequence_tokens,
                                   .micro_sequences = point->micro_sequences,
                                   .train = true,
                                   .clip = true,
                                   .host_bytes = point->step_tokens * arrays * (int64_t)sizeof(int32_t)};
    return ot_session_plan(&b->session, &need);
}

static void note_plan(struct bench_run *b) {
    const struct ot_plan *plan = &b->session.plan.chosen;
    struct ot_bench_result *r = b->result;
    int64_t sequence = r->point.sequence_tokens, sequences = r->point.step_tokens / sequence;
    r->micro_sequences = ot_plan_micro_sequences(plan, sequence);
    r->micro_batches = (sequences + r->micro_sequences - 1) / r->micro_sequences;
    r->recomputed_layers = b->session.model.config.n_layers - ot_plan_kept_blocks(plan, OT_TIER_COUNT);
    for (int tier = 0; tier < OT_TIER_COUNT; tier++)
        r->planned_bytes[tier] = (int64_t)ot_ledger_total(&plan->ledger, (enum ot_tier)tier);
    r->planned_bytes[OT_TIER_GPU] += (int64_t)b->session.machine.workspace_bytes;
    const struct ot_prediction *prediction = &b->session.plan.prediction;
    r->predicted_seconds = prediction->step_seconds;
    memcpy(r->predicted_lanes.busy, prediction->busy, sizeof prediction->busy);
    memcpy(r->predicted_lanes.exposed, prediction->exposed, sizeof prediction->exposed);
    r->predicted_lanes.exposed_host = prediction->exposed_host;
}

/* A hash of the fields that make two plans of one model equal or different. */
static uint64_t identify_plan(const struct ot_plan *plan) {
    uint64_t hash = OT_FNV64;
    for (int s = 0; s < plan->n_slabs; s++) {
        const struct ot_slab_plan *slab = &plan->slabs[s];
        int64_t facts[] = {slab->weights,
                           slab->state,
                           slab->grads,
                           slab->sums,
                           slab->tiles[OT_TILE_GPU],
                           slab->tiles[OT_TILE_STREAM],
                           slab->tiles[OT_TILE_CPU]};
        hash = ot_fnv64(hash, facts, sizeof facts);
    }
    for (int e = 0; e < plan->ledger.n; e++)
        hash = ot_fnv64(hash, &plan->ledger.entries[e].bytes, sizeof plan->ledger.entries[e].bytes);
    int64_t facts[] = {plan->activations, plan->micro_tokens, plan->max_micro,  plan->tile_params,
                       plan->first_round, plan->round_micro,  plan->kept_slots, plan->clip};
    hash = ot_fnv64(hash, plan->kept, sizeof plan->kept);
    return ot_fnv64(hash, facts, sizeof facts);
}

static bool is_earlier(struct bench_run *b, const struct ot_bench_result *earlier, int n_earlier) {
    char label[OT_BENCH_LABEL_BYTES];
    b->result->plan_key = identify_plan(&b->session.plan.chosen);
    for (int i = 0; i < n_earlier; i++)
        if (earlier[i].plan_key == b->result->plan_key &&
            earlier[i].point.step_tokens == b->result->point.step_tokens) {
            b->result->status = OT_BENCH_SAME;
            snprintf(b->result->reason, OT_BENCH_REASON_BYTES, "same plan as point %d: %s", i + 1,
                     ot_bench_label(&earlier[i].point, label));
            return true;
        }
    return false;
}

static void note_no_time(struct bench_run *b) {
    b->result->status = OT_BENCH_NO_TIME;
    snprintf(b->result->reason, OT_BENCH_REASON_BYTES,
             "its steps take too long for the time limit; raise --%s",
             b->settings.in_effect.time_per_point > 0 ? "time-per-point" : "minutes");
}

/* True if the time of the point is enough for the first steps and the fewest measured steps. */
static bool has_time(struct bench_run *b) {
    const struct ot_bench_pace *pace = b->pace;
    double predicted = b->result->predicted_seconds;
    b->step_estimate = predicted > 0 ? predicted * pace->measured_over_predicted : pace->guess_seconds;
    if (b->step_estimate * ALL_STEPS <= pace->most_seconds)
        return true;
    note_no_time(b);
    return false;
}

/* ---- random rows ---- */

/* The rows of a step; each array has a value for every token. */
struct rows {
    int32_t *tokens, *targets, *position, *row_start, *input_first, *input_end;
};

/* Sets the positions and row starts of n tokens from `at` on, in rows of `sequence`. */
static void put_places(const struct rows *rows, int64_t at, int64_t n, int64_t sequence) {
    for (int64_t i = 0; i < n; i++) {
        rows->position[at + i] = (int32_t)(i % sequence);
        rows->row_start[at + i] = (int32_t)(i - i % sequence);
        if ((i + 1) % sequence == 0)
            rows->targets[at + i] = -1;
    }
}

/* The same of an encoder-decoder: half of each row are inputs, as a prediction has them. Returns the number
 * of inputs. */
static int64_t put_pairs(const struct rows *rows, int64_t at, int64_t n, int64_t sequence) {
    int64_t half = sequence / 2, n_inputs = n / sequence * half;
    for (int64_t i = 0; i < n; i++) {
        int64_t part = i < n_inputs ? 0 : n_inputs, length = part > 0 ? sequence - half : half;
        int64_t row = (i - part) / length;
        rows->position[at + i] = (int32_t)((i - part) % length);
        rows->row_start[at + i] = (int32_t)(part + row * length);
        rows->input_first[at + i] = (int32_t)(row * half);
        rows->input_end[at + i] = (int32_t)((row + 1) * half);
        if (part == 0)
            rows->targets[at + i] = -1;
    }
    return n_inputs;
}

/* Random tokens, each of which has the next one as its target. */
static int alloc_rows(struct bench_run *b, bool pairs, struct rows *rows) {
    int64_t n = b->result->point.step_tokens;
    uint64_t stream = ot_random_stream(OT_RANDOM_SAMPLE, 0, 0), seed = (uint64_t)b->settings.in_effect.seed;
    uint64_t vocab = (uint64_t)b->session.model.config.vocab;
    int32_t *all = b->rows = malloc((size_t)(n * (pairs ? ARRAYS_OF_PAIRS : ARRAYS)) * sizeof *b->rows);
    b->micro = calloc((size_t)b->result->micro_batches, sizeof *b->micro);
    if (!b->rows || !b->micro)
        return ot_fail(OT_E_BUDGET, "no memory for %lld random tokens", (long long)n);
    *rows = (struct rows){
        all, all + n, all + 2 * n, all + 3 * n, pairs ? all + 4 * n : NULL, pairs ? all + 5 * n : NULL};
    for (int64_t i = 0; i < n; i++)
        rows->tokens[i] = (int32_t)ot_random_below(seed, stream, (uint64_t)i, vocab);
    for (int64_t i = 0; i < n; i++)
        rows->targets[i] = rows->tokens[i + 1 < n ? i + 1 : 0];
    return 0;
}

static int make_rows(struct bench_run *b) {
    const struct ot_bench_point *point = &b->result->point;
    int64_t n = point->step_tokens, sequence = point->sequence_tokens,
            micro = b->session.plan.chosen.micro_tokens;
    bool pairs = ot_model_has_pairs(&b->session.model.config);
    struct rows rows = {0};
    OT_TRY(alloc_rows(b, pairs, &rows));
    b->input = (struct ot_step_input){
        .n_micro = (int)b->result->micro_batches, .micro = b->micro, .n_losses = n, .lr = 1e-5f};
    for (int64_t at = 0, m = 0; at < n; at += micro, m++) {
        struct ot_micro_batch *mb = &b->micro[m];
        *mb = (struct ot_micro_batch){.n_tokens = ot_min(n - at, micro),
                                      .tokens = rows.tokens + at,
                                      .targets = rows.targets + at,
                                      .position = rows.position + at,
                                      .row_start = rows.row_start + at};
        if (pairs) {
            mb->n_inputs = put_pairs(&rows, at, mb->n_tokens, sequence);
            mb->input_first = rows.input_first + at;
            mb->input_end = rows.input_end + at;
        } else {
            put_places(&rows, at, mb->n_tokens, sequence);
        }
        b->input.n_losses -= pairs ? mb->n_inputs : mb->n_tokens / sequence;
    }
    return 0;
}

/* ---- steps ---- */

static double seconds_left(const struct bench_run *b) {
    return b->pace->target_seconds - (ot_clock_seconds() - b->began);
}

/* Runs the first step, which sees all shapes and touches all memory. It is not measured. */
static int warm_up(struct bench_run *b) {
    struct ot_step_result step;
    struct ot_device_tuning tuning;
    struct ot_engine *engine = b->session.engine;
    OT_TRY(ot_engine_submit(engine, &b->input));
    OT_TRY(ot_engine_result(engine, &step));
    OT_TRY(ot_engine_drain(engine));
    if (b->step_estimate == 0 && step.seconds * ALL_STEPS > b->pace->most_seconds) {
        note_no_time(b); /* there was no estimate before */
        return 0;
    }
    double tune = seconds_left(b) / 4;
    if (tune > 0)
        OT_TRY(ot_engine_tune(engine, ot_min(tune, 3), &tuning));
    ot_trace_clear(b->session.trace);
    ot_engine_store_usage(engine, &b->before);
    return 0;
}

/* Submits steps, two in flight, while there is time for another. Returns the number of results, with the time
 * of each step in seconds[]. The first of these steps started on an idle machine. */
static int run_steps(struct bench_run *b, double seconds[MOST_STEPS + 1], int *done) {
    struct ot_engine *engine = b->session.engine;
    int submitted = 0;
    double longest = 0;
    *done = 0;
    do {
        bool more = submitted <= LEAST_STEPS ||
                    (submitted <= MOST_STEPS && seconds_left(b) > (IN_FLIGHT + 1) * longest);
        while (more && submitted <= MOST_STEPS && submitted - *done < IN_FLIGHT && !ot_stop_requested()) {
            OT_TRY(ot_engine_submit(engine, &b->input));
            submitted++;
        }
        if (*done < submitted) {
            struct ot_step_result step;
            OT_TRY(ot_engine_result(engine, &step));
            seconds[*done] = step.seconds;
            longest = ot_max(step.seconds, longest);
            ++*done;
        }
    } while (*done < submitted);
    return ot_engine_drain(engine);
}

static int compare_reals(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void note_steps(struct ot_bench_result *r, double *seconds, int n) {
    qsort(seconds, (size_t)n, sizeof *seconds, compare_reals);
    r->steps = n;
    r->step_seconds = (seconds[(n - 1) / 2] + seconds[n / 2]) / 2;
    r->fastest_seconds = seconds[0];
    r->slowest_seconds = seconds[n - 1];
    r->tokens_per_second = (double)r->point.step_tokens / r->step_seconds;
}

/* The update of the last step has no next step to overlap with, so it is not part of the lanes' times. With
 * few steps it would say that the lanes are far slower than in a long run. */
static int note_lanes(struct bench_run *b, int steps) {
    struct ot_bench_result *r = b->result;
    struct ot_trace_summary sum;
    struct ot_store_usage after;
    ot_engine_store_usage(b->session.engine, &after);
    r->nvme_read_bytes = (after.read_bytes - b->before.read_bytes) / steps;
    r->nvme_write_bytes = (after.written_bytes - b->before.written_bytes) / steps;
    OT_TRY(ot_trace_summarise_full(b->session.trace, &sum));
    double n = sum.steps > 0 ? (double)sum.steps : 1;
    for (int l = 0; l < OT_LANE_COUNT; l++) {
        r->lanes.busy[l] = sum.busy[l] / n;
        r->lanes.exposed[l] = sum.exposed[l] / n;
    }
    r->lanes.exposed_host = sum.exposed_host / n;
    return 0;
}

static void note_memory(struct bench_run *b) {
    struct ot_device_usage usage;
    ot_device_usage(b->session.machine.device, &usage);
    b->result->device_bytes = (int64_t)usage.peak_bytes;
    b->result->pinned_bytes = (int64_t)usage.pinned_peak_bytes;
    b->result->resident_bytes = ot_process_peak();
}

static int measure(struct bench_run *b) {
    double seconds[MOST_STEPS + 1];
    struct ot_optimizer_config optimizer = {
        .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.01f, .clip = 1};
    int done;
    b->session.model.any_weights = true;
    b->session.traced_tasks = MAX_TRACED_TASKS;
    OT_TRY(ot_session_start(&b->session, &optimizer));
    OT_TRY(make_rows(b));
    OT_TRY(warm_up(b));
    if (b->result->status == OT_BENCH_NO_TIME)
        return 0;
    OT_TRY(run_steps(b, seconds, &done));
    if (done < 2) {
        snprintf(b->result->reason, OT_BENCH_REASON_BYTES, "stopped by a signal");
        return 0;
    }
    note_steps(b->result, seconds + 1, done - 1);
    note_memory(b);
    OT_TRY(note_lanes(b, done));
    b->result->status = OT_BENCH_DONE;
    return 0;
}

/* ---- the point ---- */

static void choose_options(struct bench_run *b, const struct ot_options *options) {
    const struct ot_bench_point *point = &b->result->point;
    struct ot_options of_point = *options;
    of_point.home = ot_bench_mix_at(point->mix)->home;
    of_point.gpu_mem = point->gpu_bytes;
    b->settings = (struct ot_settings){of_point};
}

/* Records an error that ends only this point. If its plan does not fit, keeps the shortage and drops the
 * cures of the sentence: they are options of a run. */
static int note_failure(struct ot_bench_result *r, enum ot_bench_status status, int rc) {
    if (rc == -OT_E_INTERNAL || rc == -OT_E_STALL) /* ends the bench */
        return rc;
    r->status = status;
    snprintf(r->reason, OT_BENCH_REASON_BYTES, "%.*s", ot_error_reason_bytes(), ot_cure_text());
    return 0;
}

int ot_bench_measure(const struct ot_options *options, const struct ot_costs *costs,
                     const struct ot_bench_pace *pace, const struct ot_bench_result *earlier, int n_earlier,
                     struct ot_bench_result *result) {
    struct bench_run *b = calloc(1, sizeof *b);
    if (!b)
        return ot_fail(OT_E_BUDGET, "no memory");
    b->pace = pace;
    b->result = result;
    b->began = ot_clock_seconds();
    choose_options(b, options);
    ot_process_forget_peak();
    int rc = ot_session_open_model(&b->settings, &b->session);
    b->session.plan.costs = costs;
    rc = rc == 0 ? make_plan(b) : rc;
    if (rc < 0) {
        rc = note_failure(result, rc == -OT_E_BUDGET || rc == -OT_E_USAGE ? OT_BENCH_UNFIT : OT_BENCH_FAILED,
                          rc);
        goto out;
    }
    note_plan(b);
    if (is_earlier(b, earlier, n_earlier) || !has_time(b))
        goto out;
    rc = measure(b);
    if (rc < 0)
        rc = note_failure(result, OT_BENCH_FAILED, rc);
out:
    ot_session_close(&b->session);
    free(b->micro);
    free(b->rows);
    free(b);
    return rc;
}
