/* The probe's rows: their names, and the rates that they give. */
#include "offload/probe/probe_state.h"

const char *ot_probe_group_name(enum ot_probe_group group) {
    static const char *const names[OT_PROBE_GROUPS] = {
        [OT_PROBE_COPY] = "copy",           [OT_PROBE_GEMM] = "gemm", [OT_PROBE_ATTENTION] = "attention",
        [OT_PROBE_KERNEL] = "kernel",       [OT_PROBE_TASK] = "task", [OT_PROBE_MEMORY] = "memory",
        [OT_PROBE_OPTIMIZER] = "optimizer", [OT_PROBE_NVME] = "nvme"};
    return names[group];
}

const char *ot_probe_io_name(enum ot_probe_io io) {
    static const char *const names[OT_PROBE_IOS] = {"read", "write", "mixed"};
    return names[io];
}

enum ot_probe_unit ot_probe_group_unit(enum ot_probe_group group) {
    if (group == OT_PROBE_TASK)
        return OT_PROBE_TASKS;
    return group == OT_PROBE_GEMM || group == OT_PROBE_ATTENTION ? OT_PROBE_FLOPS : OT_PROBE_BYTES;
}

int ot_probe_report(const struct ot_probe_reader *reader, struct ot_probe_row row) {
    row.rate = row.seconds > 0 ? row.work / row.seconds : 0;
    return reader->row(reader->context, &row);
}

int ot_probe_report_times(const struct ot_probe_reader *reader, struct ot_probe_row row,
                          const struct ot_repeats *times) {
    row.seconds = ot_repeats_median(times);
    row.spread = ot_repeats_spread(times);
    return ot_probe_report(reader, row);
}

void ot_probe_add(struct ot_probe_sums *sums, const struct ot_probe_row *row) {
    sums->work[row->use] += row->work;
    sums->seconds[row->use] += row->seconds;
    sums->apart[row->use] += row->seconds * row->spread;
}

/* Sets out->spread and out->uncertain: the rate with the largest spread. */
static void put_spread(const struct ot_probe_sums *sums, struct ot_rates *out) {
    static const char *const names[OT_PROBE_USES] = {[OT_PROBE_PRODUCT] = "products",
                                                     [OT_PROBE_GROUP_PRODUCT] = "products by groups",
                                                     [OT_PROBE_ATTENTION_FORWARD] = "attention forward",
                                                     [OT_PROBE_ATTENTION_BACKWARD] = "attention backward",
                                                     [OT_PROBE_DEVICE_COPY] = "copies on the device",
                                                     [OT_PROBE_H2D] = "copies to the device",
                                                     [OT_PROBE_D2H] = "copies from the device",
                                                     [OT_PROBE_BOTH] = "copies both ways",
                                                     [OT_PROBE_START] = "starting a task",
                                                     [OT_PROBE_TRIAD] = "the host's memory",
                                                     [OT_PROBE_ADAMW] = "the optimizer",
                                                     [OT_PROBE_ADAMW_16BIT] = "the optimizer, 16-bit state",
                                                     [OT_PROBE_ADAMW_8BIT] = "the optimizer, 8-bit state",
                                                     [OT_PROBE_CRC] = "checksums",
                                                     [OT_PROBE_NVME_READ] = "reading the disks",
                                                     [OT_PROBE_NVME_WRITE] = "writing the disks",
                                                     [OT_PROBE_NVME_MIXED] = "reading and writing the disks",
                                                     [OT_PROBE_NVME_READ_START] = "single reads",
                                                     [OT_PROBE_NVME_WRITE_START] = "single writes"};
    for (int use = 0; use < OT_PROBE_USES; use++) {
        double spread = sums->seconds[use] > 0 ? sums->apart[use] / sums->seconds[use] : 0;
        if (!names[use] || spread <= out->spread)
            continue;
        out->spread = spread;
        out->uncertain = names[use];
    }
}

void ot_probe_put_rates(const struct ot_probe_sums *sums, struct ot_rates *out) {
    struct ot_attention_rates *large = &out->attention[OT_HEAD_128], *small = &out->attention[OT_HEAD_64];
    double *const rates[OT_PROBE_USES] = {[OT_PROBE_PRODUCT] = &out->product_flops,
                                          [OT_PROBE_GROUP_PRODUCT] = &out->group_flops,
                                          [OT_PROBE_ATTENTION_FORWARD] = &large->forward,
                                          [OT_PROBE_ATTENTION_BACKWARD] = &large->backward,
                                          [OT_PROBE_ATTENTION_64_FORWARD] = &small->forward,
                                          [OT_PROBE_ATTENTION_64_BACKWARD] = &small->backward,
                                          [OT_PROBE_DEVICE_COPY] = &out->device_bytes,
                                          [OT_PROBE_H2D] = &out->h2d_bytes,
                                          [OT_PROBE_D2H] = &out->d2h_bytes,
                                          [OT_PROBE_BOTH] = &out->both_bytes,
                                          [OT_PROBE_TRIAD] = &out->triad_bytes,
                                          [OT_PROBE_ADAMW] = &out->adamw_bytes[OT_STATE_F32],
                                          [OT_PROBE_ADAMW_16BIT] = &out->adamw_bytes[OT_STATE_16BIT],
                                          [OT_PROBE_ADAMW_8BIT] = &out->adamw_bytes[OT_STATE_8BIT],
                                          [OT_PROBE_CRC] = &out->crc_bytes,
                                          [OT_PROBE_NVME_READ] = &out->nvme_read_bytes,
                                          [OT_PROBE_NVME_WRITE] = &out->nvme_write_bytes,
                                          [OT_PROBE_NVME_MIXED] = &out->nvme_mixed_bytes};
    for (int use = 0; use < OT_PROBE_USES; use++)
        if (rates[use] && sums->seconds[use] > 0)
            *rates[use] = sums->work[use] / sums->seconds[use];
    double *const starts[OT_PROBE_USES] = {[OT_PROBE_START] = &out->task_seconds,
                                           [OT_PROBE_NVME_READ_START] = &out->nvme_read_seconds,
                                           [OT_PROBE_NVME_WRITE_START] = &out->nvme_write_seconds};
    for (int use = 0; use < OT_PROBE_USES; use++)
        if (starts[use] && sums->work[use] > 0)
            *starts[use] = sums->seconds[use] / sums->work[use];
    put_spread(sums, out);
}
