/* Stages (plan/stages.h): any number of ranks, and any division of the blocks, give the bits of one rank. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/plan/slabs.h"
#include "offload/plan/stages.h"
#include "src/base/error.h"
#include "src/base/random.h"
#include "tests/offload/tiny_keeper.h"
#include "tests/offload/tiny_ranks.h"
#include "tests/support/check.h"
#include "tests/support/thread_world.h"

enum { LAYERS = 5, MOST_RANKS = 8 };

static void defaults(struct tiny_run *run, enum ot_dtype dtype, bool tied, float clip) {
    tiny_defaults(run, LAYERS, tied, dtype);
    run->micro_sequences = 1; /* six micro-batches; two in the short step */
    run->clip = clip;
    run->evals = true;
}

/* world: one rank that makes the groups of eight. */
static void train_alone(const struct tiny_run *run, bool world, struct tiny_result *result) {
    struct tiny_run alone = *run;
    alone.shard = (struct ot_shard){.ranks = 1, .world = world};
    tiny_plan(&alone, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 2);
    tiny_train(&alone, result);
    ot_plan_free(&alone.plan);
    for (int i = 0; i < TINY_STEPS; i++)
        assert_true(isfinite(result->loss[i]) && (result->norm[i] > 0 || run->change_chain));
}

static void check_same(const struct tiny_run *run, const struct tiny_world *w,
                       const struct tiny_result *want) {
    struct tiny_result result;
    char what[200];
    snprintf(what, sizeof what, "%d stages %s tied=%d clip=%g weights=%s state=%s activations=%s seed=%d",
             w->ranks, ot_dtype_name(run->dtype), run->config.tied, (double)run->clip,
             ot_tier_name((enum ot_tier)w->weights), ot_tier_name((enum ot_tier)w->state),
             ot_tier_name((enum ot_tier)w->activations), (int)w->delay_seed);
    tiny_train_ranks(run, w, &result);
    tiny_same(want, &result, what);
    assert_memory_equal(want->skipped, result.skipped, sizeof result.skipped);
    tiny_result_free(&result);
}

static void homes_on(const struct tiny_run *run, int ranks, const struct tiny_result *want) {
    int mix = ranks + (int)run->dtype + run->config.tied;
    struct tiny_world w = {.ranks = ranks,
                           .mode = OT_SHARD_STAGES,
                           .turn_blocks = ranks == 2 ? mix % 3 : mix % 2,
                           .weights = (enum ot_home)(mix % 3),
                           .state = (enum ot_home)(mix / 2 % 3),
                           .activations = (enum ot_home)((mix + ranks) % 3),
                           .slots = 1 + mix % 3,
                           .crosses = mix % 2,
                           .delay_seed = (uint64_t)mix};
    check_same(run, &w, want);
}

static void homes(void **state) {
    (void)state;
    static const int rank_counts[] = {2, MOST_RANKS, 4};
    bool slow = getenv("OT_TEST_SLOW") != NULL;
    for (int dtype = OT_F32; dtype <= OT_F16; dtype += tests_are_for_races() ? 2 : 1)
        for (int tied = slow ? 0 : dtype % 2; tied <= (slow ? 1 : dtype % 2); tied++) {
            struct tiny_run run;
            struct tiny_result want;
            defaults(&run, (enum ot_dtype)dtype, tied, tied || dtype == OT_F16 ? 1 : 0);
            run.config.n_layers = rank_counts[dtype] == MOST_RANKS ? MOST_RANKS : LAYERS;
            train_alone(&run, false, &want);
            for (int ranks = slow ? 2 : rank_counts[dtype]; ranks <= run.config.n_layers;
                 ranks += slow ? 1 : MOST_RANKS)
                homes_on(&run, ranks, &want);
            tiny_result_free(&want);
        }
}

/* Cuts the step into a number of rounds. */
static void cut(struct tiny_run *run, int rank, void *context) {
    (void)rank;
    ot_plan_set_rounds(&run->plan, *(int *)context);
    tiny_finish(run);
}

/* Rounds that flow through the pipeline one behind the other. */
static void rounds_in_flight(void **state) {
    (void)state;
    bool slow = getenv("OT_TEST_SLOW") != NULL;
    struct tiny_run run;
    struct tiny_result want;
    defaults(&run, OT_BF16, true, 1);
    train_alone(&run, false, &want);
    for (int rounds = 2; rounds <= 6; rounds += tests_are_for_races() ? 4 : 2)
        for (int turn = slow ? 0 : rounds / 2 % 2; turn <= (slow ? 1 : rounds / 2 % 2); turn++) {
            int mix = rounds / 2 + turn;
            struct tiny_world w = {.ranks = 2 + mix % 3,
                                   .mode = OT_SHARD_STAGES,
                                   .turn_blocks = turn,
                                   .in_flight = 2 + mix % 2,
                                   .weights = (enum ot_home)(mix % 3),
                                   .state = (enum ot_home)(mix % 2),
                                   .activations = (enum ot_home)((mix + 1) % 3),
                                   .slots = 2,
                                   .crosses = turn,
                                   .delay_seed = (uint64_t)mix,
                                   .change = cut,
                                   .context = &rounds};
            check_same(&run, &w, &want);
        }
    tiny_result_free(&want);
}

/* ---- random plans ---- */

static struct tiny_world random_world(int ranks, uint64_t *seed) {
    return (struct tiny_world){.ranks = ranks,
                               .mode = OT_SHARD_STAGES,
                               .weights = OT_HOME_HOST,
                               .state = OT_HOME_HOST,
                               .activations = OT_HOME_HOST,
                               .slots = 2,
                               .crosses = true,
                               .delay_seed = *seed,
                               .change = tiny_random_stage,
                               .context = seed};
}

static void check_random_plans(const struct tiny_run *run, int ranks, bool world, int first, int count) {
    struct tiny_result want;
    train_alone(run, world, &want);
    for (int i = 0; i < count; i++) {
        uint64_t seed = (uint64_t)(first + i);
        struct tiny_world w = random_world(ranks, &seed);
        w.world = world;
        w.in_flight = ranks % 3; /* 0 and 1: one round */
        check_same(run, &w, &want);
    }
    tiny_result_free(&want);
}

static void random_plans(void **state) {
    (void)state;
    static const int rank_counts[] = {5, 3, 8, 2, 4};
    bool slow = getenv("OT_TEST_SLOW") != NULL;
    for (int variant = 0; variant < (slow ? 30 : 2); variant++) {
        struct tiny_run run;
        int ranks = rank_counts[variant % 5];
        enum ot_dtype dtype = (enum ot_dtype)((variant + 1) % 3);
        defaults(&run, dtype, variant % 2, variant % 4 == 3 && dtype != OT_F16 ? 0 : 1);
        run.config.n_layers = ranks == MOST_RANKS ? ranks : LAYERS;
        run.state = (enum ot_state_format)((variant + variant / 3) % OT_STATE_FORMATS);
        run.masters = dtype == OT_BF16 && variant % 2 == 0 ? OT_MASTERS_NONE : OT_MASTERS_F32;
        check_random_plans(&run, ranks, false, 100 * variant, slow ? 8 : 1);
    }
}

/* With `world`, stages have the bits of one rank with `world`, also if their number divides no eight. */
static void groups_of_eight(void **state) {
    (void)state;
    bool slow = getenv("OT_TEST_SLOW") != NULL;
    for (int variant = 0; variant < (slow ? 6 : 1); variant++) {
        struct tiny_run run;
        defaults(&run, variant % 2 ? OT_F32 : OT_BF16, variant % 3 == 0, variant % 2 ? 0 : 1);
        check_random_plans(&run, 3 + variant % 2, true, 1000 + 100 * variant, slow ? 4 : 1);
    }
}

static int join(void *context, int rank, struct ot_device *device, struct ot_comm **out) {
    return thread_world_join(context, rank, device, out);
}

/* ---- steps that are skipped ---- */

static void (*models_backward)(const void *context, int block, const struct ot_block_run *run);

/* In the second step, a micro-batch gives the first weight of one block a gradient that is not finite. */
static void poison_gradient(const void *context, int block, const struct ot_block_run *run) {
    models_backward(context, block, run);
    if (block == 2 && run->random.stream == ot_random_stream(OT_RANDOM_DROPOUT, 2, 3))
        ot_lane_fill(run->lane, run->grads[0], 0xff, sizeof(float));
}

static void change_backward(struct ot_chain *chain) {
    if (!models_backward) /* by the run on one rank, before there are other threads */
        models_backward = chain->backward;
    chain->backward = poison_gradient;
}

/* Also fp16, whose first loss scales overflow. */
static void skipped_steps(void **state) {
    (void)state;
    tiny_needs_cpu();
    for (int dtype = getenv("OT_TEST_SLOW") ? OT_F32 : OT_F16; dtype <= OT_F16; dtype++) {
        struct tiny_run run;
        struct tiny_result want;
        uint64_t seed = 7 + (uint64_t)dtype;
        defaults(&run, (enum ot_dtype)dtype, false, 1);
        run.change_chain = change_backward;
        train_alone(&run, false, &want);
        assert_true(want.skipped[1] && !want.skipped[3] && want.skipped[0] == (dtype == OT_F16));
        struct tiny_world w = random_world(3, &seed);
        check_same(&run, &w, &want);
        tiny_result_free(&want);
    }
}

/* A rank that makes steps until one fails. */
struct victim {
    struct tiny_run run;
    struct ot_error error;
    pthread_t thread;
};

static void *meet_the_poison(void *context) {
    struct victim *v = context;
    struct tiny_engine tiny;
    struct ot_step_result result;
    struct tiny_batch *batch = malloc(sizeof *batch);
    assert_non_null(batch);
    tiny_open(&v->run, &tiny);
    for (int step = 0, rc = 0; rc == 0; step++) {
        assert_true(step < TINY_STEPS);
        tiny_fill_batch(batch, v->run.config.vocab, step, TINY_STEP_SEQUENCES, 1);
        rc = ot_engine_submit(tiny.engine, &batch->input);
        rc = rc < 0 ? rc : ot_engine_result(tiny.engine, &result);
        ot_error_save(&v->error, rc);
    }
    tiny_close(&tiny);
    free(batch);
    return NULL;
}

/* Without clipping, other blocks are updated before the gradient is bad. One rank alone (victim 0) and each
 * of three ranks end with the same sentence. */
static void bad_gradients_without_clipping(void **state) {
    (void)state;
    tiny_needs_cpu();
    struct victim victims[4] = {0};
    struct thread_world *world = thread_world_open(3, 3);
    for (int i = 0; i < 4; i++) {
        struct tiny_run *run = &victims[i].run;
        defaults(run, OT_F32, false, 0);
        run->change_chain = change_backward;
        run->join = i > 0 ? join : NULL;
        run->join_context = world;
        run->shard = (struct ot_shard){.ranks = 1};
        if (i > 0)
            run->shard = (struct ot_shard){i - 1, 3, OT_SHARD_STAGES, .turn_blocks = 1};
        tiny_plan(run, OT_HOME_GPU, OT_HOME_HOST, OT_HOME_GPU, 2);
        assert_int_equal(pthread_create(&victims[i].thread, NULL, meet_the_poison, &victims[i]), 0);
        if (i == 0) /* it also reads the model's own backward */
            pthread_join(victims[0].thread, NULL);
    }
    for (int i = 1; i < 4; i++)
        pthread_join(victims[i].thread, NULL);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(victims[i].error.code, OT_E_NUMERIC);
        assert_string_equal(victims[i].error.text, victims[0].error.text);
        ot_plan_free(&victims[i].run.plan);
    }
    thread_world_close(world);
}

/* ---- other numbers of ranks ---- */

/* Steps on some ranks, from the snapshots of the ranks before them. */
struct leg {
    int ranks;
    enum ot_shard_mode mode;
    int first, end; /* steps */
    struct tiny_keeper keepers[MOST_RANKS];
    struct ot_engine_progress progress;
};

struct member {
    struct tiny_run run;
    struct leg *before, *leg; /* before: NULL: the first */
    struct tiny_result result;
    pthread_t thread;
};

static void *walk(void *context) {
    struct member *m = context;
    struct tiny_engine tiny;
    struct tiny_keeper *keeper = &m->leg->keepers[m->run.shard.rank];
    struct ot_pins *pins;
    tiny_open(&m->run, &tiny);
    for (int r = 0; m->before && r < m->before->ranks; r++)
        tiny_keeper_put_back(&m->before->keepers[r], tiny.engine);
    if (m->before)
        ot_engine_set_progress(tiny.engine, &m->before->progress);
    tiny_steps(&m->run, tiny.engine, m->leg->first, m->leg->end, &m->result);
    check_ok(ot_engine_drain(tiny.engine));
    tiny_keeper_open(keeper, &m->run, 1, 0);
    struct ot_snapshot_config config = tiny_keeper_config(keeper);
    check_ok(ot_engine_snapshot(tiny.engine, &config));
    check_ok(ot_engine_snapshot_finish(tiny.engine, &pins));
    ot_pins_free(pins);
    if (m->run.shard.rank == 0)
        ot_engine_get_progress(tiny.engine, &m->leg->progress);
    tiny_close(&tiny);
    return NULL;
}

/* seed: 0: the planner's plans; else random ones, with owners at random if the leg has stages. */
static void walk_leg(const struct tiny_run *run, bool world, uint64_t seed, struct leg *before,
                     struct leg *leg, struct tiny_result *result) {
    struct thread_world *ranks = thread_world_open(leg->ranks, seed);
    struct member members[MOST_RANKS] = {0};
    for (int r = 0; r < leg->ranks; r++) {
        struct member *m = &members[r];
        *m = (struct member){.run = *run, .before = before, .leg = leg, .result = *result};
        m->run.shard = (struct ot_shard){.rank = r, .ranks = leg->ranks, .mode = leg->mode, .world = world};
        m->run.join = leg->ranks > 1 ? join : NULL;
        m->run.join_context = ranks;
        tiny_plan(&m->run, OT_HOME_HOST, r % 2 ? OT_HOME_HOST : OT_HOME_NVME, OT_HOME_HOST, 2);
        if (leg->mode == OT_SHARD_STAGES)
            tiny_random_stage(&m->run, r, &seed);
        m->run.plan.snapshot_slots = 2;
        tiny_finish(&m->run);
    }
    for (int r = 0; r < leg->ranks; r++)
        assert_int_equal(pthread_create(&members[r].thread, NULL, walk, &members[r]), 0);
    for (int r = 0; r < leg->ranks; r++)
        pthread_join(members[r].thread, NULL);
    *result = members[0].result;
    for (int r = 0; r < leg->ranks; r++)
        ot_plan_free(&members[r].run.plan);
    thread_world_close(ranks);
}

static void close_leg(struct leg *leg) {
    for (int r = 0; r < leg->ranks; r++)
        tiny_keeper_close(&leg->keepers[r]);
}

/* Reads what the last leg left into an engine of one rank. */
static void read_leg(const struct tiny_run *run, const struct leg *leg, struct tiny_result *result) {
    struct tiny_run alone = *run;
    struct tiny_engine tiny;
    tiny_plan(&alone, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 2);
    tiny_open(&alone, &tiny);
    for (int r = 0; r < leg->ranks; r++)
        tiny_keeper_put_back((struct tiny_keeper *)&leg->keepers[r], tiny.engine);
    tiny_read(&tiny, result);
    tiny_close(&tiny);
    ot_plan_free(&alone.plan);
}

static void walk_legs(const struct tiny_run *run, bool world, struct leg *legs, int n) {
    struct tiny_result want, got = {0};
    train_alone(run, world, &want);
    for (int i = 0; i < n; i++) {
        walk_leg(run, world, 20 + (uint64_t)i, i ? &legs[i - 1] : NULL, &legs[i], &got);
        if (i > 0)
            close_leg(&legs[i - 1]);
    }
    read_leg(run, &legs[n - 1], &got);
    close_leg(&legs[n - 1]);
    tiny_same(&want, &got, "resumed on other ranks");
    tiny_result_free(&want);
    tiny_result_free(&got);
}

static void resume_on_other_ranks(void **state) {
    (void)state;
    static const struct leg ways[2][4] = {{{.ranks = 4, .mode = OT_SHARD_STAGES, .first = 0, .end = 1},
                                           {.ranks = 1, .mode = OT_SHARD_NONE, .first = 1, .end = 2},
                                           {.ranks = 3, .mode = OT_SHARD_STAGES, .first = 2, .end = 3},
                                           {.ranks = 2, .mode = OT_SHARD_FULL, .first = 3, .end = 4}},
                                          {{.ranks = 2, .mode = OT_SHARD_STAGES, .first = 0, .end = 2},
                                           {.ranks = 1, .mode = OT_SHARD_NONE, .first = 2, .end = 3},
                                           {.ranks = 5, .mode = OT_SHARD_STAGES, .first = 3, .end = 4}}};
    struct leg *legs = calloc(4, sizeof *legs);
    assert_non_null(legs);
    for (int way = 0; way < (getenv("OT_TEST_SLOW") ? 2 : 1); way++) {
        struct tiny_run run;
        defaults(&run, way ? OT_F32 : OT_BF16, !way, way ? 0 : 1);
        run.evals = false;
        run.state = way ? OT_STATE_F32 : OT_STATE_8BIT;
        memcpy(legs, ways[way], sizeof ways[way]);
        walk_legs(&run, way == 0, legs, way ? 3 : 4); /* full: only with `world` the bits of one rank */
    }
    free(legs);
}

/* ---- forward passes ---- */

struct speaker {
    struct tiny_run run;
    float *logits; /* of each token */
    struct ot_bad_block bad[2];
    pthread_t thread;
};

/* Looks for bad weights, or a bad output, after a weight of block 3 is infinite. suspect: a slab whose
 * gradient was bad, which no forward pass shows. */
static void look_for_the_bad_block(struct speaker *s, struct tiny_engine *tiny,
                                   const struct ot_micro_batch *micro) {
    int slab = tiny->chain.blocks[3].uses[0].slab;
    check_ok(ot_engine_find_bad_block(tiny->engine, micro, slab, &s->bad[0]));
    assert_true(s->bad[0].block < 0 && s->bad[0].slab < 0);
    struct ot_shard_range held = ot_slab_holding(&tiny->chain, &s->run.plan, slab);
    float value;
    if (held.n >
        0) { /* all holders set a weight, because they gather after that; the last one's is infinite */
        check_ok(ot_engine_get(tiny->engine, OT_SLAB_MASTER, slab, held.first + 5, 1, &value));
        value = held.first + held.n == tiny->chain.slabs[slab].n_params ? INFINITY : value;
        check_ok(ot_engine_set(tiny->engine, OT_SLAB_MASTER, slab, held.first + 5, 1, &value));
    }
    check_ok(ot_engine_find_bad_block(tiny->engine, micro, -1, &s->bad[1]));
    assert_int_equal(s->bad[1].block, 3);
    assert_int_equal(s->bad[1].slab, slab);
    assert_int_equal(s->bad[1].bad_weights, 1);
    assert_string_equal(s->bad[1].slab_name, tiny->chain.slabs[slab].name);
}

static void *speak(void *context) {
    struct speaker *s = context;
    struct tiny_engine tiny;
    struct tiny_batch *batch = malloc(sizeof *batch);
    int64_t vocab = s->run.config.vocab;
    s->logits = calloc(TINY_SEQUENCE * (size_t)vocab, sizeof *s->logits);
    assert_true(batch && s->logits);
    tiny_fill_batch(batch, vocab, 3, 1, 1);
    tiny_open(&s->run, &tiny);
    check_ok(ot_engine_decode_begin(tiny.engine, TINY_SEQUENCE));
    for (int i = 0; i < TINY_SEQUENCE; i += i == 0 ? 5 : 1)
        check_ok(ot_engine_decode(tiny.engine, batch->tokens + i, i == 0 ? 5 : 1, s->logits + i * vocab));
    ot_engine_decode_end(tiny.engine);
    look_for_the_bad_block(s, &tiny, batch->micro);
    tiny_close(&tiny);
    free(batch);
    return NULL;
}

static void open_speaker(struct speaker *s, const struct tiny_run *run, struct ot_shard shard,
                         struct thread_world *world) {
    s->run = *run;
    s->run.shard = shard;
    s->run.join = world ? join : NULL;
    s->run.join_context = world;
    bool keeps_weights = shard.stages > 0 && shard.stages < shard.ranks;
    tiny_plan(&s->run, keeps_weights ? OT_HOME_GPU : OT_HOME_HOST, OT_HOME_HOST, OT_HOME_GPU, 2);
    tiny_random_cache(&s->run, (uint64_t)shard.rank); /* of its own blocks */
    assert_int_equal(pthread_create(&s->thread, NULL, speak, s), 0);
}

/* All ranks get the logits of one rank, and find the block that is to blame. */
static void forward_passes_of(int ranks, int stages) {
    struct tiny_run run;
    struct speaker speakers[5] = {0}; /* the last one is alone */
    defaults(&run, OT_BF16, false, 1);
    run.cache_rows = TINY_SEQUENCE;
    struct thread_world *world = thread_world_open(ranks, 5);
    for (int r = 0; r < ranks; r++) {
        struct ot_shard shard = {
            .rank = r, .ranks = ranks, .mode = OT_SHARD_STAGES, .turn_blocks = 1, .stages = stages};
        open_speaker(&speakers[r], &run, shard, world);
    }
    open_speaker(&speakers[ranks], &run, (struct ot_shard){.ranks = 1}, NULL);
    for (int r = 0; r <= ranks; r++)
        pthread_join(speakers[r].thread, NULL);
    for (int r = 0; r <= ranks; r++) {
        assert_memory_equal(speakers[r].logits, speakers[ranks].logits,
                            (size_t)run.config.vocab * TINY_SEQUENCE * sizeof *speakers[r].logits);
        assert_true(speakers[r].logits[0] != 0);
        ot_plan_free(&speakers[r].run.plan);
        free(speakers[r].logits);
    }
    thread_world_close(world);
}

static void forward_passes(void **state) {
    (void)state;
    forward_passes_of(3, 3);
    forward_passes_of(4, 2);
}

/* ---- what fails ---- */

/* Whichever operation of a rank fails, every rank ends with an error, and none hangs. */
static void failing_operations(void **state) {
    (void)state;
    struct tiny_run run;
    defaults(&run, OT_BF16, false, 1);
    static const int numbers[] = {1, 3, 29, 2};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct tiny_world w = {.ranks = 3, .mode = OT_SHARD_STAGES, .state = OT_HOME_HOST, .slots = 2};
        w.turn_blocks = (int)i % 2;
        w.crosses = i == 3; /* then its operations are those of all ranks alone */
        int steps = tiny_fail_ranks(&run, &w, (int)i % 3, numbers[i]);
        assert_true(w.crosses ? steps <= 1 : numbers[i] > 3 || steps == 0);
    }
}

/* One layer of rank 2 belongs to another rank there than on the other ranks. */
static void change_owner(struct tiny_run *run, int rank, void *context) {
    (void)context;
    if (rank == 2)
        run->plan.slabs[2].owner = (run->plan.slabs[2].owner + 1) % 4;
    tiny_deal(run, run->plan.tile_params, 1 << OT_TILE_CPU, 0);
}

static bool trains_layers_behind(const void *context, const struct ot_tensor *tensor) {
    (void)context;
    return strstr(tensor->name, "layers.2.") != NULL;
}

/* The embedding of rank 3 belongs to another rank, which changes the first of few transfers alone. */
static void change_first_transfer(struct tiny_run *run, int rank, void *context) {
    (void)context;
    run->plan.max_micro = 1;
    ot_plan_set_rounds(&run->plan, 1);
    for (int s = 0; s < run->plan.n_slabs; s++)
        run->plan.slabs[s].owner = s > 0 ? 1 : rank == 3 ? 2 : 0;
    tiny_deal(run, run->plan.tile_params, 1 << OT_TILE_GPU, 0);
}

static void change_rounds(struct tiny_run *run, int rank, void *context) {
    (void)context;
    ot_plan_set_rounds(&run->plan, rank == 2 ? 2 : 1);
    tiny_finish(run);
}

static void change_micro(struct tiny_run *run, int rank, void *context) {
    (void)context;
    run->plan.max_micro += rank == 3;
    ot_plan_set_rounds(&run->plan, 1);
    tiny_finish(run);
}

/* Ranks with other transfers would wait for each other for ever, so no engine opens. */
static void plans_that_differ(void **state) {
    (void)state;
    struct tiny_run run;
    defaults(&run, OT_BF16, false, 1);
    struct tiny_world w = {.ranks = 4,
                           .mode = OT_SHARD_STAGES,
                           .weights = OT_HOME_HOST,
                           .state = OT_HOME_HOST,
                           .slots = 2,
                           .change = change_owner};
    tiny_refuse_ranks(&run, &w, "the plan differs: ranks 0, 1 and 3 have ");
    w.change = change_rounds;
    tiny_refuse_ranks(&run, &w, "the plan differs: ranks 0, 1 and 3 have ");
    w.change = change_micro;
    tiny_refuse_ranks(&run, &w, "the plan differs: ranks 0, 1 and 2 have ");
    run.trains = trains_layers_behind;
    w.weights = w.state = OT_HOME_GPU;
    w.change = change_first_transfer;
    tiny_refuse_ranks(&run, &w, "the plan differs: ranks 0, 1 and 2 have ");
}

static const struct ot_lora lora = {.all = {3, 6}};

/* An adapter goes with the weights under it. */
static void plans_that_are_refused(void **state) {
    (void)state;
    struct tiny_run run;
    struct ot_model *model;
    defaults(&run, OT_BF16, false, 1);
    run.lora = &lora;
    run.shard = (struct ot_shard){.ranks = 2, .mode = OT_SHARD_STAGES};
    tiny_plan(&run, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 2);
    tiny_open_model(&run, &model);
    const struct ot_chain *chain = ot_model_chain(model);
    const struct ot_block_spec *block = &chain->blocks[2];
    int *owner = &run.plan.slabs[block->uses[1].slab].owner;
    for (*owner = -1; *owner <= 2; (*owner)++)
        if (*owner != 0)
            check_fails(ot_plan_finish(chain, &run.plan), OT_E_USAGE, "uses it on rank 0");
    *owner = 0;
    check_ok(ot_plan_finish(chain, &run.plan));
    ot_model_close(model);
    ot_plan_free(&run.plan);
}

int main(void) {
    tiny_skip_without_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(homes),
        cmocka_unit_test(rounds_in_flight),
        cmocka_unit_test(random_plans),
        cmocka_unit_test(groups_of_eight),
        cmocka_unit_test(skipped_steps),
        cmocka_unit_test(bad_gradients_without_clipping),
        cmocka_unit_test(resume_on_other_ranks),
        cmocka_unit_test(forward_passes),
        cmocka_unit_test(failing_operations),
        cmocka_unit_test(plans_that_differ),
        cmocka_unit_test(plans_that_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
