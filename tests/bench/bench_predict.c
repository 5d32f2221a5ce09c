/* Predicted against measured time of a training step on the cpu device, over models, dtypes and placements.
 * Rates come from a quick probe and block costs from calibration, both in the same run.
 *
 *     bench_predict [THREADS [STEPS [MODEL]]]     default: all CPUs, 6 steps (the first two are not counted),
 *                                                 all models
 *
 * Prints one line per case: the step's time predicted and measured, and how busy the lanes were
 * (predicted/measured, in percent of the step). The last line gives the median error and the worst error. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "models/model.h"
#include "offload/engine/engine.h"
#include "offload/plan/make.h"
#include "offload/predict/calibrate.h"
#include "offload/predict/simulate.h"
#include "offload/probe/probe.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/random.h"

enum { SEQUENCE = 256, SEQUENCES = 8, STEP_TOKENS = SEQUENCE * SEQUENCES, MOST_CASES = 64 };

struct shape {
    const char *name;
    int64_t layers, hidden, ffn, heads, vocab;
};
static const struct shape shapes[] = {
    {"wide", 3, 512, 1376, 8, 4096}, {"deep", 8, 256, 688, 4, 2048}, {"tiny", 4, 128, 352, 4, 1024}};

struct placement {
    const char *name;
    enum ot_home weights, state, activations;
    double shares[OT_TILE_ENGINES];
    int recompute, micro;
};
static const struct placement placements[] = {
    {"all device", OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, {0}, 0, 4},
    {"recompute", OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, {0}, 1, 2},
    {"state on host", OT_HOME_GPU, OT_HOME_HOST, OT_HOME_GPU, {0, 0, 1}, 0, 4},
    {"all host", OT_HOME_HOST, OT_HOME_HOST, OT_HOME_HOST, {0, 0, 1}, 1, 2},
    {"streamed", OT_HOME_HOST, OT_HOME_HOST, OT_HOME_GPU, {0, 1, 0}, 1, 4},
    {"shared", OT_HOME_HOST, OT_HOME_AUTO, OT_HOME_GPU, {0.3, 0.3, 0.4}, 0, 2},
};

static void must(int rc) {
    if (rc >= 0)
        return;
    fprintf(stderr, "bench_predict: %s\n", ot_error_text());
    exit(1);
}

static struct ot_model_config config_of(const struct shape *s) {
    int64_t head = s->hidden / s->heads;
    return (struct ot_model_config){.family = OT_FAMILY_LLAMA,
                                    .n_layers = s->layers,
                                    .hidden = s->hidden,
                                    .ffn = s->ffn,
                                    .n_heads = s->heads,
                                    .n_kv_heads = s->heads,
                                    .head_dim = head,
                                    .vocab = s->vocab,
                                    .max_position = SEQUENCE,
                                    .norm = OT_NORM_RMS,
                                    .norm_eps = 1e-5f,
                                    .act = OT_ACT_SILU,
                                    .rope_theta = 10000,
                                    .rotary_dim = head,
                                    .init_std = 0.02};
}

/* ---- rates ---- */

static int add_row(void *context, const struct ot_probe_row *row) {
    ot_probe_add(context, row);
    return 0;
}

static struct ot_rates probe(struct ot_device *device, enum ot_dtype dtype, int threads) {
    struct ot_probe_sums sums = {0};
    struct ot_probe_reader reader = {add_row, &sums};
    struct ot_rates rates = {.cores = (int)sysconf(_SC_NPROCESSORS_ONLN),
                             .device_is_host = true,
                             .device_threads = threads,
                             .optimizer_threads = threads};
    size_t bytes = ot_probe_buffer_bytes(768, 512);
    must(ot_probe_device(&(struct ot_probe_config){.device = device,
                                                   .dtype = dtype,
                                                   .hidden = 768,
                                                   .tokens = 512,
                                                   .buffer_bytes = bytes,
                                                   .seconds = 0.1,
                                                   .quick = true,
                                                   .reader = reader}));
    must(ot_probe_host(&(struct ot_probe_host_config){.dtype = dtype,
                                                      .threads = threads,
                                                      .optimizer_threads = threads,
                                                      .bytes = (size_t)64 << 20,
                                                      .seconds = 0.2,
                                                      .quick = true,
                                                      .reader = reader}));
    ot_probe_put_rates(&sums, &rates);
    return rates;
}

/* ---- running ---- */

static int32_t tokens[STEP_TOKENS], targets[STEP_TOKENS], position[STEP_TOKENS], row_start[STEP_TOKENS];

static struct ot_step_input fill_batch(const struct ot_plan *plan, int64_t vocab,
                                       struct ot_micro_batch micro[SEQUENCES]) {
    struct ot_step_input input = {.micro = micro, .lr = 1e-4f, .trained_tokens = STEP_TOKENS};
    for (int64_t i = 0; i < STEP_TOKENS; i++) {
        int64_t in_row = i % SEQUENCE, in_micro = i % plan->micro_tokens;
        tokens[i] = (int32_t)ot_random_below(1, 1, (uint64_t)i, (uint64_t)vocab);
        targets[i] = (int32_t)ot_random_below(1, 2, (uint64_t)i, (uint64_t)vocab);
        position[i] = (int32_t)in_row;
        row_start[i] = (int32_t)(in_micro - in_row);
    }
    for (int64_t at = 0; at < STEP_TOKENS; at += plan->micro_tokens)
        micro[input.n_micro++] = (struct ot_micro_batch){plan->micro_tokens, tokens + at, targets + at,
                                                         position + at, row_start + at};
    return input;
}

static void set_weights(struct ot_engine *engine, const struct ot_model *model) {
    const struct ot_chain *chain = ot_model_chain(model);
    for (int s = 0; s < chain->n_slabs; s++) {
        int64_t n = chain->slabs[s].n_params;
        float *values = malloc((size_t)n * sizeof *values);
        if (!values)
            exit(1);
        ot_model_init_values(model, 1, s, 0, n, values);
        must(ot_engine_set(engine, OT_SLAB_MASTER, s, 0, n, values));
        free(values);
    }
}

/* Measures from the second step's decision to the last step's decision. */
static struct ot_trace_summary measure(struct ot_device *device, const struct ot_model *model,
                                       const struct ot_plan *plan, int threads, int steps) {
    const struct ot_chain *chain = ot_model_chain(model);
    struct ot_trace *trace;
    struct ot_engine *engine;
    struct ot_trace_summary sum;
    struct ot_step_result result;
    struct ot_micro_batch micro[SEQUENCES];
    must(ot_trace_open(chain, 1 << 24, &trace));
    must(ot_engine_open(&(struct ot_engine_config){.chain = chain,
                                                   .device = device,
                                                   .plan = plan,
                                                   .optimizer = {0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 0},
                                                   .optimizer_threads = threads,
                                                   .trace = trace},
                        &engine));
    set_weights(engine, model);
    struct ot_step_input input = fill_batch(plan, chain->vocab, micro);
    for (int step = 0; step < steps; step++) {
        must(ot_engine_submit(engine, &input));
        if (step > 0)
            must(ot_engine_result(engine, &result));
    }
    must(ot_engine_result(engine, &result));
    must(ot_engine_drain(engine));
    must(ot_trace_summarise_between(trace, 2, steps, &sum));
    ot_engine_close(engine);
    ot_trace_close(trace);
    return sum;
}

/* ---- one case ---- */

static int make_plan(const struct ot_chain *chain, const struct placement *p, struct ot_plan *plan) {
    const size_t plenty = (size_t)1 << 40;
    struct ot_plan_request request = {.chain = chain,
                                      .budget_bytes = {plenty, plenty},
                                      .sequence_tokens = SEQUENCE,
                                      .step_sequences = SEQUENCES,
                                      .micro_sequences = p->micro,
                                      .train = true,
                                      .clip = true,
                                      .weights = p->weights,
                                      .state = p->state,
                                      .activations = p->activations,
                                      .keep = p->recompute ? OT_KEEP_NONE : OT_KEEP_PRODUCTS};
    memcpy(request.shares, p->shares, sizeof request.shares);
    return ot_plan_make(&request, plan);
}

static double run_case(struct ot_device *device, const struct ot_model *model, const struct ot_rates *rates,
                       const struct shape *shape, const struct placement *p, int threads, int steps) {
    const struct ot_chain *chain = ot_model_chain(model);
    struct ot_plan plan;
    struct ot_costs costs;
    struct ot_prediction predicted;
    must(make_plan(chain, p, &plan));
    must(ot_calibrate(
        &(struct ot_calibration){chain, device, rates, plan.micro_tokens, SEQUENCE, (size_t)1 << 30, 1.0},
        &costs));
    must(ot_simulate_plan(chain, &plan, &costs, &predicted));
    struct ot_trace_summary sum = measure(device, model, &plan, threads, steps);
    double measured = sum.seconds / (double)sum.steps, error = predicted.step_seconds / measured - 1;
    printf("%-5s %-5s %-14s %9.2f ms predicted %9.2f ms measured %+7.1f %%  ", ot_dtype_name(chain->dtype),
           shape->name, p->name, predicted.step_seconds * 1e3, measured * 1e3, error * 100);
    for (int l = 0; l <= OT_LANE_CPU; l++)
        printf(" %s %.0f/%.0f", ot_lane_name((enum ot_lane_id)l),
               100 * predicted.busy[l] / predicted.step_seconds, 100 * sum.busy[l] / sum.seconds);
    printf(" host %.0f/%.0f\n", 100 * predicted.exposed_host / predicted.step_seconds,
           100 * sum.exposed_host / sum.seconds);
    fflush(stdout);
    ot_costs_free(&costs);
    ot_plan_free(&plan);
    return fabs(error);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    int steps = argc > 2 ? atoi(argv[2]) : 6, n = 0;
    double errors[MOST_CASES];
    if (threads < 1 || steps < 3) {
        fprintf(stderr,
                "usage: bench_predict [THREADS [STEPS [wide|deep|tiny]]]   (STEPS must be at least 3)\n");
        return 2;
    }
    for (enum ot_dtype dtype = OT_F32; dtype <= OT_BF16; dtype++) {
        struct ot_device *device;
        must(ot_device_open(&(struct ot_device_config){.kind = "cpu", .threads = threads}, &device));
        struct ot_rates rates = probe(device, dtype, threads);
        printf(
            "%-5s products %.0f GFLOP/s, attention %.0f, device %.1f GB/s, copies %.1f and %.1f, both %.1f, "
            "triad %.1f, AdamW %.1f, %.1f us a task\n",
            ot_dtype_name(dtype), rates.product_flops * 1e-9, rates.attention_flops * 1e-9,
            rates.device_bytes * 1e-9, rates.h2d_bytes * 1e-9, rates.d2h_bytes * 1e-9,
            rates.both_bytes * 1e-9, rates.triad_bytes * 1e-9, rates.adamw_bytes[OT_STATE_F32] * 1e-9,
            rates.task_seconds * 1e6);
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            struct ot_model_config config = config_of(&shapes[s]);
            if (argc > 3 && strcmp(argv[3], shapes[s].name) != 0)
                continue;
            struct ot_model *model;
            must(ot_model_open(&config, dtype, SEQUENCE, &model));
            for (size_t p = 0; p < sizeof placements / sizeof *placements; p++)
                errors[n++] = run_case(device, model, &rates, &shapes[s], &placements[p], threads, steps);
            ot_model_close(model);
        }
        ot_device_close(device);
    }
    qsort(errors, (size_t)n, sizeof *errors, ascending);
    printf("%d cases: error %.1f %% median, %.1f %% worst\n", n, 100 * errors[n / 2], 100 * errors[n - 1]);
    return 0;
}
