#include "src/session/session_ranks_forecast.h"

#include "offload/probe/comm_rates.h"
#include "src/base/error.h"
#include "src/session/session_ranks.h"

/* ---- the communicator ---- */

/* Parts of these sizes are measured: the small one takes no time but the start of an operation. */
enum { SMALL_BYTES = 4096, LARGE_BYTES = 4 << 20 };
/* Time for each operation and size. */
static const double ROW_SECONDS = 0.05;
/* Copies between GPUs take NVLink if they are faster than copies from the host by this factor. */
static const double FASTER_THAN_LINK = 1.5;

struct sums {
    double small_seconds, large_seconds, large_bytes;
    int n; /* operations of the small size */
};

/* A step gathers and exchanges; broadcasts do not count. */
static int add_rate(void *context, const struct ot_comm_rate *rate) {
    struct sums *sums = context;
    if (rate->received_bytes == rate->part_bytes && rate->operation[0] == 'b')
        return 0;
    if (rate->part_bytes == SMALL_BYTES) {
        sums->small_seconds += rate->seconds;
        sums->n++;
    } else {
        sums->large_seconds += rate->seconds;
        sums->large_bytes += (double)rate->received_bytes;
    }
    return 0;
}

/* The large part, so that the measurement takes a quarter of the smallest device budget at most. */
static int choose_part(struct ot_session *s, size_t *out) {
    int64_t part =
        (int64_t)((s->budget_bytes[OT_TIER_GPU] - s->workspace_bytes) / (8 * (size_t)ot_comm_ranks(s->comm)));
    OT_TRY(ot_session_ranks_find_least(s, &part, 1));
    *out = part > LARGE_BYTES ? LARGE_BYTES : part > 2 * SMALL_BYTES ? (size_t)part : 2 * SMALL_BYTES;
    return 0;
}

/* Sets the links and the host memory that an operation of the communicator uses. Staged bytes go over the
 * link and through host memory; those of the cpu device are in host memory anyway. A plugin that takes device
 * memory copies from GPU to GPU where they reach each other, and else through host memory. Copies that are
 * faster than the link do not use it. Unknown links between GPUs count nothing. */
static void set_ways(struct ot_rates *rates, bool is_staged, const struct ot_peers *peers) {
    bool through_host = is_staged || (peers->is_known && !peers->has_access);
    bool over_link = through_host || (peers->is_known && peers->rate < FASTER_THAN_LINK * rates->h2d_bytes);
    rates->comm_link = over_link ? 2 : 0;
    rates->comm_memory = through_host || rates->device_is_host ? 2 : 0;
}

static int measure_peers(struct ot_session *s, size_t bytes, struct ot_peers *out) {
    const struct ot_device_choice *device = &s->options->device;
    *out = (struct ot_peers){0};
    if (device->kind != OT_DEVICE_CUDA)
        return 0;
    const struct ot_peers_config config = {.world = s->world,
                                           .device = s->device,
                                           .kind = "cuda",
                                           .index = device->index,
                                           .bytes = bytes,
                                           .seconds = 2 * ROW_SECONDS};
    return ot_probe_peers(&config, out);
}

int ot_session_ranks_measure(struct ot_session *s, struct ot_rates *rates, struct ot_peers *peers) {
    size_t sizes[2] = {SMALL_BYTES};
    struct ot_peers own;
    struct sums sums = {0};
    if (!s->comm)
        return 0;
    OT_TRY(choose_part(s, &sizes[1]));
    struct ot_comm_rates_config config = {.comm = s->comm,
                                          .device = s->device,
                                          .is_gpu = true, /* no copies beside it */
                                          .sizes = sizes,
                                          .n_sizes = 2,
                                          .seconds = ROW_SECONDS,
                                          .take = add_rate,
                                          .context = &sums};
    OT_TRY(ot_comm_rates_measure(&config));
    double moving = sums.large_seconds - sums.small_seconds;
    rates->comm_seconds = sums.small_seconds / sums.n;
    rates->comm_bytes = sums.large_bytes / (moving > 0 ? moving : sums.large_seconds);
    OT_TRY(measure_peers(s, sizes[1], &own));
    set_ways(rates, ot_comm_staging_bytes(s->comm, SMALL_BYTES) > 0, &own);
    if (peers)
        *peers = own;
    return 0;
}

/* ---- the plan ---- */

/* Rank 0's choice: a failure, the mode, one copy of the weights, the sequences of a micro-batch. */
struct choice {
    int64_t rc, mode, one_copy, micro_sequences;
};

static int choose_first(const struct ot_session *s, const struct ot_plan_request *request,
                        const struct ot_costs *costs, struct ot_planner_result *out) {
    bool any_mode = s->options->shard == OT_CHOICE_SHARD_AUTO && !request->shard.one_copy;
    struct ot_shard_open open = {.mode = any_mode, .one_copy = s->may_one_copy};
    return ot_planner_choose_shard(request, costs, open, out);
}

int ot_session_ranks_choose_plan(struct ot_session *s, struct ot_plan_request *request,
                                 const struct ot_costs *costs, struct ot_planner_result *out) {
    struct choice choice = {0};
    struct ot_error why;
    if (!s->comm)
        return ot_planner_choose(request, costs, out);
    if (ot_is_rank0(s)) {
        choice.rc = choose_first(s, request, costs, out);
        ot_error_save(&why, (int)choice.rc);
        choice.mode = out->plan.shard.mode;
        choice.one_copy = out->plan.shard.one_copy;
        choice.micro_sequences = out->plan.micro_tokens / request->sequence_tokens;
    }
    OT_TRY(ot_comm_broadcast_host(s->comm, &choice, sizeof choice, 0));
    if (choice.rc < 0)
        return ot_is_rank0(s) ? ot_error_load(&why)
                              : ot_fail((int)-choice.rc, "rank 0 found no plan for all ranks");
    request->shard.mode = (enum ot_shard_mode)choice.mode;
    request->shard.one_copy = choice.one_copy;
    request->weights = choice.one_copy ? OT_HOME_HOST : request->weights;
    request->micro_sequences = choice.micro_sequences;
    return ot_is_rank0(s) ? 0 : ot_planner_choose(request, costs, out);
}
