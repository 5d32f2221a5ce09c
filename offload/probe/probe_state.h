/* Declarations that the files of the probe share. Private to offload/probe. */
#ifndef OT_OFFLOAD_PROBE_PROBE_STATE_H
#define OT_OFFLOAD_PROBE_PROBE_STATE_H

#include "offload/probe/probe.h"

enum { OT_PROBE_BUFFERS = 4 };

struct ot_probe {
    const struct ot_probe_config *config;
    const struct ot_ops *ops;
    struct ot_lane *h2d, *compute, *d2h;
    struct ot_event *events[4];
    void *memory;                    /* device memory: all buffers */
    char *buffers[OT_PROBE_BUFFERS]; /* config->buffer_bytes each, random numbers */
    void *pinned;                    /* as large as one buffer */
    int64_t rows;                    /* rows of `hidden` fp32 values that fit a buffer */
    int64_t vocab;
    /* device: [rows] token ids, then positions, then row starts; then the offsets of the groups */
    int32_t *ids;
    double product_rate; /* FLOPs a second of the best product */
    /* Bytes a second that a copy in device memory reads and writes; ot_probe_ops sets it. */
    double copy_rate;
};

/* The groups of products by groups: they divide the tokens equally. */
enum { OT_PROBE_EXPERTS = 16 };

struct ot_probe_call {
    void (*enqueue)(struct ot_probe *p, const void *op);
    const void *op;
};

/* Times n calls on the compute lane, with alternating repeats. times: [n]. Errors: OT_E_DEVICE,
 * OT_E_BUDGET. */
int ot_probe_measure(struct ot_probe *p, const struct ot_probe_call *calls, int n, struct ot_repeats *times);
/* Computes the row's rate and passes the row to the reader. */
int ot_probe_report(const struct ot_probe_reader *reader, struct ot_probe_row row);
/* As ot_probe_report, with seconds and spread from the repeats. */
int ot_probe_report_times(const struct ot_probe_reader *reader, struct ot_probe_row row,
                          const struct ot_repeats *times);
/* Lets the device tune its matrix products. Overwrites the buffers, so call it before they are filled.
 * Errors: OT_E_DEVICE. */
int ot_probe_tune(struct ot_probe *p);
int ot_probe_ops(struct ot_probe *p);
int ot_probe_largest(struct ot_probe *p, double *rate);

/* ---- the disks ---- */

/* Bytes of I/O buffers that the probe may use. */
static inline size_t ot_probe_io_bytes(const struct ot_probe_nvme_config *config) {
    size_t most = (size_t)128 << 20;
    return config->memory_bytes && config->memory_bytes < most ? config->memory_bytes : most;
}
/* Maps memory for I/O and fills it with random bytes. The caller unmaps *out. Errors: OT_E_BUDGET (no
 * memory). */
int ot_probe_map_random(size_t bytes, char **out);
/* Measures the I/O engines alone, without the store. best[io]: the highest rate of each kind of I/O. Errors:
 * as ot_probe_nvme. */
int ot_probe_engines(const struct ot_probe_nvme_config *config, int64_t *written_bytes,
                     double best[OT_PROBE_IOS]);

/* The width of the MLP for a hidden size, in Llama's proportion (11008 to 4096), a multiple of 128. */
static inline int64_t ot_probe_inter(int64_t hidden) {
    return hidden * 8 / 3 / 128 * 128 + 128;
}

#endif
