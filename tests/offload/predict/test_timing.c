/* The simulator against the executor: the executor runs the same schedules with tasks that only sleep for the
 * time that the simulator counts. The waits and the order in which lanes take tasks must then give the same
 * time. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "offload/engine/executor.h"
#include "offload/predict/simulate.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

enum { STEPS = 5, ATTEMPTS = 8 };

struct slow {
    const struct ot_schedule *schedule;
    double *seconds; /* [n_tasks]: seconds that each task sleeps */
};

static void sleep_for(void *seconds) {
    usleep((useconds_t)(*(const double *)seconds * 1e6));
}

/* On the cpu device a notification is a command of its lane and occupies the lane until it returns. */
static int run_task(void *context, const struct ot_task *task, int64_t step, struct ot_lane *lane) {
    const struct slow *slow = context;
    (void)step;
    double *seconds = &slow->seconds[task - slow->schedule->tasks];
    if (lane)
        ot_lane_notify(lane, sleep_for, seconds);
    else
        sleep_for(seconds);
    return 0;
}

static void start_task(void *context, const struct ot_task *task, int64_t step, ot_task_done_fn done,
                       void *arg) {
    run_task(context, task, step, NULL);
    done(arg, NULL);
}

static struct ot_trace_summary execute(const struct ot_chain *chain, const struct ot_schedule *schedule,
                                       struct slow *slow) {
    struct ot_device *device;
    struct ot_trace *trace;
    struct ot_executor *executor;
    struct ot_bound *bound;
    struct ot_trace_summary sum;
    tiny_open_device(1 << 20, 1, 0, &device);
    check_ok(ot_trace_open(chain, 1 << 20, &trace));
    check_ok(ot_executor_open(&(struct ot_executor_config){.device = device,
                                                           .chain = chain,
                                                           .run = run_task,
                                                           .start = start_task,
                                                           .context = slow,
                                                           .trace = trace},
                              &executor));
    check_ok(ot_executor_bind(executor, schedule, &bound));
    for (int step = 1; step <= STEPS; step++)
        check_ok(ot_executor_submit(executor, bound, step));
    check_ok(ot_executor_drain(executor));
    check_ok(ot_trace_summarise_between(trace, 2, STEPS - 1, &sum));
    ot_executor_unbind(executor, bound);
    ot_executor_close(executor);
    ot_trace_close(trace);
    ot_device_close(device);
    return sum;
}

/* The rates of a machine on which the larger tasks of the tiny model take some milliseconds. No resource is
 * shared. */
static const struct ot_rates rates = {.product_flops = 1e9,
                                      .attention = {[OT_HEAD_128] = {1e9, 1e9}},
                                      .device_bytes = 1e8,
                                      .h2d_bytes = 1e7,
                                      .d2h_bytes = 1e7,
                                      .adamw_bytes = {5e7},
                                      .nvme_read_bytes = 3e7,
                                      .nvme_write_bytes = 2e7};

/* Returns measured / predicted. Sleeps end late, on a busy machine by a lot. The average delay counts as the
 * time to start a task. */
static double run_plan(const struct ot_simulation *simulation, struct ot_costs *costs, struct slow *slow) {
    const struct ot_schedule *schedule = simulation->train;
    struct ot_prediction p;
    double late = 0;
    struct ot_trace_summary sum = execute(simulation->chain, schedule, slow);
    for (int l = 0; l < OT_LANE_COUNT; l++)
        late += sum.busy[l] / (double)sum.steps;
    for (int i = 0; i < schedule->n_tasks; i++)
        late -= slow->seconds[i];
    costs->rates.task_seconds = late > 0 ? late / schedule->n_tasks : 0;
    check_ok(ot_simulate(simulation, NULL, &p));
    return sum.seconds / (double)sum.steps / p.step_seconds;
}

static void check_plan(struct tiny_run *run, const char *what) {
    struct ot_model *model;
    struct ot_layout layout;
    struct ot_schedule schedule;
    struct ot_costs costs;
    tiny_open_model(run, &model);
    const struct ot_chain *chain = ot_model_chain(model);
    check_ok(ot_layout_make(chain, &run->plan, &layout));
    check_ok(ot_schedule_make_train(chain, &run->plan, &layout, &schedule));
    check_ok(ot_costs_estimate(chain, &rates, TINY_SEQUENCE, run->plan.micro_tokens, &costs));
    struct slow slow = {&schedule, malloc((size_t)schedule.n_tasks * sizeof(double))};
    assert_non_null(slow.seconds);
    for (int i = 0; i < schedule.n_tasks; i++)
        slow.seconds[i] = ot_costs_of_task(&costs, chain, &run->plan, &layout, &schedule.tasks[i]).seconds;
    struct ot_simulation simulation = {chain, &run->plan, &layout, &schedule, &costs};
    /* Other programs delay some attempts. A wrong simulator is wrong in all of them. */
    double best = INFINITY;
    for (int i = 0; i < ATTEMPTS && fabs(best - 1) > 0.08; i++) {
        double ratio = run_plan(&simulation, &costs, &slow);
        best = fabs(ratio - 1) < fabs(best - 1) ? ratio : best;
    }
    if (fabs(best - 1) > 0.2)
        fail_msg("%s: took %.2f times as long as predicted", what, best);
    free(slow.seconds);
    ot_costs_free(&costs);
    ot_schedule_free(&schedule);
    ot_layout_free(&layout);
    ot_model_close(model);
    ot_plan_free(&run->plan);
}

static bool trains_norms(const void *context, const struct ot_tensor *tensor) {
    (void)context;
    return strstr(tensor->name, "norm") != NULL;
}

static void the_executor_takes_as_long(void **state) {
    (void)state;
    static const struct {
        const char *name;
        enum ot_home weights, state, activations;
        unsigned engines;
        int slots;
        bool clip;
        enum ot_base_type base; /* under norms that are trained; AUTO: everything is trained */
    } plans[] = {
        {"resident", OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 1 << OT_TILE_GPU, 1, true, OT_BASE_AUTO},
        {"host", OT_HOME_HOST, OT_HOME_HOST, OT_HOME_HOST, 1 << OT_TILE_CPU, 2, true, OT_BASE_AUTO},
        {"one slot, no clipping", OT_HOME_HOST, OT_HOME_HOST, OT_HOME_GPU, 1 << OT_TILE_CPU, 1, false,
         OT_BASE_AUTO},
        {"streamed", OT_HOME_HOST, OT_HOME_HOST, OT_HOME_GPU, 1 << OT_TILE_STREAM, 3, true, OT_BASE_AUTO},
        {"all engines", OT_HOME_GPU, OT_HOME_HOST, OT_HOME_GPU, (1 << OT_TILE_ENGINES) - 1, 2, true,
         OT_BASE_AUTO},
        {"nvme", OT_HOME_NVME, OT_HOME_NVME, OT_HOME_NVME, 1 << OT_TILE_CPU, 2, true, OT_BASE_AUTO},
        {"nvme, streamed", OT_HOME_HOST, OT_HOME_NVME, OT_HOME_GPU, 1 << OT_TILE_STREAM, 2, false,
         OT_BASE_AUTO},
        {"a base in NF4", OT_HOME_HOST, OT_HOME_HOST, OT_HOME_GPU, 1 << OT_TILE_GPU, 2, true, OT_BASE_NF4}};
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        struct tiny_run run;
        tiny_defaults(&run, 3, false, OT_BF16);
        run.clip = plans[i].clip ? 1.0f : 0;
        run.base = plans[i].base;
        run.trains = run.base ? trains_norms : NULL;
        tiny_plan(&run, plans[i].weights, plans[i].state, plans[i].activations, plans[i].slots);
        if (plans[i].engines != 1 << OT_TILE_GPU)
            tiny_deal(&run, OT_SLAB_ALIGN_PARAMS, plans[i].engines, 0);
        check_plan(&run, plans[i].name);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_executor_takes_as_long)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
