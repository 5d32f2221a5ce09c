/* Prepares a simulation: the cost of each task, the edges, the order of the host's lanes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "offload/predict/simulate_state.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

static int no_memory(const struct ot_schedule *s) {
    return ot_fail(OT_E_BUDGET, "no memory to simulate a step of %d tasks", s->n_tasks);
}

/* True if both run one block in the same way. All micro-batches have one size, so the costs are equal; those
 * of a sequence's sections (plan/slabs.h) are not. */
static bool run_alike(const struct ot_task *a, const struct ot_task *b) {
    return a->keys == OT_NO_BUFFER && (a->kind == OT_TASK_FORWARD || a->kind == OT_TASK_BACKWARD) &&
           a->kind == b->kind && a->block == b->block && a->half == b->half && a->first == b->first &&
           a->saved_level == b->saved_level;
}

static int list_tasks(struct sim *sim) {
    const struct ot_simulation *c = sim->config;
    size_t n = (size_t)sim->schedule->n_tasks;
    int last[OT_TASK_KINDS] = {0}; /* the last task of each kind */
    sim->costs = malloc((n + 1) * sizeof *sim->costs);
    sim->tasks = malloc((n + 1) * sizeof *sim->tasks);
    if (!sim->costs || !sim->tasks)
        return no_memory(sim->schedule);
    for (int i = 0; i < sim->schedule->n_tasks; i++) {
        const struct ot_task *task = &sim->schedule->tasks[i];
        sim->tasks[i] =
            (struct sim_task){.lane = (uint8_t)task->lane, .kind = (uint8_t)task->kind, .shadow = -1};
        int before = last[task->kind];
        last[task->kind] = i;
        sim->costs[i] =
            i > 0 && run_alike(&sim->schedule->tasks[before], task) ? sim->costs[before]
            : task->kind == OT_TASK_TRANSFER
                ? ot_costs_of_transfer(c->costs, c->chain, c->plan, c->layout, sim->schedule, task)
                : ot_costs_of_task(c->costs, c->chain, c->plan, c->layout, task);
        if (!(sim->costs[i].seconds >= 0) || isinf(sim->costs[i].seconds))
            return ot_fail(OT_E_USAGE, "cannot predict a step: the time of task '%s' on lane %s is unknown",
                           ot_task_kind_name(task->kind), ot_lane_name(task->lane));
    }
    return 0;
}

/* Finds the decisions, and the shadow of each update: the task that fills its frame. */
static int find_shadows(struct sim *sim) {
    const struct ot_schedule *s = sim->schedule;
    int n_frames = sim->config->plan->shadow_frames;
    int *filled = malloc(((size_t)n_frames + 1) * sizeof *filled);
    if (!filled)
        return no_memory(s);
    for (int f = 0; f < n_frames; f++)
        filled[f] = -1;
    sim->decision = -1;
    for (int i = 0; i < s->n_tasks; i++) {
        struct sim_task *task = &sim->tasks[i];
        if (task->kind == OT_TASK_UPDATE_CPU && s->tasks[i].frame >= 0)
            task->shadow = filled[s->tasks[i].frame];
        if (task->kind == OT_TASK_SHADOW)
            filled[s->tasks[i].frame] = i;
        if (task->kind == OT_TASK_DECIDE) {
            sim->decision = i;
            sim->n_decisions++;
        }
    }
    free(filled);
    return 0;
}

/* Lists the edges: for each task the tasks that wait for it, and the edges from the step before. */
static int list_edges(struct sim *sim) {
    const struct ot_schedule *s = sim->schedule;
    size_t total = 0, crossing = 0;
    sim->first_dependent = calloc((size_t)s->n_tasks + 2, sizeof *sim->first_dependent);
    if (!sim->first_dependent)
        return no_memory(s);
    for (int i = 0; i < s->n_tasks; i++)
        for (int d = 0; d < s->tasks[i].n_deps; d++, total++) {
            sim->first_dependent[s->tasks[i].deps[d].task + 2]++;
            crossing += s->tasks[i].deps[d].previous_step;
        }
    for (int i = 0; i < s->n_tasks; i++)
        sim->first_dependent[i + 2] += sim->first_dependent[i + 1];
    sim->dependents = malloc((total + 1) * sizeof *sim->dependents);
    sim->crossings = malloc((crossing + 1) * sizeof *sim->crossings);
    if (!sim->dependents || !sim->crossings)
        return no_memory(s);
    for (int i = 0; i < s->n_tasks; i++)
        for (int d = 0; d < s->tasks[i].n_deps; d++) {
            const struct ot_dep *dep = &s->tasks[i].deps[d];
            sim->dependents[sim->first_dependent[dep->task + 1]++] =
                (struct ot_dep){i, dep->previous_step, dep->on_host};
            if (dep->previous_step)
                sim->crossings[sim->n_crossings++] = (struct crossing){i, dep->task};
            else
                sim->tasks[i].n_before++;
        }
    return 0;
}

/* Sorts a host lane's tasks in the order in which the executor takes ready tasks. Deadlines are -1 or the
 * number of a slab, and tasks with the same deadline stay in listed order. */
static int rank_tasks(struct sim *sim, int l) {
    const struct ot_schedule *s = sim->schedule;
    int n = s->lane_count[l], last = -1;
    for (int i = 0; i < n; i++)
        last = ot_max(last, s->tasks[s->lane_tasks[l][i]].deadline);
    int *first = calloc((size_t)last + 3, sizeof *first); /* the next rank of each deadline */
    sim->by_rank[l] = malloc(((size_t)n + 1) * sizeof *sim->by_rank[l]);
    sim->lanes[l].ready = malloc((IN_FLIGHT * (size_t)n + 1) * sizeof *sim->lanes[l].ready);
    if (!first || !sim->by_rank[l] || !sim->lanes[l].ready) {
        free(first);
        return no_memory(s);
    }
    for (int i = 0; i < n; i++)
        first[s->tasks[s->lane_tasks[l][i]].deadline + 2]++;
    for (int d = 0; d <= last; d++)
        first[d + 1] += first[d];
    for (int i = 0; i < n; i++) {
        int task = s->lane_tasks[l][i], rank = first[s->tasks[task].deadline + 1]++;
        sim->by_rank[l][rank] = task;
        sim->tasks[task].rank = rank;
    }
    free(first);
    return 0;
}

/* ---- resources ---- */

/* An unknown rate limits nothing. */
static double capacity_of(double rate, double least) {
    return rate > 0 ? ot_max(rate, least) : INFINITY;
}

static void set_capacities(struct sim *sim) {
    const struct ot_rates *r = &sim->config->costs->rates;
    double optimizer = r->adamw_bytes[sim->config->chain->state];
    sim->capacity[LINK] = capacity_of(r->both_bytes, ot_max(r->h2d_bytes, r->d2h_bytes));
    sim->capacity[DISKS] = capacity_of(r->nvme_mixed_bytes, ot_max(r->nvme_read_bytes, r->nvme_write_bytes));
    sim->capacity[CORES] = capacity_of(r->cores, 0);
    sim->capacity[MEMORY] = capacity_of(r->triad_bytes, optimizer);
}

static double threads_of(int threads, const struct ot_rates *rates) {
    return threads > 0 ? threads : rates->cores;
}

/* A transfer by a disk or the link moves each byte of host memory once; a copy on the cpu device reads and
 * writes it. Checksums read the disks' bytes once more. */
static void set_demand(const struct sim *sim, int task, double demand[RESOURCES]) {
    const struct ot_rates *r = &sim->config->costs->rates;
    const struct ot_task_cost *cost = &sim->costs[task];
    double rate = cost->seconds > 0 ? cost->bytes / cost->seconds : 0;
    bool on_host = r->device_is_host;
    memset(demand, 0, RESOURCES * sizeof *demand);
    switch (sim->tasks[task].lane) {
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
        demand[CORES] = sim->tasks[task].kind == OT_TASK_DECIDE ? 1 : threads_of(r->optimizer_threads, r);
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
        demand[i] = ot_min(demand[i], sim->capacity[i]);
}

static int list_demands(struct sim *sim) {
    sim->demands = malloc(((size_t)sim->schedule->n_tasks + 1) * sizeof *sim->demands);
    if (!sim->demands)
        return no_memory(sim->schedule);
    for (int i = 0; i < sim->schedule->n_tasks; i++)
        set_demand(sim, i, sim->demands[i]);
    return 0;
}

/* Counts a shadow and its update as one task, the cheaper one: only one of them does the work. */
double ot_sim_least_step(const struct sim *sim) {
    double lanes[OT_LANE_COUNT] = {0}, resources[RESOURCES] = {0}, least = 0;
    for (int i = 0; i < sim->schedule->n_tasks; i++) {
        int shadow = sim->tasks[i].shadow;
        int task = shadow >= 0 && sim->costs[shadow].seconds < sim->costs[i].seconds ? shadow : i;
        if (sim->tasks[i].kind == OT_TASK_SHADOW)
            continue;
        lanes[sim->tasks[task].lane] += sim->costs[task].seconds;
        for (int r = 0; r < RESOURCES; r++)
            resources[r] += sim->costs[task].seconds * sim->demands[task][r];
    }
    for (int l = 0; l < OT_LANE_COUNT; l++)
        least = ot_max(least, lanes[l]);
    for (int r = 0; r < RESOURCES; r++)
        least = ot_max(least, resources[r] / sim->capacity[r]);
    return least;
}

/* The last decision comes after the last gradient is finished, and the compute lane runs in order. */
static void count_compute(struct sim *sim) {
    const struct ot_schedule *s = sim->schedule;
    double all = 0, to_last_gradient = 0;
    for (int i = 0; i < s->lane_count[OT_LANE_COMPUTE]; i++) {
        int task = s->lane_tasks[OT_LANE_COMPUTE][i];
        all += sim->costs[task].seconds;
        if (sim->tasks[task].kind == OT_TASK_GRAD_FINISH)
            to_last_gradient = all;
    }
    sim->compute_step = all;
    sim->compute_left = to_last_gradient > 0 ? (LAST - 1) * all + to_last_gradient : 0;
}

/* ---- opening and closing ---- */

int ot_sim_cost(struct sim *sim, const struct ot_simulation *simulation) {
    *sim = (struct sim){.config = simulation, .schedule = simulation->train};
    OT_TRY(list_tasks(sim));
    OT_TRY(find_shadows(sim));
    set_capacities(sim);
    return list_demands(sim);
}

int ot_sim_prepare(struct sim *sim, struct ot_trace *trace) {
    const struct ot_schedule *s = sim->schedule;
    size_t n = (size_t)s->n_tasks;
    sim->trace = trace;
    OT_TRY(list_edges(sim));
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
    count_compute(sim);
    return ot_trace_open(sim->config->chain, INT64_MAX, &sim->own);
}

int ot_sim_open(struct sim *sim, const struct ot_simulation *simulation, struct ot_trace *trace) {
    OT_TRY(ot_sim_cost(sim, simulation));
    return ot_sim_prepare(sim, trace);
}

void ot_sim_close(struct sim *sim) {
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
    free(sim->tasks);
    free(sim->costs);
    free(sim->demands);
    free(sim->dependents);
    free(sim->first_dependent);
    free(sim->crossings);
    ot_trace_close(sim->own);
}
