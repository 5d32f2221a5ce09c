/* Properties of a step's tasks that neither races nor contents show: which norms a decision reads, which part
 * of a slab a task moves, and how far copies run ahead. */
#include <stdlib.h>
#include <string.h>

#include "offload/schedule/schedule.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

enum { LAYERS = 3, EVERY_ENGINE = (1 << OT_TILE_ENGINES) - 1 };

struct made {
    struct tiny_run run;
    struct ot_model *model;
    const struct ot_chain *chain;
    struct ot_layout layout;
    struct ot_schedule schedule, flush;
};

static void make_schedules(struct made *m) {
    tiny_open_model(&m->run, &m->model);
    m->chain = ot_model_chain(m->model);
    check_ok(ot_layout_make(m->chain, &m->run.plan, &m->layout));
    check_ok(ot_schedule_make_train(m->chain, &m->run.plan, &m->layout, &m->schedule));
    check_ok(ot_schedule_verify(&m->schedule, &m->layout, &m->run.plan));
    check_ok(ot_schedule_make_flush(m->chain, &m->run.plan, &m->layout, &m->flush));
    check_ok(ot_schedule_verify(&m->flush, &m->layout, &m->run.plan));
}

static void discard(struct made *m) {
    ot_schedule_free(&m->schedule);
    ot_schedule_free(&m->flush);
    ot_layout_free(&m->layout);
    ot_plan_free(&m->run.plan);
    ot_model_close(m->model);
}

/* The bits of `mix` (below 32) choose homes, engines, clipping and tied embeddings. */
static void make_mix(struct made *m, unsigned mix) {
    static const enum ot_home weights[4] = {OT_HOME_GPU, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_NVME};
    tiny_defaults(&m->run, LAYERS, mix & 1, mix & 8 ? OT_BF16 : OT_F32);
    m->run.clip = mix & 2 ? 1.0f : 0;
    tiny_plan(&m->run, weights[mix >> 2 & 3], mix & 16 ? OT_HOME_NVME : OT_HOME_HOST, OT_HOME_GPU, 2);
    m->run.plan.state_slots = m->run.plan.tile_slots = 2;
    tiny_deal(&m->run, OT_SLAB_ALIGN_PARAMS, EVERY_ENGINE, mix);
    make_schedules(m);
}

enum { MIXES = 32 };

/* ---- order within a step ---- */

/* Finds which tasks of one step run before which other tasks, by edges and by lanes that run in order. */
static void open_order(const struct ot_schedule *s, struct ot_reach *order) {
    int last[OT_LANE_COUNT] = {-1, -1, -1, -1, -1, -1};
    check_ok(ot_reach_open(order, s->n_tasks));
    for (int t = 0; t < s->n_tasks; t++) {
        const struct ot_task *task = &s->tasks[t];
        if (ot_lane_is_device(task->lane) && last[task->lane] >= 0)
            ot_reach_add(order, t, last[task->lane]);
        last[task->lane] = t;
        for (int d = 0; d < task->n_deps; d++)
            if (!task->deps[d].previous_step)
                ot_reach_add(order, t, task->deps[d].task);
    }
}

/* Counts the tasks of that kind, slab and block (-1: any) that do not run before task t. *n counts all of
 * them. */
static int count_not_before(const struct ot_schedule *s, const struct ot_reach *order, int t,
                            enum ot_task_kind kind, int slab, int block, int *n) {
    int others = 0;
    for (int i = 0; i < s->n_tasks; i++) {
        const struct ot_task *task = &s->tasks[i];
        if (task->kind != kind || (slab >= 0 && task->slab != slab) || (block >= 0 && task->block != block))
            continue;
        others += i >= t || !ot_reach_has(order, t, i);
        ++*n;
    }
    return others;
}

static void check_decision(const struct made *m, const struct ot_reach *order, int t) {
    const struct ot_schedule *s = &m->schedule;
    int slab = s->tasks[t].slab, results = 0, norms = 0, losses = 0;
    assert_int_equal(count_not_before(s, order, t, OT_TASK_GRAD_FINISH, slab, -1, &norms), 0);
    assert_int_equal(norms, slab < 0 ? m->chain->n_slabs : 1);
    if (slab < 0)
        assert_int_equal(count_not_before(s, order, t, OT_TASK_BACKWARD, -1, -1, &losses), 0);
    for (int i = 0; i < t; i++) /* computed, and also copied to the host */
        results +=
            s->tasks[i].kind == OT_TASK_RESULT_OUT && s->tasks[i].slab == slab && ot_reach_has(order, t, i);
    assert_int_equal(results, 1);
}

/* A decision runs after the norms that it decides on, and every update runs after its decision. */
static void decisions_come_between_norms_and_updates(void **state) {
    (void)state;
    for (unsigned mix = 0; mix < MIXES; mix++) {
        struct made m;
        struct ot_reach order;
        int decisions = 0, updates = 0;
        make_mix(&m, mix);
        open_order(&m.schedule, &order);
        for (int t = 0; t < m.schedule.n_tasks; t++) {
            const struct ot_task *task = &m.schedule.tasks[t];
            bool updates_here = task->kind == OT_TASK_UPDATE_GPU || task->kind == OT_TASK_UPDATE_CPU;
            if (task->kind == OT_TASK_DECIDE) {
                check_decision(&m, &order, t);
                decisions++;
            }
            if (!updates_here && task->kind != OT_TASK_PARAMS_IN)
                continue;
            /* Clipping makes one decision for all slabs. */
            int n = 0, slab = m.run.plan.clip ? -1 : task->slab;
            int late = count_not_before(&m.schedule, &order, t, OT_TASK_DECIDE, slab, -1, &n);
            assert_int_equal(late, 0);
            assert_int_equal(n, 1);
            updates += updates_here;
        }
        assert_int_equal(decisions, m.run.plan.clip ? 1 : m.chain->n_slabs + 1);
        assert_true(updates > 0);
        ot_reach_close(&order);
        discard(&m);
    }
}

/* Without clipping a decision reads its slab's norm alone and waits for no other norm. It reads only results
 * and writes only its decision. */
static void decisions_touch_their_slab_alone(void **state) {
    (void)state;
    for (unsigned mix = 0; mix < MIXES; mix++) {
        struct made m;
        make_mix(&m, mix);
        for (int t = 0; t < m.schedule.n_tasks; t++) {
            const struct ot_task *task = &m.schedule.tasks[t];
            bool decides = task->kind == OT_TASK_DECIDE, brings = task->kind == OT_TASK_RESULT_OUT;
            for (int a = 0; (decides || brings) && a < task->n_accesses; a++) {
                const struct ot_access *access = &task->accesses[a];
                bool results = access->buffer == m.layout.results_host[0];
                bool params = access->buffer == m.layout.params_host[0];
                if (results || params)
                    assert_true(access->writes == (params || brings) && access->reads != access->writes);
                if (access->buffer == m.layout.results_gpu)
                    assert_true(access->reads && !access->writes);
                if (task->slab >= 0 && access->buffer != m.layout.control)
                    assert_true(access->first_tile == task->slab && access->n_tiles == 1);
            }
        }
        discard(&m);
    }
}

/* ---- parts of slabs ---- */

/* A task moves or updates exactly the parameters of its tiles. A task of one tile has that tile. */
static void spans_are_of_their_tiles(void **state) {
    (void)state;
    int of_tiles = 0, of_more = 0;
    for (unsigned mix = 0; mix < 2 * MIXES; mix++) {
        struct made m;
        make_mix(&m, mix / 2);
        const struct ot_schedule *s = mix % 2 ? &m.flush : &m.schedule;
        for (int t = 0; t < s->n_tasks; t++) {
            const struct ot_task *task = &s->tasks[t];
            const struct ot_tile_span *span = &task->span;
            if (task->slab < 0 || (task->tile < 0 && span->n == 0))
                continue;
            int first = task->tile >= 0 ? task->tile : span->first_tile;
            int tiles = task->tile >= 0 ? 1 : span->n_tiles;
            struct ot_tile_span want = ot_slab_span(m.chain, &m.run.plan, task->slab, first, tiles);
            if (memcmp(span, &want, sizeof want) != 0 ||
                span->first_tile + span->n_tiles > ot_slab_tiles(m.chain, &m.run.plan, task->slab))
                fail_msg("'%s' (task %d): tiles %d + %d, parameters %lld + %lld",
                         ot_task_kind_name(task->kind), t, span->first_tile, span->n_tiles,
                         (long long)span->first, (long long)span->n);
            of_tiles += task->tile >= 0;
            of_more += span->n_tiles > 1;
        }
        discard(&m);
    }
    assert_true(of_tiles > 100 && of_more > 100);
}

/* The calls of blocks declare that they overwrite the scratch and the recomputed activations: no two calls
 * may overlap. */
static void blocks_overwrite_their_workspace(void **state) {
    (void)state;
    struct made m;
    int calls = 0;
    make_mix(&m, 0);
    for (int t = 0; t < m.schedule.n_tasks; t++) {
        const struct ot_task *task = &m.schedule.tasks[t];
        bool scratch = false, insides = false;
        if (task->kind != OT_TASK_FORWARD && task->kind != OT_TASK_BACKWARD)
            continue;
        for (int a = 0; a < task->n_accesses; a++) {
            const struct ot_access *access = &task->accesses[a];
            scratch = scratch || (access->buffer == m.layout.scratch && access->writes);
            insides = insides || (access->buffer == m.layout.work && access->writes);
        }
        assert_true(scratch && insides);
        calls++;
    }
    assert_true(calls > LAYERS);
    discard(&m);
}

/* ---- copies that run ahead ---- */

/* Boundaries come back as far ahead of backward as there are slots, in the order of their use. If
 * micro-batches run one after the other, they come back as soon as they are computed. */
static void boundaries_come_back_ahead(void **state) {
    (void)state;
    static const enum ot_home homes[2] = {OT_HOME_HOST, OT_HOME_NVME};
    for (int mix = 0; mix < 16; mix++) {
        int slots = 1 + (mix >> 2), back = 0, used = 0;
        bool by_micro = mix & 1;
        struct made m;
        tiny_defaults(&m.run, LAYERS + 2, false, OT_BF16);
        tiny_plan(&m.run, OT_HOME_GPU, OT_HOME_GPU, homes[mix >> 1 & 1], 2);
        ot_plan_set_rounds(&m.run.plan, by_micro ? m.run.plan.max_micro : 1);
        m.run.plan.activation_slots = slots;
        tiny_finish(&m.run);
        make_schedules(&m);
        int per_micro = m.chain->n_blocks - 1 - m.layout.n_boundaries, all = per_micro * m.run.plan.max_micro;
        assert_true(per_micro > 0 && m.run.plan.max_micro > 1);
        for (int t = 0; t < m.schedule.n_tasks; t++) {
            const struct ot_task *task = &m.schedule.tasks[t];
            back += task->kind == OT_TASK_BOUNDARY_IN;
            bool uses = task->kind == OT_TASK_BACKWARD && task->block > 0 && task->block <= per_micro;
            if (!uses)
                continue;
            int end = by_micro ? per_micro * (task->micro + 1) : all;
            assert_int_equal(back, used + slots < end ? used + slots : end);
            used++;
        }
        assert_int_equal(used, all);
        assert_int_equal(back, all);
        discard(&m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decisions_come_between_norms_and_updates),
        cmocka_unit_test(decisions_touch_their_slab_alone),
        cmocka_unit_test(spans_are_of_their_tiles),
        cmocka_unit_test(blocks_overwrite_their_workspace),
        cmocka_unit_test(boundaries_come_back_ahead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
