/* The engine's functions for snapshots (engine.h). */
#include "offload/engine/engine_state.h"

static void note_progress(void *context) {
    struct ot_engine *en = context;
    ot_executor_note_progress(en->executor);
}

int ot_engine_open_snapshot(struct ot_engine *en) {
    struct ot_snapshot_source source = {.chain = &en->chain,
                                        .plan = &en->plan,
                                        .layout = &en->layout,
                                        .tier_memory = en->tier_memory,
                                        .device = en->device,
                                        .store = en->store,
                                        .note_progress = note_progress,
                                        .context = en};
    return ot_snapshot_open(&source, &en->snapshot);
}

int ot_engine_snapshot(struct ot_engine *en, const struct ot_snapshot_config *config) {
    bool at_rest = en->submitted == en->collected && !en->behind;
    if (!en->snapshot || ot_snapshot_is_under_way(en->snapshot) ||
        (!at_rest && !(ot_engine_is_stuck(en) && ot_engine_is_consistent(en))))
        return ot_fail(
            OT_E_INTERNAL,
            "cannot begin a snapshot: the engine is not drained, does not train, or has one under way");
    OT_TRY(ot_engine_unstage(en));
    if (ot_engine_is_stuck(en))
        ot_engine_undo_shadows(en);
    return ot_snapshot_begin(en->snapshot, config);
}

bool ot_engine_snapshot_busy(const struct ot_engine *en) {
    return ot_snapshot_busy(en->snapshot);
}

double ot_engine_snapshot_seconds(const struct ot_engine *en) {
    return ot_snapshot_seconds(en->snapshot);
}

void ot_engine_snapshot_give_up(struct ot_engine *en) {
    ot_snapshot_give_up(en->snapshot);
}

int ot_engine_snapshot_finish(struct ot_engine *en, struct ot_pins **pins) {
    return ot_snapshot_finish(en->snapshot, pins);
}

void ot_engine_release(struct ot_engine *en, struct ot_pins *pins) {
    ot_pins_release(en->store, pins);
}

struct ot_store *ot_engine_store(const struct ot_engine *en) {
    return en->store;
}

void *ot_engine_snapshot_slots(const struct ot_engine *en, int *n) {
    *n = en->plan.snapshot_slots;
    return *n > 0 ? ot_engine_at(en, en->layout.snapshot_slots) : NULL;
}
