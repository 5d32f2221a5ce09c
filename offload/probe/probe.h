/* The probe measures how fast a machine does the work of training. It reports rows: each is an amount of
 * work, the time that it took, and the rate.
 *
 * THE DEVICE is used only through the device interface. Rows: copies in each direction and in both at once,
 * in pieces like a slab's; copies within device memory, the yardstick of every kernel that only moves bytes;
 * the matrix products of a decoder layer, forward and backward, which give the peak for MFU; attention by
 * context length and head size; every other kernel, by the bytes that it must move; and the time to start a
 * task. Sizes are those of a model (hidden, tokens), so that they suit both a workstation's CPU and a
 * data-centre GPU. The device tunes its matrix products first, as it does in training.
 *
 * THE HOST. Rows: the memory's rate (the triad of STREAM, McCalpin 1995) and the optimizer's kernels, by
 * number of threads; the fastest kernel also by format of the state; checksums.
 *
 * THE DISKS, all directories together, in temporary files of limited size. Rows: each I/O engine reading,
 * writing and alternating both, by block size (256 KiB to 4 MiB, 32 in flight) and by depth (8 to 128 blocks
 * of 1 MiB); then the store with its checksums and its defaults, and the fixed time of a transfer through it.
 * The files are written once before the measurement, since the first write to a block is slower. A row writes
 * at most the size of the files, because disks wear out. A row is left out if its I/O in flight exceeds the
 * files, the memory, or the bytes that the disk moves in a second.
 *
 * METHOD. Data are random: constant inputs draw less power and run faster. Buffers are far larger than
 * caches. Each row is warmed up, then timed in several short repeats, each with as many calls as fill the
 * given time; on a device, events on the lane measure the time. Rows of one kind alternate. A row reports the
 * median and the spread of the repeats (repeats.h). Rows of disks report the mean instead, because a long run
 * has the pauses of a disk too.
 *
 * BURSTS. A row's calls take some hundredths of a second, so a GPU is at its highest clock. In training its
 * clock falls to what its power limit allows: an H200 took 1.08 to 1.16 times as long (2026-11-27). So the
 * rows of products and attention are upper bounds; calibrate.h measures the factor for a model's own blocks.
 *
 * Some rows give the rates for predictions (rates.h): ot_probe_add adds them up. A quick probe has only these
 * rows.
 *
 * THREADS. Call it from one thread. Nothing else should use the machine meanwhile. Calls block until all rows
 * are measured.
 */
#ifndef OT_OFFLOAD_PROBE_PROBE_H
#define OT_OFFLOAD_PROBE_PROBE_H

#include "kernels/ops.h"
#include "offload/predict/rates.h"
#include "offload/store/store.h"
#include "offload/topology/topology.h"

enum ot_probe_group {
    OT_PROBE_COPY,
    OT_PROBE_GEMM,
    OT_PROBE_ATTENTION,
    OT_PROBE_KERNEL,
    OT_PROBE_TASK,
    OT_PROBE_MEMORY,
    OT_PROBE_OPTIMIZER,
    OT_PROBE_NVME,
    OT_PROBE_GROUPS
};
/* "copy", "gemm", "attention", "kernel", "task", "memory", "optimizer", "nvme" */
const char *ot_probe_group_name(enum ot_probe_group group);

enum ot_probe_unit { OT_PROBE_BYTES, OT_PROBE_FLOPS, OT_PROBE_TASKS, OT_PROBE_UNITS };
enum ot_probe_unit ot_probe_group_unit(enum ot_probe_group group);

/* The rate of the machine (rates.h) that a row belongs to. */
enum ot_probe_use {
    OT_PROBE_NO_USE,
    OT_PROBE_PRODUCT,
    OT_PROBE_GROUP_PRODUCT,     /* only in a probe that is not quick */
    OT_PROBE_ATTENTION_FORWARD, /* heads of 128 elements */
    OT_PROBE_ATTENTION_BACKWARD,
    OT_PROBE_ATTENTION_64_FORWARD, /* heads of 64 elements: only in a probe that is not quick */
    OT_PROBE_ATTENTION_64_BACKWARD,
    OT_PROBE_DEVICE_COPY,
    OT_PROBE_H2D,
    OT_PROBE_D2H,
    OT_PROBE_BOTH,
    OT_PROBE_START,
    OT_PROBE_TRIAD,
    OT_PROBE_ADAMW, /* and by format of the state, in the order of enum ot_state_format */
    OT_PROBE_ADAMW_16BIT,
    OT_PROBE_ADAMW_8BIT,
    OT_PROBE_CRC,
    OT_PROBE_NVME_READ,
    OT_PROBE_NVME_WRITE,
    OT_PROBE_NVME_MIXED,
    OT_PROBE_NVME_READ_START,
    OT_PROBE_NVME_WRITE_START,
    OT_PROBE_USES
};

enum ot_probe_io { OT_PROBE_READ, OT_PROBE_WRITE, OT_PROBE_MIXED, OT_PROBE_IOS };
const char *ot_probe_io_name(enum ot_probe_io io); /* "read", "write", "mixed" */

struct ot_probe_disk { /* the access pattern of a disk row */
    bool by_store;     /* through the store, with its defaults; else an engine alone: */
    enum ot_io_choice engine;
    int block_bytes, depth;
    enum ot_probe_io io;
};

struct ot_probe_row {
    enum ot_probe_group group;
    enum ot_probe_use use;
    const char *name;          /* valid during the call */
    double seconds;            /* time of one call */
    double work;               /* bytes, FLOPs or tasks of one call */
    double rate;               /* work per second */
    double spread;             /* spread of the repeats (ot_repeats_spread) */
    double peak;               /* a rate to compare with (plain copy, best product, triad); 0: none */
    struct ot_probe_disk disk; /* for OT_PROBE_NVME rows */
};

struct ot_probe_reader {
    /* Called with each row once it is measured. A negative result ends the probe, which returns it. */
    int (*row)(void *context, const struct ot_probe_row *row);
    void *context;
};

/* ---- the device ---- */

struct ot_probe_config {
    struct ot_device *device;
    enum ot_dtype dtype;    /* dtype of activations and weights */
    int64_t hidden, tokens; /* hidden: a multiple of 128 */
    size_t buffer_bytes;    /* size of each of four device buffers and of one pinned buffer */
    double seconds;         /* time to measure one row; a longer call is repeated only a few times */
    bool quick;
    struct ot_probe_reader reader;
};

/* Errors: OT_E_BUDGET, OT_E_DEVICE, OT_E_USAGE (buffers too small for the model). */
int ot_probe_device(const struct ot_probe_config *config);

/* The least size of one buffer, in bytes, for a model. */
size_t ot_probe_buffer_bytes(int64_t hidden, int64_t tokens);

/* The rate (FLOP/s) of the layer's largest product alone, and the FLOPs of that product. A caller can then
 * tell how long a larger layer would take. Errors: as ot_probe_device. */
int ot_probe_largest_product(const struct ot_probe_config *config, double *rate);
double ot_probe_largest_flops(int64_t hidden, int64_t tokens);

/* ---- the host ---- */

enum { OT_PROBE_HOST_LEAST_BYTES = 4 << 20 };

struct ot_probe_host_config {
    enum ot_dtype dtype;                /* dtype of weights and gradients */
    enum ot_masters masters;            /* OT_MASTERS_NONE: OT_BF16 only */
    int threads;                        /* measures 1, 2, 4 .. and this many; quick: only this many */
    int optimizer_threads;              /* the number in training; measured too */
    size_t bytes;                       /* memory to work on, at least OT_PROBE_HOST_LEAST_BYTES */
    double seconds;                     /* limit of one row's measurement */
    bool quick;                         /* only the threads and the kernel that training uses */
    const struct ot_topology *topology; /* places threads and memory as the optimizer's; NULL: does not */
    struct ot_probe_reader reader;
};

/* Errors: OT_E_BUDGET (no memory), OT_E_IO (a thread does not start), OT_E_USAGE (config->bytes is too
 * small). */
int ot_probe_host(const struct ot_probe_host_config *config);

/* ---- the disks ---- */

struct ot_probe_nvme_config {
    /* As for a run, with the bytes to use in each directory. The probe chooses extents and memory itself. */
    const struct ot_store_config *store;
    size_t bytes;        /* limit for the temporary files of all directories together */
    size_t memory_bytes; /* limit for I/O buffers; 0: 128 MiB, which all rows need at most */
    /* Time to measure one row; it may take one and a half times as long, and then I/O in flight ends. */
    double seconds;
    bool quick; /* only through the store */
    struct ot_probe_reader reader;
};

enum { OT_PROBE_NVME_NOTE_BYTES = 256 };
struct ot_probe_nvme_result {
    int64_t written_bytes;                /* bytes written to the disks */
    char store[OT_PROBE_NVME_NOTE_BYTES]; /* the store's I/O method (ot_store_describe) */
};

/* Leaves no file behind. Errors: OT_E_IO, OT_E_BUDGET (no memory, or too little disk space). */
int ot_probe_nvme(const struct ot_probe_nvme_config *config, struct ot_probe_nvme_result *out);

/* ---- rates for predictions ---- */

struct ot_probe_sums { /* sums by enum ot_probe_use; begin with zeros */
    double work[OT_PROBE_USES], seconds[OT_PROBE_USES];
    double apart[OT_PROBE_USES]; /* seconds times spread */
};
void ot_probe_add(struct ot_probe_sums *sums, const struct ot_probe_row *row);
/* Sets the rates that have rows; the others stay unchanged. The spread of several rows is their mean,
 * weighted with their time. */
void ot_probe_put_rates(const struct ot_probe_sums *sums, struct ot_rates *out);

#endif
