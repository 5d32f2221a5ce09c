/* The cache of generation in schedules, if its home is not the device: every copy and every edge is needed,
 * and the caches of later blocks come in while a block computes. */
#include "src/base/random.h"
#include "tests/offload/tiny_schedule.h"
#include "tests/support/check.h"

enum { LAYERS = 5, CASES = 24 };

/* Makes the schedule of a pass that decodes: of one micro-batch, or of several prompts. */
static void make(struct tiny_schedule *m, int number, struct ot_schedule *out) {
    uint64_t i = 0;
#define PICK(bound)                                                                                          \
    ((int)ot_random_below((uint64_t)number, ot_random_stream(OT_RANDOM_TEST, 3, 1), i++, (bound)))
    tiny_defaults(&m->run, LAYERS, false, OT_BF16);
    m->run.cache_rows = 100;
    m->run.parts = PICK(3) == 0;
    enum ot_home weights = (enum ot_home)PICK(3);
    tiny_plan(&m->run, weights, OT_HOME_HOST, OT_HOME_GPU, 2);
    struct ot_plan *plan = &m->run.plan;
    plan->texts = 1 + PICK(3);
    tiny_random_cache(&m->run, (uint64_t)number);
    tiny_schedule_make(m);
    check_ok((
        PICK(2) ? ot_schedule_make_prompts(ot_model_chain(m->model), plan, &m->layout, out)
                : ot_schedule_make_forward(ot_model_chain(m->model), plan, &m->layout, OT_PASS_DECODE, out)));
#undef PICK
}

static bool moves_cache(const struct ot_task *task) {
    return task->kind == OT_TASK_CACHE_IN || task->kind == OT_TASK_CACHE_OUT ||
           (task->kind != OT_TASK_FORWARD && task->cache != OT_NO_BUFFER);
}

static void dropped_edges_are_seen(void **state) {
    (void)state;
    for (int number = 0; number < CASES; number++) {
        struct tiny_schedule m;
        struct ot_schedule decode;
        int moves = 0;
        make(&m, number, &decode);
        tiny_schedule_drop_edges(&m, &decode);
        for (int t = 0; t < decode.n_tasks; t++)
            moves += moves_cache(&decode.tasks[t]);
        assert_int_equal(moves, LAYERS * 2 * (number % OT_TIER_COUNT)); /* in and out, on both ways */
        ot_schedule_free(&decode);
        tiny_schedule_free(&m);
    }
}

/* A copy that does nothing, or a block that leaves its cache as it was. */
static void lost_work_is_seen(void **state) {
    (void)state;
    int lost = 0;
    for (int number = 0; number < CASES; number++) {
        struct tiny_schedule m;
        struct ot_schedule decode;
        make(&m, number, &decode);
        for (int t = 0; t < decode.n_tasks; t++) {
            struct ot_task *task = &decode.tasks[t];
            int accesses = task->n_accesses;
            if (!moves_cache(task) && task->cache == OT_NO_BUFFER)
                continue;
            task->n_accesses = 0;
            if (ot_schedule_verify(&decode, &m.layout, &m.run.plan) >= 0)
                fail_msg("case %d: task %d (%s) lost all its accesses, and the verifier did not see it",
                         number, t, ot_task_kind_name(task->kind));
            task->n_accesses = accesses;
            lost++;
        }
        ot_schedule_free(&decode);
        tiny_schedule_free(&m);
    }
    assert_true(lost > CASES * LAYERS);
}

static bool waits_for(const struct ot_schedule *s, int task, int other) {
    for (int d = 0; d < s->tasks[task].n_deps; d++)
        if (!s->tasks[task].deps[d].previous_step && s->tasks[task].deps[d].task == other)
            return true;
    return false;
}

static int find(const struct ot_schedule *s, enum ot_task_kind kind, int block) {
    for (int t = 0; t < s->n_tasks; t++)
        if (s->tasks[t].kind == kind && s->tasks[t].block == block)
            return t;
    return -1;
}

/* With n slots the cache of a block waits for the block whose slot it takes, n blocks before, and for no
 * block behind that one. Its task comes before the block's forward in any case. */
static void caches_come_in_ahead(void **state) {
    (void)state;
    for (int slots = 1; slots <= 3; slots++)
        for (int nvme = 0; nvme < 2; nvme++) {
            struct tiny_schedule m;
            struct ot_schedule decode;
            tiny_defaults(&m.run, LAYERS, false, OT_BF16);
            m.run.cache_rows = 100;
            tiny_plan(&m.run, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_GPU, 2);
            m.run.plan.cache = nvme ? OT_HOME_NVME : OT_HOME_HOST;
            m.run.plan.cache_slots = slots;
            m.run.plan.host_cache_slots = slots + 1;
            tiny_finish(&m.run);
            tiny_schedule_make(&m);
            check_ok(ot_schedule_make_forward(ot_model_chain(m.model), &m.run.plan, &m.layout, OT_PASS_DECODE,
                                              &decode));
            for (int b = 1; b <= LAYERS; b++) {
                int in = find(&decode, OT_TASK_CACHE_IN, b),
                    before = find(&decode, OT_TASK_CACHE_OUT, b - slots);
                assert_true(in < find(&decode, OT_TASK_FORWARD, b - slots + 1) || b <= slots);
                assert_int_equal(waits_for(&decode, in, before), b > slots);
                int read = find(&decode, OT_TASK_NVME_READ, b);
                if (nvme)
                    assert_int_equal(
                        waits_for(&decode, read, find(&decode, OT_TASK_NVME_WRITE, b - slots - 1)),
                        b > slots + 1);
            }
            ot_schedule_free(&decode);
            tiny_schedule_free(&m);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dropped_edges_are_seen),
        cmocka_unit_test(lost_work_is_seen),
        cmocka_unit_test(caches_come_in_ahead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
