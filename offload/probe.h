/* The probe: how fast a device is at what training asks of it, measured through the device interface alone.
 *
 * Copies each way and both ways at once, in pieces like a slab's; the copy within device memory, which is the
 * measure of every kernel that only moves bytes; the products of a decoder layer, forward and backward, which
 * give the peak that MFU is a share of; attention by context length and head size; and every other kernel in
 * bytes that it must move over time. Sizes are those of a model (hidden, tokens), so that a workstation's CPU
 * and a data-centre GPU each get something that fits.
 *
 * Data are random: constant inputs draw less power and run faster. Buffers are far larger than caches. Each
 * row is timed by events on the lane, after a first call that warms it up, over as many calls as fill the
 * time given; the median of three such runs counts. Before, the device tunes itself for the products, as it
 * does in training.
 *
 * One thread; the device is the probe's alone while it runs.
 */
#ifndef OT_OFFLOAD_PROBE_H
#define OT_OFFLOAD_PROBE_H

#include "kernels/ops.h"

enum ot_probe_group { OT_PROBE_COPY, OT_PROBE_GEMM, OT_PROBE_ATTENTION, OT_PROBE_KERNEL, OT_PROBE_GROUPS };
const char *ot_probe_group_name(enum ot_probe_group group); /* "copy", "gemm", "attention", "kernel" */

struct ot_probe_row {
    enum ot_probe_group group;
    const char *name; /* valid during the call */
    double seconds;   /* of one call */
    double rate;      /* bytes or FLOPs a second */
    double peak;      /* what the rate is compared with: plain device copy, best product; 0: nothing */
};

struct ot_probe_config {
    struct ot_device *device;
    enum ot_dtype dtype;    /* of activations and weights */
    int64_t hidden, tokens; /* hidden: a multiple of 128 */
    size_t buffer_bytes;    /* of each of four device buffers and one pinned one */
    double seconds;         /* that one row may measure; a call that takes longer is measured once */
    /* Called with each row as it is known; a negative result ends the probe and is returned. */
    int (*row)(void *context, const struct ot_probe_row *row);
    void *context;
};

/* Errors: OT_E_BUDGET, OT_E_DEVICE, OT_E_USAGE (buffers too small for the model). */
int ot_probe_device(const struct ot_probe_config *config);

/* Bytes of one buffer that the given model needs at least. */
size_t ot_probe_buffer_bytes(int64_t hidden, int64_t tokens);

#endif
