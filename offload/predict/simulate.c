#include "offload/predict/simulate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"

/* STEPS steps are simulated. In the first, all data is at its home and all slots are empty. After WARM steps
 * the pipeline is full. The last step only serves for the steps before it to overlap with. */
enum { IN_FLIGHT = 2, STEPS = 5, WARM = 2, LAST = STEPS - 1 };

/* Resources that tasks of different lanes share. */
enum resource { LINK, DISKS, CORES, MEMORY, RESOURCES };

/* One of two steps in flight. */
struct instance {
    int64_t step;  /* 1 or more; 0: not used yet */
    int remaining; /* tasks left; 0: another step may use this instance */
    bool *done;
    bool *ahead;                /* shadows that were made before the decision */
    int *pending;               /* edges not yet satisfied */
    struct ot_task_span *spans; /* done, ahead, pending and spans: [n_tasks] each */
};

struct lane {
    int64_t step; /* device lanes: the step of the next task, */
    int next;     /* and its index in the lane's list */
    int n_ready;  /* other lanes: `ready` is a heap, smallest first */
    int64_t *ready;
    bool is_busy; /* the task that runs: */
    struct instance *instance;
    int task;
    double left, speed; /* left: seconds of work at full speed; speed: 1 is full speed */
    double demand[RESOURCES];
};

struct sim {
    const struct ot_simulation *config;
    const struct ot_schedule *schedule;
    struct ot_task_cost *costs;  /* [n_tasks] */
    int *shadow_of;              /* [n_tasks]: the shadow of an update's tile; -1: none */
    int decision;                /* the last one of a step; -1: none */
    int *first_dependent;        /* [n_tasks + 2] */
    struct ot_dep *dependents;   /* the waiting task, and whether it is in the next step */
    int *rank;                   /* [n_tasks]: a task's place among its lane's, by deadline, */
    int *by_rank[OT_LANE_COUNT]; /* then as listed; by_rank: the tasks in that order */
    double capacity[RESOURCES];
    struct instance instances[IN_FLIGHT];
    struct lane lanes[OT_LANE_COUNT];
    int64_t started, completed;
    double now;
    struct ot_trace *own, *trace; /* own: for the summary; trace: the caller's, or NULL */
};

/* ---- opening ---- */

static int no_memory(const struct ot_schedule *s) {
    return ot_fail(OT_E_BUDGET, "no memory to simulate a step of %d tasks", s->n_tasks);
}

static int cost_tasks(struct sim *sim) {
    const struct ot_simulation *c = sim->config;
    sim->costs = malloc((size_t)sim->schedule->n_tasks * sizeof *sim->costs);
    if (!sim->costs)
        return no_memory(sim->schedule);
    for (int i = 0; i < sim->schedule->n_tasks; i++) {
        const struct ot_task *task = &sim->schedule->tasks[i];
        sim->costs[i] = ot_costs_of_task(c->costs, c->chain, c->plan, c->layout, task);
        if (!(sim->costs[i].seconds >= 0) || isinf(sim->costs[i].seconds))
            return ot_fail(OT_E_USAGE, "cannot predict a step: the time of task '%s' on lane %s is unknown",
                           ot_task_kind_name(task->kind), ot_lane_name(task->lane));
    }
    return 0;
}

/* Finds the shadow of each update: the task that fills its frame. */
static int find_shadows(struct sim *sim) {
    const struct ot_schedule *s = sim->schedule;
    int n_buffers = sim->config->layout->n_buffers;
    int *filled = malloc(((size_t)n_buffers + 1) * sizeof *filled);
    sim->shadow_of = malloc(((size_t)s->n_tasks + 1) * sizeof *sim->shadow_of);
    if (!filled || !sim->shadow_of) {
        free(filled);
        return no_memory(s);
    }
    for (int b = 0; b < n_buffers; b++)
        filled[b] = -1;
    sim->decision = -1;
    for (int i = 0; i < s->n_tasks; i++) {
        const struct ot_task *task = &s->tasks[i];
        bool updates = task->kind == OT_TASK_UPDATE_CPU && task->stage != OT_NO_BUFFER;
        sim->shadow_of[i] = updates ? filled[task->stage] : -1;
        if (task->kind == OT_TASK_SHADOW)
            filled[task->stage] = i;
        if (task->kind == OT_TASK_DECIDE)
            sim->decision = i;
    }
    free(filled);
    return 0;
}

/* For each task, lists the tasks that wait for it. */
static int list_dependents(struct sim *sim) {
    const struct ot_schedule *s = sim->schedule;
    size_t total = 0;
    sim->first_dependent = calloc((size_t)s->n_tasks + 2, sizeof *sim->first_dependent);
    if (!sim->first_dependent)
        return no_memory(s);
    for (int i = 0; i < s->n_tasks; i++)
        for (int d = 0; d < s->tasks[i].n_deps; d++, total++)
            sim->first_dependent[s->tasks[i].deps[d].task + 2]++;
    for (int i = 0; i < s->n_tasks; i++)
        sim->first_dependent[i + 2] += sim->first_dependent[i + 1];
    sim->dependents = malloc((total + 1) * sizeof *sim->dependents);
    if (!sim->dependents)
        return no_memory(s);
    for (int i = 0; i < s->n_tasks; i++)
        for (int d = 0; d < s->tasks[i].n_deps; d++) {
            const struct ot_dep *dep = &s->tasks[i].deps[d];
            sim->dependents[sim->first_dependent[dep->task + 1]++] = (struct ot_dep){i, dep->previous_step};
        }
    return 0;
}

struct due {
    int deadline, task;
};

static int by_deadline(const void *a, const void *b) {
    const struct due *x = a, *y = b;
    if (x->deadline != y->deadline)
        return x->deadline < y->deadline ? -1 : 1;
    return (x->task > y->task) - (x->task < y->task);
}

/* Sorts a host lane's tasks in the order in which the executor takes ready tasks. */
static int rank_tasks(struct sim *sim, int l) {
    const struct ot_schedule *s = sim->schedule;
    size_t n = (size_t)s->lane_count[l];
    struct due *due = malloc((n + 1) * sizeof *due);
    sim->by_rank[l] = malloc((n + 1) * sizeof *sim->by_rank[l]);
    sim->lanes[l].ready = malloc((IN_FLIGHT * n + 1) * sizeof *sim->lanes[l].ready);
    if (!due || !sim->by_rank[l] || !sim->lanes[l].ready) {
        free(due);
        return no_memory(s);
    }
    for (size_t i = 0; i < n; i++)
        due[i] = (struct due){s->tasks[s->lane_tasks[l][i]].deadline, s->lane_tasks[l][i]};
    if (n > 1)
        qsort(due, n, sizeof *due, by_deadline);
    for (size_t i = 0; i < n; i++) {
        sim->by_rank[l][i] = due[i].task;
        sim->rank[due[i].task] = (int)i;
    }
    free(due);
    return 0;
}

static double greater(double a, double b) {
    return a > b ? a : b;
}

/* An unknown rate limits nothing. */
static double capacity_of(double rate, double least) {
    return rate > 0 ? greater(rate, least) : INFINITY;
}

static void set_capacities(struct sim *sim) {
    const struct ot_rates *r = &sim->config->costs->rates;
    double optimizer = r->adamw_bytes[sim->config->chain->state];
    sim->capacity[LINK] = capacity_of(r->both_bytes, greater(r->h2d_bytes, r->d2h_bytes));
    sim->capacity[DISKS] = capacity_of(r->nvme_mixed_bytes, greater(r->nvme_read_bytes, r->nvme_write_bytes));
    sim->capacity[CORES] = capacity_of(r->cores, 0);
    sim->capacity[MEMORY] = capacity_of(r->triad_bytes, optimizer);
}

static int open_sim(struct sim *sim) {
    const struct ot_schedule *s = sim->schedule;
    size_t n = (size_t)s->n_tasks;
    OT_TRY(cost_tasks(sim));
    OT_TRY(find_shadows(sim));
    OT_TRY(list_dependents(sim));
    sim->rank = malloc((n + 1) * sizeof *sim->rank);
    if (!sim->rank)
        return no_memory(s);
    for (int l = OT_LANE_CPU; l < OT_LANE_COUNT; l++)
        OT_TRY(rank_tasks(sim, l));
    for (int i = 0; i < IN_FLIGHT; i++) {
        struct instance *in = &sim->instances[i];
        in->done = calloc(n + 1, sizeof *in->done);
        in->ahead = calloc(n + 1, sizeof *in->ahead);
        in->pending = malloc((n + 1) * sizeof *in->pending);
        in->spans = malloc((n + 1) * sizeof *in->spans);
        if (!in->done || !in->ahead || !in->pending || !in->spans)
            return no_memory(s);
    }
    for (int l = 0; l < OT_LANE_COUNT; l++)
        sim->lanes[l].step = 1;
    set_capacities(sim);
    return ot_trace_open(sim->config->chain, INT64_MAX, &sim->own);
}

static void close_sim(struct sim *sim) {
    for (int i = 0; i < IN_FLIGHT; i++) {
        free(sim->instances[i].done);
        free(sim->instances[i].ahead);
        free(sim->instances[i].pending);
        free(sim->instances[i].spans);
    }
    for (int l = 0; l < OT_LANE_COUNT; l++) {
        free(sim->by_rank[l]);
        free(sim->lanes[l].ready);
    }
    free(sim->rank);
    free(sim->dependents);
    free(sim->first_dependent);
    free(sim->costs);
    free(sim->shadow_of);
    ot_trace_close(sim->own);
}

/* ---- what is ready ---- */

static void swap_ready(int64_t *a, int64_t *b) {
    int64_t kept = *a;
    *a = *b;
    *b = kept;
}

/* Tasks of older steps come first, then tasks of lower rank. */
static void push_ready(struct sim *sim, const struct instance *in, int task) {
    enum ot_lane_id l = sim->schedule->tasks[task].lane;
    struct lane *lane = &sim->lanes[l];
    int i = lane->n_ready++;
    lane->ready[i] = in->step * sim->schedule->lane_count[l] + sim->rank[task];
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
    struct instance *in = &sim->instances[step % IN_FLIGHT];
    return step > 0 && in->step == step ? in : NULL;
}

/* Starts the steps that may begin: at most IN_FLIGHT, each in the instance of a complete step. */
static void start_steps(struct sim *sim) {
    const struct ot_schedule *s = sim->schedule;
    while (sim->started < STEPS && sim->started - sim->completed < IN_FLIGHT &&
           sim->instances[(sim->started + 1) % IN_FLIGHT].remaining == 0) {
        int64_t step = ++sim->started;
        struct instance *in = &sim->instances[step % IN_FLIGHT], *before = instance_of(sim, step - 1);
        in->step = step;
        in->remaining = s->n_tasks;
        memset(in->done, 0, (size_t)s->n_tasks * sizeof *in->done);
        for (int i = 0; i < s->n_tasks; i++) {
            const struct ot_task *task = &s->tasks[i];
            in->pending[i] = 0;
            for (int d = 0; d < task->n_deps; d++)
                in->pending[i] +=
                    !task->deps[d].previous_step || (before && !before->done[task->deps[d].task]);
            if (in->pending[i] == 0 && !ot_lane_is_device(task->lane))
                push_ready(sim, in, i);
        }
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
    if (++lane->next == s->lane_count[l]) {
        lane->next = 0;
        lane->step++;
    }
    return task;
}

/* ---- what is shared ---- */

static double threads_of(int threads, const struct ot_rates *rates) {
    return threads > 0 ? threads : rates->cores;
}

/* Sets how much of each resource the task uses at full speed: bytes a second, or cores. A transfer by a disk
 * or the link moves each byte of host memory once; a copy on the cpu device reads and writes it. Checksums
 * read the disks' bytes once more. */
static void set_demand(const struct sim *sim, struct lane *lane, const struct ot_task *task) {
    const struct ot_rates *r = &sim->config->costs->rates;
    const struct ot_task_cost *cost = &sim->costs[lane->task];
    double rate = cost->seconds > 0 ? cost->bytes / cost->seconds : 0;
    bool on_host = r->device_is_host;
    double *demand = lane->demand;
    memset(lane->demand, 0, sizeof lane->demand);
    switch (task->lane) {
    case OT_LANE_H2D:
    case OT_LANE_D2H:
        demand[LINK] = rate;
        demand[CORES] = on_host ? 1 : 0;
        demand[MEMORY] = on_host ? 2 * rate : rate;
        break;
    case OT_LANE_COMPUTE:
        demand[CORES] = on_host ? threads_of(r->device_threads, r) : 0;
        demand[MEMORY] = on_host ? rate : 0;
        break;
    case OT_LANE_COMM:
        demand[LINK] = r->comm_link * rate;
        demand[CORES] = on_host ? 1 : 0;
        demand[MEMORY] = r->comm_memory * rate;
        break;
    case OT_LANE_CPU:
        demand[CORES] = task->kind == OT_TASK_DECIDE ? 1 : threads_of(r->optimizer_threads, r);
        demand[MEMORY] = rate;
        break;
    default:
        demand[DISKS] = rate;
        demand[CORES] = r->crc_bytes > 0 ? rate / r->crc_bytes : 0;
        demand[MEMORY] = r->crc_bytes > 0 ? 2 * rate : rate;
        break;
    }
    /* A task that runs alone has full speed, even if the rates contradict each other. */
    for (int i = 0; i < RESOURCES; i++)
        demand[i] = demand[i] < sim->capacity[i] ? demand[i] : sim->capacity[i];
}

/* Finds the resource that the rising tasks use up first. Returns by how much their speeds can rise until
 * then. */
static double rise(const struct sim *sim, const bool rising[OT_LANE_COUNT], const double left[RESOURCES],
                   double most, enum resource *limit) {
    *limit = RESOURCES;
    for (int i = 0; i < RESOURCES; i++) {
        double total = 0;
        for (int l = 0; l < OT_LANE_COUNT; l++)
            total += rising[l] ? sim->lanes[l].demand[i] : 0;
        if (total * most > left[i] * (1 + 1e-12)) { /* ignore rounding */
            most = left[i] / total;
            *limit = (enum resource)i;
        }
    }
    return most;
}

/* Sets max-min fair speeds. All speeds rise together until a resource is used up. Tasks that use this
 * resource keep their speed; the others rise on, up to full speed. */
static void set_speeds(struct sim *sim) {
    bool rising[OT_LANE_COUNT];
    double left[RESOURCES], level = 0;
    enum resource limit;
    memcpy(left, sim->capacity, sizeof left);
    for (int l = 0; l < OT_LANE_COUNT; l++) {
        rising[l] = sim->lanes[l].is_busy;
        sim->lanes[l].speed = 0;
    }
    do {
        double by = rise(sim, rising, left, 1 - level, &limit);
        level += by;
        for (int l = 0; l < OT_LANE_COUNT; l++) {
            struct lane *lane = &sim->lanes[l];
            if (!rising[l])
                continue;
            lane->speed = level;
            for (int i = 0; i < RESOURCES; i++)
                left[i] = greater(left[i] - by * lane->demand[i], 0);
            rising[l] = limit < RESOURCES && lane->demand[limit] == 0;
        }
    } while (limit < RESOURCES);
}

/* ---- time ---- */

/* A shadow after the decision does nothing, and an update after a shadow before it has nothing left to do. */
static double seconds_of(const struct sim *sim, struct instance *in, int task) {
    int shadow = sim->shadow_of[task];
    bool idle = shadow >= 0 && in->ahead[shadow];
    if (sim->schedule->tasks[task].kind == OT_TASK_SHADOW) {
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
        set_demand(sim, lane, &sim->schedule->tasks[task]);
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
    for (int d = sim->first_dependent[task]; d < sim->first_dependent[task + 1]; d++) {
        const struct ot_dep *dep = &sim->dependents[d];
        struct instance *target = dep->previous_step ? next : in;
        if (target && --target->pending[dep->task] == 0 &&
            !ot_lane_is_device(sim->schedule->tasks[dep->task].lane))
            push_ready(sim, target, dep->task);
    }
    return --in->remaining > 0 ? 0 : finish_step(sim, in);
}

/* Moves the time to the next end of a task. */
static int advance(struct sim *sim) {
    double wait = INFINITY;
    for (int l = 0; l < OT_LANE_COUNT; l++) {
        const struct lane *lane = &sim->lanes[l];
        if (lane->is_busy && lane->left < wait * lane->speed)
            wait = lane->left / lane->speed;
    }
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
        out->bytes[lane] += lane == OT_LANE_COMPUTE || sim->shadow_of[i] >= 0 ? 0 : sim->costs[i].bytes;
    }
    return 0;
}

int ot_simulate(const struct ot_simulation *simulation, struct ot_trace *trace, struct ot_prediction *out) {
    struct sim sim = {.config = simulation, .schedule = simulation->train, .trace = trace};
    int rc = 0;
    OT_TRY_GOTO(open_sim(&sim), rc, out);
    start_steps(&sim);
    while (sim.completed < STEPS) {
        start_tasks(&sim);
        set_speeds(&sim);
        OT_TRY_GOTO(advance(&sim), rc, out);
    }
    rc = predict(&sim, out);
out:
    close_sim(&sim);
    return rc;
}

int ot_simulate_plan(const struct ot_chain *chain, const struct ot_plan *plan, const struct ot_costs *costs,
                     struct ot_prediction *out) {
    struct ot_layout layout;
    struct ot_schedule schedule;
    OT_TRY(ot_layout_make(chain, plan, &layout));
    int rc = ot_schedule_make_draft(chain, plan, &layout, &schedule);
    if (rc >= 0) {
        rc = ot_simulate(&(struct ot_simulation){chain, plan, &layout, &schedule, costs}, NULL, out);
        ot_schedule_free(&schedule);
    }
    ot_layout_free(&layout);
    return rc;
}
