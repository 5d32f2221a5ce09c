/* The probe's rows: their names, and the rates that follow from them. */
#include "offload/probe_state.h"

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

double ot_probe_median(const double x[3]) {
    double low = x[0] < x[1] ? x[0] : x[1], high = x[0] < x[1] ? x[1] : x[0];
    return x[2] < low ? low : x[2] > high ? high : x[2];
}

int ot_probe_calls(double seconds, double once) {
    double count = seconds / 3 / (once > 1e-7 ? once : 1e-7);
    return count < 1 ? 1 : count > 1000 ? 1000 : (int)count;
}

int ot_probe_report(const struct ot_probe_reader *reader, struct ot_probe_row row) {
    row.rate = row.seconds > 0 ? row.work / row.seconds : 0;
    return reader->row(reader->context, &row);
}

void ot_probe_add(struct ot_probe_sums *sums, const struct ot_probe_row *row) {
    sums->work[row->use] += row->work;
    sums->seconds[row->use] += row->seconds;
}

void ot_probe_put_rates(const struct ot_probe_sums *sums, struct ot_rates *out) {
    double *const rates[OT_PROBE_USES] = {[OT_PROBE_PRODUCT] = &out->product_flops,
                                          [OT_PROBE_CAUSAL] = &out->attention_flops,
                                          [OT_PROBE_DEVICE_COPY] = &out->device_bytes,
                                          [OT_PROBE_H2D] = &out->h2d_bytes,
                                          [OT_PROBE_D2H] = &out->d2h_bytes,
                                          [OT_PROBE_BOTH] = &out->both_bytes,
                                          [OT_PROBE_TRIAD] = &out->triad_bytes,
                                          [OT_PROBE_ADAMW] = &out->adamw_bytes,
                                          [OT_PROBE_CRC] = &out->crc_bytes,
                                          [OT_PROBE_NVME_READ] = &out->nvme_read_bytes,
                                          [OT_PROBE_NVME_WRITE] = &out->nvme_write_bytes,
                                          [OT_PROBE_NVME_MIXED] = &out->nvme_mixed_bytes};
    for (int use = 0; use < OT_PROBE_USES; use++)
        if (rates[use] && sums->seconds[use] > 0)
            *rates[use] = sums->work[use] / sums->seconds[use];
    if (sums->work[OT_PROBE_START] > 0)
        out->task_seconds = sums->seconds[OT_PROBE_START] / sums->work[OT_PROBE_START];
}
