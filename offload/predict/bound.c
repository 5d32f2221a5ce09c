#include "offload/predict/bound.h"

#include <math.h>

#include "kernels/adamw.h"
#include "offload/plan/layout.h"
#include "offload/plan/slabs.h"
#include "offload/plan/stages.h"

/* The least work of a step, by lane. */
struct work {
    double compute;          /* seconds of the lane */
    double h2d, d2h, comm;   /* bytes */
    double updated;          /* bytes of the CPU pool */
    double is_read, written; /* bytes of the disks */
};

/* An unknown rate limits nothing. */
static double seconds_at(double amount, double rate) {
    return rate > 0 ? amount / rate : 0;
}

static double lane_seconds(const struct ot_costs *costs, enum ot_lane_id lane, double seconds) {
    return costs->slower[lane] > 0 ? seconds * costs->slower[lane] : seconds;
}

/* A micro-batch goes forward through a block. The last block has no forward of its own in training: its
 * backward contains it. */
static double forward_seconds(const struct ot_chain *chain, const struct ot_costs *costs, int block,
                              int64_t tokens) {
    const struct ot_line *forward = &costs->blocks[block].forward;
    return block == chain->n_blocks - 1 ? 0 : costs->rates.task_seconds + ot_line_at(*forward, tokens);
}

/* A micro-batch goes through a block. recompute: the extra time of backward. */
static double pass_seconds(const struct ot_chain *chain, const struct ot_costs *costs, int block,
                           int64_t tokens, double recompute) {
    const struct ot_block_cost *cost = &costs->blocks[block];
    double pass = forward_seconds(chain, costs, block, tokens);
    if (block >= ot_chain_first_trained(chain))
        pass += costs->rates.task_seconds + ot_line_at(cost->backward, tokens) + recompute;
    return pass;
}

/* Extra seconds of a block's backward for a micro-batch. */
static double recompute_of(const struct ot_chain *chain, const struct ot_plan *plan,
                           const struct ot_costs *costs, int block) {
    enum ot_keep_level level = ot_plan_kept(chain, plan, block).level;
    return ot_line_at(costs->blocks[block].recompute[level], plan->micro_tokens);
}

double ot_plan_repeated_seconds(const struct ot_chain *chain, const struct ot_plan *plan,
                                const struct ot_costs *costs) {
    double seconds = 0;
    for (int b = ot_chain_first_trained(chain); b < chain->n_blocks; b++)
        if (ot_block_is_own(chain, plan, b))
            seconds += recompute_of(chain, plan, costs, b) * plan->max_micro;
    return lane_seconds(costs, OT_LANE_COMPUTE, seconds);
}

/* Every micro-batch goes through every block. Backward ends at the first trained block. The first backward of
 * a round may be cheaper than the others. */
static double compute_seconds(const struct ot_chain *chain, const struct ot_plan *plan,
                              const struct ot_costs *costs) {
    double seconds = 0;
    for (int b = 0; b < chain->n_blocks; b++) {
        if (!ot_block_is_own(chain, plan, b))
            continue;
        double recompute = recompute_of(chain, plan, costs, b);
        seconds += pass_seconds(chain, costs, b, plan->micro_tokens, recompute) * plan->max_micro +
                   ot_plan_rounds(plan) * fmin(costs->blocks[b].first, 0);
    }
    return lane_seconds(costs, OT_LANE_COMPUTE, seconds);
}

double ot_least_compute_seconds(const struct ot_chain *chain, const struct ot_shard *shard,
                                const struct ot_costs *costs, int64_t micro_tokens, int n_micro,
                                enum ot_keep_level level) {
    int layers = ot_shard_layers(chain, shard); /* of a stage, the layers alone are certain */
    bool is_stage = layers < chain->n_blocks - 2;
    double seconds = 0, least = INFINITY;
    for (int b = is_stage; b < chain->n_blocks - is_stage; b++) {
        const struct ot_block_cost *block = &costs->blocks[b];
        double recompute = fmin(ot_line_at(block->recompute[level], micro_tokens),
                                ot_line_at(block->recompute[OT_KEEP_NONE], micro_tokens));
        double pass = pass_seconds(chain, costs, b, micro_tokens, recompute) + fmin(block->first, 0);
        seconds += pass * n_micro;
        least = fmin(least, pass);
    }
    if (is_stage)
        seconds = layers * least * n_micro;
    return lane_seconds(costs, OT_LANE_COMPUTE, seconds);
}

/* Adds the fewest bytes that the rounds fetch of the streamed slabs. Forward and backward use each slab, and
 * backward does not fetch a slab again that is still in a slot. Ranks bring their shares and gather the
 * others. With used parts alone, nothing is certain. */
static void add_fetches(const struct ot_chain *chain, const struct ot_plan *plan, struct work *work) {
    double h2d = 0, comm = 0, largest_h2d[OT_SLOT_KINDS] = {0}, largest_comm[OT_SLOT_KINDS] = {0};
    for (int s = 0; s < chain->n_slabs && !plan->fetch_used; s++) {
        if (!ot_slab_is_streamed(plan, s) || !ot_slab_is_own(plan, s))
            continue;
        enum ot_slot_kind kind = ot_slab_slot_kind(chain, s);
        double whole = (double)ot_slab_bytes(chain, s, ot_slab_units(chain, s));
        double held = (double)ot_slab_bytes(chain, s, ot_slab_holding(chain, plan, s).n);
        bool one_copy = ot_slab_has_one_copy(plan, s);
        double brought = ot_slab_is_resident(plan, s) ? 0 : one_copy ? whole : held;
        double gathered = one_copy ? 0 : whole - held;
        h2d += 2 * brought;
        comm += 2 * gathered;
        largest_h2d[kind] = fmax(largest_h2d[kind], brought);
        largest_comm[kind] = fmax(largest_comm[kind], gathered);
    }
    for (int k = 0; k < OT_SLOT_KINDS; k++) {
        h2d -= 2 * largest_h2d[k] * (plan->weight_slots[k] + plan->encoded_slots[k]);
        comm -= 2 * largest_comm[k] * (plan->weight_slots[k] + plan->encoded_slots[k]);
    }
    work->h2d += fmax(h2d, 0) * ot_plan_rounds(plan);
    work->comm += fmax(comm, 0) * ot_plan_rounds(plan);
}

/* Adds the activations that leave the device and come back: boundaries, and kept ones. */
static void add_activations(const struct ot_chain *chain, const struct ot_plan *plan, struct work *work) {
    double boundary = (double)ot_chain_boundary_bytes(chain, plan->micro_tokens);
    int slots = plan->activation_slots + 2, boundaries = 0;
    for (int b = 0; b < chain->n_blocks - 1; b++)
        boundaries += ot_boundary_is_own(chain, plan, b);
    int passes = plan->max_micro, rounds = ot_plan_rounds(plan);
    if (plan->activations != OT_HOME_GPU && boundaries > slots) {
        work->d2h += boundary * (boundaries - slots) * passes;
        work->h2d += boundary * (boundaries - slots) * passes;
    }
    double kept = 0, largest = 0;
    for (int b = 0; b < chain->n_blocks; b++) {
        struct ot_kept at = ot_plan_kept(chain, plan, b);
        if (at.level == OT_KEEP_NONE || at.tier == OT_TIER_GPU)
            continue;
        double bytes = (double)ot_plan_saved_bytes(chain, plan, b, at.level);
        kept += bytes * passes;
        largest = fmax(largest, bytes);
    }
    kept = fmax(kept - largest * plan->kept_slots * rounds, 0);
    work->d2h += kept;
    work->h2d += kept;
}

/* Adds the copies of key groups (slabs.h). The keys of section s come s times its size: in forward, before
 * ATTEND_BACK, and again before attention that is computed again. Sums come for all sections but the last,
 * with the rows of the section itself, and go for all but the first. Keys go in forward and in KEYS. */
static void add_keys(const struct ot_chain *chain, const struct ot_plan *plan, struct work *work) {
    double sections = ot_plan_sections(plan), earlier = sections * (sections - 1) / 2;
    double section = 2.0 * (double)(plan->micro_tokens * chain->kv_elems); /* elements */
    double keys = section * (double)ot_dtype_bytes(chain->dtype), sums = section * sizeof(float);
    if (ot_plan_key_groups(plan) == 1)
        return;
    for (int b = 1; b < chain->n_blocks - 1; b++) {
        bool back = b >= ot_chain_first_trained(chain);
        bool again = back && ot_plan_kept(chain, plan, b).level < OT_KEEP_ATTENTION;
        double rows = plan->max_micro / sections;
        work->h2d += rows * earlier * (keys * (1 + back + again) + sums * back);
        work->d2h += rows * ((sections - 1) * keys * (1 + back) + earlier * sums * back);
    }
}

/* Adds the slabs' gradients, sums and updates. */
static void add_training(const struct ot_chain *chain, const struct ot_plan *plan, struct work *work) {
    double state = (double)ot_state_bytes(chain, 1 << 20) / (1 << 20);
    double dtype = (double)ot_dtype_bytes(chain->dtype);
    double update = (double)ot_adamw_bytes(chain->dtype, chain->state, chain->masters);
    int rounds = ot_plan_rounds(plan);
    for (int s = 0; s < chain->n_slabs; s++) {
        if (chain->slabs[s].frozen)
            continue;
        double held = (double)ot_slab_holding(chain, plan, s).n;
        double streamed = (double)ot_slab_engine_tiles(chain, plan, s, OT_TILE_STREAM).n;
        double pooled = (double)ot_slab_engine_tiles(chain, plan, s, OT_TILE_CPU).n;
        work->h2d += state * streamed;
        work->d2h += state * streamed + dtype * (held - (double)ot_slab_waiting_on_gpu(chain, plan, s).n);
        work->updated += update * pooled;
        if (ot_slab_sum_leaves(chain, plan, s)) {
            work->h2d += (rounds - 1) * held * sizeof(float);
            work->d2h += (rounds - 1) * held * sizeof(float);
        }
        if (plan->slabs[s].state == OT_HOME_NVME) {
            work->is_read += state * (streamed + pooled);
            work->written += state * (streamed + pooled);
        }
        if (ot_slab_weights_pass(plan, s) && !plan->fetch_used)
            work->written += dtype * held;
    }
}

/* Adds the updates between a decision and the next forward's last use of a slab: all but those that shadows
 * made before, and the transfers of all tiles but those that slots hold at either end. */
static void add_updates_after(const struct ot_chain *chain, const struct ot_plan *plan, struct work *work) {
    double state = (double)ot_state_bytes(chain, 1 << 20) / (1 << 20), tile = (double)plan->tile_params;
    double streamed = 0, pooled = 0, passing = 0;
    for (int s = 0; s < chain->n_slabs; s++) {
        if (chain->slabs[s].frozen)
            continue;
        double stream = (double)ot_slab_engine_tiles(chain, plan, s, OT_TILE_STREAM).n;
        double pool = (double)ot_slab_engine_tiles(chain, plan, s, OT_TILE_CPU).n;
        streamed += stream;
        pooled += pool;
        passing += plan->slabs[s].state == OT_HOME_NVME ? stream + pool : 0;
    }
    double update = (double)ot_adamw_bytes(chain->dtype, chain->state, chain->masters);
    work->updated = update * fmax(pooled - plan->shadow_frames * tile, 0);
    work->h2d = work->d2h = state * fmax(streamed - plan->state_slots * tile, 0);
    work->is_read = work->written = state * fmax(passing - plan->tile_slots * tile, 0);
}

/* The work of the busiest lane. */
static double longest(const struct ot_chain *chain, const struct ot_costs *costs, const struct work *work) {
    const struct ot_rates *r = &costs->rates;
    double link = fmax(r->both_bytes, fmax(r->h2d_bytes, r->d2h_bytes));
    double disks = fmax(r->nvme_mixed_bytes, fmax(r->nvme_read_bytes, r->nvme_write_bytes));
    const double lanes[] = {
        work->compute,
        lane_seconds(costs, OT_LANE_H2D, seconds_at(work->h2d, r->h2d_bytes)),
        lane_seconds(costs, OT_LANE_D2H, seconds_at(work->d2h, r->d2h_bytes)),
        lane_seconds(costs, OT_LANE_COMM, seconds_at(work->comm, r->comm_bytes)),
        lane_seconds(costs, OT_LANE_CPU, seconds_at(work->updated, r->adamw_bytes[chain->state])),
        lane_seconds(costs, OT_LANE_NVME_READ, seconds_at(work->is_read, r->nvme_read_bytes)),
        lane_seconds(costs, OT_LANE_NVME_WRITE, seconds_at(work->written, r->nvme_write_bytes)),
        r->both_bytes > 0 ? seconds_at(work->h2d + work->d2h, link) : 0,
        r->nvme_mixed_bytes > 0 ? seconds_at(work->is_read + work->written, disks) : 0,
    };
    double most = 0;
    for (size_t i = 0; i < sizeof lanes / sizeof *lanes; i++)
        most = fmax(most, lanes[i]);
    return most;
}

/* With clipping, updates wait for the decision, and the next forward waits for them block by block. So
 * between two decisions there are all updates, and then what the device computes after the first round's
 * forward. */
static double seconds_between_decisions(const struct ot_chain *chain, const struct ot_plan *plan,
                                        const struct ot_costs *costs) {
    double forward = 0;
    struct work updates = {0};
    add_updates_after(chain, plan, &updates);
    for (int b = 0; b < chain->n_blocks; b++)
        forward += forward_seconds(chain, costs, b, plan->micro_tokens);
    forward *= plan->first_round > 0 ? plan->first_round : plan->max_micro;
    return longest(chain, costs, &updates) + compute_seconds(chain, plan, costs) -
           lane_seconds(costs, OT_LANE_COMPUTE, forward);
}

double ot_plan_least_seconds(const struct ot_chain *chain, const struct ot_plan *plan,
                             const struct ot_costs *costs) {
    struct work work = {.compute = compute_seconds(chain, plan, costs)};
    add_fetches(chain, plan, &work);
    add_activations(chain, plan, &work);
    add_keys(chain, plan, &work);
    add_training(chain, plan, &work);
    double least = longest(chain, costs, &work);
    bool waits = plan->clip && plan->shard.mode != OT_SHARD_STAGES;
    return waits ? fmax(least, seconds_between_decisions(chain, plan, costs)) : least;
}
