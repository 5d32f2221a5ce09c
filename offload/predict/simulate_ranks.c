#include "offload/predict/simulate_ranks.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>

#include "offload/plan/stages.h"
#include "offload/predict/simulate_state.h"
#include "src/base/error.h"

/* A rank, and what it waits for. Tasks of the comm lane have their numbers in the lane. */
struct member {
    struct pipeline *of;
    struct ot_layout layout;
    struct ot_schedule schedule;
    struct ot_simulation simulation; /* sim points to it */
    struct sim sim;
    bool has_layout, has_schedule, has_sim;
    int *first_wait; /* [comm tasks + 1] */
    struct wait {
        int rank, next; /* the other rank's task */
    } * waits;
};

struct pipeline {
    const struct ot_chain *chain;
    const struct ot_costs *costs;
    int ranks;
    struct member *members;
};

static const struct ot_task *comm_task(const struct member *m, int next) {
    return &m->schedule.tasks[m->schedule.lane_tasks[OT_LANE_COMM][next]];
}

static int comm_count(const struct member *m) {
    return m->schedule.lane_count[OT_LANE_COMM];
}

static int tick_of(const struct ot_task *task) {
    return task->kind == OT_TASK_TRANSFER ? task->tick : INT_MAX;
}

/* The number of the rank's task of a tick. Ticks of a lane rise. */
static int find_tick(const struct member *m, int tick) {
    int low = 0, high = comm_count(m) - 1;
    while (low < high) {
        int middle = (low + high) / 2;
        if (tick_of(comm_task(m, middle)) < tick)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Lists the tasks of other ranks for which each task of the comm lane waits. */
static int list_waits(struct pipeline *p, struct member *m) {
    int n = comm_count(m), used = 0;
    m->first_wait = calloc((size_t)n + 1, sizeof *m->first_wait);
    m->waits = calloc((size_t)(m->schedule.n_transfers + p->ranks), sizeof *m->waits);
    if (!m->first_wait || !m->waits)
        return ot_fail(OT_E_BUDGET, "no memory to simulate %d ranks", p->ranks);
    for (int i = 0; i < n; i++) {
        const struct ot_task *task = comm_task(m, i);
        int tick = tick_of(task);
        for (int k = 0; k < task->n_transfers; k++) {
            int peer = m->schedule.transfers[task->first_transfer + k].peer;
            m->waits[used++] = (struct wait){peer, find_tick(&p->members[peer], tick)};
        }
        for (int r = 0; r < p->ranks && task->n_transfers == 0; r++)
            if (r != m - p->members)
                m->waits[used++] = (struct wait){r, find_tick(&p->members[r], tick)};
        m->first_wait[i + 1] = used;
    }
    return 0;
}

static bool may_begin(const struct sim *sim, int64_t step, int next) {
    const struct member *m = sim->context;
    for (int i = m->first_wait[next]; i < m->first_wait[next + 1]; i++)
        if (!ot_sim_has_come(&m->of->members[m->waits[i].rank].sim, step, m->waits[i].next))
            return false;
    return true;
}

static int open_member(struct pipeline *p, const struct ot_plan *plan, struct member *m) {
    m->of = p;
    OT_TRY(ot_layout_make(p->chain, plan, &m->layout));
    m->has_layout = true;
    OT_TRY(ot_schedule_make_draft(p->chain, plan, &m->layout, &m->schedule));
    m->has_schedule = true;
    return ot_schedule_link(&m->schedule, &m->layout);
}

/* Runs until every rank has decided the last step. */
static int run(struct pipeline *p) {
    for (;;) {
        double wait = INFINITY;
        bool done = true;
        for (int r = 0; r < p->ranks; r++)
            ot_sim_begin(&p->members[r].sim);
        for (int r = 0; r < p->ranks; r++) {
            wait = fmin(wait, ot_sim_to_end(&p->members[r].sim));
            done = done && p->members[r].sim.decided_steps >= LAST;
        }
        if (done)
            return 0;
        for (int r = 0; r < p->ranks; r++)
            OT_TRY(ot_sim_advance(&p->members[r].sim, wait));
    }
}

static void close_pipeline(struct pipeline *p) {
    for (int r = 0; p->members && r < p->ranks; r++) {
        struct member *m = &p->members[r];
        if (m->has_sim)
            ot_sim_close(&m->sim);
        if (m->has_schedule)
            ot_schedule_free(&m->schedule);
        if (m->has_layout)
            ot_layout_free(&m->layout);
        free(m->first_wait);
        free(m->waits);
    }
    free(p->members);
}

int ot_simulate_ranks(const struct ot_chain *chain, const struct ot_plan *plans, int ranks,
                      const struct ot_costs *costs, struct ot_prediction *out) {
    struct pipeline p = {chain, costs, ranks, calloc((size_t)ranks, sizeof *p.members)};
    int rc = 0;
    if (!p.members)
        return ot_fail(OT_E_BUDGET, "no memory to simulate %d ranks", ranks);
    for (int r = 0; r < ranks; r++)
        OT_TRY_GOTO(open_member(&p, &plans[r], &p.members[r]), rc, out);
    for (int r = 0; r < ranks; r++) {
        struct member *m = &p.members[r];
        m->simulation = (struct ot_simulation){chain, &plans[r], &m->layout, &m->schedule, costs};
        OT_TRY_GOTO(list_waits(&p, m), rc, out);
        m->has_sim = true;
        OT_TRY_GOTO(ot_sim_open(&m->sim, &m->simulation, NULL), rc, out);
        m->sim.may_begin = may_begin;
        m->sim.context = m;
    }
    OT_TRY_GOTO(run(&p), rc, out);
    for (int r = 0; r < ranks; r++)
        OT_TRY_GOTO(ot_sim_predict(&p.members[r].sim, &out[r]), rc, out);
out:
    close_pipeline(&p);
    return rc;
}
