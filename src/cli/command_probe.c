/* offload-train probe: what this machine does, measured. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/probe.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/cli/command.h"
#include "src/cli/lines.h"
#include "src/cli/measure.h"
#include "src/cli/rates_cache.h"
#include "src/cli/session.h"
#include "src/cli/units.h"

enum { MAX_ROWS = 512, NAME_BYTES = 48 };

struct probe_run {
    const struct ot_options *options;
    FILE *table; /* NULL: none */
    int n;
    enum ot_probe_group last;
    struct ot_probe_row rows[MAX_ROWS];
    char names[MAX_ROWS][NAME_BYTES];
    struct ot_rates rates;
};

/* ---- the table ---- */

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
    fprintf(out, "%-40s %14s %12s   %s\n", heads[group].title, "rate", "one call", heads[group].share);
}

static void print_row(FILE *out, const struct ot_probe_row *row) {
    char rate[32], share[32] = "";
    switch (ot_probe_group_unit(row->group)) {
    case OT_PROBE_FLOPS:
        if (row->rate >= 1e12)
            snprintf(rate, sizeof rate, "%.1f TFLOP/s", row->rate * 1e-12);
        else
            snprintf(rate, sizeof rate, "%.1f GFLOP/s", row->rate * 1e-9);
        break;
    case OT_PROBE_TASKS:
        snprintf(rate, sizeof rate, "%.0f tasks/s", row->rate);
        break;
    default:
        snprintf(rate, sizeof rate, "%.1f GB/s", row->rate * 1e-9);
    }
    if (row->peak > 0)
        snprintf(share, sizeof share, "%.0f %%", 100 * row->rate / row->peak);
    fprintf(out, "  %-38s %14s %9.3f ms   %s\n", row->name, rate, 1e3 * row->seconds, share);
}

static int take_row(void *context, const struct ot_probe_row *row) {
    struct probe_run *run = context;
    if (run->n == MAX_ROWS)
        return ot_fail(OT_E_INTERNAL, "the probe has more than %d rows", MAX_ROWS);
    if (run->table && (run->n == 0 || row->group != run->last))
        print_header(run->table, row->group);
    if (run->table)
        print_row(run->table, row);
    if (run->table)
        fflush(run->table);
    run->last = row->group;
    snprintf(run->names[run->n], NAME_BYTES, "%s", row->name);
    run->rows[run->n] = *row;
    run->rows[run->n].name = run->names[run->n];
    run->n++;
    return 0;
}

/* ---- JSON ---- */

static int print_json(const struct probe_run *run, const struct ot_session *s) {
    static const char *const amounts[OT_PROBE_UNITS] = {"bytes", "flops", "tasks"};
    static const char *const rates[OT_PROBE_UNITS] = {"bytes_per_s", "flops_per_s", "tasks_per_s"};
    struct ot_json_writer w = {.indent = -1};
    ot_json_begin_object(&w, NULL);
    ot_json_put_text(&w, "version", OT_VERSION);
    ot_json_put_text(&w, "device", ot_device_name(s->device));
    ot_json_put_text(&w, "dtype", ot_dtype_name(s->dtype));
    ot_json_put_int(&w, "cores", s->machine.cores);
    ot_json_put_int(&w, "ram_bytes", s->machine.ram_bytes);
    ot_json_begin_array(&w, "rows");
    for (int i = 0; i < run->n; i++) {
        const struct ot_probe_row *row = &run->rows[i];
        ot_json_begin_object(&w, NULL);
        ot_json_put_text(&w, "group", ot_probe_group_name(row->group));
        ot_json_put_text(&w, "name", row->name);
        ot_json_put_real(&w, "seconds", row->seconds);
        ot_json_put_real(&w, amounts[ot_probe_group_unit(row->group)], row->work);
        ot_json_put_real(&w, rates[ot_probe_group_unit(row->group)], row->rate);
        if (row->peak > 0)
            ot_json_put_real(&w, "share", row->rate / row->peak);
        ot_json_end_object(&w);
    }
    ot_json_end_array(&w);
    ot_rates_put_json(&run->rates, "rates", &w);
    ot_json_end_object(&w);
    return ot_lines_print_json(&w);
}

static int probe(struct ot_session *s, struct probe_run *run) {
    double since = ot_clock_seconds();
    char memory[OT_TEXT_BYTES], time[OT_TEXT_BYTES];
    const struct ot_measure_size *size = ot_measure_size_for(s);
    const struct ot_probe_reader reader = {take_row, run};
    ot_log(OT_LOG_INFO, "machine %s · %d cores · RAM %s", ot_device_name(s->device), s->machine.cores,
           ot_text_bytes(s->machine.ram_bytes, memory));
    ot_log(OT_LOG_INFO, "probe   %s, layers %lld wide, %lld tokens, on random numbers",
           ot_dtype_name(s->dtype), (long long)size->hidden, (long long)size->tokens);
    OT_TRY(ot_measure_machine(s, false, &reader, &run->rates));
    ot_rates_keep(s, &run->rates);
    ot_log(OT_LOG_INFO, "done    in %s", ot_text_duration(ot_clock_seconds() - since, time));
    return run->options->json ? print_json(run, s) : 0;
}

int ot_command_probe(struct ot_options *options) {
    struct ot_session session;
    struct probe_run *run = calloc(1, sizeof *run);
    if (!run)
        return ot_fail(OT_E_BUDGET, "no memory");
    run->options = options;
    run->table = !options->json ? stdout : options->quiet ? NULL : stderr;
    int rc = ot_session_open_machine(options, &session);
    if (rc == 0)
        rc = probe(&session, run);
    ot_session_close(&session);
    free(run);
    return rc;
}
