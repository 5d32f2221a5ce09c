/* The buffers of a layout for activations: boundaries; what blocks keep for backward, over which shadows of
 * updates may lie; and the keys and values of generation. */
#include <stdlib.h>

#include "offload/plan/layout_add.h"
#include "offload/plan/shadow_updates.h"
#include "offload/plan/slabs.h"
#include "offload/plan/stages.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

/* ---- boundaries ---- */

/* Adds [n][places] buffers of boundaries, for those that this rank's blocks read. */
static int *add_own_boundaries(struct ot_layout_maker *mk, enum ot_tier tier, size_t bytes, int n) {
    int places = mk->layout->places;
    if (!ot_plan_has_stages(mk->plan) && tier != OT_TIER_NVME)
        return ot_layout_add_many(mk, tier, "activations", bytes, (int64_t)n * places);
    int *indices = ot_layout_new_indices(mk, (int64_t)n * places);
    for (int b = 0; indices && b < n; b++) {
        if (!ot_boundary_is_own(mk->chain, mk->plan, b))
            continue;
        int *own = indices + b * places;
        if (tier != OT_TIER_NVME) {
            int first = ot_layout_add_row(mk, tier, "activations", bytes, 1, places);
            for (int i = 0; i < places && first != OT_NO_BUFFER; i++)
                own[i] = first + i;
        }
        for (int i = 0; i < places && tier == OT_TIER_NVME; i++)
            own[i] = ot_layout_add_extents(mk, "activations", ot_layout_pages(bytes), ot_layout_pages(bytes),
                                           1, OT_LEAST_SIDES);
    }
    return indices;
}

/* Slots for boundaries that come back: buffers of forward, which are free by then, but for those of stages.
 * The block that is last in forward frees its own first. Further slots come before these, because they are
 * free earlier. */
static int *add_activation_slots(struct ot_layout_maker *mk, size_t bytes) {
    const struct ot_layout *layout = mk->layout;
    if (mk->plan->boundaries_pass)
        return ot_layout_add_many(mk, OT_TIER_GPU, "activation slots", bytes, mk->plan->activation_slots);
    int n = mk->plan->activation_slots, last = mk->chain->n_blocks - 2, places = layout->places;
    int64_t buffers = ot_plan_has_stages(mk->plan) ? 0 : (int64_t)layout->n_boundaries * places;
    int further = n - (int)ot_min(n, buffers);
    int first = further ? ot_layout_add_row(mk, OT_TIER_GPU, "activation slots", bytes, 1, further) : 0;
    int *slots = mk->sizes || first == OT_NO_BUFFER ? NULL : ot_layout_new_indices(mk, n);
    for (int i = 0; slots && layout->boundary_gpu && i < n; i++) {
        int turn = i - further, boundary = last - turn / places;
        slots[i] = turn < 0 ? first + i
                            : layout->boundary_gpu[boundary % layout->n_boundaries * places + turn % places];
    }
    return slots;
}

void ot_layout_add_boundaries(struct ot_layout_maker *mk) {
    const struct ot_chain *chain = mk->chain;
    const struct ot_plan *plan = mk->plan;
    struct ot_layout *layout = mk->layout;
    size_t bytes = ot_chain_boundary_bytes(chain, plan->micro_tokens);
    int boundaries = chain->n_blocks - 1, places = ot_plan_round_places(plan);
    bool all = plan->train && plan->activations == OT_HOME_GPU;
    layout->places = places;
    layout->n_boundaries = all || boundaries < 2 ? boundaries : 2;
    if (!plan->boundaries_pass)
        layout->boundary_gpu = all ? add_own_boundaries(mk, OT_TIER_GPU, bytes, boundaries)
                                   : ot_layout_add_many(mk, OT_TIER_GPU, "activations", bytes,
                                                        (int64_t)layout->n_boundaries * places);
    if (ot_plan_has_stages(plan) || plan->boundaries_pass)
        layout->stage_buffers = ot_layout_add_many(mk, OT_TIER_GPU, "activations", bytes, OT_STAGE_BUFFERS);
    if (!plan->train)
        return;
    if (plan->activations == OT_HOME_HOST)
        layout->boundary_host = add_own_boundaries(mk, OT_TIER_HOST, bytes, boundaries);
    if (plan->activations == OT_HOME_NVME)
        layout->boundary_nvme = add_own_boundaries(mk, OT_TIER_NVME, bytes, boundaries);
    layout->host_activation_slots =
        ot_layout_add_many(mk, OT_TIER_HOST, "activation slots", bytes, plan->host_activation_slots);
    layout->activation_slots = add_activation_slots(mk, bytes);
    layout->boundary_grad = ot_layout_add_many(mk, OT_TIER_GPU, "activation gradients", bytes,
                                               plan->boundaries_pass ? plan->activation_slots : places);
}

/* ---- kept activations ---- */

/* Adds the homes of a block's kept activations for each place. Each shadow frame over them is a tile. */
static void add_kept_homes(struct ot_layout_maker *mk, struct ot_kept kept, size_t bytes, int homes[]) {
    int places = mk->layout->places, frames = ot_frames_over(kept, bytes, mk->layout->frame_bytes);
    size_t rounded = ot_layout_pages(bytes);
    if (kept.tier == OT_TIER_NVME) {
        for (int i = 0; i < places; i++)
            homes[i] = ot_layout_add_extents(mk, "kept activations", rounded, rounded, 1, OT_LEAST_SIDES);
        return;
    }
    int first = ot_layout_add_row(mk, kept.tier, "kept activations", bytes, frames > 0 ? frames : 1, places);
    for (int i = 0; i < places; i++)
        homes[i] = first == OT_NO_BUFFER ? OT_NO_BUFFER : first + i;
}

void ot_layout_add_kept(struct ot_layout_maker *mk) {
    const struct ot_chain *chain = mk->chain;
    const struct ot_plan *plan = mk->plan;
    struct ot_layout *layout = mk->layout;
    size_t largest = 0, largest_on_nvme = 0;
    if (ot_plan_kept_blocks(plan, OT_TIER_COUNT) == 0)
        return;
    layout->kept = ot_layout_new_indices(mk, (int64_t)chain->n_blocks * layout->places);
    for (int b = 0; layout->kept && b < chain->n_blocks; b++) {
        struct ot_kept kept = ot_plan_kept(chain, plan, b);
        if (kept.level == OT_KEEP_NONE)
            continue;
        size_t bytes = ot_plan_saved_bytes(chain, plan, b, kept.level);
        add_kept_homes(mk, kept, bytes, &layout->kept[b * layout->places]);
        if (kept.tier != OT_TIER_GPU && bytes > largest)
            largest = bytes;
        if (kept.tier == OT_TIER_NVME && bytes > largest_on_nvme)
            largest_on_nvme = bytes;
    }
    layout->kept_slots =
        ot_layout_add_many(mk, OT_TIER_GPU, "kept activation slots", largest, plan->kept_slots);
    layout->host_kept_slots = ot_layout_add_many(mk, OT_TIER_HOST, "kept activation slots",
                                                 ot_layout_pages(largest_on_nvme), plan->host_kept_slots);
}

/* ---- frames of shadows ---- */

/* The next frame over kept activations, from the last block to the first. *place counts the micro-batches of
 * all blocks behind it. */
static struct ot_frame next_over_kept(struct ot_layout_maker *mk, int *place, int *tile) {
    const struct ot_layout *l = mk->layout;
    for (;; ++*place, *tile = 0) {
        int block = mk->chain->n_blocks - 1 - *place / l->places;
        if (*tile < ot_plan_frames_over_kept(mk->chain, mk->plan, block, l->frame_bytes))
            return (struct ot_frame){l->kept[block * l->places + *place % l->places], (*tile)++};
    }
}

/* Lists the frames of shadows. The last slabs take the kept activations of the last blocks: these must be
 * behind the first use of the slab (shadow_updates.h). */
static void list_frames(struct ot_layout_maker *mk, const struct ot_shadow_frames *deal) {
    struct ot_layout *l = mk->layout;
    int n_slabs = mk->chain->n_slabs, frame = mk->plan->shadow_frames, place = 0, tile = 0;
    l->first_frame[n_slabs] = frame;
    for (int s = n_slabs - 1; s >= 0 && mk->rc >= 0; s--) {
        l->first_frame[s] = frame - deal[s].all;
        for (int i = 0; i < deal[s].all; i++)
            l->frames[--frame] =
                i < deal[s].over_kept
                    ? next_over_kept(mk, &place, &tile)
                    : (struct ot_frame){ot_layout_add(mk, OT_TIER_HOST, "shadow updates", l->frame_bytes, 1),
                                        0};
    }
}

void ot_layout_add_frames(struct ot_layout_maker *mk) {
    struct ot_layout *l = mk->layout;
    int n_slabs = mk->chain->n_slabs, frames = mk->plan->shadow_frames, n = 0;
    struct ot_shadow_frames *deal = calloc((size_t)n_slabs, sizeof *deal);
    if (!mk->sizes) {
        l->first_frame = calloc((size_t)n_slabs + 1, sizeof *l->first_frame);
        l->frames = calloc((size_t)frames, sizeof *l->frames);
    }
    if (!deal || (!mk->sizes && (!l->first_frame || !l->frames))) {
        mk->rc = mk->rc < 0 ? mk->rc : ot_fail(OT_E_BUDGET, "no memory for a plan with %d shadows", frames);
        goto out;
    }
    ot_plan_deal_frames(mk->chain, mk->plan, deal);
    for (int s = 0; s < n_slabs; s++)
        n += deal[s].all - deal[s].over_kept;
    if (mk->sizes)
        ot_layout_add_row(mk, OT_TIER_HOST, "shadow updates", l->frame_bytes, 1, n);
    else
        list_frames(mk, deal);
out:
    free(deal);
}

/* ---- the cache of generation ---- */

/* Extents of k on nvme, and of v, in a block. A step of generation adds a row to each text, and writes the
 * extent that has it: with more extents it writes less, and reads in smaller pieces. */
enum { CACHE_EXTENTS = 256 };
/* A failed write ends the generation, so the old content is not needed. */
enum { CACHE_SIDES = 1 };

static int add_cache_home(struct ot_layout_maker *mk) {
    const struct ot_layout *l = mk->layout;
    static const char name[] = "key/value cache";
    if (mk->plan->cache != OT_HOME_NVME)
        return ot_layout_add(mk, (enum ot_tier)mk->plan->cache, name, 2 * l->cache_bytes, 1);
    return ot_layout_add_extents(mk, name, l->cache_extent_bytes, l->cache_extent_bytes,
                                 (int)(2 * l->cache_bytes / l->cache_extent_bytes), CACHE_SIDES);
}

void ot_layout_add_cache(struct ot_layout_maker *mk) {
    struct ot_layout *l = mk->layout;
    int blocks = mk->chain->n_blocks;
    if (mk->plan->cache_rows == 0)
        return;
    l->cache_bytes = (size_t)(mk->plan->cache_rows * mk->chain->kv_elems) * ot_dtype_bytes(mk->chain->dtype);
    if (mk->plan->cache == OT_HOME_NVME) {
        size_t extent = ot_layout_pages((l->cache_bytes + CACHE_EXTENTS - 1) / CACHE_EXTENTS);
        l->cache_extent_bytes = extent;
        l->cache_bytes = (l->cache_bytes + extent - 1) / extent * extent;
    }
    l->cache = ot_layout_new_indices(mk, blocks);
    for (int b = 1; l->cache && b < blocks - 1; b++)
        if (ot_block_is_own(mk->chain, mk->plan, b))
            l->cache[b] = add_cache_home(mk);
}

void ot_layout_add_cache_slots(struct ot_layout_maker *mk) {
    struct ot_layout *l = mk->layout;
    static const char name[] = "key/value cache slots";
    l->cache_slots = ot_layout_add_many(mk, OT_TIER_GPU, name, 2 * l->cache_bytes, mk->plan->cache_slots);
    l->host_cache_slots =
        ot_layout_add_many(mk, OT_TIER_HOST, name, 2 * l->cache_bytes, mk->plan->host_cache_slots);
}
