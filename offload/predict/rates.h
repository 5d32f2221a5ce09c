/* What a machine can do, in numbers: measured by the probe, taken from a card (a GPU that one does not own),
 * or said by the user. The costs of a schedule's tasks follow from them (costs.h).
 *
 * Rates are what a long run of the work reaches, not what a data sheet says. 0: unknown or absent.
 */
#ifndef OT_OFFLOAD_PREDICT_RATES_H
#define OT_OFFLOAD_PREDICT_RATES_H

#include <stdbool.h>

struct ot_rates {
    /* the device, in the training dtype */
    double product_flops;   /* FLOP/s of a decoder layer's products */
    double attention_flops; /* FLOP/s of causal attention, counting the half that is not masked */
    double device_bytes;    /* bytes/s that a kernel reads and writes in device memory */
    double h2d_bytes;       /* bytes/s from pinned memory, alone */
    double d2h_bytes;       /* and to it */
    double both_bytes;      /* sum of both ways at once */
    /* the host */
    double triad_bytes;  /* bytes/s of memory, all cores */
    double adamw_bytes;  /* bytes/s of the optimizer on all its threads, as it counts them (adamw.h) */
    int cores;           /* that the process may use */
    bool device_is_host; /* the cpu device: ops, copies and the optimizer share cores and memory */
    int device_threads, optimizer_threads; /* of the cpu device's ops, of the optimizer; 0: one a core */
    /* the disks, through the store, all directories together */
    double nvme_read_bytes, nvme_write_bytes;
    double nvme_mixed_bytes; /* sum of both ways at once */
    double crc_bytes;        /* bytes/s of checksums on one thread */
    double task_seconds;     /* what it costs to start a task */
    /* Of the rate that is known least: how far its repeats lay apart, as a share of it (repeats.h), and its
     * name for people, a constant. 0 and NULL: unknown. */
    double spread;
    const char *uncertain;
};

#endif
