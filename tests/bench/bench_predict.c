/* Predicted against measured time of a training step on the cpu device, over models, dtypes, homes of weights
 * and state, kept activations, formats of the state, and all that may live on a disk. Rates come from a quick
 * probe and block costs from calibration, both in the same run.
 *
 *     bench_predict DIR [THREADS [ROUNDS [WORD]]]     DIR: on the disk to use; default: all CPUs, 2 rounds
 *
 * A round probes the machine, then predicts and measures each case whose line has WORD in it. Other programs
 * make a machine slower and never faster, so the least of the rounds' predictions is compared with the least
 * of their measurements.
 *
 * In each round, prints a line per case with the best so far: the step's time predicted and measured, the
 * error, the error after the step was predicted again from two of its steps (simulate.h), and how busy the
 * lanes were (predicted/measured, in percent of the step). At the end of a round: the median and the worst
 * error, of groups and of all. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "models/model.h"
#include "offload/engine/engine.h"
#include "offload/plan/plan_search.h"
#include "offload/plan/slabs.h"
#include "offload/predict/calibrate.h"
#include "offload/predict/simulate.h"
#include "offload/probe/probe.h"
#include "src/base/error.h"
#include "src/base/random.h"

enum { SEQUENCE = 256, SEQUENCES = 8, STEP_TOKENS = SEQUENCE * SEQUENCES, STEPS = 6, MOST_CASES = 256 };

struct shape {
    const char *name;
    int64_t layers, hidden, ffn, heads, vocab;
};
static const struct shape shapes[] = {
    {"wide", 3, 512, 1376, 8, 4096}, {"deep", 8, 256, 688, 4, 2048}, {"tiny", 4, 128, 352, 4, 1024}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* What a case asks of its plan. keep: OT_KEEP_CHOSEN, or the level of all layers. */
struct placement {
    const char *group, *name;
    enum ot_home weights, state, grads, activations, kept;
    double fractions[OT_TILE_ENGINES];
    int keep, micro;
    enum ot_state_format format;
};
#define GPU  OT_HOME_GPU
#define HOST OT_HOME_HOST
#define NVME OT_HOME_NVME
#define AUTO OT_HOME_AUTO
#define CPU_ALONE                                                                                            \
    { 0, 0, 1 }
static const struct placement placements[] = {
    {"homes", "all device", GPU, GPU, AUTO, GPU, AUTO, {0}, OT_KEEP_PRODUCTS, 4, 0},
    {"homes", "recompute", GPU, GPU, AUTO, GPU, AUTO, {0}, OT_KEEP_NONE, 2, 0},
    {"homes", "state on host", GPU, HOST, AUTO, GPU, AUTO, CPU_ALONE, OT_KEEP_PRODUCTS, 4, 0},
    {"homes", "all host", HOST, HOST, AUTO, HOST, AUTO, CPU_ALONE, OT_KEEP_NONE, 2, 0},
    {"homes", "streamed", HOST, HOST, AUTO, GPU, AUTO, {0, 1, 0}, OT_KEEP_NONE, 4, 0},
    {"homes", "shared", HOST, AUTO, AUTO, GPU, AUTO, {0.3, 0.3, 0.4}, OT_KEEP_PRODUCTS, 2, 0},
    {"kept", "attention, gpu", HOST, HOST, AUTO, HOST, GPU, CPU_ALONE, OT_KEEP_ATTENTION, 2, 0},
    {"kept", "attention, host", HOST, HOST, AUTO, HOST, HOST, CPU_ALONE, OT_KEEP_ATTENTION, 2, 0},
    {"kept", "attention, nvme", HOST, HOST, AUTO, HOST, NVME, CPU_ALONE, OT_KEEP_ATTENTION, 2, 0},
    {"kept", "products, gpu", HOST, HOST, AUTO, HOST, GPU, CPU_ALONE, OT_KEEP_PRODUCTS, 2, 0},
    {"kept", "products, host", HOST, HOST, AUTO, HOST, HOST, CPU_ALONE, OT_KEEP_PRODUCTS, 2, 0},
    {"kept", "products, nvme", HOST, HOST, AUTO, HOST, NVME, CPU_ALONE, OT_KEEP_PRODUCTS, 2, 0},
    {"kept", "all, gpu", HOST, HOST, AUTO, HOST, GPU, CPU_ALONE, OT_KEEP_ALL, 2, 0},
    {"kept", "all, host", HOST, HOST, AUTO, HOST, HOST, CPU_ALONE, OT_KEEP_ALL, 2, 0},
    {"kept", "all, nvme", HOST, HOST, AUTO, HOST, NVME, CPU_ALONE, OT_KEEP_ALL, 2, 0},
    {"disk", "state", GPU, NVME, HOST, GPU, AUTO, CPU_ALONE, OT_KEEP_PRODUCTS, 4, 0},
    {"disk", "gradients", GPU, HOST, NVME, GPU, AUTO, CPU_ALONE, OT_KEEP_PRODUCTS, 4, 0},
    {"disk", "state, gradients", HOST, NVME, NVME, GPU, AUTO, CPU_ALONE, OT_KEEP_PRODUCTS, 4, 0},
    {"disk", "all but activations", NVME, NVME, NVME, GPU, AUTO, CPU_ALONE, OT_KEEP_NONE, 4, 0},
    {"disk", "all", NVME, NVME, NVME, NVME, AUTO, CPU_ALONE, OT_KEEP_NONE, 2, 0},
    {"compact", "16bit, cpu", GPU, HOST, AUTO, GPU, AUTO, CPU_ALONE, OT_KEEP_PRODUCTS, 4, OT_STATE_16BIT},
    {"compact", "16bit, streamed", HOST, HOST, AUTO, GPU, AUTO, {0, 1, 0}, OT_KEEP_NONE, 4, OT_STATE_16BIT},
    {"compact", "16bit, disk", GPU, NVME, HOST, GPU, AUTO, CPU_ALONE, OT_KEEP_PRODUCTS, 4, OT_STATE_16BIT},
    {"compact", "8bit, device", GPU, GPU, AUTO, GPU, AUTO, {0}, OT_KEEP_PRODUCTS, 4, OT_STATE_8BIT},
    {"compact", "8bit, cpu", GPU, HOST, AUTO, GPU, AUTO, CPU_ALONE, OT_KEEP_PRODUCTS, 4, OT_STATE_8BIT},
    {"compact", "8bit, streamed", HOST, HOST, AUTO, GPU, AUTO, {0, 1, 0}, OT_KEEP_NONE, 4, OT_STATE_8BIT},
    {"compact", "8bit, disk", GPU, NVME, HOST, GPU, AUTO, CPU_ALONE, OT_KEEP_PRODUCTS, 4, OT_STATE_8BIT},
};
enum { PLACEMENTS = sizeof placements / sizeof *placements, GROUPS = 5 };

/* The best of the rounds. */
struct best {
    char name[96];
    const char *group;
    double predicted, again, measured; /* seconds; 0: not yet */
    struct ot_prediction prediction;
    struct ot_trace_summary sum;
};

struct bench {
    struct ot_store_dir dir;
    struct ot_store_config store;
    int threads, rounds;
    const char *word;
    struct ot_rates rates; /* of the round and the dtype */
    struct ot_device *device;
    struct best cases[MOST_CASES];
    int n_cases;
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
                                    .rope.theta = 10000,
                                    .rotary_dim = head,
                                    .init_std = 0.02};
}

/* ---- rates ---- */

static int add_row(void *context, const struct ot_probe_row *row) {
    ot_probe_add(context, row);
    return 0;
}

static struct ot_rates probe(const struct bench *b, enum ot_dtype dtype) {
    struct ot_probe_sums sums = {0};
    struct ot_probe_reader reader = {add_row, &sums};
    struct ot_probe_nvme_result disk;
    struct ot_rates rates = {.cores = (int)sysconf(_SC_NPROCESSORS_ONLN),
                             .device_is_host = true,
                             .device_threads = b->threads,
                             .optimizer_threads = b->threads};
    size_t bytes = ot_probe_buffer_bytes(768, 512);
    must(ot_probe_device(&(struct ot_probe_config){.device = b->device,
                                                   .dtype = dtype,
                                                   .hidden = 768,
                                                   .tokens = 512,
                                                   .buffer_bytes = bytes,
                                                   .seconds = 0.1,
                                                   .quick = true,
                                                   .reader = reader}));
    must(ot_probe_host(&(struct ot_probe_host_config){.dtype = dtype,
                                                      .threads = b->threads,
                                                      .optimizer_threads = b->threads,
                                                      .bytes = (size_t)64 << 20,
                                                      .seconds = 0.2,
                                                      .quick = true,
                                                      .reader = reader}));
    must(ot_probe_nvme(
        &(struct ot_probe_nvme_config){
            .store = &b->store, .bytes = (size_t)256 << 20, .seconds = 0.2, .quick = true, .reader = reader},
        &disk));
    ot_probe_put_rates(&sums, &rates);
    return rates;
}

/* ---- running ---- */

static int32_t tokens[STEP_TOKENS], targets[STEP_TOKENS], position[STEP_TOKENS], row_start[STEP_TOKENS];

static struct ot_step_input fill_batch(const struct ot_plan *plan, int64_t vocab,
                                       struct ot_micro_batch micro[SEQUENCES]) {
    struct ot_step_input input = {.micro = micro, .lr = 1e-4f, .n_losses = STEP_TOKENS};
    for (int64_t i = 0; i < STEP_TOKENS; i++) {
        int64_t in_row = i % SEQUENCE, in_micro = i % plan->micro_tokens;
        tokens[i] = (int32_t)ot_random_below(1, 1, (uint64_t)i, (uint64_t)vocab);
        targets[i] = (int32_t)ot_random_below(1, 2, (uint64_t)i, (uint64_t)vocab);
        position[i] = (int32_t)in_row;
        row_start[i] = (int32_t)(in_micro - in_row);
    }
    for (int64_t at = 0; at < STEP_TOKENS; at += plan->micro_tokens)
        micro[input.n_micro++] = (struct ot_micro_batch){.n_tokens = plan->micro_tokens,
                                                         .tokens = tokens + at,
                                                         .targets = targets + at,
                                                         .position = position + at,
                                                         .row_start = row_start + at};
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

/* Measures steps from the second step's decision to the last step's decision, and whole steps. */
static void measure(const struct bench *b, const struct ot_model *model, const struct ot_plan *plan,
                    struct ot_trace_summary *out, struct ot_trace_summary *whole) {
    const struct ot_chain *chain = ot_model_chain(model);
    struct ot_trace *trace;
    struct ot_engine *engine;
    struct ot_step_result result;
    struct ot_micro_batch micro[SEQUENCES];
    must(ot_trace_open(chain, 1 << 24, &trace));
    must(ot_engine_open(&(struct ot_engine_config){.chain = chain,
                                                   .device = b->device,
                                                   .plan = plan,
                                                   .optimizer = {0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 0},
                                                   .optimizer_threads = b->threads,
                                                   .store = &b->store,
                                                   .trace = trace},
                        &engine));
    set_weights(engine, model);
    struct ot_step_input input = fill_batch(plan, chain->vocab, micro);
    for (int step = 0; step < STEPS; step++) {
        must(ot_engine_submit(engine, &input));
        if (step > 0)
            must(ot_engine_result(engine, &result));
    }
    must(ot_engine_result(engine, &result));
    must(ot_engine_drain(engine));
    must(ot_trace_summarise_between(trace, 2, STEPS, out));
    must(ot_trace_summarise_steps(trace, 3, 4, whole));
    ot_engine_close(engine);
    ot_trace_close(trace);
}

/* ---- one case ---- */

static void make_plan(const struct ot_chain *chain, const struct placement *p, struct ot_plan *plan) {
    const size_t plenty = (size_t)1 << 40;
    struct ot_plan_request request = {.chain = chain,
                                      .budget_bytes = {plenty, plenty, plenty},
                                      .sequence_tokens = SEQUENCE,
                                      .step_sequences = SEQUENCES,
                                      .micro_sequences = p->micro,
                                      .train = true,
                                      .clip = true,
                                      .weights = p->weights,
                                      .state = p->state,
                                      .grads = p->grads,
                                      .activations = p->activations,
                                      .kept = p->kept,
                                      .keep = p->keep};
    memcpy(request.fractions, p->fractions, sizeof request.fractions);
    must(ot_plan_make(&request, plan));
}

/* The case of that name. A new one has no times. */
static struct best *find_case(struct bench *b, const char *name, const char *group) {
    int i = 0;
    while (i < b->n_cases && strcmp(b->cases[i].name, name) != 0)
        i++;
    if (i == MOST_CASES)
        exit(1);
    struct best *best = &b->cases[i];
    if (i == b->n_cases) {
        *best = (struct best){.group = group};
        snprintf(best->name, sizeof best->name, "%s", name);
        b->n_cases++;
    }
    return best;
}

static double lesser(double best, double seconds) {
    return best > 0 && best < seconds ? best : seconds;
}

static void run_case(struct bench *b, const struct ot_model *model, const struct placement *p,
                     struct best *best) {
    const struct ot_chain *chain = ot_model_chain(model);
    struct ot_plan plan;
    struct ot_costs costs;
    struct ot_prediction predicted, again;
    struct ot_trace_summary sum, whole;
    make_plan(chain, p, &plan);
    must(ot_calibrate(&(struct ot_calibration){chain, b->device, &b->rates, plan.micro_tokens, SEQUENCE,
                                               (size_t)1 << 30, 0.5, 0},
                      &costs));
    must(ot_simulate_plan(chain, &plan, &costs, &predicted));
    measure(b, model, &plan, &sum, &whole);
    for (int l = 0; l < OT_LANE_COUNT; l++)
        whole.busy[l] /= (double)whole.steps;
    must(ot_predict_measured(chain, &plan, &predicted, whole.busy, &costs, &again));
    double measured = sum.seconds / (double)sum.steps;
    if (lesser(best->measured, measured) == measured) {
        best->sum = sum;
        best->again = again.step_seconds; /* from the steps of this very run */
    }
    if (lesser(best->predicted, predicted.step_seconds) == predicted.step_seconds)
        best->prediction = predicted;
    best->measured = lesser(best->measured, measured);
    best->predicted = lesser(best->predicted, predicted.step_seconds);
    ot_costs_free(&costs);
    ot_plan_free(&plan);
}

/* ---- the table ---- */

static void print_case(const struct best *best) {
    const struct ot_prediction *p = &best->prediction;
    const struct ot_trace_summary *sum = &best->sum;
    printf("%s %8.2f ms predicted %8.2f ms measured %+6.1f %% again %+6.1f %% ", best->name,
           best->predicted * 1e3, best->measured * 1e3, 100 * (best->predicted / best->measured - 1),
           100 * (best->again / best->measured - 1));
    for (int l = 0; l < OT_LANE_COUNT; l++)
        if (p->busy[l] > 0)
            printf(" %s %.0f/%.0f", ot_lane_name((enum ot_lane_id)l), 100 * p->busy[l] / p->step_seconds,
                   100 * sum->busy[l] / sum->seconds);
    printf(" host %.0f/%.0f\n", 100 * p->exposed_host / p->step_seconds,
           100 * sum->exposed_host / sum->seconds);
    fflush(stdout);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* group NULL: all cases. */
static void print_errors(const struct bench *b, const char *group) {
    double errors[2][MOST_CASES];
    int n = 0;
    for (int i = 0; i < b->n_cases; i++) {
        const struct best *best = &b->cases[i];
        if (group && strcmp(best->group, group) != 0)
            continue;
        errors[0][n] = fabs(best->predicted / best->measured - 1);
        errors[1][n++] = fabs(best->again / best->measured - 1);
    }
    if (n == 0)
        return;
    for (int i = 0; i < 2; i++)
        qsort(errors[i], (size_t)n, sizeof **errors, ascending);
    printf("%-8s %3d cases: error %.1f %% median, %.1f %% worst; again %.1f %% median, %.1f %% worst\n",
           group ? group : "all", n, 100 * errors[0][n / 2], 100 * errors[0][n - 1], 100 * errors[1][n / 2],
           100 * errors[1][n - 1]);
}

/* ---- rounds ---- */

/* The homes are measured for all models, the other groups for the dtype of most runs and, in fp32, for the
 * smallest model, where the start of a task counts most. */
static bool is_measured(const struct placement *p, enum ot_dtype dtype, int shape) {
    return strcmp(p->group, "homes") == 0 || dtype == OT_BF16 || shape == SHAPES - 1;
}

static void run_cases(struct bench *b, enum ot_dtype dtype, int shape) {
    struct ot_model_config config = config_of(&shapes[shape]);
    for (int i = 0; i < PLACEMENTS; i++) {
        const struct placement *p = &placements[i];
        char name[96];
        snprintf(name, sizeof name, "%-5s %-4s %-7s %-20s", ot_dtype_name(dtype), shapes[shape].name,
                 p->group, p->name);
        if (!is_measured(p, dtype, shape) || !strstr(name, b->word))
            continue;
        struct ot_model *model;
        must(ot_model_open(&config, dtype, SEQUENCE, &model));
        ot_model_set_state(model, p->format, OT_MASTERS_F32);
        struct best *best = find_case(b, name, p->group);
        run_case(b, model, p, best);
        print_case(best);
        ot_model_close(model);
    }
}

static void run_round(struct bench *b, enum ot_dtype dtype) {
    must(ot_device_open(&(struct ot_device_config){.kind = "cpu", .threads = b->threads}, &b->device));
    b->rates = probe(b, dtype);
    const struct ot_rates *r = &b->rates;
    printf("%-5s products %.0f GFLOP/s, attention %.0f and %.0f, device %.1f GB/s, copies %.1f and %.1f, "
           "both %.1f, triad %.1f, AdamW %.1f, 16bit %.1f, 8bit %.1f, disk %.2f read, "
           "%.2f write, %.2f both, %.1f us a task\n",
           ot_dtype_name(dtype), r->product_flops * 1e-9, r->attention[OT_HEAD_128].forward * 1e-9,
           r->attention[OT_HEAD_128].backward * 1e-9, r->device_bytes * 1e-9, r->h2d_bytes * 1e-9,
           r->d2h_bytes * 1e-9, r->both_bytes * 1e-9, r->triad_bytes * 1e-9,
           r->adamw_bytes[OT_STATE_F32] * 1e-9, r->adamw_bytes[OT_STATE_16BIT] * 1e-9,
           r->adamw_bytes[OT_STATE_8BIT] * 1e-9, r->nvme_read_bytes * 1e-9, r->nvme_write_bytes * 1e-9,
           r->nvme_mixed_bytes * 1e-9, r->task_seconds * 1e6);
    fflush(stdout);
    for (int shape = 0; shape < SHAPES; shape++)
        run_cases(b, dtype, shape);
    ot_device_close(b->device);
}

int main(int argc, char **argv) {
    static const char *const groups[GROUPS] = {"homes", "kept", "disk", "compact", NULL};
    static struct bench b;
    b.dir = (struct ot_store_dir){argc > 1 ? argv[1] : NULL, (size_t)4 << 30};
    b.store = (struct ot_store_config){.n_dirs = 1, .dirs = &b.dir};
    b.threads = argc > 2 ? atoi(argv[2]) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    b.rounds = argc > 3 ? atoi(argv[3]) : 2;
    b.word = argc > 4 ? argv[4] : "";
    if (argc < 2 || b.threads < 1 || b.rounds < 1) {
        fprintf(stderr, "usage: bench_predict DIR [THREADS [ROUNDS [WORD]]]\n");
        return 2;
    }
    for (int round = 0; round < b.rounds; round++) {
        for (enum ot_dtype dtype = OT_F32; dtype <= OT_BF16; dtype++)
            run_round(&b, dtype);
        for (int i = 0; i < GROUPS; i++)
            print_errors(&b, groups[i]);
    }
    return 0;
}
