#include "tests/offload/tiny_run.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/device.h"
#include "offload/engine/engine_state.h"
#include "offload/plan/layout.h"
#include "offload/plan/shadow_updates.h"
#include "src/base/random.h"
#include "tests/offload/tiny_encode.h"
#include "tests/offload/tiny_parts.h"
#include "tests/support/check.h"

enum { SCRATCH_BYTES = 40 << 20, PATH_BYTES = 600 };

static const char *device_kind(void) {
    const char *kind = getenv("OT_TEST_DEVICE");
    return kind ? kind : "cpu";
}

bool tiny_is_on_cpu(void) {
    return strcmp(device_kind(), "cpu") == 0;
}

void tiny_needs_cpu(void) {
    if (!tiny_is_on_cpu())
        skip();
}

void tiny_skip_without_device(void) {
    setenv("XDG_CACHE_HOME", "", 1); /* tuning begins without saved choices, and saves none */
    setenv("HOME", "", 1);
    setenv("OFFLOAD_TRAIN_KERNEL_CHECKS", "off",
           1); /* a wrong kernel must not be replaced by the right one */
    if (ot_device_is_present(device_kind()))
        return;
    fprintf(stderr, "SKIP: no %s device is present\n", device_kind());
    exit(77);
}

void tiny_open_device(size_t plan_bytes, int threads, uint64_t delay_seed, struct ot_device **out) {
    struct ot_device_config config = {.kind = device_kind(),
                                      .memory_bytes = plan_bytes + (tiny_is_on_cpu() ? 0 : SCRATCH_BYTES),
                                      .scratch_bytes = SCRATCH_BYTES,
                                      .threads = threads,
                                      .lane_delay_seed = delay_seed};
    check_ok(ot_device_open(&config, out));
}

struct ot_model_config tiny_config(int layers, bool tied) {
    return (struct ot_model_config){.family = OT_FAMILY_LLAMA,
                                    .n_layers = layers,
                                    .hidden = 32,
                                    .ffn = 56,
                                    .n_heads = 4,
                                    .n_kv_heads = 2,
                                    .head_dim = 8,
                                    .vocab = 67,
                                    .max_position = 64,
                                    .norm = OT_NORM_RMS,
                                    .norm_eps = 1e-5f,
                                    .act = OT_ACT_SILU,
                                    .rope.theta = 10000,
                                    .rotary_dim = 8,
                                    .tied = tied,
                                    .init_std = 0.1};
}

struct ot_model_config tiny_pair_config(bool gated) {
    return (struct ot_model_config){.family = OT_FAMILY_T5,
                                    .n_layers = 5,
                                    .n_encoder_layers = 2,
                                    .hidden = 32,
                                    .ffn = 40,
                                    .n_heads = 3,
                                    .n_kv_heads = 3,
                                    .head_dim = 8,
                                    .vocab = 67,
                                    .max_position = 1 << 20,
                                    .norm = OT_NORM_RMS,
                                    .norm_eps = 1e-6f,
                                    .act = gated ? OT_ACT_GELU_TANH : OT_ACT_RELU,
                                    .plain_mlp = !gated,
                                    .tied = !gated,
                                    .logit_divisor = gated ? 0 : 5,
                                    .positions = OT_POSITIONS_RELATIVE,
                                    .position_buckets = 8,
                                    .position_distance = 10,
                                    .attention_scale = 1,
                                    .init_std = 0.1};
}

struct ot_model_config tiny_golden_config(const int64_t *counts, const double *reals) {
    return (struct ot_model_config){.family = OT_FAMILY_LLAMA,
                                    .n_layers = counts[0],
                                    .hidden = counts[1],
                                    .ffn = counts[2],
                                    .n_heads = counts[3],
                                    .n_kv_heads = counts[4],
                                    .head_dim = counts[5],
                                    .vocab = counts[6],
                                    .max_position = counts[7],
                                    .rotary_dim = counts[5],
                                    .norm = OT_NORM_RMS,
                                    .norm_eps = (float)reals[0],
                                    .act = OT_ACT_SILU,
                                    .rope.theta = reals[1]};
}

void tiny_defaults(struct tiny_run *run, int layers, bool tied, enum ot_dtype dtype) {
    *run = (struct tiny_run){.config = tiny_config(layers, tied),
                             .dtype = dtype,
                             .device_threads = 1,
                             .optimizer_threads = 1,
                             .micro_sequences = 2,
                             .clip = 1.0f};
}

static void open_base(const struct tiny_run *run, enum ot_base_type base, struct ot_model **out) {
    const struct ot_model_setup parts = {
        .trains = run->trains, .context = run->trains_context, .lora = run->lora, .base = base};
    check_ok(ot_model_open_setup(&run->config, run->dtype, TINY_SEQUENCE, &parts, out));
}

void tiny_open_model(const struct tiny_run *run, struct ot_model **out) {
    open_base(run, run->base, out);
    ot_model_set_state(*out, run->state, run->masters);
    ot_model_set_regular(*out, &run->regular);
    ot_model_set_compares(*out, run->objective.kind != OT_OBJECTIVE_SFT);
    ot_model_set_section_align(*out, 1);
    if (run->parts)
        tiny_part_slabs(*out);
    if (run->encodes)
        tiny_encode_slabs(*out);
}

void tiny_plan(struct tiny_run *run, enum ot_home weights, enum ot_home state, enum ot_home activations,
               int slots) {
    struct ot_model *model;
    bool stages = run->shard.mode == OT_SHARD_STAGES;
    tiny_open_model(run, &model);
    struct ot_plan_request request = {.chain = ot_model_chain(model),
                                      .budget_bytes = {(size_t)1 << 30, (size_t)1 << 30, (size_t)1 << 30},
                                      .sequence_tokens = TINY_SEQUENCE,
                                      .step_sequences = TINY_STEP_SEQUENCES,
                                      .micro_sequences = run->micro_sequences,
                                      .sections = run->sections,
                                      .key_groups = run->key_groups,
                                      .train = true,
                                      .clip = run->clip > 0,
                                      .weights = weights,
                                      .state = state,
                                      .grads = OT_HOME_AUTO,
                                      .activations = activations,
                                      .slots = slots,
                                      .keep = OT_KEEP_NONE,
                                      .cache_rows = run->cache_rows,
                                      .shard = run->shard,
                                      .fetch = stages ? OT_FETCH_ALL_PARTS : OT_FETCH_USED_PARTS};
    memcpy(request.fractions, run->fractions, sizeof request.fractions);
    check_ok(ot_plan_make(&request, &run->plan));
    ot_model_close(model);
}

void tiny_finish(struct tiny_run *run) {
    struct ot_model *model;
    tiny_open_model(run, &model);
    check_ok(ot_plan_finish(ot_model_chain(model), &run->plan));
    ot_model_close(model);
}

static void deal_slab(int n, unsigned engines, uint64_t seed, int slab, int tiles[OT_TILE_ENGINES]) {
    int allowed = 0;
    for (int e = 0; e < OT_TILE_ENGINES; e++)
        allowed += engines >> e & 1;
    for (int e = 0; e < OT_TILE_ENGINES; e++) {
        uint64_t random = ot_random_below(seed, ot_random_stream(OT_RANDOM_TEST, (uint64_t)slab, (uint64_t)e),
                                          0, (uint64_t)n + 1);
        int part = seed ? (int)random : allowed ? (n + allowed - 1) / allowed : 0;
        bool in = engines >> e & 1;
        allowed -= in;
        tiles[e] = !in ? 0 : allowed == 0 ? n : part;
        n -= tiles[e];
    }
}

void tiny_deal(struct tiny_run *run, int64_t tile_params, unsigned engines, uint64_t seed) {
    struct ot_model *model;
    tiny_open_model(run, &model);
    run->plan.tile_params = tile_params;
    for (int s = 0; s < run->plan.n_slabs; s++) {
        struct ot_slab_plan *slab = &run->plan.slabs[s];
        deal_slab(ot_slab_trained_tiles(ot_model_chain(model), &run->plan, s), engines, seed, s, slab->tiles);
        slab->grads = (s + seed) % 2 ? OT_HOME_GPU : OT_HOME_HOST;
    }
    if (run->plan.state_slots == 0)
        run->plan.state_slots = 1;
    if (run->plan.tile_slots == 0)
        run->plan.tile_slots = ot_plan_passing_tiles(&run->plan) > 0;
    check_ok(ot_plan_finish(ot_model_chain(model), &run->plan));
    ot_model_close(model);
}

/* The values of a slab with which every run begins. To be freed with free. */
static float *first_values(const struct ot_model *model, int slab) {
    int64_t n = ot_model_chain(model)->slabs[slab].n_params;
    float *values = malloc((size_t)n * sizeof *values);
    assert_non_null(values);
    ot_model_init_values(model, 42, slab, 0, n, values);
    return values;
}

static void set_weights(const struct tiny_run *run, struct ot_engine *engine, const struct ot_model *model) {
    const struct ot_chain *chain = ot_model_chain(model);
    struct ot_model *decoded = NULL;
    if (run->decoded)
        open_base(run, run->decoded, &decoded);
    for (int s = 0; s < chain->n_slabs; s++) {
        struct ot_shard_range held = ot_slab_holding(chain, &engine->plan, s);
        float *values = first_values(model, s);
        if (ot_slab_is_encoded(chain, s)) {
            char *encoded = tiny_encoded(model, s, values);
            check_ok(
                ot_engine_set_encoded(engine, s, held.first, held.n, encoded + held.first * OT_ENCODED_UNIT));
            free(encoded);
        } else {
            if (decoded && ot_slab_is_encoded(ot_model_chain(decoded), s))
                tiny_decode(decoded, s, values);
            check_ok(ot_engine_set(engine, OT_SLAB_MASTER, s, held.first, held.n, values + held.first));
        }
        free(values);
    }
    ot_model_close(decoded);
}

/* Fails the test if the slab has other bytes than those with which the run began. */
static void check_encoded(const struct tiny_engine *tiny, int slab, struct ot_shard_range held) {
    float *values = first_values(tiny->model, slab);
    char *want = tiny_encoded(tiny->model, slab, values), *got = malloc((size_t)held.n * OT_ENCODED_UNIT + 1);
    assert_non_null(got);
    check_ok(ot_engine_get_encoded(tiny->engine, slab, held.first, held.n, got));
    assert_memory_equal(got, want + held.first * OT_ENCODED_UNIT, (size_t)held.n * OT_ENCODED_UNIT);
    free(values);
    free(want);
    free(got);
}

static bool has_kind(const struct ot_chain *chain, int slab, enum ot_slab_kind kind) {
    return !ot_slab_is_encoded(chain, slab) && (kind == OT_SLAB_MASTER || !chain->slabs[slab].frozen);
}

void tiny_read(const struct tiny_engine *tiny, struct tiny_result *result) {
    const struct ot_chain *chain = ot_model_chain(tiny->model);
    for (int s = 0; s < chain->n_slabs; s++)
        result->n_values += 3 * chain->slabs[s].n_params;
    float *at = result->values = calloc((size_t)result->n_values, sizeof *at);
    assert_non_null(at);
    for (int s = 0; s < chain->n_slabs; s++) {
        struct ot_shard_range held = ot_slab_holding(chain, &tiny->engine->plan, s);
        if (ot_slab_is_encoded(chain, s))
            check_encoded(tiny, s, held);
        for (enum ot_slab_kind kind = OT_SLAB_MASTER; kind <= OT_SLAB_V;
             kind++, at += chain->slabs[s].n_params)
            if (has_kind(chain, s, kind))
                check_ok(ot_engine_get(tiny->engine, kind, s, held.first, held.n, at + held.first));
    }
}

/* Collects m in small pieces, that of the first layer in the smallest, with other sizes of idle memory on
 * every rank. */
static void collect_slabs(const struct tiny_engine *tiny, struct tiny_result *result) {
    const struct ot_chain *chain = ot_model_chain(tiny->model);
    float *at = result->collected = calloc((size_t)result->n_values, sizeof *at);
    int rank = ot_comm_rank(tiny->comm), ranks = ot_comm_ranks(tiny->comm);
    size_t idle = tiny->engine->layout.idle_bytes;
    size_t least = (size_t)ranks * OT_SHARD_ALIGN_PARAMS * sizeof(float) + 1;
    assert_non_null(at);
    for (int s = 0; s < chain->n_slabs; s++)
        for (enum ot_slab_kind kind = OT_SLAB_MASTER; kind <= OT_SLAB_V;
             kind++, at += chain->slabs[s].n_params) {
            size_t little = (s == 1 ? 1 : 8) * least * (size_t)(1 + rank);
            tiny->engine->layout.idle_bytes = kind == OT_SLAB_M ? little : idle;
            if (has_kind(chain, s, kind))
                check_ok(ot_engine_gather_to_rank0(tiny->engine, kind, s, rank == 0 ? at : NULL));
        }
}

static void collect(struct ot_engine *engine, struct tiny_result *result, int step) {
    struct ot_step_result r;
    check_ok(ot_engine_result(engine, &r));
    assert_int_equal(r.step, step + 1);
    result->loss[step] = r.loss;
    result->norm[step] = r.grad_norm;
    result->skipped[step] = r.skipped;
}

/* Overwrites all memory that the device may write to while it tunes with NaNs, whether it tunes or not. */
static void tune(struct ot_engine *engine, struct ot_device_tuning *out) {
    check_ok(ot_engine_tune(engine, 0.1, out));
    assert_true(engine->layout.idle_bytes > 0);
    ot_lane_fill(engine->lane, engine->tier_memory[OT_TIER_GPU] + engine->layout.idle_offset, 0xff,
                 engine->layout.idle_bytes);
    check_ok(ot_lane_sync(engine->lane));
}

/* Keeps two steps in flight, as the program does. */
void tiny_steps(const struct tiny_run *run, struct ot_engine *engine, int first, int end,
                struct tiny_result *result) {
    struct tiny_batch *batch = malloc(sizeof *batch);
    assert_non_null(batch);
    int collected = first;
    for (int step = first; step < end; step++) {
        int sequences = step == 2 ? (int)run->micro_sequences + 1 : TINY_STEP_SEQUENCES;
        sequences = sequences > TINY_STEP_SEQUENCES ? TINY_STEP_SEQUENCES : sequences;
        tiny_fill_batch(batch, run->config.vocab, step, sequences, run->micro_sequences);
        if (ot_model_has_pairs(&run->config))
            tiny_pair_batch(batch);
        if (run->objective.kind != OT_OBJECTIVE_SFT)
            tiny_compare_batch(batch);
        batch->input.micro +=
            ot_shard_micro(&run->plan.shard, batch->input.n_micro, run->plan.shard.rank).first;
        check_ok(ot_engine_submit(engine, &batch->input));
        bool tunes = run->tune && step == 1;
        if (tunes)
            check_fails(ot_engine_tune(engine, 0.1, &result->tuning), OT_E_INTERNAL, "steps in flight");
        while (collected < step + tunes)
            collect(engine, result, collected++);
        if (tunes)
            tune(engine, &result->tuning);
    }
    collect(engine, result, collected);
    free(batch);
}

static void name_directory(const char *folder, int i, char path[PATH_BYTES]) {
    snprintf(path, PATH_BYTES, "%s/%d", folder, i);
}

static void open_store(const struct tiny_run *run, struct tiny_engine *out, struct ot_store_config *store,
                       struct ot_store_dir dirs[OT_STORE_MAX_DIRS],
                       char paths[OT_STORE_MAX_DIRS][PATH_BYTES]) {
    *store = (struct ot_store_config){.n_dirs = run->stripes ? run->stripes : 1,
                                      .dirs = dirs,
                                      .engine = run->io,
                                      .chunk_bytes = run->chunk_bytes,
                                      .depth = run->io_depth,
                                      .calls = run->io_calls};
    out->folder = make_folder();
    for (int i = 0; i < store->n_dirs; i++) {
        name_directory(out->folder, i, paths[i]);
        assert_int_equal(mkdir(paths[i], 0700), 0);
        dirs[i] = (struct ot_store_dir){.path = paths[i]};
    }
}

static void close_store(struct tiny_engine *tiny) {
    char path[PATH_BYTES];
    if (!tiny->folder)
        return;
    for (int i = 0; i < OT_STORE_MAX_DIRS; i++) {
        name_directory(tiny->folder, i, path);
        if (rmdir(path) != 0 && errno != ENOENT)
            fail_msg("%s: the store left files in this folder", path);
    }
    remove_folder(tiny->folder);
}

static void believe(const struct tiny_run *run, struct ot_engine *engine) {
    for (int s = 0; run->shadow_belief > 0 && engine->shadows.pending && s < engine->chain.n_slabs; s++) {
        engine->shadows.portions[s] = run->shadow_belief;
        engine->shadows.knows_portions = true;
    }
}

int tiny_try_open(const struct tiny_run *run, struct tiny_engine *out) {
    struct ot_store_config store;
    struct ot_store_dir dirs[OT_STORE_MAX_DIRS];
    char paths[OT_STORE_MAX_DIRS][PATH_BYTES];
    bool nvme = ot_ledger_total(&run->plan.ledger, OT_TIER_NVME) > 0;
    out->folder = NULL;
    if (nvme)
        open_store(run, out, &store, dirs, paths);
    tiny_open_model(run, &out->model);
    tiny_open_device(ot_ledger_total(&run->plan.ledger, OT_TIER_GPU), run->device_threads, run->delay_seed,
                     &out->device);
    out->chain = *ot_model_chain(out->model);
    if (run->change_chain)
        run->change_chain(&out->chain);
    struct ot_engine_config config = {.chain = &out->chain,
                                      .device = out->device,
                                      .plan = &run->plan,
                                      .optimizer = {0.9f, 0.95f, 1e-8f, 0.1f, run->clip, 12345},
                                      .objective = run->objective,
                                      .optimizer_threads = run->optimizer_threads,
                                      .store = nvme ? &store : NULL,
                                      .stall_seconds = run->stall_seconds,
                                      .stall_limit_seconds = run->stall_limit_seconds,
                                      .skip_spikes = run->skip_spikes,
                                      .delay_seed = run->delay_seed,
                                      .poisons_parts = true,
                                      .shared_memory = run->shared_memory};
    out->comm = NULL;
    if (run->join)
        check_ok(run->join(run->join_context, run->shard.rank, out->device, &out->comm));
    config.comm = out->comm;
    OT_TRY(ot_engine_open(&config, &out->engine));
    believe(run, out->engine);
    set_weights(run, out->engine, out->model);
    return 0;
}

void tiny_open(const struct tiny_run *run, struct tiny_engine *out) {
    check_ok(tiny_try_open(run, out));
}

void tiny_close(struct tiny_engine *tiny) {
    struct ot_device_usage usage;
    ot_engine_close(tiny->engine);
    ot_comm_close(tiny->comm);
    close_store(tiny);
    ot_device_usage(tiny->device, &usage);
    assert_int_equal(usage.used_bytes, usage.scratch_bytes);
    ot_device_close(tiny->device);
    ot_model_close(tiny->model);
}

int64_t tiny_adam_step(const struct ot_engine *engine) {
    struct ot_engine_progress progress;
    ot_engine_get_progress(engine, &progress);
    return progress.adam_step;
}

void tiny_hand_over(const struct ot_engine *from, struct ot_engine *to) {
    struct ot_engine_progress progress;
    ot_engine_get_progress(from, &progress);
    ot_engine_set_progress(to, &progress);
}

/* Every rank evaluates the same sequence, twice: nothing is gathered before the second pass. */
static void evaluate(const struct tiny_run *run, struct ot_engine *engine, struct tiny_result *result) {
    struct tiny_batch *batch = malloc(sizeof *batch);
    float again[TINY_SEQUENCE];
    assert_non_null(batch);
    tiny_fill_batch(batch, run->config.vocab, 0, 1, 1);
    if (ot_model_has_pairs(&run->config))
        tiny_pair_batch(batch);
    check_ok(ot_engine_eval(engine, batch->micro, result->token_loss));
    check_ok(ot_engine_eval(engine, batch->micro, again));
    assert_memory_equal(result->token_loss, again, sizeof again);
    free(batch);
}

void tiny_train(const struct tiny_run *run, struct tiny_result *result) {
    struct tiny_engine tiny;
    struct ot_device_usage usage;
    memset(result, 0, sizeof *result);
    tiny_open(run, &tiny);
    int before = run->evals ? TINY_STEPS / 2 : 0;
    if (run->evals) {
        tiny_steps(run, tiny.engine, 0, before, result);
        evaluate(run, tiny.engine, result);
    }
    tiny_steps(run, tiny.engine, before, TINY_STEPS, result);
    check_ok(ot_engine_drain(tiny.engine));
    tiny_read(&tiny, result);
    if (tiny.comm)
        collect_slabs(&tiny, result);
    ot_device_usage(tiny.device, &usage);
    assert_int_equal(usage.peak_bytes, ot_ledger_total(&run->plan.ledger, OT_TIER_GPU) + usage.scratch_bytes);
    assert_int_equal(usage.pinned_peak_bytes, ot_ledger_total(&run->plan.ledger, OT_TIER_HOST));
    struct ot_store_usage store;
    ot_engine_store_usage(tiny.engine, &store);
    assert_int_equal(store.file_bytes, ot_ledger_total(&run->plan.ledger, OT_TIER_NVME));
    tiny_close(&tiny);
}

void tiny_check_tuning(const struct ot_device_tuning *tuning) {
    if (tiny_is_on_cpu())
        assert_int_equal(tuning->shapes, 0);
    else
        /* All products may be too small to prove a choice. */
        assert_true(tuning->shapes > 0 && tuning->timed <= tuning->shapes);
}

void tiny_result_free(struct tiny_result *result) {
    free(result->values);
    free(result->collected);
    memset(result, 0, sizeof *result);
}

void tiny_same(const struct tiny_result *a, const struct tiny_result *b, const char *what) {
    for (int i = 0; i < TINY_STEPS; i++)
        if (memcmp(&a->loss[i], &b->loss[i], sizeof(double)) != 0 ||
            memcmp(&a->norm[i], &b->norm[i], sizeof(double)) != 0)
            fail_msg("%s: step %d: loss %.17g and %.17g, norm %.17g and %.17g", what, i + 1, a->loss[i],
                     b->loss[i], a->norm[i], b->norm[i]);
    if (memcmp(a->token_loss, b->token_loss, sizeof a->token_loss) != 0)
        fail_msg("%s: the evaluation differs", what);
    assert_int_equal(a->n_values, b->n_values);
    for (int64_t i = 0; i < a->n_values; i++)
        if (ot_f32_bits(a->values[i]) != ot_f32_bits(b->values[i]))
            fail_msg("%s: value %lld of %lld is %.9g and %.9g", what, (long long)i, (long long)a->n_values,
                     (double)a->values[i], (double)b->values[i]);
}
