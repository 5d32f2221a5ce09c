/* The report of a trace: for a timeline made by hand, whose answers are known, and for real steps, whose
 * timeline must obey the schedule. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/predict/trace.h"
#include "src/base/json.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

/* ---- by hand ---- */

enum { HAND_TASKS = 5 };

/* fetch (h2d), forward (compute), update (cpu), backward (compute), store (d2h). Each waits for the one
 * before; the next step's fetch waits for the store. */
struct hand {
    struct ot_task tasks[HAND_TASKS];
    struct ot_dep deps[HAND_TASKS];
    int lanes[OT_LANE_COUNT][3];
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
        h->deps[i] = (struct ot_dep){(i + HAND_TASKS - 1) % HAND_TASKS, i == 0, false};
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
    add_hand_step(trace, &h, 2, 7); /* begins half a second after the first step */
    check_ok(ot_trace_summarise(trace, &s));
    assert_int_equal(s.steps, 2);
    check_real("seconds", s.seconds, 13.5);
    check_hand(&s, 2, 2 * (0.5 + 0.25 + 0.25) + 0.5);
    add_hand_step(trace, &h, 5, 100); /* not the next step: the time between is not the schedule's */
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

/* Whole steps count with all their tasks, wherever other steps lie. Evaluations between them do not count.
 * */
static void whole_steps_are_summarised(void **state) {
    (void)state;
    struct hand h, alone;
    struct ot_chain chain = {0};
    struct ot_trace *trace;
    struct ot_trace_summary s;
    make_hand(&h);
    make_hand(&alone);
    alone.schedule.lane_count[OT_LANE_CPU] = 0;
    check_ok(ot_trace_open(&chain, 100, &trace));
    add_hand_step(trace, &h, 2, 0);
    add_hand_step(trace, &h, 3, 7);
    add_hand_step(trace, &alone, 0, 14);
    add_hand_step(trace, &h, 4, 21);
    add_hand_step(trace, &h, 5, 22); /* overlaps with the step before */
    check_ok(ot_trace_summarise_steps(trace, 3, 4, &s));
    assert_int_equal(s.steps, 2);
    check_real("compute", s.busy[OT_LANE_COMPUTE], 2 * 2);
    check_real("cpu", s.busy[OT_LANE_CPU], 2 * 1.25);
    check_ok(ot_trace_summarise_steps(trace, 5, 5, &s));
    check_real("compute", s.busy[OT_LANE_COMPUTE], 2);
    check_fails(ot_trace_summarise_steps(trace, 1, 2, &s), OT_E_USAGE, "from 1 to 2");
    check_fails(ot_trace_summarise_steps(trace, 5, 6, &s), OT_E_USAGE, "from 5 to 6");
    check_fails(ot_trace_summarise_steps(trace, 4, 3, &s), OT_E_USAGE, "from 4 to 3");
    ot_trace_close(trace);
}

/* A decision lets two updates begin. Both need the lane, so the second waits for the first, and the next
 * forward waits for the second. */
static void a_queue_counts_for_its_lane(void **state) {
    (void)state;
    static const enum ot_lane_id lanes[] = {OT_LANE_COMPUTE, OT_LANE_CPU, OT_LANE_CPU, OT_LANE_CPU};
    static const struct ot_task_span spans[] = {{0, 1}, {1, 1.5}, {1.5, 3.5}, {3.5, 4.5}};
    struct hand h;
    struct ot_chain chain = {0};
    struct ot_trace *trace;
    struct ot_trace_summary s;
    make_hand(&h);
    memset(h.schedule.lane_count, 0, sizeof h.schedule.lane_count);
    h.schedule.n_tasks = 4;
    for (int i = 0; i < 4; i++) {
        h.tasks[i].lane = lanes[i];
        h.tasks[i].kind = i == 1 ? OT_TASK_DECIDE : OT_TASK_UPDATE_CPU;
        h.lanes[lanes[i]][h.schedule.lane_count[lanes[i]]++] = i;
        h.deps[i] = i == 0 ? (struct ot_dep){3, true, false} : (struct ot_dep){.task = i > 1};
    }
    check_ok(ot_trace_open(&chain, 100, &trace));
    for (int step = 0; step < 3; step++) {
        struct ot_task_span later[4];
        for (int i = 0; i < 4; i++)
            later[i] = (struct ot_task_span){spans[i].begin + 4.5 * step, spans[i].end + 4.5 * step};
        check_ok(ot_trace_add(trace, &h.schedule, step, later));
    }
    check_ok(ot_trace_summarise(trace, &s));
    check_real("cpu", s.exposed[OT_LANE_CPU], 3 * 3.5);
    check_real("host", s.exposed_host, 0);
    /* From the first step's decision to the last step's decision. */
    check_ok(ot_trace_summarise_between(trace, 0, 2, &s));
    assert_int_equal(s.steps, 2);
    check_real("seconds", s.seconds, 2 * 4.5);
    check_real("compute", s.busy[OT_LANE_COMPUTE], 2);
    check_real("busy", s.busy[OT_LANE_CPU], 2 * 3.5);
    check_real("exposed", s.exposed[OT_LANE_CPU], 2 * 3.5);
    check_fails(ot_trace_summarise_between(trace, 0, 3, &s), OT_E_USAGE, "from 0 to 3");
    ot_trace_close(trace);
}

/* Each step computes for two seconds, decides, and updates while the next step computes. Behind the last step
 * nothing computes: there the update is exposed, which says nothing about a longer run. */
static void the_last_update_is_no_part_of_full_steps(void **state) {
    (void)state;
    static const struct ot_task_span spans[] = {{0, 2}, {2, 2.1}, {2.1, 3.5}};
    struct hand h;
    struct ot_chain chain = {0};
    struct ot_trace *trace;
    struct ot_trace_summary s;
    make_hand(&h);
    memset(h.schedule.lane_count, 0, sizeof h.schedule.lane_count);
    h.schedule.n_tasks = 3;
    for (int i = 0; i < 3; i++) {
        h.tasks[i].lane = i == 0 ? OT_LANE_COMPUTE : OT_LANE_CPU;
        h.tasks[i].kind = i == 1 ? OT_TASK_DECIDE : OT_TASK_UPDATE_CPU;
        h.tasks[i].n_deps = i > 0;
        h.deps[i] = (struct ot_dep){.task = i - 1};
        h.lanes[h.tasks[i].lane][h.schedule.lane_count[h.tasks[i].lane]++] = i;
    }
    check_ok(ot_trace_open(&chain, 100, &trace));
    for (int step = 0; step < 3; step++) {
        struct ot_task_span later[3];
        for (int i = 0; i < 3; i++)
            later[i] = (struct ot_task_span){spans[i].begin + 2 * step, spans[i].end + 2 * step};
        check_ok(ot_trace_add(trace, &h.schedule, 7 + step, later));
        check_ok(ot_trace_summarise_full(trace, &s));
        int full = step > 0 ? step : 1;
        assert_int_equal(s.steps, full);
        check_real("seconds", s.seconds, step > 0 ? 2 * step : 3.5);
        check_real("compute", s.busy[OT_LANE_COMPUTE], step > 0 ? 2 * step - 0.1 : 2);
        check_real("exposed", s.exposed[OT_LANE_CPU], step > 0 ? 0.1 : 1.5);
        check_real("host", s.exposed_host, 0);
    }
    check_ok(ot_trace_summarise(trace, &s));
    check_real("all", s.exposed[OT_LANE_CPU], 1.5);
    ot_trace_close(trace);
}

/* The disk begins the next task before it has finished the one before. */
static void tasks_at_once_are_busy_once(void **state) {
    (void)state;
    static const struct ot_task_span spans[HAND_TASKS] = {{0, 2}, {1, 3}, {4, 5}, {4.5, 6}, {6, 7}};
    struct hand h;
    struct ot_chain chain = {0};
    struct ot_trace *trace;
    struct ot_trace_summary s;
    make_hand(&h);
    memset(h.schedule.lane_count, 0, sizeof h.schedule.lane_count);
    int row[HAND_TASKS] = {0, 1, 2, 3};
    h.schedule.lane_tasks[OT_LANE_NVME_READ] = row;
    h.schedule.lane_count[OT_LANE_NVME_READ] = 4;
    h.schedule.lane_count[OT_LANE_CPU] = 1;
    h.lanes[OT_LANE_CPU][0] = 4;
    for (int i = 0; i < HAND_TASKS; i++) {
        h.tasks[i].lane = i < 4 ? OT_LANE_NVME_READ : OT_LANE_CPU;
        h.tasks[i].n_deps = i == 4;
    }
    check_ok(ot_trace_open(&chain, 100, &trace));
    check_ok(ot_trace_add(trace, &h.schedule, 1, spans));
    check_ok(ot_trace_summarise(trace, &s));
    check_real("busy", s.busy[OT_LANE_NVME_READ], 3 + 2);
    check_real("exposed", s.exposed[OT_LANE_NVME_READ] + s.exposed[OT_LANE_CPU] + s.exposed_host, 7);
    ot_trace_close(trace);
}

/* When the first training step of each group begins; -1: the file has none. */
static void read_groups(const char *path, double begin[2], int names[2]) {
    struct ot_json *root;
    begin[0] = begin[1] = -1;
    names[0] = names[1] = 0;
    check_ok(ot_json_read_file(path, 1 << 20, &root));
    const struct ot_json *events = ot_json_get(root, "traceEvents");
    for (size_t i = 0; i < ot_json_length(events); i++) {
        const struct ot_json *e = ot_json_at(events, i);
        int64_t group = ot_json_int(ot_json_get(e, "pid"), 0);
        const char *name = ot_json_string(ot_json_get(e, "name"), NULL);
        assert_in_range(group, 1, 2);
        if (strcmp(name, "process_name") == 0) {
            const char *of = ot_json_string(ot_json_get(ot_json_get(e, "args"), "name"), NULL);
            assert_string_equal(of, group == 1 ? "measured" : "predicted");
            names[group - 1]++;
        }
        if (strcmp(name, group == 1 ? "step 7" : "step 1") == 0)
            begin[group - 1] = ot_json_real(ot_json_get(e, "ts"), -1);
    }
    ot_json_free(root);
}

/* Measured: an evaluation, then steps 7 and 8. Predicted: steps 1 and 2, from second 0 on. */
static void predictions_stand_below_measurements(void **state) {
    (void)state;
    struct hand h, alone;
    struct ot_chain chain = {0};
    struct ot_trace *measured, *predicted;
    double begin[2];
    int names[2];
    char path[512], *folder = make_folder();
    make_hand(&h);
    make_hand(&alone);
    alone.schedule.n_tasks = 1;
    alone.schedule.lane_count[OT_LANE_CPU] = 0;
    check_ok(ot_trace_open(&chain, 100, &measured));
    check_ok(ot_trace_open(&chain, 100, &predicted));
    add_hand_step(measured, &alone, 0, 1000);
    for (int step = 0; step < 2; step++) {
        add_hand_step(measured, &h, 7 + step, 1003 + 7 * step);
        add_hand_step(predicted, &h, 1 + step, 6.5 * step);
    }
    snprintf(path, sizeof path, "%s/trace.json", folder);
    check_ok(ot_trace_write(measured, predicted, path));
    read_groups(path, begin, names);
    check_real("measured", begin[0], 3e6);
    check_real("predicted", begin[1], 3e6);
    assert_true(names[0] == 1 && names[1] == 1);
    check_ok(ot_trace_write(NULL, predicted, path));
    read_groups(path, begin, names);
    check_real("predicted alone", begin[1], 0);
    assert_true(names[0] == 0 && names[1] == 1);
    check_ok(ot_trace_write(measured, NULL, path));
    read_groups(path, begin, names);
    check_real("measured alone", begin[0], 3e6);
    assert_true(names[0] == 1 && names[1] == 0);
    ot_trace_close(measured);
    ot_trace_close(predicted);
    remove_folder(folder);
}

/* ---- several ranks ---- */

/* The file of rank 0 with the trace of rank 1, whose clock is 500 s behind. */
static void ranks_stand_below_each_other(void **state) {
    (void)state;
    struct hand h;
    struct ot_chain chain = {0};
    struct ot_trace *first, *second;
    struct ot_trace_text other;
    struct ot_json *root;
    char path[512], *folder = make_folder();
    double begin[4] = {-1, -1, -1, -1};
    int64_t place[4] = {-1, -1, -1, -1};
    const char *names[4] = {NULL};
    make_hand(&h);
    check_ok(ot_trace_open(&chain, 100, &first));
    check_ok(ot_trace_open(&chain, 100, &second));
    add_hand_step(first, &h, 1, 1000);
    add_hand_step(second, &h, 1, 502);
    check_ok(ot_trace_put(second, 1, ot_trace_origin(first) - 500, &other));
    snprintf(path, sizeof path, "%s/trace.json", folder);
    check_ok(ot_trace_write_ranks(first, first, &other, 1, path));
    check_ok(ot_json_read_file(path, 1 << 20, &root));
    const struct ot_json *events = ot_json_get(root, "traceEvents");
    for (size_t i = 0; i < ot_json_length(events); i++) {
        const struct ot_json *event = ot_json_at(events, i);
        int64_t pid = ot_json_int(ot_json_get(event, "pid"), 0);
        const struct ot_json *args = ot_json_get(event, "args");
        const char *name = ot_json_string(ot_json_get(event, "name"), NULL);
        assert_in_range(pid, 1, 3);
        if (strcmp(name, "process_name") == 0)
            names[pid] = ot_json_string(ot_json_get(args, "name"), NULL);
        else if (strcmp(name, "process_sort_index") == 0)
            place[pid] = ot_json_int(ot_json_get(args, "sort_index"), -1);
        else if (strcmp(name, "step 1") == 0)
            begin[pid] = ot_json_real(ot_json_get(event, "ts"), -1);
    }
    assert_string_equal(names[1], "rank 0, measured");
    assert_string_equal(names[2], "rank 0, predicted");
    assert_string_equal(names[3], "rank 1, measured");
    assert_true(place[1] == 0 && place[3] == 1 && place[2] == 2);
    check_real("rank 0", begin[1], 0);
    check_real("predicted", begin[2], 0);
    check_real("rank 1", begin[3], 2e6);
    ot_json_free(root);
    free(other.text);
    ot_trace_close(first);
    ot_trace_close(second);
    remove_folder(folder);
}

/* A meeting begins and ends at other times on each rank. All ends are after all beginnings. */
static void clocks_are_compared(void **state) {
    (void)state;
    const struct ot_task_span first[] = {{1000, 1003}, {1010, 1011}, {1020, 1024}};
    const struct ot_task_span behind[] = {{500, 503}, {510.25, 511}, {520, 524}};
    const struct ot_task_span same[] = {{1001, 1004}, {1009, 1010.5}, {1020, 1024}};
    /* By the second meeting: at least 1010 - 511, at most 1011 - 510.25. */
    check_real("another clock", ot_trace_clock_offset(first, behind, 3), (499 + 500.75) / 2);
    check_real("its first meeting", ot_trace_clock_offset(first, behind, 1), (497 + 503.0) / 2);
    check_real("one clock", ot_trace_clock_offset(first, same, 3), 0);
}

/* ---- real steps ---- */

struct traced_run {
    struct ot_model *model;
    struct ot_device *device;
    struct ot_engine *engine;
    struct ot_trace *trace;
};

/* Pauses the trace except before the steps from `from` to `to`. */
static void run_some_steps(struct traced_run *t, struct tiny_run *run, int steps, int from, int to,
                           int64_t max_spans) {
    check_ok(ot_model_open(&run->config, run->dtype, TINY_SEQUENCE, &t->model));
    struct ot_device_config device = {.kind = "cpu", .threads = 1, .lane_delay_seed = run->delay_seed};
    check_ok(ot_device_open(&device, &t->device));
    check_ok(ot_trace_open(ot_model_chain(t->model), max_spans, &t->trace));
    struct ot_engine_config config = {.chain = ot_model_chain(t->model),
                                      .device = t->device,
                                      .plan = &run->plan,
                                      .optimizer = {0.9f, 0.95f, 1e-8f, 0.1f, run->clip, 0},
                                      .optimizer_threads = 1,
                                      .trace = t->trace};
    check_ok(ot_engine_open(&config, &t->engine));
    struct tiny_batch *batch = malloc(sizeof *batch);
    assert_non_null(batch);
    for (int step = 0; step < steps; step++) {
        struct ot_step_result result;
        tiny_fill_batch(batch, run->config.vocab, step, TINY_STEP_SEQUENCES, run->micro_sequences);
        ot_trace_pause(t->trace, step + 1 < from || step + 1 > to);
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

static void run_steps(struct traced_run *t, struct tiny_run *run, int steps) {
    run_some_steps(t, run, steps, 1, steps, 100000);
}

static void close_run(struct traced_run *t) {
    ot_engine_close(t->engine);
    ot_trace_close(t->trace);
    ot_device_close(t->device);
    ot_model_close(t->model);
}

/* Reads the file back: the events of a row do not overlap, and every training step has the same number of
 * tasks. */
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
        /* Written in the lane's order, so they do not overlap, except for the rounding of two numbers. */
        if (row < OT_LANE_CPU) {
            assert_true(begin >= until[row] - 0.002);
            until[row] = begin + length;
        }
        tasks[step] += row < OT_LANE_COUNT;
        forwards += strncmp(ot_json_string(ot_json_get(e, "name"), NULL), "forward layer.", 14) == 0;
    }
    for (int step = 2; step <= steps; step++)
        assert_int_equal(tasks[step], tasks[1]);
    assert_int_equal(forwards, 3 * 3 * steps + 3); /* layers x micro-batches x steps, plus the evaluation's */
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
            assert_true((s.busy[l] > 0) == (l != OT_LANE_COMM) && s.exposed[l] >= 0);
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

/* A run of six steps that records those from `from` to `to`. */
static struct ot_trace_summary trace_some(int from, int to, int64_t max_spans) {
    struct tiny_run run;
    struct traced_run t = {0};
    struct ot_trace_summary s;
    tiny_defaults(&run, 1, true, OT_F32);
    tiny_plan(&run, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_HOST, 2);
    run_some_steps(&t, &run, 6, from, to, max_spans);
    check_ok(ot_trace_summarise(t.trace, &s));
    if (s.steps > 0)
        check_ok(ot_trace_summarise_steps(t.trace, from, from + s.steps - 1, &s));
    for (int l = 0; l < OT_LANE_COMM; l++) /* spans of other steps would make lanes busier than that */
        assert_true(s.busy[l] >= 0 && s.busy[l] <= s.seconds);
    close_run(&t);
    ot_plan_free(&run.plan);
    return s;
}

/* Steps that begin before the pause and end in it are whole. */
static void a_paused_trace_records_nothing(void **state) {
    (void)state;
    struct ot_trace_summary s = trace_some(3, 4, 100000);
    assert_true(s.steps == 2 && s.left_out == 0);
    s = trace_some(7, 8, 100000);
    assert_true(s.steps == 0 && s.left_out == 0);
}

/* Steps that begin before the trace is known to be full are left out like those that begin after it. */
static void a_trace_fills_up_with_steps_in_flight(void **state) {
    (void)state;
    struct ot_trace_summary s = trace_some(2, 5, 1);
    assert_true(s.steps == 0 && s.left_out == 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gaps_go_to_who_filled_them),
        cmocka_unit_test(a_full_trace_holds_whole_steps),
        cmocka_unit_test(whole_steps_are_summarised),
        cmocka_unit_test(a_queue_counts_for_its_lane),
        cmocka_unit_test(the_last_update_is_no_part_of_full_steps),
        cmocka_unit_test(tasks_at_once_are_busy_once),
        cmocka_unit_test(predictions_stand_below_measurements),
        cmocka_unit_test(ranks_stand_below_each_other),
        cmocka_unit_test(clocks_are_compared),
        cmocka_unit_test(real_steps),
        cmocka_unit_test(a_paused_trace_records_nothing),
        cmocka_unit_test(a_trace_fills_up_with_steps_in_flight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
