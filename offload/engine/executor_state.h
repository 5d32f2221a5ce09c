/* Declarations that the two files of the executor share. executor_lanes.c has the lanes' threads and the
 * completion of tasks. executor.c opens the executor, starts steps and waits. Internal to offload/.
 */
#ifndef OT_OFFLOAD_ENGINE_EXECUTOR_STATE_H
#define OT_OFFLOAD_ENGINE_EXECUTOR_STATE_H

#include <pthread.h>

#include "offload/engine/executor.h"

enum { IN_FLIGHT = 2, DEVICE_LANES = OT_LANE_CPU };
/* The most tasks that an nvme lane has in the store. With two, the first blocks of the second task are queued
 * at the disk when the first task ends. With more, tasks would start before it is known which are urgent. */
enum { NVME_STARTED = 2 };

struct instance;

/* The task of a step that a thread waits for. NO_TASK: it waits until the step has no pins. Without an
 * instance: it waits for something else. */
struct awaited {
    const struct instance *instance;
    int task;
};
enum { NO_TASK = -1 };

/* The argument of a lane's notification and of the store's callback. */
struct notice {
    struct ot_executor *executor;
    struct instance *instance;
    int task;
};

/* One step in flight. */
struct instance {
    struct ot_bound *bound;
    int64_t step;
    int remaining; /* unfinished tasks of host lanes, plus unfinished device lanes */
    /* lanes that are about to wait for an event of this step: until then no event may be recorded again */
    int pins;
    struct instance *previous; /* the step before; NULL once it is complete */
    /* [n_tasks] issued: enqueued. done: known to be finished (host tasks, and tasks that notify) */
    bool *issued, *done;
    int *pending;               /* [n_tasks]: incomplete dependencies of host tasks */
    struct ot_event **events;   /* [n_tasks], NULL where not needed */
    struct notice *notices;     /* [n_tasks] */
    struct ot_stopwatch *watch; /* NULL: no trace */
    bool traced;                /* the step has run, and its times are not in the trace yet */
};

struct ot_bound {
    const struct ot_schedule *schedule;
    struct instance instances[IN_FLIGHT];
    int *first_dependent;      /* [n_tasks + 1]: index of each task's first dependent on a host lane */
    struct ot_dep *dependents; /* a task that waits, and whether it belongs to the next step */
};

struct ready {
    struct instance *instance;
    int64_t step; /* the instance's */
    int task, deadline;
};

struct lane_thread {
    struct ot_executor *executor;
    enum ot_lane_id id;
    struct ot_lane *lane; /* NULL: a host lane */
    pthread_t thread;
    pthread_cond_t wake;
    bool started, waiting;
    struct awaited awaits;    /* device lanes */
    int64_t runs;             /* device lanes: number of runs that this lane has finished */
    const struct ot_task *at; /* the present task, for the watchdog */
    uint64_t delays;
    /* host lanes only: */
    int n_ready;
    size_t ready_capacity;
    struct ready *ready; /* a heap: entry 0 is the next task, see executor_lanes.c */
    int n_under_way;     /* nvme lanes: tasks started and not complete, oldest first */
    struct ready under_way[NVME_STARTED];
};

struct ot_executor {
    struct ot_executor_config config;
    pthread_mutex_t mutex;
    pthread_cond_t driver;
    struct awaited driver_awaits;
    struct lane_thread lanes[OT_LANE_COUNT];
    int64_t submitted, completed;     /* runs: steps of any schedule */
    struct instance *runs[IN_FLIGHT]; /* [run number % IN_FLIGHT] */
    int64_t drained;                  /* runs of which a drain saw the lanes complete */
    uint64_t progress;                /* tasks that made progress, for the watchdog */
    bool stop, failed, stuck;
    struct ot_error error;
};

/* Adds a task whose dependencies are complete to its host lane. Call it with the mutex held. */
void ot_executor_push_ready(struct ot_executor *ex, struct instance *in, int task);

/* arg: the struct lane_thread. */
void *ot_executor_lane_main(void *arg);

#endif
