/* Sections of a row (plan/slabs.h): what the calls of a block hand on from section to section, and the copies
 * of key groups. */
#include "offload/engine/engine_state.h"
#include "offload/plan/slabs.h"

/* The bytes of one tile of a buffer of keys or sums: a group's keys and values, or their sums. */
static size_t group_bytes(const struct ot_engine *en, size_t item) {
    return 2 * (size_t)ot_plan_row_elems(&en->chain, &en->plan) * item;
}

static size_t key_bytes(const struct ot_engine *en) {
    return ot_dtype_bytes(en->chain.dtype);
}

void ot_engine_fill_row(const struct ot_engine *en, const struct ot_task *task, struct ot_block_run *run) {
    int64_t section = task->micro % ot_plan_sections(&en->plan);
    int64_t all = ot_plan_row_elems(&en->chain, &en->plan);
    if (en->pass == OT_PASS_EVAL && run->token_loss)
        run->token_loss += section * en->plan.micro_tokens;
    if (task->keys == OT_NO_BUFFER)
        return;
    char *keys =
        (char *)ot_engine_at(en, task->keys) + (size_t)task->key_slot * group_bytes(en, key_bytes(en));
    run->phase = task->phase;
    run->row = (struct ot_run_row){.k = keys,
                                   .v = keys + (size_t)all * key_bytes(en),
                                   .first = section * en->plan.micro_tokens,
                                   .group = task->group,
                                   .n_groups = ot_plan_key_groups(&en->plan)};
    if (en->layout.row_sums == OT_NO_BUFFER)
        return;
    char *sums = ot_engine_at(en, en->layout.row_sums);
    run->row.dk = (float *)(void *)(sums + (size_t)task->key_slot * group_bytes(en, sizeof(float)));
    run->row.dv = run->row.dk + all;
}

/* In key groups, the slot's sums are cleared before the first section of backward, which is the last of its
 * row. Else all sums are, before its first keys. */
void ot_engine_clear_key_sums(const struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    int sections = ot_plan_sections(&en->plan), section = task->micro % sections;
    size_t bytes = group_bytes(en, sizeof(float));
    char *sums = (char *)ot_engine_at(en, en->layout.row_sums) + (size_t)task->key_slot * bytes;
    if (task->kind == OT_TASK_KEYS ? task->phase == OT_PHASE_WHOLE && section == 0
                                   : task->phase == OT_PHASE_ATTEND_BACK && section == sections - 1)
        ot_lane_fill(lane, sums, 0, bytes);
}

/* Sums of an empty section move too: zeros. A row without tokens has none. */
void ot_engine_move_keys(const struct ot_engine *en, const struct ot_task *task, int64_t step,
                         struct ot_lane *lane) {
    const struct ot_layout *layout = &en->layout;
    bool in = task->kind == OT_TASK_KEYS_IN,
         sums = task->from == layout->row_sums || task->to == layout->row_sums;
    int64_t elems = ot_plan_group_elems(&en->chain, &en->plan);
    size_t item = sums ? sizeof(float) : key_bytes(en), bytes = group_bytes(en, item);
    struct ot_shard_range rows = ot_task_key_rows(&en->plan, layout, task);
    int first = task->micro - task->micro % ot_plan_sections(&en->plan);
    char *to = (char *)ot_engine_at(en, task->to) + (size_t)(in ? task->key_slot : task->group) * bytes;
    const char *from =
        (const char *)ot_engine_at(en, task->from) + (size_t)(in ? task->group : task->key_slot) * bytes;
    if (en->steps[step & 1].micro_tokens[sums ? first : task->micro] == 0)
        return;
    for (size_t at = (size_t)(rows.first * elems) * item, i = 0; i < 2; i++, at += bytes / 2)
        ot_lane_copy(lane, in ? OT_COPY_H2D : OT_COPY_D2H, to + at, from + at,
                     (size_t)(rows.n * elems) * item);
}
