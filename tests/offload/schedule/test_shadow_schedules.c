/* Steps with updates ahead of the decision (plan/shadow_updates.h): their order, and what the verifier sees.
 */
#include <stdlib.h>
#include <string.h>

#include "offload/plan/shadow_updates.h"
#include "offload/schedule/schedule.h"
#include "tests/offload/tiny_schedule.h"
#include "tests/support/check.h"

/* The bits of `mix` choose homes, dtype, tied embeddings, rounds, the number of frames, and (16) whether
 * frames lie over kept activations. */
static void make(struct tiny_schedule *m, unsigned mix) {
    tiny_defaults(&m->run, 2, mix & 1, mix & 2 ? OT_BF16 : OT_F32);
    tiny_plan(&m->run, mix & 4 ? OT_HOME_GPU : OT_HOME_HOST, OT_HOME_HOST, OT_HOME_GPU, 1 + (int)(mix % 3));
    unsigned other = mix & 8 ? 0 : 1u << (mix & 1 ? OT_TILE_GPU : OT_TILE_STREAM);
    tiny_deal(&m->run, OT_SLAB_ALIGN_PARAMS, 1u << OT_TILE_CPU | other, 0);
    ot_plan_set_rounds(&m->run.plan, 1 + (int)(mix % 2));
    m->run.plan.shadow_frames = (int)ot_plan_shadow_tiles(&m->run.plan) / (1 + (int)(mix / 8 % 2));
    if (mix & 16) {
        m->run.plan.kept[OT_TIER_HOST] = (struct ot_kept_blocks){OT_KEEP_ALL, 2};
        m->run.plan.kept_slots = 1 + (int)(mix % 3);
    }
    tiny_finish(&m->run);
    assert_true(m->run.plan.shadow_frames > 1);
    tiny_schedule_make(m);
    bool over_kept = ot_plan_free_frames(ot_model_chain(m->model), &m->run.plan) > 0;
    assert_int_equal(over_kept, mix >= 16);
}

enum { MIXES = 32 };

static void dropped_edges_of_shadows_are_seen(void **state) {
    (void)state;
    for (unsigned mix = 0; mix < MIXES; mix++) {
        struct tiny_schedule m;
        make(&m, mix);
        assert_true(tiny_schedule_drop_edges(&m, &m.schedule) > m.run.plan.shadow_frames);
        tiny_schedule_free(&m);
    }
}

static const struct ot_access *access_to(const struct ot_task *task, int buffer) {
    for (int a = 0; a < task->n_accesses; a++)
        if (task->accesses[a].buffer == buffer)
            return &task->accesses[a];
    fail_msg("'%s' has no access to buffer %d", ot_task_kind_name(task->kind), buffer);
    return NULL;
}

/* Each frame has one shadow, then one update of the same tile. Only this update accepts the tile as the
 * shadow leaves it: a task that expects the old or the new weights there would be seen. */
static void a_shadow_belongs_to_one_update(void **state) {
    (void)state;
    for (unsigned mix = 0; mix < MIXES; mix++) {
        struct tiny_schedule m;
        make(&m, mix);
        check_ok(ot_schedule_verify(&m.schedule, &m.layout, &m.run.plan));
        int n = 0, *filled = calloc((size_t)m.run.plan.shadow_frames, sizeof *filled);
        assert_non_null(filled);
        for (int t = 0; t < m.schedule.n_tasks; t++) {
            struct ot_task *task = &m.schedule.tasks[t];
            if (task->kind == OT_TASK_SHADOW) {
                assert_int_equal(filled[task->frame], 0);
                filled[task->frame] = t;
            }
            if (task->kind != OT_TASK_UPDATE_CPU || task->frame < 0)
                continue;
            const struct ot_task *shadow = &m.schedule.tasks[filled[task->frame]];
            assert_true(shadow->kind == OT_TASK_SHADOW && shadow->slab == task->slab &&
                        shadow->tile == task->tile && shadow->state == task->state);
            struct ot_access *weights = (struct ot_access *)access_to(task, task->to);
            struct ot_tag kept = weights->before;
            for (int version = 0; version < 2; version++) {
                weights->before = (struct ot_tag){
                    .content = OT_CONTENT_WEIGHTS, .index = task->slab, .version = (int8_t)version};
                check_fails(ot_schedule_verify(&m.schedule, &m.layout, &m.run.plan), OT_E_INTERNAL,
                            "wrong content");
            }
            weights->before = kept;
            n++;
        }
        assert_int_equal(n, m.run.plan.shadow_frames);
        free(filled);
        tiny_schedule_free(&m);
    }
}

static void lost_shadows_are_seen(void **state) {
    (void)state;
    struct tiny_schedule m;
    make(&m, 8);
    for (int t = 0; t < m.schedule.n_tasks; t++) {
        struct ot_task *task = &m.schedule.tasks[t];
        int accesses = task->n_accesses;
        if (task->kind != OT_TASK_SHADOW)
            continue;
        task->n_accesses = 0;
        check_fails(ot_schedule_verify(&m.schedule, &m.layout, &m.run.plan), OT_E_INTERNAL, "wrong content");
        task->n_accesses = accesses;
    }
    tiny_schedule_free(&m);
}

/* A shadow waits for its slab's gradient and for the norms of the slabs that are complete by then. The
 * decision waits for no shadow. */
static void decisions_do_not_wait_for_shadows(void **state) {
    (void)state;
    for (unsigned mix = 0; mix < MIXES; mix++) {
        struct tiny_schedule m;
        struct ot_reach order;
        make(&m, mix);
        const struct ot_schedule *s = &m.schedule;
        check_ok(ot_reach_open(&order, s->n_tasks));
        int last[OT_LANE_CPU] = {0}, decision = -1;
        for (int l = 0; l < OT_LANE_CPU; l++)
            last[l] = -1;
        for (int t = 0; t < s->n_tasks; t++) {
            const struct ot_task *task = &s->tasks[t];
            ot_reach_begin(&order, t);
            if (ot_lane_is_device(task->lane) && last[task->lane] >= 0)
                ot_reach_add(&order, t, last[task->lane]);
            if (ot_lane_is_device(task->lane))
                last[task->lane] = t;
            for (int d = 0; d < task->n_deps; d++)
                if (!task->deps[d].previous_step)
                    ot_reach_add(&order, t, task->deps[d].task);
            decision = task->kind == OT_TASK_DECIDE ? t : decision;
        }
        for (int t = 0; t < s->n_tasks; t++) {
            const struct ot_task *task = &s->tasks[t];
            int norms = 0;
            if (task->kind != OT_TASK_SHADOW)
                continue;
            assert_true(t < decision && !ot_reach_has(&order, decision, t));
            for (int i = 0; i < t; i++)
                norms += s->tasks[i].kind == OT_TASK_RESULT_OUT && ot_reach_has(&order, t, i);
            /* In these chains slabs are complete from the last to the first. */
            assert_int_equal(task->n_norms, m.run.plan.n_slabs - task->slab);
            assert_int_equal(norms, task->n_norms);
        }
        ot_reach_close(&order);
        tiny_schedule_free(&m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dropped_edges_of_shadows_are_seen),
        cmocka_unit_test(a_shadow_belongs_to_one_update),
        cmocka_unit_test(lost_shadows_are_seen),
        cmocka_unit_test(decisions_do_not_wait_for_shadows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
