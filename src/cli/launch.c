#include "src/cli/launch.h"

#include <stdlib.h>

#include "kernels/device.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/cli/local.h"

static int count_gpus(void) {
    char bus_id[OT_BUS_ID_BYTES];
    int n = 0;
    while (n < OT_MAX_RANKS && ot_device_bus_id("cuda", n, bus_id))
        n++;
    return n;
}

int ot_launch_find(const struct ot_options *options, struct ot_launch *out) {
    bool on_cpu = options->device.kind == OT_DEVICE_CPU;
    struct ot_launch_request request = {
        .gpus = options->gpus,
        .nodes = (int)options->nodes,
        .node_rank = ot_options_given(options, "node-rank") ? (int)options->node_rank : -1,
        .master = options->master,
        .visible_gpus = on_cpu ? OT_CPU_RANKS : count_gpus()};
    return ot_ranks_find(&request, out);
}

static struct ot_world_config world_config(const struct ot_options *options, const struct ot_launch *launch) {
    return (struct ot_world_config){.ranks = launch->ranks,
                                    .timeout_seconds = options->comm_timeout,
                                    .listener = launch->listener,
                                    .secret = getenv("OFFLOAD_TRAIN_SECRET"),
                                    .secret_name = "$OFFLOAD_TRAIN_SECRET"};
}

int ot_launch_world(const struct ot_options *options, const struct ot_launch *launch,
                    struct ot_world **world) {
    struct ot_world_config config = world_config(options, launch);
    return ot_world_open(&config, world);
}

void ot_launch_tell(int argc, char *const *argv, struct ot_options *options, int rc) {
    struct ot_launch launch;
    struct ot_error why;
    bool has_ranks = options->command == OT_COMMAND_TRAIN || options->command == OT_COMMAND_COMM_TEST ||
                     options->command == OT_COMMAND_PROBE;
    ot_error_save(&why, rc);
    ot_options_find_rank(argc, argv, options);
    if (has_ranks && ot_launch_find(options, &launch) == 0 && launch.ranks.ranks > 1) {
        struct ot_world_config config = world_config(options, &launch);
        ot_world_tell(&config, &why);
    }
    ot_error_load(&why);
}

int ot_launch_command(const struct ot_options *options, char **argv, int *exit_code) {
    struct ot_launch found;
    char text[OT_LAUNCH_TEXT_BYTES];
    OT_TRY(ot_launch_find(options, &found));
    if (*found.note && !options->quiet)
        ot_log(OT_LOG_INFO, "note    %s", found.note);
    if (found.ranks.ranks > 1 && found.ranks.rank == 0 && !options->quiet)
        ot_log(OT_LOG_INFO, "ranks   %s", ot_ranks_describe(&found, text));
    if (!found.n_start)
        return 0;
    struct ot_local_config config = {
        .launch = &found, .argv = argv, .log_dir = options->out, .grace_seconds = options->grace};
    OT_TRY(ot_launch_local(&config, exit_code));
    return 1;
}
