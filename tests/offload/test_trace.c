/* What a trace says: of a timeline made by hand, whose answers are known, and of real steps, whose timeline
 * must obey the schedule. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/trace.h"
#include "src/base/json.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

/* ---- by hand ---- */

enum { HAND_TASKS = 5 };

/* fetch (h2d), forward (compute), update (cpu), backward (compute), store (d2h): each waits for the one
 * before; the next step's fetch waits for the store. */
struct hand {
    struct ot_task tasks[HAND_TASKS];
    struct ot_dep deps[HAND_TASKS];
    int lanes[OT_LANE_COUNT][2];
    struct ot_schedule schedule;
};

static void make_hand(struct hand *h) {
    static const enum ot_lane_id lanes[HAND_TASKS] = {OT_LANE_H2D, OT_LANE_COMPUTE, OT_LANE_CPU,
                                                      OT_LANE_COMPUTE, OT_LANE_D2H};
    memset(h, 0, sizeof *h);
    h->schedule.n_tasks = HAND_TASKS;
    h->schedule.tasks = h->tasks;
    for (int l = 0; l < OT_LANE_COUNT; l++)
        h->schedule.lane_tasks[l] = h->lanes[l];
    for (int i = 0; i < HAND_TASKS; i++) {
        struct ot_task *task = &h->tasks[i];
        task->lane = lanes[i];
        task->block = task->slab = task->micro = task->tile = -1;
        h->deps[i] = (struct ot_dep){(i + HAND_TASKS - 1) % HAND_TASKS, i == 0};
        task->deps = &h->deps[i];
        task->n_deps = 1;
        h->lanes[lanes[i]][h->schedule.lane_count[lanes[i]]++] = i;
    }
}

static const struct ot_task_span hand_spans[HAND_TASKS] = {
    {0, 2}, {2.5, 3.5}, {3.75, 5}, {5, 6}, {6.25, 6.5}};

static void add_hand_step(struct ot_trace *trace, const struct hand *h, int64_t step, double later) {
    struct ot_task_span spans[HAND_TASKS];
    for (int i = 0; i < HAND_TASKS; i++)
        spans[i] = (struct ot_task_span){hand_spans[i].begin + later, hand_spans[i].end + later};
    check_ok(ot_trace_add(trace, &h->schedule, step, spans));
}

static void check_real(const char *what, double got, double want) {
    if (!(fabs(got - want) < 1e-9)) /* sums of a few numbers near one */
        fail_msg("%s: %.12f, not %.12f", what, got, want);
}

static void check_hand(const struct ot_trace_summary *s, double steps, double host) {
    check_real("compute", s->busy[OT_LANE_COMPUTE], 2 * steps);
    check_real("h2d", s->exposed[OT_LANE_H2D], 2 * steps);
    check_real("d2h", s->exposed[OT_LANE_D2H], 0.25 * steps);
    check_real("cpu", s->exposed[OT_LANE_CPU], 1.25 * steps);
    check_real("waiting for itself", s->exposed[OT_LANE_COMPUTE], 0);
    check_real("host", s->exposed_host, host);
}

static void gaps_go_to_who_filled_them(void **state) {
    (void)state;
    struct hand h;
    struct ot_chain chain = {0};
    struct ot_trace *trace;
    struct ot_trace_summary s;
    make_hand(&h);
    check_ok(ot_trace_open(&chain, 100, &trace));
    add_hand_step(trace, &h, 1, 0);
    check_ok(ot_trace_summarise(trace, &s));
    assert_int_equal(s.steps, 1);
    check_real("seconds", s.seconds, 6.5);
    check_hand(&s, 1, 0.5 + 0.25 + 0.25);
    add_hand_step(trace, &h, 2, 7); /* half a second after the first */
    check_ok(ot_trace_summarise(trace, &s));
    assert_int_equal(s.steps, 2);
    check_real("seconds", s.seconds, 13.5);
    check_hand(&s, 2, 2 * (0.5 + 0.25 + 0.25) + 0.5);
    add_hand_step(trace, &h, 5, 100); /* not the next step: what lies between is not the schedule's */
    check_ok(ot_trace_summarise(trace, &s));
    check_real("seconds", s.seconds, 20);
    check_hand(&s, 3, 3 * (0.5 + 0.25 + 0.25) + 0.5);
    ot_trace_close(trace);
}

static void a_full_trace_holds_whole_steps(void **state) {
    (void)state;
    struct hand h;
    struct ot_chain chain = {0};
    struct ot_trace *trace;
    struct ot_trace_summary s;
    make_hand(&h);
    check_ok(ot_trace_open(&chain, 2 * HAND_TASKS + 3, &trace));
    for (int step = 1; step <= 4; step++)
        add_hand_step(trace, &h, step, 7 * step);
    check_ok(ot_trace_summarise(trace, &s));
    assert_int_equal(s.steps, 2);
    assert_int_equal(s.left_out, 2);
    ot_trace_close(trace);
}

/* ---- real steps ---- */

struct traced_run {
    struct ot_model *model;
    struct ot_device *device;
    struct ot_engine *engine;
    struct ot_trace *trace;
};

static void run_steps(struct traced_run *t, struct tiny_run *run, int steps) {
    check_ok(ot_model_open(&run->config, run->dtype, TINY_SEQUENCE, &t->model));
    struct ot_device_config device = {.kind = "cpu", .threads = 1, .lane_delay_seed = run->delay_seed};
    check_ok(ot_device_open(&device, &t->device));
    check_ok(ot_trace_open(ot_model_chain(t->model), 100000, &t->trace));
    struct ot_engine_config config = {.chain = ot_model_chain(t->model),
                                      .device = t->device,
                                      .plan = &run->plan,
                                      .optimizer = {0.9f, 0.95f, 1e-8f, 0.1f, run->clip},
                                      .optimizer_threads = 1,
                                      .trace = t->trace};
    check_ok(ot_engine_open(&config, &t->engine));
    struct tiny_batch *batch = malloc(sizeof *batch);
    assert_non_null(batch);
    for (int step = 0; step < steps; step++) {
        struct ot_step_result result;
        tiny_fill_batch(batch, run->config.vocab, step, TINY_STEP_SEQUENCES, run->micro_sequences);
        check_ok(ot_engine_submit(t->engine, &batch->input));
        if (step > 0)
            check_ok(ot_engine_result(t->engine, &result));
        if (step == steps - 1)
            check_ok(ot_engine_result(t->engine, &result));
    }
    check_ok(ot_engine_drain(t->engine));
    float losses[TINY_STEP_SEQUENCES * TINY_SEQUENCE];
    check_ok(ot_engine_eval(t->engine, &batch->micro[0], losses));
    free(batch);
}

static void close_run(struct traced_run *t) {
    ot_engine_close(t->engine);
    ot_trace_close(t->trace);
    ot_device_close(t->device);
    ot_model_close(t->model);
}

/* Reads the file back: events of one row do not overlap, and every training step has as many tasks. */
static void check_file(const char *path, int steps) {
    struct ot_json *root;
    double until[OT_LANE_COUNT] = {0};
    int tasks[16] = {0}, forwards = 0;
    check_ok(ot_json_read_file(path, 1 << 26, &root));
    const struct ot_json *events = ot_json_get(root, "traceEvents");
    assert_true(ot_json_length(events) > 100);
    for (size_t i = 0; i < ot_json_length(events); i++) {
        const struct ot_json *e = ot_json_at(events, i);
        int64_t row = ot_json_int(ot_json_get(e, "tid"), -1);
        if (ot_json_string(ot_json_get(e, "ph"), NULL)[0] == 'M')
            continue;
        double begin = ot_json_real(ot_json_get(e, "ts"), -1),
               length = ot_json_real(ot_json_get(e, "dur"), -1);
        assert_true(begin >= 0 && length >= 0);
        int64_t step = ot_json_int(ot_json_get(ot_json_get(e, "args"), "step"), -1);
        assert_in_range(step, 0, steps);
        if (row < OT_LANE_CPU) { /* in order: written in the lane's order, to the rounding of two numbers */
            assert_true(begin >= until[row] - 0.002);
            until[row] = begin + length;
        }
        tasks[step] += row < OT_LANE_COUNT;
        forwards += strncmp(ot_json_string(ot_json_get(e, "name"), NULL), "forward layer.", 14) == 0;
    }
    for (int step = 2; step <= steps; step++)
        assert_int_equal(tasks[step], tasks[1]);
    assert_int_equal(forwards, 3 * 3 * steps + 3); /* layers x micro-batches x steps, and the evaluation's */
    ot_json_free(root);
}

static void real_steps(void **state) {
    (void)state;
    enum { STEPS = 5 };
    for (int clip = 0; clip < 2; clip++) {
        struct tiny_run run;
        struct traced_run t = {0};
        struct ot_trace_summary s;
        char path[512], *folder = make_folder();
        tiny_defaults(&run, 3, true, OT_BF16);
        run.clip = (float)clip;
        run.delay_seed = 7;
        tiny_plan(&run, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_HOST, 2);
        run_steps(&t, &run, STEPS);
        check_ok(ot_trace_summarise(t.trace, &s));
        assert_int_equal(s.steps, STEPS);
        assert_int_equal(s.left_out, 0);
        double sum = s.busy[OT_LANE_COMPUTE] + s.exposed_host;
        for (int l = 0; l < OT_LANE_NVME_READ; l++) {
            assert_true(s.busy[l] > 0 && s.exposed[l] >= 0);
            sum += s.exposed[l];
        }
        check_real("everything", sum, s.seconds);
        snprintf(path, sizeof path, "%s/trace.json", folder);
        check_ok(ot_trace_write(t.trace, NULL, path));
        check_file(path, STEPS);
        snprintf(path, sizeof path, "%s/absent/trace.json", folder);
        check_fails(ot_trace_write(t.trace, NULL, path), OT_E_IO, "cannot write the trace");
        close_run(&t);
        ot_plan_free(&run.plan);
        remove_folder(folder);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gaps_go_to_who_filled_them),
        cmocka_unit_test(a_full_trace_holds_whole_steps),
        cmocka_unit_test(real_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
