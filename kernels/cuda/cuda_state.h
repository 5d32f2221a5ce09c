/* Inside the cuda device: what its files share. Nothing outside kernels/cuda includes it but their tests.
 *
 *   cuda_open.c    finds the GPU, or says in one sentence why there is none to use
 *   cuda_device.c  memory, and the device as device.h knows it
 *   cuda_lane.c    lanes, events and copies;  cuda_notify.c  what runs on the host after a lane's work
 *   cuda_guard.c   checks fast kernels at their first use
 *   cuda_health.c  what is wrong with the GPU though it works;  nvml.c  asks the driver's library
 *   cuda_clock.c   when an event was reached, on the host's clock
 *   cuda_ops.c     the ops: preconditions, then the launcher of kernels/cuda/launchers.h
 *
 * LANES are streams. Priorities are not used: CUDA's order kernels alone, all of which are on one lane. What
 * comes first among copies is the order of the lane, which is the schedule's; copies are cut into pieces of
 * 32 MiB, so that a small one on another lane waits for a piece at most (half a millisecond), not for a whole
 * slab.
 *
 * RUN-AHEAD. A lane takes at most OT_CUDA_RUN_AHEAD commands that the GPU has not finished; the thread that
 * enqueues one more sleeps until the GPU has caught up. The driver's own queue holds about a thousand
 * launches, and a thread that finds it full waits inside the driver, where it can hold up the threads of
 * other lanes.
 *
 * EVENTS between lanes are waited for by the GPU. Only events that host threads wait for are made with
 * cudaEventBlockingSync: a notification's, a lane's own. A host thread that waits for another one spins.
 *
 * NOTIFICATIONS do not use cudaLaunchHostFunc: a stream does nothing until such a function has returned, and
 * none is called any more once a kernel has failed, so that whoever waits for it would wait forever. Instead
 * each lane has a thread that waits for events and then calls: the lane never waits for the host, and every
 * call is made.
 *
 * ERRORS. A failure sticks to its lane; the first one stays. After a kernel has failed every call on every
 * lane fails with the same code, whichever lane did it. To tell which task it was, the lane of the ops writes
 * the number of its mark to host memory, in stream order, before the first op of each mark; the word is there
 * when nothing else is.
 */
#ifndef OT_KERNELS_CUDA_STATE_H
#define OT_KERNELS_CUDA_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "kernels/cuda/launchers.h"
#include "kernels/device.h"
#include "src/base/error.h"

struct ot_cuda_gemm;
struct ot_cuda_guard;
struct ot_cuda_notifier;

/* Commands are counted in rounds: a lane waits for the end of the round before the last two. An op is one
 * command and at most four launches, so the bound is below the driver's. */
enum { OT_CUDA_ROUND = 64, OT_CUDA_ROUNDS = 3, OT_CUDA_RUN_AHEAD = OT_CUDA_ROUND * (OT_CUDA_ROUNDS + 1) };

enum { OT_CUDA_MARK_BYTES = 64, OT_CUDA_MARKS = 1024 /* that a lane may have enqueued and not begun */ };

struct ot_cuda_allocation {
    struct ot_cuda_allocation *next;
    void *memory;
    size_t bytes;
};

/* What made a lane fail; kept until the device is closed, since events outlive lanes. */
struct ot_cuda_failure {
    struct ot_cuda_failure *next;
    struct ot_error error;
};

struct ot_cuda_lane {
    struct ot_lane base;
    char name[16];
    cudaStream_t stream;
    cudaEvent_t idle; /* for ot_lane_sync */
    cudaEvent_t rounds[OT_CUDA_ROUNDS];
    uint32_t commands; /* enqueued so far, for RUN-AHEAD */
    struct ot_cuda_notifier *notifier;
    _Atomic(const struct ot_error *) error; /* NULL: none yet */
    uint64_t delay_stream, delays;          /* test seam */
    bool in_range;                          /* a profiler's range is open */
    uint32_t mark;                          /* the newest one's number; counts from 1 */
    uint32_t announced;                     /* the newest one that the GPU will write down */
    char marks[OT_CUDA_MARKS][OT_CUDA_MARK_BYTES];
};

struct ot_cuda_event {
    struct ot_event base;
    cudaEvent_t event;
    _Atomic(const struct ot_error *) error; /* the recording lane's, when it recorded */
};

/* The GPU's time on the host's scale. CUDA tells the time between two events in milliseconds as a float, so
 * that only short times are exact: times are told from an anchor, an event whose host time is known, and the
 * anchor moves on every few seconds. */
struct ot_cuda_clock {
    cudaStream_t stream; /* nothing else is on it */
    cudaEvent_t anchor, next;
    double anchor_seconds;
};

struct ot_cuda_device {
    struct ot_device base;
    char name[224], arithmetic[192];
    int index;
    struct ot_placement placement;
    uint64_t delay_seed;
    struct ot_cuda_stream on; /* what launchers are told; its stream is the lane's */
    struct ot_cuda_gemm *gemm;
    struct ot_cuda_guard *guard;
    volatile uint32_t *begun; /* pinned: the mark that the lane of the ops is at */
    _Atomic int n_lanes, n_events;
    _Atomic uint64_t lane_numbers;
    _Atomic(struct ot_cuda_lane *) ops_lane; /* the one that ops were enqueued on; NULL: none yet */

    pthread_mutex_t mutex; /* guards what follows */
    struct ot_cuda_allocation *allocations;
    struct ot_device_usage usage;
    struct ot_cuda_failure *failures;
    struct ot_cuda_clock clock;
};

static inline struct ot_cuda_device *ot_cuda_device_of(const struct ot_device *device) {
    return (struct ot_cuda_device *)(uintptr_t)device;
}

/* ---- cuda_open.c ---- */

struct ot_cuda_gpu {
    int index, arch;
    char name[128]; /* "GPU 0 (NVIDIA H200, sm_90)" */
    int sm_count, shared_bytes;
    int driver; /* the CUDA version that the driver is for: 13000 */
    size_t free_bytes, total_bytes;
    bool has_display;
};

/* A GPU that is not hidden, or a driver too old to tell. */
bool ot_cuda_is_present(void);
bool ot_cuda_bus_id(int index, char text[OT_BUS_ID_BYTES]);
/* Finds GPU `index` and makes it the calling thread's; the first time, what a user should know of the GPU
 * goes to the log. Errors: OT_E_DEVICE, one sentence for each reason. */
int ot_cuda_find_gpu(int index, struct ot_cuda_gpu *out);
/* Whether code for these architectures ("80 86 90", and PTX of the newest) runs on `arch`. */
bool ot_cuda_runs_on(const char *archs, int arch);
/* Whether it does so only as PTX, which the driver translates. */
bool ot_cuda_needs_ptx(const char *archs, int arch);

/* ---- cuda_lane.c ---- */

/* The calling thread's CUDA calls are for this device from now on. */
void ot_cuda_enter(const struct ot_cuda_device *device);

int ot_cuda_lane_open(struct ot_device *device, const char *name, struct ot_lane **out);
void ot_cuda_lane_close(struct ot_lane *lane);
void ot_cuda_lane_mark(struct ot_lane *lane, const char *what);
void ot_cuda_lane_copy(struct ot_lane *lane, enum ot_copy_kind kind, void *dst, const void *src,
                       size_t bytes);
void ot_cuda_lane_fill(struct ot_lane *lane, void *device_dst, int byte, size_t bytes);
void ot_cuda_lane_notify(struct ot_lane *lane, void (*fn)(void *arg), void *arg);
int ot_cuda_lane_error(const struct ot_lane *lane);
int ot_cuda_lane_sync(struct ot_lane *lane);

int ot_cuda_event_create(struct ot_device *device, struct ot_event **out);
void ot_cuda_event_destroy(struct ot_event *event);
void ot_cuda_lane_record(struct ot_lane *lane, struct ot_event *event);
void ot_cuda_lane_wait(struct ot_lane *lane, struct ot_event *event);
int ot_cuda_event_sync(struct ot_event *event);
int ot_cuda_event_create_timed(struct ot_device *device, struct ot_event **out);

/* Whether more may be enqueued: false once the lane has failed. */
bool ot_cuda_lane_is_sound(const struct ot_cuda_lane *lane);
/* Keeps the failure of a call on this lane, if it is one. */
void ot_cuda_lane_check(struct ot_cuda_lane *lane, cudaError_t code);
/* The same of what has left its sentence in the calling thread's record. */
void ot_cuda_lane_fail(struct ot_cuda_lane *lane, int rc);
/* Before an op: claims the lane for ops, and lets the GPU write down the mark. False if the lane has
 * failed. */
bool ot_cuda_lane_begin_op(struct ot_cuda_lane *lane);

/* ---- cuda_notify.c ---- */

int ot_cuda_notifier_open(struct ot_cuda_lane *lane, struct ot_cuda_notifier **out);
/* Makes the calls that are still to be made, then ends; NULL is fine. */
void ot_cuda_notifier_close(struct ot_cuda_notifier *notifier);
void ot_cuda_notifier_drain(struct ot_cuda_notifier *notifier);
void ot_cuda_notifier_push(struct ot_cuda_notifier *notifier, void (*fn)(void *arg), void *arg);

/* ---- cuda_clock.c ---- */

int ot_cuda_clock_open(struct ot_cuda_clock *clock);
void ot_cuda_clock_close(struct ot_cuda_clock *clock);
int ot_cuda_event_seconds(struct ot_event *event, double *out);

/* ---- cuda_ops.c ---- */

extern const struct ot_ops ot_cuda_ops;

#endif
