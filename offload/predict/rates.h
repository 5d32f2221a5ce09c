/* The speeds of a machine. They come from the probe's measurements, from a card (the known rates of a GPU
 * that this machine lacks) or from the user's options. The costs of a schedule's tasks follow from them
 * (costs.h).
 *
 * A rate is the speed of real work, not the figure of a data sheet. 0: unknown or absent. The probe measures
 * the products and the attention of a GPU in calls with pauses between them. If the GPU lowers its clock
 * under a long load, training is slower than these two rates say: calibrate.h measures by how much. A card's
 * rates are those of whole steps.
 *
 * SEVERAL RANKS. The rates are those of one rank while all ranks work. The ranks of a host divide its memory,
 * cores and disks equally (ot_rates_divide). The rates of the link are those of one GPU while all copy: GPUs
 * behind one PCIe switch share its link to the host, so each has a part of it. The probe measures them that
 * way, because all ranks measure at the same time.
 * The communicator is described by four numbers. An operation takes comm_seconds, and its received bytes
 * divided by comm_bytes. While it runs it also uses the rank's link (comm_link) and its share of host memory
 * (comm_memory). With these the simulator lets it compete with copies and with the optimizer. Typical cases:
 *
 *   the bytes cross        comm_link   comm_memory
 *   NVLink                 0           0
 *   PCIe, from GPU to GPU  2           0              out of one GPU, into another
 *   host memory            2           2              written once, read once
 *
 * Network between hosts: comm_bytes is then the share of a rank in its host's network rate. Holders of a
 * stage (plan/stages.h) that are on one host do not use the network, so these have rates of their own. So
 * have transfers from one rank to one other: those inside a host, and those between hosts, which divide the
 * network of the host with the transfers that cross at the same time.
 */
#ifndef OT_OFFLOAD_PREDICT_RATES_H
#define OT_OFFLOAD_PREDICT_RATES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/state_format.h"
#include "offload/block.h"

/* Sizes of attention's heads that have rates of their own. Small heads have fewer products for each
 * exponential, and large heads need other kernels. */
enum ot_head_size { OT_HEAD_64, OT_HEAD_128, OT_HEAD_256, OT_HEAD_SIZES };

/* FLOP/s of causal attention. Masked scores do not count. Forward has 2 products, backward 5; further
 * recomputation by a kernel does not count. */
struct ot_attention_rates {
    double forward, backward;
};

struct ot_rates {
    /* the device, in the training dtype */
    double product_flops; /* FLOP/s of a decoder layer's matrix products */
    double group_flops;   /* FLOP/s of products by groups, which experts take; 0: as product_flops */
    /* The rates of heads of 128 elements are always known. 0 elsewhere: as heads of 128. */
    struct ot_attention_rates attention[OT_HEAD_SIZES];
    double device_bytes; /* bytes/s that a kernel reads and writes, added, in device memory */
    double h2d_bytes;    /* bytes/s from pinned memory, while nothing else is copied */
    double d2h_bytes;    /* bytes/s to pinned memory, likewise */
    double both_bytes;   /* sum of both directions, while both are copied */
    /* the host */
    double triad_bytes; /* bytes/s of host memory that all cores reach together */
    /* Bytes/s of the optimizer on all its threads, by format of the state (ot_adamw_bytes in adamw.h says
     * which bytes count). A compact state moves fewer bytes a parameter, but computes more. */
    double adamw_bytes[OT_STATE_FORMATS];
    int cores;           /* cores that the process may use */
    bool device_is_host; /* the cpu device: ops, copies and the optimizer share cores and memory */
    /* Threads of the cpu device's ops, and of the optimizer; 0: one a core. */
    int device_threads, optimizer_threads;
    /* the disks, through the store, with all its directories together */
    double nvme_read_bytes, nvme_write_bytes;
    double nvme_mixed_bytes; /* sum of reads and writes, while both run */
    /* Fixed time of a transfer through the store: the part of its latency that the next transfer does not
     * hide. */
    double nvme_read_seconds, nvme_write_seconds;
    double crc_bytes;    /* bytes/s of checksums on one thread */
    double task_seconds; /* time to start a task */
    /* several ranks */
    double comm_bytes; /* bytes/s that a rank receives from the other ranks, while all ranks do */
    /* The ranks of a host, and what comm_bytes and comm_seconds are if all bytes stay inside hosts. 0: not
     * known. */
    int host_ranks;
    double host_comm_bytes, host_comm_seconds;
    /* The rates of transfers between stages: bytes/s in one direction, while the other direction works too,
     * and the seconds of a transfer without bytes. `inside` is for ranks of one host. `between` is the
     * network of a host; it counts if host_ranks is known, else all transfers are as inside. 0 bytes/s:
     * transfers take comm_bytes and comm_seconds. */
    struct ot_transfer_rate {
        double bytes, seconds;
    } inside, between;
    double comm_seconds; /* time of an operation without bytes */
    double comm_link;    /* bytes that cross the rank's link for each byte that it receives */
    double comm_memory;  /* bytes of host memory that are read or written for each byte that it receives */
    /* The largest spread among the measured rates, as a share of the rate (ot_repeats_spread), and the name
     * of that rate for messages (a constant string). 0 and NULL: unknown. */
    double spread;
    const char *uncertain;
};

/* The rates of attention for heads of head_dim elements: the rates of the next larger measured size. 0:
 * unknown, as 128. */
struct ot_attention_rates ot_rates_attention(const struct ot_rates *rates, int64_t head_dim);

/* Multiplies the rates of the host's memory and of the optimizer. */
void ot_rates_scale_memory(struct ot_rates *rates, double factor);
/* Leaves one rank its share of a host whose rates were measured while it worked alone: host memory, the
 * optimizer, cores and disks. local_ranks: ranks of the host, at least 1. */
void ot_rates_divide(struct ot_rates *rates, int local_ranks);

/* ---- repeats ---- */

/* Times calls on a machine that other programs disturb. The time of a call is the median of several short
 * repeats. The repeats of several calls alternate, so that a disturbance meets one repeat of each call
 * instead of all repeats of one call. A call with a large spread is repeated more often, within a limit.
 *
 * The median is used, not the minimum: training will share the machine with the same other programs.
 */

enum { OT_REPEATS = 5, OT_REPEATS_MOST = 15 };
/* A larger spread is noise. Noise alone would then make a prediction as wrong as it is allowed to be. */
#define OT_REPEATS_NOISY 0.1

struct ot_repeats {
    int n;
    double seconds[OT_REPEATS_MOST]; /* seconds of one call, a value for each repeat */
};

/* Does nothing if it holds OT_REPEATS_MOST. */
void ot_repeats_add(struct ot_repeats *repeats, double seconds);
double ot_repeats_median(const struct ot_repeats *repeats);
/* Half of the distance between the quartiles, as a share of the median. Half of the repeats differ from the
 * middle by no more than that. 0 for a single repeat: its spread is unknown. */
double ot_repeats_spread(const struct ot_repeats *repeats);

struct ot_timed_calls {
    int n;
    /* Runs call number `call` count times in a row and sets the seconds of one. A negative result ends the
     * measurement and is returned. */
    int (*time)(void *context, int call, int count, double *seconds);
    void *context;
    double seconds; /* limit for the repeats of one call; a noisy call may take three times as long */
};
/* Runs each call for warm-up, then repeats it OT_REPEATS times; at least 3 times if the call is long, up to
 * OT_REPEATS_MOST times if it is noisy. out: [calls->n]. Errors: OT_E_BUDGET (no memory), or the result of
 * calls->time. */
int ot_repeats_take(const struct ot_timed_calls *calls, struct ot_repeats *out);

/* ---- copy rates ---- */

/* Measures how fast the present device copies from and to pinned memory, one way and both ways at once, in
 * pieces about as large as a tile. */

struct ot_device;

/* Sets the copy rates of *rates; does nothing if all three are known. device_bytes: the device memory that it
 * may use. Works for about 0.2 seconds, with lanes of its own. Errors: OT_E_BUDGET, OT_E_DEVICE. */
int ot_copy_rates_measure(struct ot_device *device, size_t device_bytes, struct ot_rates *rates);

/* ---- decode rate ---- */

/* Measures how fast a chain decodes its encoded slabs (offload/block.h) on the present device.
 *
 * The rate counts the bytes that decoding reads and writes, as the cost of a decode task does (costs.c). The
 * largest encoded slab, which is a layer's, is measured. On a GPU memory limits decoding, so the rate is
 * about that of any kernel. On the cpu device arithmetic limits it, and the rate is several times lower.
 */

/* device_bytes: the device memory that it may use. seconds: about how long it may take. *rate: bytes/s; 0
 * if no slab is encoded, or the largest one does not fit into the memory. Errors: OT_E_BUDGET,
 * OT_E_DEVICE. */
int ot_decode_rate_measure(const struct ot_chain *chain, struct ot_device *device, size_t device_bytes,
                           double seconds, double *rate);

#endif
