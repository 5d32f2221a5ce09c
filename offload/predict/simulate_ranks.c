#include "offload/predict/simulate_ranks.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>

#include "offload/plan/stages.h"
#include "offload/predict/simulate_state.h"
#include "offload/schedule/stage_times.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

/* Times of two ranks that differ by less than this, in seconds, are equal. */
static const double ROUNDING = 1e-9;

/* A rank, and what it waits for. Tasks of the comm lane have their numbers in the lane. */
struct member {
    struct pipeline *of;
    struct ot_layout layout;
    struct ot_schedule schedule;
    struct ot_costs costs;           /* shares `blocks` */
    struct ot_simulation simulation; /* sim points to it */
    struct sim sim;
    bool has_layout, has_schedule, has_sim;
    double wait;  /* from the rank's time to the end of its next task */
    double until; /* when the transfer begins for which the rank waits; INFINITY: not known, or none */
    /* The tasks of the comm lane to which the rank has come, counted from step 0; and whether it waits for
     * another rank at the last of them. */
    int64_t at;
    bool is_waiting;
    bool is_delayed; /* it waits there only for data that is on its way */
    double *came;    /* [2][comm tasks]: when the rank came to the tasks of even and of odd steps */
    int *first_wait; /* [comm tasks + 1] */
    struct wait {
        int rank, next; /* the other rank's task */
        double delay;   /* seconds until the data arrives, beside the time of its bytes */
        bool is_send;
    } * waits;
};

struct pipeline {
    const struct ot_chain *chain;
    const struct ot_costs *costs;
    int ranks, replicas; /* of each replica; of the pipeline */
    struct member *members;
    struct ot_stage_times times;
};

static const struct ot_task *comm_task(const struct member *m, int next) {
    return &m->schedule.tasks[m->schedule.lane_tasks[OT_LANE_COMM][next]];
}

static int comm_count(const struct member *m) {
    return m->schedule.lane_count[OT_LANE_COMM];
}

/* True if all ranks of the pipeline wait for each other. An operation of holders waits for ranks of other
 * replicas, which do the same at the same time, and so for none here. */
static bool is_of_all(const struct ot_task *task) {
    return task->tick == INT_MAX;
}

/* Seconds from the moment when a rank sends to all until the others have it, beside the time of its bytes. */
static double delay_of_all(const struct pipeline *p) {
    double slower = p->costs->slower[OT_LANE_COMM];
    return p->costs->rates.comm_seconds * (slower > 0 ? slower : 1);
}

/* The number of the rank's task of a tick. Ticks of a lane rise. */
static int find_tick(const struct member *m, int tick) {
    int low = 0, high = comm_count(m) - 1;
    while (low < high) {
        int middle = (low + high) / 2;
        if (comm_task(m, middle)->tick < tick)
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
    m->came = calloc(2 * (size_t)n + 1, sizeof *m->came);
    if (!m->first_wait || !m->waits || !m->came)
        return ot_fail(OT_E_BUDGET, "no memory to simulate %d ranks", p->ranks);
    for (int i = 0; i < n; i++) {
        const struct ot_task *task = comm_task(m, i);
        int tick = task->tick;
        for (int k = 0; k < task->n_transfers; k++) {
            const struct ot_task_transfer *half = &m->schedule.transfers[task->first_transfer + k];
            const struct ot_shard *shard = &m->simulation.plan->shard;
            int peer = half->peer / p->replicas;
            double delay = half->sends ? 0 : ot_costs_transfer_rate(p->costs, shard, half->peer).seconds;
            m->waits[used++] = (struct wait){peer, find_tick(&p->members[peer], tick), delay, half->sends};
        }
        for (int r = 0; r < p->ranks && is_of_all(task); r++)
            if (r != m - p->members)
                m->waits[used++] = (struct wait){r, find_tick(&p->members[r], tick), delay_of_all(p), false};
        m->first_wait[i + 1] = used;
    }
    return 0;
}

/* When a task of the rank may begin, as far as others are concerned; INFINITY: one of them has not come. A
 * rank may send to one that is behind because earlier activations are still on their way: these do not fill a
 * link. */
static double may_begin_at(const struct member *m, int64_t step, int next) {
    double at = 0;
    for (int i = m->first_wait[next]; i < m->first_wait[next + 1]; i++) {
        const struct wait *wait = &m->waits[i];
        const struct member *other = &m->of->members[wait->rank];
        int n = comm_count(other);
        if (step * n + wait->next >= other->at && !(wait->is_send && other->is_delayed))
            return INFINITY;
        if (wait->delay > 0)
            at = ot_max(at, other->came[(step & 1) * n + wait->next] + wait->delay);
    }
    return at;
}

static bool may_begin(const struct sim *sim, int64_t step, int next) {
    return may_begin_at(sim->context, step, next) <= sim->now + ROUNDING;
}

/* When the transfer begins for which the rank waits. */
static double waits_until(const struct member *m) {
    const struct lane *comm = &m->sim.lanes[OT_LANE_COMM];
    return m->is_waiting ? may_begin_at(m, comm->step, comm->next) : INFINITY;
}

/* Makes a rank's schedule, and finds the costs of its tasks. */
static int open_member(struct pipeline *p, const struct ot_plan *plan, double slowness, struct member *m) {
    m->of = p;
    m->costs = ot_costs_slowed(p->costs, slowness);
    m->simulation = (struct ot_simulation){p->chain, plan, &m->layout, &m->schedule, &m->costs};
    OT_TRY(ot_layout_make(p->chain, plan, &m->layout));
    m->has_layout = true;
    OT_TRY(ot_schedule_make_draft(p->chain, plan, &m->layout, &p->times, &m->schedule));
    m->has_schedule = true;
    m->has_sim = true;
    OT_TRY(ot_sim_cost(&m->sim, &m->simulation));
    for (int i = 0; i < m->schedule.n_tasks; i++)
        if (m->schedule.tasks[i].lane == OT_LANE_COMM && is_of_all(&m->schedule.tasks[i]))
            m->sim.costs[i].seconds = fmax(m->sim.costs[i].seconds - delay_of_all(p), 0);
    return 0;
}

static int prepare_member(struct pipeline *p, struct member *m) {
    OT_TRY(list_waits(p, m));
    OT_TRY(ot_sim_prepare(&m->sim, NULL));
    m->sim.may_begin = may_begin;
    m->sim.context = m;
    return 0;
}

/* ---- one clock ---- */

/* The ranks share no resource, so what a rank does between its own events does not depend on the others. Only
 * its next transfer may wait for them. So a rank moves on its own, and is behind the clock in between. */

/* Lets a rank begin what it can at its time, and finds its next event. Returns true if it has come to another
 * task of the comm lane, for which other ranks may wait. */
static bool begin(struct member *m) {
    const struct lane *comm = &m->sim.lanes[OT_LANE_COMM];
    int64_t before = m->at;
    ot_sim_begin(&m->sim);
    m->wait = ot_sim_to_end(&m->sim);
    m->is_delayed = false;
    m->is_waiting = comm_count(m) > 0 && ot_sim_has_come(&m->sim, comm->step, comm->next);
    m->at = comm->step * comm_count(m) + comm->next + m->is_waiting;
    for (int64_t i = ot_max(before, m->at - 2 * comm_count(m)); i < m->at; i++)
        m->came[i % (2 * comm_count(m))] = m->sim.now;
    return m->at > before;
}

/* Lets the ranks whose transfers waited begin them, if they may by `now`. */
static int wake(struct pipeline *p, double now) {
    for (bool any = true; any;) {
        any = false;
        for (int r = 0; r < p->ranks; r++) {
            struct member *m = &p->members[r];
            double until = waits_until(m);
            if (until > now + ROUNDING) {
                any = any || (isfinite(until) && !m->is_delayed);
                m->is_delayed = isfinite(until);
                continue;
            }
            OT_TRY(ot_sim_advance(&m->sim, fmin(fmax(now - m->sim.now, 0), m->wait)));
            any = begin(m) || any;
        }
    }
    return 0;
}

/* The time of the rank's next event: a task ends, or what it receives arrives. */
static double next_event(const struct member *m) {
    return ot_min(m->sim.now + m->wait, ot_max(m->until, m->sim.now));
}

/* The rank with the next event; NULL: every rank has decided the last step. */
static struct member *find_next(struct pipeline *p) {
    struct member *next = NULL;
    double first = INFINITY;
    bool done = true;
    for (int r = 0; r < p->ranks; r++) {
        struct member *m = &p->members[r];
        double event = next_event(m);
        done = done && m->sim.decided_steps >= LAST;
        if (!next || event < first) {
            next = m;
            first = event;
        }
    }
    return done ? NULL : next;
}

static void note_waits(struct pipeline *p) {
    for (int r = 0; r < p->ranks; r++)
        p->members[r].until = waits_until(&p->members[r]);
}

/* Runs until every rank has decided the last step, or until it is clear that a step takes `limit`. */
static int run(struct pipeline *p, double limit) {
    struct member *m;
    for (int r = 0; r < p->ranks; r++)
        begin(&p->members[r]);
    OT_TRY(wake(p, 0));
    note_waits(p);
    while ((m = find_next(p)) && !ot_sim_is_hopeless(&m->sim, limit)) {
        bool was_delayed = m->is_delayed;
        OT_TRY(ot_sim_advance(&m->sim, ot_min(ot_max(m->until - m->sim.now, 0.0), m->wait)));
        bool has_come = begin(m);
        if (has_come)
            OT_TRY(wake(p, m->sim.now));
        if (has_come || was_delayed) /* what others may wait for has changed */
            note_waits(p);
        else
            m->until = waits_until(m);
    }
    return 0;
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
        free(m->came);
    }
    free(p->members);
    ot_stage_times_free(&p->times);
}

int ot_simulate_ranks(const struct ot_chain *chain, const struct ot_plan *plans, int ranks,
                      const struct ot_costs *costs, const double *slowness, double limit,
                      struct ot_prediction *out) {
    struct pipeline p = {.chain = chain,
                         .costs = costs,
                         .ranks = ranks,
                         .replicas = ot_shard_holders(&plans->shard),
                         .members = calloc((size_t)ranks, sizeof *p.members)};
    int rc = 0;
    if (!p.members)
        return ot_fail(OT_E_BUDGET, "no memory to simulate %d ranks", ranks);
    OT_TRY_GOTO(ot_stage_times_make(chain, plans, OT_PASS_TRAIN, &p.times), rc, out);
    for (int r = 0; r < ranks; r++) {
        OT_TRY_GOTO(open_member(&p, &plans[r], slowness ? slowness[r] : 1, &p.members[r]), rc, out);
        if (ot_sim_least_step(&p.members[r].sim) >= limit)
            goto out;
    }
    for (int r = 0; r < ranks; r++)
        OT_TRY_GOTO(ot_schedule_link(&p.members[r].schedule, &p.members[r].layout), rc, out);
    for (int r = 0; r < ranks; r++)
        OT_TRY_GOTO(prepare_member(&p, &p.members[r]), rc, out);
    OT_TRY_GOTO(run(&p, limit), rc, out);
    for (int r = 0; r < ranks; r++)
        if (!ot_sim_is_within(&p.members[r].sim, limit))
            goto out;
    for (int r = 0; r < ranks; r++)
        OT_TRY_GOTO(ot_sim_predict(&p.members[r].sim, &out[r]), rc, out);
    rc = 1;
out:
    close_pipeline(&p);
    return rc;
}
