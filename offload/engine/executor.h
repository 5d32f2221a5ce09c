/* The executor runs schedules, step after step, on the lanes of a device, on the CPU pool and on the disks.
 *
 * Each device lane has a thread that walks over the lane's tasks in order. Before a task the thread handles
 * the task's dependencies. If the other task is on a device lane, the thread waits until that task is
 * enqueued, and makes its own lane wait for the event. If the other task is on a host lane (cpu or nvme), or
 * the dependency is host-side (schedule.h), the thread itself waits until the task is complete. Then it
 * enqueues the task's work. Otherwise the thread waits for the device only if the device is far behind,
 * because the device limits how much work a lane may hold.
 *
 * Each host lane has one thread. It takes the task with the earliest deadline among the tasks whose
 * dependencies are complete. The thread of the cpu lane does the work itself. The threads of the nvme lanes
 * hand a few tasks at a time to the store, which calls back. Every waiting thread is woken by the thread that
 * completes a task; no thread polls.
 *
 * THE WATCHDOG. If the driver waits and no task makes progress for stall_seconds, it logs the present task
 * of each lane. The driver looks once a second. After stall_limit_seconds the executor is STUCK for good:
 * every wait returns OT_E_STALL. A thread that hangs in a system call cannot be ended, so close frees
 * nothing, and all memory that tasks use must stay valid. The caller can only end the process.
 *
 * Two steps may be in flight. ot_executor_submit of a third one blocks until the oldest is complete. One
 * thread, the driver, calls all public functions except where noted.
 */
#ifndef OT_OFFLOAD_ENGINE_EXECUTOR_H
#define OT_OFFLOAD_ENGINE_EXECUTOR_H

#include "offload/predict/trace.h"
#include "offload/schedule/schedule.h"
#include "offload/topology/topology.h"
#include "src/base/error.h"

struct ot_executor;
struct ot_bound; /* a schedule, with its events and the state of two steps */

/* Does the work of a task. Tasks of device lanes: enqueues the work on `lane`. Tasks of the cpu lane: `lane`
 * is NULL, and the work is done on return. The driver gets the first error; the other tasks of the step still
 * run, so that nothing hangs. */
typedef int (*ot_task_fn)(void *context, const struct ot_task *task, int64_t step, struct ot_lane *lane);
/* Starts the work of an nvme lane's task and returns. When the work is complete it calls done(arg, error)
 * once, from any thread or before it returns. error: NULL if all went well. */
typedef void (*ot_task_done_fn)(void *arg, const struct ot_error *error);
typedef void (*ot_task_start_fn)(void *context, const struct ot_task *task, int64_t step,
                                 ot_task_done_fn done, void *arg);

enum { OT_STALL_LIMIT_SECONDS = 600 }; /* the default */

struct ot_executor_config {
    struct ot_device *device;
    const struct ot_chain *chain; /* for names */
    ot_task_fn run;
    ot_task_start_fn start; /* NULL: no schedule has tasks on an nvme lane */
    void *context;
    struct ot_trace *trace;             /* NULL: none */
    const struct ot_topology *topology; /* for binding the lanes' threads; NULL: do not bind */
    int optimizer_threads;              /* threads of the optimizer; the cpu lane's thread is the first */
    uint64_t delay_seed;        /* test seam: if not 0, a random delay of 0..200 us before each task */
    double stall_seconds;       /* without progress for this long, log each lane's wait; 0: 60 s */
    double stall_limit_seconds; /* after this long, stuck; 0: OT_STALL_LIMIT_SECONDS */
};

/* Starts a thread for each lane. Errors: OT_E_BUDGET, OT_E_IO (no thread), OT_E_DEVICE. */
int ot_executor_open(const struct ot_executor_config *config, struct ot_executor **out);
void ot_executor_close(struct ot_executor *executor); /* drains first; NULL is fine; frees nothing if stuck */

/* Prepares a schedule to be run. The schedule must outlive the binding. Errors: OT_E_BUDGET, OT_E_DEVICE. */
int ot_executor_bind(struct ot_executor *executor, const struct ot_schedule *schedule, struct ot_bound **out);
/* Frees a binding. The executor must be drained; NULL is fine. */
void ot_executor_unbind(struct ot_executor *executor, struct ot_bound *bound);

/* Starts a step. Consecutive steps of one schedule without a drain between them need consecutive numbers.
 * Drain before the first step of another schedule. */
int ot_executor_submit(struct ot_executor *executor, struct ot_bound *bound, int64_t step);
/* Blocks until the next step may be submitted: the step that uses the same parity buffers is complete. */
int ot_executor_wait_parity(struct ot_executor *executor);
/* Blocks until a cpu task of the newest or second newest step is done. Errors: any error of a lane so far,
 * before or after that task. */
int ot_executor_wait_task(struct ot_executor *executor, struct ot_bound *bound, int64_t step, int task);
int ot_executor_drain(struct ot_executor *executor);

/* Tells the watchdog of progress outside the lanes. A task that waits for such work is then not stuck. Any
 * thread. */
void ot_executor_note_progress(struct ot_executor *executor);
bool ot_executor_is_stuck(const struct ot_executor *executor);
/* True if every step before this one is complete, and this step is not complete and has begun no task of
 * `kind`, a kind of the cpu lane. */
bool ot_executor_stands_before(struct ot_executor *executor, const struct ot_bound *bound, int64_t step,
                               enum ot_task_kind kind);

#endif
