/* Schedules of rows in key groups (offload/plan/slabs.h): the verifier sees lost edges, lost tasks and wrong
 * slots; copies of a group go beside attention of another. */
#include <stdio.h>
#include <string.h>

#include "tests/offload/tiny_schedule.h"
#include "tests/support/check.h"

enum { ROWS = 2 }; /* of a step */

/* mix: the number of groups, what blocks keep, where boundaries are. */
static void make(struct tiny_schedule *m, int mix, int sections) {
    bool host = mix & 1;
    tiny_defaults(&m->run, 2, false, mix & 2 ? OT_BF16 : OT_F32);
    m->run.config.n_heads = m->run.config.n_kv_heads = mix & 4 ? 6 : 4;
    m->run.micro_sequences = 1;
    m->run.sections = sections;
    m->run.key_groups = mix & 4 ? 3 : 4; /* with 2, a group finds its keys in its slot again */
    enum ot_home home = host ? OT_HOME_HOST : OT_HOME_GPU;
    tiny_plan(&m->run, home, home, home, 2);
    m->run.plan.max_micro = ROWS * sections;
    ot_plan_set_rounds(&m->run.plan, 1);
    if (mix & 2) /* the last layer keeps attention's output, so its backward has no ATTEND */
        m->run.plan.kept[OT_TIER_GPU] = (struct ot_kept_blocks){OT_KEEP_ATTENTION, 1};
    m->run.plan.boundaries_pass = host;
    tiny_finish(&m->run);
    tiny_schedule_make(m);
}

static void dropped_edges_are_seen(void **state) {
    (void)state;
    for (int mix = 1; mix < 8; mix += 5) {
        struct tiny_schedule m;
        make(&m, mix, 2 + mix % 2);
        assert_true(tiny_schedule_drop_edges(&m, &m.schedule) >= 20);
        tiny_schedule_free(&m);
    }
}

static bool is_of_section(const struct ot_task *task) {
    return task->phase != OT_PHASE_WHOLE || task->kind == OT_TASK_KEYS_IN || task->kind == OT_TASK_KEYS_OUT;
}

/* Each phase and each copy leaves something that another task needs. */
static void lost_work_is_seen(void **state) {
    (void)state;
    for (int mix = 0; mix < 8; mix += tests_are_brief() ? 3 : 1) {
        struct tiny_schedule m;
        char text[64];
        int lost = 0;
        make(&m, mix, 3);
        for (int t = 0; t < m.schedule.n_tasks; t++) {
            struct ot_task *task = &m.schedule.tasks[t];
            int accesses = task->n_accesses;
            /* Three groups and two slots: a group finds its sums in the slot where the section before left
             * them. */
            bool finds = mix & 4 && task->kind == OT_TASK_KEYS_IN && task->to == m.layout.row_sums;
            if (!is_of_section(task) || finds)
                continue;
            task->n_accesses = 0;
            if (ot_schedule_verify(&m.schedule, &m.layout, &m.run.plan) >= 0)
                fail_msg("mix %d: task %d lost all its accesses, and the verifier did not see it: %s", mix, t,
                         ot_task_describe(task, ot_model_chain(m.model), text, sizeof text));
            task->n_accesses = accesses;
            lost++;
        }
        assert_true(lost > 50);
        tiny_schedule_free(&m);
    }
}

/* An access to the tile of another slot, or of another group at home. */
static void wrong_tiles_are_seen(void **state) {
    (void)state;
    struct tiny_schedule m;
    char text[64];
    int moved = 0;
    make(&m, 1, 3);
    for (int t = 0; t < m.schedule.n_tasks; t++)
        for (int a = 0; a < m.schedule.tasks[t].n_accesses && is_of_section(&m.schedule.tasks[t]); a++) {
            struct ot_access *access = &m.schedule.tasks[t].accesses[a];
            int tiles = m.layout.buffers[access->buffer].n_tiles, tile = access->first_tile;
            bool keys = access->buffer == m.layout.row_keys || access->buffer == m.layout.row_sums ||
                        access->buffer == m.layout.row_keys_home || access->buffer == m.layout.row_sums_home;
            /* No other task reads the keys that backward of a first section puts in its slot. */
            if (!keys || (!access->reads && m.schedule.tasks[t].kind == OT_TASK_BACKWARD))
                continue;
            access->first_tile = (tile + 1) % tiles;
            if (ot_schedule_verify(&m.schedule, &m.layout, &m.run.plan) >= 0)
                fail_msg("task %d used a wrong tile in access %d, and the verifier did not see it: %s", t, a,
                         ot_task_describe(&m.schedule.tasks[t], ot_model_chain(m.model), text, sizeof text));
            access->first_tile = tile;
            moved++;
        }
    assert_true(moved > 100);
    tiny_schedule_free(&m);
}

static bool depends_on(const struct ot_task *task, int before) {
    for (int d = 0; d < task->n_deps; d++)
        if (task->deps[d].task == before && !task->deps[d].previous_step)
            return true;
    return false;
}

/* The keys of a group come while attention works on the group before: their copy waits for the group before
 * that one, which had the same slot. The phases and copies have the numbers that slabs.h gives. */
static void copies_go_beside_attention(void **state) {
    (void)state;
    enum { SECTIONS = 3, GROUPS = 4, LAYERS = 2 };
    struct tiny_schedule m;
    int n[OT_TASK_KINDS] = {0}, attends = 0, last = -1;
    make(&m, 0, SECTIONS);
    assert_int_equal(ot_plan_key_groups(&m.run.plan), GROUPS);
    for (int t = 0; t < m.schedule.n_tasks; t++) {
        const struct ot_task *task = &m.schedule.tasks[t];
        bool attend = task->phase == OT_PHASE_ATTEND || task->phase == OT_PHASE_ATTEND_BACK;
        n[task->kind] += is_of_section(task);
        attends += attend;
        if (task->kind == OT_TASK_KEYS_IN && task->group > 0) {
            assert_int_equal(task->lane, OT_LANE_H2D);
            assert_false(depends_on(task, last));
        }
        last = attend ? t : last;
    }
    int rows = ROWS * LAYERS, later = SECTIONS - 1;
    assert_int_equal(n[OT_TASK_FORWARD], rows * SECTIONS * (2 + GROUPS));
    assert_int_equal(n[OT_TASK_KEYS], rows * later * (1 + GROUPS));
    assert_int_equal(n[OT_TASK_BACKWARD], rows * SECTIONS * (3 + 2 * GROUPS));
    assert_int_equal(n[OT_TASK_KEYS_IN], rows * later * GROUPS * 4); /* three times keys, once sums */
    assert_int_equal(n[OT_TASK_KEYS_OUT], rows * later * GROUPS * 3);
    assert_true(attends > 0);
    tiny_schedule_free(&m);
}

static void phases_are_described(void **state) {
    (void)state;
    static const struct {
        enum ot_task_kind kind;
        enum ot_phase phase;
        const char *text;
    } cases[] = {{OT_TASK_FORWARD, OT_PHASE_BEGIN, "forward layer.0 #5 begin"},
                 {OT_TASK_FORWARD, OT_PHASE_ATTEND, "forward layer.0 #5 attention of group 3"},
                 {OT_TASK_BACKWARD, OT_PHASE_ATTEND_BACK, "backward layer.0 #5 attention of group 3"},
                 {OT_TASK_BACKWARD, OT_PHASE_MIDDLE, "backward layer.0 #5 middle"},
                 {OT_TASK_KEYS_IN, OT_PHASE_WHOLE, "keys in layer.0 #5 of group 3"},
                 {OT_TASK_KEYS_OUT, OT_PHASE_WHOLE, "keys out layer.0 #5 of group 3"},
                 {OT_TASK_BACKWARD, OT_PHASE_WHOLE, "backward layer.0 #5"}};
    struct tiny_schedule m;
    char text[64];
    make(&m, 0, 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ot_task task = {.kind = cases[i].kind,
                               .block = 1,
                               .slab = -1,
                               .micro = 5,
                               .tile = -1,
                               .phase = cases[i].phase,
                               .group = 3};
        const struct ot_chain *chain = ot_model_chain(m.model);
        assert_string_equal(ot_task_describe(&task, chain, text, sizeof text), cases[i].text);
        for (size_t bytes = 1; bytes < strlen(cases[i].text); bytes++) { /* cut short */
            memset(text, '~', sizeof text);
            ot_task_describe(&task, chain, text, bytes);
            assert_int_equal(strncmp(text, cases[i].text, bytes - 1), 0);
            assert_true(strlen(text) < bytes && text[bytes] == '~');
        }
    }
    tiny_schedule_free(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dropped_edges_are_seen), cmocka_unit_test(lost_work_is_seen),
        cmocka_unit_test(wrong_tiles_are_seen),   cmocka_unit_test(copies_go_beside_attention),
        cmocka_unit_test(phases_are_described),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
