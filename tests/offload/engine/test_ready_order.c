/* The order in which a host lane takes its ready tasks: an older step first, then the earliest deadline, then
 * the order of the program. */
#include <pthread.h>
#include <stdlib.h>

#include "kernels/device.h"
#include "offload/engine/executor.h"
#include "src/base/random.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

enum { TASKS = 700, DEADLINES = 40, STEPS = 2, GATE = 0 };

/* Task GATE waits for the test, and all others wait for it: so they become ready at once. */
struct program {
    struct ot_task tasks[TASKS];
    int order[TASKS];
    struct ot_dep gate[2];
    struct ot_schedule schedule;
    pthread_mutex_t mutex;
    pthread_cond_t opened;
    bool is_open;
    int n_done;
    int64_t step[STEPS * TASKS]; /* of the tasks in the order in which they ran */
    int task[STEPS * TASKS];
};

static int run_task(void *context, const struct ot_task *task, int64_t step, struct ot_lane *lane) {
    struct program *p = context;
    (void)lane;
    pthread_mutex_lock(&p->mutex);
    while (!p->is_open)
        pthread_cond_wait(&p->opened, &p->mutex);
    p->step[p->n_done] = step;
    p->task[p->n_done++] = (int)(task - p->tasks);
    pthread_mutex_unlock(&p->mutex);
    return 0;
}

static void make_program(struct program *p) {
    p->gate[0] = (struct ot_dep){GATE, true, false};
    p->gate[1] = (struct ot_dep){.task = GATE};
    for (int i = 0; i < TASKS; i++) {
        bool is_gate = i == GATE;
        int deadline =
            (int)ot_random_below(5, ot_random_stream(OT_RANDOM_TEST, 0, 91), (uint64_t)i, DEADLINES);
        p->tasks[i] = (struct ot_task){.kind = is_gate ? OT_TASK_DECIDE : OT_TASK_UPDATE_CPU,
                                       .lane = OT_LANE_CPU,
                                       .deadline = is_gate ? -1 : deadline,
                                       .n_deps = 1,
                                       .deps = &p->gate[!is_gate]};
        p->order[i] = i;
    }
    p->schedule = (struct ot_schedule){.n_tasks = TASKS, .tasks = p->tasks};
    p->schedule.lane_count[OT_LANE_CPU] = TASKS;
    for (int l = 0; l < OT_LANE_COUNT; l++)
        p->schedule.lane_tasks[l] = p->order;
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->opened, NULL);
}

static void ready_tasks_run_in_order(void **state) {
    (void)state;
    const struct ot_chain chain = {0};
    struct ot_device *device;
    struct ot_executor *executor;
    struct ot_bound *bound;
    struct program *p = calloc(1, sizeof *p);
    assert_non_null(p);
    make_program(p);
    tiny_open_device(1 << 20, 1, 0, &device);
    const struct ot_executor_config config = {
        .device = device, .chain = &chain, .run = run_task, .context = p, .optimizer_threads = 1};
    check_ok(ot_executor_open(&config, &executor));
    check_ok(ot_executor_bind(executor, &p->schedule, &bound));
    for (int64_t step = 1; step <= STEPS; step++)
        check_ok(ot_executor_submit(executor, bound, step));
    pthread_mutex_lock(&p->mutex);
    p->is_open = true;
    pthread_cond_signal(&p->opened);
    pthread_mutex_unlock(&p->mutex);
    check_ok(ot_executor_drain(executor));
    assert_int_equal(p->n_done, STEPS * TASKS);
    for (int i = 0; i < STEPS * TASKS; i++) {
        const struct ot_task *task = &p->tasks[p->task[i]],
                             *before = i % TASKS ? &p->tasks[p->task[i - 1]] : task;
        assert_int_equal(p->step[i], 1 + i / TASKS);
        assert_true(before->deadline < task->deadline ||
                    (before->deadline == task->deadline && before <= task));
    }
    ot_executor_unbind(executor, bound);
    ot_executor_close(executor);
    ot_device_close(device);
    pthread_cond_destroy(&p->opened);
    pthread_mutex_destroy(&p->mutex);
    free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(ready_tasks_run_in_order)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
