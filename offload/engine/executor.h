/* The executor: runs schedules step after step on the lanes of a device, on the CPU pool and on the disks.
 *
 * A thread per device lane walks that lane's tasks in order. Before a task it makes sure of its edges: one
 * from another device lane becomes an event wait (once the other task has been enqueued), one from the cpu
 * lane or an nvme lane is waited for here. Then it enqueues the task's work and goes on. It waits for the
 * device only where that is far behind (the device bounds how much a lane may hold). One more thread serves
 * each lane of the host: of the tasks whose edges are satisfied it takes the one with the earliest deadline.
 * The cpu lane's does the work itself; the nvme lanes' hand it to the store, a few tasks at a time, and are
 * called back. Who waits is always woken by whoever completes: nothing polls.
 *
 * The watchdog: where the driver waits and no task gets on for stall_seconds, it logs what each lane is at;
 * after stall_limit_seconds it gives up. The executor is then STUCK for good: every wait returns OT_E_STALL,
 * and since a thread inside a system call that does not return cannot be ended, close frees nothing. All
 * that the tasks use must stay; what is left to do is to end the process.
 *
 * Two steps may be in flight. submit() blocks for the older one when a third comes. All public functions are
 * for one driving thread.
 */
#ifndef OT_OFFLOAD_ENGINE_EXECUTOR_H
#define OT_OFFLOAD_ENGINE_EXECUTOR_H

#include "offload/predict/trace.h"
#include "offload/schedule/schedule.h"
#include "offload/topology/topology.h"
#include "src/base/error.h"

struct ot_executor;
struct ot_bound; /* a schedule with its events */

/* Does the task's work: enqueues on `lane`, or, for tasks of the cpu lane (lane NULL), does it at once. A
 * failure is kept and returned to the driver; the step's other tasks still run, so that nothing hangs. */
typedef int (*ot_task_fn)(void *context, const struct ot_task *task, int64_t step, struct ot_lane *lane);
/* Starts the work of an nvme lane's task and returns; calls done(arg, what went wrong or NULL) when it is
 * complete, from any thread, or from within. */
typedef void (*ot_task_done_fn)(void *arg, const struct ot_error *error);
typedef void (*ot_task_start_fn)(void *context, const struct ot_task *task, int64_t step,
                                 ot_task_done_fn done, void *arg);

enum { OT_STALL_LIMIT_SECONDS = 600 }; /* unless another is given */

struct ot_executor_config {
    struct ot_device *device;
    const struct ot_chain *chain; /* for names */
    ot_task_fn run;
    ot_task_start_fn start; /* NULL: no schedule has tasks on an nvme lane */
    void *context;
    struct ot_trace *trace;             /* NULL: none */
    const struct ot_topology *topology; /* where lanes' threads are bound; NULL: nowhere */
    int optimizer_threads;              /* the cpu lane's thread is the first of so many */
    uint64_t delay_seed;                /* not 0: a random delay of 0..200 us before each task */
    double stall_seconds; /* no progress for this long: one line per lane says what it waits for; 0: 60 s */
    double stall_limit_seconds; /* and for this long: stuck; 0: OT_STALL_LIMIT_SECONDS */
};

/* Starts a thread for each lane. Errors: OT_E_BUDGET, OT_E_IO (no thread), OT_E_DEVICE. */
int ot_executor_open(const struct ot_executor_config *config, struct ot_executor **out);
void ot_executor_close(struct ot_executor *executor); /* drains; NULL is fine, and so is a stuck one */

/* The schedule must outlive the binding. */
int ot_executor_bind(struct ot_executor *executor, const struct ot_schedule *schedule, struct ot_bound **out);
/* The executor is drained; NULL is fine. */
void ot_executor_unbind(struct ot_executor *executor, struct ot_bound *bound);

/* Starts the step. Steps of one schedule that follow each other without a drain must be numbered
 * consecutively; another schedule needs a drain before it. */
int ot_executor_submit(struct ot_executor *executor, struct ot_bound *bound, int64_t step);
/* Blocks until a further step may be submitted: the step whose parity buffers it will use is complete. */
int ot_executor_wait_parity(struct ot_executor *executor);
/* Blocks until one cpu task of the newest or second newest step is done. Errors: also what has gone wrong on
 * a lane so far, before or after that task. */
int ot_executor_wait_task(struct ot_executor *executor, struct ot_bound *bound, int64_t step, int task);
int ot_executor_drain(struct ot_executor *executor);

/* A task that waits for work beside the lanes' is not stuck: that work gets on. Any thread. */
void ot_executor_note_progress(struct ot_executor *executor);
bool ot_executor_is_stuck(const struct ot_executor *executor);
/* Whether every step before this one is complete, and of this one, which is not, no task of a kind that the
 * cpu lane runs has begun. */
bool ot_executor_stands_before(struct ot_executor *executor, const struct ot_bound *bound, int64_t step,
                               enum ot_task_kind kind);

#endif
