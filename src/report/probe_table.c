#include "src/report/probe_table.h"

#include <string.h>

/* ---- disks ---- */

static void print_disk_rates(FILE *out, const char *label, const double rates[OT_PROBE_IOS]) {
    fprintf(out, "  %-34s", label);
    for (int io = 0; io < OT_PROBE_IOS; io++)
        if (rates[io] > 0)
            fprintf(out, " %7.2f GB/s", rates[io] * 1e-9);
        else
            fprintf(out, " %12s", "-");
    fprintf(out, "\n");
}

static void print_disk_shares(FILE *out, const double rates[OT_PROBE_IOS], const double peaks[OT_PROBE_IOS]) {
    fprintf(out, "  %-34s", "  of the best engine");
    for (int io = 0; io < OT_PROBE_IOS; io++)
        fprintf(out, " %10.0f %%", peaks[io] > 0 ? 100 * rates[io] / peaks[io] : 0);
    fprintf(out, "\n");
}

static void print_disk_spreads(FILE *out, const double spreads[OT_PROBE_IOS]) {
    fprintf(out, "  %-34s", "  spread");
    for (int io = 0; io < OT_PROBE_IOS; io++)
        fprintf(out, " %10.1f %%", 100 * spreads[io]);
    fprintf(out, "\n");
}

static void end_disk_line(struct ot_probe_table *t) {
    const struct ot_probe_disk *disk = &t->last.disk;
    char label[64];
    if (t->disks.rows == 0)
        return;
    if (disk->by_store)
        snprintf(label, sizeof label, "the store");
    else
        snprintf(label, sizeof label, "%s %d KiB x %d", ot_io_choice_name(disk->engine),
                 disk->block_bytes / 1024, disk->depth);
    print_disk_rates(t->out, label, t->disks.rates);
    if (disk->by_store)
        print_disk_spreads(t->out, t->disks.spreads);
    if (disk->by_store && t->disks.peaks[0] > 0)
        print_disk_shares(t->out, t->disks.rates, t->disks.peaks);
    memset(&t->disks, 0, sizeof t->disks);
}

static bool is_same_line(const struct ot_probe_disk *a, const struct ot_probe_disk *b) {
    return a->by_store == b->by_store && a->engine == b->engine && a->block_bytes == b->block_bytes &&
           a->depth == b->depth;
}

static void add_disk(struct ot_probe_table *t, const struct ot_probe_row *row) {
    if (t->disks.rows > 0 && !is_same_line(&row->disk, &t->last.disk))
        end_disk_line(t);
    t->disks.rates[row->disk.io] = row->rate;
    t->disks.peaks[row->disk.io] = row->peak;
    t->disks.spreads[row->disk.io] = row->spread;
    t->disks.rows++;
}

/* ---- other groups ---- */

static void print_header(FILE *out, enum ot_probe_group group) {
    static const struct {
        const char *title, *share;
    } heads[OT_PROBE_GROUPS] = {
        [OT_PROBE_COPY] = {"copies between host and device", "of the two alone"},
        [OT_PROBE_GEMM] = {"products", "of the best"},
        [OT_PROBE_ATTENTION] = {"causal attention", "of the best product"},
        [OT_PROBE_KERNEL] = {"kernels, in bytes that must be moved", "of the copy"},
        [OT_PROBE_TASK] = {"starting a task", ""},
        [OT_PROBE_MEMORY] = {"memory of the host", ""},
        [OT_PROBE_OPTIMIZER] = {"optimizer on the host", "of the triad"},
    };
    if (group == OT_PROBE_NVME)
        fprintf(out, "%-36s %12s %12s %12s\n", "disks, by block size and depth", "read", "write", "mixed");
    else
        fprintf(out, "%-40s %14s %8s %12s%s%s\n", heads[group].title, "rate", "spread", "one call",
                *heads[group].share ? "   " : "", heads[group].share);
}

static void print_row(FILE *out, const struct ot_probe_row *row) {
    char rate[32], share[32] = "";
    enum ot_probe_unit unit = ot_probe_group_unit(row->group);
    if (unit == OT_PROBE_TASKS)
        snprintf(rate, sizeof rate, "%.0f tasks/s", row->rate);
    else if (unit == OT_PROBE_BYTES)
        snprintf(rate, sizeof rate, "%.1f GB/s", row->rate * 1e-9);
    else if (row->rate >= 1e12)
        snprintf(rate, sizeof rate, "%.1f TFLOP/s", row->rate * 1e-12);
    else
        snprintf(rate, sizeof rate, "%.1f GFLOP/s", row->rate * 1e-9);
    if (row->peak > 0)
        snprintf(share, sizeof share, "   %.0f %%", 100 * row->rate / row->peak);
    fprintf(out, "  %-38s %14s %6.1f %% %9.3f ms%s\n", row->name, rate, 100 * row->spread, 1e3 * row->seconds,
            share);
}

void ot_probe_table_add(struct ot_probe_table *t, const struct ot_probe_row *row) {
    if (!t->out)
        return;
    if (row->group != OT_PROBE_NVME)
        end_disk_line(t);
    if (t->rows == 0 || row->group != t->last.group)
        print_header(t->out, row->group);
    if (row->group == OT_PROBE_NVME)
        add_disk(t, row);
    else
        print_row(t->out, row);
    t->rows++;
    t->last = *row;
    fflush(t->out); /* show each row at once, also to the reader of a pipe */
}

void ot_probe_table_end(struct ot_probe_table *t) {
    if (t->out)
        end_disk_line(t);
}
