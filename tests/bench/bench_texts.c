/* Tokens per second of generation, by the number of texts that grow side by side: of prompts, and of the
 * steps after them. One text at a time is the floor.
 *
 *     bench_texts [DEVICE [THREADS [REPEATS [fp32|bf16]]]]     default: cpu, all CPUs, 3, both
 *
 * The model is a small Llama (27 M parameters) with random weights. 32 prompts of 64 random tokens grow by
 * 16 tokens. weights gpu: all on the device. weights host: every slab is copied to the device for each pass.
 * cache host: the keys and values are, layer by layer.
 * Each figure is the best of the repeats, because a disturbance makes a repeat slower and never faster. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "models/model.h"
#include "offload/engine/engine.h"
#include "offload/plan/plan_search.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/random.h"

enum { PROMPT = 64, NEW = 16, TEXTS = 32, POSITIONS = PROMPT + NEW };

static const struct ot_model_config llama = {.family = OT_FAMILY_LLAMA,
                                             .n_layers = 8,
                                             .hidden = 512,
                                             .ffn = 1376,
                                             .n_heads = 8,
                                             .n_kv_heads = 4,
                                             .head_dim = 64,
                                             .vocab = 4096,
                                             .max_position = POSITIONS,
                                             .norm = OT_NORM_RMS,
                                             .norm_eps = 1e-5f,
                                             .act = OT_ACT_SILU,
                                             .rope.theta = 10000,
                                             .rotary_dim = 64,
                                             .init_std = 0.02};

static void must(int rc) {
    if (rc >= 0)
        return;
    fprintf(stderr, "bench_texts: %s\n", ot_error_text());
    exit(1);
}

static int32_t tokens[TEXTS][POSITIONS];

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

struct times {
    double prompts, steps; /* seconds */
};

/* Lets all texts grow, `texts` at a time. */
static struct times grow(struct ot_engine *engine, int texts, float *logits) {
    struct times times = {0};
    for (int first = 0; first < TEXTS; first += texts) {
        struct ot_text_room rooms[TEXTS];
        struct ot_text_tokens next[TEXTS];
        for (int i = 0; i < texts; i++) {
            rooms[i] = (struct ot_text_room){0, POSITIONS};
            next[i] = (struct ot_text_tokens){i, tokens[first + i], PROMPT};
        }
        must(ot_engine_texts_begin(engine, rooms, texts));
        double start = ot_clock_seconds();
        must(ot_engine_texts_append(engine, next, texts, logits));
        times.prompts += ot_clock_seconds() - start;
        start = ot_clock_seconds();
        for (int step = 0; step < NEW; step++) {
            for (int i = 0; i < texts; i++)
                next[i] = (struct ot_text_tokens){i, tokens[first + i] + PROMPT + step, 1};
            must(ot_engine_texts_append(engine, next, texts, logits));
        }
        times.steps += ot_clock_seconds() - start;
        ot_engine_decode_end(engine);
    }
    return times;
}

static void bench(const char *kind, int threads, int repeats, enum ot_dtype dtype, enum ot_home weights,
                  enum ot_home cache) {
    const size_t plenty = (size_t)1 << 40;
    const struct ot_device_config device_config = {.kind = kind, .threads = threads};
    float *logits = malloc((size_t)TEXTS * (size_t)llama.vocab * sizeof *logits);
    struct ot_device *device;
    struct ot_model *model;
    must(logits ? ot_device_open(&device_config, &device) : ot_fail(OT_E_BUDGET, "no memory"));
    must(ot_model_open(&llama, dtype, POSITIONS, &model));
    double alone = 0;
    for (int texts = 1; texts <= TEXTS; texts *= 2) {
        const struct ot_plan_request request = {.chain = ot_model_chain(model),
                                                .budget_bytes = {plenty, plenty},
                                                .sequence_tokens = POSITIONS,
                                                .step_sequences = 16,
                                                .micro_sequences = 1,
                                                .weights = weights,
                                                .texts = texts,
                                                .cache_rows = (int64_t)texts * POSITIONS,
                                                .cache = cache};
        struct ot_plan plan;
        struct ot_engine *engine;
        must(ot_plan_make(&request, &plan));
        const struct ot_engine_config config = {
            .chain = request.chain, .device = device, .plan = &plan, .optimizer_threads = threads};
        must(ot_engine_open(&config, &engine));
        set_weights(engine, model);
        struct times best = {1e30, 1e30};
        for (int r = 0; r < repeats; r++) {
            struct times times = grow(engine, texts, logits);
            best.prompts = times.prompts < best.prompts ? times.prompts : best.prompts;
            best.steps = times.steps < best.steps ? times.steps : best.steps;
        }
        double all = best.prompts + best.steps;
        alone = texts == 1 ? all : alone;
        printf("%-4s  weights %-4s  cache %-4s  %2d texts: prompts %8.0f tokens/s, ", ot_dtype_name(dtype),
               ot_tier_name((enum ot_tier)weights), ot_tier_name((enum ot_tier)cache), texts,
               TEXTS * PROMPT / best.prompts);
        printf("steps %7.0f tokens/s, all %5.2f x\n", TEXTS * NEW / best.steps, alone / all);
        fflush(stdout);
        ot_engine_close(engine);
        ot_plan_free(&plan);
    }
    ot_model_close(model);
    ot_device_close(device);
    free(logits);
}

int main(int argc, char **argv) {
    const char *kind = argc > 1 ? argv[1] : "cpu";
    int threads = argc > 2 ? atoi(argv[2]) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    int repeats = argc > 3 ? atoi(argv[3]) : 3;
    for (int t = 0; t < TEXTS; t++)
        for (int i = 0; i < POSITIONS; i++)
            tokens[t][i] = (int32_t)ot_random_below(1, (uint64_t)t, (uint64_t)i, (uint64_t)llama.vocab);
    for (int dtype = 0; dtype < 2; dtype++)
        for (int way = 0; way < 3; way++)
            if (argc <= 4 || strcmp(argv[4], dtype ? "bf16" : "fp32") == 0)
                bench(kind, threads, repeats, dtype ? OT_BF16 : OT_F32, way == 1 ? OT_HOME_HOST : OT_HOME_GPU,
                      way == 2 ? OT_HOME_HOST : OT_HOME_GPU);
    return 0;
}
