#include "offload/predict/simulate.h"

#include <math.h>
#include <string.h>

#include "offload/predict/simulate_state.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

/* ---- ready tasks ---- */

static void swap_ready(int64_t *a, int64_t *b) {
    int64_t kept = *a;
    *a = *b;
    *b = kept;
}

/* Tasks of older steps come first, then tasks of lower rank. */
static void push_ready(struct sim *sim, const struct instance *in, int task) {
    enum ot_lane_id l = sim->tasks[task].lane;
    struct lane *lane = &sim->lanes[l];
    int i = lane->n_ready++;
    lane->ready[i] = in->step * sim->schedule->lane_count[l] + sim->tasks[task].rank;
    for (; i > 0 && lane->ready[i] < lane->ready[(i - 1) / 2]; i = (i - 1) / 2)
        swap_ready(&lane->ready[i], &lane->ready[(i - 1) / 2]);
}

static int64_t pop_ready(struct lane *lane) {
    int64_t first = lane->ready[0];
    lane->ready[0] = lane->ready[--lane->n_ready];
    for (int i = 0;;) {
        int child = 2 * i + 1;
        child += child + 1 < lane->n_ready && lane->ready[child + 1] < lane->ready[child];
        if (child >= lane->n_ready || lane->ready[i] <= lane->ready[child])
            return first;
        swap_ready(&lane->ready[i], &lane->ready[child]);
        i = child;
    }
}

static struct instance *instance_of(struct sim *sim, int64_t step) {
    struct instance *in = &sim->instances[(uint64_t)step % IN_FLIGHT];
    return step > 0 && in->step == step ? in : NULL;
}

/* Starts the steps that may begin: at most IN_FLIGHT, each in the instance of a complete step. */
static void start_steps(struct sim *sim) {
    int n_tasks = sim->schedule->n_tasks;
    while (sim->started < STEPS && sim->started - sim->completed < IN_FLIGHT &&
           sim->instances[(sim->started + 1) % IN_FLIGHT].remaining == 0) {
        int64_t step = ++sim->started;
        struct instance *in = &sim->instances[step % IN_FLIGHT], *before = instance_of(sim, step - 1);
        in->step = step;
        in->remaining = n_tasks;
        in->undecided = sim->n_decisions;
        memset(in->done, 0, (size_t)n_tasks * sizeof *in->done);
        for (int i = 0; i < n_tasks; i++) {
            in->pending[i] = sim->tasks[i].n_before;
            in->spans[i] = (struct ot_task_span){INFINITY, INFINITY};
        }
        for (int i = 0; before && i < sim->n_crossings; i++)
            in->pending[sim->crossings[i].task] += !before->done[sim->crossings[i].before];
        for (int i = 0; i < n_tasks; i++)
            if (in->pending[i] == 0 && !ot_lane_is_device(sim->tasks[i].lane))
                push_ready(sim, in, i);
    }
}

/* Takes the lane's next task if it may run now. Returns -1 if there is none. */
static int take_task(struct sim *sim, enum ot_lane_id l, struct instance **in) {
    const struct ot_schedule *s = sim->schedule;
    struct lane *lane = &sim->lanes[l];
    if (s->lane_count[l] == 0)
        return -1;
    if (!ot_lane_is_device(l)) {
        if (lane->n_ready == 0)
            return -1;
        int64_t key = pop_ready(lane);
        *in = instance_of(sim, key / s->lane_count[l]);
        return sim->by_rank[l][key % s->lane_count[l]];
    }
    *in = instance_of(sim, lane->step);
    int task = s->lane_tasks[l][lane->next];
    if (!*in || (*in)->pending[task] > 0)
        return -1;
    if (l == OT_LANE_COMM && sim->may_begin && !sim->may_begin(sim, lane->step, lane->next))
        return -1;
    if (++lane->next == s->lane_count[l]) {
        lane->next = 0;
        lane->step++;
    }
    return task;
}

/* ---- shared resources ---- */

/* Finds the resource that the rising tasks use up first. Returns by how much their speeds can rise until
 * then. */
static double rise(struct lane *const rising[], int n, const double left[RESOURCES], double most,
                   enum resource *limit) {
    double total[RESOURCES] = {0};
    *limit = RESOURCES;
    for (int l = 0; l < n; l++)
        for (int i = 0; i < RESOURCES; i++) /* a vector */
            total[i] += rising[l]->demand[i];
    for (int i = 0; i < RESOURCES; i++)
        if (total[i] * most > left[i] * (1 + 1e-12)) { /* ignore rounding */
            most = left[i] / total[i];
            *limit = (enum resource)i;
        }
    return most;
}

/* Sets max-min fair speeds. All speeds rise together until a resource is used up. Tasks that use this
 * resource keep their speed; the others rise on, up to full speed. */
static void set_speeds(struct sim *sim) {
    struct lane *rising[OT_LANE_COUNT];
    double left[RESOURCES], level = 0;
    enum resource limit;
    int n = 0;
    memcpy(left, sim->capacity, sizeof left);
    for (int l = 0; l < OT_LANE_COUNT; l++)
        if (sim->lanes[l].is_busy)
            rising[n++] = &sim->lanes[l];
    do {
        double by = rise(rising, n, left, 1 - level, &limit);
        int still = 0;
        level += by;
        for (int l = 0; l < n; l++) {
            struct lane *lane = rising[l];
            lane->speed = level;
            for (int i = 0; i < RESOURCES && limit < RESOURCES; i++) {
                double rest = left[i] - by * lane->demand[i];
                left[i] = rest > 0 ? rest : 0;
            }
            if (limit < RESOURCES && lane->demand[limit] == 0)
                rising[still++] = lane;
        }
        n = still;
    } while (limit < RESOURCES);
}

/* ---- time ---- */

/* A shadow after the decision does nothing, and an update after a shadow before it has nothing left to do. */
static double seconds_of(const struct sim *sim, struct instance *in, int task) {
    int shadow = sim->tasks[task].shadow;
    bool idle = shadow >= 0 && in->ahead[shadow];
    if (sim->tasks[task].kind == OT_TASK_SHADOW) {
        in->ahead[task] = !in->done[sim->decision];
        idle = !in->ahead[task];
    }
    return idle ? sim->config->costs->rates.task_seconds : sim->costs[task].seconds;
}

static void start_tasks(struct sim *sim) {
    for (int l = 0; l < OT_LANE_COUNT; l++) {
        struct lane *lane = &sim->lanes[l];
        int task = lane->is_busy ? -1 : take_task(sim, (enum ot_lane_id)l, &lane->instance);
        if (task < 0)
            continue;
        lane->is_busy = true;
        lane->task = task;
        lane->left = seconds_of(sim, lane->instance, task);
        lane->instance->spans[task].begin = sim->now;
        lane->demand = sim->demands[task];
        sim->is_measured = sim->is_measured || (l == OT_LANE_COMPUTE && sim->decided_steps >= LAST);
    }
}

static int finish_step(struct sim *sim, struct instance *in) {
    sim->completed++;
    OT_TRY(ot_trace_add(sim->own, sim->schedule, in->step, in->spans));
    if (sim->trace)
        OT_TRY(ot_trace_add(sim->trace, sim->schedule, in->step, in->spans));
    start_steps(sim);
    return 0;
}

static int finish_task(struct sim *sim, struct lane *lane) {
    struct instance *in = lane->instance, *next = instance_of(sim, in->step + 1);
    int task = lane->task;
    lane->is_busy = false;
    in->done[task] = true;
    in->spans[task].end = sim->now;
    if (sim->tasks[task].lane == OT_LANE_COMPUTE)
        sim->compute_left -= sim->costs[task].seconds;
    if (sim->tasks[task].kind == OT_TASK_DECIDE && --in->undecided == 0) {
        sim->decided[in->step] = sim->now;
        sim->decided_steps = in->step;
    }
    for (int d = sim->first_dependent[task]; d < sim->first_dependent[task + 1]; d++) {
        const struct ot_dep *dep = &sim->dependents[d];
        struct instance *target = dep->previous_step ? next : in;
        if (target && --target->pending[dep->task] == 0 && !ot_lane_is_device(sim->tasks[dep->task].lane))
            push_ready(sim, target, dep->task);
    }
    return --in->remaining > 0 ? 0 : finish_step(sim, in);
}

double ot_sim_to_end(const struct sim *sim) {
    double wait = INFINITY;
    for (int l = 0; l < OT_LANE_COUNT; l++) {
        const struct lane *lane = &sim->lanes[l];
        if (lane->is_busy && lane->left < wait * lane->speed)
            wait = lane->left / lane->speed;
    }
    return wait;
}

int ot_sim_advance(struct sim *sim, double wait) {
    if (wait == INFINITY)
        return ot_fail(OT_E_INTERNAL, "schedule: nothing can run, with %d tasks of step %lld left",
                       sim->instances[sim->started % IN_FLIGHT].remaining, (long long)sim->started);
    sim->now += wait;
    for (int l = 0; l < OT_LANE_COUNT; l++) {
        struct lane *lane = &sim->lanes[l];
        if (!lane->is_busy)
            continue;
        double left = lane->left - wait * lane->speed;
        if (left <= 1e-12 * lane->left) /* tasks whose ends differ by rounding end together */
            OT_TRY(finish_task(sim, lane));
        else
            lane->left = left;
    }
    return 0;
}

/* ---- the prediction ---- */

/* No step before LAST takes longer than later ones by more than this share. In 2,000 simulated plans of real
 * machines and of tiny ones, the first step took up to 2.3 % longer than the measured steps, and the second
 * up to 3.6 %. */
static const double UNEVEN = 0.05;

static int predict(const struct sim *sim, struct ot_prediction *out) {
    const struct ot_simulation *c = sim->config;
    struct ot_trace_summary sum;
    int steps = LAST - WARM;
    OT_TRY(ot_trace_summarise_between(sim->own, WARM, LAST, &sum));
    *out = (struct ot_prediction){.step_seconds = sum.seconds / steps,
                                  .exposed_host = sum.exposed_host / steps,
                                  .model_flops = ot_costs_model_flops(c->costs, c->chain, c->plan),
                                  .tokens = (double)c->plan->micro_tokens * c->plan->max_micro};
    for (int l = 0; l < OT_LANE_COUNT; l++) {
        out->busy[l] = sum.busy[l] / steps;
        out->exposed[l] = sum.exposed[l] / steps;
    }
    for (int i = 0; i < sim->schedule->n_tasks; i++) {
        const struct ot_task *task = &sim->schedule->tasks[i];
        enum ot_lane_id lane = task->lane;
        bool sums = task->kind == OT_TASK_EXCHANGE || task->kind == OT_TASK_GRAD_GATHER;
        out->gathered += task->kind == OT_TASK_GATHER ? sim->costs[i].bytes : 0;
        out->exchanged += sums ? sim->costs[i].bytes : 0;
        out->flops += sim->costs[i].flops;
        /* If a tile has a shadow, its update has nothing left to do. */
        out->bytes[lane] += lane == OT_LANE_COMPUTE || sim->tasks[i].shadow >= 0 ? 0 : sim->costs[i].bytes;
    }
    return 0;
}

bool ot_sim_is_hopeless(const struct sim *sim, double limit) {
    const struct lane *compute = &sim->lanes[OT_LANE_COMPUTE];
    double begun = compute->is_busy ? sim->costs[compute->task].seconds - compute->left : 0;
    double left = sim->compute_left - begun;
    int64_t step = sim->decided_steps;
    if (step >= LAST)
        return false;
    double of_step = ot_max(left - (double)(LAST - 1 - step) * sim->compute_step, 0.0);
    if (sim->now + of_step - sim->decided[step] > limit * (1 + UNEVEN))
        return true;
    return step >= WARM && sim->now + left - sim->decided[WARM] > (LAST - WARM) * limit;
}

void ot_sim_begin(struct sim *sim) {
    if (sim->started == 0)
        start_steps(sim);
    start_tasks(sim);
    set_speeds(sim);
}

/* Tasks that have begun by now go to the summary. */
static int end(struct sim *sim) {
    for (int64_t step = sim->completed + 1; step <= sim->started; step++)
        OT_TRY(ot_trace_add(sim->own, sim->schedule, step, instance_of(sim, step)->spans));
    return 0;
}

int ot_sim_predict(struct sim *sim, struct ot_prediction *out) {
    OT_TRY(end(sim));
    return predict(sim, out);
}

bool ot_sim_has_come(const struct sim *sim, int64_t step, int next) {
    const struct lane *lane = &sim->lanes[OT_LANE_COMM];
    const struct instance *in = &sim->instances[step % IN_FLIGHT];
    if (lane->step != step || lane->next != next)
        return lane->step > step || (lane->step == step && lane->next > next);
    return !lane->is_busy && in->step == step &&
           in->pending[sim->schedule->lane_tasks[OT_LANE_COMM][next]] == 0;
}

/* Runs until the step's time is known, or is known to be at least `limit`. For the caller's trace, runs to
 * the end. Tasks that have begun by then go to the summary. */
static int run(struct sim *sim, double limit) {
    while (sim->completed < STEPS && (sim->trace || !sim->is_measured) && !ot_sim_is_hopeless(sim, limit)) {
        ot_sim_begin(sim);
        OT_TRY(ot_sim_advance(sim, ot_sim_to_end(sim)));
    }
    return end(sim);
}

int ot_simulate(const struct ot_simulation *simulation, struct ot_trace *trace, struct ot_prediction *out) {
    struct sim sim;
    int rc = 0;
    OT_TRY_GOTO(ot_sim_open(&sim, simulation, trace), rc, out);
    OT_TRY_GOTO(run(&sim, INFINITY), rc, out);
    rc = predict(&sim, out);
out:
    ot_sim_close(&sim);
    return rc;
}

bool ot_sim_is_within(const struct sim *sim, double limit) {
    bool gave_up = sim->decided_steps < LAST && sim->completed < STEPS;
    return !gave_up && sim->decided[LAST] - sim->decided[WARM] < (LAST - WARM) * limit;
}

/* As ot_simulate; but returns 0 without a prediction if a step takes `limit` or longer, else 1. Links the
 * draft, which is simulation->train, if it may take less: linking costs as much as running. */
static int simulate_within(const struct ot_simulation *simulation, struct ot_schedule *draft, double limit,
                           struct ot_prediction *out) {
    struct sim sim;
    int rc = 0;
    OT_TRY_GOTO(ot_sim_cost(&sim, simulation), rc, out);
    if (ot_sim_least_step(&sim) >= limit)
        goto out;
    OT_TRY_GOTO(ot_schedule_link(draft, simulation->layout), rc, out);
    OT_TRY_GOTO(ot_sim_prepare(&sim, NULL), rc, out);
    OT_TRY_GOTO(run(&sim, limit), rc, out);
    if (!ot_sim_is_within(&sim, limit))
        goto out;
    OT_TRY_GOTO(predict(&sim, out), rc, out);
    rc = 1;
out:
    ot_sim_close(&sim);
    return rc;
}

int ot_simulate_faster(const struct ot_chain *chain, const struct ot_plan *plan, const struct ot_costs *costs,
                       double limit, struct ot_prediction *out) {
    struct ot_layout layout;
    struct ot_schedule schedule;
    OT_TRY(ot_layout_make(chain, plan, &layout));
    int rc = ot_schedule_make_draft(chain, plan, &layout, NULL, &schedule);
    if (rc >= 0) {
        struct ot_simulation simulation = {chain, plan, &layout, &schedule, costs};
        rc = simulate_within(&simulation, &schedule, limit, out);
        ot_schedule_free(&schedule);
    }
    ot_layout_free(&layout);
    return rc;
}

int ot_simulate_plan(const struct ot_chain *chain, const struct ot_plan *plan, const struct ot_costs *costs,
                     struct ot_prediction *out) {
    int rc = ot_simulate_faster(chain, plan, costs, INFINITY, out);
    return rc < 0 ? rc : 0;
}

/* ---- measured ---- */

/* The first simulation finds the factors of lanes that work alone. The others correct the effects of lanes on
 * each other. Three bring each plan of the tests within 3 %, and most of them within 0.1 %. */
enum { SIMULATIONS = 3 };

static void correct(const struct ot_prediction *predicted, const double busy[OT_LANE_COUNT],
                    struct ot_costs *costs) {
    for (int l = 0; l < OT_LANE_COUNT; l++) {
        double before = costs->slower[l] > 0 ? costs->slower[l] : 1;
        if (busy[l] > 0 && predicted->busy[l] > 0)
            costs->slower[l] = before * busy[l] / predicted->busy[l];
    }
}

int ot_predict_measured(const struct ot_chain *chain, const struct ot_plan *plan,
                        const struct ot_prediction *first, const double busy[OT_LANE_COUNT],
                        struct ot_costs *costs, struct ot_prediction *out) {
    *out = *first;
    for (int i = 0; i < SIMULATIONS; i++) {
        correct(out, busy, costs);
        OT_TRY(ot_simulate_plan(chain, plan, costs, out));
    }
    return 0;
}
