/* The verifier against mutants: whatever edge is dropped, it must say so. And the shape of a schedule. */
#include <stdlib.h>
#include <string.h>

#include "offload/schedule.h"
#include "src/base/random.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

struct made {
    struct tiny_run run;
    struct ot_model *model;
    struct ot_layout layout;
    struct ot_schedule schedule;
};

static void make(struct made *m, bool tied, enum ot_dtype dtype, enum ot_home weights, enum ot_home state,
                 enum ot_home activations, int slots, float clip) {
    tiny_defaults(&m->run, 3, tied, dtype);
    m->run.clip = clip;
    tiny_plan(&m->run, weights, state, activations, slots);
    check_ok(ot_model_open(&m->run.config, dtype, TINY_SEQUENCE, &m->model));
    check_ok(ot_layout_make(ot_model_chain(m->model), &m->run.plan, &m->layout));
    check_ok(ot_schedule_make_train(ot_model_chain(m->model), &m->run.plan, &m->layout, &m->schedule));
}

static void discard(struct made *m) {
    ot_schedule_free(&m->schedule);
    ot_layout_free(&m->layout);
    ot_plan_free(&m->run.plan);
    ot_model_close(m->model);
}

static void drop_each_edge(struct made *m) {
    int edges = 0;
    check_ok(ot_schedule_verify(&m->schedule, &m->layout, &m->run.plan));
    for (int t = 0; t < m->schedule.n_tasks; t++) {
        struct ot_task *task = &m->schedule.tasks[t];
        for (int d = 0; d < task->n_deps; d++, edges++) {
            struct ot_dep kept = task->deps[d];
            task->deps[d] = task->deps[--task->n_deps];
            if (ot_schedule_verify(&m->schedule, &m->layout, &m->run.plan) >= 0)
                fail_msg("task %d (%s) lost its edge from task %d (%s) and nothing was said", t,
                         ot_task_kind_name(task->kind), kept.task,
                         ot_task_kind_name(m->schedule.tasks[kept.task].kind));
            task->deps[task->n_deps++] = task->deps[d];
            task->deps[d] = kept;
        }
    }
    assert_true(edges >= 5); /* all resident: batch in, results out, the decision and its way in */
}

static void dropped_edges_are_seen(void **state) {
    (void)state;
    static const enum ot_home homes[2] = {OT_HOME_GPU, OT_HOME_HOST};
    for (int mix = 0; mix < 16; mix++) {
        struct made m;
        make(&m, mix & 1, mix & 2 ? OT_BF16 : OT_F32, homes[mix >> 1 & 1], homes[mix >> 2 & 1],
             homes[mix >> 3], 1 + mix % 3, mix % 3 ? 1.0f : 0);
        drop_each_edge(&m);
        discard(&m);
    }
}

/* A task that reads another slot than the one that was filled. */
static void wrong_slots_are_seen(void **state) {
    (void)state;
    struct made m;
    make(&m, false, OT_F32, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_HOST, 2, 1.0f);
    const int *slots = m.layout.weight_slots[OT_SLOT_LAYER];
    for (int t = 0; t < m.schedule.n_tasks; t++)
        for (int a = 0; a < m.schedule.tasks[t].n_accesses; a++) {
            struct ot_access *access = &m.schedule.tasks[t].accesses[a];
            if (access->buffer != slots[0] && access->buffer != slots[1])
                continue;
            access->buffer = slots[0] + slots[1] - access->buffer;
            check_fails(ot_schedule_verify(&m.schedule, &m.layout, &m.run.plan), OT_E_INTERNAL, "schedule: ");
            access->buffer = slots[0] + slots[1] - access->buffer;
        }
    check_ok(ot_schedule_verify(&m.schedule, &m.layout, &m.run.plan));
    discard(&m);
}

static void cycles_and_bytes_are_seen(void **state) {
    (void)state;
    struct made m;
    make(&m, true, OT_BF16, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_GPU, 2, 1.0f);
    struct ot_task *first = NULL;
    for (int t = 0; t < m.schedule.n_tasks && !first; t++)
        if (m.schedule.tasks[t].n_deps > 0)
            first = &m.schedule.tasks[t];
    assert_non_null(first);
    struct ot_dep kept = first->deps[0];
    first->deps[0] = (struct ot_dep){m.schedule.n_tasks - 1, false};
    check_fails(ot_schedule_verify(&m.schedule, &m.layout, &m.run.plan), OT_E_INTERNAL, "cycle");
    first->deps[0] = kept;
    m.run.plan.ledger.entries[0].bytes += 256;
    check_fails(ot_schedule_verify(&m.schedule, &m.layout, &m.run.plan), OT_E_INTERNAL, "ledger");
    discard(&m);
}

static void rings_too_small_are_refused(void **state) {
    (void)state;
    struct made m;
    struct ot_schedule schedule;
    make(&m, false, OT_F32, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_GPU, 2, 1.0f);
    ot_layout_free(&m.layout);
    m.run.plan.order = OT_ORDER_MICRO; /* sums the gradients of three layers at once, and has slots for two */
    check_ok(ot_plan_finish(ot_model_chain(m.model), &m.run.plan));
    check_ok(ot_layout_make(ot_model_chain(m.model), &m.run.plan, &m.layout));
    check_fails(ot_schedule_make_train(ot_model_chain(m.model), &m.run.plan, &m.layout, &schedule),
                OT_E_USAGE, "slots");
    discard(&m);
}

/* With slots to spare a fetch must not wait for the block before it: that is what hides it. */
static void fetches_run_ahead(void **state) {
    (void)state;
    struct made m;
    make(&m, false, OT_F32, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_GPU, 3, 1.0f);
    int checked = 0;
    for (int t = 0; t < m.schedule.n_tasks; t++) {
        const struct ot_task *task = &m.schedule.tasks[t];
        if (task->kind != OT_TASK_FETCH)
            continue;
        for (int d = 0; d < task->n_deps; d++) {
            const struct ot_task *before = &m.schedule.tasks[task->deps[d].task];
            bool block_before = before->kind == OT_TASK_FORWARD && before->block == task->slab - 1 &&
                                !task->deps[d].previous_step;
            assert_false(block_before);
            checked++;
        }
    }
    assert_true(checked > 0);
    discard(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dropped_edges_are_seen),    cmocka_unit_test(wrong_slots_are_seen),
        cmocka_unit_test(cycles_and_bytes_are_seen), cmocka_unit_test(rings_too_small_are_refused),
        cmocka_unit_test(fetches_run_ahead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
