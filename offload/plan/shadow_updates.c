#include "offload/plan/shadow_updates.h"

#include "offload/plan/layout.h"
#include "offload/plan/segment.h"
#include "offload/plan/slabs.h"
#include "offload/plan/stages.h"
#include "src/base/minmax.h"

enum { FRAME_ALIGN = 4096 };

bool ot_plan_has_shadows(const struct ot_plan *plan) {
    return plan->train && plan->shadow_frames > 0;
}

bool ot_plan_sends_norms(const struct ot_plan *plan) {
    return !plan->clip || ot_plan_has_shadows(plan);
}

int ot_slab_shadow_tiles(const struct ot_plan *plan, int slab) {
    const struct ot_slab_plan *sp = &plan->slabs[slab];
    bool on_host = sp->state == OT_HOME_HOST && sp->weights != OT_HOME_NVME && sp->grads != OT_HOME_NVME;
    return plan->train && plan->clip && on_host && !ot_plan_has_stages(plan) ? sp->tiles[OT_TILE_CPU] : 0;
}

int64_t ot_plan_shadow_tiles(const struct ot_plan *plan) {
    int64_t n = 0;
    for (int s = 0; s < plan->n_slabs; s++)
        n += ot_slab_shadow_tiles(plan, s);
    return n;
}

size_t ot_plan_frame_bytes(const struct ot_chain *chain, const struct ot_plan *plan) {
    struct ot_segment most = ot_segment_of(chain, true, true, 0);
    for (int s = 0; s < plan->n_slabs; s++) {
        int64_t held = ot_slab_shadow_tiles(plan, s) > 0 ? ot_slab_holding(chain, plan, s).n : 0;
        held = ot_min(held, plan->tile_params);
        most.n = ot_max(held, most.n);
    }
    return (ot_segment_bytes(chain->dtype, &most) + FRAME_ALIGN - 1) / FRAME_ALIGN * FRAME_ALIGN;
}

int ot_frames_over(struct ot_kept kept, size_t bytes, size_t frame_bytes) {
    bool may = kept.level != OT_KEEP_NONE && kept.tier == OT_TIER_HOST && frame_bytes > 0;
    return may ? (int)(bytes / frame_bytes) : 0;
}

int ot_plan_frames_over_kept(const struct ot_chain *chain, const struct ot_plan *plan, int block,
                             size_t frame_bytes) {
    struct ot_kept kept = ot_plan_kept(chain, plan, block);
    if (kept.level == OT_KEEP_NONE || kept.tier != OT_TIER_HOST || frame_bytes == 0)
        return 0;
    size_t bytes = ot_plan_saved_bytes(chain, plan, block, kept.level);
    return ot_frames_over(kept, bytes, frame_bytes);
}

static bool is_first_use(const struct ot_chain *chain, int block, int slab) {
    for (int b = 0; b < block; b++)
        for (int u = 0; u < chain->blocks[b].n_uses; u++)
            if (chain->blocks[b].uses[u].slab == slab)
                return false;
    return true;
}

/* Gives each slab as many frames over kept activations as it has tiles and as there is room behind its first
 * use, the last slab first. Of these, deals `most` in equal shares. out: NULL, or [n_slabs]. Returns how many
 * there are without this limit. */
static int64_t deal_over_kept(const struct ot_chain *chain, const struct ot_plan *plan, int64_t most,
                              int64_t all, struct ot_shadow_frames *out) {
    int64_t room = 0, taken = 0;
    size_t bytes = ot_plan_frame_bytes(chain, plan);
    for (int b = chain->n_blocks - 1; b >= 0; b--) {
        const struct ot_block_spec *block = &chain->blocks[b];
        room += (int64_t)ot_plan_round_places(plan) * ot_plan_frames_over_kept(chain, plan, b, bytes);
        for (int u = 0; u < block->n_uses; u++) {
            int slab = block->uses[u].slab, tiles = ot_slab_shadow_tiles(plan, slab);
            if (tiles == 0 || room == 0 || !is_first_use(chain, b, slab))
                continue;
            int64_t takes = ot_min(tiles, room);
            if (out)
                out[slab].over_kept = (int)((taken + takes) * most / all - taken * most / all);
            taken += takes;
            room -= takes;
        }
    }
    return taken;
}

int64_t ot_plan_free_frames(const struct ot_chain *chain, const struct ot_plan *plan) {
    return deal_over_kept(chain, plan, 0, 1, NULL);
}

void ot_plan_deal_frames(const struct ot_chain *chain, const struct ot_plan *plan,
                         struct ot_shadow_frames *out) {
    int64_t most = ot_plan_free_frames(chain, plan), over = most, passed = 0, rest;
    over = ot_min(over, plan->shadow_frames);
    rest = ot_plan_shadow_tiles(plan) - over;
    for (int s = 0; s < plan->n_slabs; s++)
        out[s].over_kept = 0;
    if (most > 0)
        deal_over_kept(chain, plan, over, most, out);
    for (int s = 0; s < plan->n_slabs; s++) {
        int64_t others = ot_slab_shadow_tiles(plan, s) - out[s].over_kept, own = plan->shadow_frames - over;
        out[s].all = out[s].over_kept;
        out[s].all += rest > 0 ? (int)((passed + others) * own / rest - passed * own / rest) : 0;
        passed += others;
    }
}
