/* The schedules of several ranks: the verifier must report every edge and every task that they lose. Plans
 * are random, with 2, 3, 4 and 8 ranks in all shard modes. */
#include "offload/plan/slabs.h"
#include "src/base/random.h"
#include "tests/offload/tiny_schedule.h"
#include "tests/support/check.h"

enum { SEEDS = 96 };

static const int rank_counts[] = {2, 3, 4, 8};
static const enum ot_home tiers[3] = {OT_HOME_GPU, OT_HOME_HOST, OT_HOME_NVME};

/* The seed chooses homes, engines, slots, and how the ranks divide the work. */
static void make(struct tiny_schedule *m, uint64_t seed) {
    uint64_t i = 0;
#define PICK(bound) ((int)ot_random_below(seed, ot_random_stream(OT_RANDOM_TEST, 2, 1), i++, (bound)))
    enum ot_dtype dtype = (enum ot_dtype)PICK(3);
    struct ot_shard shard = {.ranks = rank_counts[seed % 4], .mode = (enum ot_shard_mode)(seed / 4 % 3)};
    shard.rank = PICK((uint64_t)shard.ranks);
    shard.world = shard.ranks != 3 && PICK(2);
    shard.narrow = dtype != OT_F32 && PICK(2);
    shard.one_copy = seed / 12 % 2;
    tiny_defaults(&m->run, 2, PICK(2), dtype);
    m->run.micro_sequences = 1;
    m->run.clip = dtype == OT_F16 || PICK(2) ? 1.0f : 0;
    m->run.shard = shard;
    int weights = shard.mode == OT_SHARD_STATE ? 0 : shard.one_copy ? 1 : PICK(3);
    int state = 1 + PICK(2), activations = PICK(3);
    tiny_plan(&m->run, tiers[weights], tiers[state], tiers[activations], 1 + PICK(3));
    m->run.plan.state_slots = 1 + PICK(4);
    int64_t tile = OT_SLAB_ALIGN_PARAMS * (1 + PICK(2));
    tiny_deal(&m->run, tile, 1 + (unsigned)PICK(7), seed);
    ot_plan_set_rounds(&m->run.plan, 1 + PICK(2));
    tiny_random_grads(&m->run, seed);
    int64_t half = ot_plan_passing_tiles(&m->run.plan) / 2; /* see test_schedule.c */
    if (half > 0)
        m->run.plan.tile_slots = 1 + PICK((uint64_t)(half < 4 ? half : 4));
    tiny_finish(&m->run);
    tiny_schedule_make(m);
#undef PICK
}

static int count(const struct ot_schedule *schedule, enum ot_task_kind kind) {
    int n = 0;
    for (int t = 0; t < schedule->n_tasks; t++)
        n += schedule->tasks[t].kind == kind;
    return n;
}

/* Each kind of task that only several ranks have must appear in the plans that need it. */
static void check_kinds(const struct tiny_schedule *m) {
    const struct ot_plan *plan = &m->run.plan;
    bool sharded = ot_plan_is_sharded(plan);
    int exchanges = count(&m->schedule, OT_TASK_EXCHANGE);
    int meetings = count(&m->schedule, OT_TASK_MEET);
    bool one_copy = plan->shard.one_copy && plan->shard.mode == OT_SHARD_FULL;
    assert_int_equal(count(&m->schedule, OT_TASK_GATHER) > 0, sharded && !one_copy);
    assert_int_equal(meetings, one_copy ? plan->n_slabs : 0);
    assert_int_equal(count(&m->schedule, OT_TASK_GRAD_GATHER), sharded ? 0 : plan->n_slabs);
    assert_true(exchanges >= plan->n_slabs);
    assert_int_equal(count(&m->schedule, OT_TASK_GRAD_JOIN), exchanges);
    assert_int_equal(count(&m->schedule, OT_TASK_GRAD_NARROW), plan->shard.narrow ? exchanges : 0);
    assert_true(count(&m->schedule, OT_TASK_RESULT_GATHER) >= 1);
}

/* Edges that leave the comm lane or end there. */
static int count_comm_edges(const struct ot_schedule *schedule) {
    int n = 0;
    for (int t = 0; t < schedule->n_tasks; t++)
        for (int d = 0; d < schedule->tasks[t].n_deps; d++)
            n += schedule->tasks[t].lane == OT_LANE_COMM ||
                 schedule->tasks[schedule->tasks[t].deps[d].task].lane == OT_LANE_COMM;
    return n;
}

static void dropped_edges_are_seen(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct tiny_schedule m;
        make(&m, seed);
        check_kinds(&m);
        assert_true(count_comm_edges(&m.schedule) >= 2 * m.run.plan.n_slabs);
        tiny_schedule_drop_edges(&m, &m.schedule);
        tiny_schedule_drop_edges(&m, &m.flush);
        tiny_schedule_free(&m);
    }
}

/* Forward passes begin after a flush: weights that stream are gathered anew, others are whole already. */
static void dropped_edges_of_forward_passes_are_seen(void **state) {
    (void)state;
    static const enum ot_pass passes[2] = {OT_PASS_EVAL, OT_PASS_DECODE};
    int gathering = 0;
    for (uint64_t seed = 0; seed < 24; seed++) {
        struct tiny_schedule m;
        struct ot_schedule forward;
        make(&m, seed);
        check_ok(ot_schedule_make_forward(ot_model_chain(m.model), &m.run.plan, &m.layout, passes[seed % 2],
                                          &forward));
        tiny_schedule_drop_edges(&m, &forward);
        bool gathers = m.run.shard.mode == OT_SHARD_FULL && !m.run.shard.one_copy;
        assert_int_equal(count(&forward, OT_TASK_GATHER) > 0, gathers);
        gathering += gathers;
        ot_schedule_free(&forward);
        tiny_schedule_free(&m);
    }
    assert_true(gathering > 0);
}

/* The gather of whole weights, after a flush. */
static void dropped_edges_of_a_gather_are_seen(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 24; seed++) {
        struct tiny_schedule m;
        struct ot_schedule gather;
        bool one_copy = seed >= 12 && seed / 4 % 3 == OT_SHARD_FULL;
        if (seed / 4 % 3 != OT_SHARD_STATE && !one_copy)
            continue;
        make(&m, seed);
        check_ok(ot_schedule_make_gather(ot_model_chain(m.model), &m.run.plan, &m.layout, &gather));
        assert_int_equal(gather.n_tasks, m.run.plan.n_slabs);
        tiny_schedule_drop_edges(&m, &gather);
        ot_schedule_free(&gather);
        tiny_schedule_free(&m);
    }
}

/* A gather, an exchange or a join that does nothing leaves what the ranks had before. */
static void lost_tasks_are_seen(void **state) {
    (void)state;
    static const enum ot_task_kind kinds[] = {OT_TASK_GATHER,   OT_TASK_MEET,      OT_TASK_GRAD_NARROW,
                                              OT_TASK_EXCHANGE, OT_TASK_GRAD_JOIN, OT_TASK_GRAD_GATHER};
    int lost[OT_TASK_KINDS] = {0};
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct tiny_schedule m;
        make(&m, seed);
        for (int t = 0; t < m.schedule.n_tasks; t++) {
            struct ot_task *task = &m.schedule.tasks[t];
            int accesses = task->n_accesses;
            bool of_ranks = task->kind >= OT_TASK_GATHER && task->kind != OT_TASK_RESULT_GATHER;
            if (!of_ranks)
                continue;
            task->n_accesses = 0;
            if (ot_schedule_verify(&m.schedule, &m.layout, &m.run.plan) >= 0)
                fail_msg("seed %d: task %d (%s) lost all its accesses, and the verifier did not see it",
                         (int)seed, t, ot_task_kind_name(task->kind));
            task->n_accesses = accesses;
            lost[task->kind]++;
        }
        tiny_schedule_free(&m);
    }
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        assert_true(lost[kinds[k]] > 20);
}

/* In an encoder-decoder the slab that all layers share is complete together with the slab of a layer, so two
 * exchanges are under way at once. */
static void two_slabs_are_exchanged_at_once(void **state) {
    (void)state;
    for (int mix = 0; mix < 12; mix++) {
        struct tiny_schedule m;
        tiny_defaults(&m.run, 1, false, mix & 1 ? OT_BF16 : OT_F32);
        m.run.config = tiny_pair_config(mix & 2);
        m.run.micro_sequences = 1;
        m.run.shard = (struct ot_shard){.ranks = 2, .rank = mix & 1, .mode = (enum ot_shard_mode)(mix / 4)};
        enum ot_home weights = m.run.shard.mode == OT_SHARD_STATE ? OT_HOME_GPU : OT_HOME_HOST;
        tiny_plan(&m.run, weights, OT_HOME_HOST, OT_HOME_GPU, 2);
        tiny_schedule_make(&m);
        assert_true(count(&m.schedule, OT_TASK_GRAD_JOIN) >= m.run.plan.n_slabs);
        tiny_schedule_drop_edges(&m, &m.schedule);
        tiny_schedule_free(&m);
    }
}

/* From the exchange of a slab's gradients on, the other ranks may update the slab in its one copy. So the
 * verifier must report a task behind it that reads their shares. */
static void late_reads_of_one_copy_are_seen(void **state) {
    (void)state;
    int late = 0;
    for (uint64_t seed = 12; seed < SEEDS; seed++) {
        struct tiny_schedule m;
        make(&m, seed);
        for (int t = 0; t < m.schedule.n_tasks; t++) {
            struct ot_task *task = &m.schedule.tasks[t];
            if (task->kind != OT_TASK_GRAD_JOIN || !ot_slab_has_one_copy(&m.run.plan, task->slab))
                continue;
            int weights = m.layout.slabs[task->slab].weights_host;
            struct ot_access more[OT_TASK_MAX_ACCESSES], *own = task->accesses;
            memcpy(more, own, (size_t)task->n_accesses * sizeof *own);
            more[task->n_accesses] =
                (struct ot_access){.buffer = weights,
                                   .reads = true,
                                   .first_tile = m.layout.buffers[weights].n_tiles - 1,
                                   .n_tiles = 1,
                                   .before = {.content = OT_CONTENT_WEIGHTS, .index = task->slab}};
            task->accesses = more;
            task->n_accesses++;
            check_fails(ot_schedule_verify(&m.schedule, &m.layout, &m.run.plan), OT_E_INTERNAL,
                        "a buffer of 'weights'");
            task->n_accesses--;
            task->accesses = own;
            late++;
        }
        tiny_schedule_free(&m);
    }
    assert_true(late > 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dropped_edges_are_seen),
        cmocka_unit_test(dropped_edges_of_forward_passes_are_seen),
        cmocka_unit_test(dropped_edges_of_a_gather_are_seen),
        cmocka_unit_test(lost_tasks_are_seen),
        cmocka_unit_test(two_slabs_are_exchanged_at_once),
        cmocka_unit_test(late_reads_of_one_copy_are_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
