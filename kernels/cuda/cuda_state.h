/* Declarations that the files of the cuda device share. Outside kernels/cuda only its tests include this
 * header.
 *
 *   cuda_open.c    finds the GPU, or reports in one sentence why it cannot be used
 *   cuda_device.c  memory, and the table of functions for device.h
 *   cuda_lane.c    lanes, events, copies, and calls on the host after a lane's work
 *   cuda_guard.c   checks fast kernels at their first use: by cuda_guard_checks.c, cuda_guard_attention.c;
 *                  cuda_guard_verdicts.c keeps the results
 *   cuda_health.c  warnings about a GPU that works but may spoil a run; asks the driver's library (NVML)
 *   cuda_ops.c     the ops: checks preconditions, then calls the launchers of kernels/cuda/launchers.h
 *
 * LANES are streams. They have no priorities, because CUDA's priorities order kernels only, and all kernels
 * are on one lane. Copies run in the order of their lane, which the schedule decides. Copies between host and
 * device are cut at host addresses that are multiples of 32 MiB. So a small copy on another lane waits for
 * one piece at most (half a millisecond), not for a whole slab; and no copy goes across two pieces of pinned
 * memory (cuda_device.c).
 *
 * RUN-AHEAD. A lane holds at most OT_CUDA_RUN_AHEAD commands that the GPU has not finished. A thread that
 * enqueues one more sleeps until the GPU has caught up. Reason: the driver's own queue holds about a thousand
 * launches, and a thread that finds that queue full waits inside the driver, where it can block the threads
 * of other lanes.
 *
 * EVENTS between lanes: the GPU waits for them, not the host. Two kinds of events have cudaEventBlockingSync,
 * because host threads wait for them: those of notifications and those of a lane itself. A host thread that
 * waits for any other event spins.
 *
 * NOTIFICATIONS do not use cudaLaunchHostFunc, for two reasons: a stream stops until such a function has
 * returned, and CUDA calls none of them after a kernel has failed, so a waiting thread would wait forever.
 * Instead each lane has a thread that waits for events and then makes the calls. So the lane never waits for
 * the host, and every call is made. CALLS (ot_lane_call) do use cudaLaunchHostFunc: there the stream has to
 * stop, and a lane that has failed makes no calls.
 *
 * ERRORS. The first failure of a lane sticks to it. After a kernel has failed, every call on every lane fails
 * with the same code, also on lanes that did nothing wrong. To tell which task failed, the lane of the ops
 * writes the number of its mark to host memory, in stream order, before the first op of each mark. That word
 * stays readable when the GPU does not respond any more.
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

/* Commands are counted in rounds of OT_CUDA_ROUND. At the end of a round, a lane waits for the end of the
 * round OT_CUDA_ROUNDS earlier. An op is one command and at most four launches, so the bound is below the
 * driver's. */
enum { OT_CUDA_ROUND = 64, OT_CUDA_ROUNDS = 3, OT_CUDA_RUN_AHEAD = OT_CUDA_ROUND * (OT_CUDA_ROUNDS + 1) };
_Static_assert((int)OT_CUDA_RUN_AHEAD <= (int)OT_LANE_MOST_COMMANDS, "the bound of device.h holds");

enum { OT_CUDA_COPY_PIECE = 32 << 20 };

enum {
    OT_CUDA_MARK_BYTES = 64,
    OT_CUDA_MARKS = 1024 /* marks that a lane may have enqueued and not begun */
};

struct ot_cuda_lane {
    struct ot_lane base;
    char name[16];
    cudaStream_t stream;
    cudaEvent_t idle; /* for ot_lane_sync */
    cudaEvent_t rounds[OT_CUDA_ROUNDS];
    uint32_t commands; /* count of enqueued commands, for RUN-AHEAD */
    struct ot_cuda_notifier *notifier;
    _Atomic(const struct ot_error *) error; /* NULL: no failure yet */
    uint64_t delay_stream, delays;          /* for tests: random delays */
    bool in_range;                          /* a range of the profiler is open */
    uint32_t mark;                          /* number of the newest mark, counted from 1 */
    uint32_t announced;                     /* newest mark whose number the GPU was told to write */
    char marks[OT_CUDA_MARKS][OT_CUDA_MARK_BYTES];
};

struct ot_cuda_event {
    struct ot_event base;
    cudaEvent_t event;
    _Atomic(const struct ot_error *) error; /* the failure of the recording lane at the time of the record */
};

/* Translates the GPU's time to the host's clock. CUDA reports the time between two events in milliseconds as
 * a float, so only short times are exact. Therefore times are measured from an anchor: an event whose host
 * time is known. The anchor moves forward every few seconds. */
struct ot_cuda_clock {
    cudaStream_t stream; /* used by nothing else */
    cudaEvent_t anchor, next;
    double anchor_seconds;
};

struct ot_cuda_device {
    struct ot_device base;
    char name[224], arithmetic[192];
    int index;

    uint64_t delay_seed;
    struct ot_cuda_stream on; /* the arguments of the launchers; its stream is that of the lane of the ops */
    struct ot_cuda_gemm *gemm;
    struct ot_cuda_guard *guard;
    volatile uint32_t *begun; /* pinned: the number of the mark that the lane of the ops has reached */
    _Atomic int n_lanes, n_events;
    _Atomic uint64_t lane_numbers;
    _Atomic(struct ot_cuda_lane *) ops_lane; /* the lane that ops were enqueued on; NULL: none yet */

    pthread_mutex_t mutex; /* guards the clock, and the errors of lanes when they are set */
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
    int driver; /* CUDA version that the driver supports: 13000 */
    size_t free_bytes, total_bytes;
    bool has_display;
};

/* True if a GPU is visible, or if there is a driver that is too old to tell. */
bool ot_cuda_is_present(void);
bool ot_cuda_bus_id(int index, char text[OT_BUS_ID_BYTES]);
/* Finds GPU `index` and makes it the current GPU of the calling thread. Warnings about the GPU are logged
 * once for each process. OT_E_DEVICE: the text is one sentence for each reason. */
int ot_cuda_find_gpu(int index, struct ot_cuda_gpu *out);
/* True if code built for these architectures ("80 86 90", and PTX of the newest one) runs on `arch`. */
bool ot_cuda_runs_on(const char *archs, int arch);
/* True if no machine code fits `arch`, so that the driver would have to translate PTX. */
bool ot_cuda_needs_ptx(const char *archs, int arch);

/* ---- cuda_lane.c ---- */

/* Makes this device the current one for the CUDA calls of the calling thread. */
void ot_cuda_enter(const struct ot_cuda_device *device);

int ot_cuda_lane_open(struct ot_device *device, const char *name, struct ot_lane **out);
void ot_cuda_lane_close(struct ot_lane *lane);
void ot_cuda_lane_mark(struct ot_lane *lane, const char *what);
void ot_cuda_lane_copy(struct ot_lane *lane, enum ot_copy_kind kind, void *dst, const void *src,
                       size_t bytes);
void ot_cuda_lane_copy_rows(struct ot_lane *lane, const struct ot_copy_rows *copy);
void ot_cuda_lane_fill(struct ot_lane *lane, void *device_dst, int byte, size_t bytes);
void ot_cuda_lane_notify(struct ot_lane *lane, void (*fn)(void *arg), void *arg);
void ot_cuda_lane_call(struct ot_lane *lane, void (*fn)(void *arg), void *arg);
void *ot_cuda_lane_stream(struct ot_lane *lane);
int ot_cuda_lane_error(const struct ot_lane *lane);
int ot_cuda_lane_sync(struct ot_lane *lane);

int ot_cuda_event_create(struct ot_device *device, struct ot_event **out);
void ot_cuda_event_destroy(struct ot_event *event);
void ot_cuda_lane_record(struct ot_lane *lane, struct ot_event *event);
void ot_cuda_lane_wait(struct ot_lane *lane, struct ot_event *event);
int ot_cuda_event_sync(struct ot_event *event);
int ot_cuda_event_create_timed(struct ot_device *device, struct ot_event **out);

/* True if more work may be enqueued: the lane has not failed. */
bool ot_cuda_lane_is_sound(const struct ot_cuda_lane *lane);
/* Stores the failure of a call on this lane; does nothing for cudaSuccess. */
void ot_cuda_lane_check(struct ot_cuda_lane *lane, cudaError_t code);
/* Stores the error `rc` whose text is in the calling thread's error record. */
void ot_cuda_lane_fail(struct ot_cuda_lane *lane, int rc);
/* Comes before each op: claims the lane for ops, and makes the GPU write the number of the mark. False if the
 * lane has failed. */
bool ot_cuda_lane_begin_op(struct ot_cuda_lane *lane);

int ot_cuda_notifier_open(struct ot_cuda_lane *lane, struct ot_cuda_notifier **out);
/* Makes all outstanding calls, then stops the thread; NULL is allowed. */
void ot_cuda_notifier_close(struct ot_cuda_notifier *notifier);
void ot_cuda_notifier_drain(struct ot_cuda_notifier *notifier);
void ot_cuda_notifier_push(struct ot_cuda_notifier *notifier, void (*fn)(void *arg), void *arg);

/* ---- cuda_device.c ---- */

int ot_cuda_clock_open(struct ot_cuda_clock *clock);
void ot_cuda_clock_close(struct ot_cuda_clock *clock);
int ot_cuda_event_seconds(struct ot_event *event, double *out);

int ot_cuda_measure_peer(struct ot_device *device, const char *bus_id, const void *memory, size_t bytes,
                         double seconds, struct ot_device_peer *out);

/* ---- cuda_ops.c ---- */

extern const struct ot_ops ot_cuda_ops;

#endif
