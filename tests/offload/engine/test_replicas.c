/* Replicas of a pipeline (plan/stages.h): D pipelines of S stages have the bits of D ranks with mode state,
 * for any S and any division; with `world` those of any number of ranks. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/plan/slabs.h"
#include "offload/plan/stages.h"
#include "src/base/error.h"
#include "tests/offload/tiny_keeper.h"
#include "tests/offload/tiny_ranks.h"
#include "tests/support/check.h"
#include "tests/support/thread_world.h"

enum { LAYERS = 4, MOST_RANKS = 8 };

static void defaults(struct tiny_run *run, enum ot_dtype dtype, bool tied, float clip) {
    tiny_defaults(run, LAYERS, tied, dtype);
    run->micro_sequences = 1; /* six micro-batches; two in the short step */
    run->clip = clip;
    run->evals = true;
}

/* Trains on D ranks that share the state alone. */
static void train_shares(const struct tiny_run *run, int replicas, bool world, bool narrow,
                         struct tiny_result *result) {
    struct tiny_world w = {.ranks = replicas,
                           .mode = OT_SHARD_STATE,
                           .world = world,
                           .narrow = narrow,
                           .weights = OT_HOME_GPU,
                           .state = OT_HOME_GPU,
                           .activations = OT_HOME_GPU,
                           .slots = 2};
    tiny_train_ranks(run, &w, result);
    for (int i = 0; i < TINY_STEPS; i++)
        assert_true(isfinite(result->loss[i]) && result->norm[i] > 0);
}

static struct tiny_world replicas_of(int replicas, int stages) {
    return (struct tiny_world){.ranks = replicas * stages,
                               .mode = OT_SHARD_STAGES,
                               .stages = stages,
                               .weights = OT_HOME_GPU,
                               .state = OT_HOME_HOST,
                               .activations = OT_HOME_GPU,
                               .slots = 2};
}

static void check_same(const struct tiny_run *run, const struct tiny_world *w,
                       const struct tiny_result *want) {
    struct tiny_result result;
    char what[200];
    snprintf(what, sizeof what, "%d ranks, %d stages %s tied=%d clip=%g state=%s activations=%s seed=%d",
             w->ranks, w->stages, ot_dtype_name(run->dtype), run->config.tied, (double)run->clip,
             ot_tier_name((enum ot_tier)w->state), ot_tier_name((enum ot_tier)w->activations),
             (int)w->delay_seed);
    tiny_train_ranks(run, w, &result);
    tiny_same(want, &result, what);
    assert_memory_equal(want->skipped, result.skipped, sizeof result.skipped);
    tiny_result_free(&result);
}

/* Cuts the step into a number of rounds. */
static void cut(struct tiny_run *run, int rank, void *context) {
    (void)rank;
    ot_plan_set_rounds(&run->plan, *(int *)context);
    tiny_finish(run);
}

/* The planner's plans, in one round and in rounds that flow behind each other. */
static void bits_of_shares(void **state) {
    (void)state;
    static const struct shape {
        int replicas, stages;
        enum ot_dtype dtype;
        bool tied, narrow;
        float clip;
    } shapes[] = {{2, 2, OT_BF16, true, false, 1},
                  {2, 2, OT_F32, false, false, 0},
                  {3, 2, OT_F16, false, true, 1},
                  {2, 4, OT_BF16, false, false, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i += tests_are_for_races() ? 2 : 1) {
        const struct shape *shape = &shapes[i];
        struct tiny_run run;
        struct tiny_result want;
        int rounds = 1 + (int)i % 3;
        defaults(&run, shape->dtype, shape->tied, shape->clip);
        train_shares(&run, shape->replicas, false, shape->narrow, &want);
        struct tiny_world w = replicas_of(shape->replicas, shape->stages);
        w.narrow = shape->narrow;
        w.turn_blocks = (int)i % 2;
        w.state = (enum ot_home)(i % 3);
        w.activations = (enum ot_home)((i + 1) % 3);
        w.delay_seed = i;
        w.crosses = i % 2;
        w.change = cut;
        w.context = &rounds;
        w.in_flight = (int)i % 3;
        check_same(&run, &w, &want);
        tiny_result_free(&want);
    }
}

/* ---- random plans ---- */

/* Chooses a plan for a rank at random, but for what the order of the operations follows from. */
static void randomise(struct tiny_run *run, int rank, void *context) {
    const uint64_t *seed = context;
    uint64_t own = *seed * 64 + (uint64_t)rank + 1;
    tiny_random_owners(run, *seed);
    tiny_randomise(run, own);
    run->delay_seed = *seed;
    tiny_random_rounds(run, *seed);
    tiny_random_grads(run, own);
    for (int k = 0; k < OT_SLOT_KINDS; k++) {
        run->plan.grad_slots[k] = 2 + OT_SHARD_WORLD_GROUPS;
        run->plan.weight_slots[k] = run->plan.encoded_slots[k] = 2;
    }
    tiny_finish(run);
}

static void random_plans_of(const struct tiny_run *run, int replicas, int stages, bool world, uint64_t seed) {
    struct tiny_result want;
    train_shares(run, replicas, world, false, &want);
    struct tiny_world w = replicas_of(replicas, stages);
    w.world = world;
    w.state = w.activations = OT_HOME_HOST;
    w.in_flight = (int)seed % 3;
    w.crosses = true;
    w.delay_seed = seed;
    w.change = randomise;
    w.context = &seed;
    check_same(run, &w, &want);
    tiny_result_free(&want);
}

static void random_plans(void **state) {
    (void)state;
    int count = getenv("OT_TEST_SLOW") ? 24 : tests_are_for_races() ? 1 : 3;
    for (int i = 0; i < count; i++) {
        struct tiny_run run;
        defaults(&run, (enum ot_dtype)(i % 3), i % 2, i % 4 == 3 && i % 3 != OT_F16 ? 0 : 1);
        run.state = (enum ot_state_format)(i % OT_STATE_FORMATS);
        random_plans_of(&run, 2 + i % 3 % 2, 2 + i / 3 % 2, false, 10 + (uint64_t)i);
    }
}

/* With `world` the bits depend neither on the replicas nor on the stages. */
static void bits_of_the_world(void **state) {
    (void)state;
    static const int shapes[][2] = {{2, 2}, {1, 3}, {4, 2}};
    struct tiny_run run;
    struct tiny_result want;
    uint64_t seed = 31;
    defaults(&run, OT_BF16, true, 1);
    train_shares(&run, 1, true, false, &want);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i += tests_are_for_races() ? 2 : 1) {
        struct tiny_world w = replicas_of(shapes[i][0], shapes[i][1]);
        w.world = true;
        w.change = randomise;
        w.context = &seed;
        w.delay_seed = ++seed;
        check_same(&run, &w, &want);
    }
    tiny_result_free(&want);
}

/* ---- other numbers of ranks ---- */

/* Steps on some ranks, from the snapshots of the ranks before them. */
struct leg {
    struct ot_shard shard;
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

static int join(void *context, int rank, struct ot_device *device, struct ot_comm **out) {
    return thread_world_join(context, rank, device, out);
}

static void *walk(void *context) {
    struct member *m = context;
    struct tiny_engine tiny;
    struct tiny_keeper *keeper = &m->leg->keepers[m->run.shard.rank];
    struct ot_pins *pins;
    tiny_open(&m->run, &tiny);
    for (int r = 0; m->before && r < ot_shard_ranks(&m->before->shard); r++)
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

static void walk_leg(const struct tiny_run *run, struct leg *before, struct leg *leg,
                     struct tiny_result *result) {
    int n = ot_shard_ranks(&leg->shard);
    struct thread_world *ranks = thread_world_open(n, 5);
    struct member members[MOST_RANKS] = {0};
    for (int r = 0; r < n; r++) {
        struct member *m = &members[r];
        *m = (struct member){.run = *run, .before = before, .leg = leg, .result = *result};
        m->run.shard = leg->shard;
        m->run.shard.rank = r;
        m->run.join = n > 1 ? join : NULL;
        m->run.join_context = ranks;
        tiny_plan(&m->run, OT_HOME_GPU, r % 2 ? OT_HOME_HOST : OT_HOME_NVME, OT_HOME_HOST, 2);
        m->run.plan.snapshot_slots = 2;
        tiny_finish(&m->run);
    }
    for (int r = 0; r < n; r++)
        assert_int_equal(pthread_create(&members[r].thread, NULL, walk, &members[r]), 0);
    for (int r = 0; r < n; r++)
        pthread_join(members[r].thread, NULL);
    *result = members[0].result;
    for (int r = 0; r < n; r++)
        ot_plan_free(&members[r].run.plan);
    thread_world_close(ranks);
}

/* Reads what the last leg left into an engine of one rank. */
static void read_leg(const struct tiny_run *run, const struct leg *leg, struct tiny_result *result) {
    struct tiny_run alone = *run;
    struct tiny_engine tiny;
    tiny_plan(&alone, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 2);
    tiny_open(&alone, &tiny);
    for (int r = 0; r < ot_shard_ranks(&leg->shard); r++)
        tiny_keeper_put_back((struct tiny_keeper *)&leg->keepers[r], tiny.engine);
    tiny_read(&tiny, result);
    tiny_close(&tiny);
    ot_plan_free(&alone.plan);
}

/* Two replicas of two stages, one rank, four replicas, shares of two ranks. */
static void resume_on_other_ranks(void **state) {
    (void)state;
    static const struct leg legs[] = {
        {.shard = {.ranks = 4, .mode = OT_SHARD_STAGES, .world = true, .stages = 2}, .end = 1},
        {.shard = {.ranks = 1, .world = true}, .first = 1, .end = 2},
        {.shard = {.ranks = 8, .mode = OT_SHARD_STAGES, .world = true, .stages = 2}, .first = 2, .end = 3},
        {.shard = {.ranks = 2, .mode = OT_SHARD_FULL, .world = true}, .first = 3, .end = TINY_STEPS}};
    enum { LEGS = sizeof legs / sizeof *legs };
    struct leg *own = malloc(sizeof legs);
    struct tiny_run run;
    struct tiny_result want, got = {0};
    assert_non_null(own);
    memcpy(own, legs, sizeof legs);
    defaults(&run, OT_BF16, true, 1);
    run.evals = false;
    run.state = OT_STATE_8BIT;
    train_shares(&run, 1, true, false, &want);
    for (int i = 0; i < LEGS; i++)
        walk_leg(&run, i ? &own[i - 1] : NULL, &own[i], &got);
    read_leg(&run, &own[LEGS - 1], &got);
    tiny_same(&want, &got, "resumed on other ranks");
    for (int i = 0; i < LEGS; i++)
        for (int r = 0; r < ot_shard_ranks(&own[i].shard); r++)
            tiny_keeper_close(&own[i].keepers[r]);
    tiny_result_free(&want);
    tiny_result_free(&got);
    free(own);
}

/* ---- what fails ---- */

/* Whichever operation of a rank fails, every rank ends with an error, and none hangs. */
static void failing_operations(void **state) {
    (void)state;
    struct tiny_run run;
    defaults(&run, OT_BF16, false, 1);
    static const int numbers[] = {1, 7, 41};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct tiny_world w = replicas_of(2, 2);
        int steps = tiny_fail_ranks(&run, &w, (int)i % 4, numbers[i]);
        assert_true(numbers[i] > 7 || steps == 0);
    }
}

static void change_slots(struct tiny_run *run, int rank, void *context) {
    run->plan.grad_slots[OT_SLOT_LAYER] = rank == *(int *)context ? 3 : 1;
    tiny_finish(run);
}

/* Holders of a stage that list their operations in another order would wait for each other for ever. */
static void plans_that_differ(void **state) {
    (void)state;
    struct tiny_run run;
    int rank = 3;
    defaults(&run, OT_BF16, false, 1);
    run.config.n_layers = 8;
    struct tiny_world w = replicas_of(2, 2);
    w.change = change_slots;
    w.context = &rank;
    tiny_refuse_ranks(&run, &w, "ranks 2 and 3 share stage 1, but their plans have other operations");
}

/* A holder has all weights of its stage on the device, and stages divide the ranks. */
static void plans_that_are_refused(void **state) {
    (void)state;
    struct tiny_run run;
    struct ot_model *model;
    defaults(&run, OT_BF16, false, 1);
    run.shard = (struct ot_shard){.ranks = 4, .mode = OT_SHARD_STAGES, .stages = 2};
    tiny_plan(&run, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 2);
    tiny_open_model(&run, &model);
    const struct ot_chain *chain = ot_model_chain(model);
    check_ok(ot_plan_finish(chain, &run.plan));
    run.plan.slabs[0].weights = OT_HOME_HOST;
    check_fails(ot_plan_finish(chain, &run.plan), OT_E_USAGE, "keeps all weights in gpu memory");
    run.plan.slabs[0].weights = OT_HOME_GPU;
    static const struct {
        struct ot_shard shard;
        const char *words;
    } cases[] = {
        {{.ranks = 4, .mode = OT_SHARD_STAGES, .stages = 3}, "4 ranks cannot form pipelines of 3 stages"},
        {{.ranks = 4, .mode = OT_SHARD_STAGES, .stages = 8}, "4 ranks cannot form pipelines of 8 stages"},
        {{.ranks = 4, .mode = OT_SHARD_STAGES, .stages = 1}, "4 ranks cannot form pipelines of 1 stages"},
        {{.ranks = 6, .mode = OT_SHARD_STAGES, .stages = 2, .world = true},
         "need 1, 2, 4 or 8 pipelines, not 3"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_fails(ot_shard_check(&cases[i].shard), OT_E_USAGE, cases[i].words);
    ot_model_close(model);
    ot_plan_free(&run.plan);
}

int main(void) {
    tiny_skip_without_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_of_shares),         cmocka_unit_test(random_plans),
        cmocka_unit_test(bits_of_the_world),      cmocka_unit_test(resume_on_other_ranks),
        cmocka_unit_test(failing_operations),     cmocka_unit_test(plans_that_differ),
        cmocka_unit_test(plans_that_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
