/* What the executor's two files share: executor_lanes.c has the threads of the lanes and what completion sets
 * free, executor.c opens, starts steps and waits. Internal to offload/.
 */
#ifndef OT_OFFLOAD_ENGINE_EXECUTOR_STATE_H
#define OT_OFFLOAD_ENGINE_EXECUTOR_STATE_H

#include <pthread.h>

#include "offload/engine/executor.h"

enum { IN_FLIGHT = 2, DEVICE_LANES = OT_LANE_CPU };
/* Tasks that an nvme lane has started: the disk has the next one's first blocks queued when it comes to the
 * end of one; more would only be started before it is known what is urgent. */
enum { NVME_STARTED = 2 };

struct instance;

/* What a lane's notification, or the store's call, brings back. */
struct notice {
    struct ot_executor *executor;
    struct instance *instance;
    int task;
};

/* One step in flight. */
struct instance {
    struct ot_bound *bound;
    int64_t step;
    int remaining; /* tasks of host lanes, and device lanes, that are not finished */
    int pins;      /* lanes about to wait for one of the events: it must not be recorded anew before */
    struct instance *previous; /* the step before, while it is not complete */
    bool *issued, *done; /* [n_tasks]: enqueued; known to be finished (host tasks, and tasks that notify) */
    int *pending;        /* [n_tasks]: edges not yet satisfied, of host tasks */
    struct ot_event **events;   /* [n_tasks], NULL where not needed */
    struct notice *notices;     /* [n_tasks] */
    struct ot_stopwatch *watch; /* NULL without a trace */
    bool traced;                /* it has run, and the trace does not have it yet */
};

struct ot_bound {
    const struct ot_schedule *schedule;
    struct instance instances[IN_FLIGHT];
    int *first_dependent;      /* [n_tasks + 1]: where each task's dependents on host lanes begin */
    struct ot_dep *dependents; /* task, and whether it is the next step's */
};

struct ready {
    struct instance *instance;
    int task;
};

struct lane_thread {
    struct ot_executor *executor;
    enum ot_lane_id id;
    struct ot_lane *lane; /* NULL for the host's lanes */
    pthread_t thread;
    pthread_cond_t wake;
    bool started, waiting;
    int64_t runs;             /* device lanes: runs finished by this lane */
    const struct ot_task *at; /* for the watchdog */
    uint64_t delays;
    /* host lanes */
    int n_ready, ready_capacity;
    struct ready *ready;
    int n_under_way; /* nvme lanes: started and not complete, the oldest first */
    struct ready under_way[NVME_STARTED];
};

struct ot_executor {
    struct ot_executor_config config;
    pthread_mutex_t mutex;
    pthread_cond_t driver;
    struct lane_thread lanes[OT_LANE_COUNT];
    int64_t submitted, completed;     /* runs */
    struct instance *runs[IN_FLIGHT]; /* by run number */
    uint64_t progress;                /* tasks passed; for the watchdog */
    bool stop, failed, stuck;
    struct ot_error error;
};

/* Mutex held. Those who wait look again whether they still have to. */
void ot_executor_wake_lanes(struct ot_executor *ex);
/* A task of a host lane whose edges are satisfied. */
void ot_executor_push_ready(struct ot_executor *ex, struct instance *in, int task);

/* arg: the struct lane_thread. */
void *ot_executor_lane_main(void *arg);

#endif
