#include "offload/plan/plan.h"

#include <stdlib.h>
#include <string.h>

const char *ot_tier_name(enum ot_tier tier) {
    static const char *const names[] = {"gpu", "host", "nvme"};
    return names[tier];
}

const char *ot_tile_engine_name(enum ot_tile_engine engine) {
    static const char *const names[] = {"gpu", "stream", "cpu"};
    return names[engine];
}

const char *ot_slot_kind_name(enum ot_slot_kind kind) {
    static const char *const names[] = {"layer", "edge", "frozen layer", "frozen edge", "shared"};
    return names[kind];
}

size_t ot_ledger_total(const struct ot_ledger *ledger, enum ot_tier tier) {
    size_t total = 0;
    for (int i = 0; i < ledger->n; i++)
        if (ledger->entries[i].tier == tier)
            total += ledger->entries[i].bytes;
    return total;
}

void ot_plan_free(struct ot_plan *plan) {
    free(plan->slabs);
    memset(plan, 0, sizeof *plan);
}

int64_t ot_plan_count_tiles(const struct ot_plan *plan, enum ot_tile_engine engine) {
    int64_t n = 0;
    for (int s = 0; s < plan->n_slabs; s++)
        n += plan->slabs[s].tiles[engine];
    return n;
}
