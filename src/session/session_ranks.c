#include "src/session/session_ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/comm/crossing.h"
#include "offload/comm/shared_memory.h"
#include "offload/plan/stages.h"
#include "offload/predict/planner_ranks.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/minmax.h"
#include "src/session/plan_request.h"

static int ranks_of(const struct ot_world *world) {
    return world ? ot_world_ranks(world)->ranks : 1;
}

void ot_session_ranks_choose_gpu(struct ot_settings *settings, const struct ot_world *world) {
    char bus_id[OT_BUS_ID_BYTES];
    if (ranks_of(world) == 1 || settings->in_effect.device.kind != OT_DEVICE_AUTO)
        return;
    int gpu = ot_world_ranks(world)->local_rank;
    if (ot_device_bus_id("cuda", gpu, bus_id))
        ot_settings_choose_device(settings, (struct ot_device_choice){.kind = OT_DEVICE_CUDA, .index = gpu});
}

void ot_session_ranks_share_machine(const struct ot_world *world, struct ot_machine *machine) {
    int locals = world ? ot_world_ranks(world)->local_ranks : 1;
    if (locals <= 1)
        return;
    machine->free_bytes /= locals;
    machine->cores = machine->cores / locals > 0 ? machine->cores / locals : 1;
}

static struct ot_shard shard_of(const struct ot_session *s) {
    const struct ot_options *o = s->options;
    struct ot_shard shard = {.ranks = 1, .world = o->deterministic == OT_CHOICE_DETERMINISTIC_WORLD};
    if (ranks_of(s->ranks.world) == 1)
        return shard;
    shard.rank = ot_world_ranks(s->ranks.world)->rank;
    shard.ranks = ot_world_ranks(s->ranks.world)->ranks;
    shard.mode = ot_plan_request_mode(o);
    shard.stages = (int)o->stages;
    shard.turn_blocks = ot_world_hosts(s->ranks.world) == 1; /* activations cross fast: at each layer */
    shard.narrow = o->exchange == OT_CHOICE_EXCHANGE_DTYPE && s->model.dtype != OT_F32;
    return shard;
}

int ot_session_ranks_open(struct ot_session *s) {
    const struct ot_options *o = s->options;
    s->ranks.shard = shard_of(s);
    OT_TRY(ot_shard_check(&s->ranks.shard));
    if (ranks_of(s->ranks.world) == 1) {
        bool shares = o->share_weights == OT_CHOICE_SHARE_WEIGHTS_YES;
        return shares || o->stages > 0
                   ? ot_fail(OT_E_USAGE, "%s has no effect with one rank; use --gpus 2 or more",
                             shares ? "--share-weights yes" : "--stages")
                   : 0;
    }
    bool is_gpu = o->device.kind == OT_DEVICE_CUDA;
    struct ot_comm_config config = {.name = o->comm,
                                    .world = s->ranks.world,
                                    .device = s->machine.device,
                                    .device_index = is_gpu ? o->device.index : -1,
                                    .plugin_dirs = getenv("OFFLOAD_TRAIN_PLUGINS"),
                                    .timeout_seconds = o->comm_timeout};
    OT_TRY(ot_comm_open(&config, &s->ranks.comm));
    ot_log(OT_LOG_INFO, "comm    %s", ot_comm_describe(s->ranks.comm));
    return 0;
}

/* Tries it with a page: a container may have no such memory, or none in common with the others. */
static int try_sharing(const struct ot_session *s) {
    enum { PAGE = 4096 };
    int hosts = ot_world_hosts(s->ranks.world);
    void *memory;
    if (hosts > 1)
        return ot_fail(OT_E_USAGE, "the ranks are on %d hosts", hosts);
    OT_TRY(ot_shared_memory_map(s->ranks.comm, PAGE, &memory));
    ot_shared_memory_unmap(memory, PAGE);
    return 0;
}

int ot_session_ranks_find_sharing(struct ot_session *s) {
    bool asked = s->options->share_weights == OT_CHOICE_SHARE_WEIGHTS_YES;
    bool weights = asked || ot_plan_request_may_one_copy(s->options);
    if (!s->ranks.comm)
        return 0;
    int64_t crosses = ot_comm_wants_crossing(s->ranks.comm) && ot_comm_need_transfers(s->ranks.comm) == 0;
    OT_TRY(ot_session_ranks_find_least(s, &crosses, 1));
    if (!weights && !crosses)
        return 0;
    int rc = try_sharing(s);
    if (rc < 0 && (asked || rc == -OT_E_COMM))
        return ot_fail((enum ot_error_code) - rc, "the ranks cannot share weights: %s", ot_error_text());
    if (rc < 0 && ot_world_hosts(s->ranks.world) == 1)
        ot_log(OT_LOG_INFO, "note    the ranks share no memory%s%s: %s",
               weights ? ", each keeps its own part of the weights" : "",
               crosses ? ", activations between them are copied once more" : "", ot_error_text());
    s->ranks.crosses = rc == 0 && crosses;
    s->ranks.may_one_copy = rc == 0 && weights && !asked;
    s->ranks.shard.one_copy = asked;
    return 0;
}

int ot_session_ranks_find_division(struct ot_session *s, int resumed_ranks, int resumed_stages) {
    struct ot_shard stages = s->ranks.shard;
    bool new_or_same = resumed_ranks == 0 || stages.world;
    if (!s->ranks.comm || s->options->shard != OT_CHOICE_SHARD_AUTO || stages.one_copy)
        return 0;
    bool replicas = resumed_stages > 0 && resumed_ranks > 1 && resumed_ranks < stages.ranks &&
                    stages.ranks % resumed_ranks == 0;
    bool keeps = !new_or_same && (resumed_ranks == 1 || replicas);
    stages.mode = OT_SHARD_STAGES;
    stages.stages = keeps && replicas ? stages.ranks / resumed_ranks : 0;
    int rc = new_or_same || keeps ? ot_comm_need_transfers(s->ranks.comm) : 0;
    if (rc == 0 && keeps)
        rc = ot_stages_check(ot_model_chain(s->model.built), &stages);
    if (rc == -OT_E_USAGE)
        ot_log(OT_LOG_INFO, "note    the ranks take no stages: %s", ot_error_text());
    else
        OT_TRY(rc);
    s->ranks.may_stages = rc == 0 && new_or_same;
    if (rc < 0 || !keeps)
        return 0;
    if (replicas)
        ot_log(OT_LOG_INFO, "shard   stages: %d replicas keep the bits with which the run began",
               resumed_ranks);
    else
        ot_log(OT_LOG_INFO, "shard   stages: they keep the bits of one rank, with which the run began");
    s->ranks.shard = stages;
    return 0;
}

int ot_session_ranks_compare(struct ot_session *s, double seconds, struct ot_plan_request *request) {
    struct ot_rank_machine own = {.slowness = seconds};
    memcpy(own.budget_bytes, request->budget_bytes, sizeof own.budget_bytes);
    OT_TRY(ot_comm_all_gather_host(s->ranks.comm, &own, sizeof own, s->ranks.machines));
    bool unlike = ot_machines_sort(s->ranks.machines, ot_comm_ranks(s->ranks.comm));
    request->machines = unlike ? s->ranks.machines : NULL;
    return 0;
}

int ot_session_ranks_divide(struct ot_session *s, const struct ot_plan_request *request) {
    struct ot_plan_request divided = *request;
    uint8_t *layers = divided.shard.layers;
    if (!s->ranks.comm || divided.shard.mode != OT_SHARD_STAGES)
        return 0;
    OT_TRY(ot_session_ranks_compare(s, 1, &divided));
    ot_stages_find_room(&divided);
    OT_TRY(ot_comm_broadcast_host(s->ranks.comm, layers, sizeof divided.shard.layers, 0));
    memcpy(s->ranks.shard.layers, layers, sizeof divided.shard.layers);
    if (layers[0] > 0 && s->options->no_forecast) /* else speeds may change it */
        ot_session_ranks_tell_layers(s, &divided.shard);
    return 0;
}

void ot_session_ranks_tell_layers(const struct ot_session *s, const struct ot_shard *shard) {
    char text[8 * OT_SHARD_MOST_STAGES] = "";
    struct ot_shard of = *shard;
    size_t used = 0;
    for (int stage = 0; stage < ot_shard_stages(shard) && used < sizeof text; stage++) {
        of.rank = ot_shard_rank_of(shard, 0, stage);
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%d", stage > 0 ? " + " : "",
                                 ot_shard_layers(ot_model_chain(s->model.built), &of));
    }
    if (ot_is_rank0(s))
        ot_log(OT_LOG_INFO, "shard   stages of %s layers: the ranks differ in speed or memory", text);
}

void ot_session_ranks_put_json(const struct ot_session *s, const char *key, struct ot_json_writer *w) {
    if (!s->ranks.comm)
        return;
    ot_json_begin_object(w, key);
    ot_json_put_int(w, "ranks", ot_comm_ranks(s->ranks.comm));
    ot_json_put_int(w, "hosts", ot_world_hosts(s->ranks.world));
    ot_json_put_text(w, "shard", ot_shard_mode_name(s->ranks.shard.mode));
    ot_json_put_text(w, "comm", ot_comm_describe(s->ranks.comm));
    ot_json_end_object(w);
}

bool ot_is_rank0(const struct ot_session *s) {
    return !s->ranks.world || ot_world_ranks(s->ranks.world)->rank == 0;
}

int ot_session_ranks_find_least(struct ot_session *s, int64_t *values, int n) {
    int64_t all[OT_MAX_RANKS * OT_SESSION_RANKS_MOST_VALUES];
    if (!s->ranks.comm)
        return 0;
    OT_TRY(ot_comm_all_gather_host(s->ranks.comm, values, (size_t)n * sizeof *values, all));
    for (int i = 0; i < ot_comm_ranks(s->ranks.comm) * n; i++)
        values[i % n] = ot_min(all[i], values[i % n]);
    return 0;
}

int ot_session_ranks_find_least_of_holders(struct ot_session *s, const struct ot_shard *shard,
                                           int64_t *values, int n) {
    int64_t all[OT_MAX_RANKS * OT_SESSION_RANKS_MOST_VALUES];
    struct ot_shard of_rank = *shard;
    if (!s->ranks.comm)
        return 0;
    OT_TRY(ot_comm_all_gather_host(s->ranks.comm, values, (size_t)n * sizeof *values, all));
    for (of_rank.rank = 0; of_rank.rank < of_rank.ranks; of_rank.rank++)
        for (int i = 0; i < n && ot_shard_stage(&of_rank) == ot_shard_stage(shard); i++)
            values[i] = ot_min(all[of_rank.rank * n + i], values[i]);
    return 0;
}

int ot_session_ranks_hand(struct ot_session *s, int from, unsigned char **bytes, size_t *n) {
    int64_t count = (int64_t)*n;
    if (!s->ranks.comm)
        return 0;
    OT_TRY(ot_comm_broadcast_host(s->ranks.comm, &count, sizeof count, from));
    if (ot_comm_rank(s->ranks.comm) != from) {
        *n = (size_t)count;
        *bytes = calloc(1, *n + 1);
        if (!*bytes)
            return ot_fail(OT_E_BUDGET, "no memory for %zu bytes of rank %d", *n, from);
    }
    return count > 0 ? ot_comm_broadcast_host(s->ranks.comm, *bytes, *n, from) : 0;
}

int ot_session_ranks_tell(struct ot_session *s, char **text) {
    size_t n = *text ? strlen(*text) + 1 : 0;
    unsigned char *bytes = (unsigned char *)*text;
    if (!s->ranks.comm)
        return 0;
    int rc = ot_session_ranks_hand(s, 0, &bytes, &n);
    if (ot_is_rank0(s))
        return rc;
    free(*text);
    *text = n > 0 && rc == 0 ? (char *)bytes : NULL;
    if (!*text)
        free(bytes);
    return rc;
}

int ot_session_ranks_choose(struct ot_session *s, int *value) {
    return s->ranks.comm ? ot_comm_broadcast_host(s->ranks.comm, value, sizeof *value, 0) : 0;
}

int ot_session_ranks_agree(struct ot_session *s, int rc) {
    struct ot_error mine = {0}, *all;
    if (!s->ranks.comm)
        return rc;
    int ranks = ot_comm_ranks(s->ranks.comm), first = 0;
    ot_error_save(&mine, rc);
    all = calloc((size_t)ranks, sizeof *all);
    if (!all)
        return ot_fail(OT_E_BUDGET, "no memory for the answers of %d ranks", ranks);
    rc = ot_comm_all_gather_host(s->ranks.comm, &mine, sizeof mine, all);
    while (rc == 0 && first < ranks && all[first].code == 0)
        first++;
    if (rc == 0 && first < ranks)
        rc = ot_fail((enum ot_error_code)all[first].code, "%s: %s", ot_world_name(s->ranks.world, first),
                     all[first].text);
    free(all);
    return rc;
}

/* ---- traces ---- */

enum { MEETINGS = 16 };

/* Finds the time of this rank's clock at which rank 0's file begins. */
static int find_origin(struct ot_session *s, double *origin) {
    struct meetings {
        double origin;
        struct ot_task_span at[MEETINGS];
    } first, own;
    for (int i = 0; i < MEETINGS; i++) {
        own.at[i].begin = ot_clock_seconds();
        OT_TRY(ot_comm_barrier(s->ranks.comm));
        own.at[i].end = ot_clock_seconds();
    }
    own.origin = ot_trace_origin(s->trace);
    first = own;
    OT_TRY(ot_comm_broadcast_host(s->ranks.comm, &first, sizeof first, 0));
    *origin = first.origin - ot_trace_clock_offset(first.at, own.at, MEETINGS);
    return 0;
}

int ot_session_ranks_gather_traces(struct ot_session *s) {
    double origin;
    if (!s->ranks.comm || !s->options->trace)
        return 0;
    OT_TRY(find_origin(s, &origin));
    int ranks = ot_comm_ranks(s->ranks.comm), own = ot_comm_rank(s->ranks.comm);
    struct ot_trace_text *all = calloc((size_t)ranks - 1, sizeof *all);
    int rc = all ? 0 : ot_fail(OT_E_BUDGET, "no memory for the traces of %d ranks", ranks);
    s->ranks.traces = all;
    s->ranks.n_traces = all ? ranks - 1 : 0;
    if (all && own > 0)
        rc = ot_trace_put(s->trace, own, origin, &all[own - 1]);
    rc = ot_session_ranks_agree(s, rc);
    for (int r = 1; r < ranks && rc == 0; r++) {
        unsigned char *bytes = (unsigned char *)all[r - 1].text;
        rc = ot_session_ranks_hand(s, r, &bytes, &all[r - 1].bytes);
        all[r - 1].text = (char *)bytes;
        if (own > 0) { /* it was passed on to rank 0 */
            free(bytes);
            all[r - 1].text = NULL;
        }
    }
    return rc;
}

void ot_session_ranks_free_traces(struct ot_session_ranks *ranks) {
    for (int i = 0; i < ranks->n_traces; i++)
        free(ranks->traces[i].text);
    free(ranks->traces);
}
