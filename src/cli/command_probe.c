/* offload-train probe: measures the rates of this machine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/adamw.h"
#include "kernels/device.h"
#include "offload/probe/probe.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/hash.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/base/signals.h"
#include "src/base/units.h"
#include "src/cli/command.h"
#include "src/cli/launch.h"
#include "src/session/device.h"
#include "src/session/forecast.h"
#include "src/session/measure.h"
#include "src/session/open.h"
#include "src/session/session_ranks.h"

/* ---- the table ---- */

/* Prints the probe's rows as a table for people, while they arrive: a heading for each group, then one line
 * for each row, with the spread of its repeats. Disks have one line for each engine, block size and depth. */

struct ot_probe_table {
    FILE *out; /* NULL: prints nothing */
    int rows;  /* printed so far */
    struct ot_probe_row last;
    struct { /* the incomplete line of the disks */
        double rates[OT_PROBE_IOS], peaks[OT_PROBE_IOS], spreads[OT_PROBE_IOS];
        int rows;
    } disks;
};

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

static void probe_table_add(struct ot_probe_table *t, const struct ot_probe_row *row) {
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

static void probe_table_end(struct ot_probe_table *t) {
    if (t->out)
        end_disk_line(t);
}

/* ---- command probe ---- */

enum { MAX_ROWS = 512, NAME_BYTES = 48 };

struct probe_run {
    const struct ot_options *options;
    struct ot_probe_table table;
    int n;
    struct ot_probe_row rows[MAX_ROWS];
    char names[MAX_ROWS][NAME_BYTES];
    struct ot_rates rates;
    struct ot_peers peers;
};

static int take_row(void *context, const struct ot_probe_row *row) {
    struct probe_run *run = context;
    if (run->n == MAX_ROWS)
        return ot_fail(OT_E_INTERNAL, "the probe has more than %d rows", MAX_ROWS);
    probe_table_add(&run->table, row);
    snprintf(run->names[run->n], NAME_BYTES, "%s", row->name);
    run->rows[run->n] = *row;
    run->rows[run->n].name = run->names[run->n];
    run->n++;
    return ot_stop_requested() ? ot_fail(OT_E_INTERRUPT, "the probe was stopped; its rates are not kept") : 0;
}

/* ---- JSON ---- */

static void put_disk(const struct ot_probe_disk *disk, struct ot_json_writer *w) {
    ot_json_put_text(w, "by", disk->by_store ? "store" : ot_io_choice_name(disk->engine));
    ot_json_put_text(w, "io", ot_probe_io_name(disk->io));
    if (disk->by_store)
        return;
    ot_json_put_int(w, "block_bytes", disk->block_bytes);
    ot_json_put_int(w, "depth", disk->depth);
}

static void put_host(const struct ot_session *s, struct ot_json_writer *w) {
    struct ot_topology_summary t;
    ot_topology_summarise(s->machine.topology, &t);
    ot_json_begin_object(w, "host");
    ot_json_put_text(w, "cpu", s->machine.limits.cpu);
    ot_json_put_int(w, "packages", t.packages);
    ot_json_put_int(w, "whole_cores", t.cores);
    ot_json_put_int(w, "hardware_threads", t.threads);
    ot_json_put_int(w, "memory_nodes", t.nodes);
    ot_json_put_int(w, "l1_bytes", t.l1_bytes);
    ot_json_put_int(w, "l2_bytes", t.l2_bytes);
    ot_json_put_int(w, "l3_bytes", t.l3_bytes);
    ot_json_put_text(w, "topology", ot_topology_describe(s->machine.topology));
    ot_json_put_text(w, "adamw_kernel", ot_adamw_kernel_name());
    ot_json_put_text(w, "crc_kernel", ot_crc32_kernel());
    ot_json_end_object(w);
}

static int print_json(const struct probe_run *run, const struct ot_session *s) {
    static const char *const amounts[OT_PROBE_UNITS] = {"bytes", "flops", "tasks"};
    static const char *const rates[OT_PROBE_UNITS] = {"bytes_per_s", "flops_per_s", "tasks_per_s"};
    struct ot_json_writer w = {.indent = -1};
    ot_json_begin_object(&w, NULL);
    ot_json_put_text(&w, "version", OT_VERSION);
    ot_json_put_text(&w, "device", ot_device_name(s->machine.device));
    ot_json_put_text(&w, "dtype", ot_dtype_name(s->model.dtype));
    ot_json_put_int(&w, "cores", s->machine.limits.cores);
    ot_json_put_int(&w, "ram_bytes", s->machine.limits.ram_bytes);
    put_host(s, &w);
    ot_json_begin_array(&w, "rows");
    for (int i = 0; i < run->n; i++) {
        const struct ot_probe_row *row = &run->rows[i];
        ot_json_begin_object(&w, NULL);
        ot_json_put_text(&w, "group", ot_probe_group_name(row->group));
        ot_json_put_text(&w, "name", row->name);
        if (row->group == OT_PROBE_NVME)
            put_disk(&row->disk, &w);
        ot_json_put_real(&w, "seconds", row->seconds);
        ot_json_put_real(&w, amounts[ot_probe_group_unit(row->group)], row->work);
        ot_json_put_real(&w, rates[ot_probe_group_unit(row->group)], row->rate);
        ot_json_put_real(&w, "spread", row->spread);
        if (row->peak > 0)
            ot_json_put_real(&w, "share", row->rate / row->peak);
        ot_json_end_object(&w);
    }
    ot_json_end_array(&w);
    ot_rates_put_json(&run->rates, "rates", &w);
    if (run->peers.is_known) {
        ot_json_begin_object(&w, "peers");
        ot_json_put_bool(&w, "access", run->peers.has_access);
        ot_json_put_real(&w, "bytes_per_s", run->peers.rate);
        ot_json_end_object(&w);
    }
    ot_json_end_object(&w);
    return ot_json_print(&w);
}

/* ---- the command ---- */

/* "L1 48.0 KiB and L2 2.0 MiB a core, L3 480.0 MiB" */
static void describe_caches(const struct ot_topology_summary *t, char *text, size_t bytes) {
    char l1[OT_TEXT_BYTES], l2[OT_TEXT_BYTES], l3[OT_TEXT_BYTES];
    if (t->l1_bytes == 0 || t->l2_bytes == 0)
        snprintf(text, bytes, "caches unknown");
    else
        snprintf(text, bytes, "L1 %s and L2 %s a core, L3 %s", ot_text_bytes(t->l1_bytes, l1),
                 ot_text_bytes(t->l2_bytes, l2), t->l3_bytes ? ot_text_bytes(t->l3_bytes, l3) : "none");
}

static void print_host(const struct ot_session *s) {
    char ram[OT_TEXT_BYTES], caches[128];
    struct ot_topology_summary t;
    ot_topology_summarise(s->machine.topology, &t);
    describe_caches(&t, caches, sizeof caches);
    ot_log(OT_LOG_INFO, "machine %s · RAM %s", ot_device_name(s->machine.device),
           ot_text_bytes(s->machine.limits.ram_bytes, ram));
    ot_log(OT_LOG_INFO, "        %s · %s · %s",
           *s->machine.limits.cpu ? s->machine.limits.cpu : "CPU of unknown name",
           ot_topology_describe(s->machine.topology), caches);
    if (ot_device_no_cuda())
        ot_log(OT_LOG_INFO, "        %s", ot_device_no_cuda());
    ot_log(OT_LOG_INFO, "        kernels AdamW %s, CRC-32 %s", ot_adamw_kernel_name(), ot_crc32_kernel());
}

/* Measures the joint rates of the ranks, after each has measured its own. */
static int measure_ranks(struct ot_session *s, struct probe_run *run) {
    char time[OT_TEXT_BYTES];
    if (!s->ranks.comm)
        return 0;
    OT_TRY(ot_session_ranks_measure(s, &run->rates, &run->peers));
    ot_log(OT_LOG_INFO, "ranks   each receives %.3f GB/s while all do · an operation takes %s",
           run->rates.comm_bytes * 1e-9, ot_text_seconds(run->rates.comm_seconds, time));
    if (run->peers.is_known)
        ot_log(OT_LOG_INFO, "peers   %.3f GB/s from each GPU to the next while all copy, %s",
               run->peers.rate * 1e-9,
               run->peers.has_access ? "from GPU to GPU" : "through host memory (no peer-to-peer copies)");
    return 0;
}

static int probe(struct ot_session *s, struct probe_run *run) {
    double since = ot_clock_seconds();
    char time[OT_TEXT_BYTES];
    const struct ot_probe_reader reader = {take_row, run};
    print_host(s);
    ot_session_warn_disks(s);
    OT_TRY(ot_stop_install("Stopping after the current measurement. Press Ctrl-C again to quit at once.\n"));
    int rc = ot_measure_machine(s, false, &reader, &run->rates);
    probe_table_end(&run->table);
    OT_TRY(rc);
    OT_TRY(measure_ranks(s, run));
    ot_rates_warn(&run->rates);
    if (ot_rates_keep(s, &run->rates) < 0)
        ot_log(OT_LOG_INFO, "rates   are not kept for later runs: %s", ot_error_text());
    ot_log(OT_LOG_INFO, "done    in %s", ot_text_duration(ot_clock_seconds() - since, time));
    return run->options->json && ot_is_rank0(s) ? print_json(run, s) : 0;
}

/* Several ranks measure the machine at the same time; rank 0 prints. */
static int open_and_probe(struct ot_session *s, struct ot_settings *settings, struct probe_run *run) {
    OT_TRY(ot_session_open_machine(settings, s));
    OT_TRY(ot_session_ranks_open(s));
    return probe(s, run);
}

static ssize_t write_to_log(void *cookie, const char *text, size_t bytes) {
    (void)cookie;
    ot_log_text(text, bytes);
    return (ssize_t)bytes;
}

/* With --json the table goes to the log, in order with its lines. NULL: no memory; then no table is printed.
 */
static FILE *open_log(void) {
    return fopencookie(NULL, "w", (cookie_io_functions_t){.write = write_to_log});
}

int ot_command_probe(const struct ot_options *options) {
    struct ot_settings settings = {*options};
    struct ot_session session = {0};
    struct probe_run *run = calloc(1, sizeof *run);
    if (!run)
        return ot_fail(OT_E_BUDGET, "no memory");
    run->options = options;
    int rc = ot_launch_join(options, &session.ranks.world);
    bool is_rank0 = ot_is_rank0(&session);
    FILE *log = options->json && !options->quiet && is_rank0 ? open_log() : NULL;
    run->table.out = !is_rank0 ? NULL : options->json ? log : stdout;
    if (rc == 0)
        rc = open_and_probe(&session, &settings, run);
    rc = ot_launch_leave(&session, session.ranks.world, rc);
    if (log)
        fclose(log);
    free(run);
    return rc;
}
