/* The verifier and the linker on schedules of a few tasks whose order can be seen at a glance. */
#include <stdlib.h>
#include <string.h>

#include "offload/schedule/schedule.h"
#include "tests/support/check.h"

enum { MOST_TASKS = 6, MOST_DEPS = 4, BUFFERS = 3, TILES = 2, BUFFER_BYTES = 256 };

/* Three buffers of two tiles on the host, and a plan without slabs. */
struct hand {
    struct ot_buffer buffers[BUFFERS];
    struct ot_layout layout;
    struct ot_plan plan;
    struct ot_task tasks[MOST_TASKS];
    struct ot_access accesses[MOST_TASKS][OT_TASK_MAX_ACCESSES];
    struct ot_dep deps[MOST_TASKS][MOST_DEPS];
    int lanes[OT_LANE_COUNT][MOST_TASKS];
    struct ot_schedule schedule;
};

static void open_hand(struct hand *h, bool alone) {
    memset(h, 0, sizeof *h);
    for (int b = 0; b < BUFFERS; b++)
        h->buffers[b] = (struct ot_buffer){.tier = OT_TIER_HOST,
                                           .name = "hand",
                                           .bytes = BUFFER_BYTES,
                                           .reserved = BUFFER_BYTES,
                                           .offset = (size_t)b * BUFFER_BYTES,
                                           .n_tiles = TILES};
    h->layout = (struct ot_layout){.n_buffers = BUFFERS,
                                   .buffers = h->buffers,
                                   .constants = OT_NO_BUFFER,
                                   .batch_host = {OT_NO_BUFFER, OT_NO_BUFFER}};
    h->plan.ledger =
        (struct ot_ledger){.n = 1, .entries = {{OT_TIER_HOST, "hand", (size_t)BUFFERS * BUFFER_BYTES}}};
    h->schedule.tasks = h->tasks;
    h->schedule.alone = alone;
    for (int l = 0; l < OT_LANE_COUNT; l++)
        h->schedule.lane_tasks[l] = h->lanes[l];
}

static int add(struct hand *h, enum ot_lane_id lane) {
    int i = h->schedule.n_tasks++;
    assert_true(i < MOST_TASKS);
    h->tasks[i].kind = OT_TASK_STORE;
    h->tasks[i].lane = lane;
    h->tasks[i].deps = h->deps[i];
    h->tasks[i].accesses = h->accesses[i];
    h->lanes[lane][h->schedule.lane_count[lane]++] = i;
    return i;
}

static struct ot_access *touch(struct hand *h, int task, int buffer, bool reads, bool writes) {
    struct ot_access *a = &h->tasks[task].accesses[h->tasks[task].n_accesses++];
    *a = (struct ot_access){.buffer = buffer, .reads = reads, .writes = writes, .n_tiles = TILES};
    return a;
}

static void after(struct hand *h, int task, int before, bool previous_step) {
    assert_true(h->tasks[task].n_deps < MOST_DEPS);
    h->deps[task][h->tasks[task].n_deps++] = (struct ot_dep){before, previous_step, false};
}

static int verify(const struct hand *h) {
    return ot_schedule_verify(&h->schedule, &h->layout, &h->plan);
}

/* ---- the verifier ---- */

/* Two tasks access the same tile on a lane that does not run in order. If one of them writes, it is a
 * race. */
static void two_accesses_are_ordered_if_one_writes(void **state) {
    (void)state;
    for (int mix = 0; mix < 16; mix++) {
        bool first_writes = mix & 1, second_writes = mix & 2, edge = mix & 4, same = mix & 8;
        struct hand h;
        open_hand(&h, true);
        int first = add(&h, OT_LANE_CPU), second = add(&h, OT_LANE_CPU);
        struct ot_access *a = touch(&h, first, 1, !first_writes, first_writes);
        struct ot_access *b = touch(&h, second, 1, !second_writes, second_writes);
        a->n_tiles = b->n_tiles = 1;
        a->first_tile = b->first_tile = 1;
        if (!same)
            b->first_tile = 0;
        if (edge)
            after(&h, second, first, false);
        if (edge || !same || (!first_writes && !second_writes))
            check_ok(verify(&h));
        else
            check_fails(verify(&h), OT_E_INTERNAL,
                        "'store' (task 0, step 0) and 'store' (task 1, step 0) both touch a buffer of 'hand' "
                        "(number 1)");
    }
}

/* A write waits for every read since the last write, not only for the newest read. */
static void a_write_waits_for_all_readers(void **state) {
    (void)state;
    for (int missing = 0; missing <= 3; missing++) {
        struct hand h;
        open_hand(&h, true);
        for (int i = 0; i < 4; i++)
            touch(&h, add(&h, OT_LANE_CPU), 0, i > 0 && i < 3, i == 0 || i == 3);
        after(&h, 1, 0, false);
        after(&h, 2, 0, false);
        if (missing != 1)
            after(&h, 3, 1, false);
        if (missing != 2)
            after(&h, 3, 2, false);
        if (missing == 1 || missing == 2)
            check_fails(verify(&h), OT_E_INTERNAL, "no edge orders them");
        else
            check_ok(verify(&h));
    }
}

/* A task writes again in the next step what it wrote in this one. A lane of the host needs an edge for
 * this. */
static void steps_are_ordered(void **state) {
    (void)state;
    for (int lane = 0; lane < OT_LANE_COUNT; lane++) {
        struct hand h;
        open_hand(&h, false);
        int task = add(&h, (enum ot_lane_id)lane);
        touch(&h, task, 2, false, true);
        if (!ot_lane_is_device((enum ot_lane_id)lane)) {
            check_fails(verify(&h), OT_E_INTERNAL, "(task 0, step 0) and 'store' (task 0, step 1)");
            after(&h, task, task, true);
        }
        check_ok(verify(&h));
    }
    struct hand h;
    open_hand(&h, false);
    touch(&h, add(&h, OT_LANE_D2H), 0, false, true);
    touch(&h, add(&h, OT_LANE_D2H), 0, true, false);
    check_ok(verify(&h)); /* the first task of a step runs after the last task of the step before */
    h.tasks[0].accesses[0].parity = h.tasks[1].accesses[0].parity = true;
    h.tasks[1].lane = OT_LANE_CPU;
    h.schedule.lane_count[OT_LANE_D2H] = h.schedule.lane_count[OT_LANE_CPU] = 1;
    h.lanes[OT_LANE_CPU][0] = 1;
    after(&h, 1, 0, false);
    check_ok(verify(&h)); /* steps alternate between two buffers, so the reader may be one step late */
}

/* A task may wait for a task that is listed after it. Several sweeps find the order, and none lists a task
 * twice. */
static void the_list_need_not_be_the_order(void **state) {
    (void)state;
    struct hand h;
    open_hand(&h, true);
    for (int i = 0; i < 4; i++)
        add(&h, OT_LANE_CPU);
    touch(&h, 0, 0, true, false)->before = (struct ot_tag){.content = OT_CONTENT_GRAD};
    touch(&h, 3, 0, false, true)->after = (struct ot_tag){.content = OT_CONTENT_GRAD};
    after(&h, 0, 2, false);
    after(&h, 2, 3, false);
    check_ok(verify(&h));
    after(&h, 3, 0, false);
    check_fails(verify(&h), OT_E_INTERNAL, "'store' (task 0) can never start: the edges form a cycle");
}

static void tiles_are_those_of_the_buffer(void **state) {
    (void)state;
    struct hand h;
    open_hand(&h, true);
    struct ot_access *a = touch(&h, add(&h, OT_LANE_CPU), 1, true, false);
    check_ok(verify(&h));
    a->n_tiles = TILES + 1;
    check_fails(verify(&h), OT_E_INTERNAL, "'store' (task 0) touches tiles that 'hand' does not have");
    a->n_tiles = 1;
    a->first_tile = TILES;
    check_fails(verify(&h), OT_E_INTERNAL, "touches tiles");
    a->first_tile = -1;
    check_fails(verify(&h), OT_E_INTERNAL, "touches tiles");
}

/* A read must find exactly the content that was written: every field of the tag, in every tile. */
static void contents_are_compared_whole(void **state) {
    (void)state;
    static const struct ot_tag good = {
        .content = OT_CONTENT_BOUNDARY, .version = 1, .index = 2, .micro = 3}; /* arbitrary values */
    for (int field = 0; field <= 5; field++) {
        struct hand h;
        open_hand(&h, true);
        int writer = add(&h, OT_LANE_H2D), reader = add(&h, OT_LANE_H2D);
        struct ot_tag tag = good;
        tag.content += field == 1;
        tag.version += field == 2;
        tag.index += field == 3;
        tag.micro += field == 4;
        struct ot_access *w = touch(&h, writer, 1, false, true);
        w->after = good;
        w->n_tiles = field == 5 ? 1 : TILES;
        touch(&h, reader, 1, true, false)->before = tag;
        if (field == 0)
            check_ok(verify(&h));
        else
            check_fails(verify(&h), OT_E_INTERNAL, "'store' (task 1, step 0) would read the wrong content");
    }
}

/* Versions count from the task's own step. Constants have no version. */
static void versions_go_with_the_step(void **state) {
    (void)state;
    for (int content = OT_CONTENT_WEIGHTS; content <= OT_CONTENT_SHADOW; content++)
        for (int updates = 0; updates < 2; updates++) {
            struct hand h;
            open_hand(&h, false);
            struct ot_tag tag = {.content = (uint8_t)content};
            bool fixed = content == OT_CONTENT_CONSTANTS || content == OT_CONTENT_FROZEN ||
                         content == OT_CONTENT_DECODED ||
                         (!updates && (content == OT_CONTENT_WEIGHTS || content == OT_CONTENT_STATE));
            int reader = add(&h, OT_LANE_H2D), writer = add(&h, OT_LANE_H2D);
            h.tasks[writer].kind = updates ? OT_TASK_UPDATE_GPU : OT_TASK_STORE;
            struct ot_access *r = touch(&h, reader, 0, true, false);
            h.layout.constants = content == OT_CONTENT_CONSTANTS ? 0 : OT_NO_BUFFER;
            r->n_tiles = 1;
            r->before = tag;
            struct ot_access *w = touch(&h, writer, 0, false, true);
            w->n_tiles = 1;
            w->after = tag;
            /* Before the first step a buffer holds nothing, so only constants exist for step 0. */
            if (content != OT_CONTENT_CONSTANTS) {
                check_fails(verify(&h), OT_E_INTERNAL, "(task 0, step 0) would read the wrong content");
                h.lanes[OT_LANE_H2D][0] = writer;
                h.lanes[OT_LANE_H2D][1] = reader;
                check_ok(verify(&h));
                /* Content of the step before: allowed only for content without a version. */
                r->before.version = -1;
            }
            if (fixed)
                check_ok(verify(&h));
            else
                check_fails(verify(&h), OT_E_INTERNAL, "(task 0, step 0) would read the wrong content");
        }
}

static void bytes_add_up_to_the_ledger(void **state) {
    (void)state;
    struct hand h;
    open_hand(&h, true);
    add(&h, OT_LANE_CPU);
    check_ok(verify(&h));
    h.buffers[1].offset--;
    check_fails(verify(&h), OT_E_INTERNAL, "buffer 1 ('hand') overlaps another buffer");
    h.buffers[1].offset++;
    h.buffers[2].bytes = BUFFER_BYTES + 1;
    check_fails(verify(&h), OT_E_INTERNAL, "buffer 2 ('hand') overlaps");
    h.buffers[2].bytes = BUFFER_BYTES;
    h.buffers[2].tier = OT_TIER_NVME; /* the last tier is checked like the first */
    h.buffers[2].offset = 0;
    h.plan.ledger.entries[0].bytes -= BUFFER_BYTES;
    check_fails(verify(&h), OT_E_INTERNAL, "256 bytes on the nvme, the ledger says 0");
    h.plan.ledger.n = 2;
    h.plan.ledger.entries[1] = (struct ot_ledger_entry){OT_TIER_NVME, "hand", BUFFER_BYTES, 0};
    check_ok(verify(&h));
    h.buffers[0].tier = OT_TIER_GPU;
    h.buffers[1].offset = 0;
    h.plan.ledger.entries[0].bytes -= BUFFER_BYTES;
    check_fails(verify(&h), OT_E_INTERNAL, "256 bytes on the gpu, the ledger says 0");
}

/* ---- the linker ---- */

struct edges {
    int n;
    struct ot_dep deps[MOST_DEPS];
    bool event, notify;
};

static void check_link(const struct hand *h, const struct edges *want) {
    struct ot_schedule s = {.n_tasks = h->schedule.n_tasks, .alone = h->schedule.alone};
    s.tasks = malloc(sizeof h->tasks);
    assert_non_null(s.tasks);
    memcpy(s.tasks, h->tasks, sizeof h->tasks);
    for (int i = 0; i < s.n_tasks; i++)
        s.tasks[i].deps = NULL;
    check_ok(ot_schedule_link(&s, &h->layout));
    check_ok(ot_schedule_verify(&s, &h->layout, &h->plan));
    for (int i = 0; i < s.n_tasks; i++) {
        const struct ot_task *task = &s.tasks[i];
        for (int w = 0; w < want[i].n; w++) {
            const struct ot_dep *dep = &want[i].deps[w];
            bool found = false;
            for (int d = 0; d < task->n_deps; d++)
                found = found || (task->deps[d].task == dep->task &&
                                  task->deps[d].previous_step == dep->previous_step);
            if (!found)
                fail_msg("task %d has no edge from task %d%s", i, dep->task,
                         dep->previous_step ? " of the step before" : "");
        }
        if (task->n_deps != want[i].n || task->needs_event != want[i].event ||
            task->needs_notify != want[i].notify)
            fail_msg("task %d: %d edges, event %d, notify %d", i, task->n_deps, task->needs_event,
                     task->needs_notify);
    }
    ot_schedule_free(&s);
}

/* Two fetches, a forward and a copy of its result, a task of the host, and an update of a fetched slab. */
static void edges_are_those_whose_loss_is_a_race(void **state) {
    (void)state;
    static const struct edges alone[] = {
        {.event = true, .notify = true}, /* the host and another lane wait for it */
        {.notify = true},                /* the last task of its lane */
        {.n = 1, .deps = {{0, false}}, .event = true},
        {.n = 1, .deps = {{2, false}}, .notify = true},
        {.n = 1, .deps = {{0, false}}},
        {.n = 1, .deps = {{4, false}}, .notify = true}, /* its lane and the host's task imply the rest */
    };
    static const struct edges again[] = {
        {.n = 1, .deps = {{5, true}}, .event = true, .notify = true},
        {.notify = true},
        {.n = 2, .deps = {{0, false}, {3, true}}, .event = true},
        {.n = 1, .deps = {{2, false}}, .event = true, .notify = true},
        {.n = 1, .deps = {{0, false}}},
        {.n = 1, .deps = {{4, false}}, .event = true, .notify = true},
    };
    for (int steps = 1; steps <= 2; steps++) {
        struct hand h;
        open_hand(&h, steps == 1);
        touch(&h, add(&h, OT_LANE_H2D), 0, false, true);
        touch(&h, add(&h, OT_LANE_H2D), 1, false, true);
        int forward = add(&h, OT_LANE_COMPUTE);
        touch(&h, forward, 0, true, false);
        touch(&h, forward, 2, true, true);
        touch(&h, add(&h, OT_LANE_D2H), 2, true, false);
        touch(&h, add(&h, OT_LANE_CPU), 0, true, false);
        touch(&h, add(&h, OT_LANE_COMPUTE), 0, false, true);
        check_link(&h, steps == 1 ? alone : again);
    }
}

/* Before the first write there is nothing to wait for. Accesses to other tiles of a buffer are
 * independent. */
static void nothing_waits_without_a_reason(void **state) {
    (void)state;
    static const struct edges none[MOST_TASKS] = {{0}};
    struct hand h;
    open_hand(&h, true);
    touch(&h, add(&h, OT_LANE_CPU), 1, false, true);
    touch(&h, add(&h, OT_LANE_NVME_READ), 2, false, true)->n_tiles = 1;
    touch(&h, add(&h, OT_LANE_NVME_WRITE), 0, true, false);
    struct ot_access *rest = touch(&h, add(&h, OT_LANE_CPU), 2, false, true);
    rest->first_tile = 1;
    rest->n_tiles = TILES - 1;
    touch(&h, add(&h, OT_LANE_CPU), 0, true, false);
    check_link(&h, none);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_accesses_are_ordered_if_one_writes),
        cmocka_unit_test(a_write_waits_for_all_readers),
        cmocka_unit_test(steps_are_ordered),
        cmocka_unit_test(the_list_need_not_be_the_order),
        cmocka_unit_test(tiles_are_those_of_the_buffer),
        cmocka_unit_test(contents_are_compared_whole),
        cmocka_unit_test(versions_go_with_the_step),
        cmocka_unit_test(bytes_add_up_to_the_ledger),
        cmocka_unit_test(edges_are_those_whose_loss_is_a_race),
        cmocka_unit_test(nothing_waits_without_a_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
