/* The device interface: memory, lanes, events, copies and a table of ops. The engine sees a device only
 * through this header.
 *
 * MEMORY. A device has a budget in bytes. Everything on the device is allocated from that budget before the
 * first step; nothing is allocated inside a step. Pinned memory is host memory that the device copies from
 * and to at full speed; it counts against the host budget. Device pointers are opaque on the host: only ops
 * and copies may dereference them. (On the cpu device the host could read them. To show bugs, the cpu device
 * fills fresh device memory with NaNs, so that a read of memory that nobody wrote is visible. Freed memory
 * and the memory behind the end of an allocation cannot be touched, so that an access there faults.)
 *
 * SCRATCH. Some ops need workspace (partial sums, the workspace of a GEMM). They share one scratch buffer,
 * which the device allocates from its budget when it is opened; ot_device_usage tells its size. (The cpu
 * device takes workspace from host memory instead, outside of the budget.) Because the scratch is shared, all
 * ops of a device must run on one lane. Copies, fills and events may use any number of other lanes.
 *
 * PINNED. A copy takes any kind of host memory. Only a copy from or to pinned memory runs at full speed and
 * returns at once; with other host memory the call may block until the copy is done.
 *
 * LANES. A lane is an in-order queue. A call that takes a lane only enqueues work. The work of one lane runs
 * in the order of the calls; the work of different lanes runs in any order. The caller keeps the memory that
 * a call points to valid and unchanged until the work is done. The argument struct itself is copied. If the
 * queue is full, the call waits. Only one thread at a time may enqueue on a lane.
 *
 * EVENTS order lanes: record an event on one lane, wait for it on another. An event may be recorded again
 * after its last waiter was enqueued. A record and a wait are also the only operations that make the writes
 * of one lane visible to another. So a missing dependency is a data race. ThreadSanitizer reports it on the
 * cpu device, whose lanes are threads.
 *
 * SHAPES. A device may choose an algorithm for each shape of an op. A new shape costs time: the choice is
 * made while the step waits, and tuning has not measured it. The number of tokens of a packed micro-batch
 * differs a little each time. So the caller pads micro-batches to a multiple of ot_device_token_multiple
 * tokens, and the ops meet few shapes.
 *
 * TUNING. A device may know several algorithms for the same matrix product, and only a measurement tells
 * which one is the fastest. ot_device_tune tries them for the shapes that the device has met, on operands of
 * its own in memory that the caller lends. The device then uses a faster algorithm only if its results have
 * the same bits. So tuning changes no number, whenever it runs and whatever memory it gets. It only makes ops
 * faster, also in later runs if the device can store its choices. The cpu device has nothing to tune.
 *
 * ERRORS. Bad arguments are bugs of the caller and are asserted. A failure of enqueued work sticks to the
 * lane: the next ot_lane_error, ot_lane_sync or ot_event_sync on that lane returns it.
 */
#ifndef OT_KERNELS_DEVICE_H
#define OT_KERNELS_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/dtype.h"

struct ot_device;
struct ot_lane;
struct ot_event;
struct ot_ops;
struct ot_device_ledger;
struct ot_error;

/* Callbacks of the device's owner that place threads and memory (offload/topology/topology.h). Each callback
 * may be NULL. */
struct ot_placement {
    void *context; /* must outlive the device */
    /* Called by each thread that computes ops when it starts: thread `index` of `count`. Index 0 is the
     * lane's own thread. */
    void (*thread)(void *context, int index, int count);
    /* Called with host memory that the device has mapped but not touched yet. The callback decides which
     * memory node the pages come from, and may make them resident. OT_E_BUDGET: the system does not have that
     * much memory. The allocation then fails with the same error. */
    int (*memory)(void *context, void *memory, size_t bytes);
};

/* True if the given budget is slightly larger (up to 10%) than the memory that exists, so that the user means
 * all of it. A GPU that is sold as 24 GB offers programs some per cent less: firmware and ECC take the rest.
 */
static inline bool ot_device_is_whole(size_t given_bytes, size_t there_bytes) {
    return given_bytes > there_bytes && given_bytes - there_bytes <= there_bytes / 10;
}

struct ot_device_config {
    const char *kind; /* "cpu", or "cuda" if the build has it */
    int index;        /* cuda: index among the visible GPUs */
    /* budget of device memory; 0: all memory of the machine, or the free memory of the GPU */
    size_t memory_bytes;
    const char *blas;     /* cuda: path of a libcublasLt; NULL: the device looks for one */
    size_t scratch_bytes; /* cuda: workspace of the ops, part of the budget; 0: 64 MiB */
    int threads;          /* cpu device: threads that compute one op, >= 1 */
    struct ot_placement placement;
    /* For tests: if not 0, a random delay of 0..200 us precedes one of four commands of each lane. */
    uint64_t lane_delay_seed;
};

/* True if this machine has a device of this kind and this build supports it. The device may still be
 * unusable: only ot_device_open can tell. */
bool ot_device_is_present(const char *kind);
/* Returns a sentence that says that this build has no cuda device, and how to get one. NULL if it has one. */
const char *ot_device_no_cuda(void);
/* Writes the device's address on the PCI bus ("0000:65:00.0"). False if the device is not on a PCI bus. Does
 * not open the device. */
enum { OT_BUS_ID_BYTES = 32 };
bool ot_device_bus_id(const char *kind, int index, char text[OT_BUS_ID_BYTES]);
/* Errors: OT_E_DEVICE (the kind does not exist or the device cannot start), OT_E_BUDGET (too little memory).
 */
int ot_device_open(const struct ot_device_config *config, struct ot_device **out);
/* The caller has closed every lane and event and freed every allocation before. NULL is allowed. */
void ot_device_close(struct ot_device *device);
/* A text for people: "cpu (2 threads, AVX-512, oneDNN bf16)" */
const char *ot_device_name(const struct ot_device *device);
/* Names everything that the bits of the results depend on, apart from the inputs and the micro-batch size:
 * "avx2 kernels, OpenBLAS 0.3.21 Haswell". Two devices with equal texts give equal bits. The text is valid
 * until the device is closed. */
const char *ot_device_arithmetic(const struct ot_device *device);
const struct ot_ops *ot_device_ops(const struct ot_device *device);
/* True if the ops of this device take activations and weights of this dtype. */
bool ot_device_has_dtype(const struct ot_device *device, enum ot_dtype dtype);

/* Micro-batches are padded to a multiple of this number of tokens, see SHAPES. 1: they are not padded. */
int64_t ot_device_token_multiple(const struct ot_device *device);
/* True if the device computes more slowly after some tenths of a second of work without a pause. A GPU that
 * reaches its power limit lowers its clock. */
bool ot_device_slows_under_load(const struct ot_device *device);

/* Allocates device memory, 256-byte aligned. `name` appears in the error text. OT_E_BUDGET: the text tells
 * how many bytes are missing. */
int ot_device_alloc(struct ot_device *device, size_t bytes, const char *name, void **out);
void ot_device_free(struct ot_device *device, void *memory); /* NULL is allowed */
/* Allocates pinned host memory, filled with zeros and 4 KiB aligned. Errors: OT_E_BUDGET. */
int ot_device_alloc_pinned(struct ot_device *device, size_t bytes, const char *name, void **out);
void ot_device_free_pinned(struct ot_device *device, void *memory, size_t bytes);
/* Host memory that the caller has mapped, 4 KiB aligned, to share it with other processes. place: pages that
 * nobody has touched come from where the placement wants them, and become resident. pin: from now on copies
 * from and to the memory run at full speed; own_bytes of it count as pinned by this device. Errors:
 * OT_E_BUDGET. */
int ot_device_place(struct ot_device *device, void *memory, size_t bytes, const char *name);
int ot_device_pin(struct ot_device *device, void *memory, size_t bytes, size_t own_bytes, const char *name);
void ot_device_unpin(struct ot_device *device, void *memory, size_t bytes, size_t own_bytes);

struct ot_device_usage {
    size_t budget_bytes, used_bytes, peak_bytes; /* device memory */
    size_t scratch_bytes;                        /* the part of used_bytes that is the workspace of the ops */
    size_t pinned_bytes, pinned_peak_bytes;
    /* cuda: the memory of the GPU, and the part of it that was not free before this device allocated anything
     * (other programs, the CUDA context) */
    size_t total_bytes, taken_bytes;
};
void ot_device_usage(const struct ot_device *device, struct ot_device_usage *out);
/* Sets both peaks to the current use. */
void ot_device_forget_peaks(struct ot_device *device);

/* The device's access to the memory of another device of this machine. */
struct ot_device_peer {
    bool has_access; /* false: copies between the two go through host memory */
    double rate;     /* bytes/s of such copies */
};
/* Copies from this device's `memory` [bytes] to the device of that address (ot_device_bus_id), for about
 * `seconds`. No part of this process uses the other device: memory that it holds there is freed at the end.
 * Blocks. Errors: OT_E_USAGE (the device is on no bus, or the other one is not visible to this process),
 * OT_E_DEVICE, OT_E_BUDGET (no memory there). */
int ot_device_measure_peer(struct ot_device *device, const char *bus_id, const void *memory, size_t bytes,
                           double seconds, struct ot_device_peer *out);

struct ot_device_tuning { /* counts of shapes of matrix products */
    int shapes;           /* shapes that were met and were not tuned before this call */
    int timed;            /* those that were measured; the others need more memory or more time */
    int replaced;         /* those for which a faster algorithm with the same bits was found */
    double before;        /* sum over the measured shapes: seconds of one product before tuning */
    double after;         /* the same sum after tuning */
    bool is_kept;         /* the choices were stored for the next run */
};
/* Measures and replaces algorithms, see TUNING. memory [bytes]: 256-byte aligned device memory whose content
 * may be overwritten. All lanes must be empty and stay empty during the call, and no other thread may use the
 * device. Works for about `seconds`. May be called again. Errors: OT_E_DEVICE. */
int ot_device_tune(struct ot_device *device, void *memory, size_t bytes, double seconds,
                   struct ot_device_tuning *out);

int ot_lane_open(struct ot_device *device, const char *name, struct ot_lane **out); /* Errors: OT_E_DEVICE */
void ot_lane_close(struct ot_lane *lane); /* waits for the lane's work; NULL is allowed */
struct ot_device *ot_lane_device(const struct ot_lane *lane);
/* Names the work that is enqueued after this call ("backward layer.3 #2"). Errors of that work and profilers
 * show the name. The text is copied and cut to 63 bytes. */
void ot_lane_mark(struct ot_lane *lane, const char *what);

/* The most unfinished commands of a lane (copies, fills, calls, ops, records, waits). A thread that enqueues
 * one more waits. */
enum { OT_LANE_MOST_COMMANDS = 2048 };

enum ot_copy_kind { OT_COPY_H2D, OT_COPY_D2H, OT_COPY_D2D };
/* Enqueues a copy. The device side must come from ot_device_alloc. For the host side see PINNED. The ranges
 * must not overlap. */
void ot_lane_copy(struct ot_lane *lane, enum ot_copy_kind kind, void *dst, const void *src, size_t bytes);
/* Rows of a matrix on the device. The strides lie between the begins of rows, in bytes. */
struct ot_copy_rows {
    void *dst;
    const void *src;
    size_t dst_stride, src_stride, row_bytes, rows;
};
/* Enqueues a copy of rows from device memory to device memory. The rows must not overlap. */
void ot_lane_copy_rows(struct ot_lane *lane, const struct ot_copy_rows *copy);
void ot_lane_fill(struct ot_lane *lane, void *device_dst, int byte, size_t bytes);
/* Calls fn(arg) on some thread after all work that was enqueued before. Work that is enqueued later does not
 * wait for fn. fn is called even if the lane has failed. fn must be short and must not use the device. */
void ot_lane_notify(struct ot_lane *lane, void (*fn)(void *arg), void *arg);
/* Calls fn(arg) on some thread after all work that was enqueued before. Work that is enqueued later waits for
 * fn. fn may take long, but must not use the device. It must not wait for the fn of another lane either: CUDA
 * may call both on one thread. fn is not called if the lane has failed before. The caller keeps arg valid
 * until the lane has passed the call; OT_LANE_MOST_COMMANDS gives the latest time. */
void ot_lane_call(struct ot_lane *lane, void (*fn)(void *arg), void *arg);
/* The queue behind the lane, for libraries that enqueue their own work there: a cudaStream_t. NULL on the cpu
 * device. */
void *ot_lane_stream(struct ot_lane *lane);
int ot_lane_error(const struct ot_lane *lane); /* the lane's failure so far, or 0; does not wait */
/* Blocks until the lane is empty and all its notifications have returned. Returns the lane's failure, or 0.
 */
int ot_lane_sync(struct ot_lane *lane);

/* Errors: OT_E_DEVICE. */
int ot_event_create(struct ot_device *device, struct ot_event **out);
void ot_event_destroy(struct ot_event *event); /* NULL is allowed */
void ot_lane_record(struct ot_lane *lane, struct ot_event *event);
/* does not wait if the event was never recorded */
void ot_lane_wait(struct ot_lane *lane, struct ot_event *event);
/* Blocks the calling thread until the event is reached. The thread may spin, so this call is for tests and
 * for short waits. */
int ot_event_sync(struct ot_event *event);

/* Creates an event that also stores the time at which its lane reached it. Errors: OT_E_DEVICE. */
int ot_event_create_timed(struct ot_device *device, struct ot_event **out);
/* Writes the time of the event's last record, in seconds of ot_clock_seconds. The lane must have reached the
 * event. Times of one device are exact to a microsecond relative to each other, and to some tens of
 * microseconds relative to the host. Errors: OT_E_DEVICE. */
int ot_event_seconds(struct ot_event *event, double *out);

/* ---- the functions that a device implements (kernels/cpu, kernels/cuda) ---- */

struct ot_device_api {
    bool (*is_present)(void);
    bool (*bus_id)(int index, char text[OT_BUS_ID_BYTES]); /* NULL: the device is on no bus */
    int (*open)(const struct ot_device_config *config, struct ot_device **out);
    void (*close)(struct ot_device *device);
    const char *(*name)(const struct ot_device *device);
    const char *(*arithmetic)(const struct ot_device *device);
    bool (*has_dtype)(const struct ot_device *device, enum ot_dtype dtype);
    int64_t token_multiple; /* 0: micro-batches are not padded */
    bool slows_under_load;
    /* Device memory that is in the budget already. bytes > 0; *out stays NULL after an error. */
    int (*alloc)(struct ot_device *device, size_t bytes, const char *name, void **out);
    void (*free)(struct ot_device *device, void *memory, size_t bytes);
    /* NULL: copies from and to any host memory run at full speed */
    int (*pin)(struct ot_device *device, void *memory, size_t bytes, const char *name);
    void (*unpin)(struct ot_device *device, void *memory, size_t bytes);
    int (*tune)(struct ot_device *device, void *memory, size_t bytes, double seconds,
                struct ot_device_tuning *out); /* NULL: the device has nothing to tune */
    int (*measure_peer)(struct ot_device *device, const char *bus_id, const void *memory, size_t bytes,
                        double seconds, struct ot_device_peer *out); /* NULL: the device is on no bus */
    int (*lane_open)(struct ot_device *device, const char *name, struct ot_lane **out);
    void (*lane_close)(struct ot_lane *lane);
    void (*mark)(struct ot_lane *lane, const char *what); /* NULL: the device ignores marks */
    void (*copy)(struct ot_lane *lane, enum ot_copy_kind kind, void *dst, const void *src, size_t bytes);
    void (*copy_rows)(struct ot_lane *lane, const struct ot_copy_rows *copy);
    void (*fill)(struct ot_lane *lane, void *device_dst, int byte, size_t bytes);
    void (*notify)(struct ot_lane *lane, void (*fn)(void *arg), void *arg);
    void (*call)(struct ot_lane *lane, void (*fn)(void *arg), void *arg);
    void *(*stream)(struct ot_lane *lane); /* NULL: there is no queue that a library could use */
    int (*lane_error)(const struct ot_lane *lane);
    int (*lane_sync)(struct ot_lane *lane);
    int (*event_create)(struct ot_device *device, struct ot_event **out);
    void (*event_destroy)(struct ot_event *event);
    void (*record)(struct ot_lane *lane, struct ot_event *event);
    void (*wait)(struct ot_lane *lane, struct ot_event *event);
    int (*event_sync)(struct ot_event *event);
    int (*event_create_timed)(struct ot_device *device, struct ot_event **out);
    int (*event_seconds)(struct ot_event *event, double *out);
};

/* The structs of each device begin with these members. */
struct ot_device {
    const struct ot_device_api *api;
    const struct ot_ops *ops;
    struct ot_placement placement;
    struct ot_device_ledger *ledger; /* of kernels/device.c */
};
struct ot_lane {
    struct ot_device *device;
};
struct ot_event {
    struct ot_device *device;
};

/* For `open`: fills in the members of `device`. Its use of memory begins with `usage`, which has the budget.
 * Errors: OT_E_DEVICE. */
int ot_device_begin(struct ot_device *device, const struct ot_device_api *api, const struct ot_ops *ops,
                    const struct ot_placement *placement, const struct ot_device_usage *usage);
/* For `close`: all memory has been freed. */
void ot_device_end(struct ot_device *device);
/* Returns a copy of a lane's failure that is valid until ot_device_end, because events outlive lanes. */
const struct ot_error *ot_device_keep_error(struct ot_device *device, const struct ot_error *error);

extern const struct ot_device_api ot_cpu_device_api;
/* NULL in programs that are linked neither with kernels/cuda nor, in tests, with its emulation. */
extern const struct ot_device_api ot_cuda_device_api __attribute__((weak));

#endif
