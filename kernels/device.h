/* The device interface: memory, lanes, events, copies and a table of ops. The engine is written against this
 * page alone.
 *
 * MEMORY. A device has a budget. Everything that lives on it is allocated from that budget before the first
 * step, and nothing inside a step. Pinned memory is host memory that the device copies from and to at full
 * rate; it is charged to the host budget. Device pointers are opaque on the host: only ops and copies may
 * follow them. (On the cpu device they happen to be readable. There, fresh device memory is full of NaNs, so
 * that reading what was never written shows, and freed memory and what lies beyond an allocation's end cannot
 * be touched at all.)
 *
 * SCRATCH. Ops that need room to work in (partial sums, a GEMM's workspace) take it from scratch that the
 * device allocated from its budget when it was opened: usage tells how much. It is one for all ops, so all
 * ops of a device run on one lane; copies, fills and events may use any number of others.
 *
 * PINNED. Copies take host memory of any kind, but only pinned memory at full rate and without waiting: from
 * and to other memory a call may block until the copy is done.
 *
 * LANES. A lane is an in-order queue. Calls that take a lane only enqueue: the work happens later, in call
 * order within the lane, in any order between lanes. What a call takes by pointer to memory must stay valid
 * and unchanged until the work is done; its argument struct is copied. A full queue makes the caller wait.
 * One thread at a time may enqueue on a lane.
 *
 * EVENTS order lanes: record on one, wait on another. An event may be recorded again after its last waiter
 * was enqueued. Recording and waiting are also what makes writes of one lane visible to the other; nothing
 * else is. So a missing dependency is a data race, which ThreadSanitizer reports on the cpu device, whose
 * lanes are threads.
 *
 * TUNING. There may be several ways to compute the same product, and which one is the fastest only a clock
 * tells. A device may try them out for the shapes it has met, with operands of its own making in memory that
 * the caller lends, and keeps to a faster one where its results have the same bits. So when it is done, with
 * how much memory, or whether at all, cannot be seen in any number; ops are faster from then on, and in later
 * runs where the device keeps what it found. The cpu device has nothing to try.
 *
 * ERRORS. Bad arguments are the caller's bug and are asserted. Asynchronous failures stick to the lane: the
 * next ot_lane_error, ot_lane_sync or ot_event_sync on it returns them.
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

/* The owner's say in where threads run and memory lies (offload/topology/topology.h). Each may be NULL. */
struct ot_placement {
    void *context; /* outlives the device */
    /* Called by thread number `index` of `count` that compute ops, when it starts; 0 is the lane's own. */
    void (*thread)(void *context, int index, int count);
    /* Called with host memory that the device has mapped and not touched yet: decides where its pages come
     * from, and may make it resident. Errors: OT_E_BUDGET (the system has not that much); the allocation
     * then fails. */
    int (*memory)(void *context, void *memory, size_t bytes);
};

/* A GPU that is sold as 24 GB has some per cent less for programs: firmware and ECC take the rest. Whether a
 * budget a little beyond what is there means all of it. */
static inline bool ot_device_is_whole(size_t given_bytes, size_t there_bytes) {
    return given_bytes > there_bytes && given_bytes - there_bytes <= there_bytes / 10;
}

struct ot_device_config {
    const char *kind;     /* "cpu", or "cuda" where the build has it */
    int index;            /* cuda: which of the visible GPUs */
    size_t memory_bytes;  /* budget of device memory; 0: what the machine has, or what is free on the GPU */
    const char *blas;     /* cuda: path of a libcublasLt; NULL: one is looked for */
    size_t scratch_bytes; /* cuda: what the ops work in, of the budget; 0: 64 MiB */
    int threads;          /* cpu device: threads that compute one op, >= 1 */
    struct ot_placement placement;
    /* Test seam: not 0 puts a random delay of 0..200 us before each command of each lane. */
    uint64_t lane_delay_seed;
};

/* Whether this machine has devices of the kind and this build knows them; opening one tells whether it can
 * be used. */
bool ot_device_is_present(const char *kind);
/* Where it is on the PCI bus ("0000:65:00.0"); false where it is not on one. Opens nothing. */
enum { OT_BUS_ID_BYTES = 32 };
bool ot_device_bus_id(const char *kind, int index, char text[OT_BUS_ID_BYTES]);
/* Errors: OT_E_DEVICE (no such kind, cannot start), OT_E_BUDGET. */
int ot_device_open(const struct ot_device_config *config, struct ot_device **out);
/* Every lane, event and allocation must be gone; NULL is fine. */
void ot_device_close(struct ot_device *device);
/* For people: "cpu (2 threads, AVX-512, oneDNN bf16)" */
const char *ot_device_name(const struct ot_device *device);
/* What the bits of its results depend on beside inputs and micro-batch: "avx2 kernels, OpenBLAS 0.3.21
 * Haswell". Two devices with equal texts give equal bits. Valid until the device is closed. */
const char *ot_device_arithmetic(const struct ot_device *device);
const struct ot_ops *ot_device_ops(const struct ot_device *device);
/* Whether its ops take activations and weights of the dtype. */
bool ot_device_has_dtype(const struct ot_device *device, enum ot_dtype dtype);

/* 256-byte aligned. `name` appears in the error. Errors: OT_E_BUDGET, saying by how much it is short. */
int ot_device_alloc(struct ot_device *device, size_t bytes, const char *name, void **out);
void ot_device_free(struct ot_device *device, void *memory); /* NULL is fine */
/* Zeroed, 4 KiB aligned. */
int ot_device_alloc_pinned(struct ot_device *device, size_t bytes, const char *name, void **out);
void ot_device_free_pinned(struct ot_device *device, void *memory, size_t bytes);

struct ot_device_usage {
    size_t budget_bytes, used_bytes, peak_bytes; /* device memory */
    size_t scratch_bytes;                        /* the part of used_bytes that the ops work in */
    size_t pinned_bytes, pinned_peak_bytes;
    /* cuda: memory of the GPU when it was opened: in all, and what this device had not taken itself */
    size_t total_bytes, taken_bytes;
};
void ot_device_usage(const struct ot_device *device, struct ot_device_usage *out);
/* The peaks begin anew, at what is used now. */
void ot_device_forget_peaks(struct ot_device *device);

struct ot_device_tuning { /* of shapes of products */
    int shapes;           /* that were met and not yet tuned */
    int timed;            /* of these; the others need more memory or more time */
    int replaced;         /* of these, by a faster way with the same bits */
    double before;        /* seconds that one product of each timed shape took together, */
    double after;         /* and takes now */
    bool is_kept;         /* for the next run */
};
/* memory [bytes]: device memory, 256-byte aligned, whose content nobody needs any more. All lanes are empty
 * and stay so; no other thread uses the device. Works for about `seconds`; may be called again. Errors:
 * OT_E_DEVICE. */
int ot_device_tune(struct ot_device *device, void *memory, size_t bytes, double seconds,
                   struct ot_device_tuning *out);

int ot_lane_open(struct ot_device *device, const char *name, struct ot_lane **out); /* Errors: OT_E_DEVICE */
void ot_lane_close(struct ot_lane *lane); /* waits for its work; NULL is fine */
struct ot_device *ot_lane_device(const struct ot_lane *lane);
/* Names what is enqueued from here on ("backward layer.3 #2"): what fails asynchronously is reported under
 * this name, and profilers show it. Copied, and cut to 63 bytes. */
void ot_lane_mark(struct ot_lane *lane, const char *what);

enum ot_copy_kind { OT_COPY_H2D, OT_COPY_D2H, OT_COPY_D2D };
/* Enqueued: device ends come from ot_device_alloc; the ranges do not overlap. Host ends: see PINNED. */
void ot_lane_copy(struct ot_lane *lane, enum ot_copy_kind kind, void *dst, const void *src, size_t bytes);
void ot_lane_fill(struct ot_lane *lane, void *device_dst, int byte, size_t bytes);
/* Calls fn(arg) on some thread after all work enqueued before; what is enqueued after it does not wait for
 * fn. On a lane that has failed it is called all the same. fn must be short and must not touch the device. */
void ot_lane_notify(struct ot_lane *lane, void (*fn)(void *arg), void *arg);
int ot_lane_error(const struct ot_lane *lane); /* what has gone wrong in it so far; does not wait */
/* Blocks until the lane is empty and its notifications have been called. Errors: what went wrong in it. */
int ot_lane_sync(struct ot_lane *lane);

/* Errors: OT_E_DEVICE. */
int ot_event_create(struct ot_device *device, struct ot_event **out);
void ot_event_destroy(struct ot_event *event); /* NULL is fine */
void ot_lane_record(struct ot_lane *lane, struct ot_event *event);
void ot_lane_wait(struct ot_lane *lane, struct ot_event *event); /* passes at once if never recorded */
/* Blocks the calling thread, which may spin: for tests and short waits. */
int ot_event_sync(struct ot_event *event);

/* An event that also keeps the time at which its lane came to it. Errors: OT_E_DEVICE. */
int ot_event_create_timed(struct ot_device *device, struct ot_event **out);
/* When the event was last recorded, in seconds on ot_clock_seconds's clock; the lane has passed it. Times of
 * one device compare to a microsecond, those of device and host to some tens. Errors: OT_E_DEVICE. */
int ot_event_seconds(struct ot_event *event, double *out);

/* ---- what a device implements (kernels/cpu, kernels/cuda) ---- */

struct ot_device_api {
    bool (*is_present)(void);
    bool (*bus_id)(int index, char text[OT_BUS_ID_BYTES]); /* NULL: on no bus */
    int (*open)(const struct ot_device_config *config, struct ot_device **out);
    void (*close)(struct ot_device *device);
    const char *(*name)(const struct ot_device *device);
    const char *(*arithmetic)(const struct ot_device *device);
    bool (*has_dtype)(const struct ot_device *device, enum ot_dtype dtype);
    int (*alloc)(struct ot_device *device, size_t bytes, const char *name, void **out);
    void (*free)(struct ot_device *device, void *memory);
    int (*alloc_pinned)(struct ot_device *device, size_t bytes, const char *name, void **out);
    void (*free_pinned)(struct ot_device *device, void *memory, size_t bytes);
    void (*usage)(const struct ot_device *device, struct ot_device_usage *out);
    void (*forget_peaks)(struct ot_device *device);
    int (*tune)(struct ot_device *device, void *memory, size_t bytes, double seconds,
                struct ot_device_tuning *out); /* NULL: there is nothing to tune */
    int (*lane_open)(struct ot_device *device, const char *name, struct ot_lane **out);
    void (*lane_close)(struct ot_lane *lane);
    void (*mark)(struct ot_lane *lane, const char *what); /* NULL: marks are not kept */
    void (*copy)(struct ot_lane *lane, enum ot_copy_kind kind, void *dst, const void *src, size_t bytes);
    void (*fill)(struct ot_lane *lane, void *device_dst, int byte, size_t bytes);
    void (*notify)(struct ot_lane *lane, void (*fn)(void *arg), void *arg);
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

/* A device's own structs begin with these. */
struct ot_device {
    const struct ot_device_api *api;
    const struct ot_ops *ops;
};
struct ot_lane {
    struct ot_device *device;
};
struct ot_event {
    struct ot_device *device;
};

extern const struct ot_device_api ot_cpu_device_api;
/* NULL in programs that are not linked with kernels/cuda (or, in tests, with its emulation). */
extern const struct ot_device_api ot_cuda_device_api __attribute__((weak));

#endif
