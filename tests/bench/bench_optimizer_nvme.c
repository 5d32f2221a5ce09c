/* The optimizer with its state on disk: the bytes that a training step moves per second, against the rate
 * that the same store reaches with nothing else to do.
 *
 *     bench_optimizer_nvme DIR [MILLION_PARAMS [STEPS]]     default: 96, 6
 *
 * The model computes nothing: its blocks are parameters with zero gradients, random weights and random
 * moments. So a step is the optimizer alone, and the disk is its floor: a step reads and writes the state of
 * every tile once. The floor is measured in the same run, in turns with the steps, on tiles of the same size,
 * with reads and writes at the same time and as many transfers in flight as the engine has. Each figure is
 * the best of several rounds. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/device.h"
#include "offload/engine/engine.h"
#include "offload/plan/layout.h"
#include "offload/plan/plan_search.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/random.h"

enum { BLOCKS = 6, TOKENS = 16, WIDTH = 8, ROUNDS = 3, TILE_PARAMS = 2 << 20, IN_FLIGHT = 2 };

static void must(int rc) {
    if (rc >= 0)
        return;
    fprintf(stderr, "bench_optimizer_nvme: %s\n", ot_error_text());
    exit(1);
}

/* ---- a model that computes nothing ---- */

static size_t no_bytes(const void *context, int block, int64_t n_tokens) {
    (void)context, (void)block, (void)n_tokens;
    return 0;
}

static size_t nothing_inside(const void *context, int block, enum ot_keep_level level, int64_t n_tokens) {
    (void)level;
    return no_bytes(context, block, n_tokens);
}

static void no_work(const void *context, int block, const struct ot_block_run *run) {
    (void)context, (void)block, (void)run;
}

struct model {
    struct ot_chain chain;
    struct ot_block_spec blocks[BLOCKS];
    struct ot_slab_spec slabs[BLOCKS];
    struct ot_param_group group;
};

static void make_model(struct model *m, int64_t params) {
    int64_t slab = params / BLOCKS / TILE_PARAMS * TILE_PARAMS;
    slab = slab > 0 ? slab : TILE_PARAMS;
    m->group = (struct ot_param_group){.n = slab, .decay = true, .trained = true};
    for (int b = 0; b < BLOCKS; b++) {
        bool edge = b == 0 || b == BLOCKS - 1;
        m->blocks[b] = (struct ot_block_spec){"block", 1, {{b, true}}};
        m->slabs[b] = (struct ot_slab_spec){
            .name = "block", .n_params = slab, .edge = edge, .n_groups = 1, .groups = &m->group};
    }
    m->chain = (struct ot_chain){.dtype = OT_BF16,
                                 .n_blocks = BLOCKS,
                                 .n_slabs = BLOCKS,
                                 .blocks = m->blocks,
                                 .slabs = m->slabs,
                                 .boundary_elems = WIDTH,
                                 .kv_elems = WIDTH,
                                 .vocab = WIDTH,
                                 .max_position = TOKENS,
                                 .saved_bytes = nothing_inside,
                                 .work_bytes = nothing_inside,
                                 .scratch_bytes = no_bytes,
                                 .forward = no_work,
                                 .backward = no_work};
}

static void set_random(struct ot_engine *engine, const struct ot_chain *chain) {
    enum { AT_ONCE = 1 << 16 };
    static float values[AT_ONCE];
    for (int s = 0; s < chain->n_slabs; s++)
        for (int64_t first = 0; first < chain->slabs[s].n_params; first += AT_ONCE)
            for (int kind = OT_SLAB_MASTER; kind <= OT_SLAB_V; kind++) {
                for (int i = 0; i < AT_ONCE; i++)
                    values[i] =
                        1e-3f + (float)ot_random_unit((uint64_t)kind, (uint64_t)s, (uint64_t)(first + i));
                must(ot_engine_set(engine, (enum ot_slab_kind)kind, s, first, AT_ONCE, values));
            }
}

/* ---- a step ---- */

static void open_engine(struct model *m, struct ot_device *device, const struct ot_store_config *store,
                        int threads, struct ot_engine **out) {
    struct ot_plan plan;
    struct ot_plan_request request = {.chain = &m->chain,
                                      .budget_bytes = {(size_t)1 << 40, (size_t)1 << 40, (size_t)1 << 50},
                                      .sequence_tokens = TOKENS,
                                      .step_sequences = 1,
                                      .train = true,
                                      .clip = true,
                                      .weights = OT_HOME_HOST,
                                      .state = OT_HOME_NVME,
                                      .activations = OT_HOME_GPU,
                                      .tile_params = TILE_PARAMS,
                                      .keep = OT_KEEP_NONE};
    must(ot_plan_make(&request, &plan));
    struct ot_engine_config config = {.chain = &m->chain,
                                      .device = device,
                                      .plan = &plan,
                                      .optimizer = {0.9f, 0.95f, 1e-8f, 0.01f, 1.0f, 0},
                                      .optimizer_threads = threads,
                                      .store = store};
    must(ot_engine_open(&config, out));
    printf("%s\n%d slots for tiles of %d x 2^20 parameters\n", ot_engine_describe_store(*out),
           plan.tile_slots, TILE_PARAMS >> 20);
    ot_plan_free(&plan);
}

/* Bytes per second over `steps` consecutive steps, with two steps in flight. */
static double run_steps(struct ot_engine *engine, int steps) {
    static const int32_t zeros[TOKENS];
    struct ot_micro_batch micro = {
        .n_tokens = TOKENS, .tokens = zeros, .targets = zeros, .position = zeros, .row_start = zeros};
    struct ot_step_input input = {1, &micro, TOKENS, 1e-3f};
    struct ot_step_result result;
    struct ot_store_usage before, after;
    ot_engine_store_usage(engine, &before);
    double since = ot_clock_seconds();
    for (int step = 0; step < steps; step++) {
        must(ot_engine_submit(engine, &input));
        if (step > 0)
            must(ot_engine_result(engine, &result));
    }
    must(ot_engine_result(engine, &result));
    must(ot_engine_drain(engine));
    double seconds = ot_clock_seconds() - since;
    ot_engine_store_usage(engine, &after);
    int64_t moved = after.read_bytes - before.read_bytes + after.written_bytes - before.written_bytes;
    return (double)moved / seconds;
}

/* ---- the floor ---- */

struct stream { /* the transfers of one direction */
    struct ot_store *store;
    bool write;
    int next, n; /* numbers of extents */
    size_t bytes;
    char *memory;
    int in_flight;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
};

static void on_done(void *arg, const struct ot_error *error) {
    struct stream *s = arg;
    if (error) {
        fprintf(stderr, "bench_optimizer_nvme: %s\n", error->text);
        exit(1);
    }
    pthread_mutex_lock(&s->mutex);
    s->in_flight--;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->mutex);
}

static void *stream_all(void *arg) {
    struct stream *s = arg;
    pthread_mutex_lock(&s->mutex);
    for (; s->next < s->n; s->next++) {
        while (s->in_flight == IN_FLIGHT)
            pthread_cond_wait(&s->changed, &s->mutex);
        s->in_flight++;
        pthread_mutex_unlock(&s->mutex);
        struct ot_store_piece piece = {s->next, s->memory + (size_t)(s->next % IN_FLIGHT) * s->bytes};
        must(ot_store_start(s->store, &(struct ot_transfer){s->write, 1, &piece, on_done, s}));
        pthread_mutex_lock(&s->mutex);
    }
    while (s->in_flight > 0)
        pthread_cond_wait(&s->changed, &s->mutex);
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

/* Reads the first half of the extents while it writes the second half. */
static double run_floor(struct ot_store *store, int n, size_t bytes, char *memory) {
    struct stream ways[2];
    pthread_t threads[2];
    double since = ot_clock_seconds();
    for (int w = 0; w < 2; w++) {
        ways[w] = (struct stream){.store = store,
                                  .write = w,
                                  .next = w * n / 2,
                                  .n = (w + 1) * n / 2,
                                  .bytes = bytes,
                                  .memory = memory + (size_t)(w * IN_FLIGHT) * bytes};
        pthread_mutex_init(&ways[w].mutex, NULL);
        pthread_cond_init(&ways[w].changed, NULL);
        if (pthread_create(&threads[w], NULL, stream_all, &ways[w]) != 0)
            exit(1);
    }
    for (int w = 0; w < 2; w++)
        pthread_join(threads[w], NULL);
    return (double)n * (double)bytes / (ot_clock_seconds() - since);
}

static void open_floor(const struct ot_store_config *like, int n, size_t bytes, char *memory,
                       struct ot_store **out) {
    struct ot_store_config config = *like;
    size_t *extents = malloc((size_t)n * sizeof *extents);
    if (!extents)
        exit(1);
    for (int i = 0; i < n; i++)
        extents[i] = bytes;
    config.n_extents = n;
    config.extent_bytes = extents;
    config.arena = memory;
    config.arena_bytes = 2 * IN_FLIGHT * bytes;
    must(ot_store_open(&config, out));
    free(extents);
    for (size_t i = 0; i < config.arena_bytes; i += sizeof(uint32_t))
        *(uint32_t *)(memory + i) = ot_random_u32(1, 1, i);
    for (int i = 0; i < n; i++)
        must(ot_store_write(*out, i, memory));
}

int main(int argc, char **argv) {
    int64_t params = (argc > 2 ? atoll(argv[2]) : 96) << 20;
    int steps = argc > 3 ? atoi(argv[3]) : 6, threads = (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (argc < 2 || params < 1 || steps < 1) {
        fprintf(stderr, "usage: bench_optimizer_nvme DIR [MILLION_PARAMS [STEPS]]\n");
        return 2;
    }
    static struct model m;
    struct ot_device *device;
    struct ot_engine *engine;
    struct ot_store *floor_store;
    struct ot_store_dir dir = {.path = argv[1]};
    struct ot_store_config store = {.n_dirs = 1, .dirs = &dir};
    make_model(&m, params);
    must(ot_device_open(
        &(struct ot_device_config){.kind = "cpu", .memory_bytes = (size_t)8 << 30, .threads = 1}, &device));
    open_engine(&m, device, &store, threads, &engine);
    set_random(engine, &m.chain);
    size_t tile = ot_state_bytes(&(struct ot_chain){.dtype = OT_BF16}, TILE_PARAMS);
    int tiles = (int)(BLOCKS * (m.group.n / TILE_PARAMS));
    char *memory = aligned_alloc(OT_STORE_ALIGN, 2 * IN_FLIGHT * tile);
    if (!memory)
        return 1;
    madvise(memory, 2 * IN_FLIGHT * tile, MADV_HUGEPAGE); /* like the engine's arena */
    open_floor(&store, tiles, tile, memory, &floor_store);
    run_steps(engine, 1); /* warm-up: the first reads find what was just written */
    double best = 0, floor_best = 0;
    for (int round = 0; round < ROUNDS; round++) {
        double rate = run_steps(engine, steps), alone = run_floor(floor_store, tiles, tile, memory);
        printf("round %d: optimizer %.2f GB/s, the disk alone %.2f GB/s\n", round + 1, rate * 1e-9,
               alone * 1e-9);
        best = rate > best ? rate : best;
        floor_best = alone > floor_best ? alone : floor_best;
    }
    printf("optimizer from nvme %.2f GB/s, the disk alone %.2f GB/s, share %.2f\n", best * 1e-9,
           floor_best * 1e-9, best / floor_best);
    ot_engine_close(engine);
    ot_store_close(floor_store);
    ot_device_close(device);
    free(memory);
    return 0;
}
