/* offload-train comm-test: checks a communicator between ranks, and measures it. */
#include <stdio.h>
#include <stdlib.h>

#include "offload/comm/comm.h"
#include "offload/probe/comm_rates.h"
#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/base/units.h"
#include "src/cli/command.h"
#include "src/cli/launch.h"
#include "src/plan/comm_test.h"
#include "src/session/open.h"

enum { MAX_RATES = 4 * OT_LIST_MAX };

struct comm_test {
    const struct ot_options *options;
    struct ot_session session;
    struct ot_world *world;
    struct ot_comm *comm;
    int n_checks;
    int n_rates;
    struct ot_comm_rate rates[MAX_RATES];
};

/* ---- results ---- */

static int keep_rate(void *context, const struct ot_comm_rate *rate) {
    struct comm_test *t = context;
    if (t->n_rates == MAX_RATES)
        return ot_fail(OT_E_INTERNAL, "there are more than %d rows", MAX_RATES);
    t->rates[t->n_rates++] = *rate;
    return 0;
}

static void print_table(const struct comm_test *t) {
    char part[OT_TEXT_BYTES], time[OT_TEXT_BYTES], rate[OT_TEXT_BYTES], share[OT_TEXT_BYTES];
    printf("%-12s %12s %12s %16s %16s\n", "operation", "part", "time", "received", "of a copy");
    for (int i = 0; i < t->n_rates; i++) {
        const struct ot_comm_rate *row = &t->rates[i];
        snprintf(rate, sizeof rate, "-");
        snprintf(share, sizeof share, "-");
        if (row->received_bytes > 0)
            snprintf(rate, sizeof rate, "%.3f GB/s", row->rate * 1e-9);
        if (row->copy_rate > 0)
            snprintf(share, sizeof share, "%.0f %%", 100 * row->rate / row->copy_rate);
        printf("%-12s %12s %12s %16s %16s\n", row->operation, ot_text_bytes((int64_t)row->part_bytes, part),
               ot_text_seconds(row->seconds, time), rate, share);
    }
}

static int print_json(const struct comm_test *t) {
    struct ot_json_writer w = {.indent = -1};
    ot_json_begin_object(&w, NULL);
    ot_json_put_text(&w, "version", OT_VERSION);
    ot_json_put_text(&w, "device", ot_device_name(t->session.machine.device));
    ot_json_put_text(&w, "comm", ot_comm_describe(t->comm));
    ot_json_put_int(&w, "ranks", ot_comm_ranks(t->comm));
    ot_json_put_int(&w, "checks", t->n_checks);
    ot_json_begin_array(&w, "rows");
    for (int i = 0; i < t->n_rates; i++) {
        const struct ot_comm_rate *row = &t->rates[i];
        ot_json_begin_object(&w, NULL);
        ot_json_put_text(&w, "operation", row->operation);
        ot_json_put_int(&w, "part_bytes", (int64_t)row->part_bytes);
        ot_json_put_int(&w, "received_bytes", (int64_t)row->received_bytes);
        ot_json_put_real(&w, "seconds", row->seconds);
        ot_json_put_real(&w, "bytes_per_s", row->rate);
        if (row->copy_rate > 0)
            ot_json_put_real(&w, "copy_bytes_per_s", row->copy_rate);
        ot_json_end_object(&w);
    }
    ot_json_end_array(&w);
    ot_json_end_object(&w);
    return ot_json_print(&w);
}

/* ---- the command ---- */

static int check(struct comm_test *t) {
    static const size_t sizes[] = {0, 1, 7, 4095, 4096, 65537, (1 << 20) + 3};
    struct ot_comm_checks checks = {.comm = t->comm,
                                    .device = t->session.machine.device,
                                    .sizes = sizes,
                                    .n_sizes = sizeof sizes / sizeof *sizes,
                                    .delay_seed = 1,
                                    .crosses = true};
    OT_TRY(ot_comm_checks_run(&checks));
    t->n_checks = checks.done;
    ot_log(OT_LOG_INFO, "checks  %d passed", t->n_checks);
    return 0;
}

static int measure(struct comm_test *t, bool is_gpu) {
    const struct ot_count_list *list = &t->options->sizes;
    size_t sizes[OT_LIST_MAX];
    struct ot_comm_rates_config config = {.comm = t->comm,
                                          .device = t->session.machine.device,
                                          .is_gpu = is_gpu,
                                          .sizes = sizes,
                                          .n_sizes = list->n,
                                          .with_transfers = ot_comm_need_transfers(t->comm) == 0,
                                          .take = keep_rate,
                                          .context = t};
    for (int i = 0; i < list->n; i++)
        sizes[i] = (size_t)list->values[i];
    OT_TRY(ot_comm_rates_measure(&config));
    if (ot_comm_rank(t->comm) != 0)
        return 0;
    if (t->options->json)
        return print_json(t);
    print_table(t);
    return 0;
}

static int run(struct comm_test *t) {
    const struct ot_options *in_effect = t->session.options;
    bool is_gpu = in_effect->device.kind == OT_DEVICE_CUDA;
    struct ot_comm_config config = {.name = in_effect->comm,
                                    .world = t->world,
                                    .device = t->session.machine.device,
                                    .device_index = is_gpu ? in_effect->device.index : -1,
                                    .plugin_dirs = getenv("OFFLOAD_TRAIN_PLUGINS"),
                                    .timeout_seconds = in_effect->comm_timeout};
    OT_TRY(ot_comm_open(&config, &t->comm));
    ot_log(OT_LOG_INFO, "machine %s", ot_device_name(t->session.machine.device));
    ot_log(OT_LOG_INFO, "comm    %s", ot_comm_describe(t->comm));
    if (ot_comm_need_transfers(t->comm) < 0)
        ot_log(OT_LOG_WARN, "%s", ot_error_text());
    OT_TRY(check(t));
    return measure(t, is_gpu);
}

/* Without a GPU that was asked for, each rank of a host takes its own, if it sees several. */
static void choose_gpu(struct ot_settings *settings, const struct ot_ranks *ranks) {
    char bus_id[OT_BUS_ID_BYTES];
    if (ranks->ranks > 1 && settings->in_effect.device.kind == OT_DEVICE_AUTO &&
        ot_device_bus_id("cuda", ranks->local_rank, bus_id))
        ot_settings_choose_device(
            settings, (struct ot_device_choice){.kind = OT_DEVICE_CUDA, .index = ranks->local_rank});
}

/* A launcher may not say where rank 0 is. Then only a communicator that connects the ranks by itself works.
 */
static int open_world(struct comm_test *t) {
    struct ot_launch launch;
    OT_TRY(ot_launch_find(t->options, &launch));
    if (launch.ranks.rank != 0) /* rank 0 speaks for all */
        ot_log_set_level(OT_LOG_WARN);
    if (launch.ranks.ranks > 1 && !*launch.ranks.address)
        return 0;
    return ot_launch_world(t->options, &launch, &t->world);
}

int ot_command_comm_test(const struct ot_options *options) {
    struct ot_settings settings = {*options};
    struct comm_test *t = calloc(1, sizeof *t);
    if (!t)
        return ot_fail(OT_E_BUDGET, "no memory");
    t->options = options;
    int rc = open_world(t);
    if (rc == 0) {
        if (t->world)
            choose_gpu(&settings, ot_world_ranks(t->world));
        rc = ot_session_open_machine(&settings, &t->session);
        if (rc == 0)
            rc = run(t);
        if (rc < 0 && t->world) {
            struct ot_error error;
            ot_error_save(&error, rc);
            rc = ot_world_fail(t->world, &error);
        }
        ot_comm_close(t->comm);
        ot_session_close(&t->session);
    }
    ot_world_close(t->world);
    free(t);
    return rc;
}
