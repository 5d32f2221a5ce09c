/* Random plans: every field that a plan may choose, from a seed. */
#include "offload/plan/shadow_updates.h"
#include "offload/plan/slabs.h"
#include "offload/plan/stages.h"
#include "src/base/random.h"
#include "tests/offload/tiny_run.h"

static void deal_blocks(const struct ot_chain *chain, struct ot_plan *plan, uint64_t seed, uint64_t round) {
    uint64_t stream = ot_random_stream(OT_RANDOM_TEST, round, 82);
    uint64_t stages = (uint64_t)ot_shard_stages(&plan->shard);
    for (int s = 0; s < chain->n_slabs; s++)
        plan->slabs[s].owner = (int)ot_random_below(seed, stream, (uint64_t)s, stages);
    for (int b = 0; b < chain->n_blocks; b++) { /* adapters go with their block */
        const struct ot_block_use *uses = chain->blocks[b].uses;
        int owner = ot_block_owner(chain, plan, b);
        for (int u = 0; u < chain->blocks[b].n_uses; u++)
            if (!chain->slabs[uses[u].slab].shared)
                plan->slabs[uses[u].slab].owner = owner;
    }
    for (int s = 0; s < chain->n_slabs; s++) { /* shared slabs with their first one */
        if (!chain->slabs[s].shared)
            continue;
        plan->slabs[s].owner = ot_block_owner(chain, plan, ot_slab_first_user(chain, s));
        if (!chain->slabs[s].frozen)
            plan->grad_slots[OT_SLOT_SHARED] = ot_slab_uses(chain, s);
    }
}

static bool all_stages_own(const struct ot_plan *plan) {
    unsigned owners = 0;
    for (int s = 0; s < plan->n_slabs; s++)
        owners |= 1u << plan->slabs[s].owner;
    return owners + 1 == 1u << ot_shard_stages(&plan->shard);
}

void tiny_random_owners(struct tiny_run *run, uint64_t seed) {
    struct ot_model *model;
    tiny_open_model(run, &model);
    uint64_t round = 0;
    do
        deal_blocks(ot_model_chain(model), &run->plan, seed, round++);
    while (!all_stages_own(&run->plan));
    for (int k = 0; k < OT_SLOT_KINDS && ot_plan_exchanges(&run->plan); k++)
        run->plan.exchange_slots[k] = 2; /* a tied slab crosses twice with `world` */
    ot_model_close(model);
}

void tiny_random_rounds(struct tiny_run *run, uint64_t seed) {
    uint64_t i = 0;
#define PICK(bound)                                                                                          \
    ((int)ot_random_below(seed, ot_random_stream(OT_RANDOM_TEST, 0, 78), i++, (uint64_t)(bound)))
    int sections = ot_plan_sections(&run->plan), sequences = run->plan.max_micro / sections;
    run->plan.first_round = sections * PICK(sequences + 1);
    run->plan.round_micro = sections * (1 + PICK(sequences));
    if (run->plan.shard.in_flight > 1) /* these are equally long */
        run->plan.first_round = run->plan.round_micro;
    for (int s = 0; s < run->plan.n_slabs; s++)
        run->plan.slabs[s].sums = (enum ot_home)PICK(2);
#undef PICK
}

void tiny_random_grads(struct tiny_run *run, uint64_t seed) {
    uint64_t i = 0;
#define PICK(bound) ((int)ot_random_below(seed, ot_random_stream(OT_RANDOM_TEST, 0, 80), i++, (bound)))
    for (int s = 0; s < run->plan.n_slabs; s++) {
        struct ot_slab_plan *slab = &run->plan.slabs[s];
        slab->grads = PICK(2) ? OT_HOME_NVME : slab->grads;
        slab->sums = PICK(2) ? OT_HOME_NVME : slab->sums;
    }
    run->plan.host_grad_slots = 1 + PICK(4);
    if (run->plan.tile_slots == 0)
        run->plan.tile_slots = ot_plan_passing_tiles(&run->plan) > 0;
#undef PICK
}

void tiny_random_kept(struct tiny_run *run, uint64_t seed, enum ot_tier last) {
    uint64_t i = 0;
    struct ot_model *model;
    tiny_open_model(run, &model);
    int left = ot_plan_middle_blocks(ot_model_chain(model), &run->plan, 1);
    ot_model_close(model);
#define PICK(bound)                                                                                          \
    ((int)ot_random_below(seed, ot_random_stream(OT_RANDOM_TEST, 0, 79), i++, (uint64_t)(bound)))
    for (int t = 0; t < OT_TIER_COUNT; t++) {
        int blocks = t > (int)last ? 0 : PICK(left + 1);
        run->plan.kept[t] = (struct ot_kept_blocks){(enum ot_keep_level)PICK(OT_KEEP_LEVELS), blocks};
        left -= blocks;
    }
    run->plan.kept_slots = 1 + PICK(4);
    run->plan.host_kept_slots = 1 + PICK(4);
#undef PICK
}

void tiny_random_shadows(struct tiny_run *run, uint64_t seed) {
    int64_t most = ot_plan_shadow_tiles(&run->plan);
    uint64_t stream = ot_random_stream(OT_RANDOM_TEST, 0, 81);
    run->plan.shadow_frames = (int)ot_random_below(seed, stream, 0, (uint64_t)most + 1);
    run->shadow_belief = ot_random_below(seed, stream, 1, 2) ? 1e30 : 0;
    tiny_finish(run);
}

void tiny_random_cache(struct tiny_run *run, uint64_t seed) {
    uint64_t stream = ot_random_stream(OT_RANDOM_TEST, 0, 83);
    run->plan.cache = (enum ot_home)(seed % OT_TIER_COUNT);
    run->plan.cache_slots = 1 + (int)ot_random_below(seed, stream, 0, 3);
    run->plan.host_cache_slots = 1 + (int)ot_random_below(seed, stream, 1, 3);
    tiny_finish(run);
}

void tiny_randomise(struct tiny_run *run, uint64_t seed) {
    uint64_t i = 0;
#define PICK(bound) ((int)ot_random_below(seed, ot_random_stream(OT_RANDOM_TEST, 0, 77), i++, (bound)))
    for (int s = 0; s < run->plan.n_slabs; s++) {
        enum ot_home weights = (enum ot_home)PICK(3);
        run->plan.slabs[s].weights = ot_plan_keeps_weights(&run->plan) ? OT_HOME_GPU : weights;
        run->plan.slabs[s].state = (enum ot_home)(1 + PICK(2));
    }
    run->plan.activations = (enum ot_home)PICK(3);
    run->plan.activation_slots = 1 + PICK(4);
    run->plan.host_activation_slots = 1 + PICK(4);
    tiny_random_kept(run, seed, OT_TIER_NVME);
    tiny_random_rounds(run, seed);
    run->plan.state_slots = 1 + PICK(4);
    run->plan.tile_slots = 1 + PICK(8);
    for (enum ot_slot_kind k = 0; k < OT_SLOT_KINDS; k++) {
        bool edge = ot_slot_kind_is_edge(k);
        run->plan.weight_slots[k] = (edge ? 2 : 1) + PICK(3);
        run->plan.encoded_slots[k] = (edge ? 2 : 1) + PICK(3);
        run->plan.host_weight_slots[k] = 1 + PICK(4);
        int more = PICK(2);
        if (k != OT_SLOT_SHARED) /* of these, the plan has what it needs */
            run->plan.grad_slots[k] = (edge ? 2 : 1) + more;
        run->plan.grad_out_slots[k] = 1 + PICK(3);
    }
    run->optimizer_threads = 1 + PICK(3);
    run->device_threads = 1 + PICK(2);
    run->delay_seed = PICK(3) == 0 ? seed : 0;
    run->io = PICK(2) ? OT_IO_URING : OT_IO_POOL;
    run->stripes = 1 + PICK(4);
    run->chunk_bytes = (size_t)4096 << PICK(5);
    run->io_depth = 1 + PICK(8);
    int64_t tile = OT_SLAB_ALIGN_PARAMS * (1 + PICK(4));
    tiny_deal(run, tile, 1 + (unsigned)PICK(7), seed);
    tiny_random_grads(run, seed);
    tiny_random_shadows(run, seed);
#undef PICK
}

void tiny_random_stage(struct tiny_run *run, int rank, void *context) {
    const uint64_t *seed = context;
    uint64_t own = *seed * 64 + (uint64_t)rank + 1;
    tiny_random_owners(run, *seed);
    tiny_randomise(run, own);
    for (int k = 0; run->shard.world && k < OT_SLOT_KINDS; k++)
        run->plan.grad_slots[k] += OT_SHARD_WORLD_GROUPS;
    run->delay_seed = *seed;
    tiny_random_rounds(run, *seed);
    tiny_random_grads(run, own);
    tiny_finish(run);
}
