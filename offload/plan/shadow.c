#include "offload/plan/shadow.h"

#include "offload/plan/part.h"

bool ot_plan_has_shadows(const struct ot_plan *plan) {
    return plan->train && plan->shadow_frames > 0;
}

bool ot_plan_sends_norms(const struct ot_plan *plan) {
    return !plan->clip || ot_plan_has_shadows(plan);
}

int ot_slab_shadow_tiles(const struct ot_plan *plan, int slab) {
    const struct ot_slab_plan *sp = &plan->slabs[slab];
    bool on_host = sp->state == OT_HOME_HOST && sp->weights != OT_HOME_NVME && sp->grads != OT_HOME_NVME;
    return plan->train && plan->clip && on_host ? sp->tiles[OT_TILE_CPU] : 0;
}

int64_t ot_plan_shadow_tiles(const struct ot_plan *plan) {
    int64_t n = 0;
    for (int s = 0; s < plan->n_slabs; s++)
        n += ot_slab_shadow_tiles(plan, s);
    return n;
}

int ot_plan_shadow_frame(const struct ot_plan *plan, int slab, int tile) {
    const int *tiles = plan->slabs[slab].tiles;
    int64_t before = tile - tiles[OT_TILE_GPU] - tiles[OT_TILE_STREAM], all = 0;
    if (!ot_plan_has_shadows(plan) || ot_slab_shadow_tiles(plan, slab) == 0)
        return -1;
    for (int s = 0; s < plan->n_slabs; s++) {
        int n = ot_slab_shadow_tiles(plan, s);
        before += s < slab ? n : 0;
        all += n;
    }
    int64_t frame = before * plan->shadow_frames / all;
    return (before + 1) * plan->shadow_frames / all > frame ? (int)frame : -1;
}

size_t ot_plan_shadow_bytes(const struct ot_chain *chain, const struct ot_plan *plan) {
    struct ot_part most = {.has_state = true, .has_weights = true, .state = chain->state};
    for (int s = 0; s < plan->n_slabs; s++) {
        int64_t held = ot_slab_shadow_tiles(plan, s) > 0 ? ot_slab_holding(chain, plan, s).n : 0;
        held = held < plan->tile_params ? held : plan->tile_params;
        most.n = held > most.n ? held : most.n;
    }
    return ot_part_bytes(chain->dtype, &most);
}
