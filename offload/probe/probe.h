/* The probe: how fast a machine is at what training asks of it, in rows that are each measured work over
 * time.
 *
 * THE DEVICE, through the device interface alone. Copies each way and both ways at once, in pieces like a
 * slab's; the copy within device memory, which is the measure of every kernel that only moves bytes; the
 * products of a decoder layer, forward and backward, which give the peak that MFU is a share of; attention
 * by context length and head size; every other kernel in bytes that it must move over time; and what it
 * costs to start a task. Sizes are those of a model (hidden, tokens), so that a workstation's CPU and a
 * data-centre GPU each get something that fits. Before, the device tunes itself for the products, as it does
 * in training.
 *
 * THE HOST. What memory can do (the triad of STREAM, McCalpin 1995) and what the optimizer's kernels make of
 * it, by number of threads; checksums.
 *
 * THE DISKS, in temporary files within the room that is given, all directories together: each I/O engine
 * reading, writing and both in turn, by size of block (256 KiB to 4 MiB, 32 in flight) and by depth (8 to
 * 128 blocks of 1 MiB); then the store, with its checksums and its defaults. Files are written once before
 * they are measured, since the first write to a block is slower. A row that writes does not write more than
 * the files hold: disks wear. Rows in which more would be in flight than the files or the memory
 * hold, or than the disk moves in a second, are left out.
 *
 * Data are random: constant inputs draw less power and run faster. Buffers are far larger than caches. Each
 * row is warmed up, then timed (on a device by events on the lane) in several short repeats, over as many
 * calls as fill the time given; rows of a kind take turns. The median counts, and how far the repeats lie
 * apart is told with it (repeats.h). Of disks all repeats count, as pauses do in a long run.
 *
 * Some rows are what predictions start from (rates.h): ot_probe_add sums them up. A quick probe has these
 * rows alone.
 *
 * One thread calls; the machine is the probe's alone while it runs.
 */
#ifndef OT_OFFLOAD_PROBE_PROBE_H
#define OT_OFFLOAD_PROBE_PROBE_H

#include "kernels/ops.h"
#include "offload/predict/rates.h"
#include "offload/predict/repeats.h"
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

/* Which of a machine's rates a row is a part of. */
enum ot_probe_use {
    OT_PROBE_NO_USE,
    OT_PROBE_PRODUCT,
    OT_PROBE_CAUSAL,
    OT_PROBE_DEVICE_COPY,
    OT_PROBE_H2D,
    OT_PROBE_D2H,
    OT_PROBE_BOTH,
    OT_PROBE_START,
    OT_PROBE_TRIAD,
    OT_PROBE_ADAMW,
    OT_PROBE_CRC,
    OT_PROBE_NVME_READ,
    OT_PROBE_NVME_WRITE,
    OT_PROBE_NVME_MIXED,
    OT_PROBE_USES
};

enum ot_probe_io { OT_PROBE_READ, OT_PROBE_WRITE, OT_PROBE_MIXED, OT_PROBE_IOS };
const char *ot_probe_io_name(enum ot_probe_io io); /* "read", "write", "mixed" */

struct ot_probe_disk { /* what a row of the disks has measured */
    bool by_store;     /* with its defaults; else an engine by itself: */
    enum ot_io_choice engine;
    int block_bytes, depth;
    enum ot_probe_io io;
};

struct ot_probe_row {
    enum ot_probe_group group;
    enum ot_probe_use use;
    const char *name; /* valid during the call */
    double seconds;   /* of one call */
    double work;      /* of one call: bytes, FLOPs or tasks */
    double rate;      /* work a second */
    double spread;    /* of the repeats (ot_repeats_spread) */
    double peak;      /* what the rate is compared with (plain copy, best product, triad); 0: nothing */
    struct ot_probe_disk disk; /* of OT_PROBE_NVME */
};

struct ot_probe_reader {
    /* Called with each row as it is known; a negative result ends the probe and is returned. */
    int (*row)(void *context, const struct ot_probe_row *row);
    void *context;
};

/* ---- the device ---- */

struct ot_probe_config {
    struct ot_device *device;
    enum ot_dtype dtype;    /* of activations and weights */
    int64_t hidden, tokens; /* hidden: a multiple of 128 */
    size_t buffer_bytes;    /* of each of four device buffers and one pinned one */
    double seconds;         /* that one row may measure; a call that takes longer is measured once */
    bool quick;
    struct ot_probe_reader reader;
};

/* Errors: OT_E_BUDGET, OT_E_DEVICE, OT_E_USAGE (buffers too small for the model). */
int ot_probe_device(const struct ot_probe_config *config);

/* Bytes of one buffer that the given model needs at least. */
size_t ot_probe_buffer_bytes(int64_t hidden, int64_t tokens);

/* The rate of the layer's largest product alone, FLOP/s, and how many FLOPs it has: so that a caller can tell
 * what a larger layer would take. Errors: as ot_probe_device. */
int ot_probe_largest_product(const struct ot_probe_config *config, double *rate);
double ot_probe_largest_flops(int64_t hidden, int64_t tokens);

/* ---- the host ---- */

enum { OT_PROBE_HOST_LEAST_BYTES = 4 << 20 };

struct ot_probe_host_config {
    enum ot_dtype dtype;                /* of weights and gradients */
    int threads;                        /* 1, 2, 4 .. and this many are measured; quick: this many alone */
    int optimizer_threads;              /* of training; measured as well */
    size_t bytes;                       /* of memory to work on, at least OT_PROBE_HOST_LEAST_BYTES */
    double seconds;                     /* that one row may measure */
    bool quick;                         /* and the kernel that training uses alone */
    const struct ot_topology *topology; /* threads and memory are placed as the optimizer's; NULL: nowhere */
    struct ot_probe_reader reader;
};

/* Errors: OT_E_BUDGET, OT_E_IO (a thread does not start), OT_E_USAGE (too little memory). */
int ot_probe_host(const struct ot_probe_host_config *config);

/* ---- the disks ---- */

struct ot_probe_nvme_config {
    /* As a run's, with what may be used of each directory; extents and memory are the probe's own. */
    const struct ot_store_config *store;
    size_t bytes;        /* of temporary files, at most, in all directories together */
    size_t memory_bytes; /* to read and write, at most; 0: what all rows need, 128 MiB */
    double seconds;      /* that one row may measure, once and a half, and then what is in flight */
    bool quick;          /* through the store alone */
    struct ot_probe_reader reader;
};

enum { OT_PROBE_NVME_NOTE_BYTES = 256 };
struct ot_probe_nvme_result {
    int64_t written_bytes;                /* to the disks */
    char store[OT_PROBE_NVME_NOTE_BYTES]; /* what the store used (ot_store_describe) */
};

/* Leaves no file behind. Errors: OT_E_IO, OT_E_BUDGET (no memory, or too little room). */
int ot_probe_nvme(const struct ot_probe_nvme_config *config, struct ot_probe_nvme_result *out);

/* ---- what predictions start from ---- */

struct ot_probe_sums { /* by use; zeroed at first */
    double work[OT_PROBE_USES], seconds[OT_PROBE_USES];
    double apart[OT_PROBE_USES]; /* seconds times spread */
};
void ot_probe_add(struct ot_probe_sums *sums, const struct ot_probe_row *row);
/* Rates without a row stay as they are. The spread of several rows is their mean, by their time. */
void ot_probe_put_rates(const struct ot_probe_sums *sums, struct ot_rates *out);

#endif
