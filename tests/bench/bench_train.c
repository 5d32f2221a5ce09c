/* Tokens per second of a training step on the cpu device under several placements. The floor is the model's
 * FLOPs at the rate of the device's best matrix product, measured in the same run.
 *
 *     bench_train [THREADS [WINDOWS [MICRO_SEQUENCES]]]     default: all CPUs, 4, chosen by the planner
 *
 * The model is a small Llama (27 M parameters) with random weights. A step is 4 sequences of 512 random
 * tokens, all of them trained, AdamW with clipping, and two steps in flight, as the program drives the
 * engine. tests/bench/peer_train.py times the same in PyTorch. Each figure is the best of several windows of
 * a few steps, because a disturbance makes a window slower and never faster. The cases take turns, so that
 * all of them profit from a quiet moment of a shared machine. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "models/model.h"
#include "offload/engine/engine.h"
#include "offload/plan/plan_search.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/random.h"

enum { SEQUENCE = 512, SEQUENCES = 4, STEP_TOKENS = SEQUENCE * SEQUENCES };
enum { WINDOW_STEPS = 2, PRODUCT = 2048, PRODUCT_REPEATS = 6 };

static const struct ot_model_config llama = {.family = OT_FAMILY_LLAMA,
                                             .n_layers = 8,
                                             .hidden = 512,
                                             .ffn = 1376,
                                             .n_heads = 8,
                                             .n_kv_heads = 4,
                                             .head_dim = 64,
                                             .vocab = 4096,
                                             .max_position = SEQUENCE,
                                             .norm = OT_NORM_RMS,
                                             .norm_eps = 1e-5f,
                                             .act = OT_ACT_SILU,
                                             .rope.theta = 10000,
                                             .rotary_dim = 64,
                                             .init_std = 0.02};

static void must(int rc) {
    if (rc >= 0)
        return;
    fprintf(stderr, "bench_train: %s\n", ot_error_text());
    exit(1);
}

static double cpu_seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* ---- the floor ---- */

/* FLOP/s of a product that is large enough for any BLAS. */
static double product_rate(struct ot_device *device, enum ot_dtype dtype) {
    struct ot_lane *lane;
    void *memory[3];
    must(ot_lane_open(device, "product", &lane));
    for (int i = 0; i < 3; i++) {
        size_t bytes = (size_t)PRODUCT * PRODUCT * ot_dtype_bytes(dtype);
        must(ot_device_alloc(device, bytes, "product", &memory[i]));
        ot_lane_fill(lane, memory[i], 0x3d, bytes); /* small numbers in both formats */
    }
    const struct ot_gemm op = {.dtype = dtype,
                               .c_dtype = dtype,
                               .trans_b = true,
                               .m = PRODUCT,
                               .n = PRODUCT,
                               .k = PRODUCT,
                               .a = memory[0],
                               .b = memory[1],
                               .c = memory[2],
                               .lda = PRODUCT,
                               .ldb = PRODUCT,
                               .ldc = PRODUCT};
    double best = 1e30;
    for (int repeat = 0; repeat < PRODUCT_REPEATS; repeat++) {
        must(ot_lane_sync(lane));
        double start = ot_clock_seconds();
        ot_device_ops(device)->gemm(lane, &op);
        must(ot_lane_sync(lane));
        double seconds = ot_clock_seconds() - start;
        best = seconds < best ? seconds : best;
    }
    for (int i = 0; i < 3; i++)
        ot_device_free(device, memory[i]);
    ot_lane_close(lane);
    return 2.0 * PRODUCT * PRODUCT * PRODUCT / best;
}

/* ---- one case: an engine under a plan ---- */

struct placement {
    const char *name;
    enum ot_home home;
    int recompute;
};
static const struct placement placements[] = {
    {"all-device", OT_HOME_GPU, 0}, {"all-device, recompute", OT_HOME_GPU, 1}, {"all-host", OT_HOME_HOST, 1}};
enum { PLACEMENTS = sizeof placements / sizeof *placements };

struct training {
    struct ot_plan plan;
    struct ot_engine *engine;
    struct ot_step_input input;
    struct ot_micro_batch micro[SEQUENCES];
    double seconds, cpu_seconds; /* per step, in the best window */
};

/* Each sequence is one row. The last token of a row has no target. */
static int32_t tokens[STEP_TOKENS], targets[STEP_TOKENS], position[STEP_TOKENS], row_start[STEP_TOKENS];

static void fill_batch(struct training *t) {
    t->input = (struct ot_step_input){.micro = t->micro, .lr = 1e-4f};
    for (int64_t i = 0; i < STEP_TOKENS; i++) {
        int64_t in_row = i % SEQUENCE, in_micro = i % t->plan.micro_tokens;
        tokens[i] = (int32_t)ot_random_below(1, 1, (uint64_t)i, (uint64_t)llama.vocab);
        targets[i] = (int32_t)ot_random_below(1, 1, (uint64_t)i + 1, (uint64_t)llama.vocab);
        targets[i] = in_row == SEQUENCE - 1 ? -1 : targets[i];
        position[i] = (int32_t)in_row;
        row_start[i] = (int32_t)(in_micro - in_row);
        t->input.n_losses += targets[i] >= 0;
    }
    for (int64_t first = 0; first < STEP_TOKENS; first += t->plan.micro_tokens) {
        int64_t left = STEP_TOKENS - first, n = left < t->plan.micro_tokens ? left : t->plan.micro_tokens;
        t->micro[t->input.n_micro++] = (struct ot_micro_batch){.n_tokens = n,
                                                               .tokens = tokens + first,
                                                               .targets = targets + first,
                                                               .position = position + first,
                                                               .row_start = row_start + first};
    }
}

static void set_weights(struct ot_engine *engine, const struct ot_model *model) {
    enum { PIECE = 1 << 20 };
    static float values[PIECE];
    const struct ot_chain *chain = ot_model_chain(model);
    for (int s = 0; s < chain->n_slabs; s++)
        for (int64_t first = 0; first < chain->slabs[s].n_params; first += PIECE) {
            int64_t left = chain->slabs[s].n_params - first, n = left < PIECE ? left : PIECE;
            ot_model_init_values(model, 1, s, first, n, values);
            must(ot_engine_set(engine, OT_SLAB_MASTER, s, first, n, values));
        }
}

static void open_training(struct training *t, struct ot_device *device, const struct ot_model *model,
                          const struct placement *p, int threads, int micro) {
    const size_t plenty = (size_t)1 << 40;
    const struct ot_plan_request request = {.chain = ot_model_chain(model),
                                            .budget_bytes = {plenty, plenty},
                                            .sequence_tokens = SEQUENCE,
                                            .step_sequences = SEQUENCES,
                                            .micro_sequences = micro,
                                            .train = true,
                                            .clip = true,
                                            .weights = p->home,
                                            .state = p->home,
                                            .activations = p->home,
                                            .keep = p->recompute ? OT_KEEP_NONE : OT_KEEP_PRODUCTS};
    must(ot_plan_make(&request, &t->plan));
    const struct ot_engine_config config = {.chain = request.chain,
                                            .device = device,
                                            .plan = &t->plan,
                                            .optimizer = {0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 0},
                                            .optimizer_threads = threads};
    must(ot_engine_open(&config, &t->engine));
    set_weights(t->engine, model);
    fill_batch(t);
    t->seconds = t->cpu_seconds = 1e30;
}

/* The window ends with a drain, so that it contains the update of every step. */
static void run_window(struct training *t) {
    struct ot_step_result result;
    double start = ot_clock_seconds(), cpu_start = cpu_seconds();
    for (int step = 0; step < WINDOW_STEPS; step++) {
        must(ot_engine_submit(t->engine, &t->input));
        if (step > 0)
            must(ot_engine_result(t->engine, &result));
    }
    must(ot_engine_result(t->engine, &result));
    must(ot_engine_drain(t->engine));
    double seconds = (ot_clock_seconds() - start) / WINDOW_STEPS;
    double cpu = (cpu_seconds() - cpu_start) / WINDOW_STEPS;
    t->seconds = seconds < t->seconds ? seconds : t->seconds;
    t->cpu_seconds = cpu < t->cpu_seconds ? cpu : t->cpu_seconds;
}

static void bench_dtype(enum ot_dtype dtype, int threads, int windows, int micro) {
    const struct ot_device_config device_config = {.kind = "cpu", .threads = threads};
    struct training cases[PLACEMENTS] = {0};
    struct ot_device *device;
    struct ot_model *model;
    must(ot_device_open(&device_config, &device));
    must(ot_model_open(&llama, dtype, SEQUENCE, &model));
    double peak = product_rate(device, dtype), floor = peak / ot_model_flops_per_token(model, SEQUENCE);
    printf("%s\n", ot_device_name(device));
    printf("product of %d, %-5s %8.0f GFLOP/s, so at most %.0f tokens/s\n", PRODUCT, ot_dtype_name(dtype),
           peak * 1e-9, floor);
    for (int i = 0; i < PLACEMENTS; i++)
        open_training(&cases[i], device, model, &placements[i], threads, micro);
    for (int window = 0; window < windows; window++)
        for (int i = 0; i < PLACEMENTS; i++)
            run_window(&cases[i]);
    for (int i = 0; i < PLACEMENTS; i++) {
        double rate = STEP_TOKENS / cases[i].seconds;
        printf("%-5s %-22s %8.0f tokens/s %8.1f ms a step %8.1f ms CPU   %.3f of the floor's rate   %.3f of "
               "all-device\n",
               ot_dtype_name(dtype), placements[i].name, rate, cases[i].seconds * 1e3,
               cases[i].cpu_seconds * 1e3, rate / floor, cases[0].seconds / cases[i].seconds);
        ot_engine_close(cases[i].engine);
        ot_plan_free(&cases[i].plan);
    }
    fflush(stdout);
    ot_model_close(model);
    ot_device_close(device);
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    int windows = argc > 2 ? atoi(argv[2]) : 4, micro = argc > 3 ? atoi(argv[3]) : 0;
    if (threads < 1 || windows < 1 || micro < 0 || micro > SEQUENCES) {
        fprintf(stderr, "usage: bench_train [THREADS [WINDOWS [MICRO_SEQUENCES]]]\n");
        return 2;
    }
    bench_dtype(OT_F32, threads, windows, micro);
    bench_dtype(OT_BF16, threads, windows, micro);
    return 0;
}
