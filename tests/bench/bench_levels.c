/* What keeping activations saves on the cpu device, level by level (offload/block.h): the bytes that forward
 * keeps of a layer, and the time that backward takes to compute the rest again. Then what working in chunks
 * costs (models/layer_memory.h): a layer on rows of 512 tokens, all at once and in chunks.
 *
 *     bench_levels [THREADS [ROUNDS]]     default: 1, 5
 *
 * The models are small Llamas of 27 M and 110 M parameters. Each figure is the least CPU time of several
 * rounds, of all threads together, so a busy machine does not change it much. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "models/model.h"
#include "offload/block.h"
#include "src/base/error.h"

enum { LAYER = 1 }; /* LAYER: the block that stands for all layers */

#define SHAPE(layers, width, mlp, n, kv_n, head, words, positions)                                           \
    .family = OT_FAMILY_LLAMA, .n_layers = layers, .hidden = width, .ffn = mlp, .n_heads = n,                \
    .n_kv_heads = kv_n, .head_dim = head, .rotary_dim = head, .vocab = words, .max_position = positions,     \
    .norm = OT_NORM_RMS, .norm_eps = 1e-5f, .act = OT_ACT_SILU, .rope.theta = 10000, .init_std = 0.02
static const struct ot_model_config models[] = {{SHAPE(8, 512, 1376, 8, 4, 64, 4096, 512)},
                                                {SHAPE(12, 768, 2048, 12, 12, 64, 16000, 1024)}};

static void must(int rc) {
    if (rc >= 0)
        return;
    fprintf(stderr, "bench_levels: %s\n", ot_error_text());
    exit(1);
}

static double cpu_seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

struct bench {
    const struct ot_chain *chain;
    struct ot_device *device;
    struct ot_lane *lane;
    int64_t n;
};

static struct ot_model *open_bench(struct bench *b, const struct ot_model_config *config, enum ot_dtype dtype,
                                   int threads) {
    const struct ot_device_config device_config = {.kind = "cpu", .threads = threads};
    struct ot_model *model;
    must(ot_device_open(&device_config, &b->device));
    must(ot_lane_open(b->device, "compute", &b->lane));
    must(ot_model_open(config, dtype, config->max_position, &model));
    b->chain = ot_model_chain(model);
    return model;
}

/* Small positive numbers in every dtype, and 0 as ids, positions and row starts. */
static void *filled(const struct bench *b, size_t bytes, int value) {
    void *memory;
    must(ot_device_alloc(b->device, bytes, "bench", &memory));
    ot_lane_fill(b->lane, memory, value, bytes);
    return memory;
}

/* A run of one layer. Closing the device does not free its buffers: the process ends soon. */
static struct ot_block_run make_run(const struct bench *b) {
    const struct ot_chain *c = b->chain;
    size_t n = (size_t)b->n, item = ot_dtype_bytes(c->dtype), boundary = n * (size_t)c->boundary_elems * item;
    size_t params = (size_t)c->slabs[LAYER].n_params;
    const int32_t *zeros = filled(b, n * sizeof(int32_t), 0);
    return (struct ot_block_run){
        .lane = b->lane,
        .dtype = c->dtype,
        .batch = {.n_tokens = b->n, .tokens = zeros, .targets = zeros, .position = zeros, .row_start = zeros},
        .constants = filled(b, c->constant_bytes, 0x3c),
        .weights = {filled(b, params * item, 0x3c)},
        .grads = {filled(b, params * sizeof(float), 0)},
        .x = filled(b, boundary, 0x3c),
        .y = filled(b, boundary, 0),
        .dxy = filled(b, boundary, 0x3c),
        .saved = filled(b, c->saved_bytes(c->context, LAYER, OT_KEEP_ALL, b->n), 0),
        .work = filled(b, c->work_bytes(c->context, LAYER, OT_KEEP_NONE, b->n), 0),
        .scratch = filled(b, c->scratch_bytes(c->context, LAYER, b->n), 0)};
}

/* The least CPU time of backward at each level, and of forward. Levels take turns. */
static double measure(const struct bench *b, int rounds, double backward[OT_KEEP_LEVELS]) {
    struct ot_block_run run = make_run(b);
    double forward = 1e30;
    for (int i = 0; i < rounds * OT_KEEP_LEVELS; i++) {
        int level = i % OT_KEEP_LEVELS;
        run.saved_level = (enum ot_keep_level)level;
        backward[level] = i == level ? 1e30 : backward[level];
        must(ot_lane_sync(b->lane));
        double start = cpu_seconds();
        b->chain->forward(b->chain->context, LAYER, &run);
        must(ot_lane_sync(b->lane));
        double middle = cpu_seconds();
        b->chain->backward(b->chain->context, LAYER, &run);
        must(ot_lane_sync(b->lane));
        double end = cpu_seconds();
        forward = middle - start < forward ? middle - start : forward;
        backward[level] = end - middle < backward[level] ? end - middle : backward[level];
    }
    return forward;
}

static void bench(const struct ot_model_config *config, enum ot_dtype dtype, int threads, int rounds) {
    static const char *const names[OT_KEEP_LEVELS] = {"none", "attention", "products", "all"};
    struct bench b = {.n = config->max_position};
    double backward[OT_KEEP_LEVELS];
    struct ot_model *model = open_bench(&b, config, dtype, threads);
    double forward = measure(&b, rounds, backward), whole = forward + backward[OT_KEEP_NONE];
    printf("%.0f M parameters, %s, a row of %lld tokens: forward %.1f us a token and layer\n",
           (double)ot_model_param_count(config) * 1e-6, ot_dtype_name(dtype), (long long)b.n,
           forward * 1e6 / (double)b.n);
    for (int level = 0; level < OT_KEEP_LEVELS; level++) {
        size_t bytes = b.chain->saved_bytes(b.chain->context, LAYER, (enum ot_keep_level)level, b.n);
        double saved = backward[OT_KEEP_NONE] - backward[level];
        printf("    %-10s %6zu B a token and layer   backward %6.1f us   saves %5.1f us (%4.1f %% of all), "
               "%5.2f ns a byte\n",
               names[level], bytes / (size_t)b.n, backward[level] * 1e6 / (double)b.n,
               saved * 1e6 / (double)b.n, 100 * saved / whole, bytes > 0 ? saved * 1e9 / (double)bytes : 0);
    }
    fflush(stdout);
    ot_model_close(model);
}

/* A step of a layer on ROWS rows, with chunks of so many tokens. */
enum { ROWS = 16, ROW_TOKENS = 512 };

static double measure_chunks(const struct bench *b, const struct ot_block_run *run) {
    double start = cpu_seconds();
    b->chain->forward(b->chain->context, LAYER, run);
    b->chain->backward(b->chain->context, LAYER, run);
    must(ot_lane_sync(b->lane));
    return cpu_seconds() - start;
}

static void bench_chunks(const struct ot_model_config *config, enum ot_dtype dtype, int threads, int rounds) {
    static const int64_t chunks[] = {INT64_MAX, OT_CHUNK_TOKENS, 1024};
    enum { CHUNKS = sizeof chunks / sizeof *chunks };
    struct bench b = {.n = ROWS * ROW_TOKENS};
    double least[CHUNKS];
    struct ot_model *model = open_bench(&b, config, dtype, threads);
    ot_model_set_chunk(model, INT64_MAX); /* the most memory */
    struct ot_block_run run = make_run(&b);
    int32_t *starts = filled(&b, (size_t)b.n * sizeof *starts, 0);
    must(ot_lane_sync(b.lane));
    for (int64_t i = 0; i < b.n; i++)
        starts[i] = (int32_t)(i - i % ROW_TOKENS);
    run.batch.row_start = starts;
    for (int i = 0; i < rounds * CHUNKS; i++) {
        ot_model_set_chunk(model, chunks[i % CHUNKS]);
        double seconds = measure_chunks(&b, &run);
        least[i % CHUNKS] = i < CHUNKS || seconds < least[i % CHUNKS] ? seconds : least[i % CHUNKS];
    }
    printf("%.0f M parameters, %s, %d rows of %d tokens\n", (double)ot_model_param_count(config) * 1e-6,
           ot_dtype_name(dtype), ROWS, ROW_TOKENS);
    for (int i = 0; i < CHUNKS; i++) {
        int64_t tokens = chunks[i] < b.n ? chunks[i] : b.n;
        ot_model_set_chunk(model, chunks[i]);
        size_t bytes = b.chain->work_bytes(b.chain->context, LAYER, OT_KEEP_NONE, b.n) +
                       b.chain->scratch_bytes(b.chain->context, LAYER, b.n);
        printf(
            "    %5lld tokens at a time   %6.1f us a token and layer   %.3f of the speed of all   %.1f MiB\n",
            (long long)tokens, least[i] * 1e6 / (double)b.n, least[0] / least[i], (double)bytes / 0x1p20);
    }
    fflush(stdout);
    ot_model_close(model);
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 1, rounds = argc > 2 ? atoi(argv[2]) : 5;
    if (threads < 1 || rounds < 1) {
        fprintf(stderr, "usage: bench_levels [THREADS [ROUNDS]]\n");
        return 2;
    }
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        bench(&models[i], OT_F32, threads, rounds);
        bench(&models[i], OT_BF16, threads, rounds);
    }
    bench_chunks(&models[0], OT_F32, threads, rounds);
    bench_chunks(&models[0], OT_BF16, threads, rounds);
    return 0;
}
