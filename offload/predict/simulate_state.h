/* A simulation, shared by simulate_open.c, which prepares it, and simulate.c, which runs it. Private to
 * offload/predict. */
#ifndef OT_OFFLOAD_PREDICT_SIMULATE_STATE_H
#define OT_OFFLOAD_PREDICT_SIMULATE_STATE_H

#include "offload/predict/simulate.h"

/* STEPS steps are simulated. In the first, all data is at its home and all slots are empty. After WARM steps
 * the pipeline is full. A step's time is measured from the decisions of step WARM to those of step LAST. The
 * last step only serves for the steps before it to overlap with. */
enum { IN_FLIGHT = 2, STEPS = 5, WARM = 2, LAST = STEPS - 1 };

/* Resources that tasks of different lanes share. */
enum resource { LINK, DISKS, CORES, MEMORY, RESOURCES };

/* One of two steps in flight. */
struct instance {
    int64_t step;  /* 1 or more; 0: not used yet */
    int remaining; /* tasks to do; 0: another step may use this instance */
    int undecided; /* decisions left */
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
    double left, speed;   /* left: seconds of work at full speed; speed: 1 is full speed */
    const double *demand; /* the task's row of `demands` */
};

/* An edge from a task of the step before. */
struct crossing {
    int task, before;
};

/* The task data that a simulation reads often. It is small, so that caches hold it. */
struct sim_task {
    uint8_t lane, kind; /* enum ot_lane_id, enum ot_task_kind */
    int n_before;       /* edges from tasks of the same step */
    int rank;           /* host lanes: its place among the lane's tasks, by deadline, then as listed */
    int shadow;         /* the shadow of an update's tile; -1: none */
};

struct sim {
    const struct ot_simulation *config;
    const struct ot_schedule *schedule;
    struct sim_task *tasks;     /* [n_tasks] */
    struct ot_task_cost *costs; /* [n_tasks] */
    /* [n_tasks]: how much of each resource a task uses at full speed: bytes a second, or cores */
    double (*demands)[RESOURCES];
    int decision, n_decisions;  /* the last decision of a step, or -1; decisions of a step */
    int *first_dependent;       /* [n_tasks + 2] */
    struct ot_dep *dependents;  /* the waiting task, and whether it is in the next step */
    struct crossing *crossings; /* [n_crossings] */
    int n_crossings;
    int *by_rank[OT_LANE_COUNT]; /* host lanes: the tasks by rank */
    double capacity[RESOURCES];
    struct instance instances[IN_FLIGHT];
    struct lane lanes[OT_LANE_COUNT];
    int64_t started, completed, decided_steps;
    double now, decided[STEPS + 1]; /* decided: when a step's last decision ended */
    /* Seconds of the compute lane's tasks that have not ended and must end before the decision of LAST */
    double compute_left, compute_step; /* compute_step: of all tasks of a step */
    bool is_measured;                  /* the compute lane works on, after the decision of step LAST */
    struct ot_trace *own, *trace;      /* own: for the summary; trace: the caller's, or NULL */
    /* Several ranks in one time (simulate_ranks.h): true if the comm lane's next task, number `next` of the
     * lane, may begin. NULL: always. */
    bool (*may_begin)(const struct sim *sim, int64_t step, int next);
    const void *context;
};

/* The parts of a run, for several simulations in one time. Begin lets every lane take its next task, and sets
 * the speeds; to_end is the time until the next task ends (INFINITY: none runs); advance moves the time by
 * that, or by less. */
void ot_sim_begin(struct sim *sim);
double ot_sim_to_end(const struct sim *sim);
int ot_sim_advance(struct sim *sim, double wait);
/* Tells the trace of the steps under way, and makes the prediction. */
int ot_sim_predict(struct sim *sim, struct ot_prediction *out);
/* True if the comm lane has come to its task number `next` of the step, or has passed it. */
bool ot_sim_has_come(const struct sim *sim, int64_t step, int next);
/* True if it is clear by now that a step takes `limit` or longer: too little of the measured time is left for
 * the work of the compute lane, or the present step alone takes clearly longer, even one before WARM: queues
 * fill up, so later steps are hardly faster. */
bool ot_sim_is_hopeless(const struct sim *sim, double limit);
/* After a run: true if it came to its end, and a step takes less than `limit`. */
bool ot_sim_is_within(const struct sim *sim, double limit);

/* Prepares a simulation at time 0, in two parts: ot_sim_cost finds the costs of the tasks, which
 * ot_sim_least_step needs, and the schedule need not be linked; ot_sim_prepare needs the links. ot_sim_open
 * does both. Call ot_sim_close also if one fails. Errors: as ot_simulate. */
int ot_sim_cost(struct sim *sim, const struct ot_simulation *simulation);
int ot_sim_prepare(struct sim *sim, struct ot_trace *trace);
int ot_sim_open(struct sim *sim, const struct ot_simulation *simulation, struct ot_trace *trace);
void ot_sim_close(struct sim *sim);

/* The least time of a step, from the work of each lane and the use of each resource. */
double ot_sim_least_step(const struct sim *sim);

#endif
